package cpu

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// deltaRule implements delta_rule. A unit is a head, of which it computes all rows, one after another.
type deltaRule struct {
	ops                         *ops
	heads, keyHeads             int
	keyDim, valueDim            int
	stride, gateStride          int
	eps                         float32
	tiled, negative             bool
	states                      states
	x, gates, rates, shift, out []float32
}

func newDeltaRule(b *binder) (kernel, error) {
	p := kernels.DeltaRuleParamsOf(b.cmd)
	b.need(p.KeyHeads > 0 && p.Heads >= p.KeyHeads, "%d heads have %d keys", p.Heads, p.KeyHeads)
	k := &deltaRule{
		ops: b.ops, heads: int(p.Heads), keyHeads: int(p.KeyHeads), keyDim: int(p.KeyDim), valueDim: int(p.ValueDim),
		stride: int(p.XStride), gateStride: int(p.GateStride), eps: p.Eps, tiled: p.Tiled != 0,
		negative: b.spec(kernels.DeltaRuleSpecDecay) == decl.DecayNegative,
		states:   b.states(kernels.DeltaRuleBindState, p.Live, p.Saved, p.Each, int(p.Heads)*int(p.ValueDim)*int(p.KeyDim)),
		x:        b.f32(kernels.DeltaRuleBindX), gates: b.f32(kernels.DeltaRuleBindGates), out: b.f32(kernels.DeltaRuleBindOut),
	}
	if w := b.f32(kernels.DeltaRuleBindW); len(w) == 2*k.heads {
		k.rates, k.shift = w[:k.heads], w[k.heads:]
	}
	return k, b.err
}

func (k *deltaRule) units(*worker) int { return k.heads }

func (k *deltaRule) run(w *worker, lo, hi int) {
	for h := lo; h < hi; h++ {
		k.head(w, h)
	}
}

// keyHead returns the head of Q and K that head h of V uses.
func (k *deltaRule) keyHead(h int) int {
	if k.tiled {
		return h % k.keyHeads
	}
	return h / (k.heads / k.keyHeads)
}

// head computes all rows of a head. The state after a row that is stored is computed in its entry, from
// which the next row takes it; that after another row is in the worker's memory.
func (k *deltaRule) head(w *worker, h int) {
	size, position := k.valueDim*k.keyDim, int(w.index)
	mem := float32s(w.scratch)
	own, q, key := mem[:size], mem[size:][:k.keyDim], mem[size+k.keyDim:][:k.keyDim]
	state := own
	if position == 0 {
		clear(own)
	} else {
		state = k.states.at(position)[h*size:][:size]
	}
	rate := -k.rates[h]
	if !k.negative {
		rate = exp(k.rates[h])
	}
	for r := range w.rows {
		x := k.x[r*k.stride:]
		at := k.keyHead(h) * k.keyDim
		k.unit(q, x[at:], float32(1/math.Sqrt(float64(k.keyDim))))
		k.unit(key, x[k.keyHeads*k.keyDim+at:], 1)
		gates := k.gates[r*k.gateStride:]
		keep := exp(-float32(rate * softplus(gates[k.heads+h]+k.shift[h])))
		beta := 1 / (1 + exp(-gates[h]))
		to := own
		if next := position + r + 1; k.states.stored(next, position+w.rows) {
			to = k.states.at(next)[h*size:][:size]
		}
		values, out := x[2*k.keyHeads*k.keyDim+h*k.valueDim:], k.out[(r*k.heads+h)*k.valueDim:]
		for i := range k.valueDim {
			from, row := state[i*k.keyDim:][:k.keyDim], to[i*k.keyDim:][:k.keyDim]
			delta := float32((values[i] - float32(keep*k.ops.dot(key, from))) * beta)
			k.ops.decay(row, from, key, keep, delta)
			out[i] = k.ops.dot(q, row)
		}
		state = to
	}
}

// unit sets y to x divided by its length, times scale.
func (k *deltaRule) unit(y, x []float32, scale float32) {
	x = x[:len(y)]
	scale *= float32(1 / math.Sqrt(float64(k.ops.dot(x, x)+k.eps)))
	for i, v := range x {
		y[i] = v * scale
	}
}

// softplus returns log(1 + e^x).
func softplus(x float32) float32 {
	if x > 20 {
		return x
	}
	return float32(math.Log1p(float64(exp(x))))
}

// decay sets dst to keep*src + delta*k; all have the same length, and dst may be src.
func decay(dst, src, k []float32, keep, delta float32) {
	src, k = src[:len(dst)], k[:len(dst)]
	for i := range dst {
		dst[i] = float32(keep*src[i]) + float32(delta*k[i])
	}
}

// sigmoidMul implements sigmoid_mul.
type sigmoidMul struct {
	ops       *ops
	n, stride int
	x, gate   []float32
}

func newSigmoidMul(b *binder) (kernel, error) {
	p := kernels.SigmoidMulParamsOf(b.cmd)
	return &sigmoidMul{b.ops, int(p.N), int(p.GateStride), b.f32(kernels.SigmoidMulBindX), b.f32(kernels.SigmoidMulBindGate)}, b.err
}

func (k *sigmoidMul) units(w *worker) int { return w.rows }

func (k *sigmoidMul) run(_ *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		gate := k.gate[r*k.stride:]
		for i, v := range k.x[r*k.n:][:k.n] {
			k.x[r*k.n+i] = v / (1 + exp(-gate[i]))
		}
	}
}
