package metal

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/replay/metal/driver"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/table/decl"
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
	cut        atomic.Bool // stopped, or failed: no more of it is encoded

	// Guarded by the executor's mu.
	flying  int  // command buffers
	encoded bool // all that will be
	count   int
	stop    uint32
	took    float64 // seconds on the GPU
	start   time.Time
	err     error

	result table.Result
}

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
	own  owned
	mem  []place // by slot
	step place
	size uint64

	cmds []driver.Command // by command of the table; of mode record, then the patches
	// Of mode record.
	recordings [flights]driver.Recording
	patches    []uint32 // by program, the first of its patches
	written    [flights][]driver.Object
	read       []driver.Object

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

// free frees the session's memory.
func (s *session) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.own.free()
	}
}

// NewSession allocates the slots of session scope, zeroed.
func (d *Device) NewSession() (id table.SessionID, err error) {
	d.life.RLock()
	defer d.life.RUnlock()
	d.mu.Lock()
	err = d.usable()
	d.mu.Unlock()
	if err != nil {
		return 0, err
	}
	s := &session{own: owned{drv: d.drv}}
	s.changed.L, s.job.session = &s.mu, s
	if err = d.fill(s); err == nil {
		err = d.register(s)
	}
	if err != nil {
		s.free()
		return 0, err
	}
	return s.id, nil
}

// fill gives a session its memory, its commands and what its mode needs.
func (d *Device) fill(s *session) error {
	t := d.table
	s.mem = append([]place{}, d.model...)
	blocks, size, err := d.slots(&s.own, t, table.ScopeSession, s.mem)
	if err != nil {
		return err
	}
	s.size = size
	_, step, _ := t.Slot(table.SlotStep) // Load made sure that there is one
	s.step = s.mem[step]
	if s.cmds, err = array[driver.Command](&s.own, len(t.Cmds)+d.patchCount()); err != nil {
		return err
	}
	for i := range t.Cmds {
		d.command(s, &s.cmds[i], i)
	}
	if d.o.Mode == modeRecord {
		return d.record(s, blocks)
	}
	return nil
}

// command binds a command of the table to a session.
func (d *Device) command(s *session, to *driver.Command, i int) {
	c, k := &d.table.Cmds[i], &d.kernels[i]
	*to = driver.Command{
		Pipeline: k.pipeline.Handle, Params: k.params, SecondAt: uint64(i) * decl.SecondBytes, Label: k.label,
		Groups: c.Grid, Threads: c.Threadgroup, ThreadgroupMemory: k.memory, Barrier: c.Barrier,
		Patch: uint8(c.Patch.Kind()), PatchOffset: c.PatchOffset,
	}
	if c.Patch&table.PatchRows != 0 {
		to.Rows = 1
	}
	for w := range to.Second {
		to.Second[w] = table.Field(&c.Second, 4*w)
	}
	for b, bind := range c.Bind {
		if b < int(c.Bindings) && bind.Slot != table.NoSlot {
			p := &s.mem[bind.Slot]
			to.Buffers[b], to.Offsets[b] = p.buffer, p.offset+bind.Offset
		}
	}
}

// register gives a session its number.
func (d *Device) register(s *session) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return err
	}
	if d.lastID++; d.lastID == 0 {
		return errors.New("metal: the numbers of sessions are used up")
	}
	s.id = d.lastID
	d.sessions[s.id] = s
	return nil
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
	d.life.RLock()
	defer d.life.RUnlock()
	d.mu.Lock()
	delete(d.sessions, id)
	d.mu.Unlock()
	s.free()
	return nil
}

// Write copies p to a slot of session scope.
func (d *Device) Write(id table.SessionID, slot uint32, offset uint64, p []byte) error {
	return d.move(id, slot, offset, p, true)
}

// Read copies from a slot of session scope to p.
func (d *Device) Read(id table.SessionID, slot uint32, offset uint64, p []byte) error {
	return d.move(id, slot, offset, p, false)
}

// move copies p to or from a slot, which the host shares, while the session is
// idle.
func (d *Device) move(id table.SessionID, slot uint32, offset uint64, p []byte, write bool) error {
	d.life.RLock()
	defer d.life.RUnlock()
	s, err := d.session(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := d.table
	switch {
	case s.closed:
		return ErrSession
	case s.state != idle:
		return ErrBusy
	case uint64(slot) >= uint64(len(t.Slots)):
		return fmt.Errorf("metal: slot %d of %d", slot, len(t.Slots))
	}
	sl := &t.Slots[slot]
	switch {
	case sl.Scope != table.ScopeSession:
		return fmt.Errorf("metal: slot %s is not one of a session", sl.Name)
	case offset > sl.Size || uint64(len(p)) > sl.Size-offset:
		return fmt.Errorf("metal: slot %s: offset %d + %d bytes is past its %d", sl.Name, offset, len(p), sl.Size)
	}
	d.mu.Lock()
	err = d.usable()
	d.mu.Unlock()
	if err != nil {
		return err
	}
	mem := s.mem[slot].mem[offset:]
	if write {
		copy(mem, p)
	} else {
		copy(p, mem)
	}
	return nil
}
