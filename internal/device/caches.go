package device

import (
	"encoding/binary"
	"fmt"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/table"
)

// Caches describes a table's KV caches for devices that start a session with caches of fewer rows
// than the table's and grow them. Everything that Validate has proved of the table holds for
// smaller caches too: extents are proportional to the rows, and a submission never reaches a
// position without a row.
type Caches struct {
	t      *table.Table
	caches []table.KVCache
	bySlot []int // index in caches; -1 for other slots
	Cmds   []int // commands with a parameter that holds the number of cache rows
}

// NewCaches returns the caches of a table.
func NewCaches(t *table.Table) *Caches {
	c := &Caches{t: t, caches: t.KVCaches(), bySlot: make([]int, len(t.Slots))}
	for i := range c.bySlot {
		c.bySlot[i] = -1
	}
	for i := range c.caches {
		c.bySlot[c.caches[i].Slot] = i
	}
	for i := range t.Cmds {
		if _, ok := t.Cmds[i].CapacityParam(); ok && len(c.caches) > 0 {
			c.Cmds = append(c.Cmds, i)
		}
	}
	return c
}

// Has reports whether a slot is one of the caches.
func (c *Caches) Has(slot int) bool { return c.bySlot[slot] >= 0 }

// leastCapacity is the smallest capacity of a session's caches, in positions.
const leastCapacity = 256

// Capacity returns the capacity of caches that must hold the given number of positions: the next
// power of two, at least leastCapacity and at most the context. Because the capacity doubles,
// growing copies fewer bytes in total than the session writes. It is the context if no cache grows.
func (c *Caches) Capacity(positions int) int {
	n := leastCapacity
	if len(c.caches) == 0 {
		return int(c.t.Header.Context)
	}
	for n < positions {
		n *= 2
	}
	return min(n, int(c.t.Header.Context))
}

// Capacities returns all values that Capacity may return, in ascending order.
func (c *Caches) Capacities() (all []int) {
	for n := 1; ; n = all[len(all)-1] + 1 {
		if all = append(all, c.Capacity(n)); all[len(all)-1] == int(c.t.Header.Context) {
			return all
		}
	}
}

// Each calls f with the layout of each cache of a session whose capacity is the given number of
// positions.
func (c *Caches) Each(positions int, f func(own table.KVCache)) {
	for i := range c.caches {
		f(c.caches[i].Within(positions))
	}
}

// Place lays out the caches of a session in one block of memory, with capacity for the given
// number of positions. It calls use with each cache's slot and its offset in the block, and
// returns the size of the block. Offsets are multiples of align, a power of two.
func (c *Caches) Place(positions int, align uint64, use func(slot int, at uint64)) (size uint64) {
	for i := range c.caches {
		own := c.caches[i].Within(positions)
		use(int(own.Slot), size)
		size += (own.Size() + align - 1) &^ (align - 1)
	}
	return size
}

// Room describes the caches of a session that must hold the given number of positions.
func (c *Caches) Room(positions int, align uint64) (room Room) {
	room.Positions = c.Capacity(positions)
	room.Bytes = c.Place(room.Positions, align, func(int, uint64) {})
	return room
}

// Params returns the parameters of a command for a session whose caches have capacity for the
// given number of positions.
func (c *Caches) Params(cmd, positions int) [decl.ParamBytes]byte {
	of := &c.t.Cmds[cmd]
	p := of.Param
	at, ok := of.CapacityParam()
	if !ok || len(c.caches) == 0 {
		return p
	}
	for _, b := range of.Bind[:of.Bindings] {
		if b.Slot != table.NoSlot && c.Has(int(b.Slot)) {
			own := c.caches[c.bySlot[b.Slot]].Within(positions)
			binary.LittleEndian.PutUint32(p[at:], own.Rows)
		}
	}
	return p
}

// Rows are byte ranges of the same size in the parts of a plane of a cache, as they are before and after the
// cache moves. Part i has the bytes from From + i*FromPitch on, which move to To + i*ToPitch.
type Rows struct {
	Slot               int
	Parts, Size        uint64
	From, To           uint64 // offsets in the slot
	FromPitch, ToPitch uint64
}

// Move calls f with the copies that preserve the rows of the first positions when caches of
// capacity from are replaced with caches of capacity to. Both capacities must hold the positions.
func (c *Caches) Move(to, from, positions int, f func(r Rows) error) error {
	for i := range c.caches {
		dst, src := c.caches[i].Within(to), c.caches[i].Within(from)
		used := c.caches[i].Used(positions)
		if used == 0 {
			continue
		}
		for part := uint32(0); part < dst.Parts(); part += dst.Heads {
			r := Rows{Slot: int(dst.Slot), Parts: uint64(dst.Heads)}
			r.To, r.Size = dst.Span(part, 0, used)
			r.From, _ = src.Span(part, 0, used)
			_, r.ToPitch = dst.Span(part, 0, dst.Rows)
			_, r.FromPitch = src.Span(part, 0, src.Rows)
			if err := f(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// Part is a contiguous byte range of a slot: its place in a session's own cache, and its place in
// the range that the caller asked for.
type Part struct {
	Offset   uint64
	From, To int
}

// Parts maps n bytes at an offset of the table's slot to the session's own cache, which has
// capacity for the given number of positions, and calls f with each contiguous part. It returns an
// error if the session's cache lacks one of the rows.
func (c *Caches) Parts(slot uint32, positions int, offset uint64, n int, f func(p Part) error) error {
	i := c.bySlot[slot]
	if i < 0 {
		return f(Part{offset, 0, n})
	}
	whole, own := &c.caches[i], c.caches[i].Within(positions)
	if positions == 0 {
		own.Rows = 0
	}
	for done := 0; done < n; {
		part, row, skip := whole.Part(offset + uint64(done))
		if row >= own.Rows {
			return fmt.Errorf("slot %s: row %d is out of range: the session's cache has %d rows", c.t.Slots[slot].Name, row, own.Rows)
		}
		at, size := own.Span(part, row, own.Rows)
		to := min(n, done+int(min(size-skip, uint64(n))))
		if err := f(Part{at + skip, done, to}); err != nil {
			return err
		}
		done = to
	}
	return nil
}
