package replay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pianola-engine/pianola/table"
)

// Errors that a caller may act on.
var (
	// ErrContextFull says that the context has no room for what was asked.
	ErrContextFull = errors.New("replay: the context is full")
	// ErrEmptyPrompt says that a prompt has no tokens.
	ErrEmptyPrompt = errors.New("replay: the prompt is empty")
	// ErrNothingPending says that decoding was asked for before a prompt.
	ErrNothingPending = errors.New("replay: no prompt has been given")
	// ErrBusy says that two calls use one session at the same time.
	ErrBusy = errors.New("replay: the session is in use by another call")
	// ErrClosed says that the session is closed.
	ErrClosed = errors.New("replay: the session is closed")
)

// TokenError says that a token id is not in the vocabulary.
type TokenError struct {
	Index int // in the prompt
	ID    int32
	Vocab int
}

// Error implements error.
func (e *TokenError) Error() string {
	return fmt.Sprintf("replay: token %d of the prompt: id %d is not in 0..%d", e.Index, e.ID, e.Vocab-1)
}

// Model is a table loaded on a device.
type Model struct {
	dev      Device
	t        *table.Table
	programs programs
	kvRows   int // of the smallest KV cache

	stages []uint32 // of the sampler, nil where there is none

	tokens, logits, stops, sampler uint32 // slots

	mu    sync.Mutex // held where a submission is queued
	order uint64     // how many were
}

// programs are the indices of the table's programs, -1 where there is none.
type programs struct{ decode, prefill, head, logits, sample, sampleHead int }

// Load checks a table and loads it on a device.
func Load(ctx context.Context, dev Device, t *table.Table, src table.Source, o table.LoadOptions) (*Model, error) {
	if faults := t.Validate(); len(faults) > 0 {
		return nil, fmt.Errorf("replay: %w", faults[0])
	}
	m := &Model{dev: dev, t: t, kvRows: t.KVCapacity()}
	for _, p := range []struct {
		name     string
		index    *int
		required bool
	}{
		{table.ProgramDecode, &m.programs.decode, true},
		{table.ProgramPrefill, &m.programs.prefill, true},
		{table.ProgramHead, &m.programs.head, true},
		{table.ProgramLogits, &m.programs.logits, false},
		{table.ProgramSample, &m.programs.sample, false},
		{table.ProgramSampleHead, &m.programs.sampleHead, false},
	} {
		_, i, ok := t.Program(p.name)
		if !ok {
			if i = -1; p.required {
				return nil, fmt.Errorf("replay: the table has no program %s", p.name)
			}
		}
		*p.index = i
	}
	_, m.tokens, _ = t.Slot(table.SlotTokens)
	_, m.logits, _ = t.Slot(table.SlotLogits)
	_, m.stops, _ = t.Slot(table.SlotStops)
	var samples bool
	if _, m.sampler, samples = t.Slot(table.SlotSampler); samples && m.programs.sampleHead >= 0 {
		m.stages = stages(t)
	}
	if err := dev.Load(ctx, t, src, o); err != nil {
		return nil, err
	}
	return m, nil
}

// calls returns what the device has called of the system, 0 if it does not say.
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
	// Chain is the number of tokens of a submission, kept exactly. 0 lets
	// ChainTime decide.
	Chain int
	// ChainTime bounds the time of a submission; 0 is 50 ms.
	ChainTime time.Duration
	// StopIDs end a generation when they are chosen.
	StopIDs []int32
}

// DefaultChainTime bounds a chain where nothing else is asked for.
const DefaultChainTime = 50 * time.Millisecond

// NewSession makes a session with an empty context.
func (m *Model) NewSession(o SessionOptions) (*Session, error) {
	if o.Chain < 0 || o.ChainTime < 0 {
		return nil, fmt.Errorf("replay: a chain of %d tokens or %v", o.Chain, o.ChainTime)
	}
	if o.ChainTime == 0 {
		o.ChainTime = DefaultChainTime
	}
	h := &m.t.Header
	if len(o.StopIDs) > int(h.MaxStops) {
		return nil, fmt.Errorf("replay: %d stop ids are more than the %d that the table has room for", len(o.StopIDs), h.MaxStops)
	}
	id, err := m.dev.NewSession()
	if err != nil {
		return nil, err
	}
	s := &Session{
		m: m, id: id, o: o,
		ids:   make([]int32, h.Context+1),
		bytes: make([]byte, 4*(int(h.Context)+1)),
	}
	s.sub.Session = id
	if err := s.writeStops(o.StopIDs); err != nil {
		return nil, errors.Join(err, m.dev.CloseSession(id))
	}
	return s, nil
}
