package device

import (
	"encoding/binary"
	"fmt"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/table"
)

// Caches are a table's KV caches, for devices that give a session caches with fewer
// rows than the table's and larger ones as it grows. What Validate has proved of the
// table holds of such a session: extents are proportional to the rows, and no
// submission reaches a position that there is no row for.
type Caches struct {
	t      *table.Table
	caches []table.KVCache
	bySlot []int // index in caches, -1 for other slots
	Cmds   []int // that have the rows among their parameters
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

// Has reports whether a slot is one of them.
func (c *Caches) Has(slot int) bool { return c.bySlot[slot] >= 0 }

// leastCapacity is the positions of the smallest caches.
const leastCapacity = 256

// Capacity returns how many positions to have rows for where some are needed: a
// power of two, so that what is copied is at most what is written, within the
// context.
func (c *Caches) Capacity(positions int) int {
	n := leastCapacity
	for n < positions {
		n *= 2
	}
	return min(n, int(c.t.Header.Context))
}

// Capacities returns what Capacity may return, in order.
func (c *Caches) Capacities() (all []int) {
	for n := 1; ; n = all[len(all)-1] + 1 {
		if all = append(all, c.Capacity(n)); all[len(all)-1] == int(c.t.Header.Context) {
			return all
		}
	}
}

// Each calls f with each cache as a session for so many positions has it.
func (c *Caches) Each(positions int, f func(own table.KVCache)) {
	for i := range c.caches {
		f(c.caches[i].Within(positions))
	}
}

// Place gives each cache its offset in a block for so many positions, and returns
// the block's size. Offsets are multiples of align, a power of two.
func (c *Caches) Place(positions int, align uint64, use func(slot int, at uint64)) (size uint64) {
	for i := range c.caches {
		own := c.caches[i].Within(positions)
		use(int(own.Slot), size)
		size += (own.Size() + align - 1) &^ (align - 1)
	}
	return size
}

// Params returns the parameters of a command whose caches are for so many
// positions.
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

// Move calls f with what to copy from caches of one size to those of another, so
// that the rows of some positions, which both have, are kept.
func (c *Caches) Move(to, from, positions int, f func(slot int, dst, src, size uint64) error) error {
	for i := range c.caches {
		dst, src := c.caches[i].Within(to), c.caches[i].Within(from)
		used := c.caches[i].Used(positions)
		if used == 0 {
			continue
		}
		for part := range dst.Parts() {
			at, size := dst.Span(part, 0, used)
			old, _ := src.Span(part, 0, used)
			if err := f(int(dst.Slot), at, old, size); err != nil {
				return err
			}
		}
	}
	return nil
}

// Part is bytes of a slot: where they are in a session's own cache, and in what
// was asked for.
type Part struct {
	Offset   uint64
	From, To int
}

// Parts calls f with the parts that n bytes of a slot, at an offset of the table's,
// are in a session's with so many positions. Rows that it does not have are an error.
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
			return fmt.Errorf("slot %s: row %d of a cache with %d", c.t.Slots[slot].Name, row, own.Rows)
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
