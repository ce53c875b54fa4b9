package metal

import (
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/replay/device"
	"github.com/pianola-engine/pianola/replay/metal/driver"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/table/decl"
)

// job is a session's submission.
type job = device.Job[*session]

// progress is how far a session's job has come.
type progress struct {
	cut atomic.Bool // stopped, or failed: no more of it is encoded

	// Guarded by the executor's mu.
	flying  int  // command buffers
	encoded bool // all that will be
	count   int
	stop    uint32
	took    float64 // seconds on the GPU
	start   time.Time
	err     error
}

// session is the slots of session scope and the commands bound to them.
type session struct {
	own  owned
	mem  []place // by slot
	step place

	cmds []driver.Command // by command of the table; of mode record, then the patches
	// Of mode record.
	recordings [flights]driver.Recording
	patches    []uint32 // by program, the first of its patches
	written    [flights][]driver.Object
	read       []driver.Object

	progress progress
}

// backend is the device as package device calls it.
type backend struct{ *Device }

// Open allocates the slots of session scope.
func (d backend) Open() (s *session, size uint64, err error) {
	s = &session{own: owned{drv: d.drv}}
	size, err = d.fill(s)
	return s, size, err
}

// Free frees a session.
func (backend) Free(s *session) error {
	s.own.free()
	return nil
}

func (backend) Write(s *session, slot uint32, offset uint64, p []byte) error {
	copy(s.mem[slot].mem[offset:], p)
	return nil
}

func (backend) Read(s *session, slot uint32, offset uint64, p []byte) error {
	copy(p, s.mem[slot].mem[offset:])
	return nil
}

// fill gives a session its memory, its commands and what its mode needs, and
// returns what its slots take.
func (d *Device) fill(s *session) (size uint64, err error) {
	t := d.table
	s.mem = append([]place{}, d.model...)
	blocks, size, err := d.slots(&s.own, t, table.ScopeSession, s.mem)
	if err != nil {
		return 0, err
	}
	_, step, _ := t.Slot(table.SlotStep) // Load made sure that there is one
	s.step = s.mem[step]
	if s.cmds, err = array[driver.Command](&s.own, len(t.Cmds)+d.patchCount()); err != nil {
		return 0, err
	}
	for i := range t.Cmds {
		d.command(s, &s.cmds[i], i)
	}
	if d.o.Mode == modeRecord {
		return size, d.record(s, blocks)
	}
	return size, nil
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
