package compiler

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// experts emits the feed-forward block of a layer with experts: the router, the gate, up and down
// products of the chosen experts, and their weighted sum, which it returns. y is the normalised
// residual stream, and routed the input of the router.
func (s *state) experts(p *program, l *layerPlan, y, routed *value) (*value, error) {
	e := &s.cfg.Experts
	logits, err := s.linear(p, spot{role: roleRouter, layer: l}, routed, arch.Router)
	if err != nil {
		return nil, err
	}
	ids, chosen := p.value(l.name("ffn.experts.ids"), e.Used), p.value(l.name("ffn.experts.weights"), e.Used)
	route, err := s.routing(l)
	if err != nil {
		return nil, err
	}
	p.emit(spot{role: roleRoute, layer: l}, route, []operand{logits.all()}, ids.all(), chosen.all())

	if e.WeighInput {
		// There is one expert for each row.
		at := spot{role: roleExpertInput, layer: l}
		weighed := p.value(at.label(), s.cfg.Width)
		p.emit(at, expertSumArgs{used: 1}, []operand{y.all(), chosen.all()}, weighed.all())
		y = weighed
	}
	gate, err := s.expertProduct(p, spot{role: roleExpertGate, layer: l}, arch.ExpertGate, y, ids, e.Used)
	if err != nil {
		return nil, err
	}
	up, err := s.expertProduct(p, spot{role: roleExpertUp, layer: l}, arch.ExpertUp, y, ids, e.Used)
	if err != nil {
		return nil, err
	}
	act := p.value(l.name("ffn.experts.act"), e.Used*e.FF)
	p.emit(spot{role: roleExpertSiLUMul, layer: l}, siluMulArgs{activation: uint32(s.cfg.Activation)}, []operand{gate.all(), up.all()}, act.all())
	down, err := s.expertProduct(p, spot{role: roleExpertDown, layer: l}, arch.ExpertDown, act, ids, 1)
	if err != nil {
		return nil, err
	}
	if e.WeighInput {
		return down, nil
	}
	at := spot{role: roleExpertSum, layer: l}
	out := p.value(at.label(), s.cfg.Width)
	p.emit(at, expertSumArgs{used: e.Used}, []operand{down.all(), chosen.all()}, out.all())
	return out, nil
}

// besideExperts emits a dense block with the input y, and experts beside it, whose input is another norm
// of x, and returns the sum of the norms of their outputs. The input of the router is a third norm.
func (s *state) besideExperts(p *program, l *layerPlan, x, y *value) (*value, error) {
	sum, err := s.dense(p, l, y, denseFFN)
	if err != nil {
		return nil, err
	}
	if sum, err = s.norm(p, spot{role: roleDensePostNorm, layer: l}, sum, arch.DensePostNorm); err != nil {
		return nil, err
	}
	at := spot{role: roleRouterNorm, layer: l}
	w, err := s.normWeight(at.label(), arch.RouterNorm, l.index, s.cfg.Width)
	if err != nil {
		return nil, err
	}
	routed := p.value(at.label(), s.cfg.Width)
	p.emit(at, normArgs{w: w, eps: s.cfg.Eps, scale: float32(1 / math.Sqrt(float64(s.cfg.Width)))}, []operand{x.all()}, routed.all())
	if y, err = s.norm(p, spot{role: roleExpertNorm, layer: l}, x, arch.ExpertNorm); err != nil {
		return nil, err
	}
	out, err := s.experts(p, l, y, routed)
	if err != nil {
		return nil, err
	}
	if out, err = s.norm(p, spot{role: roleExpertPostNorm, layer: l}, out, arch.ExpertPostNorm); err != nil {
		return nil, err
	}
	p.emit(spot{role: roleExpertAdd, layer: l}, addArgs{}, []operand{out.all()}, sum.all())
	return sum, nil
}

// routing returns the arguments of the kernel that chooses experts.
func (s *state) routing(l *layerPlan) (args, error) {
	e := &s.cfg.Experts
	if !e.Sigmoid && !e.RankBias && e.Groups == 0 && e.Scale == 0 && !e.Beside {
		return routeArgs{}, nil
	}
	a := routeScoredArgs{
		experts: e.Count, used: e.Used, sigmoid: e.Sigmoid, overAll: e.OverAll, groups: max(e.Groups, 1), topGroups: max(e.TopGroups, 1), best: 1, scale: cmp.Or(e.Scale, 1),
	}
	if e.Sigmoid && e.Groups > 0 {
		a.best = 2
	}
	if e.Beside {
		t, err := s.tensor(s.cfg.Tensor(arch.ExpertScale, l.index))
		if err != nil {
			return nil, err
		}
		if a.factors, err = s.vector(l.name("ffn.expert_scale"), t, e.Count); err != nil {
			return nil, err
		}
	}
	if e.RankBias {
		t, err := s.tensor(s.cfg.Tensor(arch.RouterBias, l.index))
		if err != nil {
			return nil, err
		}
		if a.bias, err = s.vector(l.name("ffn.router_bias"), t, e.Count); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// sharedExpert emits the expert that every position uses, and adds its output to x. y is the
// normalised residual stream. If the output has a gate, that is the weight of an only expert.
func (s *state) sharedExpert(p *program, l *layerPlan, x, y *value) error {
	e := &s.cfg.Experts
	if e.SharedFF == 0 {
		return nil
	}
	var weights *value
	if e.SharedGated {
		w, err := s.sharedRouter(l)
		if err != nil {
			return err
		}
		at := spot{role: roleSharedRouter, layer: l}
		logits := p.value(at.label(), 1)
		p.emit(at, productArgs{wide: p.wide, w: w}, []operand{y.all()}, logits.all())
		ids := p.value(l.name("ffn.shared.ids"), 1)
		weights = p.value(l.name("ffn.shared.weights"), 1)
		p.emit(spot{role: roleSharedRoute, layer: l}, routeScoredArgs{experts: 1, used: 1, sigmoid: true, overAll: true, groups: 1, topGroups: 1, best: 1, scale: 1},
			[]operand{logits.all()}, ids.all(), weights.all())
	}
	down, err := s.dense(p, l, y, sharedFFN)
	if err != nil {
		return err
	}
	if weights != nil {
		at := spot{role: roleSharedGated, layer: l}
		gated := p.value(at.label(), s.cfg.Width)
		p.emit(at, expertSumArgs{used: 1}, []operand{down.all(), weights.all()}, gated.all())
		down = gated
	}
	s.residual(p, spot{role: roleSharedResidual, layer: l}, x, down)
	return nil
}

// sharedRouter returns the matrix of one row whose product is the shared expert's gate. GGUF files
// store it as a vector.
func (s *state) sharedRouter(l *layerPlan) (*weight, error) {
	t, err := s.tensor(s.cfg.Tensor(arch.SharedRouter, l.index))
	if err != nil {
		return nil, err
	}
	n := uint64(s.cfg.Width)
	if !slices.Equal(t.Shape, []uint64{n}) && !slices.Equal(t.Shape, []uint64{1, n}) || !floating(t.Type) {
		return nil, &TensorError{t.Name, fmt.Sprintf("type %s and shape %v, want [1 %d] of F32, F16 or BF16", t.Type, t.Shape, n)}
	}
	return s.share(&weight{name: l.name("ffn.shared_router"), rows: 1, cols: int(n), typ: t.Type, parts: []part{{tensor: t}}}), nil
}

// choice is a number of matrices, and how many of them a row is multiplied with.
type choice struct{ count, used int }

// chosen returns the numbers of the model's experts.
func (s *state) chosen() choice { return choice{s.cfg.Experts.Count, s.cfg.Experts.Used} }

// expertProduct emits the product of x with one matrix (gate, up or down) of each chosen expert.
// share is the number of chosen experts that have the same row of x as their input.
func (s *state) expertProduct(p *program, at spot, part arch.ExpertPart, x, ids *value, share int) (*value, error) {
	e, name := &s.cfg.Experts, at.label()
	w, err := s.expertMatrix(name, part, at.index())
	if err != nil {
		return nil, err
	}
	a := expertProductArgs{w: w, of: s.chosen(), share: share}
	if e.Bias {
		if a.bias, err = s.expertBias(name+".bias", part, at.index()); err != nil {
			return nil, err
		}
	}
	y := p.value(name, e.Used*w.rows/e.Count)
	p.emit(at, a, []operand{x.all(), ids.all()}, y.all())
	return y, nil
}

// expertMatrix returns the weight with one matrix (gate, up or down) of all experts of a layer, one
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

// expertBias returns the weight with the biases for expertMatrix, one element per row of the matrix.
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

// expertParts appends the rows of one matrix (gate, up or down) of each expert to w. find returns
// the name and the required shape of the tensor that contains them.
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
			// Consecutive rows of a tensor form one part.
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

// stepSource returns the byte range of the tensor from which a part with step > 0 selects rows. It
// is the range of one expert.
func (p *part) stepSource(cols int) (offset, size uint64) {
	size, _ = p.tensor.Type.Bytes(uint64(p.stack) * uint64(cols)) // expertMatrix has checked that rows are whole blocks
	if p.apart == 0 {
		return uint64(p.block) * size, size
	}
	apart, _ := p.tensor.Type.Bytes(uint64(p.apart))
	return uint64(p.block) * apart, size
}
