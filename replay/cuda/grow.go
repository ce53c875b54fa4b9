package cuda

import (
	"errors"
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/device"
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

// resize gives a session other caches and copies the rows of the positions to keep.
func (d backend) resize(s *session, positions, keep int) (room device.Room, err error) {
	if err := d.enter(); err != nil {
		return room, err
	}
	defer d.leave(&err)
	old, mem := s.grown, slices.Clone(s.mem)
	s.grown = grown{room: d.caches.Capacity(positions), kv: owned{drv: d.drv}}
	if err := d.moveCaches(s, mem, old.room, keep); err != nil {
		err = errors.Join(err, s.kv.free())
		s.grown = old
		d.caches.Place(old.room, align, func(slot int, _ uint64) { s.mem[slot] = mem[slot] })
		return room, err
	}
	d.forget(s, false)
	room = device.Room{Positions: s.room, Bytes: s.size, Most: s.size + old.size}
	return room, old.kv.free()
}

// moveCaches allocates a session's caches and copies the rows of the positions to keep.
func (d *Device) moveCaches(s *session, old []driver.Ptr, room, keep int) error {
	s.size = d.caches.Place(s.room, align, func(slot int, at uint64) { s.mem[slot] = driver.Ptr(at) })
	base, err := d.zeroed(&s.kv, s.size)
	if err != nil {
		return fmt.Errorf("cuda: KV caches for %d positions: %w", s.room, err)
	}
	d.caches.Place(s.room, align, func(slot int, at uint64) { s.mem[slot] = base + driver.Ptr(at) })
	if keep == 0 {
		return nil
	}
	return d.moveRows(s.mem, old, s.room, room, keep)
}

// moveRows copies the rows of the given number of positions between the caches of two sessions and
// waits.
func (d *Device) moveRows(to, from []driver.Ptr, toRoom, fromRoom, positions int) error {
	err := d.caches.Move(toRoom, fromRoom, positions, func(r device.Rows) error {
		return d.drv.MemcpyRowsAsync(&driver.Rows{
			To: to[r.Slot] + driver.Ptr(r.To), From: from[r.Slot] + driver.Ptr(r.From),
			ToPitch: r.ToPitch, FromPitch: r.FromPitch, Size: r.Size, Count: r.Parts,
		}, d.transfer)
	})
	if e := d.drv.StreamSynchronize(d.transfer); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("cuda: copying KV caches: %w", err)
	}
	return nil
}

// Copy copies the slots of a session; of caches it copies the rows in use.
func (d backend) Copy(to, from *session, positions int) (err error) {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave(&err)
	if err := d.copyFixed(to, from); err != nil {
		return err
	}
	return d.moveRows(to.mem, from.mem, to.room, from.room, positions)
}
