package compiler

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// graph makes the programs, one node for each operation.
func (s *state) graph() error {
	s.planKV()
	chunk := int(s.t.Header.Chunk)

	decode := s.newProgram(table.ProgramDecode, 1, false, table.FlagChooses)
	x, err := s.body(decode)
	if err != nil {
		return err
	}
	if err := s.head(decode, x, false, s.argmax); err != nil {
		return err
	}

	prefill := s.newProgram(table.ProgramPrefill, chunk, true, 0)
	if x, err = s.body(prefill); err != nil {
		return err
	}

	if err := s.head(s.newProgram(table.ProgramHead, 1, false, table.FlagChooses|table.FlagReadsRow), x, true, s.argmax); err != nil {
		return err
	}
	last := x
	if rows := int(s.t.Header.LogitsRows); rows > 0 {
		p := s.newProgram(table.ProgramLogits, rows, true, table.FlagReadsRow)
		y, err := s.outNorm(p, x, true)
		if err != nil {
			return err
		}
		if err := s.outLogits(p, y); err != nil {
			return err
		}
	}
	if s.hidden != nil {
		if err := s.keepHidden(s.newProgram(table.ProgramHidden, chunk, true, table.FlagReadsRow), x); err != nil {
			return err
		}
	}
	if s.in.Options.Draft > 0 {
		if err := s.verify(); err != nil {
			return err
		}
	}
	if s.sampler == nil {
		return nil
	}
	const samples = table.FlagChooses | table.FlagSamples
	if err := s.choosing(table.ProgramSample, table.ProgramSampleHead, samples, last, s.sample); err != nil || s.ranks == nil {
		return err
	}
	return s.choosing(table.ProgramRanked, table.ProgramRankedHead, samples|table.FlagRanks, last, s.ranked)
}

// choosing adds a program that decodes and one that is the head of last, the chunk
// that prefill leaves, both of which end with choose.
func (s *state) choosing(decode, head string, flags table.Flags, last *value, choose func(p *program)) error {
	p := s.newProgram(decode, 1, false, flags)
	x, err := s.body(p)
	if err != nil {
		return err
	}
	if err := s.head(p, x, false, choose); err != nil {
		return err
	}
	return s.head(s.newProgram(head, 1, false, flags|table.FlagReadsRow), last, true, choose)
}

func (s *state) newProgram(name string, rows int, wide bool, flags table.Flags) *program {
	p := &program{name: name, flags: flags, rows: rows, wide: wide}
	s.programs = append(s.programs, p)
	return p
}

// planKV makes the cache slots. A layer that sees a window keeps the window, a
// chunk and a draft, so that a chunk can be written before its first row attends; one
// that sees the positions at the start keeps those too.
func (s *state) planKV() {
	ctx, chunk := int(s.t.Header.Context), int(s.t.Header.Chunk)
	for i := range s.cfg.Layers {
		l := &layerPlan{index: i, cap: ctx, config: s.cfg.Layer[i]}
		if l.window = l.config.Window; l.window == 0 {
			l.window, l.sinks = s.in.Options.KVWindow, s.in.Options.KVSinks
		}
		if l.window > 0 {
			l.cap = min(ctx, l.sinks+l.window+chunk+s.draftRows())
			// A chunk's rows are apart from those that stay.
			l.cap = max(l.cap, l.sinks+max(chunk, s.draftRows()))
		}
		size := uint64(s.cfg.KVHeads) * uint64(l.cap) * decl.KVRowBytes(s.kv, s.cfg.HeadDim)
		l.k = s.slot(fmt.Sprintf("kv.%d.k", i), table.SlotKV, table.ScopeSession, size)
		l.v = s.slot(fmt.Sprintf("kv.%d.v", i), table.SlotKV, table.ScopeSession, size)
		s.layers = append(s.layers, l)
	}
}

// value makes a value of program p in the arena.
func (p *program) value(name string, width int) *value {
	return &value{name: name, width: width, rows: p.rows}
}

// emit adds a node.
func (p *program) emit(n *node) *node {
	p.nodes = append(p.nodes, n)
	return n
}

// body emits everything from the embedding to the last residual, which it
// returns.
func (s *state) body(p *program) (*value, error) {
	embed, err := s.matrix("embed", arch.Embed, 0)
	if err != nil {
		return nil, err
	}
	x := p.value("x", s.cfg.Width)
	p.emit(&node{kernel: kernels.Embed, label: "embed", region: "x", in: []operand{s.tokens.all()}, out: []operand{x.all()}, w: embed, scale: cmp.Or(s.cfg.EmbedScale, 1)})

	angles, turn := make([]*value, len(s.cfg.Ropes)), make([]*value, len(s.cfg.Ropes))
	for i := range s.cfg.Ropes {
		if angles[i], err = s.angles(p, i, 0); err != nil {
			return nil, err
		}
	}
	for _, l := range s.layers {
		if i := l.config.Rope; l.sinks > 0 && turn[i] == nil {
			if turn[i], err = s.angles(p, i, l.sinks+l.window); err != nil {
				return nil, err
			}
		}
	}
	for _, l := range s.layers {
		if err := s.attention(p, l, x, angles[l.config.Rope], turn[l.config.Rope]); err != nil {
			return nil, err
		}
		if err := s.feedForward(p, l, x); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// angles emits the cosines and sines of one RoPE set-up for the rows'
// positions, which all its layers share: those that turn Q back for the positions
// at the start if still is not 0, which is how many see each other as they are.
func (s *state) angles(p *program, i, still int) (*value, error) {
	r := &s.cfg.Ropes[i]
	name := "rope"
	if len(s.cfg.Ropes) > 1 {
		name = fmt.Sprintf("rope.%d", i)
	}
	invFreq, factors := r.For(int(s.t.Header.Context))
	data := make([]byte, 0, 4*len(invFreq))
	for _, f := range invFreq {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(f))
	}
	n := &node{
		kernel: kernels.RoPEAngles, label: name, region: name, half: r.Dim / 2, scale: r.AttnFactor, still: still,
		w: s.share(&weight{name: name + ".inv_freq", rows: 1, cols: r.Dim / 2, typ: dtype.F32, parts: []part{{data: data}}}),
	}
	if factors != "" {
		t, ok := s.in.Tensors.Tensor(factors)
		if !ok {
			return nil, &TensorError{factors, "missing"}
		}
		var err error
		if n.extra, err = s.vector(name+".factors", t, r.Dim/2); err != nil {
			return nil, err
		}
	}
	out := p.value(name+".angles", r.Dim)
	if still > 0 {
		// Q has the factor already.
		n.label, n.region, n.scale, out.name = name+".turn", name+".turn", 1, name+".turn"
	}
	n.out = []operand{out.all()}
	p.emit(n)
	return out, nil
}

// attention emits a layer's attention block: norm, Q, K, V, QK norm, RoPE, KV
// write, attention, output projection, residual.
func (s *state) attention(p *program, l *layerPlan, x, angles, turn *value) error {
	c := s.cfg
	pre := fmt.Sprintf("layer.%d.attn.", l.index)
	y, err := s.norm(p, pre+"norm", x, arch.AttnNorm, l.index)
	if err != nil {
		return err
	}
	q, err := s.linear(p, pre+"q", y, arch.Q, l.index)
	if err != nil {
		return err
	}
	k, err := s.linear(p, pre+"k", y, arch.K, l.index)
	if err != nil {
		return err
	}
	v, err := s.linear(p, pre+"v", y, arch.V, l.index)
	if err != nil {
		return err
	}
	if c.QKNorm {
		for _, h := range []struct {
			name  string
			v     *value
			role  arch.Role
			heads int
		}{{"q_norm", q, arch.QNorm, c.Heads}, {"k_norm", k, arch.KNorm, c.KVHeads}} {
			n, heads := c.HeadDim, h.heads
			if c.WideQKNorm {
				n, heads = n*heads, 1 // all heads as if they were one
			}
			w, err := s.normWeight(pre+h.name, h.role, l.index, n)
			if err != nil {
				return err
			}
			p.emit(&node{kernel: kernels.HeadNorm, label: pre + h.name, out: []operand{h.v.all()}, w: w, heads: heads, eps: c.Eps, layer: l})
		}
	}
	half := c.Ropes[l.config.Rope].Dim / 2
	if l.config.NoRope {
		half = 0
	} else {
		p.emit(&node{kernel: kernels.RoPE, label: pre + "q_rope", in: []operand{angles.all()}, out: []operand{q.all()}, heads: c.Heads, half: half, layer: l})
		p.emit(&node{kernel: kernels.RoPE, label: pre + "k_rope", in: []operand{angles.all()}, out: []operand{k.all()}, heads: c.KVHeads, half: half, layer: l})
	}
	p.emit(&node{kernel: kernels.KVWrite, label: pre + "kv_write", in: []operand{k.all(), v.all()}, out: []operand{l.k.all(), l.v.all()}, kvHeads: c.KVHeads, layer: l})
	a := p.value(pre+"out", c.Heads*c.HeadDim)
	in := []operand{q.all(), l.k.all(), l.v.all()}
	if l.sinks > 0 {
		in = append(in, turn.all())
	}
	learned, err := s.attnSinks(pre+"sinks", l.index)
	if err != nil {
		return err
	}
	p.emit(&node{
		kernel: kernels.Attn, label: pre + "attention", region: a.name, in: in, out: []operand{a.all()}, extra: learned,
		heads: c.Heads, kvHeads: c.KVHeads, window: l.window, splits: 1, half: half, layer: l,
		scale: cmp.Or(c.AttnScale, float32(1/math.Sqrt(float64(c.HeadDim)))), softCap: c.AttnSoftCap,
	})
	o, err := s.linear(p, pre+"o", a, arch.O, l.index)
	if err != nil {
		return err
	}
	if o, err = s.norm(p, pre+"post_norm", o, arch.AttnPostNorm, l.index); err != nil {
		return err
	}
	s.residual(p, pre+"residual", x, o)
	return nil
}

// attnSinks returns the weight that has the heads' logits without a position, nil
// if there are none.
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

// feedForward emits a layer's feed-forward block, or its experts.
func (s *state) feedForward(p *program, l *layerPlan, x *value) error {
	pre := fmt.Sprintf("layer.%d.ffn.", l.index)
	y, err := s.norm(p, pre+"norm", x, arch.FFNNorm, l.index)
	if err != nil {
		return err
	}
	if l.config.Sparse {
		sum, err := s.experts(p, l, y)
		if err != nil {
			return err
		}
		s.residual(p, pre+"residual", x, sum)
		return nil
	}
	act, err := s.activated(p, pre, y, l)
	if err != nil {
		return err
	}
	down, err := s.linear(p, pre+"down", act, arch.Down, l.index)
	if err != nil {
		return err
	}
	if down, err = s.norm(p, pre+"post_norm", down, arch.FFNPostNorm, l.index); err != nil {
		return err
	}
	s.residual(p, pre+"residual", x, down)
	return nil
}

// activated emits what the down projection reads of y: the activation of the gate
// times up, or of up.
func (s *state) activated(p *program, pre string, y *value, l *layerPlan) (*value, error) {
	if s.cfg.Ungated {
		return s.ungated(p, pre, y, l)
	}
	gate, err := s.linear(p, pre+"gate", y, arch.Gate, l.index)
	if err != nil {
		return nil, err
	}
	up, err := s.linear(p, pre+"up", y, arch.Up, l.index)
	if err != nil {
		return nil, err
	}
	act := p.value(pre+"act", s.cfg.FF)
	p.emit(&node{
		kernel: kernels.SiLUMul, label: pre + "silu_mul", region: act.name, in: []operand{gate.all(), up.all()}, out: []operand{act.all()},
		activation: activation(s.cfg.Activation),
	})
	return act, nil
}

// activation returns the declaration's value of an activation.
func activation(a arch.Activation) uint32 {
	switch a {
	case arch.GELUTanh:
		return decl.ActivationGELUTanh
	case arch.GELU:
		return decl.ActivationGELU
	case arch.ClampedSwiGLU:
		return decl.ActivationClampedSwiGLU
	}
	return decl.ActivationSiLU
}

// residual emits x += delta, by the configuration's factor.
func (s *state) residual(p *program, label string, x, delta *value) {
	p.emit(&node{kernel: kernels.Add, label: label, in: []operand{delta.all()}, out: []operand{x.all()}, delta: s.cfg.ResidualScale})
}

// head emits what turns the residual stream into the next token, which choose
// takes of the logits. rowPatch says that x is a chunk, of which step.Row is the
// row.
func (s *state) head(p *program, x *value, rowPatch bool, choose func(*program)) error {
	y, err := s.outNorm(p, x, rowPatch)
	if err != nil {
		return err
	}
	if err := s.outLogits(p, y); err != nil {
		return err
	}
	choose(p)
	return nil
}

// keepHidden emits the last norm of a chunk's rows, into their slot.
func (s *state) keepHidden(p *program, x *value) error {
	kernel, w, err := s.normKind("out.norm", arch.OutNorm, 0)
	if err != nil {
		return err
	}
	p.emit(&node{
		kernel: kernel, label: "out.norm", in: []operand{x.all()}, out: []operand{s.hidden.all()}, w: w, eps: s.cfg.Eps, rowPatch: true,
	})
	return nil
}

// argmax emits the choice of the likeliest token.
func (s *state) argmax(p *program) {
	p.emit(&node{
		kernel: kernels.Argmax, label: "out.argmax",
		in: []operand{{v: s.logits, width: s.cfg.Vocab}, s.stops.all()}, out: []operand{s.tokens.all()},
	})
}

func (s *state) outNorm(p *program, x *value, rowPatch bool) (*value, error) {
	y, err := s.norm(p, "out.norm", x, arch.OutNorm, 0)
	if err != nil {
		return nil, err
	}
	n := p.nodes[len(p.nodes)-1]
	n.rowPatch = rowPatch
	// What divides the logits divides their product's input.
	if n.scale = s.cfg.LogitScale; n.scale != 0 && n.kernel != kernels.RMSNorm {
		return nil, fmt.Errorf("compiler: a factor of the logits behind a norm that subtracts the mean is not supported")
	}
	return y, nil
}

func (s *state) outLogits(p *program, y *value) error {
	role, name := arch.Head, "out.logits"
	if s.cfg.TiedHead {
		role, name = arch.Embed, "embed"
	}
	w, err := s.matrix(name, role, 0)
	if err != nil {
		return err
	}
	p.emit(&node{kernel: p.matmul(), label: "out.logits", in: []operand{y.all()}, out: []operand{s.logits.all()}, w: w})
	if limit := s.cfg.LogitSoftCap; limit > 0 {
		p.emit(&node{kernel: kernels.SoftCap, label: "out.soft_cap", out: []operand{s.logits.all()}, softCap: limit})
	}
	return nil
}

// norm emits y = norm(x) * w and returns y; x itself if the family has no norm
// there.
func (s *state) norm(p *program, label string, x *value, role arch.Role, layer int) (*value, error) {
	if s.cfg.Tensor(role, layer) == "" {
		return x, nil
	}
	kernel, w, err := s.normKind(label, role, layer)
	if err != nil {
		return nil, err
	}
	y := p.value(label, s.cfg.Width)
	p.emit(&node{kernel: kernel, label: label, region: y.name, in: []operand{x.all()}, out: []operand{y.all()}, w: w, eps: s.cfg.Eps})
	return y, nil
}

// linear emits y = W x (+ b) and returns y.
func (s *state) linear(p *program, label string, x *value, role arch.Role, layer int) (*value, error) {
	w, err := s.matrix(label, role, layer)
	if err != nil {
		return nil, err
	}
	n := &node{kernel: p.matmul(), label: label, region: label, in: []operand{x.all()}, w: w}
	if s.cfg.Bias.Has(role) {
		t, err := s.tensor(s.cfg.BiasTensor(role, layer))
		if err != nil {
			return nil, err
		}
		first, count, total := s.cfg.Rows(role)
		if n.bias, err = s.vectorOf(label+".bias", t, first, count, total); err != nil {
			return nil, err
		}
	}
	y := p.value(label, w.rows)
	n.out = []operand{y.all()}
	p.emit(n)
	return y, nil
}
