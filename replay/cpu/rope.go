package cpu

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// rotate rotates the first 2*half elements of a head in place. angles is
// [half, 2]: cosine, sine.
func (o *ops) rotate(x, angles []float32, layout uint32) {
	half := len(angles) / 2
	if layout == decl.LayoutInterleaved {
		o.rotatePairs(x[:2*half], angles)
	} else {
		o.rotateHalves(x[:half], x[half:][:half], angles)
	}
}

// rotateHalves rotates the pairs x[i], high[i].
func rotateHalves(x, high, angles []float32) {
	for i, x0 := range x {
		c, s, x1 := angles[2*i], angles[2*i+1], high[i]
		x[i] = float32(x0*c) - float32(x1*s)
		high[i] = float32(x1*c) + float32(x0*s)
	}
}

// rotatePairs rotates pairs of neighbouring elements.
func rotatePairs(x, angles []float32) {
	for i := 0; i < len(x); i += 2 {
		c, s, x0, x1 := angles[i], angles[i+1], x[i], x[i+1]
		x[i] = float32(x0*c) - float32(x1*s)
		x[i+1] = float32(x1*c) + float32(x0*s)
	}
}

// ropeAngles implements rope_angles: it computes cosines and sines of positions.
type ropeAngles struct {
	half   int
	factor float32
	still  uint32 // if it is not 0, the angles are for position min(0, still-1-pos) and rotate Q back to the distance of the attention sinks

	sequences
	invFreq []float32 // [half]
	factors []float32 // [half], or nil
	out     []float32 // [rows, half, 2]
}

func newRoPEAngles(b *binder) (kernel, error) {
	p := kernels.RoPEAnglesParamsOf(b.cmd)
	k := &ropeAngles{
		half: int(p.Half), factor: p.AttnFactor, still: p.Still,
		sequences: b.sequences(kernels.RoPEAnglesSpecSequences, 0), invFreq: b.f32(kernels.RoPEAnglesBindInvFreq), out: b.f32(kernels.RoPEAnglesBindOut),
	}
	if b.spec(kernels.RoPEAnglesSpecFactors) != 0 {
		k.factors = b.f32(kernels.RoPEAnglesBindFactors)
	}
	return k, b.err
}

func (k *ropeAngles) units(w *worker) int { return w.rows }

func (k *ropeAngles) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		at := k.place(w, r)
		pos := float32(at)
		if k.still > 0 {
			pos = -float32(at - min(at, k.still-1))
		}
		out := k.out[2*r*k.half:][:2*k.half]
		for i := range k.half {
			a := float32(pos * k.invFreq[i])
			if k.factors != nil {
				a /= k.factors[i]
			}
			sin, cos := math.Sincos(float64(a))
			out[2*i] = float32(float32(cos) * k.factor)
			out[2*i+1] = float32(float32(sin) * k.factor)
		}
	}
}

// rope implements rope: it rotates heads in place.
type rope struct {
	ops                          *ops
	heads, headDim, stride, half int
	layout                       uint32

	x      []float32 // [rows, heads, headDim]
	angles []float32 // [rows, half, 2]
}

func newRoPE(b *binder) (kernel, error) {
	p := kernels.RoPEParamsOf(b.cmd)
	return &rope{
		ops: b.ops, heads: int(p.Heads), headDim: int(b.spec(kernels.RoPESpecHeadDim)), stride: int(p.Stride), half: int(p.Half),
		layout: b.spec(kernels.RoPESpecLayout),
		x:      b.f32(kernels.RoPEBindX), angles: b.f32(kernels.RoPEBindAngles),
	}, b.err
}

func (k *rope) units(w *worker) int { return w.rows * k.heads }

func (k *rope) run(_ *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		r, h := u/k.heads, u%k.heads
		k.ops.rotate(k.x[r*k.stride+h*k.headDim:][:k.headDim], k.angles[2*r*k.half:][:2*k.half], k.layout)
	}
}
