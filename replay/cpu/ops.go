package cpu

import (
	"github.com/pianola-engine/pianola/dtype"
	"github.com/pianola-engine/pianola/table/decl"
)

// blockElems is the block of quantised activations, and of the weights that
// are multiplied with them.
const blockElems = 32

// input is one row of activations in the form that a product wants.
type input struct {
	f []float32 // act f32: [n]
	q []int8    // act q8: [n]
	d []float32 // act q8: [n/32], scales
	s []int16   // act q8 and a weight type with minimums: [n/16], sums of q

	buf   [superElems]float32 // for converted weights
	sums  [lanes]float32      // of a row, where they are not in registers
	group group               // for expanded weights
}

// rowsFunc computes y[i] = dot(row i of w, x) for len(y) rows that lie one
// after another in w.
type rowsFunc func(y []float32, w []byte, x *input)

// product names an implementation of a matrix product.
type product struct {
	weight dtype.Type
	act    uint32 // decl.ActF32 or decl.ActQ8
}

// ops are the inner loops, chosen once by the processor's features. Every set
// gives the same bits.
type ops struct {
	features []string

	rows  map[product]rowsFunc
	tiled map[dtype.Type]tiledFunc // products of weights in tiles, activations quantised
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
	// expSub sets s to exp(s - m).
	expSub func(s []float32, m float32)
	// addScaledF16 adds w[j] * row j of v, len(acc) float16, to acc, in order.
	addScaledF16 func(acc []float32, v []byte, w []float32)
	// f16ToF32 and f32ToF16 convert len(dst), or len(src), elements.
	f16ToF32 func(dst []float32, src []byte)
	f32ToF16 func(dst []byte, src []float32)
}

// portable returns the loops in Go, which run anywhere and are the reference.
func portable() *ops {
	o := &ops{
		features: []string{"portable"},
		tiled:    tiledPortables(),
		rows: map[product]rowsFunc{
			{dtype.F32, decl.ActF32}:  rowsDecoded(decodeF32, 1, 4),
			{dtype.F16, decl.ActF32}:  rowsDecoded(f16ToF32, 1, 2),
			{dtype.BF16, decl.ActF32}: rowsDecoded(decodeBF16, 1, 2),
			{dtype.Q8_0, decl.ActQ8}:  rowsQ8_0,
			{dtype.Q4_0, decl.ActQ8}:  rowsQ4_0,
		},
		dot:          dot,
		quantize:     quantize,
		sumHalves:    sumHalves,
		addTo:        addTo,
		scaleMul:     scaleMul,
		rotateHalves: rotateHalves,
		rotatePairs:  rotatePairs,
		largest:      largest,
		siluMul:      siluMul,
		expSub:       expSub,
		addScaledF16: addScaledF16,
		f16ToF32:     f16ToF32,
		f32ToF16:     f32ToF16,
	}
	for t, expand := range map[dtype.Type]expandFunc{
		dtype.Q4_1: expandQ4_1, dtype.Q5_0: expandQ5_0, dtype.Q5_1: expandQ5_1,
		dtype.Q2_K: expandQ2_K, dtype.Q3_K: expandQ3_K, dtype.Q4_K: expandQ4_K, dtype.Q5_K: expandQ5_K, dtype.Q6_K: expandQ6_K,
		dtype.IQ4_NL: expandIQ4_NL, dtype.IQ4_XS: expandIQ4_XS, dtype.MXFP4: expandMXFP4,
	} {
		o.rows[product{t, decl.ActQ8}] = rowsBlocks(t, expand)
	}
	for p := range o.rows {
		if p.act == decl.ActQ8 {
			elems, size := p.weight.Block()
			o.rows[product{p.weight, decl.ActF32}] = rowsDecoded(decodeWith(p.weight), elems, size)
		}
	}
	return o
}
