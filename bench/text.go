package bench

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"text/tabwriter"
)

// WriteText writes a result as text.
func (r *Result) WriteText(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("model", "%s, context %d", r.Model, r.Context)
	row("device", "%s, mode %s, chain %s", r.where(), r.Mode, r.chain())
	if len(r.PrefillTokS) > 0 {
		row("prefill", "%s tok/s, %d tokens%s", spread(r.PrefillTokS), r.Prompt, r.depth())
	}
	if len(r.DecodeTokS) > 0 {
		row("decode", "%s tok/s, %d tokens%s", spread(r.DecodeTokS), r.Tokens, r.depth())
		row("reads", "%.2f MB a token, %.2f GB/s", r.BytesPerToken/1e6, r.ReadGBs)
		row("waits", "%d submissions, %d waits, %.2f ms a run", r.Submissions, r.Waits, r.WaitMS)
		if r.CallsPerToken > 0 {
			row("calls", "%.1f of the GPU's API per token", r.CallsPerToken)
		}
		row("latency", "%.3f ms a submission, 99 of 100 within %.3f ms", r.ChainP50MS, r.ChainP99MS)
		row("allocations", "%.3g a token", r.AllocsPerToken)
	}
	row("commands", "%d a token, %d patched, table %.1f KB", r.Commands, r.Patched, float64(r.TableBytes)/1e3)
	row("encode", "%.1f ns a command, %.3f ms a run", r.EncodeNSPerCommand, r.EncodeMS)
	row("load", "%.1f ms: kernels %.1f, upload %.1f, warm-up %.1f", r.LoadMS, r.Load.KernelsMS, r.Load.UploadMS, r.Load.WarmMS)
	row("first token", "%.2f ms", r.TTFTMS)
	row("memory", "%.1f MB at most", r.RSSMB)
	return tw.Flush()
}

func (r *Result) where() string {
	s := r.Device
	for _, part := range []string{r.Name, r.Detail} {
		if part != "" && part != r.Device {
			s += ", " + part
		}
	}
	return s
}

func (r *Result) chain() string {
	if r.ChainKept {
		return fmt.Sprint(r.Chain)
	}
	return fmt.Sprintf("%d (what the time bound allows)", r.Chain)
}

func (r *Result) depth() string {
	if r.Depth == 0 {
		return ""
	}
	return fmt.Sprintf(" after %d", r.Depth)
}

// spread returns the median of a list with the largest deviation from it.
func spread(list []float64) string {
	m, far := Median(list), 0.0
	for _, v := range list {
		far = max(far, math.Abs(v-m))
	}
	if len(list) == 1 || m == 0 {
		return fmt.Sprintf("%.1f", m)
	}
	return fmt.Sprintf("%.1f ± %.1f %%", m, 100*far/m)
}

// WriteCurve writes the decode results for several chain lengths as a table. It writes each
// row as soon as next returns it. next returns nil at the end.
func WriteCurve(w io.Writer, next func() (*Result, error)) error {
	const format = "%6v  %12v  %10v  %9v  %10v  %11v  %9v  %9v  %8v\n"
	if _, err := fmt.Fprintf(w, format, "chain", "decode tok/s", "ms/token", "GB/s", "encode ns", "submissions", "wait ms", "p99 ms", "allocs"); err != nil {
		return err
	}
	for {
		r, err := next()
		if r == nil || err != nil {
			return err
		}
		m := Median(r.DecodeTokS)
		if _, err := fmt.Fprintf(w, format, r.Chain, fmt.Sprintf("%.1f", m), fmt.Sprintf("%.3f", 1e3/m), fmt.Sprintf("%.2f", r.ReadGBs),
			fmt.Sprintf("%.1f", r.EncodeNSPerCommand), r.Submissions, fmt.Sprintf("%.2f", r.WaitMS), fmt.Sprintf("%.3f", r.ChainP99MS),
			fmt.Sprintf("%.3g", r.AllocsPerToken)); err != nil {
			return err
		}
	}
}

// WriteBenchfmt writes a result in the format of Go's benchmarks
// (golang.org/design/14313-benchmark-format). It writes one line per run, as benchstat
// expects.
func (r *Result) WriteBenchfmt(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\npkg: github.com/pianola-engine/pianola/bench\n", runtime.GOOS, runtime.GOARCH)
	if r.Name != "" {
		fmt.Fprintf(&b, "cpu: %s\n", strings.Join(strings.Fields(r.Name), " "))
	}
	common := fmt.Sprintf("model=%s/device=%s/mode=%s/depth=%d", benchName(r.Model), r.Device, r.Mode, r.Depth)
	procs := runtime.GOMAXPROCS(0)
	for _, rate := range r.PrefillTokS {
		fmt.Fprintf(&b, "BenchmarkPrefill/%s/prompt=%d-%d\t%d\t%.1f ns/token\t%.2f tok/s\n",
			common, r.Prompt, procs, r.Prompt, 1e9/rate, rate)
	}
	chain := "time" // the length varies between runs, so it is not part of the name
	if r.ChainKept {
		chain = fmt.Sprint(r.Chain)
	}
	for _, rate := range r.DecodeTokS {
		fmt.Fprintf(&b, "BenchmarkDecode/%s/chain=%s-%d\t%d\t%.1f ns/token\t%.2f tok/s\t%.4g allocs/token\t%.1f encode-ns/command\n",
			common, chain, procs, r.Tokens, 1e9/rate, rate, r.AllocsPerToken, r.EncodeNSPerCommand)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// benchName replaces the characters that would end a benchmark's name or a part of the name.
func benchName(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r == '/' || r == '=' || r > '~' {
			return '_'
		}
		return r
	}, s)
}
