package replay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pianola-engine/pianola/internal/batch"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/internal/schedule"
	"github.com/pianola-engine/pianola/internal/sequence"
)

var (
	// ErrNoPages is returned if the KV pages of a model for many sequences do not suffice for a
	// context, even alone.
	ErrNoPages = errors.New("replay: the context needs more KV pages than the model has")
)

// OverloadError is returned if too many calls wait for a model for many sequences.
type OverloadError struct {
	Waiting, Limit int
	Wait           time.Duration // predicted time until the prompts that wait are prefilled
}

// Error implements error.
func (e *OverloadError) Error() string {
	return fmt.Sprintf("replay: %d calls wait, which is the limit", e.Waiting)
}

// ParallelError reports a method or an option that a model for many sequences does not support.
type ParallelError struct{ What string }

// Error implements error.
func (e *ParallelError) Error() string {
	return fmt.Sprintf("replay: %s is not supported by a model for many sequences", e.What)
}

// What a model for many sequences does not support. docs/PARALLEL.md lists it in the same words.
const (
	noSpeculation = "speculative decoding of layers with recurrent state"
	noTap         = "a tap"
	noKV          = "reading the KV cache"
	noProfile     = "profiling a session"
	noDry         = "replaying without kernels"
	noChain       = "SessionOptions.Chain"
	noReserve     = "SessionOptions.Reserve"
)

// single returns a *ParallelError for a session of a model for many sequences.
func (s *Session) single(what string) error {
	if s.par != nil {
		return &ParallelError{what}
	}
	return nil
}

// parallel is the part of a session that belongs to a model for many sequences.
type parallel struct {
	c      *batch.Context
	choice *choice
	drafts bool // SetSpeculation

	st     *batch.Stream // of the request in progress, which goes on between calls of Chain
	known  int           // tokens of the context that its caller did not give with the prompt
	got    int           // tokens that the session has returned of it
	tokens []int32       // fetched and not yet returned
	ranks  []byte
	more   bool // the request has not ended
	stop   bool // the last of the tokens is a stop id
	err    error
}

// Occupancy is the load of a model for many sequences.
type Occupancy struct {
	Running, Waiting int // calls that are in the batch, and that wait for a place in it
	// Pages is the number of KV pages, and of pages with recurrent state; UsedPages are those of the
	// contexts, and CachedPages those that are kept for prompts with the same beginning and are given
	// up if need be.
	Pages, UsedPages, CachedPages int
	// PromptTokens counts the tokens of prompts so far, FoundTokens those of them whose pages were
	// found when the prompt was admitted.
	PromptTokens, FoundTokens int
	// DraftedTokens counts the tokens of drafts that were verified so far, AcceptedTokens those of them that
	// were right.
	DraftedTokens, AcceptedTokens int
	// SavedPages counts the pages of which SpillOptions has kept copies so far, RestoredPages those that
	// were read back, and LostPages those that the file has lost, because it could not be written
	// or read or was damaged. RestoredTokens counts the tokens of prompts that were read back instead
	// of being prefilled.
	SavedPages, RestoredPages, LostPages, RestoredTokens int
	SpillMemory, SpillFile                               uint64 // bytes of the copies in memory and in the file
}

// Occupancy returns the load of a model for many sequences, and zeros for other models.
func (m *Model) Occupancy() (o Occupancy) {
	if m.engine == nil {
		return o
	}
	l := m.engine.Load()
	o = Occupancy{Running: l.Running, Waiting: l.Waiting, PromptTokens: l.Hits.Tokens, FoundTokens: l.Hits.FoundTokens, DraftedTokens: l.Hits.Drafted, AcceptedTokens: l.Hits.Accepted}
	for _, u := range l.Pages {
		o.Pages += u.Pages
		o.UsedPages += u.Used
		o.CachedPages += u.Cached + u.Pinned
	}
	o.RestoredTokens = l.Hits.RestoredTokens
	if m.spill != nil {
		st := m.spill.Stats()
		o.SavedPages, o.RestoredPages, o.LostPages, o.SpillMemory, o.SpillFile = st.Put, st.Restored, st.Faults, st.Memory, st.File
	}
	return o
}

// startEngine starts the engine of a pooled table, which the device has loaded.
func (m *Model) startEngine(l sequence.Layout, o LoadOptions) error {
	p, err := m.newPool(l)
	if err != nil {
		return err
	}
	m.pool = p
	if m.spill, err = p.newSpill(o.Spill); err != nil {
		return err
	}
	cost, predicts := m.dev.(coster)
	switch {
	case predicts:
	case o.Cost != nil:
		cost, predicts = o.Cost, true
	default:
		cost = guess{}
	}
	queue := o.Queue
	if queue == 0 {
		queue = 16 * l.Sequences
	}
	most := 0
	for _, b := range p.batch[0] {
		most = max(most, b.rows)
	}
	if m.engine, err = batch.New(batch.Options{
		Device: p, Kinds: p.kinds, Guess: !predicts, Ahead: ahead, Spill: m.spill,
		Schedule: schedule.Config{
			Cost: jointCost(cost), Joint: p.joint(), Passes: p.passes(), Heads: p.mostHeads(), Sequences: min(l.Sequences, most), Context: int(m.t.Header.Context), Chunk: int(m.t.Header.Chunk),
			Queue: queue, Chain: sampler.RankEntries,
		},
	}); err != nil && m.spill != nil {
		err = errors.Join(err, m.spill.Close())
	}
	return err
}

// ahead is the number of tokens that a caller has not taken at which a generation pauses.
const ahead = 256

// newParallel returns a session of a model for many sequences. c is its context; nil stands for an
// empty one.
func (m *Model) newParallel(o SessionOptions, c *batch.Context) (*Session, error) {
	switch {
	case o.Chain != 0:
		return nil, &ParallelError{noChain}
	case o.Reserve != 0:
		return nil, &ParallelError{noReserve}
	}
	if c == nil {
		c = m.engine.NewContext(o.Space)
	}
	s := &Session{session: &session{m: m, o: o, ids: make([]int32, m.t.Header.Context+1), par: &parallel{c: c}}}
	s.par.choice = &choice{stops: encodeStops(o.StopIDs)}
	if err := m.register(s); err != nil {
		c.Close()
		return nil, err
	}
	return s, nil
}

// parallelError returns an error of the engine as this package's.
func (s *Session) parallelError(err error) error {
	var over *schedule.OverloadError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, batch.ErrClosed):
		return ErrClosed
	case errors.Is(err, schedule.ErrPages):
		return fmt.Errorf("%w: %d tokens", ErrNoPages, len(s.par.c.Tokens()))
	case errors.Is(err, schedule.ErrDeadline):
		return ErrDeadline
	case errors.As(err, &over):
		return &OverloadError{over.Waiting, over.Limit, over.Wait}
	}
	return s.closedOr(err)
}

// ask returns a request for the context with ids behind it.
func (s *Session) ask(ids []int32) batch.Ask {
	return batch.Ask{
		Tokens: ids, Bound: s.o.ChainTime, Priority: s.o.Priority + s.request.Priority, Within: s.request.Within,
		Caching: s.caching(), Settings: s.par.choice, Speculate: s.par.drafts,
	}
}

// startParallel asks the engine for at most most tokens after ids. Of the context's tokens before them,
// the first known ones do not count as reused.
func (s *Session) startParallel(ids []int32, most, known int) error {
	a := s.ask(ids)
	a.Most = most
	return s.start(a, known)
}

// start starts a request.
func (s *Session) start(a batch.Ask, known int) error {
	p := s.par
	st, err := p.c.Start(a)
	if err != nil {
		return s.parallelError(err)
	}
	p.st, p.known, p.got, p.tokens, p.ranks, p.more, p.stop, p.err = st, known, 0, nil, nil, true, false, nil
	return nil
}

// fetch waits for tokens if none are there.
func (p *parallel) fetch(ctx context.Context) {
	if len(p.tokens) == 0 && p.more {
		p.tokens, p.ranks, p.stop, p.more, p.err = p.st.Next(ctx)
	}
}

// take returns at most n tokens that have been fetched, and keeps what belongs to them.
func (s *Session) takeParallel(n int) (tokens []int32, stopped bool) {
	p := s.par
	n = min(n, len(p.tokens))
	copy(s.ids, p.tokens[:n])
	s.entered = 0
	if p.choice.ranked > 0 {
		const size = sampler.RankWords * 4
		s.entries = append(s.entries[:0], p.ranks[:n*size]...)
		p.ranks, s.entered = p.ranks[n*size:], n
	}
	p.tokens = p.tokens[n:]
	p.got += n
	return s.ids[:n], p.stop && len(p.tokens) == 0 && n > 0
}

// settle ends the request in progress. The context keeps the tokens that the session has returned.
func (s *Session) settle() {
	if p := s.par; p != nil && p.st != nil {
		s.endParallel(p.got)
	}
}

// endParallel ends the request in progress and counts it. The context keeps n of its tokens, or is as
// it was before with a negative n.
func (s *Session) endParallel(n int) {
	p := s.par
	st := p.st
	if st == nil {
		return
	}
	p.st = nil
	st.Close(n)
	f := st.Figures()
	s.count(func(c *Stats) {
		c.Request = f.ID
		c.Submissions += f.Steps
		c.Waits += f.Steps
		c.BatchRows += f.Rows
		c.QueueTime += f.Queue
		c.DeviceTime += f.Device
		c.Prefilled += f.Filled
		c.Reused += max(0, f.Hit-p.known)
		c.Restored += f.Restored
		c.Drafted += f.Drafted
		c.Accepted += f.Accepted
	})
}

// promptParallel implements Prompt: the ids follow the tokens of the context, of which known ones do not
// count as reused.
func (s *Session) promptParallel(ctx context.Context, ids []int32, known int) (next int32, stopped bool, err error) {
	p := s.par
	at := len(p.c.Tokens())
	if err := s.check(ids, at); err != nil {
		return 0, false, err
	}
	most := 1
	if s.held { // a generation, which goes on
		most = s.Context() + 1 - at - len(ids)
	}
	if err := s.startParallel(ids, most, known); err != nil {
		return 0, false, err
	}
	p.fetch(ctx)
	if len(p.tokens) == 0 {
		err := s.parallelError(p.err)
		s.endParallel(-1)
		return 0, false, err
	}
	tokens, stopped := s.takeParallel(1)
	s.setLen(at + len(ids))
	s.pending = true
	if !p.more && len(p.tokens) == 0 {
		s.settle()
	}
	return tokens[0], stopped, nil
}

// repromptParallel implements Reprompt.
func (s *Session) repromptParallel(ctx context.Context, ids []int32) (next int32, stopped bool, err error) {
	if err := s.check(ids, 0); err != nil {
		return 0, false, err
	}
	keep := 0
	for have := s.par.c.Tokens(); s.reuses() && keep < min(s.n, len(ids)-1) && have[keep] == ids[keep]; {
		keep++
	}
	if err := s.replace(s.par.c.Tokens()[:keep], keep, false); err != nil {
		return 0, false, err
	}
	s.setRollsParallel(0)
	return s.promptParallel(ctx, ids[keep:], 0)
}

// replace replaces the tokens of the context.
func (s *Session) replace(tokens []int32, n int, pending bool) error {
	if err := s.par.c.Set(tokens); err != nil {
		return s.parallelError(err)
	}
	s.setLen(n)
	s.pending = pending
	return nil
}

// chainParallel implements Chain. The request goes on until limit tokens are there or another method is
// called, so that it does not leave the batch between two calls.
func (s *Session) chainParallel(ctx context.Context, limit int) (tokens []int32, stopped bool, err error) {
	p := s.par
	if err := s.makeRoomParallel(1); err != nil {
		return nil, false, err
	}
	room := s.Context() - s.n
	if room <= 0 {
		return nil, false, fmt.Errorf("%w: all %d positions are taken", ErrContextFull, s.Context())
	}
	limit = max(1, min(limit, room))
	if p.st != nil {
		p.st.Limit(p.got + limit)
		p.fetch(ctx)
		if len(p.tokens) == 0 && !p.more && p.err == nil { // it had ended with the last call
			s.settle()
		}
	}
	if p.st == nil {
		if err := s.startParallel(nil, limit, len(p.c.Tokens())); err != nil {
			return nil, false, err
		}
		p.fetch(ctx)
	}
	tokens, stopped = s.takeParallel(limit)
	s.setLen(s.n + len(tokens))
	if len(p.tokens) == 0 && !p.more {
		err = s.parallelError(p.err)
		s.settle()
	}
	return tokens, stopped, err
}

// rewindParallel implements Rewind.
func (s *Session) rewindParallel(n int) error {
	return s.replace(s.par.c.Tokens()[:n+1], n, true)
}

// setNextParallel implements SetNext.
func (s *Session) setNextParallel(id int32) error {
	tokens := slices.Clone(s.par.c.Tokens())
	tokens[s.n] = id
	return s.replace(tokens, s.n, true)
}

// setChoice selects how the tokens of the following requests are chosen.
func (s *Session) setChoice(c *choice) {
	c.stops = s.par.choice.stops
	s.par.choice = c
	s.sampled, s.ranked = c.sampled, c.ranked
}

// forkParallel implements Fork.
func (s *Session) forkParallel() (*Session, error) {
	c, err := s.par.c.Fork()
	if err != nil {
		return nil, s.parallelError(err)
	}
	f, err := s.m.newParallel(s.o, c)
	if err != nil {
		return nil, err
	}
	f.setPlace(s.place)
	f.par.choice, f.par.drafts = s.par.choice, s.par.drafts
	return f, nil
}

// encodeStops returns stop ids in the form of the stops slot.
func encodeStops(ids []int32) []byte {
	buf := binary.LittleEndian.AppendUint32(nil, uint32(len(ids)))
	for _, id := range ids {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(id))
	}
	return buf
}
