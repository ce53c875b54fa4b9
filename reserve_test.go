package pianola

import (
	"testing"

	"github.com/pianola-engine/pianola/table"
)

// TestReserve checks which sessions have memory for all positions from the start.
func TestReserve(t *testing.T) {
	for _, c := range []struct {
		device   Device
		mode     Mode
		realTime bool
		ask      int
		want     int
	}{
		{"cpu", "encode", false, 0, 0}, {"cuda", "resident", false, 0, 0}, {"cuda", "record", false, 0, 0},
		{"metal", "encode", false, 0, 0}, {"metal", "record", false, 0, 0}, {"metal", "record", false, 7, 7},
		{"cuda", "record", true, 0, 512}, {"cpu", "encode", true, 0, 512}, {"cpu", "encode", true, 7, 7},
	} {
		m := &Model{device: c.device, mode: c.mode, realTime: c.realTime, t: &table.Table{Header: table.Header{Context: 512}}}
		if got := m.replayOptions(SessionOptions{Reserve: c.ask}).Reserve; got != c.want {
			t.Errorf("%+v: memory for %d positions", c, got)
		}
	}
}
