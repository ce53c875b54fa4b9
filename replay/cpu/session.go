package cpu

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/pianola-engine/pianola/table"
)

// state is where a session's submission is.
type state uint8

const (
	idle   state = iota
	queued       // or running
	done         // not waited for
)

// job is a session's submission. Each session has one, which is used again.
type job struct {
	session    *session
	submission *table.Submission
	next       *job // in the queue
	cancelled  atomic.Bool

	result table.Result
	err    error
}

// ends reports whether what is left of the job does nothing.
func (j *job) ends() bool { return j.cancelled.Load() || j.session.step.Stop != 0 }

// finish hands the result to whoever waits.
func (j *job) finish(r table.Result, err error) {
	s := j.session
	s.mu.Lock()
	defer s.mu.Unlock()
	j.result, j.err, j.submission = r, err, nil
	s.state = done
	s.changed.Broadcast()
}

// session is the slots of session scope and the commands bound to them.
type session struct {
	id   table.SessionID
	mem  [][]byte // by slot, nil for other scopes
	step *table.Step
	cmds []command
	size uint64

	mu      sync.Mutex // guards what follows, and memory against submissions
	changed sync.Cond
	state   state
	serial  uint32 // of the last ticket
	closed  bool
	job     job
}

// ticket names the session's last submission. s.mu must be held.
func (s *session) ticket() table.Ticket {
	return table.Ticket(uint64(s.id)<<32 | uint64(s.serial))
}

// free drops the session's memory.
func (s *session) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.mem, s.cmds = nil, nil
}

// NewSession allocates the slots of session scope, zeroed.
func (d *Device) NewSession() (table.SessionID, error) {
	d.mu.Lock()
	err := d.usable()
	d.mu.Unlock()
	if err != nil {
		return 0, err
	}
	s := &session{mem: make([][]byte, len(d.table.Slots))}
	s.changed.L, s.job.session = &s.mu, s
	for i := range d.table.Slots {
		slot := &d.table.Slots[i]
		if slot.Scope != table.ScopeSession {
			continue
		}
		if s.mem[i], err = allocate(slot.Size); err != nil {
			return 0, fmt.Errorf("cpu: slot %s: %w", slot.Name, err)
		}
		s.size += slot.Size
	}
	_, step, _ := d.table.Slot(table.SlotStep) // Load made sure that there is one
	s.step = stepOf(s.mem[step])
	mem := make([][]byte, len(s.mem))
	copy(mem, d.model)
	for i, b := range s.mem {
		if b != nil {
			mem[i] = b
		}
	}
	if s.cmds, err = bind(d.ops, d.table, mem, s.step, d.threads); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return 0, err
	}
	if d.lastID++; d.lastID == 0 {
		return 0, fmt.Errorf("cpu: the numbers of sessions are used up")
	}
	s.id = d.lastID
	d.sessions[s.id] = s
	return s.id, nil
}

// session returns an open session.
func (d *Device) session(id table.SessionID) (*session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sessions[id]
	switch {
	case d.closed:
		return nil, ErrClosed
	case s == nil:
		return nil, ErrSession
	}
	return s, nil
}

// CloseSession frees a session's slots, after its submission in flight.
func (d *Device) CloseSession(id table.SessionID) error {
	s, err := d.session(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	for s.state == queued {
		s.changed.Wait()
	}
	s.mu.Unlock()
	d.mu.Lock()
	delete(d.sessions, id)
	d.mu.Unlock()
	s.free()
	return nil
}

// Write copies p to a slot of session scope.
func (d *Device) Write(id table.SessionID, slot uint32, offset uint64, p []byte) error {
	return d.transfer(id, slot, offset, len(p), func(mem []byte) { copy(mem, p) })
}

// Read copies from a slot of session scope to p.
func (d *Device) Read(id table.SessionID, slot uint32, offset uint64, p []byte) error {
	return d.transfer(id, slot, offset, len(p), func(mem []byte) { copy(p, mem) })
}

// transfer calls f with n bytes of a slot, while the session is idle.
func (d *Device) transfer(id table.SessionID, slot uint32, offset uint64, n int, f func(mem []byte)) error {
	s, err := d.session(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrSession
	case s.state != idle:
		return ErrBusy
	case uint64(slot) >= uint64(len(s.mem)):
		return fmt.Errorf("cpu: slot %d of %d", slot, len(s.mem))
	case s.mem[slot] == nil:
		return fmt.Errorf("cpu: slot %s is not one of a session", d.table.Slots[slot].Name)
	case offset > uint64(len(s.mem[slot])) || uint64(n) > uint64(len(s.mem[slot]))-offset:
		return fmt.Errorf("cpu: slot %s: offset %d + %d bytes is past its %d", d.table.Slots[slot].Name, offset, n, len(s.mem[slot]))
	}
	f(s.mem[slot][offset:][:n])
	return nil
}
