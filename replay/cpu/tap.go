package cpu

import (
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
)

// show calls the tap.
func (w *worker) show(j *job, tap *replay.Tap) error {
	step := w.step
	return device.Show(name, w.team.dev.table, tap, w.at, &step, func(slot uint32, offset uint64, p []byte) error {
		mem := j.Session.mem[slot]
		if mem == nil {
			mem = w.team.dev.model[slot]
		}
		copy(p, mem[offset:])
		return nil
	})
}
