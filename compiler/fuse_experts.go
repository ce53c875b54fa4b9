package compiler

import (
	"github.com/pianola-engine/pianola/internal/activation"
	"github.com/pianola-engine/pianola/internal/decl"
)

// fuseExperts fuses the gate and up products of each expert, and fuses silu(gate) * up into the
// input of the down product.
func (s *state) fuseExperts() error {
	for _, p := range s.programs {
		for i := range p.nodes {
			n := p.match(i, roleExpertGate, roleExpertUp, roleExpertSiLUMul, roleExpertDown)
			if n == nil {
				continue
			}
			gate, up := n[0].args.(expertProductArgs), n[1].args.(expertProductArgs)
			act, down := n[2].args.(siluMulArgs), n[3].args.(expertProductArgs)
			if gate.w.typ != up.w.typ || !activation.Functions[act.activation].InExperts {
				continue
			}
			at := spot{role: roleExpertGateUp, layer: n[0].layer}
			joined := expertProductArgs{of: gate.of, share: gate.share, w: s.joinExperts(at.label(), gate.w, up.w)}
			if gate.bias != nil {
				joined.bias = s.joinExperts(at.label()+".bias", gate.bias, up.bias)
			}
			ff := s.cfg.Experts.FF
			out := p.value(at.label(), 2*n[0].out[0].width)
			down.input, down.activation = decl.InputSiLUMul, act.activation
			n[3].args, n[3].in = down, []operand{{v: out, width: ff}, n[3].in[1], {v: out, off: ff, width: ff}}
			p.splice(i, 4, &node{spot: at, args: joined, in: n[0].in, out: []operand{out.all()}}, n[3])
		}
	}
	return nil
}

// joinExperts returns the weight that contains, for each expert, its rows of a and
// then its rows of b.
func (s *state) joinExperts(name string, a, b *weight) *weight {
	if have, ok := s.byName[name]; ok {
		return have
	}
	w := &weight{name: name, rows: a.rows + b.rows, cols: a.cols, typ: a.typ}
	n := a.rows / s.cfg.Experts.Count
	for e := range s.cfg.Experts.Count {
		for _, of := range []*weight{a, b} {
			w.parts = append(w.parts, of.slice("", e*n, n).parts...)
		}
	}
	return s.share(w)
}
