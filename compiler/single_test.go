package compiler

import (
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// TestSingle checks which products have gemv's form for one row on an H200, and that those have room for all
// weights that a SIMD group fills. A threadgroup of 8 SIMD groups has 232,448 bytes there.
func TestSingle(t *testing.T) {
	c, err := chip.Lookup("h200")
	if err != nil {
		t.Fatal(err)
	}
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
		{"the longest row", dtype.Q4_0, 82176, 1, true},
		{"a row for which there is too little memory", dtype.Q4_0, 83200, 1, false},
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
