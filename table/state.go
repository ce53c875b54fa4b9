package table

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/recurrent"
	"github.com/pianola-engine/pianola/internal/sequence"
)

// states checks how a command uses the slot with the states of its layer. The binding's extent covers
// all entries, so the command stays within the slot at every position.
func (v *validator) states(i int, c *Cmd, p *Program, env *Env) {
	slot := uint32(NoSlot)
	for b := range min(int(c.Bindings), len(env.k.Bindings)) {
		bind := c.Bind[b]
		if uint64(bind.Slot) >= uint64(len(v.t.Slots)) || v.t.Slots[bind.Slot].Kind != SlotState {
			continue
		}
		if env.k.Bindings[b].Name != decl.StateBinding || bind.Offset != 0 {
			v.add(i, "binding %s at offset %d of slot %s, which holds states", env.k.Bindings[b].Name, bind.Offset, v.t.Slots[bind.Slot].Name)
			continue
		}
		slot = bind.Slot
	}
	live, ok := env.Value("live")
	saved, okSaved := env.Value("saved")
	each, okEach := env.Value("each")
	if !ok || !okSaved || !okEach {
		return
	}
	ring, recurs := recurrent.Of(v.t.Header.Options)
	if pool, ok := sequence.Of(v.t.Header.Options, int(v.t.Header.Context)); ok { // its states are in pages
		ring, recurs = recurrent.Ring{Saved: pool.States}, pool.States > 0
	}
	switch {
	case slot == NoSlot:
		v.add(i, "its states are not in a slot of kind %s", SlotState)
	case !recurs || uint64(ring.Live) != live || uint64(ring.Saved) != saved:
		v.add(i, "it has %d live and %d saved states, and the table has %d and %d", live, saved, ring.Live, ring.Saved)
	case each == 0 && p.Flags.Has(FlagAdvances):
		v.add(i, "it does not store the state after each row, and its program may take back rows")
	case p.Flags.Has(FlagAdvances) && p.MaxRows >= uint32(ring.Live):
		v.add(i, "%d live states are not enough for a program that may take back some of %d rows", ring.Live, p.MaxRows)
	}
}
