package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/bench"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
)

// batchProfile adds up the times of steps in which all rows decode together, or of joint passes in which
// tokens of a prompt are further rows.
type batchProfile struct {
	rows, steps int
	prompt      int // tokens of a prompt; 0 for steps in which rows only decode

	// Written by the model's goroutine until done is set.
	fill   programRun   // the first program of a joint pass whose second is still to come
	shapes []*stepTimes // steps with all rows
	seen   atomic.Int32 // the largest number of steps of a shape, the first of which is a warm-up
	done   atomic.Bool
}

// programRun is a program that has computed some rows, and the times of its commands.
type programRun struct {
	name  string
	rows  int
	times []time.Duration
}

// stepTimes are the programs that compute a step of so many rows each, with the sums of their times.
type stepTimes struct {
	runs []programRun
	seen int
}

// arrival is the time that the model's goroutine waits after a step without all rows.
const arrival = 5 * time.Millisecond

// observe receives the times of one program.
func (b *batchProfile) observe(program string, rows int, times []time.Duration) {
	if b.done.Load() {
		return
	}
	run, fill := programRun{program, rows, times}, b.fill
	b.fill = programRun{}
	kind, _, _ := strings.Cut(program, ".")
	switch joint := b.prompt > 0; {
	case kind == sequence.ProgramBatch && rows == b.rows && !joint:
		b.add(run)
	case kind == sequence.ProgramFill && joint:
		b.fill = programRun{program, rows, slices.Clone(times)}
	case kind == sequence.ProgramHead && fill.rows > b.rows && rows >= b.rows:
		b.add(fill, run)
	case kind == sequence.ProgramBatch || kind == sequence.ProgramHead:
		time.Sleep(arrival) // the other rows and the next prompt arrive meanwhile
	}
}

// add adds the times of one step.
func (b *batchProfile) add(step ...programRun) {
	i := slices.IndexFunc(b.shapes, func(s *stepTimes) bool {
		return slices.EqualFunc(s.runs, step, func(a, b programRun) bool { return a.name == b.name && a.rows == b.rows })
	})
	if i < 0 {
		i = len(b.shapes)
		b.shapes = append(b.shapes, new(stepTimes))
		for _, r := range step {
			b.shapes[i].runs = append(b.shapes[i].runs, programRun{r.name, r.rows, make([]time.Duration, len(r.times))})
		}
	}
	s := b.shapes[i]
	if s.seen++; s.seen > 1 {
		for k, r := range step {
			for j, d := range r.times {
				s.runs[k].times[j] += d
			}
		}
	}
	b.seen.Store(max(b.seen.Load(), int32(s.seen)))
	b.done.Store(s.seen == b.steps+1)
}

// most returns the shape whose steps have all been measured.
func (b *batchProfile) most() *stepTimes {
	return slices.MaxFunc(b.shapes, func(x, y *stepTimes) int { return cmp.Compare(x.seen, y.seen) })
}

// missing returns an error that says how many steps have been measured before err.
func (b *batchProfile) missing(err error) error {
	return fmt.Errorf("profile: after %d of %d steps: %w", max(0, b.seen.Load()-1), b.steps, err)
}

// decode decodes tokens of one row until all steps have been measured.
func (b *batchProfile) decode(ctx context.Context, s *pianola.Session) error {
	for !b.done.Load() {
		tokens, _, err := s.Chain(ctx, s.Context())
		if err != nil {
			return b.missing(err)
		}
		if len(tokens) == 0 {
			return context.Cause(ctx)
		}
	}
	return nil
}

// promptsPerStep is the number of prompts for each step to be measured after which none is expected any more.
const promptsPerStep = 16

var errApart = errors.New("most passes with tokens of a prompt lack some of the sequences that decode: the sequences are too many for a pass, or the machine is too busy to keep them together")

// prefill prefills one random prompt after another until all steps have been measured.
func (b *batchProfile) prefill(ctx context.Context, m *pianola.Model, s *pianola.Session) error {
	for seed := range uint64(promptsPerStep * (b.steps + 1)) {
		if b.done.Load() {
			return nil
		}
		if err := s.Reset(); err != nil {
			return err
		}
		if _, _, err := s.Prompt(ctx, bench.Prompt(m, b.prompt, 1+seed)); err != nil {
			return err
		}
	}
	return b.missing(errApart)
}

// patience is the chain time of the sessions: no pass is divided because of its time.
const patience = time.Hour

// measureBatch profiles steps of a batch, where measure profiles tokens of one session.
func (f *profileFlags) measureBatch(cmd *cobra.Command, m *pianola.Model) (res *profileResult, err error) {
	b := &batchProfile{rows: f.batch, steps: f.tokens, prompt: f.prompt}
	if err := f.checkRows(m.Table()); err != nil {
		return nil, err
	}
	prompts := batchRun{m: m}
	sessions := make([]*pianola.Session, f.batch+min(f.prompt, 1))
	for i := range sessions {
		s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true, ChainTime: patience})
		if err != nil {
			return nil, err
		}
		defer closeAfter(&err, s)
		if need, have := f.depth+1+f.tokens, s.Context(); need >= have {
			return nil, fmt.Errorf("profile: %d steps after %d tokens need more than %d positions, but the context has %d", f.tokens, f.depth, need, have)
		}
		sessions[i] = s
	}
	rows := sessions[:f.batch]
	if err := together(rows, func(i int, s *pianola.Session) error { return prompts.prompt(cmd.Context(), s, i, f.depth) }); err != nil {
		return nil, err
	}
	if err := m.ProfileBatch(b.observe); err != nil {
		return nil, err
	}
	defer func() {
		if end := m.ProfileBatch(nil); err == nil {
			err = end
		}
	}()
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	if together(sessions, func(i int, s *pianola.Session) (err error) {
		if i < f.batch {
			err = b.decode(ctx, s)
		} else {
			err = b.prefill(ctx, m, s)
		}
		if err != nil {
			stop(err)
		}
		return err
	}) != nil {
		return nil, context.Cause(ctx) // the error that has ended the others
	}
	return f.batchResult(m.Table(), b)
}

// checkRows returns an error if the table has no programs for the rows of a step.
func (f *profileFlags) checkRows(t *table.Table) error {
	sequences := f.batch + min(f.prompt, 1) // that of the prompts decodes its last token
	if most := mostRows(t, sequence.ProgramBatch); sequences > most {
		return fmt.Errorf("profile: %d sequences: the table's batch programs have at most %d rows", sequences, most)
	}
	if f.prompt == 0 {
		return nil
	}
	switch most := mostRows(t, sequence.ProgramFill); {
	case most == 0:
		return errors.New("profile: the table has no programs in which rows that decode and rows of prompts are computed together")
	case f.batch >= most:
		return fmt.Errorf("profile: %d sequences and a prompt: the table's programs for both have at most %d rows", f.batch, most)
	}
	return nil
}

// mostRows returns the rows of the largest program of a kind, whose names have numbers of rows behind it; 0 if the
// table has none.
func mostRows(t *table.Table, kind string) int {
	most := uint32(0)
	for _, p := range t.Programs {
		if strings.HasPrefix(p.Name, kind+".") {
			most = max(most, p.MaxRows)
		}
	}
	return int(most)
}

// batchResult returns the mean times of a step, and what its commands read.
func (f *profileFlags) batchResult(t *table.Table, b *batchProfile) (*profileResult, error) {
	runs := b.most().runs
	res := &profileResult{Tokens: b.steps * b.rows, Depth: f.depth, Prompt: b.prompt, Rows: b.rows, PromptRows: runs[0].rows - b.rows}
	middle := f.depth + 1 + (b.steps+1)/2
	for _, r := range runs {
		reads, err := t.Reads(r.name)
		if err != nil {
			return nil, err
		}
		p, _, _ := t.Program(r.name)
		res.add(t, p, r.times, b.steps, func(i int) uint64 {
			kv := func(positions int) uint64 { return reads[i].Bytes(positions) - reads[i].Weights }
			sum := reads[i].Weights + uint64(b.rows)*kv(middle)
			if res.PromptRows > 0 {
				sum += kv((b.prompt + res.PromptRows) / 2) // the mean of all parts of the prompt
			}
			return sum
		})
	}
	res.finish()
	return res, nil
}
