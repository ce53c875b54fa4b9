package replay

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
)

// Rollover says how a full context goes on: its first Sinks tokens and its last
// Window ones are the prompt of an empty one, and what is between is forgotten.
// Positions begin anew, so that none is past what the model was trained for, and
// the first tokens stay, on which models lay the attention that they have no
// other use for. Reprompt takes what has rolled over for what it is now: it keeps what
// the new prompt has in common with that, which is at most the first tokens where
// the prompt has what is forgotten. The zero value is none: a full context is ErrContextFull.
type Rollover struct{ Sinks, Window int }

// check returns what is wrong with it in a context.
func (r Rollover) check(context int) error {
	if r == (Rollover{}) {
		return nil
	}
	if r.Sinks < 0 || r.Window < 1 || r.Sinks >= context || r.Window >= context-r.Sinks {
		return fmt.Errorf("replay: a rollover to %d and %d tokens is not within 0 and 1 to a context of %d", r.Sinks, r.Window, context)
	}
	return nil
}

// makeRoom rolls the context over if it has no room for n tokens, the pending
// one included, and does if it is rolled over. If that fails the context is
// empty, unless it was not begun.
func (s *Session) makeRoom(ctx context.Context, n int) error {
	r := s.o.Rollover
	keep := r.Sinks + r.Window
	if r == (Rollover{}) || !s.pending || n <= s.Context()-s.n || n > s.Context()-keep || s.n <= keep {
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
	// In place of what the head has chosen.
	binary.LittleEndian.PutUint32(s.bytes, uint32(pending))
	if err := s.m.dev.Write(s.id, s.m.tokens, 4*uint64(keep), s.bytes[:4]); err != nil {
		return err
	}
	s.setLen(keep)
	s.pending = true
	s.count(func(st *Stats) { st.Prefilled += keep })
	return nil
}
