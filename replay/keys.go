package replay

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/kvrows"
)

// KV returns the content of a KV cache, which is a slot of kind table.SlotKV, as
// [heads][positions][head dim], for the positions of the context. The slice of a position is nil if
// later positions have overwritten its row. K has been rotated by RoPE.
func (s *Session) KV(slot uint32) ([][][]float32, error) {
	if err := s.single(noKV); err != nil {
		return nil, err
	}
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.done()
	if err := s.ready(); err != nil {
		return nil, err
	}
	for i := range s.m.caches {
		c := &s.m.caches[i]
		if c.Slot != slot {
			continue
		}
		dim, used := kvrows.Dim(c), int(c.Used(s.n))
		heads := make([][][]float32, c.Heads)
		for h := range heads {
			rows, err := kvrows.Head(c, h, used, func(offset uint64, p []byte) error { return s.m.dev.Read(s.id, slot, offset, p) })
			if err != nil {
				return nil, s.closedOr(fmt.Errorf("replay: slot %s: %w", s.m.t.Slots[slot].Name, err))
			}
			heads[h] = make([][]float32, s.n)
			for p := range heads[h] {
				if kvrows.Holds(c, p, s.high) {
					heads[h][p] = rows[kvrows.Row(c, p)*dim:][:dim:dim]
				}
			}
		}
		return heads, nil
	}
	return nil, fmt.Errorf("replay: slot %d is not a KV cache that can be divided into rows", slot)
}
