package cpu

// floatInput holds rows of float activations with in columns each, stride elements apart: x is
// [rows, stride].
type floatInput struct {
	x                []float32
	in, stride, rows int

	buf  [256]float32      // buffer for converted weights
	sums [8][lanes]float32 // sums of the rows of activations, if they are not in registers
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
