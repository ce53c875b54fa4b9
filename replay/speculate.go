package replay

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/pianola-engine/pianola/internal/speculate"
)

// Errors of speculative decoding.
var (
	// ErrNoVerify is returned if the table was compiled without the program verify
	// (compiler.Options.Draft).
	ErrNoVerify = errors.New("replay: the table has no program verify for drafts")
	// ErrSpeculateSampled is returned if speculative decoding is combined with sampling, except in a model
	// for many sequences.
	ErrSpeculateSampled = errors.New("replay: speculative decoding needs greedy sampling")
)

// speculation is the state of a session's speculative decoding. Verifying a draft takes
// longer than decoding one token and yields at least one token. Speculation changes the
// speed, never the tokens.
type speculation struct {
	on    bool
	ring  []uint32 // [context+1], the token ring
	known int      // leading entries of ring that equal the device's
	draft []uint32
	bytes []byte
	trust speculate.Trust
	each  int // tokens per replay in the last chain, rounded down
	pause int // length of the next chain without a draft, on a device that needs one chain per draft
}

// If the device cannot draft by itself and no draft is found, the session decodes a chain
// of this many tokens before it looks again: the first chain, and the longest.
const (
	pauseLeast = 4
	pauseMost  = 32
)

// SetSpeculation selects whether the following chains use speculative decoding: a draft is
// the tokens that followed an earlier occurrence of the last tokens in the context, and one
// replay verifies several tokens. The tokens do not change. The error is ErrNoVerify, ErrSpeculateSampled
// if sampling is on, as of later chains if it is switched on then, or a *ParallelError. A model for many sequences
// needs no program verify, and permits sampling.
func (s *Session) SetSpeculation(on bool) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.done()
	if on && s.sampled && s.par == nil {
		return ErrSpeculateSampled
	}
	return s.setSpeculation(on)
}

func (s *Session) setSpeculation(on bool) error {
	if s.par != nil {
		if on && s.m.pool.joint() == 0 {
			return &ParallelError{noSpeculation}
		}
		if s.par.drafts != on {
			s.settle() // the next tokens are asked for anew
			s.par.drafts = on
		}
		return nil
	}
	p := &s.speculation
	if on && s.m.programs.verify < 0 {
		return ErrNoVerify
	}
	if p.on = on; on && p.ring == nil {
		p.ring = make([]uint32, s.Context()+1)
		p.draft = make([]uint32, s.m.verifyRows-1)
		p.bytes = make([]byte, 4*len(p.draft))
	}
	p.trust, p.each, p.pause = 0, 1, pauseLeast
	return nil
}

// remember stores tokens that the device's ring holds from entry at on. Later entries
// become unknown.
func (p *speculation) remember(at int, tokens []byte) {
	if p.ring == nil || at > p.known {
		return
	}
	p.known = at + len(tokens)/4
	for i := at; i < p.known; i++ {
		p.ring[i] = binary.LittleEndian.Uint32(tokens[4*(i-at):])
	}
}

// forget records that entries of the ring from at on may have changed.
func (p *speculation) forget(at int) { p.known = min(p.known, at) }

// history returns the tokens of the context, the pending one included.
func (s *Session) history() ([]uint32, error) {
	p := &s.speculation
	if p.known <= s.n {
		if err := s.readTokens(p.known, s.n+1-p.known); err != nil { // readTokens calls remember
			return nil, err
		}
	}
	return p.ring[:s.n+1], nil
}

// speculate implements Chain with drafts, for at most limit tokens. The caller has checked
// that they fit.
func (s *Session) speculate(ctx context.Context, limit int) (tokens []int32, stopped bool, err error) {
	p := &s.speculation
	if s.sampled {
		return nil, false, ErrSpeculateSampled
	}
	history, err := s.history()
	if err != nil {
		return nil, false, s.closedOr(err)
	}
	// The commands may also write inactive rows, after the others.
	behind := s.m.verifyRows - 1
	room := s.Context() - s.n - behind
	if s.rotates() {
		room = min(room, s.m.kvSlack-behind)
	}
	if room < 1 {
		return s.chain(ctx, limit)
	}
	limit = min(limit, room)
	draft := p.draft[:min(len(p.draft), limit-1)]
	draft = draft[:speculate.Draft(draft, history, speculate.DraftMost, speculate.DraftLeast, p.trust)]
	if !s.m.moves && len(draft) == 0 {
		p.pause = min(2*p.pause, pauseMost)
		return s.chain(ctx, min(limit, p.pause/2))
	}
	return s.verify(ctx, limit, draft)
}

// verify replays the program verify, the first time with draft. On a device that can replay
// it several times in a run, it requests the number of replays that the given number of tokens
// took recently; the device stops once it has that many tokens.
func (s *Session) verify(ctx context.Context, tokens int, draft []uint32) (_ []int32, stopped bool, err error) {
	p := &s.speculation
	n := (tokens + p.each - 1) / p.each
	if !s.m.moves {
		n, tokens = 1, 1+len(draft)
	}
	if len(draft) > 0 {
		for i, id := range draft {
			binary.LittleEndian.PutUint32(p.bytes[4*i:], id)
		}
		p.forget(s.n + 1)
		if err := s.m.dev.Write(s.id, s.m.tokens, uint64(s.n+1)*4, p.bytes[:4*len(draft)]); err != nil {
			return nil, false, s.closedOr(err)
		}
	}
	s.states.Cut(s.n)
	s.clear()
	s.reach(s.n)
	s.add(s.m.programs.verify, n, s.n, 1+len(draft), 0)
	run := &s.sub.Runs[len(s.sub.Runs)-1]
	run.Step.Trust, run.Step.Until = uint32(p.trust), uint32(s.n+tokens)
	defer s.watch(ctx)()
	res, err := s.submit()
	if err != nil {
		s.wrote(s.n + tokens + s.m.verifyRows - 1)
		s.lost()
		return nil, false, err
	}
	// The last replay began at the last token but one at most. A replay that was cut short
	// began at the last token at most.
	s.wrote(s.n + min(tokens, res.Count+s.m.verifyRows) + s.m.verifyRows - 1)
	if err := s.readTokens(s.n+1, res.Count); err != nil {
		s.lost()
		return nil, false, s.closedOr(err)
	}
	s.setLen(s.n + res.Count)
	s.row = res.Row
	s.count(func(st *Stats) {
		st.Drafted += res.Drafted
		st.Accepted += res.Accepted
	})
	if res.Count > 0 && s.again == 0 {
		s.perToken = res.Elapsed / time.Duration(res.Count)
	}
	p.trust, p.pause, p.each = speculate.Trust(res.Trust), pauseLeast, 1
	if n := res.Count - res.Accepted; n > 0 {
		p.each = res.Count / n
	}
	if !res.Stopped {
		err = s.interrupted(ctx)
	}
	return s.ids[:res.Count], res.Stopped, err
}
