package cpu

import (
	"math"

	"github.com/pianola-engine/pianola/internal/kernels"
)

// rmsNorm sets out to x / sqrt(mean(x^2) + eps) * w. out may be x.
func (o *ops) rmsNorm(out, x, w []float32, eps float32) { o.rmsNormScaled(out, x, w, eps, 1) }

// rmsNormScaled sets out to the RMS norm of x times scale.
func (o *ops) rmsNormScaled(out, x, w []float32, eps, scale float32) {
	o.scaleMul(out[:len(x)], x, w[:len(x)], float32(o.normScale(x, eps)*scale))
}

// orOne returns scale, or 1 if scale is 0.
func orOne(scale float32) float32 {
	if scale == 0 {
		return 1
	}
	return scale
}

// addScaled adds delta times scale to x. Usually scale is 1.
func (o *ops) addScaled(x, delta []float32, scale float32) {
	if scale == 1 {
		o.addTo(x, delta)
		return
	}
	delta = delta[:len(x)]
	for i, v := range delta {
		x[i] += float32(v * scale)
	}
}

// normScale returns 1 / sqrt(mean(x^2) + eps).
func (o *ops) normScale(x []float32, eps float32) float32 {
	mean := o.dot(x, x) / float32(len(x))
	return 1 / float32(math.Sqrt(float64(mean+eps)))
}

// divide sets out to x / by.
func divide(out, x []float32, by float32) {
	for i, v := range x {
		out[i] = v / by
	}
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

// rmsNorm implements rmsnorm: it normalises rows.
type rmsNorm struct {
	ops      *ops
	n, xRows int
	eps      float32
	scale    float32

	x   []float32 // [xRows, n]
	w   []float32 // [n]
	out []float32 // [rows, n]
}

func newRMSNorm(b *binder) (kernel, error) {
	p := kernels.RMSNormParamsOf(b.cmd)
	b.need(p.XRows > 0, "x has no rows")
	return &rmsNorm{
		ops: b.ops, n: int(p.N), xRows: int(p.XRows), eps: p.Eps, scale: orOne(p.Scale),
		x: b.f32(kernels.RMSNormBindX), w: b.f32(kernels.RMSNormBindW), out: b.f32(kernels.RMSNormBindOut),
	}, b.err
}

func (k *rmsNorm) units(w *worker) int { return w.rows }

func (k *rmsNorm) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		at := min(int(w.index)+r, k.xRows-1)
		k.ops.rmsNormScaled(k.out[r*k.n:][:k.n], k.x[at*k.n:][:k.n], k.w, k.eps, k.scale)
	}
}

// addRMSNorm implements add_rmsnorm: it adds delta to the residual stream and normalises the sum.
type addRMSNorm struct {
	ops        *ops
	n          int
	eps        float32
	scale      float32
	deltaScale float32

	x, delta []float32 // [rows, n]
	w        []float32 // [n]
	out      []float32 // [rows, n]
}

func newAddRMSNorm(b *binder) (kernel, error) {
	p := kernels.AddRMSNormParamsOf(b.cmd)
	return &addRMSNorm{
		ops: b.ops, n: int(p.N), eps: p.Eps, scale: orOne(p.Scale), deltaScale: orOne(p.DeltaScale),
		x: b.f32(kernels.AddRMSNormBindX), delta: b.f32(kernels.AddRMSNormBindDelta),
		w: b.f32(kernels.AddRMSNormBindW), out: b.f32(kernels.AddRMSNormBindOut),
	}, b.err
}

func (k *addRMSNorm) units(w *worker) int { return w.rows }

func (k *addRMSNorm) run(_ *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		k.row(k.out[r*k.n:][:k.n], r, k.delta[r*k.n:][:k.n])
	}
}

// row adds delta to row r of the residual stream and sets out, which may be delta, to the norm of the sum.
func (k *addRMSNorm) row(out []float32, r int, delta []float32) {
	x := k.x[r*k.n:][:k.n]
	k.ops.addScaled(x, delta, k.deltaScale)
	k.ops.rmsNormScaled(out, x, k.w, k.eps, k.scale)
}

// add implements add: it adds delta to the residual stream.
type add struct {
	ops        *ops
	n          int
	deltaScale float32
	x, delta   []float32 // [rows, n]
}

func newAdd(b *binder) (kernel, error) {
	p := kernels.AddParamsOf(b.cmd)
	return &add{ops: b.ops, n: int(p.N), deltaScale: orOne(p.DeltaScale), x: b.f32(kernels.AddBindX), delta: b.f32(kernels.AddBindDelta)}, b.err
}

func (k *add) units(w *worker) int { return w.rows }

func (k *add) run(_ *worker, lo, hi int) {
	k.ops.addScaled(k.x[lo*k.n:hi*k.n], k.delta[lo*k.n:hi*k.n], k.deltaScale)
}

// headNorm implements head_norm: it normalises heads in place.
type headNorm struct {
	ops                    *ops
	heads, headDim, stride int
	eps                    float32

	x []float32 // [rows, heads, headDim]
	w []float32 // [headDim]
}

func newHeadNorm(b *binder) (kernel, error) {
	p := kernels.HeadNormParamsOf(b.cmd)
	return &headNorm{
		ops: b.ops, heads: int(p.Heads), headDim: int(b.spec(kernels.HeadNormSpecHeadDim)), stride: int(p.Stride), eps: p.Eps,
		x: b.f32(kernels.HeadNormBindX), w: b.f32(kernels.HeadNormBindW),
	}, b.err
}

func (k *headNorm) units(w *worker) int { return w.rows * k.heads }

func (k *headNorm) run(_ *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		x := k.x[u/k.heads*k.stride+u%k.heads*k.headDim:][:k.headDim]
		k.ops.rmsNorm(x, x, k.w, k.eps)
	}
}

// siluMulRows implements silu_mul.
type siluMulRows struct {
	gated     func(dst, gate, up []float32)
	n, stride int
	gate, up  []float32 // [rows, n], rows stride apart
	out       []float32 // [rows, n]
}

func newSiLUMul(b *binder) (kernel, error) {
	p := kernels.SiLUMulParamsOf(b.cmd)
	return &siluMulRows{
		gated: b.gatedWithin(kernels.SiLUMulSpecActivation, p.Limit), n: int(p.N), stride: int(p.Stride),
		gate: b.f32(kernels.SiLUMulBindGate), up: b.f32(kernels.SiLUMulBindUp), out: b.f32(kernels.SiLUMulBindOut),
	}, b.err
}

func (k *siluMulRows) units(w *worker) int { return w.rows }

func (k *siluMulRows) run(_ *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		k.gated(k.out[r*k.n:][:k.n], k.gate[r*k.stride:][:k.n], k.up[r*k.stride:][:k.n])
	}
}

// normAdd implements norm_add: it normalises delta, adds it to the residual stream, and may
// normalise the sum for the next layer.
type normAdd struct {
	ops *ops
	n   int
	eps float32

	x, delta []float32 // [rows, n]
	post, w  []float32 // w is nil if the sum is not normalised
	out      []float32 // [rows, n], or nil
}

func newNormAdd(b *binder) (kernel, error) {
	p := kernels.NormAddParamsOf(b.cmd)
	return &normAdd{
		ops: b.ops, n: int(p.N), eps: p.Eps,
		x: b.f32(kernels.NormAddBindX), delta: b.f32(kernels.NormAddBindDelta), post: b.f32(kernels.NormAddBindPost),
		w: b.f32(kernels.NormAddBindW), out: b.f32(kernels.NormAddBindOut),
	}, b.err
}

func (k *normAdd) units(w *worker) int { return w.rows }

func (k *normAdd) run(w *worker, lo, hi int) {
	delta := float32s(w.scratch[:4*k.n])
	for r := lo; r < hi; r++ {
		x := k.x[r*k.n:][:k.n]
		k.ops.rmsNorm(delta, k.delta[r*k.n:][:k.n], k.post, k.eps)
		k.ops.addTo(x, delta)
		if k.w != nil {
			k.ops.rmsNorm(k.out[r*k.n:][:k.n], x, k.w, k.eps)
		}
	}
}

// softCap implements soft_cap: it bounds rows by a soft cap.
type softCap struct {
	ops     *ops
	n, part int
	cap     float32
	x       []float32 // [rows, n]
}

func newSoftCap(b *binder) (kernel, error) {
	p := kernels.SoftCapParamsOf(b.cmd)
	b.need(p.Part > 0, "the part is 0")
	b.need(p.Cap > 0, "the bound %v is not above 0", p.Cap)
	return &softCap{ops: b.ops, n: int(p.N), part: int(p.Part), cap: p.Cap, x: b.f32(kernels.SoftCapBindX)}, b.err
}

func (k *softCap) parts() int { return (k.n + k.part - 1) / k.part }

func (k *softCap) units(w *worker) int { return w.rows * k.parts() }

func (k *softCap) run(_ *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		first := u % k.parts() * k.part
		k.ops.softCap(k.x[u/k.parts()*k.n:][first:min(first+k.part, k.n)], k.cap)
	}
}
