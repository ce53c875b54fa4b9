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
const latencyHelp = `With --latency it also measures the latencies that a caller of the streaming
interface observes. It runs 10 warm-up requests and then --requests measured ones,
one after another, with a prompt of -p tokens and -n generated tokens each. The
tokens of one submission arrive together and are called a delivery.
  first token        time from the call to the first token (TTFT), one value per
                     request
  inter-token        time between two deliveries, from the last token of one to the
                     first token of the next, one value per delivery
  per token          time between two deliveries, divided by the number of tokens of
                     the second (TPOT), one value per token
  cancel in prefill  time from the call of cancel to the end of the generation; cancel
                     is called at a random moment before the median TTFT
  cancel in decode   the same for a random moment after the first token
  deadline overrun   time from the moment at which a cancellation was due to the end
                     of the generation, including the delay of the timer
p50, p95 and p99 are percentiles, accurate to 0.1 %; max is exact. --load starts
goroutines that allocate memory during the requests.`

// latencyFlags are --latency and the flags of bench that require it.
type latencyFlags struct {
	on       bool
	requests int
	load     int
	svg      string
}

func (f *latencyFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVar(&f.on, "latency", false, "also measure the latencies of requests")
	fs.IntVar(&f.requests, "requests", 100, "with --latency, number of measured requests")
	fs.IntVar(&f.load, "load", 0, "with --latency, number of goroutines that allocate memory during the requests")
	fs.StringVar(&f.svg, "svg", "", "draw the histograms of --latency or the curves of --serve-load to `FILE`")
}

func (f *latencyFlags) check(cmd *cobra.Command, b *benchFlags) error {
	fs := cmd.Flags()
	if fs.Changed("svg") {
		if err := f.checkSVG(cmd, b); err != nil {
			return err
		}
	}
	if !f.on {
		for _, name := range []string{"requests", "load"} {
			if fs.Changed(name) {
				return usage(cmd, "--%s requires --latency", name)
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
		return usage(cmd, "--latency requires a single --chain length")
	case b.o.Depth > 0:
		return usage(cmd, "--latency and -d exclude each other: use a longer prompt (-p)")
	}
	return nil
}

// checkSVG checks --svg before minutes of measuring.
func (f *latencyFlags) checkSVG(cmd *cobra.Command, b *benchFlags) error {
	switch {
	case !f.on && !b.serve.on:
		return usage(cmd, "--svg requires --latency or --serve-load")
	case f.svg == "":
		return usage(cmd, "--svg needs a file")
	}
	_, err := os.Stat(filepath.Dir(f.svg))
	return err
}

// options returns the options of the latency measurement for the flags of bench.
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
