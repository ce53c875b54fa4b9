package cpu

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// productEnd holds what gemv does with its sums besides storing or adding them. The zero value
// does nothing.
type productEnd struct {
	// If the input is scaled, partial sums of the squares of the rows that x is made of, count of
	// them for each row; the norm's factor multiplies the sums.
	sums  []float32 // [rows, sumsRow(count)], or nil
	count int

	// If the output is gated, the function that computes y from gate and up.
	gated func(dst, gate, up []float32)

	// If the output is add_scaled, the norm that follows: its weights, y times these weights, and
	// the sums of the squares of y over each group.
	next    []float32 // [out], or nil
	scaled  []float32 // [rows, out], as y
	squares []float32 // [rows, sumsRow(groups)]
}

// sumsRow returns the distance between rows of n partial sums, in elements.
func sumsRow(n int) int { return (n + 3) &^ 3 }

// bindEnd sets the fields that the output and a scaled input need. count is the number of partial sums.
func (k *matmul) bindEnd(b *binder, count int) {
	output := b.spec(kernels.GEMVSpecOutput)
	k.add = output == decl.OutputAdd || output == decl.OutputAddScaled
	if b.spec(kernels.GEMVSpecInput) == decl.InputScaled {
		b.need(count > 0, "there are no partial sums")
		k.end.sums, k.end.count = b.f32(kernels.GEMVBindX2), count
	}
	switch output {
	case decl.OutputGated:
		b.need(k.out%2 == 0 && k.group%2 == 0, "%d rows in groups of %d have no gates", k.out, k.group)
		if k.tiled != nil {
			b.need(k.out%(2*dtype.TileRows) == 0, "%d rows have no strips of gates", k.out)
			k.group = (k.group + 2*dtype.TileRows - 1) / (2 * dtype.TileRows) * 2 * dtype.TileRows
		}
		k.end.gated = b.gated(kernels.GEMVSpecActivation)
	case decl.OutputAddScaled:
		k.end.next, k.end.scaled, k.end.squares = b.f32(kernels.GEMVBindNext), b.f32(kernels.GEMVBindScaled), b.f32(kernels.GEMVBindSquares)
	}
}

// factor returns the norm's factor for row r of a scaled input with n columns.
func (e *productEnd) factor(r, n int, eps float32) float32 {
	sum := 0.0
	for _, v := range e.sums[r*sumsRow(e.count):][:e.count] {
		sum += float64(v)
	}
	return float32(1 / math.Sqrt(sum/float64(n)+float64(eps)))
}

// gate computes columns [first, last) of y from the products that are gates and those that are not.
// all is the number of rows of the whole input.
func (k *matmul) gate(w *worker, all, first, last int) {
	to := k.y[w.from*k.yStride:]
	for o := first; o < last; o += addPiece {
		end := min(o+addPiece, last)
		mem := float32s(w.scratch[all*k.inputBytes():][:8*w.rows*addPiece])
		gate, up := mem[:w.rows*addPiece], mem[w.rows*addPiece:]
		k.product(w, k.w, k.b, o, end, gate, addPiece)
		k.product(w, k.w, k.b, k.out/2+o, k.out/2+end, up, addPiece)
		for r := range w.rows {
			k.end.gated(to[r*k.yStride+o:][:end-o], gate[r*addPiece:][:end-o], up[r*addPiece:][:end-o])
		}
	}
}

// scale writes the columns of groups [lo, hi) of y times the weights of the norm that follows, and
// the sum of squares of each group.
func (k *matmul) scale(w *worker, lo, hi int) {
	row := sumsRow((k.out + k.group - 1) / k.group)
	for r := w.from; r < w.from+w.rows; r++ {
		for g := lo; g < hi; g++ {
			sum := float32(0)
			for i := g * k.group; i < min((g+1)*k.group, k.out); i++ {
				v := k.y[r*k.yStride+i]
				k.end.scaled[r*k.yStride+i] = v * k.end.next[i]
				sum += v * v
			}
			k.end.squares[r*row+g] = sum
		}
	}
}
