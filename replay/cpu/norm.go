package cpu

import (
	"math"

	"github.com/pianola-engine/pianola/table"
)

// rmsNorm sets out to x / sqrt(mean(x^2) + eps) * w. out may be x.
func (o *ops) rmsNorm(out, x, w []float32, eps float32) {
	o.scaleMul(out[:len(x)], x, w[:len(x)], o.normScale(x, eps))
}

// normScale returns 1 / sqrt(mean(x^2) + eps).
func (o *ops) normScale(x []float32, eps float32) float32 {
	mean := o.dot(x, x) / float32(len(x))
	return 1 / float32(math.Sqrt(float64(mean+eps)))
}

// scaleMul sets out to (x * scale) * w.
func scaleMul(out, x, w []float32, scale float32) {
	out, w = out[:len(x)], w[:len(x)]
	for i, v := range x {
		out[i] = float32(float32(v*scale) * w[i])
	}
}

// addTo adds delta to x.
func addTo(x, delta []float32) {
	delta = delta[:len(x)]
	for i, v := range delta {
		x[i] += v
	}
}

// rmsNorm normalises rows.
type rmsNorm struct {
	ops      *ops
	n, xRows int
	eps      float32

	x   []float32 // [xRows, n]
	w   []float32 // [n]
	out []float32 // [rows, n]
}

func newRMSNorm(b *binder) (kernel, error) {
	p := b.cmd.RMSNormParams()
	b.need(p.XRows > 0, "x has no rows")
	return &rmsNorm{
		ops: b.ops, n: int(p.N), xRows: int(p.XRows), eps: p.Eps,
		x: b.f32(table.RMSNormBindX), w: b.f32(table.RMSNormBindW), out: b.f32(table.RMSNormBindOut),
	}, b.err
}

func (k *rmsNorm) units(w *worker) int { return w.rows }

func (k *rmsNorm) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		at := min(int(w.index)+r, k.xRows-1)
		k.ops.rmsNorm(k.out[r*k.n:][:k.n], k.x[at*k.n:][:k.n], k.w, k.eps)
	}
}

// addRMSNorm adds to the residual stream and normalises it.
type addRMSNorm struct {
	ops *ops
	n   int
	eps float32

	x, delta []float32 // [rows, n]
	w        []float32 // [n]
	out      []float32 // [rows, n]
}

func newAddRMSNorm(b *binder) (kernel, error) {
	p := b.cmd.AddRMSNormParams()
	return &addRMSNorm{
		ops: b.ops, n: int(p.N), eps: p.Eps,
		x: b.f32(table.AddRMSNormBindX), delta: b.f32(table.AddRMSNormBindDelta),
		w: b.f32(table.AddRMSNormBindW), out: b.f32(table.AddRMSNormBindOut),
	}, b.err
}

func (k *addRMSNorm) units(w *worker) int { return w.rows }

func (k *addRMSNorm) run(_ *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		x := k.x[r*k.n:][:k.n]
		k.ops.addTo(x, k.delta[r*k.n:][:k.n])
		k.ops.rmsNorm(k.out[r*k.n:][:k.n], x, k.w, k.eps)
	}
}

// add adds to the residual stream.
type add struct {
	ops      *ops
	n        int
	x, delta []float32 // [rows, n]
}

func newAdd(b *binder) (kernel, error) {
	p := b.cmd.AddParams()
	return &add{ops: b.ops, n: int(p.N), x: b.f32(table.AddBindX), delta: b.f32(table.AddBindDelta)}, b.err
}

func (k *add) units(w *worker) int { return w.rows }

func (k *add) run(_ *worker, lo, hi int) { k.ops.addTo(k.x[lo*k.n:hi*k.n], k.delta[lo*k.n:hi*k.n]) }

// headNorm normalises heads in place.
type headNorm struct {
	ops                    *ops
	heads, headDim, stride int
	eps                    float32

	x []float32 // [rows, heads, headDim]
	w []float32 // [headDim]
}

func newHeadNorm(b *binder) (kernel, error) {
	p := b.cmd.HeadNormParams()
	return &headNorm{
		ops: b.ops, heads: int(p.Heads), headDim: int(b.spec(table.HeadNormSpecHeadDim)), stride: int(p.Stride), eps: p.Eps,
		x: b.f32(table.HeadNormBindX), w: b.f32(table.HeadNormBindW),
	}, b.err
}

func (k *headNorm) units(w *worker) int { return w.rows * k.heads }

func (k *headNorm) run(_ *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		x := k.x[u/k.heads*k.stride+u%k.heads*k.headDim:][:k.headDim]
		k.ops.rmsNorm(x, x, k.w, k.eps)
	}
}

// siluMulRows is silu_mul.
type siluMulRows struct {
	ops       *ops
	n, stride int
	gate, up  []float32 // [rows, n], rows stride apart
	out       []float32 // [rows, n]
}

func newSiLUMul(b *binder) (kernel, error) {
	p := b.cmd.SiLUMulParams()
	return &siluMulRows{
		ops: b.ops, n: int(p.N), stride: int(p.Stride),
		gate: b.f32(table.SiLUMulBindGate), up: b.f32(table.SiLUMulBindUp), out: b.f32(table.SiLUMulBindOut),
	}, b.err
}

func (k *siluMulRows) units(w *worker) int { return w.rows }

func (k *siluMulRows) run(_ *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		k.ops.siluMul(k.out[r*k.n:][:k.n], k.gate[r*k.stride:][:k.n], k.up[r*k.stride:][:k.n])
	}
}
