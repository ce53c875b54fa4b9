package cpu

import (
	"github.com/pianola-engine/pianola/internal/kernels"
)

// layerNorm sets out to (x - mean(x)) / sqrt(variance(x) + eps) * w + b.
func (o *ops) layerNorm(out, x, w, b []float32, eps float32) {
	o.centred(out, x, w, eps)
	o.addTo(out, b)
}

// centred sets out to (x - mean(x)) / sqrt(variance(x) + eps) * w. It computes the variance from the
// differences to the mean, not as a difference of sums. out may be x.
func (o *ops) centred(out, x, w []float32, eps float32) {
	out = out[:len(x)]
	mean := sum(x) / float32(len(x))
	for i, v := range x {
		out[i] = v - mean
	}
	o.rmsNorm(out, out, w, eps)
}

// sum returns the sum of x, computed with eight sums of every eighth element.
func sum(x []float32) float32 {
	var s [8]float32
	for ; len(x) >= 8; x = x[8:] {
		for i := range s {
			s[i] += x[i]
		}
	}
	for i, v := range x {
		s[i] += v
	}
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

// layerNormRows implements layernorm.
type layerNormRows struct {
	ops      *ops
	n, xRows int
	eps      float32

	x   []float32 // [xRows, n]
	w   []float32 // [2, n]: weights, biases
	out []float32 // [rows, n]
}

func newLayerNorm(b *binder) (kernel, error) {
	p := kernels.LayerNormParamsOf(b.cmd)
	b.need(p.XRows > 0, "x has no rows")
	return &layerNormRows{
		ops: b.ops, n: int(p.N), xRows: int(p.XRows), eps: p.Eps,
		x: b.f32(kernels.LayerNormBindX), w: b.f32(kernels.LayerNormBindW), out: b.f32(kernels.LayerNormBindOut),
	}, b.err
}

func (k *layerNormRows) units(w *worker) int { return w.rows }

func (k *layerNormRows) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		at := min(int(w.index)+r, k.xRows-1)
		k.ops.layerNorm(k.out[r*k.n:][:k.n], k.x[at*k.n:][:k.n], k.w[:k.n], k.w[k.n:], k.eps)
	}
}

// headLayerNorm implements head_layernorm: it normalises heads in place.
type headLayerNorm struct {
	ops                    *ops
	heads, headDim, stride int
	eps                    float32

	x []float32 // [rows, heads, headDim], rows stride apart
	w []float32 // [heads, headDim]
}

func newHeadLayerNorm(b *binder) (kernel, error) {
	p := kernels.HeadLayerNormParamsOf(b.cmd)
	return &headLayerNorm{
		b.ops, int(p.Heads), int(b.spec(kernels.HeadLayerNormSpecHeadDim)), int(p.Stride), p.Eps,
		b.f32(kernels.HeadLayerNormBindX), b.f32(kernels.HeadLayerNormBindW),
	}, b.err
}

func (k *headLayerNorm) units(w *worker) int { return w.rows * k.heads }

func (k *headLayerNorm) run(_ *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		h := u % k.heads
		x := k.x[u/k.heads*k.stride+h*k.headDim:][:k.headDim]
		k.ops.centred(x, x, k.w[h*k.headDim:][:k.headDim], k.eps)
	}
}
