package bench

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

const (
	textBins  = 12
	textWidth = 50 // characters of the longest bar
)

// WriteText writes the percentiles and a histogram of each distribution as text.
func (l *Latency) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\nlatency, %s\n\n", l.what())
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "ms\tn\tp50\tp95\tp99\tmax\t")
	for _, n := range l.named() {
		d := n.d
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\t\n", n.name, d.Count,
			ms(d.Quantile(0.50)), ms(d.Quantile(0.95)), ms(d.Quantile(0.99)), ms(d.Max))
	}
	tw.Flush() // cannot fail, because b is a strings.Builder
	for _, n := range l.named() {
		fmt.Fprintf(&b, "\n%s, ms\n", n.name)
		n.d.writeBars(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// what returns a description of the measurement.
func (l *Latency) what() string {
	s := fmt.Sprintf("%d requests of %d + %d tokens after %d to warm up, ", l.Requests, l.Prompt, l.Tokens, l.Warmup)
	if l.ChainMS > 0 {
		s += fmt.Sprintf("chains of at most %g ms, ", l.ChainMS)
	}
	s += fmt.Sprintf("%.3g tokens a delivery", l.TokensPerDelivery)
	if l.RealTime {
		s += ", real time"
	}
	if l.Load > 0 {
		s += fmt.Sprintf(", with %d goroutines that allocate %d MB/s each", l.Load, loadBytes/1000)
	}
	return s
}

// ms formats a time in ms with four digits.
func ms(d time.Duration) string {
	v := milliseconds(d)
	decimals := 3
	if v >= 1 {
		decimals = max(0, 3-int(math.Log10(v)))
	}
	return fmt.Sprintf("%.*f", decimals, v)
}

// writeBars draws the histogram with one line per bin. The length of a bar is proportional to
// the bin's count.
func (d *Distribution) writeBars(b *strings.Builder) {
	bins := d.bins(textBins)
	var most int64
	width := 0
	for _, c := range bins {
		most = max(most, c.count)
		width = max(width, len(ms(c.to)), len(ms(c.from)))
	}
	for _, c := range bins {
		bar := eighths(float64(textWidth) * float64(c.count) / float64(most))
		line := fmt.Sprintf("  %*s to %*s  %s%s %d", width, ms(c.from), width, ms(c.to),
			bar, strings.Repeat(" ", textWidth-utf8.RuneCountInString(bar)), c.count)
		b.WriteString(line + "\n")
	}
}

// eighths returns a bar that is width characters long, rounded to eighths of a character. A
// positive width gives at least one eighth.
func eighths(width float64) string {
	n := int(math.Round(8 * width))
	if n == 0 && width > 0 {
		n = 1
	}
	bar := strings.Repeat("█", n/8)
	if n%8 > 0 {
		bar += string([]rune("▏▎▍▌▋▊▉")[n%8-1])
	}
	return bar
}

// WriteBenchfmt writes a line of Go's benchmark format for each distribution. Lines with the
// model and device of res must precede it.
func (l *Latency) WriteBenchfmt(w io.Writer, res *Result) error {
	var b strings.Builder
	common := fmt.Sprintf("model=%s/device=%s/mode=%s/chain=%gms", benchName(res.Model), res.Device, res.Mode, l.ChainMS)
	if res.ChainKept {
		common = fmt.Sprintf("model=%s/device=%s/mode=%s/chain=%d", benchName(res.Model), res.Device, res.Mode, res.Chain)
	}
	for _, n := range l.named() {
		if d := n.d; d.Count > 0 {
			fmt.Fprintf(&b, "BenchmarkLatency/%s/real_time=%t/load=%d/of=%s-%d\t%d\t%d p50-ns\t%d p95-ns\t%d p99-ns\t%d max-ns\n",
				common, l.RealTime, l.Load, n.key, runtime.GOMAXPROCS(0), d.Count,
				d.Quantile(0.50), d.Quantile(0.95), d.Quantile(0.99), d.Max)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
