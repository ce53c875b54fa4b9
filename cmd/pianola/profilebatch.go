package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/sequence"
)

// batchProfile adds up the times of steps in which all rows decode together.
type batchProfile struct {
	rows, steps int

	// Written by the model's goroutine until done is set.
	program string
	times   []time.Duration
	seen    atomic.Int32 // steps of all rows, the first of which is a warm-up
	done    atomic.Bool
}

// arrival is the time that the model's goroutine waits after a step without all rows.
const arrival = 5 * time.Millisecond

// observe receives the times of one program.
func (b *batchProfile) observe(program string, rows int, times []time.Duration) {
	name, _, _ := strings.Cut(program, ".")
	if b.done.Load() || name != sequence.ProgramBatch {
		return
	}
	if rows != b.rows {
		time.Sleep(arrival) // the other rows arrive meanwhile
		return
	}
	seen := int(b.seen.Add(1))
	if seen == 1 {
		b.program, b.times = program, make([]time.Duration, len(times))
		return
	}
	for i, d := range times {
		b.times[i] += d
	}
	b.done.Store(seen == b.steps+1)
}

// decode decodes tokens of one row until all steps have been measured.
func (b *batchProfile) decode(ctx context.Context, s *pianola.Session) error {
	for !b.done.Load() {
		tokens, _, err := s.Chain(ctx, s.Context())
		if err != nil {
			return fmt.Errorf("profile: after %d of %d steps of %d rows: %w", max(0, b.seen.Load()-1), b.steps, b.rows, err)
		}
		if len(tokens) == 0 {
			return context.Cause(ctx)
		}
	}
	return nil
}

// measureBatch profiles steps of a batch, where measure profiles tokens of one session.
func (f *profileFlags) measureBatch(cmd *cobra.Command, m *pianola.Model) (res *profileResult, err error) {
	b := &batchProfile{rows: f.batch, steps: f.tokens}
	prompts := batchRun{m: m}
	sessions := make([]*pianola.Session, f.batch)
	for i := range sessions {
		s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true})
		if err != nil {
			return nil, err
		}
		defer closeAfter(&err, s)
		if need, have := f.depth+1+f.tokens, s.Context(); need >= have {
			return nil, fmt.Errorf("profile: %d steps after %d tokens need more than %d positions, but the context has %d", f.tokens, f.depth, need, have)
		}
		sessions[i] = s
	}
	if err := together(sessions, func(i int, s *pianola.Session) error { return prompts.prompt(cmd.Context(), s, i, f.depth) }); err != nil {
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
	if err := together(sessions, func(_ int, s *pianola.Session) error { return b.decode(cmd.Context(), s) }); err != nil {
		return nil, err
	}
	t := m.Table()
	reads, err := t.Reads(b.program)
	if err != nil {
		return nil, err
	}
	p, _, _ := t.Program(b.program)
	res = &profileResult{Tokens: b.steps * b.rows, Depth: f.depth, Rows: b.rows}
	middle := f.depth + 1 + (b.steps+1)/2
	res.add(t, p, b.times, b.steps, func(i int) uint64 {
		one := reads[i].Bytes(middle)
		return reads[i].Weights + uint64(b.rows)*(one-reads[i].Weights)
	})
	res.finish()
	return res, nil
}
