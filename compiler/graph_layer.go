package compiler

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/pianola-engine/pianola/arch"
)

// attention emits a layer's attention block after the norm with the result y: Q, K, V, QK norm, RoPE,
// KV write, attention, output projection and residual; or the block that the layer has instead of
// attention, or before it.
func (s *state) attention(p *program, l *layerPlan, x, y, angles, turn *value) (err error) {
	c := s.cfg
	if l.config.Mixer == arch.NoMixer {
		return nil
	}
	if l.config.Mixer == arch.ShortConv {
		return s.shortConv(p, l, x, y)
	}
	if l.config.Mixer == arch.GatedDelta {
		return s.gatedDelta(p, l, x, y)
	}
	if l.config.Mixer == arch.Mamba2 {
		if err := s.mamba(p, l, x, y); err != nil || !l.config.Beside {
			return err
		}
	}
	if c.Latent.KVRank > 0 {
		return s.latentAttention(p, l, x, y, angles, turn)
	}
	var qkv [3]*value
	var gate *value
	if c.AttnGate {
		if qkv[0], gate, err = s.gatedQ(p, l, y); err != nil {
			return err
		}
	}
	for i, of := range []struct {
		role role
		from arch.Role
	}{{roleQ, arch.Q}, {roleK, arch.K}, {roleV, arch.V}} {
		if qkv[i] != nil || i > 0 && l.config.KVBack > 0 {
			continue
		}
		if of.from == arch.V && l.config.ValueIsKey {
			of.from = arch.K
		}
		if qkv[i], err = s.linear(p, spot{role: of.role, layer: l}, y, of.from); err != nil {
			return err
		}
	}
	q, k, v := qkv[0], qkv[1], qkv[2]
	if c.ValueNorm && v != nil {
		s.valueNorm(p, l, v)
	}
	if c.QKNorm && !c.QKNormRotated {
		if err := s.headNorms(p, l, q, k); err != nil {
			return err
		}
	}
	if c.Temper.Scale != 0 && (l.config.NoRope || !c.Temper.NoRope) {
		s.temper(p, l, q)
	}
	half := c.Ropes[l.config.Rope].Dim / 2
	if l.config.NoRope {
		half = 0
	} else {
		p.emit(spot{role: roleQRope, layer: l}, ropeArgs{heads: c.Heads, half: half}, []operand{angles.all()}, q.all())
		if k != nil {
			p.emit(spot{role: roleKRope, layer: l}, ropeArgs{heads: l.kvHeads, half: half}, []operand{angles.all()}, k.all())
		}
	}
	if c.QKNorm && c.QKNormRotated && !(c.BareQKNorm && l.config.NoRope) {
		if err := s.headNorms(p, l, q, k); err != nil {
			return err
		}
	}
	if k != nil {
		p.emit(spot{role: roleKVWrite, layer: l}, kvWriteArgs{kvHeads: l.kvHeads}, []operand{k.all(), v.all()}, l.k.all(), l.v.all())
	}
	in := []operand{q.all(), l.k.all(), l.v.all()}
	if l.sinks > 0 {
		in = append(in, turn.all())
	}
	learned, err := s.attnSinks(l.name("attn.sinks"), l.index)
	if err != nil {
		return err
	}
	a := s.attend(p, l, in, half, learned)
	if gate != nil {
		p.emit(spot{role: roleGateMul, layer: l}, sigmoidMulArgs{}, []operand{gate.all()}, a.all())
	}
	return s.attended(p, l, x, a)
}

// attend emits attention of the operands in, and returns its result.
func (s *state) attend(p *program, l *layerPlan, in []operand, half int, learned *weight) *value {
	c := s.cfg
	a := p.value(l.name("attn.out"), c.Heads*l.headDim)
	attention := attentionArgs{
		heads: c.Heads, kvHeads: l.kvHeads, half: half, window: l.window, splits: 1,
		scale: cmp.Or(c.AttnScale, float32(1/math.Sqrt(float64(l.headDim)))), softCap: c.AttnSoftCap, learned: learned, chunked: l.config.Chunked,
	}
	if tiled, ok := s.tiledAttention(p, l, attention); ok {
		p.emit(spot{role: roleAttention, layer: l}, tiled, in, a.all())
	} else {
		p.emit(spot{role: roleAttention, layer: l}, attention, in, a.all())
	}
	return a
}

// attended emits what follows attention with the result a: the output projection and the residual.
func (s *state) attended(p *program, l *layerPlan, x, a *value) error {
	o, err := s.linear(p, spot{role: roleO, layer: l}, a, arch.O)
	if err != nil {
		return err
	}
	if o, err = s.norm(p, spot{role: roleAttnPostNorm, layer: l}, o, arch.AttnPostNorm); err != nil {
		return err
	}
	factor := s.cfg.Factors.Attn
	if s.cfg.AltUp.Copies > 0 {
		factor = laurelScale
	}
	s.scaledResidual(p, spot{role: roleAttnResidual, layer: l}, x, o, factor)
	return nil
}

// headNorms emits the norms of the heads of Q and of K, unless the layer has no K of its own.
func (s *state) headNorms(p *program, l *layerPlan, q, k *value) error {
	if err := s.headNorm(p, spot{role: roleQNorm, layer: l}, q, arch.QNorm, s.cfg.Heads); err != nil {
		return err
	}
	if k == nil {
		return nil
	}
	return s.headNorm(p, spot{role: roleKNorm, layer: l}, k, arch.KNorm, l.kvHeads)
}

// valueNorm emits the norm of the heads of V, which has no weights.
func (s *state) valueNorm(p *program, l *layerPlan, v *value) {
	p.emit(spot{role: roleVNorm, layer: l}, headNormArgs{w: s.ones(l.headDim), heads: l.kvHeads, eps: s.cfg.Eps}, nil, v.all())
}

// ones returns the weights of a norm of heads that has none.
func (s *state) ones(n int) *weight {
	return s.constant(fmt.Sprintf("attn.ones.%d", n), slices.Repeat([]float32{1}, n))
}

// headNormWeight returns the weights of the norm of Q or K, of n elements.
func (s *state) headNormWeight(at spot, from arch.Role, n int) (*weight, error) {
	if s.cfg.BareQKNorm {
		return s.ones(n), nil
	}
	return s.normWeight(at.label(), from, at.index(), n)
}

// headNorm emits the norm of Q or K, either of each head or, with WideQKNorm, of all heads together.
func (s *state) headNorm(p *program, at spot, v *value, from arch.Role, heads int) error {
	n := at.layer.headDim
	if s.cfg.QKLayerNorm {
		t, err := s.tensor(s.cfg.Tensor(from, at.index()))
		if err != nil {
			return err
		}
		if slices.Equal(t.Shape, s.cfg.WantShape(from, at.index())) {
			t.Shape = []uint64{uint64(heads * n)}
		}
		w, err := s.vector(at.label(), t, heads*n)
		if err != nil {
			return err
		}
		p.emit(at, headLayerNormArgs{w: w, heads: heads, eps: s.cfg.Eps}, nil, v.all())
		return nil
	}
	if s.cfg.WideQKNorm {
		n, heads = n*heads, 1
	}
	w, err := s.headNormWeight(at, from, n)
	if err != nil {
		return err
	}
	p.emit(at, headNormArgs{w: w, heads: heads, eps: s.cfg.Eps}, nil, v.all())
	return nil
}

// attnSinks returns the weight with the learned sink logits, one per head, or nil if the model has
// none.
func (s *state) attnSinks(name string, layer int) (*weight, error) {
	if !s.cfg.AttnSinks {
		return nil, nil
	}
	t, err := s.tensor(s.cfg.Tensor(arch.AttnSinks, layer))
	if err != nil {
		return nil, err
	}
	return s.vector(name, t, s.cfg.Heads)
}

// feedForward emits a layer's feed-forward block, dense or with experts, after the norm with the
// result y.
func (s *state) feedForward(p *program, l *layerPlan, x, y *value) error {
	if l.config.NoFF {
		return nil
	}
	residual := spot{role: roleFFNResidual, layer: l}
	if l.config.Sparse && !s.cfg.Experts.Beside {
		sum, err := s.experts(p, l, y, y)
		if err != nil {
			return err
		}
		s.residual(p, residual, x, sum)
		return s.sharedExpert(p, l, x, y)
	}
	block := func() (*value, error) { return s.dense(p, l, y, denseFFN) }
	if l.config.Sparse {
		block = func() (*value, error) { return s.besideExperts(p, l, x, y) }
	}
	down, err := block()
	if err != nil {
		return err
	}
	if down, err = s.norm(p, spot{role: roleFFNPostNorm, layer: l}, down, arch.FFNPostNorm); err != nil {
		return err
	}
	s.scaledResidual(p, residual, x, down, s.cfg.Factors.Down)
	return nil
}

// ffn are the matrices of a feed-forward block that every position uses.
type ffn struct{ gate, up, down arch.Role }

var (
	denseFFN  = ffn{arch.Gate, arch.Up, arch.Down}
	sharedFFN = ffn{arch.SharedGate, arch.SharedUp, arch.SharedDown}
)

// dense emits such a block and returns the output of its down product.
func (s *state) dense(p *program, l *layerPlan, y *value, of ffn) (*value, error) {
	act, err := s.activated(p, y, l, of)
	if err != nil {
		return nil, err
	}
	return s.linear(p, spot{role: roleDown, layer: l}, act, of.down)
}

// activated emits the input of the down product: the activation of gate, times up, or the activation
// of up in a model without gates.
func (s *state) activated(p *program, y *value, l *layerPlan, of ffn) (*value, error) {
	if s.cfg.Ungated {
		return s.ungated(p, y, l)
	}
	gate, err := s.linear(p, spot{role: roleGate, layer: l}, y, of.gate)
	if err != nil {
		return nil, err
	}
	up, err := s.linear(p, spot{role: roleUp, layer: l}, y, of.up)
	if err != nil {
		return nil, err
	}
	if factor := s.cfg.Factors.Gate; factor != 0 {
		p.emit(spot{role: roleGateScale, layer: l}, scaleArgs{factors: s.constant("ffn.gate_scale", []float32{factor}), span: 1}, nil, gate.all())
	}
	if l.config.TopGates && of == denseFFN {
		p.emit(spot{role: roleTopGates, layer: l}, topGatesArgs{cutoff: l.config.GateCutoff}, nil, gate.all())
	}
	act := p.value(l.name("ffn.act"), gate.width)
	p.emit(spot{role: roleSiLUMul, layer: l}, siluMulArgs{activation: uint32(s.cfg.Activation)}, []operand{gate.all(), up.all()}, act.all())
	return act, nil
}

// ungated emits the up product of y and its activation, and returns the activation.
func (s *state) ungated(p *program, y *value, l *layerPlan) (*value, error) {
	up, err := s.linear(p, spot{role: roleUp, layer: l}, y, arch.Up)
	if err != nil {
		return nil, err
	}
	p.emit(spot{role: roleActivate, layer: l}, activateArgs{activation: uint32(s.cfg.Activation)}, nil, up.all())
	return up, nil
}

// residual emits x += ResidualScale * delta, with the configuration's factor.
func (s *state) residual(p *program, at spot, x, delta *value) {
	s.scaledResidual(p, at, x, delta, 0)
}

// scaledResidual emits x += ResidualScale * factor * delta, where factors of 0 mean 1.
func (s *state) scaledResidual(p *program, at spot, x, delta *value, factor float32) {
	if scale := s.cfg.ResidualScale; scale != 0 {
		factor = cmp.Or(factor, 1) * scale
	}
	p.emit(at, addArgs{delta: factor}, []operand{delta.all()}, x.all())
}

// norm emits y = norm(x) * w and returns y. If the model has no such norm, it returns x.
func (s *state) norm(p *program, at spot, x *value, from arch.Role) (*value, error) {
	if s.cfg.Tensor(from, at.index()) == "" {
		return x, nil
	}
	a, err := s.normArgs(at, from)
	if err != nil {
		return nil, err
	}
	y := p.value(at.label(), s.cfg.Width)
	p.emit(at, a, []operand{x.all()}, y.all())
	return y, nil
}

// normArgs returns the args of a norm of the residual stream.
func (s *state) normArgs(at spot, from arch.Role) (normArgs, error) {
	a := normArgs{mean: s.cfg.LayerNorm, eps: s.cfg.Eps}
	n, name := s.cfg.Width, at.label()
	if !a.mean {
		w, err := s.normWeight(name, from, at.index(), n)
		a.w = w
		return a, err
	}
	w, err := s.normWeight(name+".weight", from, at.index(), n)
	if err != nil {
		return a, err
	}
	var bias *weight
	if s.cfg.PlainLayerNorm {
		bias = s.constant(name+".bias", make([]float32, n))
	} else {
		t, err := s.tensor(s.cfg.BiasTensor(from, at.index()))
		if err != nil {
			return a, err
		}
		if bias, err = s.vector(name+".bias", t, n); err != nil {
			return a, err
		}
	}
	a.w = s.concatVectors(name, w, bias)
	return a, nil
}

// linear emits y = W x (+ b) and returns y.
func (s *state) linear(p *program, at spot, x *value, from arch.Role) (*value, error) {
	name := at.label()
	w, err := s.matrix(name, from, at.index())
	if err != nil {
		return nil, err
	}
	a := productArgs{wide: p.wide, w: w}
	if s.cfg.Bias.Has(from) {
		t, err := s.tensor(s.cfg.BiasTensor(from, at.index()))
		if err != nil {
			return nil, err
		}
		first, count, total := s.cfg.Rows(from, at.index())
		if a.bias, err = s.vectorOf(name+".bias", t, first, count, total); err != nil {
			return nil, err
		}
	}
	y := p.value(name, w.rows)
	p.emit(at, a, []operand{x.all()}, y.all())
	return y, nil
}
