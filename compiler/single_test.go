package compiler

import (
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// TestSingle checks which products have gemv's form for one row on an H200, and that those have room for all
// weights that a SIMD group fills. A threadgroup of 16 SIMD groups has 232,448 bytes there.
func TestSingle(t *testing.T) {
	c := chipOf(t, "h200")
	for _, test := range []struct {
		name   string
		typ    dtype.Type
		in     int
		rows   int
		single bool
	}{
		{"down of 8B", dtype.Q8_0, 14336, 1, true},
		{"two rows", dtype.Q8_0, 14336, 2, false},
		{"a type without an entry", dtype.Q5_0, 14336, 1, false},
		{"the longest row", dtype.Q4_0, 19872, 1, true},
		{"a row for which there is too little memory", dtype.Q4_0, 19904, 1, false},
	} {
		const group = 32
		a := productArgs{w: &weight{typ: test.typ, layout: dtype.Tiled16, rows: 4096, cols: test.in}, output: decl.OutputStore, input: decl.InputPlain}
		l := &lowering{s: &state{in: Input{Chip: c}}, n: &node{}, p: &program{rows: test.rows}}
		if got := a.single(l, group); got != test.single {
			t.Errorf("%s: single %t, want %t", test.name, got, test.single)
		}
		if n := a.singleAhead(l, group); test.single && (n < singleSlots || n%16 != 0) {
			t.Errorf("%s: %d bytes of weights for each SIMD group, want a multiple of 16, at least %d", test.name, n, singleSlots)
		}
	}
}

// TestHalf checks which products of a row have threadgroups for half of the multiprocessors of an H200: small ones, and
// larger ones that merge the splits of attention.
func TestHalf(t *testing.T) {
	c := chipOf(t, "h200")
	for _, test := range []struct {
		name        string
		typ         dtype.Type
		in, out     int
		merge       bool
		groups      int // threadgroups
		threads     int
		programRows int
	}{
		{"qkv of 0.6B", dtype.Q4_0, 1024, 4096, false, 64, 512, 1},
		{"gate_up of 0.6B", dtype.Q4_0, 1024, 6144, false, 128, 512, 1},
		{"o of 8B", dtype.Q8_0, 4096, 4096, true, 64, 512, 1},
		{"the same without a merge", dtype.Q8_0, 4096, 4096, false, 128, 512, 1},
		{"o of 1B", dtype.F16, 2048, 2048, true, 64, 512, 1},
		{"o of 8B in float16", dtype.F16, 4096, 4096, true, 128, 512, 1},
		{"down of 0.6B in float16", dtype.F16, 3072, 1024, false, 128, 256, 1},
		{"a type without the form", dtype.Q5_0, 1024, 4096, false, 128, 256, 1},
		{"two rows", dtype.Q4_0, 1024, 4096, false, 128, 256, 2},
	} {
		layout := dtype.Tiled16
		if !test.typ.Quantized() {
			layout = dtype.Rows
		}
		a := productArgs{w: &weight{typ: test.typ, layout: layout, rows: test.out, cols: test.in}, output: decl.OutputStore, input: decl.InputPlain}
		if test.merge {
			a.input = decl.InputMerge
		}
		l := &lowering{s: &state{in: Input{Chip: c}}, n: &node{}, p: &program{rows: test.programRows}}
		group, _ := a.group(l)
		if got := ceil(test.out, group); got != test.groups {
			t.Errorf("%s: %d threadgroups, want %d", test.name, got, test.groups)
		}
		if got := a.threads(l); got != test.threads {
			t.Errorf("%s: %d threads, want %d", test.name, got, test.threads)
		}
	}
}

// TestGatedSingle checks which product of a feed-forward block computes silu(gate) * up in decode on an H200: gate_up if
// a threadgroup has whole strips of gates, as with 16 multiprocessors, else down.
func TestGatedSingle(t *testing.T) {
	for _, test := range []struct {
		cores        int
		gateUp, down uint32 // the output of gate_up, and the input of down
	}{
		{16, decl.OutputGated, decl.InputPlain},
		{132, decl.OutputStore, decl.InputSiLUMul},
	} {
		in := input(t, "../testdata/gopher-q8_0.gguf", "h200", Options{})
		with := *in.Chip
		with.Cores, with.GEMVHalf = test.cores, 0
		in.Chip = &with
		tab := mustCompile(t, in)
		p, _, _ := tab.Program(table.ProgramDecode)
		seen := 0
		for i := range tab.ProgramCmds(p) {
			c := &tab.Cmds[int(p.First)+i]
			if c.Kernel != kernels.GEMV {
				continue
			}
			values := tab.Specs[c.Spec].Values
			switch tab.Slots[c.Bind[kernels.GEMVBindW].Slot].Name {
			case "layer.0.ffn.gate_up":
				seen++
				if got := values[kernels.GEMVSpecOutput]; got != test.gateUp {
					t.Errorf("%d multiprocessors: output %d of gate_up, want %d", test.cores, got, test.gateUp)
				}
			case "layer.0.ffn.down":
				seen++
				if got := values[kernels.GEMVSpecInput]; got != test.down {
					t.Errorf("%d multiprocessors: input %d of down, want %d", test.cores, got, test.down)
				}
			}
		}
		if seen != 2 {
			t.Errorf("%d multiprocessors: found %d of 2 products", test.cores, seen)
		}
	}
}
