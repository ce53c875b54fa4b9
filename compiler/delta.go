package compiler

import (
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// gatedDelta emits a block with the gated delta rule of y, the normalised residual x.
func (s *state) gatedDelta(p *program, l *layerPlan, x, y *value) error {
	d := &s.cfg.Delta
	in, err := s.deltaInput(p, l, y)
	if err != nil {
		return err
	}
	gates, err := s.deltaGates(p, l, y)
	if err != nil {
		return err
	}
	at := spot{role: roleConv, layer: l}
	conv := convArgs{form: decl.ConvSiLU, taps: s.cfg.ConvTaps}
	if conv.w, conv.bias, err = s.convWeights(at, arch.Conv, in.width); err != nil {
		return err
	}
	qkv := p.value(at.label(), in.width)
	p.emit(at, conv, []operand{in.all()}, l.state.all(), qkv.all())
	// No barrier separates this product from the convolution, which alone would leave a GPU mostly idle.
	z, err := s.deltaZ(p, l, y)
	if err != nil {
		return err
	}

	at = spot{role: roleDeltaRule, layer: l}
	rule := deltaArgs{of: *d}
	if rule.w, err = s.deltaWeights(at); err != nil {
		return err
	}
	out := p.value(at.label(), d.Heads*d.ValueDim)
	p.emit(at, rule, []operand{qkv.all(), gates.all()}, l.matrix.all(), out.all())

	at = spot{role: roleDeltaNorm, layer: l}
	t, err := s.tensor(s.cfg.Tensor(arch.DeltaNorm, l.index))
	if err != nil {
		return err
	}
	w, err := s.vector(at.label(), t, d.ValueDim)
	if err != nil {
		return err
	}
	p.emit(at, headNormArgs{w: w, heads: d.Heads, eps: s.cfg.Eps}, nil, out.all())
	gated := p.value(l.name("delta.gated"), out.width)
	p.emit(spot{role: roleDeltaGate, layer: l}, siluMulArgs{activation: decl.ActivationSiLU}, []operand{z.all(), out.all()}, gated.all())
	o, err := s.linear(p, spot{role: roleDeltaOut, layer: l}, gated, arch.DeltaOut)
	if err != nil {
		return err
	}
	s.residual(p, spot{role: roleAttnResidual, layer: l}, x, o)
	return nil
}

// deltaInput emits the product of Q, K and V.
func (s *state) deltaInput(p *program, l *layerPlan, y *value) (*value, error) {
	at := spot{role: roleDeltaIn, layer: l}
	if s.cfg.Tensor(arch.DeltaZ, l.index) != "" {
		return s.linear(p, at, y, arch.DeltaIn)
	}
	d := &s.cfg.Delta
	k, v := d.KeyDim, d.Heads/d.KeyHeads*d.ValueDim
	return s.divided(p, at, y, arch.DeltaIn, d.KeyHeads, 2*(k+v), [][2]int{{0, k}, {k, k}, {2 * k, v}})
}

// deltaZ emits the product of the gate of the output.
func (s *state) deltaZ(p *program, l *layerPlan, y *value) (*value, error) {
	at := spot{role: roleDeltaZ, layer: l}
	if s.cfg.Tensor(arch.DeltaZ, l.index) != "" {
		return s.linear(p, at, y, arch.DeltaZ)
	}
	d := &s.cfg.Delta
	k, v := d.KeyDim, d.Heads/d.KeyHeads*d.ValueDim
	return s.divided(p, at, y, arch.DeltaIn, d.KeyHeads, 2*(k+v), [][2]int{{2*k + v, v}})
}

// divided emits the product of a matrix that consists of ranges of rows of the tensor of a role. The
// tensor has a number of groups of rows. A range begins at a row of a group and has a number of rows;
// that of all groups comes before the next range.
func (s *state) divided(p *program, at spot, y *value, r arch.Role, groups, group int, ranges [][2]int) (*value, error) {
	t, err := s.tensor(s.cfg.Tensor(r, at.index()))
	if err != nil {
		return nil, err
	}
	if want := s.cfg.WantShape(r, at.index()); !slices.Equal(t.Shape, want) || !floating(t.Type) && !t.Type.Quantized() {
		return nil, &TensorError{t.Name, fmt.Sprintf("shape %v of %s, want %v", t.Shape, t.Type, want)}
	}
	if _, ok := t.Type.Bytes(uint64(s.cfg.Width)); !ok {
		return nil, &TensorError{t.Name, fmt.Sprintf("rows of %d elements are not whole blocks of %s", s.cfg.Width, t.Type)}
	}
	w := &weight{name: at.label(), cols: s.cfg.Width, typ: t.Type}
	for _, of := range ranges {
		for g := range groups {
			w.append(part{tensor: t, first: g*group + of[0], rows: of[1]})
			w.rows += of[1]
		}
	}
	w = s.share(w)
	out := p.value(at.label(), w.rows)
	p.emit(at, productArgs{wide: p.wide, w: w}, []operand{y.all()}, out.all())
	return out, nil
}

// deltaGates emits one product for the gates of all heads: those of V, and those of the decay.
func (s *state) deltaGates(p *program, l *layerPlan, y *value) (*value, error) {
	at := spot{role: roleDeltaGates, layer: l}
	if s.cfg.Tensor(arch.DeltaAlpha, l.index) == "" {
		n := s.cfg.Delta.Heads / s.cfg.Delta.KeyHeads
		return s.divided(p, at, y, arch.DeltaBeta, s.cfg.Delta.KeyHeads, 2*n, [][2]int{{0, n}, {n, n}})
	}
	var ws []*weight
	for _, r := range []arch.Role{arch.DeltaBeta, arch.DeltaAlpha} {
		w, err := s.matrix(at.label()+"."+r.String(), r, l.index)
		if err != nil {
			return nil, err
		}
		ws = append(ws, w)
	}
	if ws[0].typ != ws[1].typ {
		return nil, &TensorError{s.cfg.Tensor(arch.DeltaAlpha, l.index), fmt.Sprintf("type %s, but %s has %s", ws[1].typ, s.cfg.Tensor(arch.DeltaBeta, l.index), ws[0].typ)}
	}
	w := s.concat(at.label(), ws...)
	gates := p.value(at.label(), w.rows)
	p.emit(at, productArgs{wide: p.wide, w: w}, []operand{y.all()}, gates.all())
	return gates, nil
}

// deltaWeights returns the weights of the decay, and what is added to its gates.
func (s *state) deltaWeights(at spot) (*weight, error) {
	var ws []*weight
	for _, r := range []arch.Role{arch.DeltaRate, arch.DeltaShift} {
		t, err := s.tensor(s.cfg.Tensor(r, at.index()))
		if err != nil {
			return nil, err
		}
		w, err := s.vector(at.label()+"."+r.String(), t, s.cfg.Delta.Heads)
		if err != nil {
			return nil, err
		}
		ws = append(ws, w)
	}
	return s.concatVectors(at.label(), ws...), nil
}

// deltaArgs holds the arguments of delta_rule. in is Q, K and V, and the gates; out is the states of the
// layer and the result.
type deltaArgs struct {
	w  *weight
	of arch.Delta
}

// deltaGroup is the number of elements of a head that a threadgroup of delta_rule computes: one for each
// SIMD group.
const deltaGroup = 8

// deltaEps is added to the sum of squares of a head of Q or K.
const deltaEps = 1e-6

func (deltaArgs) kernel() decl.ID           { return kernels.DeltaRule }
func (a deltaArgs) weights() []*weight      { return []*weight{a.w} }
func (a deltaArgs) threads(l *lowering) int { return deltaGroup * l.s.in.Chip.SIMDWidth }

func (a deltaArgs) lower(l *lowering) {
	n := l.n
	l.bind(kernels.DeltaRuleBindX, n.in[0])
	l.bind(kernels.DeltaRuleBindGates, n.in[1])
	l.bindWeight(kernels.DeltaRuleBindW, a.w)
	l.bind(kernels.DeltaRuleBindState, n.out[0])
	l.bind(kernels.DeltaRuleBindOut, n.out[1])
	l.set(kernels.DeltaRuleSpecDecay, decayOf(a.of.Negative))
	l.set(kernels.DeltaRuleSpecSequences, l.sequences())
	tiled := uint32(0)
	if a.of.Tiled {
		tiled = 1
	}
	live, saved, tables, entries := l.states()
	kernels.DeltaRuleParams{
		Heads: uint32(a.of.Heads), KeyHeads: uint32(a.of.KeyHeads), KeyDim: uint32(a.of.KeyDim), ValueDim: uint32(a.of.ValueDim),
		XStride: stride(n.in[0]), GateStride: stride(n.in[1]), Eps: deltaEps, Tiled: tiled, Group: deltaGroup,
		Live: live, Saved: saved, Each: l.each(), Tables: tables, Table: entries, Pool: l.pooled(),
	}.Put(&l.cmd)
	l.place(table.PatchPosition, decl.SecondIndex)
}

// gatedQ emits the products of Q and of the gate of attention's output, whose rows alternate by heads in
// the tensor of Q. That of Q comes last, next to those of K and V.
func (s *state) gatedQ(p *program, l *layerPlan, y *value) (q, gate *value, err error) {
	n := l.headDim
	if gate, err = s.divided(p, spot{role: roleQGate, layer: l}, y, arch.Q, s.cfg.Heads, 2*n, [][2]int{{n, n}}); err != nil {
		return nil, nil, err
	}
	q, err = s.divided(p, spot{role: roleQ, layer: l}, y, arch.Q, s.cfg.Heads, 2*n, [][2]int{{0, n}})
	return q, gate, err
}

// sigmoidMulArgs holds the arguments of sigmoid_mul: out[0] is multiplied by the sigmoid of in[0].
type sigmoidMulArgs struct{ unweighted }

func (sigmoidMulArgs) kernel() decl.ID { return kernels.SigmoidMul }

func (sigmoidMulArgs) lower(l *lowering) {
	l.bind(kernels.SigmoidMulBindX, l.n.out[0])
	l.bind(kernels.SigmoidMulBindGate, l.n.in[0])
	kernels.SigmoidMulParams{N: uint32(l.n.out[0].width), GateStride: stride(l.n.in[0])}.Put(&l.cmd)
}
