package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/bench"
)

// latencyWarmup is the number of requests before the measured ones.
const latencyWarmup = 10

// latencyHelp describes the output of bench --latency.
const latencyHelp = `With --latency it also measures what a caller of the streaming interface waits
for, over --requests requests of -p and -n tokens each, one after another, after
10 that do not count:
  first token        from the call to the first token (TTFT), once a request
  inter-token        from a token to the next where that begins a delivery: the
                     tokens of a chain arrive together, and within one the time is
                     next to nothing, which is not counted
  per token          from a delivery to the next by the tokens of the latter, once
                     a token: the pace (TPOT)
  cancel in prefill  from the call of cancel to the end of the generation, at a
                     random moment before the median time to the first token
  cancel in decode   the same, at a random moment after the first token
  deadline overrun   both from the moment at which they were due, with the delay of
                     the timer
p50, p95 and p99 are times that 50, 95 and 99 of 100 are not above, within 0.1 %;
max is exact. --load runs goroutines that allocate beside it.`

// latencyFlags are the flags of bench that go with --latency.
type latencyFlags struct {
	on       bool
	requests int
	load     int
	svg      string
}

func (f *latencyFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVar(&f.on, "latency", false, "measure latencies of requests too")
	fs.IntVar(&f.requests, "requests", 100, "requests that count, with --latency")
	fs.IntVar(&f.load, "load", 0, "goroutines that allocate meanwhile, with --latency")
	fs.StringVar(&f.svg, "svg", "", "draw the latencies' histograms to `FILE`")
}

func (f *latencyFlags) check(cmd *cobra.Command, b *benchFlags) error {
	fs := cmd.Flags()
	if !f.on {
		for _, name := range []string{"requests", "load", "svg"} {
			if fs.Changed(name) {
				return usage(cmd, "--%s goes with --latency only", name)
			}
		}
		return nil
	}
	if err := atLeast(cmd, 1, "requests", f.requests); err != nil {
		return err
	}
	if err := atLeast(cmd, 0, "load", f.load); err != nil {
		return err
	}
	switch {
	case b.o.Prompt < 1 || b.o.Decode < 2:
		return fmt.Errorf("--latency: requires -p of at least 1 and -n of at least 2; got -p %d -n %d", b.o.Prompt, b.o.Decode)
	case len(b.chains) > 1:
		return usage(cmd, "--latency takes one chain length")
	case b.o.Depth > 0:
		return usage(cmd, "-d does not go with --latency: take a longer prompt")
	case fs.Changed("svg") && f.svg == "":
		return usage(cmd, "--svg needs a file")
	}
	if f.svg != "" { // lest minutes of measuring end in an error
		if _, err := os.Stat(filepath.Dir(f.svg)); err != nil {
			return err
		}
	}
	return nil
}

// options returns what to measure of what bench was asked for.
func (f *latencyFlags) options(b *benchFlags) bench.LatencyOptions {
	o := bench.LatencyOptions{
		Prompt: b.o.Prompt, Decode: b.o.Decode, Requests: f.requests, Warmup: latencyWarmup, Seed: b.o.Seed, Load: f.load,
		ChainTime: b.o.ChainTime,
	}
	if len(b.chains) == 1 {
		o.Chain = b.chains[0]
	}
	return o
}

func (f *latencyFlags) measure(cmd *cobra.Command, m *pianola.Model, b *benchFlags) (*bench.Latency, error) {
	p := newProgress(cmd.ErrOrStderr(), "requests", false)
	defer p.finish()
	o := f.options(b)
	o.Progress = func(done, total int) { p.set("requests", uint64(done), uint64(total)) }
	return bench.RunLatency(cmd.Context(), m, o)
}

func (f *latencyFlags) writeSVG(res *bench.Result) error {
	var b bytes.Buffer
	title := fmt.Sprintf("%s on %s, mode %s", res.Model, res.Device, res.Mode)
	if res.Name != "" {
		title = fmt.Sprintf("%s on %s, %s, mode %s", res.Model, res.Device, res.Name, res.Mode)
	}
	if err := res.Latency.WriteSVG(&b, title); err != nil {
		return err
	}
	return os.WriteFile(f.svg, b.Bytes(), 0o644)
}
