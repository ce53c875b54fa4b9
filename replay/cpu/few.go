package cpu

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// Rows of W that a threadgroup of gemm_few computes, and rows that its scaled rows have room for.
const (
	fewGroup = 32
	fewMost  = 8
)

// newGEMMFew implements gemm_few, whose arguments are those of gemm_halves without the shape of its
// threadgroups if its rows are float16 and the product is stored.
func newGEMMFew(b *binder) (kernel, error) {
	p := kernels.GEMMFewParamsOf(b.cmd)
	product, err := newHalvesProduct(b, kernels.GEMMHalvesParams{In: p.In, Out: p.Out, YStride: p.YStride, Group: fewGroup}, true)
	input, output := b.spec(kernels.GEMMFewSpecInput), b.spec(kernels.GEMMFewSpecOutput)
	if err != nil || input == decl.InputPlain && output == decl.OutputStore {
		return product, err
	}
	k := &gemmFew{
		gemmHalves: *product, output: output, eps: p.Eps, scale: orOne(p.Scale), deltaScale: orOne(p.DeltaScale), squares: p.Squares != 0,
		next: b.f32(kernels.GEMMFewBindNext), scaled: b.f32(kernels.GEMMFewBindScaled), parts: b.f32(kernels.GEMMFewBindParts),
	}
	k.blocks = dtype.Type(b.spec(kernels.GEMMFewSpecWType))
	if input == decl.InputScaled {
		k.x, k.xParts = b.f32(kernels.GEMMFewBindX), b.f32(kernels.GEMMFewBindXParts)
	}
	k.gated = b.gated(kernels.GEMMFewSpecActivation)
	return k, b.err
}

// gemmFew implements the forms of gemm_few that have a scaled input or do not store the product.
type gemmFew struct {
	gemmHalves
	output                 uint32
	eps, scale, deltaScale float32
	squares                bool // the input is multiplied by the factor of its norm

	xParts []float32 // nil if the input is rows of float16
	next   []float32 // [out]
	scaled []float32
	parts  []float32
}

// scaledAt returns the index of a column of row r of rows rows of float32 in the order of gemm_few.
func scaledAt(rows, r, column int) int {
	places := decl.FewRows(rows)
	return column/fewGroup*fewGroup*places + column%fewGroup/16*16*places + r*16 + column%16
}

func (k *gemmFew) units(*worker) int { return (k.out + fewGroup - 1) / fewGroup }

func (k *gemmFew) prepare(w *worker, lo, hi int) {
	if k.xParts == nil {
		k.gemmHalves.prepare(w, lo, hi)
		return
	}
	for r := lo; r < hi; r++ {
		k.convert(float32s(w.prepared()[r*roundUp(4*k.in):][:4*k.in]), w.rows, r)
	}
}

// convert sets x to row r of rows of the scaled input, rounded to float16 in the unit of its largest element.
func (k *gemmFew) convert(x []float32, rows, r int) {
	factor := float32(1)
	var largest []float32
	if count := k.in / fewGroup; k.squares {
		var sum float32
		for _, v := range k.xParts[(2*r+1)*count:][:count] {
			sum += v
		}
		factor = float32(1/math.Sqrt(float64(sum/float32(k.in)+k.eps))) * k.scale
		largest = k.xParts[2*r*count:][:count]
	} else {
		largest = k.xParts[2*r*count:][:2*count]
	}
	most := largestOf(largest)
	unit := halvesUnit(most * factor)
	inverse := 1 / unit
	for i := range x {
		x[i] = dtype.F16ToF32(dtype.F32ToF16(k.x[scaledAt(rows, r, i)]*factor*inverse)) * unit
	}
}

func (k *gemmFew) run(w *worker, lo, hi int) {
	if w.shared == nil {
		k.prepare(w, 0, w.rows)
	}
	k.more(w, lo, hi)
}

func (k *gemmFew) more(w *worker, lo, hi int) {
	products := float32s(w.scratch[(w.rows+2)*roundUp(4*k.in):][:4*fewGroup*fewMost])
	for g := lo; g < hi; g++ {
		if !k.multiply(w, products, g) {
			return
		}
		for r := range w.rows {
			row := products[r*fewGroup:][:fewGroup]
			if k.output == decl.OutputGated {
				k.putGated(row, w.rows, r, g)
			} else {
				k.put(row, w.rows, r, g)
			}
		}
	}
}

// weightRow returns row i of those that threadgroup g computes.
func (k *gemmFew) weightRow(g, i int) int {
	switch {
	case k.output != decl.OutputGated:
		return g*fewGroup + i
	case i < fewGroup/2:
		return g*fewGroup/2 + i
	}
	return k.out/2 + g*fewGroup/2 + i - fewGroup/2
}

// multiply sets products to those of all rows with the rows of W of threadgroup g. It reports whether W has whole
// blocks.
func (k *gemmFew) multiply(w *worker, products []float32, g int) bool {
	size := roundUp(4 * k.in)
	block := w.scratch[w.rows*size:][:k.rowBytes]
	weights := float32s(w.scratch[(w.rows+1)*size:][:4*k.in])
	for i := range fewGroup {
		o := k.weightRow(g, i)
		if o >= k.out {
			break
		}
		if !k.weightsOf(weights, block, o) {
			return false
		}
		for r := range w.rows {
			sum := k.ops.dot(weights, float32s(w.prepared()[r*size:][:4*k.in]))
			if k.b != nil {
				sum += k.b[o]
			}
			products[r*fewGroup+i] = sum
		}
	}
	return true
}

// putGated writes activation(gate) * up of row r of rows of threadgroup g.
func (k *gemmFew) putGated(row []float32, rows, r, g int) {
	const half = fewGroup / 2
	gate := row[:half]
	k.gated(gate, gate, row[half:])
	copy(k.scaled[scaledAt(rows, r, g*half):], gate)
	k.parts[r*(k.out/fewGroup)+g] = largestOf(gate)
}

// put writes the product of row r of rows of threadgroup g, or adds it to the residual stream.
func (k *gemmFew) put(row []float32, rows, r, g int) {
	y := k.y[r*k.yStride+g*fewGroup:][:min(fewGroup, k.out-g*fewGroup)]
	if k.output == decl.OutputStore {
		copy(y, row)
		return
	}
	k.ops.addScaled(y, row, k.deltaScale)
	var squares float32
	for i, v := range y {
		row[i] = v * k.next[g*fewGroup+i]
		squares += v * v
	}
	copy(k.scaled[scaledAt(rows, r, g*fewGroup):], row[:fewGroup/2])
	copy(k.scaled[scaledAt(rows, r, g*fewGroup+fewGroup/2):], row[fewGroup/2:])
	count := k.out / fewGroup
	k.parts[2*r*count+g] = largestOf(row)
	k.parts[(2*r+1)*count+g] = squares
}

// largestOf returns the largest magnitude of x.
func largestOf(x []float32) float32 {
	var most float32
	for _, v := range x {
		most = max(most, max(v, -v))
	}
	return most
}
