package cpu

import (
	"encoding/binary"
	"math"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// floatInput holds rows of float activations with in columns each, stride elements apart: x is
// [rows, stride].
type floatInput struct {
	x                []float32
	in, stride, rows int

	buf    [256]float32       // buffer for converted weights
	wide   [wideRows]float32  // buffer for whole rows of converted weights
	sums   [8][lanes]float32  // sums of the rows of activations, if they are not in registers
	slices [sliceSize]float32 // sums of rows of which some columns have been computed, by sliceLoop
}

// row returns row j.
func (x *floatInput) row(j int) []float32 { return x.x[j*x.stride:][:x.in] }

// floatFunc computes y[j*yStride+i] = dot(row i of w, row j of x) for n consecutive rows of
// weights.
type floatFunc func(y []float32, yStride int, w []byte, n int, x *floatInput)

// floatDecoded returns the product of weights that decode converts to float32. A block of elems
// elements has size bytes.
func floatDecoded(decode func(dst []float32, src []byte), elems, size int, accumulate func(acc *[lanes]float32, a, b []float32)) floatFunc {
	return func(y []float32, yStride int, w []byte, n int, x *floatInput) {
		row := x.in / elems * size
		for j := 0; j < x.rows; j += len(x.sums) {
			sums := x.sums[:min(len(x.sums), x.rows-j)]
			for i := range n {
				w := w[i*row:][:row]
				clear(sums)
				for at := 0; at < x.in; at += len(x.buf) {
					buf := x.buf[:min(len(x.buf), x.in-at)]
					decode(buf, w[at/elems*size:])
					for k := range sums {
						accumulate(&sums[k], buf, x.row(j + k)[at:])
					}
				}
				for k := range sums {
					y[(j+k)*yStride+i] = reduce16(&sums[k])
				}
			}
		}
	}
}

// wideRows is the number of elements of rows of weights that are converted at a time. They fit in
// the second-level cache next to the activations.
const wideRows = 16 << 10

// Long rows of many rows of activations are computed in slices of their columns, so that a slice of the activations stays
// in the first-level cache for several rows of weights.
const (
	sliceRows    = 6    // rows of activations that are computed together
	sliceColumns = 1024 // largest number of columns of a slice
	sliceWeights = 16   // rows of weights whose sums are kept meanwhile
	sliceGroups  = 10   // largest number of groups of rows of activations whose sums are kept
	sliceSums    = sliceRows * sliceWeights * lanes

	sliceSize = sliceGroups*sliceSums + align/4 // with room to align the sums
)

// floatExpanded returns the product of a type with blocks. It converts several rows of weights to
// float32 with decode and multiplies them by all rows of activations with the product of F32, which
// has the same sums. Longer rows, and all rows for one row of activations, are converted piece by
// piece, so that the converted weights stay in the first-level cache.
func (o *ops) floatExpanded(t dtype.Type, decode func(dst []float32, src []byte)) floatFunc {
	elems, size := t.Block()
	long := floatDecoded(decode, elems, size, o.accumulate)
	return func(y []float32, yStride int, w []byte, n int, x *floatInput) {
		if x.rows == 1 || x.in == 0 || x.in > wideRows {
			long(y, yStride, w, n, x)
			return
		}
		most, row := wideRows/x.in, x.in/elems*size
		for i := 0; i < n; i += most {
			rows := min(most, n-i)
			wide := x.wide[:rows*x.in]
			decode(wide, w[i*row:][:rows*row])
			o.float[dtype.F32](y[i:], yStride, memoryOf(wide), rows, x)
		}
	}
}

// decodeFP8 returns the conversion of a type of E4M3.
func (o *ops) decodeFP8(t dtype.Type) func(dst []float32, src []byte) {
	elems, size := t.Block()
	return func(dst []float32, src []byte) {
		for ; len(dst) > 0; dst, src = dst[elems:], src[size:] {
			o.fp8ToF32(dst[:elems], src[4:size], math.Float32frombits(binary.LittleEndian.Uint32(src)))
		}
	}
}
