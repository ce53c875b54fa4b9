package metal

import (
	"github.com/pianola-engine/pianola/table"

	"github.com/pianola-engine/pianola/replay"
)

// ForTest changes settings that only tests have.
func (o Options) ForTest(tokens int, unchecked, cold bool) Options {
	o.tokens, o.unchecked, o.cold = tokens, unchecked, cold
	return o
}

// Table returns the table that is loaded.
func (d *Device) Table() *table.Table { return d.table }

// Scratch returns the bytes of executor scope, as the last submission left them.
func (d *Device) Scratch() (b []byte) {
	for i := range d.table.Slots {
		if d.table.Slots[i].Scope == table.ScopeExecutor {
			b = append(b, d.model[i].mem...)
		}
	}
	return b
}

// SlotBytes returns a session's memory of a slot, to use whatever is in flight
// then.
func (d *Device) SlotBytes(id replay.SessionID, slot uint32) (b []byte, err error) {
	err = d.queue.Hold(id, func(s *session) error {
		b = s.mem[slot].mem
		return nil
	})
	return b, err
}
