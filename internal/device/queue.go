package device

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Backend is the interface that each device implements. S is the type in which the device keeps
// its state of a session.
type Backend[S any] interface {
	// Load prepares everything that sessions share, starts the executor with Queue.Go and returns
	// the memory it has allocated. It must call CheckTable first. If it fails, Unload is called.
	Load(ctx context.Context, t *table.Table, src replay.Source, o replay.LoadOptions) (replay.Memory, error)
	// Warm replays programs in a session of its own, so that the first submission is as fast as
	// later ones. It is called after Load.
	Warm(run func(runs ...replay.Run) error) error
	// Unload frees everything that Load has allocated, and the sessions that are still open. It is
	// called after the executor has ended, and also if Load has failed.
	Unload(left []S) error

	// Open allocates zeroed slots of session scope, and returns their total size without the KV
	// caches, whose rows Grow allocates. If it fails, Free is called for the partial session.
	Open() (s S, size uint64, err error)
	// Grow enlarges a session's KV caches to hold at least the given number of positions, which
	// exceeds the current number and is at most the context. It preserves existing rows and zeroes
	// new ones. The session has nothing in flight. If Grow fails, the session is unchanged.
	Grow(s S, positions int) (Room, error)
	// Shrink gives back the memory of KV rows that are not needed for the given number of positions,
	// which is less than the current one and may be 0. It preserves the rows of those positions. The
	// session has nothing in flight. If Shrink fails, the session is unchanged.
	Shrink(s S, positions int) (Room, error)
	// Room returns the positions and the bytes of caches that Grow or Shrink makes for the given number of
	// positions.
	Room(positions int) Room
	// Copy copies the slots of session scope from one session to another. Of the KV caches it
	// copies the rows of the given number of positions, for which both sessions have room. The
	// sessions have nothing in flight.
	Copy(to, from S, positions int) error
	// Free frees a session that has nothing in flight. If it fails, it is called again later, or
	// the session is passed to Unload.
	Free(s S) error
	// Send executes moves and then writes of a session that has nothing in flight. Whatever uses the
	// session afterwards finds their results. Fetch executes reads. Transfers have bytes, and all
	// ranges lie within their slots.
	Send(s S, moves []replay.Move, writes []replay.Transfer) error
	Fetch(s S, reads []replay.Transfer) error
}

// Room describes a session's KV caches after Grow.
type Room struct {
	Positions int    // positions that the caches have rows for
	Bytes     uint64 // size of the caches
	Most      uint64 // bytes allocated at the peak, while both the old and the new caches existed; 0 means Bytes
}

// Queue is a device's queue of submissions, together with its sessions and its state. The device
// and its executor call its methods.
type Queue[S any] struct {
	name     string
	backend  Backend[S]
	executor sync.WaitGroup // the executor's goroutines

	// closing is held by Close, so that a second call waits for the first.
	closing sync.Mutex
	// life is held for reading during calls of the backend for a session, so that Unload does not
	// free memory in use.
	life sync.RWMutex

	mu          sync.Mutex
	work        sync.Cond // signals a new job, or the end of the executor
	table       *table.Table
	memory      replay.Memory
	whole       bool   // the KV caches do not grow
	limit       uint64 // bytes of the KV caches of all sessions; 0: no limit
	pool        sequence.Layout
	pooled      bool // the table is pooled
	loading     bool
	loaded      bool
	closed      bool
	ending      bool  // the executor is to end
	failed      error // the error that lost the device
	sessions    map[replay.SessionID]*session[S]
	lastID      replay.SessionID
	first, tail *Job[S]
}

// New returns the queue of a device without a table. The device's errors begin with name.
func New[S any](name string, b Backend[S]) *Queue[S] {
	q := &Queue[S]{name: name, backend: b, sessions: map[replay.SessionID]*session[S]{}}
	q.work.L = &q.mu
	return q
}

// Base returns the methods of the device that sessions call.
func (q *Queue[S]) Base() Base[S] { return Base[S]{q} }

// Job is a session's submission. Each session has one Job and reuses it.
type Job[S any] struct {
	Session    S
	Submission *replay.Submission

	queue     *Queue[S]
	of        *session[S]
	next      *Job[S] // next job in the queue
	cancelled atomic.Bool
	pushed    time.Time     // guarded by the queue's mu
	queued    time.Duration // time spent in the queue; set by Next

	// Guarded by the session's mu.
	interrupt func()
	result    replay.Result
	err       error
}

// ID returns the session's ID.
func (j *Job[S]) ID() replay.SessionID { return j.of.id }

// Cancelled reports whether the rest of the job is cancelled.
func (j *Job[S]) Cancelled() bool { return j.cancelled.Load() }

// OnCancel makes Cancel call f if it cancels the job before Finish. Finish waits for f to return.
// If the job is already cancelled, f is not called.
func (j *Job[S]) OnCancel(f func()) {
	j.of.mu.Lock()
	defer j.of.mu.Unlock()
	j.interrupt = f
}

// Finish executes the reads of the submission, ends the job and gives the result to Wait. A job that
// Close has cancelled gets ErrClosed.
func (j *Job[S]) Finish(r replay.Result, err error) {
	if err == nil && j.Cancelled() {
		err = j.queue.check()
	}
	if err == nil && len(j.Submission.Reads) > 0 {
		if err = j.queue.backend.Fetch(j.Session, j.Submission.Reads); err != nil {
			r = replay.Result{}
		}
	}
	r.Queued = j.queued
	s := j.of
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(r, err)
}

// Go starts a goroutine of the executor. It must return once Next returns nil.
func (q *Queue[S]) Go(f func()) { q.executor.Go(f) }

// Next waits for a job. It returns nil if the executor is to end. Cancelled jobs, and jobs still
// queued when the executor ends, are finished without being executed.
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

// push queues a job, unless the device is unusable.
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

// withdraw removes a job from the queue if the executor has not taken it, and returns how long it
// was queued.
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

// Lose records the error that lost the device. Every later call returns it.
func (q *Queue[S]) Lose(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.failed == nil {
		q.failed = err
	}
}

// usable returns nil, or the reason why the device is unusable. q.mu must be held.
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

// place prefixes an error with the device's name.
func (q *Queue[S]) place(err error) error { return fmt.Errorf("%s: %w", q.name, err) }
