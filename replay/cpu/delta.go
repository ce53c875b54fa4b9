package cpu

import (
	"math"
	"slices"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// deltaBlock is the number of rows of input that are normalised and applied to the state together.
const deltaBlock = 16

// deltaRule implements delta_rule. A unit is a part of a head's state, for which it computes all rows of
// a stretch.
type deltaRule struct {
	ops                         *ops
	heads, keyHeads             int
	keyDim, valueDim            int
	stride, gateStride          int
	eps                         float32
	tiled, negative             bool
	states                      states
	x, gates, rates, shift, out []float32
	ones                        []float32
}

func newDeltaRule(b *binder) (kernel, error) {
	p := kernels.DeltaRuleParamsOf(b.cmd)
	b.need(p.KeyHeads > 0 && p.Heads >= p.KeyHeads, "%d heads have %d keys", p.Heads, p.KeyHeads)
	k := &deltaRule{
		ops: b.ops, heads: int(p.Heads), keyHeads: int(p.KeyHeads), keyDim: int(p.KeyDim), valueDim: int(p.ValueDim),
		stride: int(p.XStride), gateStride: int(p.GateStride), eps: p.Eps, tiled: p.Tiled != 0,
		negative: b.spec(kernels.DeltaRuleSpecDecay) == decl.DecayNegative,
		states:   b.states(kernels.DeltaRuleBindState, kernels.DeltaRuleSpecSequences, int(p.Heads)*int(p.ValueDim)*int(p.KeyDim), stateParams{p.Live, p.Saved, p.Each, p.Tables, p.Table, p.Pool}),
		x:        b.f32(kernels.DeltaRuleBindX), gates: b.f32(kernels.DeltaRuleBindGates), out: b.f32(kernels.DeltaRuleBindOut),
	}
	if w := b.f32(kernels.DeltaRuleBindW); len(w) == 2*k.heads {
		k.rates, k.shift = w[:k.heads], w[k.heads:]
	}
	if b.err == nil {
		k.ones = slices.Repeat([]float32{1}, k.keyDim)
	}
	return k, b.err
}

// parts returns the number of units of a head: with more, each normalises the keys again; with fewer,
// workers would have nothing to do.
func (k *deltaRule) parts(w *worker) int {
	parts := 1
	for k.heads*parts < 4*len(w.team.workers) && k.valueDim >= 32*parts {
		parts *= 2
	}
	return parts
}

func (k *deltaRule) units(w *worker) int { return k.heads * k.parts(w) * k.states.stretches(w) }

func (k *deltaRule) run(w *worker, lo, hi int) {
	parts := k.parts(w)
	for u := lo; u < hi; u++ {
		part, h := u%parts, u/parts%k.heads
		k.head(w, k.states.stretch(w, u/parts/k.heads), h, k.valueDim*part/parts, k.valueDim*(part+1)/parts)
	}
}

// keyHead returns the head of Q and K that head h of V uses.
func (k *deltaRule) keyHead(h int) int {
	if k.tiled {
		return h % k.keyHeads
	}
	return h / (k.heads / k.keyHeads)
}

// head computes the rows of a stretch for the values lo to hi-1 of a head. The state after a row that is stored is
// computed in its entry, from which the next row takes it; that after another row is in the worker's memory.
func (k *deltaRule) head(w *worker, s stretch, h, lo, hi int) {
	mem := float32s(w.scratch)
	own, mem := mem[:(hi-lo)*k.keyDim], mem[k.valueDim*k.keyDim:]
	kq, gates := mem[:2*deltaBlock*k.keyDim], mem[2*deltaBlock*k.keyDim:]
	at := func(position int) []float32 {
		return k.states.at(s.sequence, position)[(h*k.valueDim+lo)*k.keyDim:][:len(own)]
	}
	d := deltaRows{keys: k.keyDim, from: own, valueStride: k.stride, outStride: k.heads * k.valueDim, once: s.rows == 1}
	if s.position == 0 {
		clear(own)
	} else if s.rows > 0 {
		d.from = at(s.position)
	}
	rate := -k.rates[h]
	if !k.negative {
		rate = exp(k.rates[h])
	}
	for done := 0; done < s.rows; done += d.n {
		r, position := s.first+done, s.position+done
		d.n = min(k.states.next(position, s.end())-position, deltaBlock)
		if d.to = own; k.states.stored(position+d.n, s.end()) {
			d.to = at(position + d.n)
		}
		for i := range d.n {
			k.keys(kq[2*i*k.keyDim:][:2*k.keyDim], r+i, h)
			g := k.gates[(r+i)*k.gateStride:]
			gates[2*i] = exp(-float32(rate * softplus(g[k.heads+h]+k.shift[h])))
			gates[2*i+1] = 1 / (1 + exp(-g[h]))
		}
		d.kq, d.gates = kq, gates
		d.values, d.out = k.x[r*k.stride+2*k.keyHeads*k.keyDim+h*k.valueDim+lo:], k.out[(r*k.heads+h)*k.valueDim+lo:]
		k.ops.delta(&d)
		d.from = d.to
	}
}

// keys sets kq to the normalised k and q of a head at a row.
func (k *deltaRule) keys(kq []float32, row, h int) {
	x := k.x[row*k.stride+k.keyHead(h)*k.keyDim:]
	k.unit(kq[:k.keyDim], x[k.keyHeads*k.keyDim:], 1)
	k.unit(kq[k.keyDim:], x, float32(1/math.Sqrt(float64(k.keyDim))))
}

// unit sets y to x divided by its length, times scale.
func (k *deltaRule) unit(y, x []float32, scale float32) {
	x = x[:len(y)]
	scale *= float32(1 / math.Sqrt(float64(k.ops.dot(x, x)+k.eps)))
	k.ops.scaleMul(y, x, k.ones, scale)
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

func (k *sigmoidMul) units(w *worker) int { return w.rows * k.parts() }

// parts returns the number of units of a row.
func (k *sigmoidMul) parts() int { return (k.n + inputChunk - 1) / inputChunk }

func (k *sigmoidMul) run(w *worker, lo, hi int) {
	parts := k.parts()
	for u := lo; u < hi; u++ {
		r, at := u/parts, u%parts*inputChunk
		x := k.x[r*k.n+at:][:min(inputChunk, k.n-at)]
		e := w.chunk[:len(x)]
		for i, v := range k.gate[r*k.stride+at:][:len(x)] {
			e[i] = -v
		}
		k.ops.expSub(e, 0)
		for i, v := range e {
			x[i] /= 1 + v
		}
	}
}
