package compiler

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/table"
)

// graph creates the programs, with one node per operation.
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
	if few := s.in.Chip.PrefillFew; few > 0 && few < chunk && !s.in.Options.Exact {
		if err := s.bodyInto(s.newProgram(table.ProgramPrefillFew, few, true, 0), x); err != nil {
			return err
		}
		if few > formRows && s.forms() {
			if err := s.bodyInto(s.newProgram(table.ProgramPrefillFewest, formRows, true, 0), x); err != nil {
				return err
			}
		}
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
	if s.pool != nil {
		if err := errors.Join(s.batches(), s.fills(last)); err != nil {
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

// choosing adds two programs that end with the nodes that choose emits. The program decode decodes a
// token, and the program head applies the model's head to last, the output of prefill.
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

// newProgram adds a program. In a table for batching all programs are wide, so that decode and
// prefill use the same kernels.
func (s *state) newProgram(name string, rows int, wide bool, flags table.Flags) *program {
	p := &program{name: name, flags: flags, rows: rows, wide: wide || s.in.Options.Batching}
	s.programs = append(s.programs, p)
	return p
}

// planKV creates the slots of the KV caches and of recurrent state. A layer with an attention window keeps the window, a
// chunk and a draft, so that all rows of a chunk can be written before its first row attends. It
// also keeps the attention sinks.
func (s *state) planKV() {
	ctx, chunk := int(s.t.Header.Context), int(s.t.Header.Chunk)
	for i := range s.cfg.Layers {
		l := &layerPlan{index: i, cap: ctx, headDim: s.cfg.HeadDimAt(i), kvHeads: s.cfg.KVHeadsAt(i), config: s.cfg.Layer[i]}
		if l.config.Mixer.Recurrent() {
			s.planState(l)
		}
		if !l.config.Attends() {
			s.layers = append(s.layers, l)
			continue
		}
		if l.window = l.config.Window; l.window == 0 {
			l.window, l.sinks = s.in.Options.KVWindow, s.in.Options.KVSinks
		}
		if l.window > 0 {
			l.cap = min(ctx, l.sinks+l.window+chunk+s.draftRows())
			// The rows of a chunk must not overwrite the sinks.
			l.cap = max(l.cap, l.sinks+max(chunk, s.draftRows()))
		}
		if s.pool != nil {
			s.planPages(l)
		}
		if back := l.config.KVBack; back > 0 {
			l.k, l.v = s.layers[i-back].k, s.layers[i-back].v
			s.layers = append(s.layers, l)
			continue
		}
		size := uint64(l.kvHeads) * uint64(l.cap) * decl.KVRowBytes(s.kv, l.headDim)
		l.k = s.slot(fmt.Sprintf("kv.%d.k", i), table.SlotKV, table.ScopeSession, size)
		if l.v = l.k; s.cfg.Latent.KVRank == 0 {
			l.v = s.slot(fmt.Sprintf("kv.%d.v", i), table.SlotKV, table.ScopeSession, size)
		}
		s.layers = append(s.layers, l)
	}
}

// value creates a value of program p in the arena.
func (p *program) value(name string, width int) *value {
	return &value{name: name, width: width, rows: p.rows}
}

// emit adds a node.
func (p *program) emit(at spot, a args, in []operand, out ...operand) {
	p.nodes = append(p.nodes, &node{spot: at, args: a, in: in, out: out})
}

// body emits all nodes from the embedding to the last residual, and returns that.
func (s *state) body(p *program) (*value, error) {
	x := p.value("x", s.cfg.Width)
	return x, s.bodyInto(p, x)
}

// bodyInto emits the nodes of body, with x as the residual.
func (s *state) bodyInto(p *program, x *value) error {
	embed, err := s.matrix("embed", arch.Embed, 0)
	if err != nil {
		return err
	}
	p.emit(spot{role: roleEmbed}, embedArgs{w: embed, scale: cmp.Or(s.cfg.EmbedScale, 1)}, []operand{s.tokens.all()}, x.all())

	inputs, err := s.layerInputs(p, x)
	if err != nil {
		return err
	}
	angles, turn := make([]*value, len(s.cfg.Ropes)), make([]*value, len(s.cfg.Ropes))
	for i := range s.cfg.Ropes {
		if angles[i], err = s.angles(p, i, 0); err != nil {
			return err
		}
	}
	for _, l := range s.layers {
		if i := l.config.Rope; l.sinks > 0 && turn[i] == nil {
			if turn[i], err = s.angles(p, i, l.sinks+l.window); err != nil {
				return err
			}
		}
	}
	copies, err := s.altUp(p, x)
	if err != nil {
		return err
	}
	for _, l := range s.layers {
		input, err := copies.predict(p, l, x)
		if err != nil {
			return err
		}
		y, err := s.norm(p, spot{role: roleAttnNorm, layer: l}, input, arch.AttnNorm)
		if err != nil {
			return err
		}
		low, err := copies.laurelDown(p, l, y)
		if err != nil {
			return err
		}
		if err := s.attention(p, l, x, y, angles[l.config.Rope], turn[l.config.Rope]); err != nil {
			return err
		}
		if err := copies.laurelUp(p, l, x, y, low); err != nil {
			return err
		}
		if !s.cfg.Parallel && !l.config.NoFF && l.config.Mixer != arch.NoMixer {
			if y, err = s.norm(p, spot{role: roleFFNNorm, layer: l}, x, arch.FFNNorm); err != nil {
				return err
			}
		}
		if err := s.feedForward(p, l, x, y); err != nil {
			return err
		}
		if err := s.layerInput(p, l, x, inputs, copies); err != nil {
			return err
		}
		if err := s.layerScale(p, l, x); err != nil {
			return err
		}
	}
	return copies.merge(p, x)
}

// angles emits the cosines and sines of the rows' positions for RoPE configuration i. All layers
// with this configuration share them. If still is not 0, it emits the angles by which Q is rotated
// back for attention sinks; they are 0 for the first still positions.
func (s *state) angles(p *program, i, still int) (*value, error) {
	r := &s.cfg.Ropes[i]
	at := spot{role: roleAngles}
	if len(s.cfg.Ropes) > 1 {
		at = at.with(fmt.Sprintf(".%d", i))
	}
	invFreq, factors := r.For(int(s.t.Header.Context))
	a := anglesArgs{
		half: r.Dim / 2, factor: r.AttnFactor, still: still,
		invFreq: s.constant(at.label()+".inv_freq", invFreq),
	}
	if factors != "" {
		t, ok := s.in.Tensors.Tensor(factors)
		if !ok {
			return nil, &TensorError{factors, "missing"}
		}
		var err error
		if a.factors, err = s.vector(at.label()+".factors", t, r.Dim/2); err != nil {
			return nil, err
		}
	}
	name := at.label() + ".angles"
	if still > 0 {
		at, a.factor = at.with(".turn"), 1 // Q has been multiplied by the factor already
		name = at.label()
	}
	out := p.value(name, r.Dim)
	p.emit(at, a, nil, out.all())
	return out, nil
}

// head emits the model's head: the last norm, the logits, and the choice of the next token, which
// choose emits. If fromRow is set, x is a chunk, and the step record's Row selects its row.
func (s *state) head(p *program, x *value, fromRow bool, choose func(*program)) error {
	y, err := s.outNorm(p, x, fromRow)
	if err != nil {
		return err
	}
	if err := s.outLogits(p, y); err != nil {
		return err
	}
	choose(p)
	return nil
}

// keepHidden emits the last norm of a chunk's rows and stores the result in the hidden slot.
func (s *state) keepHidden(p *program, x *value) error {
	at := spot{role: roleOutNorm}
	a, err := s.normArgs(at, arch.OutNorm)
	if err != nil {
		return err
	}
	a.fromRow = true
	p.emit(at, a, []operand{x.all()}, s.hidden.all())
	return nil
}

// argmax emits the choice of the most probable token.
func (s *state) argmax(p *program) {
	p.emit(spot{role: roleArgmax}, argmaxArgs{}, []operand{{v: s.logits, width: s.cfg.Vocab}, s.stops.all()}, s.tokens.all())
}

// outNorm emits the last norm of x and returns it. fromRow has the same meaning as for head.
func (s *state) outNorm(p *program, x *value, fromRow bool) (*value, error) {
	at := spot{role: roleOutNorm}
	a, err := s.normArgs(at, arch.OutNorm)
	if err != nil {
		return nil, err
	}
	a.fromRow = fromRow
	// The logits are scaled by scaling the input of their product.
	factor := s.cfg.LogitScale
	if !a.mean {
		a.scale = factor
	}
	y := p.value(at.label(), s.cfg.Width)
	p.emit(at, a, []operand{x.all()}, y.all())
	if a.mean && factor != 0 {
		p.emit(spot{role: roleOutScale}, scaleArgs{factors: s.constant("out.scale", []float32{factor}), span: 1}, nil, y.all())
	}
	return y, nil
}

// outLogits emits the logits of y and stores them in the logits slot.
func (s *state) outLogits(p *program, y *value) error {
	role, name := arch.Head, roleNames[roleLogits]
	if s.cfg.TiedHead {
		role, name = arch.Embed, roleNames[roleEmbed]
	}
	w, err := s.matrix(name, role, 0)
	if err != nil {
		return err
	}
	p.emit(spot{role: roleLogits}, productArgs{wide: p.wide, w: w}, []operand{y.all()}, s.logits.all())
	if limit := s.cfg.LogitSoftCap; limit > 0 {
		p.emit(spot{role: roleSoftCap}, softCapArgs{cap: limit}, nil, s.logits.all())
	}
	return nil
}
