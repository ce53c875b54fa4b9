//go:build softmetal

package metal_test

import (
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
)

// TestRecordings lets sessions decode in turn in mode record, with a fork, a cache that grows and one that has been
// closed between them. They must choose the tokens of mode encode. The device makes one recording for each command
// buffer in flight, whatever sessions there are, and writes commands to it only when another session decodes or a
// cache has moved.
func TestRecordings(t *testing.T) {
	checked(t)
	m := compiled(t, "tiny/llama", 512, compiler.Options{})
	const (
		recordings = "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:"
		commands   = "indirectComputeCommandAtIndex:"
	)
	turns := func(mode string) (all [][]uint32) {
		before := soft.Calls()
		d := load(t, options(t, mode), m)
		ids := []replay.SessionID{begun(t, d), begun(t, d)}
		at := map[replay.SessionID]int{}
		turn := func(id replay.SessionID, n int) int {
			t.Helper()
			calls, _, _ := counted(t, d, decode(m.t, id, at[id], n))
			at[id] += n
			if calls[recordings] != 0 {
				t.Errorf("%s: session %d: %d new recordings", mode, id, calls[recordings])
			}
			return calls[commands]
		}
		for range 3 {
			for _, id := range ids {
				turn(id, 4)
			}
		}
		for range 3 {
			turn(ids[0], 1)
		}
		if n := turn(ids[0], 5); n != 0 {
			t.Errorf("%s: %d commands recorded for the session that decoded last", mode, n)
		}
		fork, err := d.Fork(ids[0], at[ids[0]]+1)
		if err != nil {
			t.Fatal(err)
		}
		at[fork] = at[ids[0]]
		for _, id := range []replay.SessionID{fork, ids[0], fork} {
			turn(id, 3)
		}
		if err := d.Reserve(ids[0], 400); err != nil {
			t.Fatal(err)
		}
		if n := turn(ids[0], 6); (n > 0) != (mode == "record") {
			t.Errorf("%s: %d commands recorded for a cache that has grown", mode, n)
		}
		all = [][]uint32{ring(t, d, m.t, ids[0], at[ids[0]]), ring(t, d, m.t, ids[1], at[ids[1]]), ring(t, d, m.t, fork, at[fork])}
		for _, id := range []replay.SessionID{fork, ids[1]} {
			if err := d.CloseSession(id); err != nil {
				t.Fatal(err)
			}
		}
		last := begun(t, d)
		turn(last, 12)
		all = append(all, ring(t, d, m.t, last, at[last]))
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if n, want := soft.Calls()[recordings]-before[recordings], map[string]int{"record": metal.Flights}[mode]; n != want {
			t.Errorf("%s: %d recordings of the device, want %d", mode, n, want)
		}
		return all
	}
	want := turns("encode")
	for i, got := range turns("record") {
		if !slices.Equal(got, want[i]) {
			t.Errorf("session %d: %v, want %v", i, got, want[i])
		}
	}
}
