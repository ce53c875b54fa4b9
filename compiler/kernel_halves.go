package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// halvesArgs holds the arguments of halves, which converts the input of a product to float16 in
// out[0]. The input is in[0] or silu(in[0]) * in[1].
type halvesArgs struct {
	unweighted
	input      uint32 // decl.InputPlain or decl.InputSiLUMul
	activation uint32 // for decl.InputSiLUMul: a decl.Activation
}

func (halvesArgs) kernel() decl.ID    { return kernels.Halves }
func (a halvesArgs) describe() string { return describeInput(a.input, a.activation) }

func (a halvesArgs) lower(l *lowering) {
	x := l.n.in[0]
	l.bind(kernels.HalvesBindX, x)
	if a.input == decl.InputSiLUMul {
		l.bind(kernels.HalvesBindX2, l.n.in[1])
	}
	l.bind(kernels.HalvesBindOut, l.n.out[0])
	l.set(kernels.HalvesSpecInput, a.input)
	l.set(kernels.HalvesSpecActivation, a.activation)
	kernels.HalvesParams{In: uint32(x.width), XStride: stride(x)}.Put(&l.cmd)
}

// halvesWidth returns the size of a row of n columns that halves writes, in units of float32.
func halvesWidth(n int) int { return roundUp(n, 64) + 4 }

// halvesProductArgs holds the arguments of gemm_halves: out[0] becomes the product of w with in[0],
// an output of halves.
type halvesProductArgs struct{ w, bias *weight }

// splittable reports whether gemm_halves supports a matrix: its type is float16 or bfloat16 and its
// number of columns is a multiple of 8.
func splittable(w *weight) bool {
	return (w.typ == dtype.F16 || w.typ == dtype.BF16) && w.layout == dtype.Rows && w.cols%8 == 0
}

const (
	halvesThreads = 256 // threads in a threadgroup of gemm_halves
	halvesGroup   = 128 // rows of W that a threadgroup computes, for 64 or 128 rows of the input
)

func (halvesProductArgs) kernel() decl.ID      { return kernels.GEMMHalves }
func (a halvesProductArgs) weights() []*weight { return []*weight{a.w, a.bias} }
func (halvesProductArgs) threads(*lowering) int {
	return halvesThreads
}

func (a halvesProductArgs) lower(l *lowering) {
	l.bind(kernels.GEMMHalvesBindX, l.n.in[0])
	l.bindWeight(kernels.GEMMHalvesBindW, a.w)
	l.bindWeight(kernels.GEMMHalvesBindB, a.bias)
	l.bind(kernels.GEMMHalvesBindY, l.n.out[0])
	l.set(kernels.GEMMHalvesSpecWType, uint32(a.w.typ))
	l.flag(kernels.GEMMHalvesSpecBias, a.bias != nil)
	kernels.GEMMHalvesParams{
		In: uint32(a.w.cols), Out: uint32(a.w.rows), YStride: stride(l.n.out[0]), Group: halvesGroup, RowGroup: uint32(a.rows(l)),
	}.Put(&l.cmd)
}

// rows returns the number of input rows per threadgroup that minimises the time of the
// product. The estimate is proportional to the bytes that a core reads: two float16 per
// element of the input and one per element of W. A wave of threadgroups is one on each core.
func (a halvesProductArgs) rows(l *lowering) int {
	best, least := 0, 0
	for _, rows := range []int{128, 64} {
		waves := ceil(ceil(a.w.rows, halvesGroup)*ceil(l.p.rows, rows), max(l.s.in.Chip.Cores, 1))
		if time := waves * (halvesGroup + 2*rows); least == 0 || time < least {
			best, least = rows, time
		}
	}
	return best
}
