package pianola

import (
	"fmt"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/table"
)

// Keys returns the K of a layer, counted from 0, for the positions of the context, as
// [heads][positions][head dim]. K is the content of the KV cache, after RoPE and rounded to the type
// of the cache. The slice of a position is nil if the cache of a sliding-window layer no longer has
// it. Layers that share one cache have the same K.
//
// The error reports a layer that has no KV cache, or is ErrBusy, ErrClosed or a *ParallelError.
func (s *Session) Keys(layer int) ([][][]float32, error) { return s.kv(layer, "k_cache") }

// Values is like Keys, but returns V.
func (s *Session) Values(layer int) ([][][]float32, error) { return s.kv(layer, "v_cache") }

// kv returns the content of the cache that the commands of a layer bind by a name.
func (s *Session) kv(layer int, binding string) ([][][]float32, error) {
	slot, ok := cacheSlot(s.m.t, layer, binding)
	if !ok {
		return nil, fmt.Errorf("pianola: layer %d has no KV cache: the model has %d layers", layer, s.m.h.cfg.Layers)
	}
	return s.s.KV(slot)
}

// cacheSlot returns the slot of a KV cache of a layer.
func cacheSlot(t *table.Table, layer int, binding string) (slot uint32, ok bool) {
	prefix := fmt.Sprintf("layer.%d.", layer)
	for i := range t.Cmds {
		k, known := decl.Lookup(t.Cmds[i].Kernel)
		if !known || !strings.HasPrefix(t.Label(i), prefix) {
			continue
		}
		for b := range k.Bindings {
			if slot := t.Cmds[i].Bind[b].Slot; k.Bindings[b].Name == binding && uint64(slot) < uint64(len(t.Slots)) && t.Slots[slot].Kind == table.SlotKV {
				return slot, true
			}
		}
	}
	return 0, false
}
