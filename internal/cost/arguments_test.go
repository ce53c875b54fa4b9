package cost_test

import (
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/cost"
	"github.com/pianola-engine/pianola/table"
)

// TestArgumentBuffers computes the figures from which docs/rationale/metal.md decides against argument
// buffers, and fails if they no longer support the decision: in mode encode the host must need less
// time for a token with all of its messages than the GPU does, even if a message takes much longer
// than was measured. Then fewer messages make no token faster, while a kernel that loads the
// addresses of its buffers first makes every command behind a barrier slower.
func TestArgumentBuffers(t *testing.T) {
	const (
		slow  = 50e-9 // seconds per message, twelve times what was measured with a Metal that does nothing
		state = 4     // messages of a command that bind nothing: pipeline, threadgroup memory, barrier and dispatch
		load  = 0.1   // share of a phase that one more dependent access takes, a low guess
	)
	for _, shape := range []struct{ name, quant string }{{"qwen3-0.6b", "Q4_0"}, {"llama-3.2-1b", "Q4_0"}, {"llama-3.1-8b", "Q4_0"}} {
		for _, name := range []string{"m1", "m4-pro", "m4-max", "m2-ultra"} {
			tab, c := compile(t, shape.name, shape.quant, name, compiler.Options{})
			_, total := predict(t, tab, c, table.ProgramDecode, cost.Point{Position: 128, Rows: 1})
			p, _, _ := tab.Program(table.ProgramDecode)
			commands, bindings, barriers := int(p.Count), 0, 0
			for i := range tab.ProgramCmds(p) {
				cmd := &tab.Cmds[int(p.First)+i]
				barriers += int(cmd.Barrier)
				for _, b := range cmd.Bind[:cmd.Bindings] {
					if b.Slot != table.NoSlot {
						bindings++
					}
				}
			}
			messages := (state+2)*commands + bindings // two more bind the parameters and the patched bytes
			saved := bindings - commands              // an argument buffer takes one message for each command
			host, gpu := float64(messages)*slow, total.Seconds
			added := float64(barriers) * load * cost.RatesOf(c).Phase
			t.Logf("%-13s %-9s %4d commands %5d messages, %4d saved: at 50 ns the host takes %.3f ms or %.3f, the GPU %.2f ms and %.3f more",
				shape.name, name, commands, messages, saved, 1e3*host, 1e3*(host-float64(saved)*slow), 1e3*gpu, 1e3*added)
			if c.Device != chip.Metal || saved <= 0 || host > gpu/4 {
				t.Errorf("%s on %s: the host takes %.3f ms for a token, the GPU %.3f", shape.name, name, 1e3*host, 1e3*gpu)
			}
		}
	}
}
