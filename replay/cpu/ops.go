package cpu

import (
	"github.com/pianola-engine/pianola/internal/dtype"
)

// blockElems is the block of quantised activations, and of the weights that
// are multiplied with them.
const blockElems = 32

// input is one row of quantised activations.
type input struct {
	q []int8    // [n]
	d []float32 // [n/32], scales
	s []int16   // with a weight type with minimums: [n/16], sums of q

	group group // for expanded weights
}

// rowsFunc computes y[i] = dot(row i of w, x) for len(y) rows that lie one
// after another in w.
type rowsFunc func(y []float32, w []byte, x *input)

// ops are the inner loops, chosen once by the processor's features. Every set
// gives the same bits.
type ops struct {
	features []string

	float map[dtype.Type]floatFunc // products of rows of weights and float activations
	rows  map[dtype.Type]rowsFunc  // of rows of weights and quantised activations
	tiled map[dtype.Type]tiledFunc // of weights in tiles and quantised activations
	// accumulate adds the products of a and b to the sums of a float dot product.
	accumulate func(acc *[lanes]float32, a, b []float32)
	// dot returns the float dot product of a and b, which are as long.
	dot func(a, b []float32) float32
	// quantize sets q and d to the 8-bit form of x, a whole number of blocks.
	quantize func(q []int8, d, x []float32)
	// sumHalves sets s to the sums of len(s) half blocks of q.
	sumHalves func(s []int16, q []int8)
	// addTo adds delta to x, which is as long.
	addTo func(x, delta []float32)
	// scaleMul sets out to (x * scale) * w; all are as long, out may be x.
	scaleMul func(out, x, w []float32, scale float32)
	// rotateHalves rotates the pairs x[i], high[i] by angles[2i], the cosine,
	// and angles[2i+1], the sine; rotatePairs the pairs x[2i], x[2i+1].
	rotateHalves func(x, high, angles []float32)
	rotatePairs  func(x, angles []float32)
	// largest returns the index of the largest element, the first of equals.
	// NaN never wins; if all are NaN, it is 0.
	largest func(x []float32) int
	// siluMul sets dst to silu(gate) * up.
	siluMul func(dst, gate, up []float32)
	// geluMul sets dst to gelu(gate) * up, by a hyperbolic tangent.
	geluMul func(dst, gate, up []float32)
	// expSub sets s to exp(s - m).
	expSub func(s []float32, m float32)
	// scaleMax multiplies s by scale and returns its maximum, ignoring NaN.
	scaleMax func(s []float32, scale float32) float32
	// soften makes weights of the scores of heads.
	soften softenFunc
	// addScaledF16 adds m rows of v, n float16 each, to the accumulators of acc, n
	// elements each, in order: those of accumulator i times w[i*wStride:][:m].
	addScaledF16 func(acc []float32, n int, v []byte, m int, w []float32, wStride int)
	// dotQ8 and addScaledQ8 are the product of F16 and addScaledF16 for rows of int8
	// of whole blocks of 32, with a scale for each.
	dotQ8       func(y []float32, yStride int, w []byte, scales []float32, n int, x *floatInput)
	addScaledQ8 func(acc []float32, n int, v []byte, scales []float32, m int, w []float32, wStride int)
	// f16ToF32 and f32ToF16 convert len(dst), or len(src), elements.
	f16ToF32 func(dst []float32, src []byte)
	f32ToF16 func(dst []byte, src []float32)

	// orderKeys sets keys to sampler.OrderKey of logits, which are as many, and
	// returns the largest.
	orderKeys func(keys []uint32, logits []float32) (most uint32)
	// atLeast returns which of the first 64 keys are at least floor, the first as the
	// lowest bit.
	atLeast func(keys []uint32, floor uint32) uint64
	// weigh returns the sum of weight(value - logit, scale) over the keys that are at
	// least least, which is at least 1, and sets their weights.
	weigh func(weights, keys []uint32, least uint32, value, scale float32) uint64
	// tally returns how many keys are at least floor and, unless weights is nil, the
	// sum of their weights.
	tally func(keys, weights []uint32, floor uint32) (n int, sum uint64)
	// draw enters the kept tokens of keys, the first of which has id first.
	draw func(c race, keys []uint32, first int, o draws) race
}

// portable returns the loops in Go, which run anywhere and are the reference.
func portable() *ops {
	o := &ops{
		features:     []string{"portable"},
		tiled:        tiledPortables(),
		rows:         map[dtype.Type]rowsFunc{dtype.Q8_0: rowsQ8_0, dtype.Q4_0: rowsQ4_0},
		accumulate:   accumulate,
		dot:          dot,
		quantize:     quantize,
		sumHalves:    sumHalves,
		addTo:        addTo,
		scaleMul:     scaleMul,
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
	o.soften = o.softenAny()
	return o
}

// decodeFloats sets the products with float activations to those that convert
// the weights first, by the loops of o.
func (o *ops) decodeFloats() {
	o.float = map[dtype.Type]floatFunc{
		dtype.F32:  floatDecoded(decodeF32, 1, 4, o.accumulate),
		dtype.F16:  floatDecoded(o.f16ToF32, 1, 2, o.accumulate),
		dtype.BF16: floatDecoded(decodeBF16, 1, 2, o.accumulate),
	}
	for t := range o.rows {
		elems, size := t.Block()
		o.float[t] = floatDecoded(decodeWith(t), elems, size, o.accumulate)
	}
	for _, t := range dtype.All() {
		if t.Family() == dtype.FP8 {
			elems, size := t.Block()
			o.float[t] = floatDecoded(decodeWith(t), elems, size, o.accumulate)
		}
	}
}
