package compiler

import (
	"fmt"
	"math"
	"slices"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// mamba emits a Mamba-2 block of y, the normalised residual x.
func (s *state) mamba(p *program, l *layerPlan, x, y *value) error {
	m := &s.cfg.Mamba
	in, err := s.linear(p, spot{role: roleMambaIn, layer: l}, y, arch.MambaIn)
	if err != nil {
		return err
	}
	inner := m.Heads * m.HeadDim
	channels := in.width - inner - m.Heads // of X, B and C
	z := operand{v: in, width: inner}
	steps := operand{v: in, off: inner + channels, width: m.Heads}

	s.scaleParts(p, l, in)
	at := spot{role: roleConv, layer: l}
	conv := convArgs{form: decl.ConvSiLU, taps: s.cfg.ConvTaps}
	if conv.w, conv.bias, err = s.convWeights(at, arch.Conv, channels); err != nil {
		return err
	}
	xbc := p.value(at.label(), channels)
	p.emit(at, conv, []operand{{v: in, off: inner, width: channels}}, l.state.all(), xbc.all())

	at = spot{role: roleMambaScan, layer: l}
	scan := scanArgs{of: *m}
	if scan.w, err = s.scanWeights(at); err != nil {
		return err
	}
	out := p.value(at.label(), inner)
	p.emit(at, scan, []operand{xbc.all(), steps}, l.matrix.all(), out.all())

	at = spot{role: roleMambaNorm, layer: l}
	norm := gatedNormArgs{groups: max(m.NormGroups, 1), first: m.NormFirst, eps: s.cfg.Eps}
	if m.NormGroups > 0 {
		if norm.w, err = s.mambaVector(at.label(), at, arch.MambaNorm); err != nil {
			return err
		}
	}
	p.emit(at, norm, []operand{z}, out.all())
	o, err := s.linear(p, spot{role: roleMambaOut, layer: l}, out, arch.MambaOut)
	if err != nil {
		return err
	}
	s.scaledResidual(p, spot{role: roleMambaResidual, layer: l}, x, o, s.cfg.Factors.Mamba)
	return nil
}

// scaleParts emits the multiplication of z, X, B, C and the step sizes by their factors.
func (s *state) scaleParts(p *program, l *layerPlan, in *value) {
	m := &s.cfg.Mamba
	factors := s.cfg.Factors.MambaIn
	if factors[0] == 0 {
		return
	}
	var w []float32
	for i, n := range []int{m.Heads * m.HeadDim, m.Heads * m.HeadDim, m.Groups * m.State, m.Groups * m.State, m.Heads} {
		w = append(w, slices.Repeat(factors[i:i+1], n)...)
	}
	p.emit(spot{role: roleMambaScale, layer: l}, scaleColumnsArgs{w: s.constant(roleNames[roleMambaScale], w)}, nil, in.all())
}

// scanWeights returns the weights of the decay, what is added to step sizes, and the factors of X in the
// result.
func (s *state) scanWeights(at spot) (*weight, error) {
	var ws []*weight
	for _, r := range []arch.Role{arch.MambaRate, arch.MambaShift, arch.MambaSkip} {
		w, err := s.mambaVector(at.label()+"."+r.String(), at, r)
		if err != nil {
			return nil, err
		}
		ws = append(ws, w)
	}
	return s.concatVectors(at.label(), ws...), nil
}

// mambaVector returns the weight of a role whose tensor is a vector, or in GGUF files a matrix with the
// same elements.
func (s *state) mambaVector(name string, at spot, r arch.Role) (*weight, error) {
	t, err := s.tensor(s.cfg.Tensor(r, at.index()))
	if err != nil {
		return nil, err
	}
	n := s.cfg.WantShape(r, at.index())[0]
	if len(t.Shape) == 2 && t.Shape[0] <= n && t.Shape[1] <= n && t.Shape[0]*t.Shape[1] == n {
		t.Shape = slices.Clone(t.Shape[:1])
		t.Shape[0] = n
	}
	return s.vector(name, t, int(n))
}

// scanArgs holds the arguments of ssm_scan. in is X, B and C, and the step sizes; out is the states of
// the layer and the result.
type scanArgs struct {
	w  *weight
	of arch.Mamba
}

// scanGroup is the number of elements of a head that a threadgroup of ssm_scan computes: one for each
// SIMD group.
const scanGroup = 8

func (scanArgs) kernel() decl.ID           { return kernels.SSMScan }
func (a scanArgs) weights() []*weight      { return []*weight{a.w} }
func (a scanArgs) threads(l *lowering) int { return scanGroup * l.s.in.Chip.SIMDWidth }

func (a scanArgs) lower(l *lowering) {
	n := l.n
	l.bind(kernels.SSMScanBindX, n.in[0])
	l.bind(kernels.SSMScanBindSteps, n.in[1])
	l.bindWeight(kernels.SSMScanBindW, a.w)
	l.bind(kernels.SSMScanBindState, n.out[0])
	l.bind(kernels.SSMScanBindOut, n.out[1])
	l.set(kernels.SSMScanSpecDecay, decayOf(a.of.Negative))
	largest := a.of.StepMax
	if largest == 0 {
		largest = math.MaxFloat32
	}
	l.set(kernels.SSMScanSpecSequences, l.sequences())
	live, saved, tables, entries := l.states()
	kernels.SSMScanParams{
		Heads: uint32(a.of.Heads), Groups: uint32(a.of.Groups), HeadDim: uint32(a.of.HeadDim), StateDim: uint32(a.of.State),
		XStride: stride(n.in[0]), StepStride: stride(n.in[1]), StepMin: a.of.StepMin, StepMax: largest, Group: scanGroup,
		Live: live, Saved: saved, Each: l.each(), Tables: tables, Table: entries, Pool: l.pooled(),
	}.Put(&l.cmd)
	l.place(table.PatchPosition, decl.SecondIndex)
}

// gatedNormArgs holds the arguments of gated_norm: out[0] is multiplied by silu(in[0]), and its groups
// are normalised.
type gatedNormArgs struct {
	w      *weight // nil if there is no norm
	groups int
	first  bool // the norm comes before the gate
	eps    float32
}

func (gatedNormArgs) kernel() decl.ID      { return kernels.GatedNorm }
func (a gatedNormArgs) weights() []*weight { return []*weight{a.w} }

func (a gatedNormArgs) describe() string {
	return fmt.Sprintf("groups=%d gate=%s", a.groups, [...]string{decl.GateAlone: "alone", decl.GateBefore: "before", decl.GateAfter: "after"}[a.order()])
}

// order returns a value of the constant gate.
func (a gatedNormArgs) order() uint32 {
	switch {
	case a.w == nil:
		return decl.GateAlone
	case a.first:
		return decl.GateAfter
	}
	return decl.GateBefore
}

func (a gatedNormArgs) lower(l *lowering) {
	x := l.n.out[0]
	l.bind(kernels.GatedNormBindX, x)
	l.bind(kernels.GatedNormBindGate, l.n.in[0])
	l.bindWeight(kernels.GatedNormBindW, a.w)
	l.set(kernels.GatedNormSpecGate, a.order())
	kernels.GatedNormParams{N: uint32(x.width / a.groups), Groups: uint32(a.groups), GateStride: stride(l.n.in[0]), Eps: a.eps}.Put(&l.cmd)
}

// scaleColumnsArgs holds the arguments of scale_columns, which multiplies the columns of out[0] by the
// elements of w.
type scaleColumnsArgs struct{ w *weight }

func (scaleColumnsArgs) kernel() decl.ID      { return kernels.ScaleColumns }
func (a scaleColumnsArgs) weights() []*weight { return []*weight{a.w} }

func (a scaleColumnsArgs) lower(l *lowering) {
	x := l.n.out[0]
	l.bind(kernels.ScaleColumnsBindX, x)
	l.bindWeight(kernels.ScaleColumnsBindW, a.w)
	kernels.ScaleColumnsParams{N: uint32(x.width), Stride: stride(x)}.Put(&l.cmd)
}
