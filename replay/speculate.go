package replay

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/pianola-engine/pianola/table"
)

// Errors of speculating.
var (
	// ErrNoVerify says that the table was compiled without drafts
	// (compiler.Options.Draft).
	ErrNoVerify = errors.New("replay: the table has no program that verifies drafts")
	// ErrSpeculateSampled says that tokens which are not the likeliest were to be
	// speculated.
	ErrSpeculateSampled = errors.New("replay: only greedy decoding can be speculated")
)

// speculation is what a session knows to decide where drafts are worth their
// verification, which costs more than a token's decoding and gives one token at
// least. That changes how fast tokens come, and not which.
type speculation struct {
	on    bool
	ring  []uint32 // [context+1], the token ring
	known int      // entries of it that are as the device has them
	draft []uint32
	bytes []byte

	right    float32 // share of drafts that was right, the last half of it
	verifies int     // replays of the next chain that verifies
	pause    int     // tokens of the next chain that does not
}

// Tokens between two looks for a draft, where none is trusted: at first, and at most
// when drafts go on failing. A short chain costs a wait, a long one comes late
// where a text begins to repeat itself.
const (
	pauseLeast = 4
	pauseMost  = 32
)

// maxVerifies bounds the replays of a chain, since it goes on when drafts begin to fail.
const maxVerifies = 16

// SetSpeculation says whether the following chains draft tokens by looking in the
// context for what followed the last ones before, and verify several at once. The
// tokens are the same. The error is ErrNoVerify; chains return
// ErrSpeculateSampled if tokens are sampled.
func (s *Session) SetSpeculation(on bool) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	return s.setSpeculation(on)
}

func (s *Session) setSpeculation(on bool) error {
	p := &s.speculation
	if on && s.m.programs.verify < 0 {
		return ErrNoVerify
	}
	if p.on = on; on && p.ring == nil {
		p.ring = make([]uint32, s.Context()+1)
		p.draft = make([]uint32, s.m.verifyRows-1)
		p.bytes = make([]byte, 4*len(p.draft))
	}
	p.right, p.verifies, p.pause = 0, 1, pauseLeast
	return nil
}

// remember notes tokens of the ring from an entry on, as the device has them; what
// was behind it is no longer known.
func (p *speculation) remember(at int, tokens []byte) {
	if p.ring == nil || at > p.known {
		return
	}
	p.known = at + len(tokens)/4
	for i := at; i < p.known; i++ {
		p.ring[i] = binary.LittleEndian.Uint32(tokens[4*(i-at):])
	}
}

// forget notes that entries of the ring from one on may have changed.
func (p *speculation) forget(at int) { p.known = min(p.known, at) }

// trusted reports whether drafts are worth it: half of them was right.
func (p *speculation) trusted() bool { return p.right >= 0.5 }

// judge learns how much of drafts was right, which a chain has verified or only
// looked at.
func (p *speculation) judge(drafted, right int, verified bool) {
	share := float32(0)
	if drafted > 0 {
		share = float32(right) / float32(drafted)
	}
	p.right = (p.right + share) / 2
	switch {
	case verified && share >= 0.5:
		p.verifies, p.pause = min(2*p.verifies, maxVerifies), pauseLeast
	case verified || share < 0.5:
		p.verifies, p.pause = 1, min(2*p.pause, pauseMost)
	}
}

// history returns the tokens of the context, the pending one included.
func (s *Session) history() ([]uint32, error) {
	p := &s.speculation
	if p.known <= s.n {
		if err := s.readTokens(p.known, s.n+1-p.known); err != nil { // which remembers them
			return nil, err
		}
	}
	return p.ring[:s.n+1], nil
}

// speculate is Chain with drafts, for at most limit tokens, which the chain may
// have.
func (s *Session) speculate(ctx context.Context, limit int) (tokens []int32, stopped bool, err error) {
	p := &s.speculation
	if s.sampled {
		return nil, false, ErrSpeculateSampled
	}
	history, err := s.history()
	if err != nil {
		return nil, false, s.closedOr(err)
	}
	if !p.trusted() {
		p.look(history)
	}
	if rows := s.m.verifyRows; p.trusted() && limit >= rows {
		if table.Draft(p.draft, history, table.DraftMost, table.DraftLeast) {
			return s.verify(ctx, limit/rows)
		}
		p.judge(0, 0, false)
	}
	return s.chain(ctx, min(limit, p.pause))
}

// look judges the draft that there would have been for the last tokens of a
// history.
func (p *speculation) look(history []uint32) {
	n := max(len(history)-len(p.draft), 0)
	drafted, right := 0, 0
	if n > 0 && table.Draft(p.draft, history[:n], table.DraftMost, table.DraftLeast) {
		drafted = len(p.draft)
		for right < drafted && p.draft[right] == history[n+right] {
			right++
		}
	}
	p.judge(drafted, right, false)
}

// verify replays the program verify at most so many times, on the draft that there
// is.
func (s *Session) verify(ctx context.Context, most int) (tokens []int32, stopped bool, err error) {
	p, rows := &s.speculation, s.m.verifyRows
	n := min(most, p.verifies)
	if !s.m.moves {
		n = 1
	}
	if s.rotates() { // so that Rewind can take a chain back
		n = max(1, min(n, (s.m.kvSlack-rows)/rows))
	}
	for i, id := range p.draft {
		binary.LittleEndian.PutUint32(p.bytes[4*i:], id)
	}
	p.forget(s.n + 1)
	if err := s.m.dev.Write(s.id, s.m.tokens, uint64(s.n+1)*4, p.bytes); err != nil {
		return nil, false, s.closedOr(err)
	}
	s.sub.Runs = s.sub.Runs[:0]
	s.add(s.m.programs.verify, n, s.n, rows, 0)
	defer s.watch(ctx)()
	res, err := s.submit()
	if err != nil {
		s.wrote(s.n + n*rows)
		s.lost()
		return nil, false, err
	}
	// The last replay began at the last token but one at most; one that was cut short
	// at the last.
	s.wrote(s.n + min(n*rows, res.Count+rows))
	if err := s.readTokens(s.n+1, res.Count); err != nil {
		s.lost()
		return nil, false, s.closedOr(err)
	}
	s.n += res.Count
	s.row = res.Row
	s.stats.Drafted += res.Drafted
	s.stats.Accepted += res.Accepted
	p.judge(res.Drafted, res.Accepted, true)
	if !res.Stopped {
		err = s.interrupted(ctx)
	}
	return s.ids[:res.Count], res.Stopped, err
}
