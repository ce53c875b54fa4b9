package compiler

import (
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// experts emits the feed-forward block of a layer with experts: the router, the gate, up and down
// products of the chosen experts, and their weighted sum, which it returns. y is the normalised
// residual stream.
func (s *state) experts(p *program, l *layerPlan, y *value) (*value, error) {
	e := &s.cfg.Experts
	logits, err := s.linear(p, spot{role: roleRouter, layer: l}, y, arch.Router)
	if err != nil {
		return nil, err
	}
	ids, chosen := p.value(l.name("ffn.experts.ids"), e.Used), p.value(l.name("ffn.experts.weights"), e.Used)
	p.emit(spot{role: roleRoute, layer: l}, routeArgs{}, []operand{logits.all()}, ids.all(), chosen.all())

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
	at := spot{role: roleExpertSum, layer: l}
	out := p.value(at.label(), s.cfg.Width)
	p.emit(at, expertSumArgs{}, []operand{down.all(), chosen.all()}, out.all())
	return out, nil
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
