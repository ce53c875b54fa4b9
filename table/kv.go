package table

import (
	"github.com/pianola-engine/pianola/table/decl"
)

// KVCache says where the rows of one layer's K or V are in its slot, which is
// [Heads, Rows, RowSize] bytes. Position p is in row p mod Rows of every head.
type KVCache struct {
	Slot    uint32
	Heads   uint32
	Rows    uint32
	RowSize uint64 // bytes of one head's row
}

// Size returns the bytes of the cache.
func (c *KVCache) Size() uint64 { return uint64(c.Heads) * uint64(c.Rows) * c.RowSize }

// Within returns the cache of a session that holds so many positions: fewer rows,
// where the table's are for more.
func (c KVCache) Within(positions int) KVCache {
	c.Rows = min(c.Rows, uint32(max(positions, 1)))
	return c
}

// Span returns where the rows from one to another, which it does not have, of a
// head are: bytes of the slot.
func (c *KVCache) Span(head, from, to uint32) (offset, size uint64) {
	return (uint64(head)*uint64(c.Rows) + uint64(from)) * c.RowSize, uint64(to-from) * c.RowSize
}

// Used returns how many rows, from the first on, have been written when so many
// positions have.
func (c *KVCache) Used(positions int) uint32 { return min(c.Rows, uint32(max(positions, 0))) }

// KVCaches returns the caches in the order of their slots, if a session may have all
// of them with fewer rows: they have float16, and every command that binds one says
// the same of it. Otherwise it returns nil, and they are always there in whole.
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
	if !hasHeads || !hasRows || !hasDim {
		return cache, false
	}
	cache = KVCache{Heads: c.u32(heads), Rows: c.u32(rows), RowSize: 2 * uint64(t.Specs[c.Spec].Values[dim])}
	if cache.Heads == 0 || cache.Rows == 0 || cache.RowSize == 0 {
		return cache, false
	}
	n := uint64(cache.Heads) * uint64(cache.Rows)
	return cache, n <= maxSlot/cache.RowSize
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
// the rows that the smallest rotating cache has beside its window. It is the
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
		if hasRows && hasWindow && c.u32(rows) < t.Header.Context {
			slack = min(slack, c.u32(rows)-min(c.u32(rows), c.u32(window)))
		}
	}
	return int(slack)
}
