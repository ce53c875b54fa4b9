package cpu

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// ssmScan implements ssm_scan. A unit is a head, of which it computes all rows of a stretch, one after
// another.
type ssmScan struct {
	ops                       *ops
	heads, groups             int
	headDim, stateDim         int
	stride, stepStride        int
	stepMin, stepMax          float32
	negative                  bool
	states                    states
	x, steps, out             []float32
	rates, shift, passThrough []float32 // the rows of w
}

func newSSMScan(b *binder) (kernel, error) {
	p := kernels.SSMScanParamsOf(b.cmd)
	b.need(p.Groups > 0 && p.Heads >= p.Groups, "%d heads have %d groups", p.Heads, p.Groups)
	k := &ssmScan{
		ops: b.ops, heads: int(p.Heads), groups: int(p.Groups), headDim: int(p.HeadDim), stateDim: int(p.StateDim),
		stride: int(p.XStride), stepStride: int(p.StepStride), stepMin: p.StepMin, stepMax: p.StepMax,
		negative: b.spec(kernels.SSMScanSpecDecay) == decl.DecayNegative,
		states:   b.states(kernels.SSMScanBindState, kernels.SSMScanSpecSequences, int(p.Heads)*int(p.HeadDim)*int(p.StateDim), stateParams{p.Live, p.Saved, p.Each, p.Tables, p.Table, p.Pool}),
		x:        b.f32(kernels.SSMScanBindX), steps: b.f32(kernels.SSMScanBindSteps), out: b.f32(kernels.SSMScanBindOut),
	}
	if w := b.f32(kernels.SSMScanBindW); len(w) == 3*k.heads {
		k.rates, k.shift, k.passThrough = w[:k.heads], w[k.heads:2*k.heads], w[2*k.heads:]
	}
	return k, b.err
}

func (k *ssmScan) units(w *worker) int { return k.heads * k.states.stretches(w) }

func (k *ssmScan) run(w *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		k.head(w, k.states.stretch(w, u/k.heads), u%k.heads)
	}
}

// head computes the rows of a stretch for a head. The state after a row that is stored is computed in its entry, from
// which the next row takes it; that after another row is in the worker's memory.
func (k *ssmScan) head(w *worker, s stretch, h int) {
	size := k.headDim * k.stateDim
	own := float32s(w.scratch)[:size]
	state := own
	if s.position == 0 {
		clear(own)
	} else if s.rows > 0 {
		state = k.states.at(s.sequence, s.position)[h*size:][:size]
	}
	rate := -k.rates[h]
	if !k.negative {
		rate = exp(k.rates[h])
	}
	b := k.heads*k.headDim + h/(k.heads/k.groups)*k.stateDim
	c := b + k.groups*k.stateDim
	for n := range s.rows {
		r := s.first + n
		x := k.x[r*k.stride:]
		step := min(max(softplus(k.steps[r*k.stepStride+h]+k.shift[h]), k.stepMin), k.stepMax)
		keep := exp(-float32(rate * step))
		to := own
		if next := s.position + n + 1; k.states.stored(next, s.end()) {
			to = k.states.at(s.sequence, next)[h*size:][:size]
		}
		values, out := x[h*k.headDim:][:k.headDim], k.out[(r*k.heads+h)*k.headDim:][:k.headDim]
		for i, v := range values {
			row := to[i*k.stateDim:][:k.stateDim]
			k.ops.decay(row, state[i*k.stateDim:][:k.stateDim], x[b:][:k.stateDim], keep, float32(step*v))
			out[i] = k.ops.dot(x[c:][:k.stateDim], row) + float32(k.passThrough[h]*v)
		}
		state = to
	}
}

// gatedNorm implements gated_norm. A unit is a group of a row.
type gatedNorm struct {
	ops        *ops
	n, groups  int
	stride     int
	eps        float32
	order      uint32
	x, gate, w []float32
}

func newGatedNorm(b *binder) (kernel, error) {
	p := kernels.GatedNormParamsOf(b.cmd)
	return &gatedNorm{
		b.ops, int(p.N), int(p.Groups), int(p.GateStride), p.Eps, b.spec(kernels.GatedNormSpecGate),
		b.f32(kernels.GatedNormBindX), b.f32(kernels.GatedNormBindGate), b.f32(kernels.GatedNormBindW),
	}, b.err
}

func (k *gatedNorm) units(w *worker) int { return w.rows * k.groups }

func (k *gatedNorm) run(_ *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		r, g := u/k.groups, u%k.groups
		x, gate := k.x[u*k.n:][:k.n], k.gate[r*k.stride+g*k.n:][:k.n]
		if k.order == decl.GateAfter {
			k.ops.rmsNorm(x, x, k.w[g*k.n:][:k.n], k.eps)
		}
		k.ops.siluMul(x, gate, x)
		if k.order == decl.GateBefore {
			k.ops.rmsNorm(x, x, k.w[g*k.n:][:k.n], k.eps)
		}
	}
}

// scaleColumns implements scale_columns.
type scaleColumns struct {
	ops       *ops
	n, stride int
	x, w      []float32
}

func newScaleColumns(b *binder) (kernel, error) {
	p := kernels.ScaleColumnsParamsOf(b.cmd)
	return &scaleColumns{b.ops, int(p.N), int(p.Stride), b.f32(kernels.ScaleColumnsBindX), b.f32(kernels.ScaleColumnsBindW)}, b.err
}

func (k *scaleColumns) units(w *worker) int { return w.rows }

func (k *scaleColumns) run(_ *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		x := k.x[r*k.stride:][:k.n]
		k.ops.scaleMul(x, x, k.w[:k.n], 1)
	}
}
