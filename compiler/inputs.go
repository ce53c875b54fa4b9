package compiler

import (
	"math"

	"github.com/pianola-engine/pianola/arch"
)

// inputsPlan holds the values of the inputs of layers in a program: all of them, and the gates. Both
// have columns of each layer, so that rows of the two are equally far apart.
type inputsPlan struct{ all, gates *value }

// layerInputs emits the inputs of all layers, if the model has them: 1/sqrt(2) times the sum of a row
// of an embedding, and of the norm of a product of x, the model's embedding.
//
// The product is also multiplied by 1/sqrt(width). Before its norm, that only divides the epsilon.
func (s *state) layerInputs(p *program, x *value) (*inputsPlan, error) {
	in := &s.cfg.Inputs
	if in.Width == 0 {
		return nil, nil
	}
	embed, err := s.matrix("inputs.embed", arch.InputEmbed, 0)
	if err != nil {
		return nil, err
	}
	width := s.cfg.Layers * in.Width
	plan := &inputsPlan{all: p.value("inputs", width), gates: p.value("inputs.gates", width)}
	scale := float32(math.Sqrt(float64(in.Width) / 2))
	p.emit(spot{role: roleInputEmbed}, embedArgs{w: embed, scale: scale}, []operand{s.tokens.all()}, plan.all.all())
	product, err := s.linear(p, spot{role: roleInputProj}, x, arch.InputProj)
	if err != nil {
		return nil, err
	}
	w, err := s.normWeight("inputs.norm", arch.InputProjNorm, 0, in.Width)
	if err != nil {
		return nil, err
	}
	p.emit(spot{role: roleInputNorm}, headNormArgs{w: w, heads: s.cfg.Layers, eps: s.cfg.Eps * float32(s.cfg.Width)}, nil, product.all())
	p.emit(spot{role: roleInputSum}, addArgs{delta: float32(math.Sqrt(0.5))}, []operand{product.all()}, plan.all.all())
	return plan, nil
}

// layerInput emits what a layer does with its input: x += norm(out(activation(gate(x)) * input)). With
// alternating updates, the gate reads the corrected and scaled x, and the other copies get the sum.
func (s *state) layerInput(p *program, l *layerPlan, x *value, inputs *inputsPlan, copies *copiesPlan) error {
	if inputs == nil {
		return nil
	}
	from, err := copies.correct(p, l, x)
	if err != nil {
		return err
	}
	n := s.cfg.Inputs.Width
	gate, input := operand{v: inputs.gates, off: l.index * n, width: n}, operand{v: inputs.all, off: l.index * n, width: n}
	at := spot{role: roleInputGate, layer: l}
	w, err := s.matrix(at.label(), arch.InputGate, l.index)
	if err != nil {
		return err
	}
	p.emit(at, productArgs{wide: p.wide, w: w}, []operand{from.all()}, gate)
	act := p.value(l.name("input.act"), n)
	p.emit(spot{role: roleInputMul, layer: l}, siluMulArgs{activation: uint32(s.cfg.Activation)}, []operand{gate, input}, act.all())
	out, err := s.linear(p, spot{role: roleInputOut, layer: l}, act, arch.InputOut)
	if err != nil {
		return err
	}
	if copies != nil {
		return copies.add(p, l, out)
	}
	if out, err = s.norm(p, spot{role: roleInputPostNorm, layer: l}, out, arch.InputPostNorm); err != nil {
		return err
	}
	s.residual(p, spot{role: roleInputResidual, layer: l}, x, out)
	return nil
}

// layerScale emits the multiplication of the residual stream by the layer's number, if it has one.
func (s *state) layerScale(p *program, l *layerPlan, x *value) error {
	if !s.cfg.LayerScale {
		return nil
	}
	at := spot{role: roleLayerScale, layer: l}
	t, err := s.tensor(s.cfg.Tensor(arch.LayerScale, l.index))
	if err != nil {
		return err
	}
	w, err := s.vector(at.label(), t, 1)
	if err != nil {
		return err
	}
	p.emit(at, scaleArgs{factors: w, span: 1}, nil, x.all())
	return nil
}
