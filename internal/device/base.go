package device

import (
	"context"
	"errors"
	"fmt"

	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Base is the part of a device that sessions call. A device embeds it. Its methods implement
// replay.Device and are documented there.
type Base[S any] struct{ q *Queue[S] }

// Load loads a table. If it fails it frees everything, and another table may be loaded.
func (b Base[S]) Load(ctx context.Context, t *table.Table, src replay.Source, o replay.LoadOptions) error {
	q := b.q
	q.mu.Lock()
	var err error
	switch {
	case q.closed:
		err = q.place(ErrClosed)
	case q.loaded || q.loading:
		err = q.place(ErrLoaded)
	default:
		err = q.failed
	}
	q.loading = q.loading || err == nil
	q.mu.Unlock()
	if err != nil {
		return err
	}
	if err = b.load(ctx, t, src, o); err != nil {
		err = join(err, q.unload())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.loading = false
	if err != nil {
		clear(q.sessions)
	}
	return err
}

// warmRow returns the write of the row record for runs of WarmRun.
func (q *Queue[S]) warmRow() []replay.Transfer {
	if !q.pooled {
		return nil
	}
	_, step, _ := q.table.Slot(table.SlotStep)
	var b [sequence.RowBytes]byte
	(&sequence.Row{KVLen: 1, Until: 1}).Put(&b)
	return []replay.Transfer{{Slot: step, Offset: q.pool.RowAt(0), Bytes: b[:]}}
}

func (b Base[S]) load(ctx context.Context, t *table.Table, src replay.Source, o replay.LoadOptions) error {
	q := b.q
	memory, err := q.backend.Load(ctx, t, src, o)
	if err != nil {
		return err
	}
	q.mu.Lock()
	q.table, q.loaded = t, true
	q.pool, q.pooled = sequence.Of(t.Header.Options, int(t.Header.Context))
	q.loadedMemory(memory)
	q.limit = o.KVLimit
	q.mu.Unlock()
	if o.Loaded != nil {
		if err := o.Loaded(); err != nil {
			return err
		}
	}
	if o.NoWarm {
		return nil
	}
	var id replay.SessionID
	err = q.backend.Warm(func(runs ...replay.Run) error {
		var err error
		if id == 0 {
			if id, err = b.NewSession(); err != nil {
				return err
			}
		}
		ticket, err := b.Submit(&replay.Submission{Session: id, Runs: runs, Writes: q.warmRow()})
		if err == nil {
			_, err = b.Wait(ticket)
		}
		return err
	})
	if id != 0 {
		err = join(err, b.CloseSession(id))
	}
	return err
}

// Submit queues a submission, after it has grown the session's KV caches to the positions that
// the submission reaches.
func (b Base[S]) Submit(sub *replay.Submission) (replay.Ticket, error) {
	q := b.q
	s, err := q.session(sub.Session)
	if err != nil {
		return 0, err
	}
	positions := 1
	for i := range sub.Runs {
		if err := replay.CheckRun(q.table, &sub.Runs[i]); err != nil {
			return 0, NewRunError(q.name, q.table, sub, i, err)
		}
		positions = max(positions, min(sub.Runs[i].Positions(), int(q.table.Header.Context)))
	}
	if err := errors.Join(replay.CheckTimings(q.table, sub), replay.CheckTap(q.table, sub), q.checkSequences(sub)); err != nil {
		return 0, q.place(err)
	}
	if err := q.checkTransfers(sub); err != nil {
		return 0, err
	}
	q.life.RLock()
	defer q.life.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(); err != nil {
		return 0, q.place(err)
	}
	if positions > s.room {
		if err := q.check(); err != nil {
			return 0, err
		}
		if err := q.grow(s, positions); err != nil {
			return 0, err
		}
	}
	if len(sub.Moves)+len(sub.Writes) > 0 {
		if err := q.check(); err != nil {
			return 0, err
		}
		if err := q.backend.Send(s.job.Session, sub.Moves, sub.Writes); err != nil {
			return 0, err
		}
	}
	// Queue the job last, so that a submission that the device refuses has not changed the
	// session, except for its moves and writes, and that its KV caches may have grown.
	j := &s.job
	j.Submission, j.next, j.interrupt, j.result, j.err = sub, nil, nil, replay.Result{}, nil
	j.cancelled.Store(false)
	clear(sub.Timings)
	s.state = queued
	s.serial++
	if err := q.push(j); err != nil {
		s.state = idle
		return 0, err
	}
	return s.ticket(), nil
}

// checkSequences returns an error if the runs of a submission are of several sequences, since the step
// record names one for all of them, or of one that the table does not have.
func (q *Queue[S]) checkSequences(sub *replay.Submission) error {
	for i := range sub.Runs {
		switch at, first := sub.Runs[i].Step.Sequence, sub.Runs[0].Step.Sequence; {
		case at != first:
			return fmt.Errorf("run %d belongs to sequence %d and run 0 to sequence %d", i, at, first)
		case uint64(at) >= uint64(max(1, q.pool.Sequences)):
			return fmt.Errorf("run %d belongs to sequence %d of %d", i, at, max(1, q.pool.Sequences))
		}
	}
	return nil
}

// Cancel cancels the rest of a submission. A submission that has not begun ends at once, wherever
// it is in the queue.
func (b Base[S]) Cancel(t replay.Ticket) {
	s := b.q.lookup(t)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ticket() != t || s.state != queued {
		return
	}
	s.cancel()
	if waited, ok := b.q.withdraw(&s.job); ok {
		s.end(replay.Result{Queued: waited}, b.q.check())
	}
}

// Wait waits for a submission to end and returns its result.
func (b Base[S]) Wait(t replay.Ticket) (replay.Result, error) {
	s := b.q.lookup(t)
	if s == nil {
		return replay.Result{}, b.q.place(ErrTicket)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.ticket() == t && s.state == queued {
		s.changed.Wait()
	}
	if s.ticket() != t || s.state != done {
		return replay.Result{}, b.q.place(ErrTicket)
	}
	s.state = idle
	return s.job.result, s.job.err
}

// Close cancels the submissions in flight, waits for them and frees everything.
func (b Base[S]) Close() error {
	q := b.q
	q.mu.Lock()
	if q.loading {
		q.mu.Unlock()
		return fmt.Errorf("%s: Close during Load", q.name)
	}
	first := !q.closed
	q.closed = true
	q.mu.Unlock()
	q.closing.Lock()
	defer q.closing.Unlock()
	if !first {
		return nil
	}
	for _, s := range q.all() {
		s.mu.Lock()
		s.cancel()
		s.mu.Unlock()
	}
	return q.unload()
}

// unload ends the executor and frees everything that the backend has allocated.
func (q *Queue[S]) unload() error {
	q.mu.Lock()
	q.ending = true
	q.work.Broadcast()
	q.mu.Unlock()
	q.executor.Wait()
	q.life.Lock()
	defer q.life.Unlock()
	var left []S
	for _, s := range q.all() {
		s.mu.Lock()
		if !s.freed {
			left = append(left, s.job.Session)
		}
		s.closed, s.freed = true, true
		s.mu.Unlock()
	}
	err := q.backend.Unload(left)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.loaded, q.ending = false, false
	q.memory = replay.Memory{}
	return err
}

// join joins two errors. If only one is not nil it returns that one itself.
func join(err, other error) error {
	switch {
	case other == nil:
		return err
	case err == nil:
		return other
	}
	return errors.Join(err, other)
}
