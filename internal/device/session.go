package device

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// state is the state of a session's submission.
type state uint8

const (
	idle   state = iota
	queued       // queued or running
	done         // ended, but Wait has not been called
)

// session is the ID and the state of a session. job.Session holds the backend's state.
type session[S any] struct {
	id replay.SessionID

	// Guarded by the queue's mu.
	kv, fixed uint64 // bytes of the KV caches, and of all other slots

	mu      sync.Mutex // guards the fields below, and keeps submissions away while slots are accessed
	changed sync.Cond
	state   state
	serial  uint32 // number of the last ticket
	closed  bool
	freed   bool
	room    int // positions that the KV caches have rows for
	job     Job[S]
	one     [1]replay.Transfer // of Write and Read
}

// ticket returns the ticket of the session's last submission. s.mu must be held.
func (s *session[S]) ticket() replay.Ticket {
	return replay.Ticket(uint64(s.id)<<32 | uint64(s.serial))
}

// end records the result of a submission. s.mu must be held, and no one else may use the job.
func (s *session[S]) end(r replay.Result, err error) {
	j := &s.job
	j.result, j.err, j.Submission, j.interrupt = r, err, nil, nil
	s.state = done
	s.changed.Broadcast()
}

// ready returns nil, or the reason why the session cannot be used. s.mu must be held.
func (s *session[S]) ready() error {
	switch {
	case s.closed:
		return ErrSession
	case s.state != idle:
		return ErrBusy
	}
	return nil
}

// cancel cancels the submission in flight. s.mu must be held; it keeps the submission from
// ending.
func (s *session[S]) cancel() {
	if s.state != queued {
		return
	}
	s.job.cancelled.Store(true)
	if s.job.interrupt != nil {
		s.job.interrupt()
	}
}

// NewSession allocates the slots of session scope, zeroed. The KV caches have no rows yet.
func (b Base[S]) NewSession() (replay.SessionID, error) {
	q := b.q
	q.life.RLock()
	defer q.life.RUnlock()
	return q.open(func(*session[S]) error { return nil })
}

// open creates a session and calls fill with it before it is registered. q.life must be held.
func (q *Queue[S]) open(fill func(s *session[S]) error) (replay.SessionID, error) {
	if err := q.check(); err != nil {
		return 0, err
	}
	s := &session[S]{}
	s.changed.L = &s.mu
	s.job.queue, s.job.of = q, s
	if q.whole {
		if err := q.admit(q.slots(table.ScopeSession, table.SlotKV), 0); err != nil {
			return 0, err
		}
	}
	fixed, err := uint64(0), error(nil)
	if s.job.Session, fixed, err = q.backend.Open(); err == nil {
		q.account(s, fixed, 0, 0)
		err = fill(s)
	}
	if err == nil {
		err = q.register(s)
	}
	if err != nil {
		err = join(err, q.backend.Free(s.job.Session))
		q.account(s, 0, 0, 0)
		return 0, err
	}
	return s.id, nil
}

// register gives a session its ID.
func (q *Queue[S]) register(s *session[S]) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.usable(); err != nil {
		return err
	}
	if q.lastID+1 == 0 {
		return q.place(errors.New("no session IDs are left"))
	}
	q.lastID++
	s.id = q.lastID
	q.sessions[s.id] = s
	return nil
}

// grow enlarges a session's KV caches to hold the given number of positions. q.life must be held,
// and s.mu too once the session is registered.
func (q *Queue[S]) grow(s *session[S], positions int) error {
	if positions <= s.room {
		return nil
	}
	if context := int(q.table.Header.Context); positions > context {
		return fmt.Errorf("%s: %d positions are past the context of %d", q.name, positions, context)
	}
	if err := q.admit(q.backend.Room(positions).Bytes, s.kv); err != nil {
		return err
	}
	room, err := q.backend.Grow(s.job.Session, positions)
	if err != nil {
		return err
	}
	s.room = room.Positions
	q.account(s, s.fixed, room.Bytes, room.Most)
	return nil
}

// admit returns a *replay.LimitError if the KV caches of all sessions would be over the limit once a
// session's have more bytes in place of less.
func (q *Queue[S]) admit(more, less uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if need := q.memory.Kinds[table.SlotKV].Active + more - less; q.limit > 0 && need > q.limit {
		return q.place(&replay.LimitError{Kind: table.SlotKV, Need: need, Limit: q.limit})
	}
	return nil
}

// Shrink gives back the memory of a session's KV rows past the given number of positions.
func (b Base[S]) Shrink(id replay.SessionID, positions int) error {
	return b.q.hold(id, func(s *session[S]) error {
		q := b.q
		if q.whole || positions < 0 || q.backend.Room(positions).Positions >= s.room {
			return nil
		}
		room, err := q.backend.Shrink(s.job.Session, positions)
		if err != nil {
			return err
		}
		s.room = room.Positions
		q.account(s, s.fixed, room.Bytes, room.Most)
		return nil
	})
}

// Reserve enlarges a session's KV caches to hold the given number of positions.
func (b Base[S]) Reserve(id replay.SessionID, positions int) error {
	return b.q.hold(id, func(s *session[S]) error { return b.q.grow(s, positions) })
}

// Fork creates a session with a copy of another session's slots. Of the KV caches it copies the
// rows of the given number of positions.
func (b Base[S]) Fork(id replay.SessionID, positions int) (replay.SessionID, error) {
	var fork replay.SessionID
	err := b.q.hold(id, func(from *session[S]) error {
		if positions < 0 || positions > from.room {
			return b.q.place(fmt.Errorf("cannot fork %d positions: the session has rows for %d", positions, from.room))
		}
		var err error
		fork, err = b.q.open(func(s *session[S]) error {
			if err := b.q.grow(s, positions); err != nil {
				return err
			}
			return b.q.backend.Copy(s.job.Session, from.job.Session, positions)
		})
		return err
	})
	return fork, err
}

// session returns an open session.
func (q *Queue[S]) session(id replay.SessionID) (*session[S], error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.sessions[id]
	switch {
	case q.closed:
		return nil, q.place(ErrClosed)
	case s == nil:
		return nil, q.place(ErrSession)
	}
	return s, nil
}

// lookup returns the session of a ticket, or nil.
func (q *Queue[S]) lookup(t replay.Ticket) *session[S] {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.sessions[replay.SessionID(t>>32)]
}

func (q *Queue[S]) all() []*session[S] {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Values(q.sessions))
}

// CloseSession waits for the session's submission in flight and frees its slots.
func (b Base[S]) CloseSession(id replay.SessionID) error {
	q := b.q
	s, err := q.session(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	for s.state == queued {
		s.changed.Wait()
	}
	// No more submissions are accepted. Wait for calls that read or write.
	s.closed = true
	s.mu.Unlock()
	q.life.RLock()
	defer q.life.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed { // the device was closed, or another call freed it
		return nil
	}
	if err := q.backend.Free(s.job.Session); err != nil {
		return err
	}
	s.freed = true
	q.account(s, 0, 0, 0)
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.sessions, id)
	return nil
}

// Hold calls f with a session that has nothing in flight, and keeps submissions away until f
// returns.
func (q *Queue[S]) Hold(id replay.SessionID, f func(s S) error) error {
	return q.hold(id, func(s *session[S]) error { return f(s.job.Session) })
}

func (q *Queue[S]) hold(id replay.SessionID, f func(s *session[S]) error) error {
	s, err := q.session(id)
	if err != nil {
		return err
	}
	q.life.RLock()
	defer q.life.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(); err != nil {
		return q.place(err)
	}
	if err := q.check(); err != nil {
		return err
	}
	return f(s)
}

// View calls f with an open session, even if a submission is in flight, and keeps the session
// open until f returns.
func (q *Queue[S]) View(id replay.SessionID, f func(s S) error) error {
	s, err := q.session(id)
	if err != nil {
		return err
	}
	q.life.RLock()
	defer q.life.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return q.place(ErrSession)
	}
	return f(s.job.Session)
}
