//go:build amd64 || arm64

package cpu

// dotQ8Loop is an assembly version of dotQ8 for a fixed number of rows of activations. in, the
// number of columns, must be a multiple of blockElems. Strides are in bytes.
type dotQ8Loop func(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)

// scaledQ8Loop is an assembly version of addScaledQ8 for a fixed number of accumulators. Each
// accumulator is a row of n float32, and the rows follow one another in acc. To each, the loop
// adds the m rows of v, multiplied by that accumulator's m weights in w. n must be a multiple of
// blockElems. wStride is the distance between the weights of two accumulators in bytes.
type scaledQ8Loop func(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)

// dotQ8Assembled returns a dotQ8 that uses loops. loops[i] takes i rows of activations.
func dotQ8Assembled(loops []dotQ8Loop) func(y []float32, yStride int, w []byte, scales []float32, n int, x *floatInput) {
	return func(y []float32, yStride int, w []byte, scales []float32, n int, x *floatInput) {
		if n <= 0 || x.rows <= 0 {
			return
		}
		if x.in <= 0 || x.in%blockElems != 0 {
			dotQ8(y, yStride, w, scales, n, x)
			return
		}
		f := x.x[:(x.rows-1)*x.stride+x.in]
		y, w, scales = y[:(x.rows-1)*yStride+n], w[:n*x.in], scales[:n*x.in/blockElems]
		for j := 0; j < x.rows; {
			rows := take(loops, x.rows-j)
			loops[rows](&y[j*yStride], 4*yStride, &w[0], &scales[0], n, x.in, &f[j*x.stride], 4*x.stride)
			j += rows
		}
	}
}

// scaledQ8Assembled returns an addScaledQ8 that uses loops. loops[i] takes i accumulators.
func scaledQ8Assembled(loops []scaledQ8Loop) func(acc []float32, n int, v []byte, scales []float32, m int, w []float32, wStride int) {
	return func(acc []float32, n int, v []byte, scales []float32, m int, w []float32, wStride int) {
		if n <= 0 || m <= 0 || len(acc) < n {
			return
		}
		if n%blockElems != 0 {
			addScaledQ8(acc, n, v, scales, m, w, wStride)
			return
		}
		rows := len(acc) / n
		v, scales, w = v[:n*m], scales[:n*m/blockElems], w[:(rows-1)*wStride+m]
		for i := 0; i < rows; {
			n1 := take(loops, rows-i)
			loops[n1](&acc[i*n], n, &v[0], &scales[0], m, &w[i*wStride], 4*wStride)
			i += n1
		}
	}
}
