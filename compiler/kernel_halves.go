package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// halvesArgs holds the arguments of halves, which converts the input of a product to float16 in
// out[0]. The input is in[0] or silu(in[0]) * in[1].
type halvesArgs struct {
	unweighted
	act        uint32 // decl.ActF16 or decl.ActF16x2
	input      uint32 // decl.InputPlain or decl.InputSiLUMul
	activation uint32 // for decl.InputSiLUMul: a decl.Activation
	few        bool   // write the order of gemm_few
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
	l.set(kernels.HalvesSpecAct, a.act)
	p := kernels.HalvesParams{In: uint32(x.width), XStride: stride(x)}
	if a.few {
		p.Few = 1
	}
	p.Put(&l.cmd)
}

// addNormHalvesArgs holds the arguments of add_rmsnorm_halves: out[0] += in[0], and out[1] becomes the
// norm of out[0] as halves writes it.
type addNormHalvesArgs struct {
	addNormArgs
	few bool // write the order of gemm_few
}

func (addNormHalvesArgs) kernel() decl.ID { return kernels.AddRMSNormHalves }

func (a addNormHalvesArgs) lower(l *lowering) {
	l.bind(kernels.AddRMSNormHalvesBindX, l.n.out[0])
	l.bind(kernels.AddRMSNormHalvesBindDelta, l.n.in[0])
	l.bindWeight(kernels.AddRMSNormHalvesBindW, a.w)
	l.bind(kernels.AddRMSNormHalvesBindOut, l.n.out[1])
	p := kernels.AddRMSNormHalvesParams{N: uint32(a.w.cols), Eps: a.eps, Scale: a.scale, DeltaScale: a.delta}
	if a.few {
		p.Few = 1
	}
	p.Put(&l.cmd)
}

// halvesWidth returns the size in float32 of a row of n columns that halves writes.
func halvesWidth(n int, act uint32) int {
	if act == decl.ActF16 {
		return roundUp(n, 64)/2 + 32
	}
	return roundUp(n, 64) + 32
}

// fewWidth returns the size in float32 of a row of n columns that halves writes for gemm_few if there
// are at most rows rows.
func fewWidth(n, rows int) int {
	return roundUp(ceil(halvesWidth(n, decl.ActF16)*decl.FewRows(rows), rows), 4)
}

// halvesProductArgs holds the arguments of gemm_halves and gemm_few, whose bindings and constants are
// the same: out[0] becomes the product of w with in[0], which halves has made.
type halvesProductArgs struct {
	w, bias *weight
	act     uint32 // decl.ActF16 or decl.ActF16x2
	few     bool   // gemm_few, for a short prompt; otherwise gemm_halves
}

// halvesAct returns the type of activations that gemm_halves multiplies by w: two float16 terms
// if the table is exact, else one. It reports whether gemm_halves supports w.
func (s *state) halvesAct(w *weight) (act uint32, ok bool) {
	act = decl.ActF16
	if s.in.Options.Exact {
		act = decl.ActF16x2
	}
	if w.layout == dtype.Tiled16 {
		return act, act == decl.ActF16 && dtype.FormOf(w.typ).HalfRange()
	}
	return act, (w.typ == dtype.F16 || w.typ == dtype.BF16) && w.cols%8 == 0
}

// few reports whether the products of a program use gemm_few. It adds the sums of a row in another
// order than gemm_halves, so a table for batching does not use it.
func (s *state) few(p *program) bool {
	return p.name == table.ProgramPrefillFew && !s.in.Options.Batching
}

const (
	halvesThreads = 384 // threads of a threadgroup of gemm_halves
	fewThreads    = 256 // threads of a threadgroup of gemm_few
	halvesGroup   = 128 // rows of W that it computes
	// halvesConstant is the part of a threadgroup's time that does not depend on its shape. Its
	// unit is the time of one product for each column.
	halvesConstant = 8192
)

func (a halvesProductArgs) kernel() decl.ID {
	if a.few {
		return kernels.GEMMFew
	}
	return kernels.GEMMHalves
}

func (a halvesProductArgs) weights() []*weight { return []*weight{a.w, a.bias} }
func (a halvesProductArgs) threads(*lowering) int {
	if a.few {
		return fewThreads
	}
	return halvesThreads
}

func (a halvesProductArgs) lower(l *lowering) {
	l.bind(kernels.GEMMHalvesBindX, l.n.in[0])
	l.bindWeight(kernels.GEMMHalvesBindW, a.w)
	l.bindWeight(kernels.GEMMHalvesBindB, a.bias)
	l.bind(kernels.GEMMHalvesBindY, l.n.out[0])
	l.set(kernels.GEMMHalvesSpecWType, uint32(a.w.typ))
	l.flag(kernels.GEMMHalvesSpecBias, a.bias != nil)
	l.set(kernels.GEMMHalvesSpecAct, a.act)
	l.set(kernels.GEMMHalvesSpecWeights, uint32(a.w.layout))
	if a.few {
		kernels.GEMMFewParams{In: uint32(a.w.cols), Out: uint32(a.w.rows), YStride: stride(l.n.out[0])}.Put(&l.cmd)
		return
	}
	rows := a.rowGroup(l)
	kernels.GEMMHalvesParams{
		In: uint32(a.w.cols), Out: uint32(a.w.rows), YStride: stride(l.n.out[0]), Group: halvesGroup, RowGroup: uint32(rows),
		Spread: uint32(a.spread(l, rows)),
	}.Put(&l.cmd)
}

// spread returns the largest number of threadgroups of 64 rows of W each. If a product needs more, a
// threadgroup computes 128 rows. In a threadgroup of 64 rows, two warpgroups divide the columns, which
// is another order of sums, so a table for batching has no such threadgroups.
func (a halvesProductArgs) spread(l *lowering, rows int) int {
	if l.s.in.Options.Batching {
		return 0
	}
	return min(ceil(a.w.rows, halvesGroup)*ceil(l.p.rows, rows), 2*max(l.s.in.Chip.Cores, 1))
}

// rowGroup returns how many rows of the input a threadgroup takes: the number with the shortest
// estimated time. Threadgroups run in waves, one on each core. One takes a time proportional to its
// products, and a part that does not depend on its shape.
func (a halvesProductArgs) rowGroup(l *lowering) int {
	best, least := 0, 0
	for _, rows := range []int{256, 128, 64} {
		if rows == 256 && a.act == decl.ActF16x2 {
			continue
		}
		waves := ceil(ceil(a.w.rows, halvesGroup)*ceil(l.p.rows, rows), max(l.s.in.Chip.Cores, 1))
		if time := waves * (halvesGroup*rows + halvesConstant); least == 0 || time < least {
			best, least = rows, time
		}
	}
	return best
}
