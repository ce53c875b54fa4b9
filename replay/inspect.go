package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// Profile decodes one token with a barrier after each command and adds the time of each
// command to times. The length of times is the number of commands of the program that
// decodes: decode, or sample after a call of SetSampling that needs it.
func (s *Session) Profile(ctx context.Context, times []time.Duration) error {
	if err := s.single(noProfile); err != nil {
		return err
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.done()
	if !s.pending {
		return ErrNothingPending
	}
	if s.n >= s.Context() {
		return ErrContextFull
	}
	chain, _ := s.choosers()
	if err := s.checkTimes(chain, times); err != nil {
		return err
	}
	defer s.watch(ctx)()
	s.states.Cut(s.n)
	s.clear()
	s.reach(s.n)
	s.add(chain, 1, s.n, 1, 0)
	s.wrote(s.n + 1)
	res, err := s.timed(times)
	if err != nil {
		return err
	}
	if res.Count != 1 {
		return s.interrupted(ctx)
	}
	s.setLen(s.n + 1)
	s.row = 0
	s.speculation.forget(s.n)
	return nil
}

// ProfilePrompt appends ids to the context as Prompt does, with a barrier after each
// command. It adds the times of each command, over all chunks, to prefill and head. Their
// lengths are the numbers of commands of the programs that table.Table.Prefill returns for the
// length of ids and head, or sample_head after a call of SetSampling that needs it.
func (s *Session) ProfilePrompt(ctx context.Context, ids []int32, prefill, head []time.Duration) error {
	if err := s.single(noProfile); err != nil {
		return err
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.done()
	_, choose := s.choosers()
	start, end := s.n, s.n+len(ids)
	if s.pending {
		end++
	}
	program := s.m.prefill(end - start)
	if err := errors.Join(s.checkTimes(program, prefill), s.checkTimes(choose, head)); err != nil {
		return err
	}
	if err := s.feed(ids); err != nil {
		return err
	}
	defer s.watch(ctx)()
	err := s.profileChunks(ctx, program, start, end, prefill, head)
	s.wrote(end)
	if err != nil {
		s.lost()
		return err
	}
	s.setLen(end)
	s.pending, s.row = true, 0
	return nil
}

// profileChunks prefills the positions from start to end-1, with one submission per chunk
// and one for the head.
func (s *Session) profileChunks(ctx context.Context, program, start, end int, prefill, head []time.Duration) error {
	for at, rows := start, 0; at < end; at += rows {
		rows = s.m.chunk(at, end-at)
		s.clear()
		s.reach(at)
		s.add(program, 1, at, rows, 0)
		if _, err := s.timed(prefill); err != nil {
			return err
		}
		if err := s.interrupted(ctx); err != nil {
			return err
		}
		if at+rows < end {
			continue
		}
		s.clear()
		s.addHead(at, rows)
		res, err := s.timed(head)
		if err != nil {
			return err
		}
		if res.Count != 1 {
			return cmp.Or(s.interrupted(ctx), errCut)
		}
	}
	return nil
}

func (s *Session) checkTimes(program int, times []time.Duration) error {
	if p := &s.m.t.Programs[program]; len(times) != int(p.Count) {
		return fmt.Errorf("replay: %d times for program %s, which has %d commands", len(times), p.Name, p.Count)
	}
	return nil
}

// timed runs the submission and adds the time of each command of its last run to times.
func (s *Session) timed(times []time.Duration) (Result, error) {
	one := make([]time.Duration, len(times))
	s.sub.Timings = one
	defer func() { s.sub.Timings = nil }()
	res, err := s.submit()
	if err != nil {
		return res, err
	}
	for i, d := range one {
		times[i] += d
	}
	return res, nil
}

// Dry walks the decode program for n tokens without running a kernel and returns the time
// that this takes: the cost of replaying apart from the kernels.
func (s *Session) Dry(n int) (time.Duration, error) {
	if err := s.single(noDry); err != nil {
		return 0, err
	}
	if err := s.begin(); err != nil {
		return 0, err
	}
	defer s.done()
	if s.n+n > s.Context() {
		return 0, ErrContextFull
	}
	s.clear()
	chain, _ := s.choosers()
	s.add(chain, n, s.n, 1, 0)
	s.sub.Dry = true
	defer func() { s.sub.Dry = false }()
	s.halt.Store(false)
	res, err := s.submit()
	return res.Elapsed, err
}

// ProfileBatch makes a model for many sequences execute its programs one at a time, with a barrier after each
// command, and decode one token in a submission. Rows of prompts join the rows that decode wherever the table has
// programs for such passes, as many as these have room for, so that the programs do not depend on measured times.
// After each program it calls f with the program's name, its rows, and the time of each of its commands. f must
// not keep times or call the model. A nil f ends profiling. ProfileBatch may be called at any time; it applies to
// the submissions that begin afterwards.
func (m *Model) ProfileBatch(f func(program string, rows int, times []time.Duration)) error {
	if m.engine == nil {
		return errors.New("replay: the model is not for many sequences")
	}
	if m.engine.Join(f != nil); f == nil {
		m.profile.Store(nil)
	} else {
		m.profile.Store(&f)
	}
	return nil
}

// Memory returns the memory that the model's device uses.
func (m *Model) Memory() Memory { return m.dev.Memory() }
