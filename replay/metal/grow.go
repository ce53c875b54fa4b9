package metal

import (
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/table"
)

// Grow gives a session larger caches.
func (d backend) Grow(s *session, positions int) (device.Room, error) {
	return d.resize(s, positions, s.room)
}

// Shrink gives a session smaller caches.
func (d backend) Shrink(s *session, positions int) (device.Room, error) {
	return d.resize(s, positions, positions)
}

// Room returns the caches that Grow and Shrink allocate.
func (d backend) Room(positions int) device.Room { return d.caches.Room(positions, align) }

// resize gives a session other caches, copies the rows of the positions to keep, and binds its
// commands again.
func (d backend) resize(s *session, positions, keep int) (room device.Room, err error) {
	old, mem := s.grown, slices.Clone(s.mem)
	s.grown = grown{room: d.caches.Capacity(positions), kv: owned{drv: d.drv}, binding: d.bindings.Add(1)}
	blocks, err := d.moveCaches(s, mem, old.room, keep)
	if err == nil {
		d.bindCaches(s)
		if d.o.Mode == modeRecord {
			err = d.list(s, append(blocks, s.blocks...))
			if err == nil && old.room == 0 && d.sessions.Load() == 1 {
				err = d.exec.prepare(s)
			}
		}
	}
	if err != nil {
		s.kv.free()
		s.grown, s.mem = old, mem
		d.bindCaches(s)
		return room, err
	}
	old.kv.free()
	return device.Room{Positions: s.room, Bytes: s.size, Most: s.size + old.size}, nil
}

// bindCaches binds the commands that use caches to the caches' current places.
func (d *Device) bindCaches(s *session) {
	for _, c := range d.caches.Cmds {
		d.command(s, &s.cmds[c], c)
	}
}

// moveCaches allocates a session's caches, copies the rows of the positions to keep and returns the
// buffers.
func (d *Device) moveCaches(s *session, old []place, room, keep int) (blocks []driver.Buffer, err error) {
	var parts []part
	d.caches.Each(s.room, func(own table.KVCache) {
		s.mem[own.Slot] = place{}
		parts = append(parts, part{int(own.Slot), own.Size()})
	})
	if blocks, s.size, err = d.fit(&s.kv, d.table, parts, s.mem); err != nil {
		return nil, fmt.Errorf("metal: KV caches for %d positions: %w", s.room, err)
	}
	if keep > 0 {
		err = d.moveRows(s.mem, old, s.room, room, keep)
	}
	return blocks, err
}

// moveRows copies the rows of the given number of positions between the caches of two sessions. The
// host copies, since it shares the memory.
func (d *Device) moveRows(to, from []place, toRoom, fromRoom, positions int) error {
	return d.caches.Move(toRoom, fromRoom, positions, func(r device.Rows) error {
		for i := range r.Parts {
			copy(to[r.Slot].mem[r.To+i*r.ToPitch:][:r.Size], from[r.Slot].mem[r.From+i*r.FromPitch:])
		}
		return nil
	})
}

// Copy copies the slots of a session; of caches it copies the rows in use.
func (d backend) Copy(to, from *session, positions int) error {
	for i := range d.table.Slots {
		if d.table.Slots[i].Scope == table.ScopeSession && !d.caches.Has(i) {
			copy(to.mem[i].mem, from.mem[i].mem)
		}
	}
	return d.moveRows(to.mem, from.mem, to.room, from.room, positions)
}
