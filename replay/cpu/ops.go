package cpu

import (
	"github.com/pianola-engine/pianola/internal/dtype"
)

// blockElems is the block size of quantised activations, and the number of weights multiplied
// with one such block.
const blockElems = 32

// input is one row of quantised activations.
type input struct {
	q []int8    // [n]
	d []float32 // [n/32], scales
	s []int16   // [n/16], sums of q, needed if the weight type has minimums

	group group // buffer for decoded weights
}

// rowsFunc computes y[i] = dot(row i of w, x) for len(y) consecutive rows of w.
type rowsFunc func(y []float32, w []byte, x *input)

// ops are the inner loops for one set of processor features, selected once. Every set gives the
// same bits.
type ops struct {
	features []string

	float map[dtype.Type]floatFunc // products of rows of weights and float activations
	rows  map[dtype.Type]rowsFunc  // products of rows of weights and quantised activations
	tiled map[dtype.Type]tiledFunc // products of tiled weights and quantised activations
	// accumulate adds the products of a and b to the sums of a float dot product.
	accumulate func(acc *[lanes]float32, a, b []float32)
	// dot returns the float dot product of a and b, which have the same length.
	dot func(a, b []float32) float32
	// quantize sets q and d to the 8-bit form of x, a whole number of blocks.
	quantize func(q []int8, d, x []float32)
	// sumHalves sets s to the sums of len(s) half blocks of q.
	sumHalves func(s []int16, q []int8)
	// sumBlocks sets s to the sums of len(s) blocks of q times their scales d.
	sumBlocks func(s []float32, q []int8, d []float32)
	// addTo adds delta to x; they have the same length.
	addTo func(x, delta []float32)
	// scaleMul sets out to (x * scale) * w; all have the same length, and out may be x.
	scaleMul func(out, x, w []float32, scale float32)
	// divide sets out to x / by; they have the same length, and out may be x.
	divide func(out, x []float32, by float32)
	// decay sets dst to keep*src + delta*k; all have the same length, and dst may be src.
	decay func(dst, src, k []float32, keep, delta float32)
	// delta applies the gated delta rule to rows of a state.
	delta func(d *deltaRows)
	// convolve adds to each element i of out, in order of t, the products w[i*len(x)+t] * x[t][i].
	convolve func(out, w []float32, x [][]float32)
	// rotateHalves rotates the pairs x[i], high[i] by angles[2i], the cosine, and angles[2i+1],
	// the sine. rotatePairs rotates the pairs x[2i], x[2i+1].
	rotateHalves func(x, high, angles []float32)
	rotatePairs  func(x, angles []float32)
	// turnHead sets out to the RMS norm of x, whose length is a multiple of 32, with its halves rotated by
	// rotateHalves; nil if rmsNorm and rotateHalves are as fast.
	turnHead func(out, x, w, angles []float32, eps float32)
	// largest returns the index of the largest element, or the first of them if there are
	// several. NaN never wins; if all elements are NaN it returns 0.
	largest func(x []float32) int
	// siluMul sets dst to silu(gate) * up.
	siluMul func(dst, gate, up []float32)
	// geluMul sets dst to gelu(gate) * up, with the tanh approximation of GELU.
	geluMul func(dst, gate, up []float32)
	// expSub sets s to exp(s - m).
	expSub func(s []float32, m float32)
	// scaleMax multiplies s by scale and returns its maximum, ignoring NaN.
	scaleMax func(s []float32, scale float32) float32
	// wide are loops of attention for many rows of Q, or nil.
	wide *wideLoops
	// soften turns the scores of heads into softmax weights.
	soften softenFunc
	// addScaledF16 adds m rows of v, n float16 each, to the accumulators of acc, n elements each,
	// in order. Row j is multiplied by w[i*wStride+j] for accumulator i.
	addScaledF16 func(acc []float32, n int, v []byte, m int, w []float32, wStride int)
	// dotQ8 and addScaledQ8 are the F16 product and addScaledF16 for rows of int8 in whole blocks
	// of 32, with a scale per block.
	dotQ8       func(y []float32, yStride int, w []byte, scales []float32, n int, x *floatInput)
	addScaledQ8 func(acc []float32, n int, v []byte, scales []float32, m int, w []float32, wStride int)
	// f16ToF32 and f32ToF16 convert len(dst), or len(src), elements.
	f16ToF32 func(dst []float32, src []byte)
	f32ToF16 func(dst []byte, src []float32)
	// fp8ToF32 converts len(dst) elements of E4M3, a multiple of 32, and multiplies them by scale.
	fp8ToF32 func(dst []float32, src []byte, scale float32)

	// orderKeys sets keys to sampler.OrderKey of logits, which has the same length, and returns
	// the largest key.
	orderKeys func(keys []uint32, logits []float32) (most uint32)
	// atLeast returns a mask of the keys among the first 64 that are at least floor. The lowest
	// bit is the first key.
	atLeast func(keys []uint32, floor uint32) uint64
	// weigh sets the weight of each key that is at least least to weight(value - logit, scale)
	// and returns their sum. least is at least 1.
	weigh func(weights, keys []uint32, least uint32, value, scale float32) uint64
	// tally returns the number of keys that are at least floor and, unless weights is nil, the
	// sum of their weights.
	tally func(keys, weights []uint32, floor uint32) (n int, sum uint64)
	// draw enters the kept tokens of keys in the race. The first key belongs to id first.
	draw func(c race, keys []uint32, first int, o draws) race
}

// portable returns the loops written in Go, which run anywhere and are the reference.
func portable() *ops {
	o := &ops{
		features:     []string{"portable"},
		tiled:        tiledPortables(),
		rows:         map[dtype.Type]rowsFunc{dtype.Q8_0: rowsQ8_0, dtype.Q4_0: rowsQ4_0},
		accumulate:   accumulate,
		dot:          dot,
		quantize:     quantize,
		sumHalves:    sumHalves,
		sumBlocks:    sumBlocks,
		addTo:        addTo,
		scaleMul:     scaleMul,
		divide:       divide,
		decay:        decay,
		convolve:     func(out, w []float32, x [][]float32) { convolve(out, w, x, 0) },
		rotateHalves: rotateHalves,
		rotatePairs:  rotatePairs,
		largest:      largest,
		siluMul:      siluMul,
		geluMul:      geluMul,
		expSub:       expSub,
		scaleMax:     scaleMax,
		addScaledF16: addScaledF16,
		dotQ8:        dotQ8,
		addScaledQ8:  addScaledQ8,
		f16ToF32:     f16ToF32,
		f32ToF16:     f32ToF16,
		fp8ToF32:     fp8ToF32,
		orderKeys:    orderKeys,
		atLeast:      atLeast,
		weigh:        weigh,
		tally:        tally,
		draw:         drawPortable,
	}
	for _, f := range dtype.Forms() {
		if t := f.Type; t.Quantized() && o.rows[t] == nil {
			o.rows[t] = rowsBlocks(t, expandForm(f))
		}
	}
	for _, t := range dtype.All() {
		if bits, group, scale, ok := t.MLX(); ok {
			o.rows[t] = rowsBlocks(t, expandMLX(bits, group, scale))
		}
	}
	o.decodeFloats()
	o.soften, o.delta = o.softenAny(), o.deltaPlain
	return o
}

// decodeFloats sets the products with float activations to loops that first convert the weights to
// float32, with the other loops of o.
func (o *ops) decodeFloats() {
	o.float = map[dtype.Type]floatFunc{
		dtype.F32:  floatDecoded(decodeF32, 1, 4, o.accumulate),
		dtype.F16:  floatDecoded(o.f16ToF32, 1, 2, o.accumulate),
		dtype.BF16: floatDecoded(decodeBF16, 1, 2, o.accumulate),
	}
	for t := range o.rows {
		o.float[t] = o.floatExpanded(t, decodeWith(t))
	}
	for _, t := range dtype.All() {
		if t.Family() == dtype.FP8 {
			o.float[t] = o.floatExpanded(t, o.decodeFP8(t))
		}
	}
}
