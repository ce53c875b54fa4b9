package compiler

import (
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// TestWhole checks which products gemm_few computes in the shape whole on an H200, whose threadgroups have 232,448 bytes
// of memory.
func TestWhole(t *testing.T) {
	c := chipOf(t, "h200")
	for _, test := range []struct {
		name   string
		typ    dtype.Type
		layout dtype.Layout
		in     int
		rows   int
		input  uint32
		whole  bool
	}{
		{"one row", dtype.Q4_0, dtype.Tiled16, 14336, 1, decl.InputScaled, true},
		{"as many bytes of float32 as of weights, almost", dtype.Q4_0, dtype.Tiled16, 4096, 4, decl.InputScaled, true},
		{"more bytes of float32 than of weights", dtype.Q4_0, dtype.Tiled16, 4096, 5, decl.InputScaled, false},
		{"those of float16", dtype.Q4_0, dtype.Tiled16, 4096, 8, decl.InputPlain, true},
		{"larger weights", dtype.Q8_0, dtype.Tiled16, 4096, 8, decl.InputScaled, true},
		{"many rows", dtype.Q8_0, dtype.Tiled16, 4096, 9, decl.InputPlain, false},
		{"no room", dtype.Q8_0, dtype.Tiled16, 14336, 4, decl.InputPlain, false},
		{"the longest row", dtype.Q4_0, dtype.Tiled16, 41440, 1, decl.InputPlain, true},
		{"no room for a row", dtype.Q4_0, dtype.Tiled16, 41472, 1, decl.InputPlain, false},
		{"segments of whole blocks", dtype.Q4_K, dtype.Tiled16, 4096, 1, decl.InputScaled, true},
		{"segments of half blocks", dtype.Q4_K, dtype.Tiled16, 1024, 1, decl.InputScaled, false},
		{"a type without an entry", dtype.Q5_0, dtype.Tiled16, 4096, 1, decl.InputPlain, false},
		{"float weights", dtype.F16, dtype.Rows, 4096, 1, decl.InputPlain, false},
	} {
		s := &state{in: Input{Chip: c}}
		w := &weight{typ: test.typ, layout: test.layout, rows: 4096, cols: test.in}
		if got := s.keeps(w, test.rows, test.input); got != test.whole {
			t.Errorf("%s: whole %t, want %t", test.name, got, test.whole)
		}
	}
}

// TestWholeCommands checks the commands of decode in a table for batching on an H200: the products of blocks have the
// shape whole, and compute what lies between them.
func TestWholeCommands(t *testing.T) {
	tab := mustCompile(t, input(t, "../testdata/gopher-q8_0.gguf", "h200", Options{Batching: true}))
	p, _, _ := tab.Program(table.ProgramDecode)
	outputs := map[uint32]int{}
	for i := range tab.ProgramCmds(p) {
		c := &tab.Cmds[int(p.First)+i]
		if c.Kernel != kernels.GEMMFew {
			continue
		}
		values := tab.Specs[c.Spec].Values
		if values[kernels.GEMMFewSpecShape] != decl.ShapeWhole {
			continue
		}
		outputs[values[kernels.GEMMFewSpecOutput]]++
		if c.Threadgroup[0] != wholeThreads || c.Grid[0] > 132 {
			t.Errorf("command %d: %d threadgroups of %d threads, want at most 132 of %d", i, c.Grid[0], c.Threadgroup[0], wholeThreads)
		}
	}
	if outputs[decl.OutputStore] == 0 || outputs[decl.OutputGated] == 0 || outputs[decl.OutputAddScaled] == 0 {
		t.Errorf("commands of each output in the shape whole: %v, want some of store, gated and add_scaled", outputs)
	}
}
