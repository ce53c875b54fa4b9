package table

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/sequence"
)

// KVCache is the layout of one layer's K or V in its slot. The slot holds one or two planes of
// [Heads, Rows] rows. The first plane has the elements, the second the scales of a quantized
// cache. Row p of every head and plane holds position p if p < First. Later positions share the
// other rows as a ring: position p is in row First + (p - First) mod (Rows - First).
type KVCache struct {
	Slot   uint32
	Heads  uint32
	Rows   uint32
	First  uint32    // rows reserved for the first positions (attention sinks); less than Rows
	Planes [2]uint64 // bytes of one head's row in each plane: its elements, and its scales (0 without a second plane)
}

// RowSize returns the bytes of one head's row in all planes.
func (c *KVCache) RowSize() uint64 { return c.Planes[0] + c.Planes[1] }

// Size returns the size of the cache in bytes.
func (c *KVCache) Size() uint64 { return uint64(c.Heads) * uint64(c.Rows) * c.RowSize() }

// Within returns the layout of the cache in a session with the given capacity in positions. The
// cache has fewer rows than the table's cache if the capacity is below the table's context.
func (c KVCache) Within(positions int) KVCache {
	c.Rows = min(c.Rows, uint32(max(positions, int(c.First)+1)))
	return c
}

// Parts returns the number of parts of the slot. A part is the rows of one head in one plane; the
// parts follow each other.
func (c *KVCache) Parts() uint32 {
	if c.Planes[1] == 0 {
		return c.Heads
	}
	return 2 * c.Heads
}

// Span returns the byte range in the slot of rows [from, to) of a part.
func (c *KVCache) Span(part, from, to uint32) (offset, size uint64) {
	rows, row := uint64(c.Rows), c.Planes[0]
	if part >= c.Heads {
		offset, part, row = uint64(c.Heads)*rows*row, part-c.Heads, c.Planes[1]
	}
	return offset + (uint64(part)*rows+uint64(from))*row, uint64(to-from) * row
}

// Part returns the part and the row that contain a byte of the slot, and the byte's offset in
// that row.
func (c *KVCache) Part(offset uint64) (part, row uint32, at uint64) {
	size := c.Planes[0]
	if plane := uint64(c.Heads) * uint64(c.Rows) * size; offset >= plane {
		offset, part, size = offset-plane, c.Heads, c.Planes[1]
	}
	n := offset / size
	return part + uint32(n/uint64(c.Rows)), uint32(n % uint64(c.Rows)), offset % size
}

// Used returns the number of rows, counted from the first, that are in use once the given number of
// positions has been written.
func (c *KVCache) Used(positions int) uint32 { return min(c.Rows, uint32(max(positions, 0))) }

// KVCaches returns the layout of the caches in the order of their slots. It returns nil if the
// caches cannot be allocated with fewer rows than the table's, because the commands that bind a
// slot do not agree on its layout, or because the table is pooled; then a session always allocates
// them whole.
func (t *Table) KVCaches() []KVCache {
	if _, pooled := sequence.Of(t.Header.Options, int(t.Header.Context)); pooled {
		return nil
	}
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
		case caches[i].Heads == 0: // no command binds it
			return nil
		default:
			all = append(all, caches[i])
		}
	}
	return all
}

// cacheOf returns the layout of the caches that a command binds.
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

// CapacityParam returns the offset in Param of the number of rows of the caches that the command
// binds.
func (c *Cmd) CapacityParam() (offset int, ok bool) {
	k, known := decl.Lookup(c.Kernel)
	if !known {
		return 0, false
	}
	offset, _, ok = k.Param("cap")
	return offset, ok
}

// KVSlack returns how many of the last positions a session can always take back (rewind): the
// rows that the smallest ring has in addition to its attention window. It is the context if no
// cache is a ring.
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
