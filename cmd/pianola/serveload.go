package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
)

// serveLoadHelp describes the output of bench --serve-load.
const serveLoadHelp = `With --serve-load it measures requests that run together, as rows of one batch, and
nothing else. With --clients, each client sends its next request when its last one
has ended (closed loop). With --rate, requests arrive at random times, independent
of those that run (open loop, Poisson arrivals). -p and -n are the mean lengths;
with --mixed they vary from a quarter to seven quarters of them.
  first token    time from the arrival of a request to its first token
  inter-token    time between two tokens that do not arrive together
  request        time from the arrival of a request to its last token
goodput is the rate of the requests that keep both objectives, --first-ms and the
mean of --token-ms a token. --svg draws the percentiles and the goodput by clients
or by rate.`

// serveLoadFlags are --serve-load and the flags of bench that require it.
type serveLoadFlags struct {
	on              bool
	parallel        int
	clients         []int
	rates           []float64
	requests        int
	mixed           bool
	firstMS, tokenM float64
	spill           spillFlags
}

func (f *serveLoadFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVar(&f.on, "serve-load", false, "measure requests that run together instead")
	fs.IntVar(&f.parallel, "parallel", 16, "with --serve-load, largest number of requests that run together")
	fs.IntSliceVar(&f.clients, "clients", nil, "with --serve-load, number of clients; a list measures each (default: the value of --parallel)")
	fs.Float64SliceVar(&f.rates, "rate", nil, "with --serve-load, requests per second that arrive at random times, instead of --clients; a list measures each")
	fs.IntVar(&f.requests, "load-requests", 0, "with --serve-load, number of measured requests (default: 4 for each client, or 64)")
	f.spill.register(cmd)
	fs.BoolVar(&f.mixed, "mixed", false, "with --serve-load, requests of different lengths")
	fs.Float64Var(&f.firstMS, "first-ms", 1000, "with --serve-load, objective of the time to the first token in ms")
	fs.Float64Var(&f.tokenM, "token-ms", 100, "with --serve-load, objective of the mean time of a token after the first in ms")
}

func (f *serveLoadFlags) check(cmd *cobra.Command, b *benchFlags) error {
	fs := cmd.Flags()
	if !f.on {
		for _, name := range []string{"parallel", "clients", "rate", "load-requests", "mixed", "first-ms", "token-ms", "spill-memory", "spill-dir", "spill-file"} {
			if fs.Changed(name) {
				return usage(cmd, "--%s requires --serve-load", name)
			}
		}
		return nil
	}
	for _, name := range []string{"latency", "chain", "depth", "runs", "benchfmt", "real-time"} {
		if fs.Changed(name) {
			return usage(cmd, "--serve-load and --%s exclude each other", name)
		}
	}
	if err := errors.Join(atLeast(cmd, 1, "parallel", f.parallel), atLeast(cmd, 0, "load-requests", f.requests)); err != nil {
		return err
	}
	switch {
	case b.o.Prompt < 1 || b.o.Decode < 2:
		return fmt.Errorf("--serve-load: requires -p of at least 1 and -n of at least 2; got -p %d -n %d", b.o.Prompt, b.o.Decode)
	case len(f.rates) > 0 && len(f.clients) > 0:
		return usage(cmd, "--rate is positive and excludes --clients")
	}
	for _, r := range f.rates {
		if !(r > 0 && r <= 1e6) { // also refuses NaN
			return usage(cmd, "--rate is positive and excludes --clients")
		}
	}
	for _, n := range f.clients {
		if n < 1 || n > 1<<14 {
			return fmt.Errorf("--clients %d: must be 1 to %d", n, 1<<14)
		}
	}
	return nil
}

// positions returns the number of positions of the longest request.
func (f *serveLoadFlags) positions(b *benchFlags) int {
	n := b.o.Prompt + b.o.Decode
	if f.mixed {
		n = 7*b.o.Prompt/4 + 7*b.o.Decode/4
	}
	return n + 1
}

// measure measures each number of clients, or the rate, and writes the results.
func (f *serveLoadFlags) measure(cmd *cobra.Command, m *pianola.Model, b *benchFlags, name string) error {
	var all []*serveLoad
	for _, l := range f.loads() {
		l.Model, l.Parallel, l.flags, l.bench, l.m, l.r = name, f.parallel, f, b, m, rand.New(rand.NewPCG(b.o.Seed, 18))
		if err := l.run(cmd.Context()); err != nil {
			return err
		}
		all = append(all, l)
		if b.json {
			if err := writeJSON(cmd.OutOrStdout(), l); err != nil {
				return err
			}
		} else if err := l.write(cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	if b.latency.svg == "" {
		return nil
	}
	var page bytes.Buffer
	if err := drawLoads(&page, all); err != nil {
		return err
	}
	return os.WriteFile(b.latency.svg, page.Bytes(), 0o644)
}

// loads returns the measurements that the flags ask for, with their rates or clients.
func (f *serveLoadFlags) loads() (all []*serveLoad) {
	for _, rate := range f.rates {
		all = append(all, &serveLoad{Rate: rate})
	}
	for _, n := range f.clients {
		all = append(all, &serveLoad{Clients: n})
	}
	if len(all) == 0 {
		all = append(all, &serveLoad{Clients: f.parallel})
	}
	return all
}

// serveLoad is a measurement of requests that run together. Times are in ms.
type serveLoad struct {
	Model    string      `json:"model"`
	Parallel int         `json:"parallel"`
	Clients  int         `json:"clients,omitempty"`
	Rate     float64     `json:"rate,omitempty"` // requests per second that arrive
	Requests int         `json:"requests"`
	Prompt   int         `json:"prompt_tokens"` // of all requests
	Tokens   int         `json:"tokens"`        // of all requests
	Seconds  float64     `json:"seconds"`
	TokS     float64     `json:"tok_s"`
	Goodput  float64     `json:"goodput_requests_s"`
	Hit      int         `json:"prefix_tokens"` // tokens of prompts whose pages were there
	First    percentiles `json:"ttft_ms"`
	Inter    percentiles `json:"itl_ms"`
	Whole    percentiles `json:"request_ms"`

	flags *serveLoadFlags
	bench *benchFlags
	m     *pianola.Model

	r                   *rand.Rand
	mu                  sync.Mutex // guards the fields below and above while requests run
	first, inter, whole *hdr.Histogram
	good                int
	err                 error
}

// percentiles are the percentiles of times in ms.
type percentiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func percentilesOf(h *hdr.Histogram) percentiles {
	at := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1e6 }
	return percentiles{at(50), at(95), at(99), float64(h.Max()) / 1e6}
}

func newTimes() *hdr.Histogram { return hdr.New(1, int64(time.Hour), 3) }

// length returns the length of a request's prompt or of its tokens, whose mean is n.
func (l *serveLoad) length(n int) int {
	if !l.flags.mixed {
		return n
	}
	return max(2, n/4+l.r.IntN(6*n/4+1))
}

// request is a request of a measurement.
type request struct {
	wait   time.Duration // from the arrival of the request before it, with --rate
	ids    []int32
	tokens int
}

// draw returns n requests. They depend only on the seed, and not on the times of other requests.
func (l *serveLoad) draw(n int) []request {
	all := make([]request, n)
	for i := range all {
		if l.Rate > 0 {
			all[i].wait = time.Duration(l.r.ExpFloat64() / l.Rate * float64(time.Second))
		}
		all[i].ids = make([]int32, l.length(l.bench.o.Prompt))
		for j := range all[i].ids {
			all[i].ids[j] = int32(l.r.IntN(l.m.Config().Vocab))
		}
		all[i].tokens = l.length(l.bench.o.Decode)
		l.Prompt += len(all[i].ids)
	}
	return all
}

// run sends the requests and waits for their ends.
func (l *serveLoad) run(ctx context.Context) error {
	l.first, l.inter, l.whole = newTimes(), newTimes(), newTimes()
	n := l.flags.requests
	if n == 0 {
		n = max(4*l.Clients, 4)
		if l.Rate > 0 {
			n = 64
		}
	}
	all := l.draw(n)
	start := time.Now()
	var wg sync.WaitGroup
	if l.Rate > 0 {
		due := start
		for _, r := range all {
			due = due.Add(r.wait)
			select {
			case <-time.After(time.Until(due)):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			arrived := due
			wg.Go(func() { l.request(ctx, r, arrived) })
		}
	} else {
		left := make(chan request, n)
		for _, r := range all {
			left <- r
		}
		close(left)
		for range l.Clients {
			wg.Go(func() {
				for r := range left {
					l.request(ctx, r, time.Now())
				}
			})
		}
	}
	wg.Wait()
	l.Seconds = time.Since(start).Seconds()
	l.TokS, l.Goodput = float64(l.Tokens)/l.Seconds, float64(l.good)/l.Seconds
	l.First, l.Inter, l.Whole = percentilesOf(l.first), percentilesOf(l.inter), percentilesOf(l.whole)
	return l.err
}

// request runs a request that arrived at a time.
func (l *serveLoad) request(ctx context.Context, r request, arrived time.Time) {
	err := l.generate(ctx, r, arrived)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Requests++
	l.err = errors.Join(l.err, err)
}

// apart is the smallest time between two tokens that do not arrive together.
const apart = 100 * time.Microsecond

func (l *serveLoad) generate(ctx context.Context, r request, arrived time.Time) error {
	s, err := l.m.NewSession(pianola.SessionOptions{IgnoreStops: true, ChainTime: l.bench.o.ChainTime})
	if err != nil {
		return err
	}
	defer s.Close()
	var gaps []time.Duration
	last := arrived
	for _, err := range s.GenerateIDs(ctx, r.ids, pianola.GenerateOptions{MaxTokens: r.tokens}) {
		if err != nil {
			return err
		}
		now := time.Now()
		gaps = append(gaps, now.Sub(last))
		last = now
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Tokens += len(gaps)
	for i, d := range gaps {
		to := l.inter
		switch {
		case i == 0:
			to = l.first
		case d < apart:
			continue // the token came with the one before it
		}
		_ = to.RecordValue(min(int64(d), int64(time.Hour))) // cannot fail within the bounds
	}
	whole := last.Sub(arrived)
	_ = l.whole.RecordValue(min(int64(whole), int64(time.Hour)))
	if n := len(gaps); n > 1 {
		mean := (whole - gaps[0]).Seconds() * 1000 / float64(n-1)
		if gaps[0].Seconds()*1000 <= l.flags.firstMS && mean <= l.flags.tokenM {
			l.good++
		}
	}
	return nil
}

// write writes the measurement as text.
func (l *serveLoad) write(w io.Writer) error {
	how := fmt.Sprintf("%d clients", l.Clients)
	if l.Rate > 0 {
		how = fmt.Sprintf("%g requests a second", l.Rate)
	}
	fmt.Fprintf(w, "%s, %s, at most %d together: %d requests, %d + %d tokens in %.2f s\n", l.Model, how, l.Parallel, l.Requests, l.Prompt, l.Tokens, l.Seconds)
	fmt.Fprintf(w, "rate         %.1f tok/s; goodput %.2f requests/s (first token in %g ms, then %g ms a token)\n", l.TokS, l.Goodput, l.flags.firstMS, l.flags.tokenM)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "ms\tp50\tp95\tp99\tmax\t")
	for _, p := range []struct {
		name string
		of   percentiles
	}{{"first token", l.First}, {"inter-token", l.Inter}, {"request", l.Whole}} {
		fmt.Fprintf(tw, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t\n", p.name, p.of.P50, p.of.P95, p.of.P99, p.of.Max)
	}
	return tw.Flush()
}
