package cpu

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
)

// Taps reports that submissions may have a tap.
func (d *Device) Taps() bool { return true }

// show calls the tap. It returns a panic of the tap as an error, so that the device survives.
func (w *worker) show(j *job, tap *replay.Tap) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = device.NewCommandError(name, w.team.dev.table, w.at, &device.PanicError{Value: v})
		}
	}()
	step := w.step
	return tap.Show(w.at, &step, func(slot uint32, offset uint64, p []byte) error {
		if uint64(slot) >= uint64(len(j.Session.mem)) {
			return fmt.Errorf("cpu: slot %d: the table has %d slots", slot, len(j.Session.mem))
		}
		mem := j.Session.mem[slot]
		if mem == nil {
			mem = w.team.dev.model[slot]
		}
		if n := uint64(len(mem)); offset > n || uint64(len(p)) > n-offset {
			return fmt.Errorf("cpu: slot %s: offset %d + %d bytes exceeds its %d bytes", w.team.dev.table.Slots[slot].Name, offset, len(p), n)
		}
		copy(p, mem[offset:])
		return nil
	})
}
