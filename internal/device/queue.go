package device

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Backend is what a device does itself. S is what it has of a session.
type Backend[S any] interface {
	// Load makes ready what sessions share, starts the executor with Queue.Go and
	// says what it holds of memory. It begins with CheckTable. If it fails,
	// Unload is called.
	Load(ctx context.Context, t *table.Table, src replay.Source, o replay.LoadOptions) (replay.Memory, error)
	// Warm replays what makes the first submission as fast as others, in a session
	// of its own. It follows Load.
	Warm(run func(runs ...replay.Run) error) error
	// Unload frees what Load has made, as far as it came, and sessions that are
	// left. The executor has ended.
	Unload(left []S) error

	// Open allocates the slots of session scope, zeroed, and says what they take
	// without the KV caches, which need no rows before Grow. If it fails, Free is
	// called for what there is of the session.
	Open() (s S, size uint64, err error)
	// Grow makes room in a session's KV caches for so many positions at least, which
	// are within the context and more than there is room for. Rows that are there stay,
	// others are zeroed. The session has nothing in flight. If it fails, the session is
	// as it was.
	Grow(s S, positions int) (Room, error)
	// Copy copies the slots of session scope from one session to another, of KV caches
	// the rows of so many positions, which both have room for. Neither has anything in
	// flight.
	Copy(to, from S, positions int) error
	// Free frees a session, which has nothing in flight. If it fails it is called
	// again, by Unload at the latest.
	Free(s S) error
	// Write and Read copy bytes to and from a slot of a session that has nothing
	// in flight. There are some, and they are within the slot.
	Write(s S, slot uint32, offset uint64, p []byte) error
	Read(s S, slot uint32, offset uint64, p []byte) error
}

// Room is what Grow has made of a session's KV caches.
type Room struct {
	Positions int    // that they have rows for
	Bytes     uint64 // that they take
	Most      uint64 // that they took meanwhile, if that was more
}

// Queue is the submissions of all sessions, one after the other, and the state
// of the device. Its methods are for the device and its executor.
type Queue[S any] struct {
	name     string
	backend  Backend[S]
	executor sync.WaitGroup // its goroutines

	// closing is held by Close, so that a second call waits for the first.
	closing sync.Mutex
	// life is held for reading while the backend does something for a session, so
	// that unloading does not take away what it uses.
	life sync.RWMutex

	mu          sync.Mutex
	work        sync.Cond // there is a job, or the executor ends
	table       *table.Table
	memory      replay.Memory
	loading     bool
	loaded      bool
	closed      bool
	ending      bool  // the executor ends
	failed      error // what lost the device
	sessions    map[replay.SessionID]*session[S]
	lastID      replay.SessionID
	first, tail *Job[S]
}

// New returns the queue of a device without a table. Errors begin with name.
func New[S any](name string, b Backend[S]) *Queue[S] {
	q := &Queue[S]{name: name, backend: b, sessions: map[replay.SessionID]*session[S]{}}
	q.work.L = &q.mu
	return q
}

// Base returns the methods of the device that sessions call.
func (q *Queue[S]) Base() Base[S] { return Base[S]{q} }

// Job is a session's submission. Each session has one, which is used again.
type Job[S any] struct {
	Session    S
	Submission *replay.Submission

	queue     *Queue[S]
	of        *session[S]
	next      *Job[S] // in the queue
	cancelled atomic.Bool
	pushed    time.Time     // guarded by the queue's mu
	queued    time.Duration // set by Next

	// The session's mu guards these.
	interrupt func()
	result    replay.Result
	err       error
}

// ID returns the session's number.
func (j *Job[S]) ID() replay.SessionID { return j.of.id }

// Cancelled reports whether what is left of the job is to do nothing.
func (j *Job[S]) Cancelled() bool { return j.cancelled.Load() }

// OnCancel makes Cancel call f, once the job is cancelled, until it is finished,
// which waits for f. If it is cancelled already, f is not called.
func (j *Job[S]) OnCancel(f func()) {
	j.of.mu.Lock()
	defer j.of.mu.Unlock()
	j.interrupt = f
}

// Finish hands the result to whoever waits. A job that Close has cut short gets
// ErrClosed.
func (j *Job[S]) Finish(r replay.Result, err error) {
	if err == nil && j.Cancelled() {
		err = j.queue.check()
	}
	r.Queued = j.queued
	s := j.of
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(r, err)
}

// Go starts a goroutine of the executor. It must end when Next has returned nil.
func (q *Queue[S]) Go(f func()) { q.executor.Go(f) }

// Next waits for a job. It returns nil if the executor is to end; jobs that are
// queued then are finished without having run, as are cancelled ones.
func (q *Queue[S]) Next() *Job[S] {
	for {
		q.mu.Lock()
		for q.first == nil && !q.ending {
			q.work.Wait()
		}
		j := q.first
		if j == nil {
			q.mu.Unlock()
			return nil
		}
		if q.first = j.next; q.first == nil {
			q.tail = nil
		}
		j.next, j.queued = nil, time.Since(j.pushed)
		err := q.usable()
		q.mu.Unlock()
		if err == nil && !j.Cancelled() {
			return j
		}
		j.Finish(replay.Result{}, err)
	}
}

// push queues a job, unless the device cannot be used.
func (q *Queue[S]) push(j *Job[S]) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.usable(); err != nil {
		return err
	}
	j.pushed = time.Now()
	if q.tail == nil {
		q.first = j
	} else {
		q.tail.next = j
	}
	q.tail = j
	q.work.Signal()
	return nil
}

// withdraw takes a job out of the queue, if no executor has taken it, and returns how
// long it was there.
func (q *Queue[S]) withdraw(j *Job[S]) (waited time.Duration, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var before *Job[S]
	for at := q.first; at != nil; before, at = at, at.next {
		if at != j {
			continue
		}
		if before == nil {
			q.first = j.next
		} else {
			before.next = j.next
		}
		if q.tail == j {
			q.tail = before
		}
		j.next = nil
		return time.Since(j.pushed), true
	}
	return 0, false
}

// Lose notes what lost the device; every later call returns it.
func (q *Queue[S]) Lose(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.failed == nil {
		q.failed = err
	}
}

// usable returns why the device cannot be used, or nil. q.mu must be held.
func (q *Queue[S]) usable() error {
	switch {
	case q.closed:
		return q.place(ErrClosed)
	case !q.loaded:
		return q.place(ErrNotLoaded)
	}
	return q.failed
}

func (q *Queue[S]) check() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.usable()
}

// place says which device an error is of.
func (q *Queue[S]) place(err error) error { return fmt.Errorf("%s: %w", q.name, err) }
