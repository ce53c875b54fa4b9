package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/table"
)

// job is a session's submission.
type job = device.Job[*session]

// arguments are the parameters of a kernel in the layout of its PTX entry.
type arguments struct {
	bindings [decl.MaxBindings]driver.Ptr
	params   [decl.ParamBytes]byte
	second   driver.Ptr
	step     driver.Ptr
	specs    [decl.MaxSpecs]uint32
}

// argumentsSize is the size of a kernel's parameters in bytes.
const argumentsSize = 176

// bytes returns the arguments in the form that the driver reads.
func (a *arguments) bytes() []byte {
	return (*[argumentsSize]byte)(unsafe.Pointer(a))[:]
}

var _ [argumentsSize]byte = [unsafe.Sizeof(arguments{})]byte{}

// session holds the slots of session scope and the launches bound to them.
type session struct {
	own   owned
	mem   []driver.Ptr // address of each slot
	step  driver.Ptr
	brief bool // the session replays single tokens: it gets no graphs of several tokens

	args     []arguments     // arguments of each command
	launches []driver.Launch // launch of each command

	raise func() // writes the stop flag while the session's job runs
	stage *stage // of a pooled table
	grown
}

// grown holds the parts of a session that Grow allocates again.
type grown struct {
	room   int       // positions that the caches have rows for
	kv     owned     // memory of the caches
	size   uint64    // size of kv
	made   owned     // allocations of the mode
	arrays uint64    // size of made in bytes
	graphs [][]graph // of mode record: graphs of each program, the longest first
	walks  []*walk   // of mode resident: command array of each program
}

// backend implements device.Backend.
type backend struct{ *Device }

// Open allocates the slots of session scope.
func (d backend) Open() (s *session, size uint64, err error) {
	s = &session{own: owned{drv: d.drv}, brief: d.warming.Load()}
	// If raise fails, the executor still stops at the next token, and its own calls return the
	// error.
	s.raise = func() { _ = d.raise(s) }
	if err := d.enter(); err != nil {
		return s, 0, err
	}
	defer d.leave(&err)
	size, err = d.fill(s)
	return s, size, err
}

// fill allocates a session's fixed slots, prepares its launches and returns the size of the
// slots. Nothing is launched while the caches have no rows.
func (d *Device) fill(s *session) (size uint64, err error) {
	t := d.table
	s.mem = append([]driver.Ptr{}, d.model...)
	if size, err = d.slots(&s.own, t, table.ScopeSession, s.mem); err != nil {
		return 0, err
	}
	if s.stage, err = d.newStage(&s.own); err != nil {
		return 0, err
	}
	_, step, _ := t.Slot(table.SlotStep) // Load has checked that there is one
	s.step = s.mem[step]
	s.args = make([]arguments, len(t.Cmds))
	s.launches = make([]driver.Launch, len(t.Cmds))
	err = device.EachCmd(name, t, func(i int, _ *table.Program, _ *table.Cmd) error {
		k, a := &d.kernels[i], &s.args[i]
		d.bind(s, i)
		a.specs, a.step = k.specs, s.step
		a.second = d.secondary + driver.Ptr(decl.SecondBytes*i)
		s.launches[i].Init(k.f, k.grid, k.block, k.shared, d.exec.stream, a.bytes())
		if k.cluster > 1 {
			s.launches[i].Cluster(k.cluster)
		}
		return nil
	})
	if err == nil {
		err = d.mapMatrices(s)
	}
	return size, err
}

// bind sets a command's bindings and parameters for the current addresses of the slots.
func (d *Device) bind(s *session, cmd int) {
	c, a := &d.table.Cmds[cmd], &s.args[cmd]
	for b, bind := range c.Bind {
		if b < int(c.Bindings) && bind.Slot != table.NoSlot {
			a.bindings[b] = s.mem[bind.Slot] + driver.Ptr(bind.Offset)
		}
	}
	a.params = d.caches.Params(cmd, s.room)
}

// Free frees a session.
func (d backend) Free(s *session) (err error) {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave(&err)
	return s.free()
}

// free frees everything that a session owns.
func (s *session) free() error {
	err := s.stage.settle()
	switch {
	case errors.Is(err, ErrDeviceLost): // nothing is in use any more
		err = nil
	case err != nil:
		err = fmt.Errorf("cuda: %w", err)
	}
	return errors.Join(err, s.made.free(), s.kv.free(), s.own.free())
}

// raise writes the stop flag of a session whose job runs, from another stream, after the copy
// that began the submission. It waits for the write, so that the flag cannot reach the next
// submission.
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
