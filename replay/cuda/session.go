package cuda

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
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

// session holds the slots of session scope.
type session struct {
	own   owned
	mem   []driver.Ptr // address of each slot; those of fixed slots change with the current session
	block driver.Ptr   // memory of the fixed slots while another session is the current one; 0: none
	brief bool         // the session replays single tokens: no graphs of several tokens are recorded for it

	raise func() // writes the stop flag while the session's job runs
	stage *stage // of a pooled table
	grown
}

// grown holds the parts of a session that Grow allocates again.
type grown struct {
	room int    // positions that the caches have rows for
	kv   owned  // memory of the caches
	size uint64 // size of kv
}

// backend implements device.Backend.
type backend struct{ *Device }

// Open allocates the slots of session scope.
func (d backend) Open() (s *session, size uint64, err error) {
	s = &session{own: owned{drv: d.drv}, brief: d.warming.Load()}
	// If raise fails, the executor still stops at the next token, and its own calls return the
	// error.
	s.raise = func() { _ = d.raise() }
	if err := d.enter(); err != nil {
		return s, 0, err
	}
	defer d.leave(&err)
	s.mem = slices.Clone(d.mem)
	if s.stage, err = d.newStage(&s.own); err != nil {
		return s, 0, err
	}
	// From here on the executor may exchange the session's slots for those of another.
	if err := d.begin(s); err != nil {
		return s, 0, err
	}
	return s, d.current.size, d.prepare(s)
}

// prepare prepares the programs that every session runs.
func (d *Device) prepare(s *session) error {
	for i := range d.table.Programs {
		if !s.brief && d.early(i) {
			if err := d.mode.ready(d, i, false); err != nil {
				return fmt.Errorf("cuda: %w", err)
			}
		}
	}
	return nil
}

// Free frees a session.
func (d backend) Free(s *session) (err error) {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave(&err)
	d.forget(s, true)
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
	return errors.Join(err, s.kv.free(), s.own.free())
}

// raise writes the stop flag of the job that runs, from another stream, after the copy
// that began the submission. It waits for the write, so that the flag cannot reach the next
// submission.
func (d *Device) raise() (err error) {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave(&err)
	if err := d.drv.StreamWaitEvent(d.cancels, d.exec.begin); err != nil {
		return err
	}
	if err := d.drv.MemcpyHtoDAsync(d.current.step+stepCancel, d.stop, d.cancels); err != nil {
		return err
	}
	return d.drv.StreamSynchronize(d.cancels)
}
