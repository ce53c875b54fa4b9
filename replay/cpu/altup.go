package cpu

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// copies are the copies of the residual stream of models with alternating updates, and the router that
// computes coefficients from one of them.
type copies struct {
	ops   *ops
	n     int // width
	count int // of copies
	eps   float32

	x, rest []float32 // [rows, n] and [rows, copies-1, n]
	router  []float32 // [1 + copies, n]: weights of the norm, the router's matrix
	coefs   []float32 // [numbers, copies]
}

// check adds an error to b if the number of copies is not supported.
func (c *copies) check(b *binder) {
	b.need(c.count >= 2 && c.count <= decl.MaxCopies, "%d copies", c.count)
}

// row returns the first copy of a row, and the others.
func (c *copies) row(r int) (x, rest []float32) {
	size := (c.count - 1) * c.n
	return c.x[r*c.n:][:c.n], c.rest[r*size:][:size]
}

// route sets out to the products of the coefficients with the router's result for x, plus add. It
// overwrites scratch.
func (c *copies) route(out []float32, x, scratch []float32, add float32) {
	c.ops.rmsNormScaled(scratch, x, c.router, c.eps, 1/float32(c.n))
	var m [decl.MaxCopies]float32
	for i := range c.count {
		m[i] = float32(math.Tanh(float64(c.ops.dot(scratch, c.router[(1+i)*c.n:][:c.n]))))
	}
	for i := range out {
		sum := add
		for j, w := range c.coefs[i*c.count:][:c.count] {
			sum += float32(w * m[j])
		}
		out[i] = sum
	}
}

// altUpPredict implements altup_predict: it predicts the copies before a layer.
type altUpPredict struct {
	copies
	xScale float32
	active []float32 // [rows, n]
}

func newAltUpPredict(b *binder) (kernel, error) {
	p := kernels.AltupPredictParamsOf(b.cmd)
	k := &altUpPredict{copies{
		b.ops, int(p.N), int(p.Copies), p.Eps, b.f32(kernels.AltupPredictBindX), b.f32(kernels.AltupPredictBindRest),
		b.f32(kernels.AltupPredictBindRouter), b.f32(kernels.AltupPredictBindCoefs),
	}, p.XScale, b.f32(kernels.AltupPredictBindActive)}
	k.check(b)
	return k, b.err
}

func (k *altUpPredict) units(w *worker) int { return w.rows }

func (k *altUpPredict) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		x, rest := k.row(r)
		active := k.active[r*k.n:][:k.n]
		var coefs [decl.MaxCopies * decl.MaxCopies]float32
		k.route(coefs[:k.count*k.count], x, float32s(w.scratch[:4*k.n]), 0)
		k.mix(x, rest, &coefs)
		copy(active, x)
		k.ops.decay(x, x, x, k.xScale, 0)
	}
}

// mix replaces the copies by their predictions.
func (k *altUpPredict) mix(x, rest []float32, coefs *[decl.MaxCopies * decl.MaxCopies]float32) {
	const block = 256
	var before [decl.MaxCopies][block]float32
	count := k.count
	for first := 0; first < k.n; first += block {
		n := min(block, k.n-first)
		part := func(i int) []float32 {
			if i == 0 {
				return x[first:][:n]
			}
			return rest[(i-1)*k.n+first:][:n]
		}
		for i := range count {
			copy(before[i][:n], part(i))
		}
		for i := range count {
			p := part(i)
			for j := range count {
				k.ops.decay(p, p, before[j][:n], 1, coefs[i*count+j])
			}
		}
	}
}

// altUpCorrect implements altup_correct: it corrects the copies after a layer.
type altUpCorrect struct {
	copies
	active []float32 // [rows, n]
	scale  []float32 // [n]
	out    []float32 // [rows, n]
}

func newAltUpCorrect(b *binder) (kernel, error) {
	p := kernels.AltupCorrectParamsOf(b.cmd)
	k := &altUpCorrect{copies{
		b.ops, int(p.N), int(p.Copies), p.Eps, b.f32(kernels.AltupCorrectBindX), b.f32(kernels.AltupCorrectBindRest),
		b.f32(kernels.AltupCorrectBindRouter), b.f32(kernels.AltupCorrectBindCoefs),
	}, b.f32(kernels.AltupCorrectBindActive), b.f32(kernels.AltupCorrectBindScale), b.f32(kernels.AltupCorrectBindOut)}
	k.check(b)
	return k, b.err
}

func (k *altUpCorrect) units(w *worker) int { return w.rows }

func (k *altUpCorrect) run(w *worker, lo, hi int) {
	d := float32s(w.scratch[:4*k.n])
	for r := lo; r < hi; r++ {
		x, rest := k.row(r)
		active := k.active[r*k.n:][:k.n]
		var coefs [decl.MaxCopies]float32
		k.route(coefs[:k.count], x, d, 1)
		k.ops.decay(d, x, active, 1, -1)
		k.ops.decay(x, active, d, 1, coefs[0])
		for i := range k.count - 1 {
			p := rest[i*k.n:][:k.n]
			k.ops.decay(p, p, d, 1, coefs[1+i])
		}
		k.ops.scaleMul(k.out[r*k.n:][:k.n], x, k.scale, 1)
	}
}

// altUpAdd implements altup_add: it adds a norm to all copies but the first.
type altUpAdd struct {
	copies
	delta, w []float32 // [rows, n] and [n]
}

func newAltUpAdd(b *binder) (kernel, error) {
	p := kernels.AltupAddParamsOf(b.cmd)
	k := &altUpAdd{
		copies{ops: b.ops, n: int(p.N), count: int(p.Copies), eps: p.Eps, rest: b.f32(kernels.AltupAddBindRest)},
		b.f32(kernels.AltupAddBindDelta), b.f32(kernels.AltupAddBindW),
	}
	k.check(b)
	return k, b.err
}

func (k *altUpAdd) units(w *worker) int { return w.rows }

func (k *altUpAdd) run(w *worker, lo, hi int) {
	delta := float32s(w.scratch[:4*k.n])
	for r := lo; r < hi; r++ {
		k.ops.rmsNorm(delta, k.delta[r*k.n:][:k.n], k.w, k.eps)
		for i := range k.count - 1 {
			k.ops.addTo(k.rest[(r*(k.count-1)+i)*k.n:][:k.n], delta)
		}
	}
}

// altUpMatch implements altup_match: it gives the other copies the magnitude of the first, and may merge
// them.
type altUpMatch struct {
	copies
	merge bool
	least float32
}

func newAltUpMatch(b *binder) (kernel, error) {
	p := kernels.AltupMatchParamsOf(b.cmd)
	k := &altUpMatch{
		copies{ops: b.ops, n: int(p.N), count: int(p.Copies), x: b.f32(kernels.AltupMatchBindX), rest: b.f32(kernels.AltupMatchBindRest)},
		p.Merge == 1, p.Least,
	}
	k.check(b)
	return k, b.err
}

func (k *altUpMatch) units(w *worker) int { return w.rows }

func (k *altUpMatch) run(_ *worker, lo, hi int) {
	root := func(x []float32, least float32) float32 {
		return float32(math.Sqrt(float64(max(k.ops.dot(x, x)/float32(k.n), least))))
	}
	for r := lo; r < hi; r++ {
		x, rest := k.row(r)
		target := root(x, 0)
		for i := range k.count - 1 {
			part := rest[i*k.n:][:k.n]
			factor := target / root(part, k.least)
			if k.merge {
				k.ops.decay(x, x, part, 1, factor)
			} else {
				k.ops.decay(part, part, part, factor, 0)
			}
		}
		if k.merge {
			k.ops.decay(x, x, x, 1/float32(k.count), 0)
		}
	}
}

// topGates implements top_gates: it keeps what exceeds a cutoff.
type topGates struct {
	n, stride int
	cutoff    float32
	x         []float32 // [rows, n], rows stride apart
}

func newTopGates(b *binder) (kernel, error) {
	p := kernels.TopGatesParamsOf(b.cmd)
	return &topGates{int(p.N), int(p.Stride), p.Cutoff, b.f32(kernels.TopGatesBindX)}, b.err
}

func (k *topGates) units(w *worker) int { return w.rows }

func (k *topGates) run(_ *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		x := k.x[r*k.stride:][:k.n]
		mean := sum(x) / float32(k.n)
		c := mean + float32(k.cutoff*float32(math.Sqrt(float64(squares(x, mean)/float32(k.n)))))
		for i, v := range x {
			x[i] = max(v-c, 0)
		}
	}
}

// squares returns the sum of the squares of the differences of x to the mean, computed with eight sums
// of every eighth element.
func squares(x []float32, mean float32) float32 {
	var s [8]float32
	for ; len(x) >= 8; x = x[8:] {
		for i := range s {
			d := x[i] - mean
			s[i] += float32(d * d)
		}
	}
	for i, v := range x {
		d := v - mean
		s[i] += float32(d * d)
	}
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}
