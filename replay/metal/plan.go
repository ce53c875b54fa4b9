package metal

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Plan predicts the memory of a table: after Load, and for each session with room for the given
// number of positions. It does not count the parameters of commands and the recordings.
func (d *Device) Plan(t *table.Table, where func(tensor string) (offset uint64, ok bool), positions int) (loaded, session replay.Memory, err error) {
	limit, caches := min(d.properties.MaxBuffer, largestBuffer), device.NewCaches(t)
	mapped := d.mapped(t, where, limit)
	var sizes [3]uint64 // by scope
	for i := range t.Slots {
		s := &t.Slots[i]
		if caches.Has(i) || mapped[i] > 0 {
			continue
		}
		n, err := room(t, part{i, s.Size}, limit)
		if err != nil {
			return loaded, session, fmt.Errorf("metal: slots of the %v: %w", s.Scope, err)
		}
		sizes[s.Scope] += n
	}
	kv := uint64(0)
	caches.Each(caches.Capacity(positions), func(own table.KVCache) {
		n, e := room(t, part{int(own.Slot), own.Size()}, limit)
		if kv += n; e != nil && err == nil {
			err = fmt.Errorf("metal: KV caches for %d positions: %w", positions, e)
		}
	})
	m := replay.Memory{Weights: sizes[table.ScopeModel], Executor: sizes[table.ScopeExecutor]}
	for _, n := range mapped {
		m.Mapped += n
	}
	loaded, session = device.Planned(t, m, sizes[table.ScopeSession], kv)
	return loaded, session, err
}

// mapped returns, for each slot, the bytes of weights that are used in their mapped files.
func (d *Device) mapped(t *table.Table, where func(tensor string) (offset uint64, ok bool), limit uint64) []uint64 {
	bytes := make([]uint64, len(t.Slots))
	page, unit := uint64(d.properties.Page), uint64(max(1, d.o.Kernels.BindingAlign))
	if page == 0 {
		return bytes
	}
	for i, stays := range t.InPlace() {
		up := &t.Uploads[i]
		offset, ok := where(up.Tensor)
		first := offset + up.SrcOffset
		if !stays || !ok || first%unit != 0 {
			continue
		}
		if _, at := windows([]span{{first, first + up.SrcSize}}, page, limit); at[0] >= 0 {
			bytes[up.Slot] = up.SrcSize
		}
	}
	return bytes
}
