package pianola

import (
	"testing"

	"github.com/pianola-engine/pianola/table"
)

// TestReserve checks which sessions have memory for all positions from the start.
func TestReserve(t *testing.T) {
	for _, c := range []struct {
		mode     Mode
		realTime bool
		ask      int
		want     int
	}{
		{"encode", false, 0, 0}, {"resident", false, 0, 0}, {"record", false, 0, 512}, {"record", false, 7, 7},
		{"encode", true, 0, 512}, {"encode", true, 7, 7},
	} {
		m := &Model{mode: c.mode, realTime: c.realTime, t: &table.Table{Header: table.Header{Context: 512}}}
		if got := m.replayOptions(SessionOptions{Reserve: c.ask}).Reserve; got != c.want {
			t.Errorf("%+v: memory for %d positions", c, got)
		}
	}
}
