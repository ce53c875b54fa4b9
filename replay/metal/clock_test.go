//go:build softmetal

package metal_test

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/cost"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/internal/sparse"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// costs returns the duration of a table's commands on a chip, by their kernels, constants and
// parameters, with the positions and rows that their secondary bytes hold.
func costs(tb testing.TB, t *table.Table, c *chip.Chip) func(*soft.Command) float64 {
	type key struct {
		kernel string
		specs  [decl.MaxSpecs]uint32
		params [decl.ParamBytes]byte
	}
	type place struct{ program, cmd int }
	type point struct {
		program int
		at      cost.Point
	}
	places := map[key]place{}
	for p := range t.Programs {
		for i := range t.ProgramCmds(&t.Programs[p]) {
			cmd := &t.Cmds[int(t.Programs[p].First)+i]
			k, _ := decl.Lookup(cmd.Kernel)
			id := key{k.Name, t.Specs[cmd.Spec].Values, cmd.Param}
			// Of equal commands in several programs, the one with most rows counts.
			if old, ok := places[id]; !ok || t.Programs[old.program].MaxRows < t.Programs[p].MaxRows {
				places[id] = place{p, i}
			}
		}
	}
	known := map[point][]cost.Command{}
	return func(run *soft.Command) float64 {
		id := key{kernel: run.Kernel, params: run.Params}
		copy(id.specs[:], run.Specs[:])
		at, ok := places[id]
		if !ok {
			return 0 // the kernel patch
		}
		p := &t.Programs[at.program]
		cmd := &t.Cmds[int(p.First)+at.cmd]
		point := point{program: at.program, at: cost.Point{Rows: 1}}
		if cmd.Patch&table.PatchRows != 0 {
			point.at.Rows = int(binary.LittleEndian.Uint32(run.Second[decl.SecondRows:]))
		}
		if cmd.Patch.Kind() == table.PatchKVLen || cmd.Patch.Kind() == table.PatchPosition {
			point.at.Position = int(binary.LittleEndian.Uint32(run.Second[cmd.PatchOffset[0]:]))
			if cmd.Patch.Kind() == table.PatchKVLen {
				point.at.Position--
			}
		}
		if known[point] == nil {
			var err error
			if known[point], err = cost.Program(t, p, c, point.at); err != nil {
				tb.Error(err)
				return 0
			}
		}
		return known[point][at.cmd].Seconds
	}
}

// llama8B are the dimensions of Llama 3.1 8B, whose float16 weights take 16 GB.
var llama8B = sparse.Llama{Layers: 32, Width: 4096, FF: 14336, Heads: 32, KVHeads: 8, Vocab: 128_256}

// TestWatchdog runs prompts and tokens of an 8B model on an M1 whose GPU takes the time that the cost
// model predicts and ends command buffers after 1 s. No command buffer may take much longer than
// half of the chain's 50 ms. If command buffers contain whole chunks, the watchdog must end them.
func TestWatchdog(t *testing.T) {
	checked(t)
	soft.SetGPU("Apple M1", 7, 8, soft.EntryGPU)
	soft.SetLimits(8<<30, 64<<30)
	t.Cleanup(func() { soft.SetClock(nil); soft.SetGPU("", 0, 0, 0) })
	path := t.TempDir()
	if err := llama8B.Write(path); err != nil {
		t.Fatal(err)
	}
	c, err := chip.Lookup("m1")
	if err != nil {
		t.Fatal(err)
	}
	m := forChip(t, path, c, 4096, compiler.Options{NoFuse: true}) // fusion would copy Q, K and V
	for _, whole := range []bool{false, true} {
		for _, mode := range metal.Modes() {
			soft.SetClock(&soft.Clock{Price: costs(t, m.t, c), Watchdog: 1, Idle: true})
			o := options(t, mode)
			o.ChainTime = 0 // the default
			if whole {
				o = o.Whole()
			}
			d, err := metal.New(o)
			if err != nil {
				t.Fatal(err)
			}
			model, err := replay.Load(context.Background(), d, m.t, m.src, replay.LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			s, err := model.NewSession(replay.SessionOptions{})
			if err != nil {
				t.Fatal(err)
			}
			soft.Longest()
			soft.Buffers()
			_, _, err = s.Prompt(context.Background(), make([]int32, 1500))
			longest, buffers := soft.Longest(), soft.Buffers()
			if whole {
				if err == nil || !strings.Contains(err.Error(), "watchdog") {
					t.Errorf("%s, whole chunks: %v, and the longest command buffer took %.0f ms", mode, err, 1e3*longest)
				}
			} else if err != nil && !strings.Contains(err.Error(), "cut short") || longest > 0.030 { // nothing chooses a token
				t.Errorf("%s: %v; the longest of %d command buffers took %.0f ms", mode, err, buffers, 1e3*longest)
			}
			t.Logf("%s, whole %t: %d command buffers, the longest %.1f ms", mode, whole, buffers, 1e3*longest)
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestPieces replays a model on a GPU so slow that a token takes several command buffers. Tokens and
// logits must be those of a fast GPU.
func TestPieces(t *testing.T) {
	m := tiny(t, "llama")
	slot := slotOf(t, m.t, table.SlotLogits)
	t.Cleanup(func() { soft.SetClock(nil) })
	for _, mode := range metal.Modes() {
		checked(t)
		var tokens [2][]uint32
		var logits [2][]byte
		for i, seconds := range []float64{1e-6, 4e-3} {
			soft.SetClock(&soft.Clock{Price: func(*soft.Command) float64 { return seconds }, Watchdog: 0.2})
			o := options(t, mode)
			o.ChainTime = 0 // the default
			d := load(t, o, m)
			id := begun(t, d)
			tokens[i] = chains(t, d, m.t, id, 12, 5)
			soft.Longest()
			soft.Buffers()
			tokens[i] = append(tokens[i], chains(t, d, m.t, begun(t, d), 12, 12)...)
			longest, buffers := soft.Longest(), soft.Buffers()
			if slow := i == 1; longest > 0.035 || slow != (buffers > 24) {
				t.Errorf("%s: %d command buffers for 12 tokens, the longest takes %.1f ms", mode, buffers, 1e3*longest)
			}
			logits[i] = make([]byte, m.t.Slots[slot].Size)
			if err := d.Read(id, slot, 0, logits[i]); err != nil {
				t.Fatal(err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		if !slices.Equal(tokens[0], tokens[1]) || !slices.Equal(logits[0], logits[1]) {
			t.Errorf("%s: in pieces %v, whole %v", mode, tokens[1], tokens[0])
		}
	}
}
