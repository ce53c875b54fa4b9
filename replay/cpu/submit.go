package cpu

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
			return 0, &RunError{Run: i, What: err.Error()}
		}
	}
	if err := d.table.CheckTimings(sub); err != nil {
		return 0, fmt.Errorf("cpu: %w", err)
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
	// The queue is the last step: a submission that a closed device refuses
	// has changed nothing that counts.
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return 0, err
	}
	j.submission, j.next, j.result, j.err = sub, nil, table.Result{}, nil
	j.cancelled.Store(false)
	var step table.Step
	if len(sub.Runs) > 0 {
		step = sub.Runs[0].Step
	}
	step.Count = 0
	*s.step = step
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

// nextJob waits for a job. It returns nil if the device closes; jobs that
// are queued then are finished without having run.
func (d *Device) nextJob() *job {
	for {
		d.mu.Lock()
		for d.first == nil && !d.closed {
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
		if err == nil && !j.ends() {
			return j
		}
		step := j.session.step
		j.finish(table.Result{Stopped: step.Stop != 0}, err)
	}
}

// lookup returns the session of a ticket.
func (d *Device) lookup(t table.Ticket) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sessions[table.SessionID(t>>32)]
}

// Cancel makes what is left of a submission do nothing.
func (d *Device) Cancel(t table.Ticket) {
	s := d.lookup(t)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ticket() == t {
		s.job.cancelled.Store(true)
	}
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
