package replay

import (
	"context"
)

// Reprompt replaces the context by ids and returns the next token. It keeps the longest
// common beginning of the context and ids and prefills only the rest of ids, at least its
// last token. It prefills all of ids if a rotating cache has lost rows that the rest needs.
// Stats.Reused counts the tokens kept.
//
// If ids cannot be a context, the context does not change. If the prefill fails, the
// context is the part that was kept, and Len returns its length.
func (s *Session) Reprompt(ctx context.Context, ids []int32) (next int32, stopped bool, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, false, err
	}
	defer s.done()
	if s.par != nil {
		s.settle()
		return s.repromptParallel(ctx, ids)
	}
	if err := s.check(ids, 0); err != nil {
		return 0, false, err
	}
	keep, err := s.common(ids[:len(ids)-1])
	if err != nil {
		return 0, false, err
	}
	s.keep(keep)
	if err := s.setRolls(0); err != nil {
		return 0, false, s.closedOr(err)
	}
	if next, stopped, err = s.prompt(ctx, ids[keep:]); err == nil {
		s.count(func(st *Stats) { st.Reused += keep })
	}
	return next, stopped, err
}

// keep shortens the context to its first n positions and drops the pending token.
func (s *Session) keep(n int) {
	s.setLen(n)
	if s.pending = false; n == 0 {
		s.empty()
	}
}

// common returns the length of the common beginning of the context and ids, or 0 if the
// caches have lost rows that the positions after it need. It is 0 for a session with
// NoReuse.
func (s *Session) common(ids []int32) (int, error) {
	most := min(s.n, len(ids))
	if !s.reuses() {
		most = 0
	}
	if err := s.readTokens(0, most); err != nil {
		return 0, s.closedOr(err)
	}
	n := 0
	for n < most && s.ids[n] == ids[n] {
		n++
	}
	if !s.keeps(n) {
		return 0, nil
	}
	return n, nil
}

// Fork returns a new session with the same context and options. From then on the two
// sessions are independent: each returns the tokens that a session alone would return with
// that context. The device copies the rows of the KV caches that are in use.
func (s *Session) Fork() (*Session, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.done()
	if s.par != nil {
		s.settle()
		return s.forkParallel()
	}
	f, err := s.m.newSession(s.o, func() (id SessionID, err error) {
		if s.dropped {
			return s.m.dev.Fork(s.id, 0)
		}
		return s.m.dev.Fork(s.id, s.n)
	})
	if err != nil {
		return nil, s.closedOr(err)
	}
	f.setPlace(s.place)
	f.states = s.states.Copy()
	f.keepRanks()
	if s.speculation.on {
		return f, f.setSpeculation(true)
	}
	return f, nil
}
