package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/pianola-engine/pianola/replay/cuda/driver"
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
	started    bool // the step block is on its way; session.mu guards it

	result table.Result
	err    error
}

// finish hands the result to whoever waits.
func (j *job) finish(r table.Result, err error) {
	s := j.session
	s.mu.Lock()
	defer s.mu.Unlock()
	j.result, j.err, j.submission, j.started = r, err, nil, false
	s.state = done
	s.changed.Broadcast()
}

// arguments are the parameters of a kernel as its PTX entry has them.
type arguments struct {
	bindings [decl.MaxBindings]driver.Ptr
	params   [decl.ParamBytes]byte
	second   driver.Ptr
	step     driver.Ptr
	specs    [decl.MaxSpecs]uint32
}

// argumentsSize is what the kernels' parameters take.
const argumentsSize = 176

// bytes returns the arguments as the driver reads them.
func (a *arguments) bytes() []byte {
	return (*[argumentsSize]byte)(unsafe.Pointer(a))[:]
}

var _ [argumentsSize]byte = [unsafe.Sizeof(arguments{})]byte{}

// session is the slots of session scope and the launches bound to them.
type session struct {
	d    *Device
	id   table.SessionID
	own  owned
	mem  []driver.Ptr // by slot
	step driver.Ptr
	size uint64

	args     []arguments     // by command
	launches []driver.Launch // by command
	graphs   [][]graph       // of mode record, by program, the longest first
	walks    []*walk         // of mode resident, by program

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

// free frees the session's memory. The context must be current.
func (s *session) free() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.own.free()
}

// gone reports whether the session's memory is freed.
func (s *session) gone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
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
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave(&err)
	s := &session{d: d, own: owned{drv: d.drv}}
	s.changed.L, s.job.session = &s.mu, s
	if err := d.fill(s); err != nil {
		return 0, errors.Join(err, s.free())
	}
	if err := d.register(s); err != nil {
		return 0, errors.Join(err, s.free())
	}
	return s.id, nil
}

// fill gives a session its memory, its launches and what its mode needs.
func (d *Device) fill(s *session) error {
	t := d.table
	s.mem = append([]driver.Ptr{}, d.model...)
	var err error
	if s.size, err = d.slots(&s.own, t, table.ScopeSession, s.mem); err != nil {
		return err
	}
	_, step, _ := t.Slot(table.SlotStep) // Load made sure that there is one
	s.step = s.mem[step]
	s.args = make([]arguments, len(t.Cmds))
	s.launches = make([]driver.Launch, len(t.Cmds))
	if err := eachCmd(t, func(i int, _ *table.Program, c *table.Cmd) error {
		k, a := &d.kernels[i], &s.args[i]
		for b, bind := range c.Bind {
			if b < int(c.Bindings) && bind.Slot != table.NoSlot {
				a.bindings[b] = s.mem[bind.Slot] + driver.Ptr(bind.Offset)
			}
		}
		a.params, a.specs, a.step = c.Param, k.specs, s.step
		a.second = d.seconds + driver.Ptr(decl.SecondBytes*i)
		s.launches[i].Init(k.f, k.grid, k.block, k.shared, d.exec.stream, a.bytes())
		return nil
	}); err != nil {
		return err
	}
	return d.mode.prepare(d, s)
}

// register gives a session its number.
func (d *Device) register(s *session) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return err
	}
	if d.lastID++; d.lastID == 0 {
		return errors.New("cuda: the numbers of sessions are used up")
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
func (d *Device) CloseSession(id table.SessionID) (err error) {
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
	if s.gone() { // with the device, or by another call
		return nil
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave(&err)
	d.mu.Lock()
	delete(d.sessions, id)
	d.mu.Unlock()
	return s.free()
}

// Write copies p to a slot of session scope.
func (d *Device) Write(id table.SessionID, slot uint32, offset uint64, p []byte) error {
	return d.move(id, slot, offset, p, true)
}

// Read copies from a slot of session scope to p.
func (d *Device) Read(id table.SessionID, slot uint32, offset uint64, p []byte) error {
	return d.move(id, slot, offset, p, false)
}

// move copies p to or from a slot, while the session is idle, and waits for it.
func (d *Device) move(id table.SessionID, slot uint32, offset uint64, p []byte, write bool) (err error) {
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
		return fmt.Errorf("cuda: slot %d of %d", slot, len(t.Slots))
	}
	sl := &t.Slots[slot]
	switch {
	case sl.Scope != table.ScopeSession:
		return fmt.Errorf("cuda: slot %s is not one of a session", sl.Name)
	case offset > sl.Size || uint64(len(p)) > sl.Size-offset:
		return fmt.Errorf("cuda: slot %s: offset %d + %d bytes is past its %d", sl.Name, offset, len(p), sl.Size)
	case len(p) == 0:
		return nil
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave(&err)
	at := s.mem[slot] + driver.Ptr(offset)
	if write {
		err = d.send(at, p)
	} else if err = d.drv.MemcpyDtoHAsync(p, at, d.transfer); err == nil {
		err = d.drv.StreamSynchronize(d.transfer)
	}
	if err != nil {
		return fmt.Errorf("cuda: slot %s: %w", sl.Name, err)
	}
	return nil
}
