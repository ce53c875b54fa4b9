package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pianola-engine/pianola/table"
)

// LimitError reports memory of one kind of slots that is over its limit.
type LimitError struct {
	Kind        table.SlotKind // SlotWeight, SlotKV or SlotScratch
	Need, Limit uint64         // bytes, of all sessions together
}

// Error implements error.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%d bytes of kind %s are needed, and the limit is %d", e.Need, e.Kind, e.Limit)
}

// shrinker is a Device that can give back memory.
type shrinker interface {
	// Shrink gives back the memory of a session's KV rows that the given number of positions does
	// not need. The session must have nothing in flight.
	Shrink(id SessionID, positions int) error
	// ResetPeaks sets Usage.Peak of each kind of slots to Usage.Active.
	ResetPeaks()
}

// ResetPeaks sets the peaks of the device's memory to what is in use.
func (m *Model) ResetPeaks() {
	if d, ok := m.dev.(shrinker); ok {
		d.ResetPeaks()
	}
}

// ReleaseIdle gives back the memory of KV caches that is not needed: that of sessions which no call
// has used for at least the given time, and of other sessions the rows that are not in use. A context
// whose cache was released is prefilled again by the next call that needs it. It skips sessions in use,
// and returns the number of bytes. A model for many sequences empties its prefix tree, and gives up the
// copies of pages in the host's memory.
func (m *Model) ReleaseIdle(idle time.Duration) (uint64, error) {
	before := m.dev.Memory().Kinds[table.SlotKV].Active
	var errs []error
	for _, s := range m.longestIdle() {
		_, err := s.release(s.idle() >= idle)
		errs = append(errs, err)
	}
	after := m.dev.Memory().Kinds[table.SlotKV].Active
	released := before - min(after, before)
	if m.engine != nil {
		removed, err := m.engine.Trim()
		errs = append(errs, err)
		for kind, n := range removed {
			released += uint64(n) * m.pool.pageBytes(kind)
		}
	}
	if m.spill != nil {
		released += m.spill.Release()
	}
	return released, errors.Join(errs...)
}

// longestIdle returns the model's sessions, those that have been idle longest first.
func (m *Model) longestIdle() []*Session {
	m.open.Lock()
	live := slices.Collect(maps.Keys(m.live))
	m.open.Unlock()
	slices.SortFunc(live, func(a, b *Session) int { return cmp.Compare(a.used.Load(), b.used.Load()) })
	return live
}

// within calls f until it succeeds, fails for another reason than the limit of KV caches, or no idle
// session is left whose cache can be released. except is not released; it may be nil.
func (m *Model) within(except *session, f func() error) error {
	err := f()
	var limit *LimitError
	if !errors.As(err, &limit) {
		return err
	}
	for _, s := range m.longestIdle() {
		if s.session == except {
			continue
		}
		released, failed := s.release(true)
		if failed != nil {
			return errors.Join(err, failed)
		}
		if !released {
			continue
		}
		if err = f(); !errors.As(err, &limit) {
			return err
		}
	}
	return err
}

// idle returns how long no call has used the session.
func (s *session) idle() time.Duration { return time.Since(time.Unix(0, s.used.Load())) }

// release gives back the rows of the session's KV cache that its context does not need, or all of them.
// It does nothing if a call is using the session, or if the session has no cache of its own.
func (s *Session) release(all bool) (released bool, err error) {
	d, ok := s.m.dev.(shrinker)
	if !all && s.o.Reserve > 0 { // the rows past the context are wanted
		return false, nil
	}
	if !ok || s.o.Pinned || s.par != nil || s.m.caches == nil || !s.turn.TryLock() {
		return false, nil
	}
	defer s.turn.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() || !s.opened || s.dropped {
		return false, nil
	}
	keep := s.n
	if all {
		keep = 0
	}
	if err := d.Shrink(s.id, keep); err != nil {
		return false, s.closedOr(err)
	}
	if s.dropped = all && s.n > 0; s.dropped {
		s.high = 0
	}
	return true, nil
}

// revive prefills the context again if its KV cache was released.
func (s *Session) revive() error {
	if !s.dropped || s.n == 0 {
		s.dropped = false
		return nil
	}
	sub := Submission{Session: s.id}
	at := func(program, at, rows int) {
		place := uint32(at)
		sub.Runs = append(sub.Runs, Run{Program: uint32(program), Count: 1, Step: table.Step{
			Position: place, KVRow: place, KVLen: place + 1, TokenIndex: place, Rows: uint32(rows),
		}})
	}
	for from, rows := 0, 0; from < s.n; from += rows {
		rows = s.m.chunk(from, s.n-from)
		at(s.m.prefill(rows), from, rows)
	}
	s.m.mu.Lock()
	ticket, err := s.m.dev.Submit(&sub)
	s.m.order++ // no session's scratch is left
	s.m.mu.Unlock()
	if err != nil {
		return s.closedOr(err)
	}
	s.ticket.Store(uint64(ticket))
	if s.halt.Load() {
		s.m.dev.Cancel(ticket)
	}
	_, err = s.m.dev.Wait(ticket)
	s.ticket.Store(0)
	s.took(&sub, 0, err)
	if err != nil {
		return s.closedOr(err)
	}
	if s.halt.Load() {
		return errHalted
	}
	s.dropped, s.high = false, max(s.high, s.n) // the submission that follows may have been counted
	s.count(func(st *Stats) { st.Prefilled += s.n })
	return nil
}

// ready makes the KV cache hold the context again, for a call that reads the cache.
func (s *Session) ready() error {
	if !s.dropped {
		return nil
	}
	defer s.watch(context.Background())()
	return s.closedOr(s.m.within(s.session, s.revive))
}

// errHalted reports that revive was cancelled.
var errHalted = errors.New("replay: the context was not prefilled again")
