package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
)

// batchHelp describes the output of bench --batch.
const batchHelp = `With --batch it measures sequences that decode together, as rows of one batch, and
nothing else: every sequence has a prompt of -p tokens of its own, and decoding
begins when all sequences wait for it. It prints the rates of all rows together,
as medians of the runs.`

// batchFlags are --batch.
type batchFlags struct{ rows []int }

func (f *batchFlags) register(cmd *cobra.Command) {
	cmd.Flags().IntSliceVar(&f.rows, "batch", nil, "measure this number of sequences that decode together instead; a list measures each")
}

func (f *batchFlags) on() bool { return len(f.rows) > 0 }

func (f *batchFlags) check(cmd *cobra.Command, b *benchFlags) error {
	if !cmd.Flags().Changed("batch") {
		return nil
	}
	for _, name := range []string{"latency", "chain", "depth", "serve-load", "benchfmt", "real-time"} {
		if cmd.Flags().Changed(name) {
			return usage(cmd, "--batch and --%s exclude each other", name)
		}
	}
	if !f.on() {
		return usage(cmd, "--batch needs a number of sequences")
	}
	for _, n := range f.rows {
		if n < 1 || n > 1<<12 {
			return fmt.Errorf("--batch %d: must be 1 to %d", n, 1<<12)
		}
	}
	if b.o.Prompt < 1 || b.o.Decode < 1 {
		return fmt.Errorf("--batch: requires -p and -n of at least 1; got -p %d -n %d", b.o.Prompt, b.o.Decode)
	}
	return nil
}

// measure measures each number of rows and writes the results.
func (f *batchFlags) measure(cmd *cobra.Command, m *pianola.Model, b *benchFlags, name string) error {
	out := cmd.OutOrStdout()
	var table []*batchResult
	for _, rows := range f.rows {
		res := &batchResult{Model: name, Device: string(m.Device().Device), Rows: rows, Prompt: b.o.Prompt, Tokens: b.o.Decode}
		for run := range b.o.Runs + 1 {
			once := batchRun{m: m, o: b, seed: b.o.Seed + uint64(run)<<20, result: res, warm: run == 0}
			if err := once.measure(cmd.Context()); err != nil {
				return err
			}
		}
		if b.json {
			if err := writeJSON(out, res); err != nil {
				return err
			}
			continue
		}
		table = append(table, res)
	}
	if b.json {
		return nil
	}
	return writeBatches(out, table)
}

// batchResult is the measurement of a number of rows.
type batchResult struct {
	Model  string `json:"model"`
	Device string `json:"device"`
	Rows   int    `json:"rows"`
	Prompt int    `json:"prompt_tokens"` // of each row
	Tokens int    `json:"tokens"`        // decoded by each row
	// PrefillTokS and DecodeTokS are the rates of all rows together, for each run.
	PrefillTokS []float64 `json:"pp_tok_s"`
	DecodeTokS  []float64 `json:"tg_tok_s"`
	Together    float64   `json:"rows_together"` // mean number of rows of a submission of decoding
}

// writeBatches writes measurements as a table.
func writeBatches(w io.Writer, list []*batchResult) error {
	fmt.Fprintf(w, "%s on %s: prompts of %d tokens, then %d tokens a row\n", list[0].Model, list[0].Device, list[0].Prompt, list[0].Tokens)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "rows\tprefill tok/s\tdecode tok/s\ta row\trows together\t")
	for _, r := range list {
		decode := medianOf(r.DecodeTokS)
		fmt.Fprintf(tw, "%d\t%.0f\t%.1f\t%.1f\t%.1f\t\n", r.Rows, medianOf(r.PrefillTokS), decode, decode/float64(r.Rows), r.Together)
	}
	return tw.Flush()
}

// medianOf returns the median of at least one number.
func medianOf(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// batchRun is one run of all rows.
type batchRun struct {
	m      *pianola.Model
	o      *benchFlags
	seed   uint64
	result *batchResult
	warm   bool // the run is not measured

	decoded atomic.Int64 // tokens of all rows so far
}

// moment is a time with the number of tokens that were decoded before.
type moment struct {
	at     time.Time
	tokens int64
}

func (b *batchRun) measure(ctx context.Context) (err error) {
	sessions := make([]*pianola.Session, b.result.Rows+1)
	for i := range sessions {
		s, err := b.m.NewSession(pianola.SessionOptions{IgnoreStops: true, ChainTime: b.o.o.ChainTime})
		if err != nil {
			return err
		}
		defer closeAfter(&err, s)
		sessions[i] = s
	}
	rows, gate := sessions[1:], sessions[0]
	start := time.Now()
	if err := together(rows, func(i int, s *pianola.Session) error { return b.prompt(ctx, s, i, b.result.Prompt) }); err != nil {
		return err
	}
	prefill := time.Since(start).Seconds()
	before := b.counters(rows)
	// All rows arrive while the gate's short prompt is computed, so that none decodes alone before the others.
	// Decoding is timed from the end of that prompt.
	begin := moment{}
	gated := make(chan error, 1)
	go func() {
		err := b.prompt(ctx, gate, len(rows), gatePrompt)
		begin = moment{time.Now(), b.decoded.Load()}
		gated <- err
	}()
	for b.m.Load().Running == 0 && len(gated) == 0 {
		time.Sleep(10 * time.Microsecond)
	}
	launched := moment{at: time.Now()}
	err = together(rows, func(_ int, s *pianola.Session) error { return b.decode(ctx, s) })
	end := moment{time.Now(), b.decoded.Load()}
	if err = errors.Join(err, <-gated); err != nil || b.warm {
		return err
	}
	if 2*begin.tokens > end.tokens {
		begin = launched // most tokens were decoded during the prompt
	}
	after := b.counters(rows)
	r := b.result
	r.PrefillTokS = append(r.PrefillTokS, float64(r.Rows*r.Prompt)/prefill)
	r.DecodeTokS = append(r.DecodeTokS, float64(end.tokens-begin.tokens)/end.at.Sub(begin.at).Seconds())
	r.Together = float64(after.BatchRows-before.BatchRows) / float64(max(1, after.Submissions-before.Submissions))
	return nil
}

// gatePrompt is the number of tokens of the prompt during which all rows arrive.
const gatePrompt = 32

// together calls f for all sessions at once.
func together(sessions []*pianola.Session, f func(i int, s *pianola.Session) error) error {
	errs := make([]error, len(sessions))
	var wg sync.WaitGroup
	for i, s := range sessions {
		wg.Go(func() { errs[i] = f(i, s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// prompt prefills n random tokens.
func (b *batchRun) prompt(ctx context.Context, s *pianola.Session, row, n int) error {
	r := rand.New(rand.NewPCG(b.seed, uint64(row)))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(r.IntN(b.m.Config().Vocab))
	}
	_, _, err := s.Prompt(ctx, ids)
	return err
}

// decode decodes the tokens of a row.
func (b *batchRun) decode(ctx context.Context, s *pianola.Session) error {
	for n := 0; n < b.result.Tokens; {
		tokens, _, err := s.Chain(ctx, b.result.Tokens-n)
		if err != nil {
			return err
		}
		if len(tokens) == 0 {
			return context.Cause(ctx)
		}
		n += len(tokens)
		b.decoded.Add(int64(len(tokens)))
	}
	return nil
}

// counters returns the sums of the sessions' counters of batches.
func (b *batchRun) counters(sessions []*pianola.Session) (c pianola.Counters) {
	for _, s := range sessions {
		one := s.Counters()
		c.BatchRows += one.BatchRows
		c.Submissions += one.Submissions
	}
	return c
}
