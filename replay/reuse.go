package replay

import (
	"context"
)

// Reprompt makes ids the context, whatever it holds, and returns the token that
// follows. What the context and ids have in common from the start is kept, all else is
// taken back, and only the rest of ids is prefilled, at least its last token; all of it
// where a rotating cache has lost rows that the rest needs. Stats say how many
// tokens were kept.
//
// If ids cannot be a context, it is as it was. If the prefill fails, it is what was
// kept, and Len says how much.
func (s *Session) Reprompt(ctx context.Context, ids []int32) (next int32, stopped bool, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, false, err
	}
	defer s.done()
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

// keep shortens the context to its first n positions, without a pending token.
func (s *Session) keep(n int) {
	s.setLen(n)
	if s.pending = false; n == 0 {
		s.empty()
	}
}

// common returns the number of positions, from the start, at which the context holds the
// tokens of ids and the caches still have K and V. It is 0 for a session without reuse.
func (s *Session) common(ids []int32) (int, error) {
	most := min(s.n, len(ids))
	if s.o.NoReuse {
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

// Fork returns a new session that goes on from where s is, with its options: what
// either does from then on the other does not see, and both give the tokens that a
// session gives which has come there alone. The device copies what is in use of the KV
// caches.
func (s *Session) Fork() (*Session, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.done()
	f, err := s.m.newSession(s.o, func() (id SessionID, err error) {
		return s.m.dev.Fork(s.id, s.n)
	})
	if err != nil {
		return nil, s.closedOr(err)
	}
	f.setPlace(s.place)
	f.keepRanks()
	if s.speculation.on {
		return f, f.setSpeculation(true)
	}
	return f, nil
}
