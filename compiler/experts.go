package compiler

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// experts emits what stands in place of a sparse layer's gate, up and down: the
// router's choice, the products of the chosen experts and their sum, which it
// returns. y is the normalised residual stream.
func (s *state) experts(p *program, l *layerPlan, y *value) (*value, error) {
	pre := fmt.Sprintf("layer.%d.ffn.", l.index)
	e := &s.cfg.Experts
	logits, err := s.linear(p, pre+"router", y, arch.Router, l.index)
	if err != nil {
		return nil, err
	}
	ids, chosen := p.value(pre+"experts.ids", e.Used), p.value(pre+"experts.weights", e.Used)
	p.emit(&node{kernel: kernels.Route, label: pre + "route", region: ids.name, in: []operand{logits.all()}, out: []operand{ids.all(), chosen.all()}})

	pre += "experts."
	gate, err := s.expertProduct(p, l, pre+"gate", arch.ExpertGate, y, ids, e.Used)
	if err != nil {
		return nil, err
	}
	up, err := s.expertProduct(p, l, pre+"up", arch.ExpertUp, y, ids, e.Used)
	if err != nil {
		return nil, err
	}
	act := p.value(pre+"act", e.Used*e.FF)
	p.emit(&node{kernel: kernels.SiLUMul, label: pre + "silu_mul", region: act.name, in: []operand{gate.all(), up.all()}, out: []operand{act.all()}, activation: activation(s.cfg.Activation)})
	down, err := s.expertProduct(p, l, pre+"down", arch.ExpertDown, act, ids, 1)
	if err != nil {
		return nil, err
	}
	out := p.value(pre+"sum", s.cfg.Width)
	p.emit(&node{kernel: kernels.ExpertSum, label: pre + "sum", region: out.name, in: []operand{down.all(), chosen.all()}, out: []operand{out.all()}})
	return out, nil
}

// expertProduct emits the product of x with a part of the chosen experts; so many
// of a row have the same row of x.
func (s *state) expertProduct(p *program, l *layerPlan, label string, part arch.ExpertPart, x, ids *value, share int) (*value, error) {
	e := &s.cfg.Experts
	w, err := s.expertMatrix(label, part, l.index)
	if err != nil {
		return nil, err
	}
	n := &node{kernel: kernels.ExpertGEMV, label: label, region: label, in: []operand{x.all(), ids.all()}, w: w, share: share}
	if e.Bias {
		if n.bias, err = s.expertBias(label+".bias", part, l.index); err != nil {
			return nil, err
		}
	}
	y := p.value(label, e.Used*w.rows/e.Count)
	n.out = []operand{y.all()}
	p.emit(n)
	return y, nil
}

// expertMatrix returns the weight that is a part of all experts of a layer, one
// after another.
func (s *state) expertMatrix(name string, which arch.ExpertPart, layer int) (*weight, error) {
	if have, ok := s.byName[name]; ok {
		return have, nil
	}
	w := &weight{name: name}
	err := s.expertParts(w, which, layer, func(e arch.ExpertTensor) (string, []uint64) { return e.Name, e.Shape })
	if err != nil {
		return nil, err
	}
	t := w.parts[0].tensor
	w.typ, w.cols = t.Type, int(t.Shape[len(t.Shape)-1])
	if w.parts[0].transposed {
		w.cols = int(t.Shape[len(t.Shape)-2])
	}
	for _, q := range w.parts {
		switch t := q.tensor; {
		case t.Type != w.typ:
			return nil, &TensorError{t.Name, fmt.Sprintf("type %s, where other experts have %s", t.Type, w.typ)}
		case !floating(t.Type) && (!t.Type.Quantized() || q.transposed):
			return nil, &TensorError{t.Name, fmt.Sprintf("type %s cannot be a weight", t.Type)}
		}
	}
	if _, ok := w.typ.Bytes(uint64(w.cols)); !ok {
		return nil, &TensorError{t.Name, fmt.Sprintf("rows of %d elements are not whole blocks of %s", w.cols, w.typ)}
	}
	return s.share(w), nil
}

// expertBias returns the biases of a part of all experts, of a row each.
func (s *state) expertBias(name string, which arch.ExpertPart, layer int) (*weight, error) {
	if have, ok := s.byName[name]; ok {
		return have, nil
	}
	w := &weight{name: name, cols: 1, typ: dtype.F32}
	err := s.expertParts(w, which, layer, func(e arch.ExpertTensor) (string, []uint64) {
		if e.Each {
			return e.Bias, []uint64{uint64(e.Stack)}
		}
		return e.Bias, []uint64{uint64(s.cfg.Experts.Count), uint64(e.Stack)}
	})
	if err != nil {
		return nil, err
	}
	for i := range w.parts {
		q := &w.parts[i]
		q.transposed = false
		if !floating(q.tensor.Type) {
			return nil, &TensorError{q.tensor.Name, fmt.Sprintf("type %s, want F32, F16 or BF16", q.tensor.Type)}
		}
	}
	return s.share(w), nil
}

// expertParts gives w the rows that a part of each expert has in the tensor that
// find names, of a shape.
func (s *state) expertParts(w *weight, which arch.ExpertPart, layer int, find func(arch.ExpertTensor) (string, []uint64)) error {
	for i := range s.cfg.Experts.Count {
		e := s.cfg.Expert(which, layer, i)
		name, shape := find(e)
		t, err := s.tensor(name)
		if err != nil {
			return err
		}
		if !slices.Equal(t.Shape, shape) {
			return &TensorError{t.Name, fmt.Sprintf("shape %v, want %v", t.Shape, shape)}
		}
		q := part{tensor: t, first: e.First, rows: s.cfg.Experts.FF, step: e.Step, stack: e.Stack, transposed: e.Transposed}
		if which == arch.ExpertDown {
			q.rows = s.cfg.Width
		}
		if !e.Each {
			q.block = i
		}
		if q.step == 1 && !q.transposed {
			// Rows that follow each other are one part.
			q.first, q.block, q.step, q.stack = q.first+q.block*q.stack, 0, 0, 0
			if last := len(w.parts) - 1; last >= 0 && w.parts[last].tensor.Name == t.Name && w.parts[last].first+w.parts[last].rows == q.first {
				w.parts[last].rows += q.rows
				w.rows += q.rows
				continue
			}
		}
		w.parts = append(w.parts, q)
		w.rows += q.rows
	}
	return nil
}

// stepSource returns the bytes of its tensor that a part whose rows do not follow
// each other is taken of: an expert's.
func (p *part) stepSource(cols int) (offset, size uint64) {
	size, _ = p.tensor.Type.Bytes(uint64(p.stack) * uint64(cols)) // whole blocks, checked
	return uint64(p.block) * size, size
}

// fuseExperts joins gate and up of each expert, and makes silu(gate) * up the
// input of the down projection.
func (s *state) fuseExperts() error {
	for _, p := range s.programs {
		for i := range p.nodes {
			n := p.run(i, ".experts.gate", ".experts.up", ".experts.silu_mul", ".experts.down")
			if n == nil {
				continue
			}
			gate, up, act, down := n[0], n[1], n[2], n[3]
			if gate.w.typ != up.w.typ || act.activation == decl.ActivationGELU { // which products do not have
				continue
			}
			label := strings.TrimSuffix(gate.label, "gate") + "gate_up"
			ff := s.cfg.Experts.FF
			joined := &node{kernel: gate.kernel, label: label, region: label, in: gate.in, share: gate.share, w: s.joinExperts(label, gate.w, up.w)}
			if gate.bias != nil {
				joined.bias = s.joinExperts(label+".bias", gate.bias, up.bias)
			}
			out := p.value(label, 2*gate.out[0].width)
			joined.out = []operand{out.all()}
			down.in = []operand{{v: out, width: ff}, down.in[1], {v: out, off: ff, width: ff}}
			down.input, down.activation = decl.InputSiLUMul, act.activation
			p.splice(i, 4, joined, down)
		}
	}
	return nil
}

// joinExperts returns the weight that has of each expert the rows of a, then
// those of b.
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

// expertRows is the largest number of rows of an expert's matrix that a
// threadgroup takes where GEMVWave divides them.
const expertRows = 64

// expertGroup returns how many rows of an expert's matrix a threadgroup takes.
func (l *lowering) expertGroup(out int) int {
	c := l.s.in.Chip
	if c.GEMVWave == 0 {
		return c.GEMVRows
	}
	// One wave of threadgroups, or short ones.
	wave := ceil(out*l.s.cfg.Experts.Used*l.p.rows, c.GEMVWave*max(c.Cores, 1))
	return max(c.GEMVRows, min(roundUp(wave, gemvUnit), expertRows))
}

// expertArguments fills the arguments of the kernels of experts.
func (l *lowering) expertArguments() {
	n, e := l.n, &l.s.cfg.Experts
	switch n.kernel {
	case kernels.Route:
		l.bind(kernels.RouteBindLogits, n.in[0])
		l.bind(kernels.RouteBindIDs, n.out[0])
		l.bind(kernels.RouteBindWeights, n.out[1])
		l.spec.Values[kernels.RouteSpecOver] = decl.OverChosen
		if e.OverAll {
			l.spec.Values[kernels.RouteSpecOver] = decl.OverAll
		}
		kernels.RouteParams{Experts: uint32(e.Count), Used: uint32(e.Used)}.Put(&l.cmd)
	case kernels.ExpertSum:
		l.bind(kernels.ExpertSumBindX, n.in[0])
		l.bind(kernels.ExpertSumBindWeights, n.in[1])
		l.bind(kernels.ExpertSumBindOut, n.out[0])
		l.spec.Values[kernels.ExpertSumSpecOutput] = decl.OutputStore
		if n.add {
			l.spec.Values[kernels.ExpertSumSpecOutput] = decl.OutputAdd
		}
		kernels.ExpertSumParams{N: uint32(n.out[0].width), Used: uint32(e.Used)}.Put(&l.cmd)
	case kernels.ExpertGEMV:
		out := n.w.rows / e.Count
		l.bind(kernels.ExpertGEMVBindX, n.in[0])
		l.bind(kernels.ExpertGEMVBindIDs, n.in[1])
		if n.input == decl.InputSiLUMul {
			l.bind(kernels.ExpertGEMVBindX2, n.in[2])
			l.spec.Values[kernels.ExpertGEMVSpecActivation] = n.activation
		}
		l.bindWeight(kernels.ExpertGEMVBindW, n.w)
		l.bindWeight(kernels.ExpertGEMVBindB, n.bias)
		l.bind(kernels.ExpertGEMVBindY, n.out[0])
		l.spec.Values[kernels.ExpertGEMVSpecWType] = uint32(n.w.typ)
		l.spec.Values[kernels.ExpertGEMVSpecWeights] = uint32(n.w.layout)
		l.spec.Values[kernels.ExpertGEMVSpecInput] = n.input
		l.spec.Values[kernels.ExpertGEMVSpecBias] = one(n.bias != nil)
		if l.s.quantises(n.w) {
			l.spec.Values[kernels.ExpertGEMVSpecAct] = decl.ActQ8
		}
		kernels.ExpertGEMVParams{
			In: uint32(n.w.cols), Out: uint32(out), XStride: uint32(n.in[0].v.width / (e.Used / n.share)), YStride: uint32(n.out[0].v.width / e.Used),
			Group: uint32(l.expertGroup(out)), Ahead: l.ahead(), Stage: l.stage(), Experts: uint32(e.Count), Used: uint32(e.Used), Share: uint32(n.share),
			Limit: l.limit(),
		}.Put(&l.cmd)
	}
}

// limit returns the clamped activation's limit, 0 for others.
func (l *lowering) limit() float32 {
	if l.n.activation != decl.ActivationClampedSwiGLU {
		return 0
	}
	return l.s.cfg.ActLimit
}
