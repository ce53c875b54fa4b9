package cpu

import "github.com/pianola-engine/pianola/internal/dtype"

// streamLoop multiplies 2*half rows of weights, of steps times [streamStep] columns, with one row
// of activations. half and steps are at least 1.
type streamLoop func(y *float32, w *byte, half, steps int, x *float32)

// streamStep is the number of columns of a step. streamRow is the smallest size in bytes of a row
// that is streamed. Shorter rows, such as rows of K, are faster several at a time.
const (
	streamStep = 64
	streamRow  = 512
)

//go:noescape
func streamF32AVX512(y *float32, w *byte, half, steps int, x *float32)

//go:noescape
func streamF16AVX512(y *float32, w *byte, half, steps int, x *float32)

//go:noescape
func streamBF16AVX512(y *float32, w *byte, half, steps int, x *float32)

//go:noescape
func streamF32AVX2(y *float32, w *byte, half, steps int, x *float32)

//go:noescape
func streamF16AVX2(y *float32, w *byte, half, steps int, x *float32)

//go:noescape
func streamBF16AVX2(y *float32, w *byte, half, steps int, x *float32)

// streamed returns a product that uses stream for long rows and a single row of activations, and
// other otherwise.
func streamed(t dtype.Type, stream streamLoop, other floatFunc) floatFunc {
	_, size := t.Block()
	return func(y []float32, yStride int, w []byte, n int, x *floatInput) {
		if n <= 1 || x.rows != 1 || x.in < streamStep || x.in%streamStep != 0 || x.in*size <= streamRow {
			other(y, yStride, w, n, x)
			return
		}
		row, even := x.in*size, n&^1
		y, w, f := y[:n], w[:n*row], x.x[:x.in]
		stream(&y[0], &w[0], n/2, x.in/streamStep, &f[0])
		if even < n {
			other(y[even:], yStride, w[even*row:], 1, x)
		}
	}
}
