package metal

import (
	"github.com/pianola-engine/pianola/table"

	"github.com/pianola-engine/pianola/replay"
)

// Flights is the number of command buffers in flight.
const Flights = flights

// ForTest sets options that only tests use.
func (o Options) ForTest(tokens int, unchecked, cold bool) Options {
	o.tokens, o.unchecked, o.cold = tokens, unchecked, cold
	return o
}

// Whole makes command buffers contain whole tokens and chunks, however long they take.
func (o Options) Whole() Options {
	o.whole = true
	return o
}

// Table returns the loaded table.
func (d *Device) Table() *table.Table { return d.table }

// Threads returns the number of threads of each command, and of its pipeline's largest threadgroup.
func (d *Device) Threads() (list [][2]int) {
	for i := range d.kernels {
		list = append(list, [2]int{d.kernels[i].threads, d.kernels[i].pipeline.MaxThreads})
	}
	return list
}

// Scratch returns the bytes of executor scope after the last submission.
func (d *Device) Scratch() (b []byte) {
	for i := range d.table.Slots {
		if d.table.Slots[i].Scope == table.ScopeExecutor {
			b = append(b, d.model[i].mem...)
		}
	}
	return b
}

// SlotBytes returns a session's memory of a slot, even while a submission is in flight.
func (d *Device) SlotBytes(id replay.SessionID, slot uint32) (b []byte, err error) {
	err = d.queue.Hold(id, func(s *session) error {
		b = s.mem[slot].mem
		return nil
	})
	return b, err
}
