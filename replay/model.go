package replay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/internal/batch"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/internal/spill"
	"github.com/pianola-engine/pianola/table"
)

// Errors that a caller may act on.
var (
	// ErrContextFull is returned if the context has no room for the tokens asked for.
	ErrContextFull = errors.New("replay: the context is full")
	// ErrEmptyPrompt is returned for a prompt without tokens.
	ErrEmptyPrompt = errors.New("replay: the prompt is empty")
	// ErrNothingPending is returned if decoding is asked for before a prompt.
	ErrNothingPending = errors.New("replay: no prompt has been given")
	// ErrBusy is returned if another call is using the session.
	ErrBusy = errors.New("replay: the session is in use by another call")
	// ErrClosed is returned if the session or its model is closed.
	ErrClosed = errors.New("replay: the session is closed")
)

// TokenError reports a token id that is not in the vocabulary.
type TokenError struct {
	Index int // in the prompt
	ID    int32
	Vocab int
}

// Error implements error.
func (e *TokenError) Error() string {
	return fmt.Sprintf("replay: token %d of the prompt: id %d is not in 0..%d", e.Index, e.ID, e.Vocab-1)
}

// Model is a table loaded on a device. Its methods may be called from several
// goroutines.
type Model struct {
	dev      Device
	t        *table.Table
	programs programs
	traffic  traffic
	recurs   []bool // programs with recurrent state
	kvRows   int    // rows of the smallest KV cache
	kvSlack  int    // positions that Rewind can take back from a rotating cache
	caches   []table.KVCache

	fingerprint func() ([32]byte, error) // of the table
	engine      *batch.Engine            // of a table for many sequences, otherwise nil
	pool        *pool                    // of the engine
	spill       *spill.Store             // of the engine, or nil
	profile     atomic.Pointer[func(program string, rows int, times []time.Duration)]

	verifyRows int  // most rows of the program verify, 0 without one
	moves      bool // Info.Moves: the device can replay verify several times in one run

	stages []uint32 // stages of the sampler, nil without one

	tokens, logits, stops, sampler, hidden, ranks uint32 // slots

	mu    sync.Mutex // held while a submission is queued
	order uint64     // number of submissions queued so far

	closing sync.Mutex // held by Close, so that a second call waits for the first
	open    sync.Mutex // guards the fields below
	closed  bool
	live    map[*Session]bool
}

// programs are the indices of the table's programs, -1 for a program that the table lacks.
type programs struct {
	decode, prefill, prefillFew, prefillFewest, head, logits, hidden, verify int
	sample, sampleHead, ranked, rankedHead                                   int
}

// find sets the indices. Each program must have the flags that its use relies on.
func (p *programs) find(t *table.Table) error {
	const head = table.FlagChooses | table.FlagReadsRow
	for _, want := range []struct {
		name     string
		index    *int
		flags    table.Flags
		required bool
	}{
		{table.ProgramDecode, &p.decode, table.FlagChooses, true},
		{table.ProgramPrefill, &p.prefill, 0, true},
		{table.ProgramPrefillFew, &p.prefillFew, 0, false},
		{table.ProgramPrefillFewest, &p.prefillFewest, 0, false},
		{table.ProgramHead, &p.head, head, true},
		{table.ProgramLogits, &p.logits, table.FlagReadsRow, false},
		{table.ProgramHidden, &p.hidden, table.FlagReadsRow, false},
		{table.ProgramSample, &p.sample, table.FlagChooses | table.FlagSamples, false},
		{table.ProgramSampleHead, &p.sampleHead, head | table.FlagSamples, false},
		{table.ProgramRanked, &p.ranked, table.FlagChooses | table.FlagSamples | table.FlagRanks, false},
		{table.ProgramRankedHead, &p.rankedHead, head | table.FlagSamples | table.FlagRanks, false},
		{table.ProgramVerify, &p.verify, table.FlagChooses | table.FlagAdvances, false},
	} {
		found, i, ok := t.Program(want.name)
		switch {
		case !ok && want.required:
			return fmt.Errorf("replay: the table has no program %s", want.name)
		case !ok:
			i = -1
		case found.Flags != want.flags:
			return fmt.Errorf("replay: program %s: its flags are %s, want %s", want.name, found.Flags, want.flags)
		}
		*want.index = i
	}
	return nil
}

// prefill returns the index of the program that prefills a chunk with the given number of rows.
func (m *Model) prefill(rows int) int {
	_, i := m.t.Prefill(rows)
	return i
}

// pacer is a Device that limits the rows of a chunk so that none of its commands takes long.
type pacer interface {
	// MostRows returns the largest number of rows that a chunk at a position should have, or 0
	// if there is no limit. It returns the same result for the same arguments as long as the
	// table is loaded.
	MostRows(program, position int) int
}

// chunk returns the number of rows of the chunk at a position of a prompt that has left positions
// from there on.
func (m *Model) chunk(at, left int) int {
	rows := min(int(m.t.Header.Chunk), left)
	if p, ok := m.dev.(pacer); ok {
		if most := p.MostRows(m.prefill(rows), at); most > 0 {
			rows = min(rows, most)
		}
	}
	return rows
}

// lastChunk returns the rows before the last chunk of a prompt of n positions from at on, and those of
// that chunk.
func (m *Model) lastChunk(at, n int) (before, rows int) {
	for {
		if rows = m.chunk(at+before, n-before); before+rows == n {
			return before, rows
		}
		before += rows
	}
}

// Load loads a table on a device. The device refuses a table that does not validate.
func Load(ctx context.Context, dev Device, t *table.Table, src Source, o LoadOptions) (_ *Model, err error) {
	m := &Model{dev: dev, t: t, live: map[*Session]bool{}}
	m.fingerprint = sync.OnceValues(t.Fingerprint)
	if err := m.programs.find(t); err != nil {
		return nil, err
	}
	// The device has validated the table. The code below relies on it.
	if err = dev.Load(ctx, t, src, o); err != nil {
		return nil, err
	}
	m.recurs = recurs(t)
	m.kvRows, m.kvSlack, m.caches = t.KVCapacity(), t.KVSlack(), t.KVCaches()
	if i := m.programs.verify; i >= 0 {
		m.verifyRows, m.moves = int(t.Programs[i].MaxRows), dev.Info().Moves
	}
	if m.traffic, err = newTraffic(t, m.programs); err != nil {
		return nil, err
	}
	_, m.tokens, _ = t.Slot(table.SlotTokens)
	_, m.logits, _ = t.Slot(table.SlotLogits)
	_, m.stops, _ = t.Slot(table.SlotStops)
	_, m.hidden, _ = t.Slot(table.SlotHidden)
	var samples bool
	if _, m.sampler, samples = t.Slot(table.SlotSampler); samples && m.programs.sampleHead >= 0 {
		m.stages = stages(t)
	}
	var ranks bool
	if _, m.ranks, ranks = t.Slot(table.SlotRanks); !ranks || m.stages == nil || m.programs.ranked < 0 {
		m.programs.rankedHead = -1
	}
	if l, pooled := sequence.Of(t.Header.Options, int(t.Header.Context)); pooled {
		if err := m.startEngine(l, o); err != nil {
			return nil, err
		}
	} else if o.Spill.on() {
		return nil, errSpill
	}
	return m, nil
}

// calls returns the count of a device that is a CallCounter, otherwise 0.
func (m *Model) calls() uint64 {
	if c, ok := m.dev.(CallCounter); ok {
		return c.Calls()
	}
	return 0
}

// Table returns the table.
func (m *Model) Table() *table.Table { return m.t }

// Device returns the device.
func (m *Model) Device() Device { return m.dev }

// SessionOptions are a session's settings.
type SessionOptions struct {
	// Chain is the exact number of tokens per submission. 0 lets ChainTime decide.
	Chain int
	// ChainTime bounds the time of one submission. 0 means DefaultChainTime.
	ChainTime time.Duration
	// StopIDs are the tokens that end a generation.
	StopIDs []int32
	// Reserve is the number of positions for which memory is allocated at the start; 0
	// selects the device's minimum. The caches grow between submissions as the context
	// does, which takes time on GPUs.
	Reserve int
	// Pinned keeps ReleaseIdle and the limit of KV caches from releasing the session's cache.
	Pinned bool
	// Rollover selects how a full context continues.
	Rollover Rollover
	// Priority ranks the calls of sessions of a model for many sequences: larger ones first. Calls
	// of lower priority wait longer, but not for ever.
	Priority int
	// Space is the namespace of the KV pages that prompts with the same beginning share, in a model for
	// many sequences. Sessions share pages with those of the same namespace only.
	Space string
	// NoReuse makes Reprompt, RepromptLogits and RepromptHidden prefill all tokens, even
	// those that the context already holds.
	NoReuse bool
}

// DefaultChainTime is the bound of a chain's time if SessionOptions.ChainTime is 0.
const DefaultChainTime = 50 * time.Millisecond

// NewSession returns a session with an empty context. The error is ErrClosed if the model
// is closed.
func (m *Model) NewSession(o SessionOptions) (*Session, error) {
	return m.newSession(o, m.dev.NewSession)
}

// newSession returns a session whose device session comes from open.
func (m *Model) newSession(o SessionOptions, open func() (SessionID, error)) (*Session, error) {
	h := &m.t.Header
	if o.Chain < 0 || o.ChainTime < 0 {
		return nil, fmt.Errorf("replay: Chain %d and ChainTime %v must not be negative", o.Chain, o.ChainTime)
	}
	if o.ChainTime == 0 {
		o.ChainTime = DefaultChainTime
	}
	if err := o.Rollover.check(int(h.Context)); err != nil {
		return nil, err
	}
	if len(o.StopIDs) > int(h.MaxStops) {
		return nil, fmt.Errorf("replay: %d stop ids exceed the table's limit of %d", len(o.StopIDs), h.MaxStops)
	}
	if m.engine != nil {
		return m.newParallel(o, nil)
	}
	if o.Reserve < 0 || o.Reserve > int(h.Context) {
		return nil, fmt.Errorf("replay: cannot reserve %d positions: want 0 to the context of %d", o.Reserve, h.Context)
	}
	s := &Session{session: &session{
		m: m, o: o, states: m.newHeld(),
		ids:   make([]int32, h.Context+1),
		bytes: make([]byte, 4*(int(h.Context)+1)),
	}}
	if err := m.register(s); err != nil {
		return nil, err
	}
	err := s.open(open)
	if err != nil {
		return nil, errors.Join(s.closedOr(err), s.Close())
	}
	return s, nil
}

// open opens the session on the device.
func (s *Session) open(open func() (SessionID, error)) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.done()
	var id SessionID
	err := s.m.within(s.session, func() (err error) {
		id, err = open()
		return err
	})
	if err != nil {
		return err
	}
	s.id, s.opened, s.sub.Session = id, true, id
	if err := s.writeStops(s.o.StopIDs); err != nil {
		return err
	}
	// Reserve at least one position, so that the first prompt need not wait for the
	// device's first allocation.
	return s.m.within(s.session, func() error { return s.m.dev.Reserve(id, max(1, s.o.Reserve)) })
}

// register adds a session to those that Close ends.
func (m *Model) register(s *Session) error {
	m.open.Lock()
	defer m.open.Unlock()
	if m.closed {
		return ErrClosed
	}
	m.live[s] = true
	return nil
}

func (m *Model) forget(s *Session) {
	m.open.Lock()
	defer m.open.Unlock()
	delete(m.live, s)
}

// Close ends the model's sessions, whose calls in progress return ErrClosed, and closes the
// device. Calling it again has no effect.
func (m *Model) Close() error {
	m.closing.Lock()
	defer m.closing.Unlock()
	m.open.Lock()
	m.closed = true
	live := slices.Collect(maps.Keys(m.live))
	m.open.Unlock()
	for _, s := range live { // end all sessions before waiting for the first
		s.end()
	}
	if m.engine != nil {
		m.engine.Close()
	}
	var errs []error
	for _, s := range live {
		errs = append(errs, s.Close())
	}
	if m.spill != nil {
		errs = append(errs, m.spill.Close())
	}
	return errors.Join(append(errs, m.dev.Close())...)
}
