package compiler

import (
	"fmt"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/recurrent"
	"github.com/pianola-engine/pianola/table"
)

// stateBudget bounds the bytes of a session's states at borders, of all layers together. At least one
// border has a state.
const stateBudget = 256 << 20

// stateSizes returns the elements of the states of a layer: of its convolution, and of the gated delta
// rule or the selective state space. They are 0 for what the layer does not have.
func (s *state) stateSizes(layer int) (conv, matrix int) {
	switch d, m := &s.cfg.Delta, &s.cfg.Mamba; s.cfg.Layer[layer].Mixer {
	case arch.ShortConv:
		conv = (s.cfg.ConvTaps - 1) * s.cfg.Width
	case arch.GatedDelta:
		conv, matrix = (s.cfg.ConvTaps-1)*(2*d.KeyHeads*d.KeyDim+d.Heads*d.ValueDim), d.Heads*d.ValueDim*d.KeyDim
	case arch.Mamba2:
		conv, matrix = (s.cfg.ConvTaps-1)*(m.Heads*m.HeadDim+2*m.Groups*m.State), m.Heads*m.HeadDim*m.State
	}
	return conv, matrix
}

// planStates determines the entries of the slots with recurrent state. The states at all borders of the
// context are kept if the budget allows. A program that may take back rows stores the state after each
// row, besides the one that it begins with and those of a next replay that is cut short. The states of a
// pooled table are in pages instead.
func (s *state) planStates() {
	if !s.cfg.Recurrent() || s.pool != nil {
		return
	}
	borders := uint64(ceil(s.in.Options.Context, recurrent.Border))
	s.ring = recurrent.Ring{Live: recurrent.MinLive, Saved: int(max(1, min(borders, stateBudget/s.stateBytes())))}
	if s.in.Options.Draft > 0 {
		s.ring.Live = s.in.Options.Draft + 2
	}
}

// stateBytes returns the bytes of a state of all layers together.
func (s *state) stateBytes() (n uint64) {
	for i := range s.cfg.Layers {
		conv, matrix := s.stateSizes(i)
		n += 4 * uint64(conv+matrix)
	}
	return n
}

// planState creates the slots of a layer with recurrent state.
func (s *state) planState(l *layerPlan) {
	entries := s.ring.Entries()
	if s.pool != nil {
		entries, l.stateTables = s.pool.States, s.tablesOf(stateKind)
	}
	slot := func(name string, size int) *value {
		return s.slot(fmt.Sprintf("%s.%d", name, l.index), table.SlotState, table.ScopeSession, 4*uint64(size)*uint64(entries))
	}
	conv, matrix := s.stateSizes(l.index)
	if l.state = slot("state", conv); matrix > 0 {
		l.matrix = slot("matrix", matrix)
	}
}

// shortConv emits a block with a short convolution of y, the normalised residual x.
func (s *state) shortConv(p *program, l *layerPlan, x, y *value) error {
	in, err := s.linear(p, spot{role: roleConvIn, layer: l}, y, arch.ConvIn)
	if err != nil {
		return err
	}
	at := spot{role: roleConv, layer: l}
	a := convArgs{form: decl.ConvGated, taps: s.cfg.ConvTaps}
	if a.w, a.bias, err = s.convWeights(at, arch.Conv, s.cfg.Width); err != nil {
		return err
	}
	conv := p.value(at.label(), s.cfg.Width)
	p.emit(at, a, []operand{in.all()}, l.state.all(), conv.all())
	out, err := s.linear(p, spot{role: roleConvOut, layer: l}, conv, arch.ConvOut)
	if err != nil {
		return err
	}
	s.residual(p, spot{role: roleAttnResidual, layer: l}, x, out)
	return nil
}

// convWeights returns the weights of a convolution of n channels, and its bias or nil.
func (s *state) convWeights(at spot, role arch.Role, n int) (w, bias *weight, err error) {
	t, err := s.tensor(s.cfg.Tensor(role, at.index()))
	if err != nil {
		return nil, nil, err
	}
	if !floating(t.Type) {
		return nil, nil, &TensorError{t.Name, fmt.Sprintf("type %s, want F32, F16 or BF16", t.Type)}
	}
	w = s.share(&weight{name: at.label(), rows: n, cols: s.cfg.ConvTaps, typ: dtype.F32, parts: []part{{tensor: t}}})
	if !s.cfg.Bias.Has(role) {
		return w, nil, nil
	}
	if t, err = s.tensor(s.cfg.BiasTensor(role, at.index())); err != nil {
		return nil, nil, err
	}
	bias, err = s.vector(at.label()+".bias", t, n)
	return w, bias, err
}

// convArgs holds the arguments of causal_conv. out is the states of the layer and the result.
type convArgs struct {
	w, bias *weight
	form    uint32 // a value of the constant conv
	taps    int
}

// convGroup is the number of channels that a threadgroup of causal_conv computes.
const convGroup = 128

func (convArgs) kernel() decl.ID         { return kernels.CausalConv }
func (a convArgs) weights() []*weight    { return []*weight{a.w, a.bias} }
func (convArgs) threads(l *lowering) int { return convGroup }

func (a convArgs) lower(l *lowering) {
	n := l.n
	l.bind(kernels.CausalConvBindX, n.in[0])
	l.bindWeight(kernels.CausalConvBindW, a.w)
	l.bindWeight(kernels.CausalConvBindBias, a.bias)
	l.bind(kernels.CausalConvBindState, n.out[0])
	l.bind(kernels.CausalConvBindOut, n.out[1])
	l.set(kernels.CausalConvSpecConv, a.form)
	l.flag(kernels.CausalConvSpecBias, a.bias != nil)
	l.set(kernels.CausalConvSpecSequences, l.sequences())
	live, saved, tables, entries := l.states()
	kernels.CausalConvParams{
		N: uint32(n.out[1].width), Taps: uint32(a.taps), XStride: stride(n.in[0]), Group: convGroup,
		Live: live, Saved: saved, Each: l.each(), Tables: tables, Table: entries, Pool: l.pooled(),
	}.Put(&l.cmd)
	l.place(table.PatchPosition, decl.SecondIndex)
}

// decayOf returns the value of the constant decay of kernels with recurrent state: negative says that the
// file has the negative rates of decay, and not their logarithms.
func decayOf(negative bool) uint32 {
	if negative {
		return decl.DecayNegative
	}
	return decl.DecayLog
}

// states returns the parameters of kernels with recurrent state: live, saved, tables and table.
func (l *lowering) states() (live, saved, tables, entries uint32) {
	if l.s.pool != nil {
		return 0, uint32(l.s.pool.States), l.n.layer.stateTables, uint32(l.s.pool.Table)
	}
	return uint32(l.s.ring.Live), uint32(l.s.ring.Saved), 0, 0
}

// each returns 1 if the program may take back rows, so that it has to store the state after each.
func (l *lowering) each() uint32 {
	if l.p.flags.Has(table.FlagAdvances) {
		return 1
	}
	return 0
}
