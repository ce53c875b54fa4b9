package cpu

import (
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Plan predicts the memory of a table: after Load, and for each session with room for the given
// number of positions. where returns the offset of a tensor in its file, which decides whether the
// tensor can be used in place.
func (d *Device) Plan(t *table.Table, where func(tensor string) (offset uint64, ok bool), positions int) (loaded, session replay.Memory, err error) {
	var m replay.Memory
	mapped := make([]bool, len(t.Slots))
	for i, stays := range t.InPlace() {
		up := &t.Uploads[i]
		at, ok := where(up.Tensor)
		if stays && ok && up.SrcSize > 0 && t.Slots[up.Slot].Kind == table.SlotWeight && (at+up.SrcOffset)%uint64(unitOf(up)) == 0 {
			mapped[up.Slot] = true
			m.Mapped += up.SrcSize
		}
	}
	size, err := teamSizeOf(t)
	if err != nil {
		return loaded, session, err
	}
	m.Executor = size.bytes(d.threads)
	caches, fixed := t.KVCaches(), uint64(0)
	for i := range t.Slots {
		switch s := &t.Slots[i]; s.Scope {
		case table.ScopeModel:
			if !mapped[i] {
				m.Weights += s.Size
			}
		case table.ScopeExecutor:
			m.Executor += s.Size
		case table.ScopeSession:
			fixed += s.Size
		}
	}
	for i := range caches {
		fixed -= caches[i].Size()
	}
	loaded, session = device.Planned(t, m, fixed, roomOf(t, caches, positions).Bytes)
	return loaded, session, nil
}
