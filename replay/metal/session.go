package metal

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// job is a session's submission.
type job = device.Job[*session]

// progress is the progress of a session's job.
type progress struct {
	cut atomic.Bool // stopped or failed: no more of it is encoded

	// Guarded by the executor's mu.
	flying  int  // command buffers in flight
	encoded bool // everything is encoded
	result  replay.Result
	stop    uint32
	took    float64 // seconds on the GPU
	start   time.Time
	err     error
}

// session holds the slots of session scope and the commands bound to them.
type session struct {
	own  owned
	mem  []place // place of each slot
	step place

	cmds   []driver.Command // commands of the table
	blocks []driver.Buffer  // buffers of the fixed slots
	grown

	progress progress
}

// grown holds the parts of a session that Grow allocates again.
type grown struct {
	room int    // positions that the caches have rows for
	kv   owned  // buffers of the caches
	size uint64 // their size

	// Of mode record.
	binding uint64 // number of the places that the commands are bound to, which no other session has
	written [flights][]driver.Object
}

// free releases everything that a session owns.
func (s *session) free() {
	s.kv.free()
	s.own.free()
}

// backend implements device.Backend.
type backend struct{ *Device }

// Open allocates the slots of session scope.
func (d backend) Open() (s *session, size uint64, err error) {
	s = &session{own: owned{drv: d.drv}}
	size, err = d.fill(s)
	d.sessions.Add(1)
	return s, size, err
}

// Free frees a session.
func (d backend) Free(s *session) error {
	s.free()
	d.sessions.Add(-1)
	return nil
}

// Send and Fetch copy on the host, since it shares the memory and nothing is in flight.
func (d backend) Send(s *session, moves []replay.Move, writes []replay.Transfer) error {
	for i := range moves {
		m := &moves[i]
		copy(s.mem[m.Slot].mem[m.To:][:m.Size], s.mem[m.Slot].mem[m.From:])
	}
	return d.each(s, writes, func(mem, p []byte) { copy(mem, p) })
}

func (d backend) Fetch(s *session, reads []replay.Transfer) error {
	return d.each(s, reads, func(mem, p []byte) { copy(p, mem) })
}

// each calls f with the memory and the bytes of each part of transfers.
func (d *Device) each(s *session, list []replay.Transfer, f func(mem, p []byte)) error {
	for i := range list {
		t := &list[i]
		err := d.caches.Parts(t.Slot, s.room, t.Offset, len(t.Bytes), func(part device.Part) error {
			f(s.mem[t.Slot].mem[part.Offset:], t.Bytes[part.From:part.To])
			return nil
		})
		if err != nil {
			return fmt.Errorf("metal: %w", err)
		}
	}
	return nil
}

// fill allocates a session's fixed slots, prepares its commands and returns the size of the
// slots. Nothing is encoded while the caches have no rows.
func (d *Device) fill(s *session) (size uint64, err error) {
	t := d.table
	s.mem = append([]place{}, d.model...)
	if s.blocks, size, err = d.slots(&s.own, t, table.ScopeSession, s.mem); err != nil {
		return 0, err
	}
	_, step, _ := t.Slot(table.SlotStep) // Load has checked that the table has one
	s.step = s.mem[step]
	if s.cmds, err = array[driver.Command](&s.own, len(t.Cmds)); err != nil {
		return 0, err
	}
	for i := range t.Cmds {
		d.command(s, &s.cmds[i], i)
	}
	return size, nil
}

// command binds a command of the table to a session.
func (d *Device) command(s *session, to *driver.Command, i int) {
	c, k := &d.table.Cmds[i], &d.kernels[i]
	*to = driver.Command{
		Pipeline: k.pipeline.Handle, Params: k.params, SecondAt: uint64(i) * decl.SecondBytes, Label: k.label,
		Groups: c.Grid, Threads: c.Threadgroup, ThreadgroupMemory: k.memory, Barrier: c.Barrier,
		Patch: uint8(c.Patch.Kind()), PatchOffset: c.PatchOffset[0],
	}
	if k.sized != nil && s.room > 0 {
		to.Params, to.Sized = k.sized[slices.Index(d.caches.Capacities(), s.room)], 1
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
			if d.table.Slots[bind.Slot].Scope == table.ScopeSession {
				to.Own |= 1 << b
			}
		}
	}
}
