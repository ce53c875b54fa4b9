package compiler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// fewLayer returns a program with the products of gemm_few from o to the next qkv, and what lies between them.
func fewLayer(typ dtype.Type, rows, width, ff, qkv int) *program {
	p := &program{rows: rows}
	x := p.value("x", width).all()
	product := func(label string, in operand, columns, out int) operand {
		y := p.value(label, out).all()
		p.emit(spot{suffix: label}, halvesProductArgs{w: &weight{name: label, typ: typ, rows: out, cols: columns}, act: decl.ActF16, few: true}, []operand{in}, y)
		return y
	}
	norm := func(label string, delta operand) operand {
		out := p.value(label, fewWidth(width, rows)).all()
		p.emit(spot{suffix: label}, addNormHalvesArgs{addNormArgs: addNormArgs{w: &weight{name: label, cols: width}, eps: 1e-5}, few: true}, []operand{delta}, x, out)
		return out
	}
	o := product("o", p.value("o.halves", fewWidth(width, rows)).all(), width, width)
	gateUp := product("gate_up", norm("ffn.norm", o), width, 2*ff)
	halves := p.value("down.halves", fewWidth(ff, rows)).all()
	p.emit(spot{suffix: "down.halves"}, halvesArgs{act: decl.ActF16, input: decl.InputSiLUMul, few: true}, []operand{{v: gateUp.v, width: ff}, {v: gateUp.v, off: ff, width: ff}}, halves)
	product("qkv", norm("attn.norm", product("down", halves, ff, width)), width, qkv)
	return p
}

// TestFuseFew checks which norms and activations are fused into the products of gemm_few: those of programs of up
// to 8 rows, but none before a large quantised matrix.
func TestFuseFew(t *testing.T) {
	const (
		all      = "o add_scaled, gate_up scaled gated, down scaled add_scaled, qkv scaled"
		none     = "o, ffn.norm, gate_up, down.halves, down, attn.norm, qkv"
		onlyQKV  = "o, ffn.norm, gate_up, down.halves, down add_scaled, qkv scaled"
		unevenFF = "o add_scaled, gate_up scaled, down.halves, down add_scaled, qkv scaled"
	)
	for _, test := range []struct {
		name                 string
		typ                  dtype.Type
		rows, width, ff, qkv int
		want                 string
	}{
		{"0.6B", dtype.Q4_0, 8, 1024, 3072, 4096, all},
		{"0.6B", dtype.Q4_0, 1, 1024, 3072, 4096, all},
		{"0.6B", dtype.Q4_0, 32, 1024, 3072, 4096, none},
		{"8B", dtype.F16, 8, 4096, 14336, 6144, all},
		{"8B", dtype.Q4_0, 8, 4096, 14336, 6144, onlyQKV},
		{"a width that is no multiple of 128", dtype.F16, 8, 960, 2560, 1600, "o, ffn.norm, gate_up gated, down scaled, attn.norm, qkv"},
		{"gates that are no multiple of 64", dtype.F16, 8, 1024, 2720, 1600, unevenFF},
	} {
		c := chipOf(t, "h200")
		p := fewLayer(test.typ, test.rows, test.width, test.ff, test.qkv)
		s := &state{in: Input{Chip: c, Options: Options{Batching: true}}, programs: []*program{p}}
		if err := s.fuseFew(); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range p.nodes {
			text := n.suffix
			if a, ok := n.args.(halvesProductArgs); ok {
				if a.form.input == decl.InputScaled {
					text += " scaled"
				}
				text += map[uint32]string{decl.OutputStore: "", decl.OutputGated: " gated", decl.OutputAddScaled: " add_scaled"}[a.form.output]
			}
			got = append(got, text)
		}
		if text := strings.Join(got, ", "); text != test.want {
			t.Errorf("%s, %s, %d rows:\n%s, want\n%s", test.name, test.typ, test.rows, text, test.want)
		}
		if err := checkForms(p); err != nil {
			t.Errorf("%s, %s, %d rows: %v", test.name, test.typ, test.rows, err)
		}
	}
}

// checkForms returns an error if a scaled input is not what a product before has made.
func checkForms(p *program) error {
	made := map[*value]*node{}
	for _, n := range p.nodes {
		a, ok := n.args.(halvesProductArgs)
		if !ok {
			continue
		}
		if a.form.input == decl.InputScaled {
			from := made[n.in[0].v]
			if from == nil || from != made[n.in[1].v] {
				return fmt.Errorf("%s reads what no product has made", n.suffix)
			}
			if normed := from.args.(halvesProductArgs).form.output == decl.OutputAddScaled; normed != (a.form.from.w != nil) {
				return fmt.Errorf("%s has the norm %v of %s", n.suffix, a.form.from.w, from.suffix)
			}
		}
		for _, o := range n.out {
			made[o.v] = n
		}
	}
	return nil
}
