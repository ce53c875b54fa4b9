package cuda

import (
	"fmt"

	"github.com/pianola-engine/pianola/table"
)

// Submit queues a submission.
func (d *Device) Submit(sub *table.Submission) (table.Ticket, error) {
	s, err := d.session(sub.Session)
	if err != nil {
		return 0, err
	}
	for i := range sub.Runs {
		if err := d.table.CheckRun(&sub.Runs[i]); err != nil {
			return 0, &RunError{Run: i, Program: d.programName(sub.Runs[i].Program), Err: err}
		}
	}
	if err := d.table.CheckTimings(sub); err != nil {
		return 0, fmt.Errorf("cuda: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return 0, ErrSession
	case s.state != idle:
		return 0, ErrBusy
	}
	j := &s.job
	// The queue is the last step: a submission that the device refuses has
	// changed nothing that counts.
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return 0, err
	}
	j.submission, j.next, j.result, j.err, j.started = sub, nil, table.Result{}, nil, false
	j.cancelled.Store(false)
	clear(sub.Timings)
	s.state = queued
	s.serial++
	if d.tail == nil {
		d.first = j
	} else {
		d.tail.next = j
	}
	d.tail = j
	d.work.Signal()
	return s.ticket(), nil
}

func (d *Device) programName(i uint32) string {
	if uint64(i) >= uint64(len(d.table.Programs)) {
		return ""
	}
	return d.table.Programs[i].Name
}

// nextJob waits for a job. It returns nil if the executor ends; jobs that are
// queued then are finished without having run.
func (d *Device) nextJob() *job {
	for {
		d.mu.Lock()
		for d.first == nil && !d.ending {
			d.work.Wait()
		}
		j := d.first
		if j == nil {
			d.mu.Unlock()
			return nil
		}
		if d.first = j.next; d.first == nil {
			d.tail = nil
		}
		j.next = nil
		err := d.usable()
		d.mu.Unlock()
		if err == nil && !j.cancelled.Load() {
			return j
		}
		j.finish(table.Result{}, err)
	}
}

// lookup returns the session of a ticket.
func (d *Device) lookup(t table.Ticket) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sessions[table.SessionID(t>>32)]
}

// Cancel makes what is left of a submission do nothing. Where it runs already,
// the step block's stop flag is written from another stream, behind the copy
// that began the submission; Cancel waits for that, so that the flag cannot
// reach the next one.
func (d *Device) Cancel(t table.Ticket) {
	d.life.RLock()
	defer d.life.RUnlock()
	s := d.lookup(t)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ticket() != t || s.state != queued {
		return
	}
	s.job.cancelled.Store(true)
	if s.job.started {
		// If it fails, the executor still stops at the next token, and its
		// own calls say why.
		_ = d.raise(s)
	}
}

// raise writes the stop flag of a session whose job runs.
func (d *Device) raise(s *session) (err error) {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave(&err)
	if err := d.drv.StreamWaitEvent(d.cancels, d.exec.begin); err != nil {
		return err
	}
	if err := d.drv.MemcpyHtoDAsync(s.step+stepCancel, d.stop, d.cancels); err != nil {
		return err
	}
	return d.drv.StreamSynchronize(d.cancels)
}

// Wait returns a submission's result when it has ended.
func (d *Device) Wait(t table.Ticket) (table.Result, error) {
	s := d.lookup(t)
	if s == nil {
		return table.Result{}, ErrTicket
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.ticket() == t && s.state == queued {
		s.changed.Wait()
	}
	if s.ticket() != t || s.state != done {
		return table.Result{}, ErrTicket
	}
	s.state = idle
	return s.job.result, s.job.err
}
