//go:build softmetal

package metal_test

import (
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// counted returns the number of Metal calls of a submission, by the count of the software Metal
// and by the device's own count.
func counted(t *testing.T, d *metal.Device, sub *replay.Submission) (calls map[string]int, all, own int) {
	t.Helper()
	before, ours := soft.Calls(), d.Calls()
	if _, err := submit(d, sub); err != nil {
		t.Fatal(err)
	}
	calls = soft.Calls()
	for name, n := range before {
		if calls[name] -= n; calls[name] == 0 {
			delete(calls, name)
		}
	}
	for _, n := range calls {
		all += n
	}
	return calls, all, int(d.Calls() - ours)
}

// TestCalls counts messages to Metal. No call may set state that is already set, and a recorded
// token takes 4 calls.
func TestCalls(t *testing.T) {
	for _, noFuse := range []bool{false, true} {
		checked(t)
		m := single(t, noFuse)
		for _, mode := range metal.Modes() {
			d := load(t, whole(t, mode), m)
			id := begun(t, d)
			if _, err := submit(d, decode(m.t, id, 0, 1)); err != nil { // afterwards the cost of a token is known
				t.Fatal(err)
			}
			redundant := soft.Redundant()
			_, one, _ := counted(t, d, decode(m.t, id, 1, 1))
			calls, all, own := counted(t, d, decode(m.t, id, 1, 33))
			perToken := float64(all-one) / 32
			p, _, _ := m.t.Program(table.ProgramDecode)
			t.Logf("no fusion %t, %s: %d commands, %d calls for a token alone, %.1f for each more: %v", noFuse, mode, p.Count, one, perToken, calls)
			if n := soft.Redundant() - redundant; n != 0 {
				t.Errorf("no fusion %t, %s: %d calls set state that was already set", noFuse, mode, n)
			}
			if mode == "record" && perToken > 4 {
				t.Errorf("no fusion %t: %.2f calls a recorded token", noFuse, perToken)
			}
			if mode == "encode" && (perToken < float64(p.Count) || perToken > 12*float64(p.Count)) {
				t.Errorf("no fusion %t: %.2f calls a token of %d commands", noFuse, perToken, p.Count)
			}
			// The device does not count the labels that the software Metal reads, and counts
			// waits only approximately.
			if own < all-4 || own > all+4 {
				t.Errorf("no fusion %t, %s: the device counts %d calls, Metal %d", noFuse, mode, own, all)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestSelectors counts gopher's messages by selector. Argument buffers would save the messages
// that bind weights.
func TestSelectors(t *testing.T) {
	checked(t)
	m := compiled(t, "gopher-q8_0.gguf", 512, compiler.Options{})
	d := load(t, whole(t, "encode"), m)
	id := begun(t, d)
	dry := func(tokens int) map[string]int {
		sub := decode(m.t, id, 0, tokens)
		sub.Dry = true
		calls, _, _ := counted(t, d, sub)
		return calls
	}
	dry(1)
	one, more := dry(1), dry(9)
	p, _, _ := m.t.Program(table.ProgramDecode)
	bound, weights := 0, 0
	for i := range m.t.ProgramCmds(p) {
		c := &m.t.Cmds[int(p.First)+i]
		for _, b := range c.Bind[:c.Bindings] {
			if b.Slot == table.NoSlot {
				continue
			}
			if bound++; m.t.Slots[b.Slot].Kind == table.SlotWeight {
				weights++
			}
		}
	}
	all, sets := 0, 0
	for name, n := range more {
		n = (n - one[name]) / 8
		all += n
		if name == "setBuffer:offset:atIndex:" || name == "setBufferOffset:atIndex:" {
			sets += n
		}
		t.Logf("%4d %s", n, name)
	}
	t.Logf("a token: %d messages for %d commands; %d bindings, %d of them weights, and %d messages that bind", all, p.Count, bound, weights, sets)
	if weights == 0 || sets < weights || sets > bound+2*int(p.Count) || all < sets+2*int(p.Count) {
		t.Errorf("%d messages, %d of them bind; %d bindings, %d of them weights", all, sets, bound, weights)
	}
}

// BenchmarkEncode encodes chains of 32 tokens with a Metal whose methods return at once.
func BenchmarkEncode(b *testing.B) {
	for _, noFuse := range []bool{false, true} {
		name := "fused"
		if noFuse {
			name = "apart"
		}
		m := single(b, noFuse)
		b.Run(name, func(b *testing.B) {
			perCommand, err := encodeNS(b, m, b.N)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(perCommand, "ns/command")
		})
	}
}

// TestEncodeTime limits the time that encoding takes per command.
func TestEncodeTime(t *testing.T) {
	m := single(t, true)
	best := 1e9
	for range 20 {
		ns, err := encodeNS(t, m, 20)
		if err != nil {
			t.Fatal(err)
		}
		if best = min(best, ns); best <= 100 {
			break
		}
	}
	t.Logf("%.1f ns a command", best)
	if best > 150 {
		t.Errorf("encoding costs %.1f ns a command, more than 150", best)
	}
}
