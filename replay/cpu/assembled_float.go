//go:build amd64 || arm64

package cpu

import "github.com/pianola-engine/pianola/internal/dtype"

// floatLoop multiplies n rows of weights with in columns, both at least 1, by a fixed number of
// rows of activations. Strides are in bytes.
type floatLoop func(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

// scaledLoop adds m rows of v, each times its weight, to a fixed number of accumulators of n
// elements, stored one after another. m and n are not 0; wStride is in bytes.
type scaledLoop func(acc *float32, n int, v *byte, m int, w *float32, wStride int)

// wideLoop is a scaledLoop for rows of float32 whose weights are in lanes: those of a row of v are wStride bytes apart,
// and those of two rows wideLanes elements.
type wideLoop func(acc *float32, n int, v *float32, m int, w *float32, wStride int)

// floatChunk is the number of bytes of weights that are multiplied by all rows of activations
// before the next ones, so that they stay in the second-level cache.
const floatChunk = 128 << 10

// floatAssembled returns the product of a type without blocks. loops[i] takes i rows of
// activations; it is nil if there is no such loop.
func floatAssembled(t dtype.Type, loops []floatLoop) floatFunc {
	_, size := t.Block()
	return func(y []float32, yStride int, w []byte, n int, x *floatInput) {
		if n <= 0 || x.rows <= 0 {
			return
		}
		if x.in <= 0 {
			for j := range x.rows {
				clear(y[j*yStride:][:n])
			}
			return
		}
		row, f := size*x.in, x.x[:(x.rows-1)*x.stride+x.in]
		y, w = y[:(x.rows-1)*yStride+n], w[:n*row]
		chunk := n
		if x.rows >= len(loops) {
			chunk = max(4, floatChunk/row&^3)
		}
		for i := 0; i < n; i += chunk {
			for j := 0; j < x.rows; {
				rows := take(loops, x.rows-j)
				loops[rows](&y[j*yStride+i], 4*yStride, &w[i*row], min(chunk, n-i), x.in, &f[j*x.stride], 4*x.stride)
				j += rows
			}
		}
	}
}

// floatWhole returns a product that uses whole if rows are a multiple of lanes columns, and rest
// otherwise.
func floatWhole(whole, rest floatFunc) floatFunc {
	return func(y []float32, yStride int, w []byte, n int, x *floatInput) {
		if x.in%lanes == 0 {
			whole(y, yStride, w, n, x)
		} else {
			rest(y, yStride, w, n, x)
		}
	}
}

// scaledAssembled returns an addScaledF16 that uses loops. loops[i] takes i accumulators.
func scaledAssembled(loops []scaledLoop) func(acc []float32, n int, v []byte, m int, w []float32, wStride int) {
	return func(acc []float32, n int, v []byte, m int, w []float32, wStride int) {
		if n <= 0 || m <= 0 || len(acc) < n {
			return
		}
		rows := len(acc) / n
		v, w = v[:2*n*m], w[:(rows-1)*wStride+m]
		for i := 0; i < rows; {
			n1 := take(loops, rows-i)
			loops[n1](&acc[i*n], n, &v[0], m, &w[i*wStride], 4*wStride)
			i += n1
		}
	}
}

// take returns the number of rows, at most left, that the largest suitable loop takes.
func take[T floatLoop | scaledLoop | wideLoop | dotQ8Loop | scaledQ8Loop](loops []T, left int) int {
	for n := min(left, len(loops)-1); ; n-- {
		if loops[n] != nil {
			return n
		}
	}
}

func dotVector(a, b []float32) float32 {
	var acc [lanes]float32
	accumulateVector(&acc, a, b)
	return reduce16(&acc)
}
