package cpu

import (
	"slices"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/recurrent"
)

// states are the states of a layer with recurrent state, in its slot, and the sequences that have them.
type states struct {
	sequences
	ring  recurrent.Ring
	each  bool // the state after each row is stored
	size  int  // elements of a state
	all   []float32
	pages tables // of a pooled table
}

// stateParams are the parameters of a command that describe its states.
type stateParams struct{ live, saved, each, tables, table, pool uint32 }

// states returns the states in binding i, which have size elements each, in a command whose
// specialisation value spec selects the sequences. In a pooled table, the entries of the slot are pages.
func (b *binder) states(i, spec, size int, p stateParams) states {
	s := states{
		sequences: b.sequences(spec, p.pool), ring: recurrent.Ring{Live: int(p.live), Saved: int(p.saved)},
		each: p.each != 0, size: size, all: b.f32(i),
	}
	if s.kind != decl.SequencesOwn {
		s.pages = b.tables(p.tables, p.table, p.pool, s.ring.Saved)
	}
	return s
}

// at returns the memory of the state of a sequence at a position.
func (s *states) at(sequence, position int) []float32 {
	if s.kind != decl.SequencesOwn {
		return s.all[s.pages.page(sequence, position-1)*s.size:][:s.size]
	}
	return s.all[s.ring.Entry(position)*s.size:][:s.size]
}

// stored reports whether the state at a position is stored by a program whose active rows end there.
func (s *states) stored(position, end int) bool {
	return s.each || position == end || position%recurrent.Border == 0
}

// next returns the first position after another one whose state is stored by a program whose active
// rows end at end.
func (s *states) next(position, end int) int {
	if s.each {
		return position + 1
	}
	return min((position/recurrent.Border+1)*recurrent.Border, end)
}

// stretch is a number of rows of one sequence at consecutive positions.
type stretch struct{ sequence, first, rows, position int }

// end returns the position after the rows.
func (s *stretch) end() int { return s.position + s.rows }

// stretches returns the number of stretches of a command's rows: one, or in a batch each row.
func (s *states) stretches(w *worker) int {
	if s.kind == decl.SequencesMany {
		return w.rows
	}
	return 1
}

// stretch returns stretch i, without rows if nothing is to be computed.
func (s *states) stretch(w *worker, i int) stretch {
	t := stretch{s.of(w, i), i, w.rows, int(s.place(w, i))}
	if s.kind == decl.SequencesMany {
		if t.rows = 1; s.stopped(i) {
			t.rows = 0
		}
	}
	return t
}

// convGroup is the largest number of channels that are computed together.
const convGroup = 256

// mostTaps is the largest number of taps of a convolution, as its declaration says.
const mostTaps = 8

// causalConv implements causal_conv. A unit is a group of channels, of which it computes all rows of a
// stretch, one after another.
type causalConv struct {
	ops                    *ops
	n, taps, stride, group int
	gated                  bool
	states                 states
	x, w, bias, out        []float32
	ones                   []float32
}

func newCausalConv(b *binder) (kernel, error) {
	p := kernels.CausalConvParamsOf(b.cmd)
	b.need(p.Group > 0 && p.Taps > 1, "the convolution of %d taps for groups of %d channels is empty", p.Taps, p.Group)
	k := &causalConv{
		ops: b.ops, n: int(p.N), taps: int(p.Taps), stride: int(p.XStride), group: int(min(p.N, convGroup)),
		gated:  b.spec(kernels.CausalConvSpecConv) == decl.ConvGated,
		states: b.states(kernels.CausalConvBindState, kernels.CausalConvSpecSequences, int(p.Taps-1)*int(p.N), stateParams{p.Live, p.Saved, p.Each, p.Tables, p.Table, p.Pool}),
		x:      b.f32(kernels.CausalConvBindX), w: b.f32(kernels.CausalConvBindW), bias: b.f32(kernels.CausalConvBindBias), out: b.f32(kernels.CausalConvBindOut),
	}
	if b.err == nil && !k.gated {
		k.ones = slices.Repeat([]float32{1}, k.group)
	}
	return k, b.err
}

// groups returns the number of groups of channels.
func (k *causalConv) groups() int { return (k.n + k.group - 1) / k.group }

func (k *causalConv) units(w *worker) int { return k.groups() * k.states.stretches(w) }

func (k *causalConv) run(w *worker, lo, hi int) {
	groups := k.groups()
	for u := lo; u < hi; u++ {
		g := u % groups
		k.channels(w, k.states.stretch(w, u/groups), g*k.group, min((g+1)*k.group, k.n))
	}
}

// channels computes channels lo to hi-1 of a stretch.
func (k *causalConv) channels(w *worker, s stretch, lo, hi int) {
	n, past := hi-lo, k.taps-1
	// A ring of the last inputs: that of row r is row (r + past) % taps, and those before row 0 come
	// from the state.
	ring := float32s(w.scratch)[:k.taps*n]
	input := func(r int) []float32 { return ring[(r+past)%k.taps*n:][:n] }
	for t := range past {
		if s.position == 0 {
			clear(input(t - past))
		} else if s.rows > 0 {
			copy(input(t-past), k.states.at(s.sequence, s.position)[t*k.n+lo:])
		}
	}
	weights := k.w[lo*k.taps:]
	var inputs [mostTaps][]float32
	for r := range s.rows {
		x := k.x[(s.first+r)*k.stride:]
		in := input(r)
		if copy(in, x[lo:hi]); k.gated {
			k.ops.scaleMul(in, in, x[2*k.n+lo:], 1)
		}
		out := k.out[(s.first+r)*k.n+lo:][:n]
		if k.bias != nil {
			copy(out, k.bias[lo:hi])
		} else {
			clear(out)
		}
		for t := range k.taps {
			inputs[t] = input(r - past + t)
		}
		k.ops.convolve(out, weights, inputs[:k.taps])
		if k.gated {
			k.ops.scaleMul(out, out, x[k.n+lo:], 1)
		} else {
			k.ops.siluMul(out, out, k.ones[:n])
		}
		if at := s.position + r + 1; k.states.stored(at, s.end()) {
			to := k.states.at(s.sequence, at)
			for t := range past {
				copy(to[t*k.n+lo:][:n], input(r-past+1+t))
			}
		}
	}
}

// convolve is the operation of that name in [ops], for the elements of out from lo on.
func convolve(out, w []float32, x [][]float32, lo int) {
	for t, in := range x {
		for i := lo; i < len(out); i++ {
			out[i] += float32(w[i*len(x)+t] * in[i])
		}
	}
}
