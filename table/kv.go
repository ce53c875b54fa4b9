package table

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
)

// KVCache says where the rows of one layer's K or V are in its slot, which is planes
// of [Heads, Rows] pieces of a row, one behind the other. Position p is in row p of
// every head and plane if p < First, and else in row First + (p - First) mod
// (Rows - First).
type KVCache struct {
	Slot   uint32
	Heads  uint32
	Rows   uint32
	First  uint32    // rows that the first positions have to themselves, fewer than Rows
	Planes [2]uint64 // bytes of one head's row: its elements; its scales, 0 where there are none
}

// RowSize returns the bytes of one head's row, of all planes.
func (c *KVCache) RowSize() uint64 { return c.Planes[0] + c.Planes[1] }

// Size returns the bytes of the cache.
func (c *KVCache) Size() uint64 { return uint64(c.Heads) * uint64(c.Rows) * c.RowSize() }

// Within returns the cache of a session that holds so many positions: fewer rows,
// where the table's are for more.
func (c KVCache) Within(positions int) KVCache {
	c.Rows = min(c.Rows, uint32(max(positions, int(c.First)+1)))
	return c
}

// Parts returns how many parts the slot has, which follow each other: one head's
// rows of one plane each.
func (c *KVCache) Parts() uint32 {
	if c.Planes[1] == 0 {
		return c.Heads
	}
	return 2 * c.Heads
}

// Span returns where the rows of a part from one to another, which it does not
// have, are: bytes of the slot.
func (c *KVCache) Span(part, from, to uint32) (offset, size uint64) {
	rows, row := uint64(c.Rows), c.Planes[0]
	if part >= c.Heads {
		offset, part, row = uint64(c.Heads)*rows*row, part-c.Heads, c.Planes[1]
	}
	return offset + (uint64(part)*rows+uint64(from))*row, uint64(to-from) * row
}

// Part returns which part a byte of the slot is in, and where: in which row, and
// how far from its start.
func (c *KVCache) Part(offset uint64) (part, row uint32, at uint64) {
	size := c.Planes[0]
	if plane := uint64(c.Heads) * uint64(c.Rows) * size; offset >= plane {
		offset, part, size = offset-plane, c.Heads, c.Planes[1]
	}
	n := offset / size
	return part + uint32(n/uint64(c.Rows)), uint32(n % uint64(c.Rows)), offset % size
}

// Used returns how many rows, from the first on, have been written when so many
// positions have.
func (c *KVCache) Used(positions int) uint32 { return min(c.Rows, uint32(max(positions, 0))) }

// KVCaches returns the caches in the order of their slots, if a session may have all
// of them with fewer rows: every command that binds one says the same of it. Otherwise
// it returns nil, and they are always there in whole.
func (t *Table) KVCaches() []KVCache {
	caches := make([]KVCache, len(t.Slots))
	for i := range t.Cmds {
		c := &t.Cmds[i]
		for b := range min(int(c.Bindings), len(c.Bind)) {
			bind := c.Bind[b]
			if uint64(bind.Slot) >= uint64(len(t.Slots)) || t.Slots[bind.Slot].Kind != SlotKV {
				continue
			}
			found, ok := t.cacheOf(c)
			found.Slot = bind.Slot
			known := &caches[bind.Slot]
			if !ok || bind.Offset != 0 || found.Size() != t.Slots[bind.Slot].Size || known.Heads != 0 && *known != found {
				return nil
			}
			*known = found
		}
	}
	var all []KVCache
	for i := range t.Slots {
		switch {
		case t.Slots[i].Kind != SlotKV:
		case caches[i].Heads == 0: // no command has it
			return nil
		default:
			all = append(all, caches[i])
		}
	}
	return all
}

// cacheOf returns the shape of the caches that a command binds.
func (t *Table) cacheOf(c *Cmd) (cache KVCache, ok bool) {
	k, known := decl.Lookup(c.Kernel)
	if !known || uint64(c.Spec) >= uint64(len(t.Specs)) {
		return cache, false
	}
	heads, _, hasHeads := k.Param("kv_heads")
	rows, _, hasRows := k.Param("cap")
	dim, hasDim := k.Spec("head_dim")
	kind, hasKind := k.Spec("kv")
	if !hasHeads || !hasRows || !hasDim || !hasKind {
		return cache, false
	}
	cache = KVCache{Heads: c.u32(heads), Rows: c.u32(rows)}
	if first, _, ok := k.Param("first"); ok {
		cache.First = c.u32(first)
	}
	values := &t.Specs[c.Spec].Values
	if values[kind] == decl.KVQ8 && values[dim]%decl.KVBlock != 0 {
		return cache, false
	}
	cache.Planes = decl.KVRowPlanes(values[kind], int(values[dim]))
	if cache.Heads == 0 || cache.Rows <= cache.First || cache.RowSize() == 0 || cache.Heads > math.MaxUint32/2 {
		return cache, false
	}
	n := uint64(cache.Heads) * uint64(cache.Rows)
	return cache, n <= maxSlot/cache.RowSize()
}

// CapacityParam returns where a command's parameters have the rows of the caches
// that it binds.
func (c *Cmd) CapacityParam() (offset int, ok bool) {
	k, known := decl.Lookup(c.Kernel)
	if !known {
		return 0, false
	}
	offset, _, ok = k.Param("cap")
	return offset, ok
}

// KVSlack returns how many positions can be taken back whatever has been written:
// the rows that the smallest rotating cache has beside what is seen. It is the
// context where no cache rotates.
func (t *Table) KVSlack() int {
	slack := t.Header.Context
	for i := range t.Cmds {
		c := &t.Cmds[i]
		k, ok := decl.Lookup(c.Kernel)
		if !ok {
			continue
		}
		rows, _, hasRows := k.Param("cap")
		window, _, hasWindow := k.Param("window")
		if !hasRows || !hasWindow || c.u32(rows) >= t.Header.Context {
			continue
		}
		seen := uint64(c.u32(window))
		if first, _, ok := k.Param("first"); ok {
			seen += uint64(c.u32(first))
		}
		slack = min(slack, c.u32(rows)-uint32(min(uint64(c.u32(rows)), seen)))
	}
	return int(slack)
}
