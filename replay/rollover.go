package replay

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
)

// Rollover selects how a full context continues: its first Sinks tokens and its last Window
// tokens become the prompt of an empty context, and the tokens between them are dropped.
// Positions start again at 0, so that none exceeds the length that the model was trained
// for. The first tokens are kept because models use them as attention sinks.
//
// Reprompt compares ids with the context after the rollover. If ids contain tokens that the
// rollover dropped, at most the first Sinks tokens match.
//
// The zero value selects no rollover; a full context then returns ErrContextFull.
type Rollover struct{ Sinks, Window int }

// check returns an error if the rollover does not fit a context.
func (r Rollover) check(context int) error {
	if r == (Rollover{}) {
		return nil
	}
	if r.Sinks < 0 || r.Window < 1 || r.Sinks >= context || r.Window >= context-r.Sinks {
		return fmt.Errorf("replay: a rollover to %d sinks and a window of %d tokens does not fit a context of %d (at least 0 sinks, a window of 1)", r.Sinks, r.Window, context)
	}
	return nil
}

// makeRoom rolls the context over if it has no room for n tokens, the pending one included,
// but would have room after a rollover. If the rollover fails after it has begun, the
// context is empty.
func (s *Session) makeRoom(ctx context.Context, n int) error {
	r := s.o.Rollover
	keep := r.Sinks + r.Window
	if !s.rollsOver(n) {
		return nil
	}
	if err := s.readTokens(0, s.n+1); err != nil {
		return err
	}
	pending := s.ids[s.n]
	copy(s.ids[r.Sinks:keep], s.ids[s.n-r.Window:s.n])
	for i, id := range s.ids[:keep] {
		binary.LittleEndian.PutUint32(s.bytes[4*i:], uint32(id))
	}
	s.empty()
	if err := s.setRolls(s.rolls + 1); err != nil {
		return err
	}
	if err := s.m.dev.Write(s.id, s.m.tokens, 0, s.bytes[:4*keep]); err != nil {
		return err
	}
	s.prefill(0, keep)
	res, err := s.submit()
	if err == nil && res.Count != 1 {
		err = cmp.Or(s.interrupted(ctx), errCut)
	}
	if err != nil {
		return err
	}
	// Restore the pending token, which the head has overwritten.
	binary.LittleEndian.PutUint32(s.bytes, uint32(pending))
	if err := s.m.dev.Write(s.id, s.m.tokens, 4*uint64(keep), s.bytes[:4]); err != nil {
		return err
	}
	s.setLen(keep)
	s.pending = true
	s.count(func(st *Stats) { st.Prefilled += keep })
	return nil
}

// rollsOver reports whether the context has no room for n tokens, the pending one included, and a rollover
// makes it.
func (s *Session) rollsOver(n int) bool {
	r := s.o.Rollover
	keep := r.Sinks + r.Window
	return r != (Rollover{}) && s.pending && n > s.Context()-s.n && n <= s.Context()-keep && s.n > keep
}

// makeRoomParallel implements makeRoom for a model for many sequences. The context keeps the pages of its sinks;
// the next request prefills the window again, because its positions are others.
func (s *Session) makeRoomParallel(n int) error {
	if !s.rollsOver(n) {
		return nil
	}
	s.settle()
	r, have := s.o.Rollover, s.par.c.Tokens()
	s.setRollsParallel(s.rolls + 1)
	return s.replace(slices.Concat(have[:r.Sinks], have[s.n-r.Window:s.n+1]), r.Sinks+r.Window, true)
}

// setRollsParallel implements setRolls for a model for many sequences.
func (s *Session) setRollsParallel(n uint32) {
	if s.rolls == n {
		return
	}
	s.rolls = n
	if c := *s.par.choice; c.sampled {
		c.sampler = slices.Clone(c.sampler)
		binary.LittleEndian.PutUint64(c.sampler, s.drawsFrom(s.seed))
		s.par.choice = &c
	}
}
