package compiler

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
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
	kernels.HalvesParams{In: uint32(x.width), XStride: stride(x), Few: one(a.few)}.Put(&l.cmd)
}

// threads returns as many as read a row at once, 16 elements each.
func (a halvesArgs) threads(l *lowering) int { return l.rowThreads(l.n.in[0].width/16, l.p.rows) }

// rowThreads returns the size of the threadgroups that convert rows to float16: the chip's for norms, and on a
// CUDA device as many as a row needs, n, if the program has no more rows than the chip has cores. With
// more rows, other threadgroups use the time in which one waits.
func (l *lowering) rowThreads(n, rows int) int {
	c := l.s.in.Chip
	if !l.s.warpgroups() || rows > c.Cores {
		return c.NormThreads
	}
	return min(c.MaxThreads, max(c.NormThreads, roundUp(n, c.SIMDWidth)))
}

// one returns 1 if on, else 0.
func one(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

// addNormHalvesArgs holds the arguments of add_rmsnorm_halves: out[0] += in[0], and out[1] becomes the
// norm of out[0] as halves writes it.
type addNormHalvesArgs struct {
	addNormArgs
	few      bool // write the order of gemm_few
	segments bool // in[0] has the sums of segments, which gemm_halves has written apart
}

func (addNormHalvesArgs) kernel() decl.ID { return kernels.AddRMSNormHalves }

func (a addNormHalvesArgs) lower(l *lowering) {
	l.bind(kernels.AddRMSNormHalvesBindX, l.n.out[0])
	l.bind(kernels.AddRMSNormHalvesBindDelta, l.n.in[0])
	l.bindWeight(kernels.AddRMSNormHalvesBindW, a.w)
	l.bind(kernels.AddRMSNormHalvesBindOut, l.n.out[1])
	kernels.AddRMSNormHalvesParams{
		N: uint32(a.w.cols), Eps: a.eps, Scale: a.scale, DeltaScale: a.delta, Few: one(a.few), Segments: decl.Segments * one(a.segments),
	}.Put(&l.cmd)
}

// threads returns one for each vector of a row, because the residual stream is read and written vector by
// vector.
func (a addNormHalvesArgs) threads(l *lowering) int { return l.rowThreads(a.w.cols/4, l.p.rows) }

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
	w, bias  *weight
	biasFrom int    // first element of the bias
	act      uint32 // decl.ActF16 or decl.ActF16x2
	few      bool   // gemm_few, for a short prompt; otherwise gemm_halves
	apart    bool   // of gemm_halves: several threadgroups write the sums of segments, which the reader of out[0] adds
	form     fewForm
}

// warpgroups reports whether gemm_halves has the shape of CUDA devices with warpgroup matrix
// instructions; otherwise it has that of SIMD-group matrices.
func (s *state) warpgroups() bool { return s.in.Chip.GEMMHalves == warpgroupThreads }

// halvesAct returns the type of activations that gemm_halves multiplies by w: two float16 terms
// if the table is exact, else one. It reports whether gemm_halves supports w.
func (s *state) halvesAct(w *weight) (act uint32, ok bool) {
	act = decl.ActF16
	if s.in.Options.Exact {
		act = decl.ActF16x2
	}
	if !s.warpgroups() {
		// A quantised weight is rounded to float16 in exact tables too: with an error of 2^-12.
		return act, w.layout == dtype.Rows && w.typ != dtype.F32 && w.cols%8 == 0
	}
	if w.layout == dtype.Tiled16 {
		return act, act == decl.ActF16 && dtype.FormOf(w.typ).HalfRange()
	}
	return act, (w.typ == dtype.F16 || w.typ == dtype.BF16) && w.cols%8 == 0
}

// few reports whether products of w use gemm_few in a program: those of the program for short prompts and,
// in a table for batching, of all programs with so few rows if the chip has BatchFew. With SIMD-group
// matrices, gemm_halves is the kernel for few rows too.
func (s *state) few(p *program, w *weight) bool {
	if s.in.Options.Batching {
		return s.segments() && (p.rows <= fewRows || p.rows <= 2*fewRows && w.typ.Quantized())
	}
	return p.short() && s.warpgroups()
}

// segments reports whether gemm_halves adds the sums of segments of the columns, as gemm_few does, which
// computes some rows of a table for batching. gemm_few has no form with two float16 terms.
func (s *state) segments() bool {
	return s.in.Options.Batching && !s.in.Options.Exact && s.warpgroups() && s.in.Chip.BatchFew
}

const (
	warpgroupThreads = 384 // threads of a threadgroup of gemm_halves with warpgroup matrix instructions
	fewThreads       = 256 // threads of a threadgroup of gemm_few
	wholeThreads     = 512 // those in its shape whole
	fewRows          = 32  // rows of W and most rows of x of a threadgroup of gemm_few; it has twice as many in the wide form
	halvesGroup      = 128 // rows of W that a threadgroup of warpgroups computes
	// halvesConstant is the part of such a threadgroup's time that does not depend on its shape. Its
	// unit is the time of one product for each column.
	halvesConstant = 8192
	// expandConstant is the least time of a column of quantised weights, which the threads expand.
	expandConstant = 41_000
	// clusterConstant is the additional time of a cluster of threadgroups for each row of x, in which it adds
	// the sums of its threadgroups. Its unit is the time of one product.
	clusterConstant = 260_000
	// copyConstant is the time in which all multiprocessors together copy a byte of W from a memory of 1 GB/s, in the
	// same unit. An H100 with 3,350 GB/s was measured.
	copyConstant = 5000.0
	// tileConstant is the part of a threadgroup's time with SIMD-group matrices that does not depend on
	// the rows of x, in rows of x: the conversion of W to float16.
	tileConstant = 16
	tileLeast    = 8  // least rows of x of a tile
	tileGroup    = 32 // least rows of W of a tile
)

func (a halvesProductArgs) kernel() decl.ID {
	if a.few {
		return kernels.GEMMFew
	}
	return kernels.GEMMHalves
}

func (a halvesProductArgs) weights() []*weight { return []*weight{a.w, a.bias, a.form.next.w} }

func (a halvesProductArgs) threads(l *lowering) int {
	switch {
	case !a.few:
		return a.shape(l).threads
	case a.fewShape(l) == decl.ShapeWhole:
		return wholeThreads
	}
	return fewThreads
}

func (a halvesProductArgs) lower(l *lowering) {
	l.bind(kernels.GEMMHalvesBindX, l.n.in[0])
	l.bindWeight(kernels.GEMMHalvesBindW, a.w)
	l.bindVector(kernels.GEMMHalvesBindB, a.bias, a.biasFrom)
	if a.form.output != decl.OutputGated {
		l.bind(kernels.GEMMHalvesBindY, l.n.out[0])
	}
	l.set(kernels.GEMMHalvesSpecWType, uint32(a.w.typ))
	l.flag(kernels.GEMMHalvesSpecBias, a.bias != nil)
	l.set(kernels.GEMMHalvesSpecAct, a.act)
	l.set(kernels.GEMMHalvesSpecWeights, uint32(a.w.layout))
	if a.few {
		l.set(kernels.GEMMFewSpecShape, a.fewShape(l))
		p := kernels.GEMMFewParams{In: uint32(a.w.cols), Out: uint32(a.w.rows), YStride: stride(l.n.out[0]), Early: a.early(l), Threadgroups: a.threadgroups(l)}
		a.form.lower(l, &p)
		p.Put(&l.cmd)
		return
	}
	l.flag(kernels.GEMMHalvesSpecSegments, l.s.segments())
	shape := a.shape(l)
	l.set(kernels.GEMMHalvesSpecDivision, shape.division())
	params := kernels.GEMMHalvesParams{
		In: uint32(a.w.cols), Out: uint32(a.w.rows), YStride: stride(l.n.out[0]), Group: uint32(shape.group), RowGroup: uint32(shape.rows),
		Spread: uint32(shape.spread), Cluster: uint32(shape.cluster), Splits: uint32(shape.splits),
	}
	if shape.cluster == 0 {
		params.Ahead = a.ahead(l)
	}
	params.Put(&l.cmd)
}

// The numbers of pairs of float16 that a multiprocessor multiplies in a clock, and of bytes that it copies
// from the L2 cache, in gemm_few with quantised weights. All multiprocessors together copy half of that. They
// are estimates from the times of llama-3.1-8b Q4_0 on an H100 (docs/BENCHMARKS.md).
const (
	fewProducts = 690
	fewBytes    = 64
)

// fewShape returns the shape of gemm_few, a value of the constant.
func (a halvesProductArgs) fewShape(l *lowering) uint32 {
	switch {
	case a.whole(l):
		return decl.ShapeWhole
	case a.wide(l):
		return decl.ShapeWide
	}
	return decl.ShapeUsual
}

// whole reports whether gemm_few keeps all rows of its input in threadgroup memory.
func (a halvesProductArgs) whole(l *lowering) bool { return l.s.keeps(a.w, l.p.rows, a.form.input) }

// keeps reports whether gemm_few keeps the input of a product of w in threadgroup memory in a program of a number of
// rows. There must be an entry for w and room for the rows, and a threadgroup must copy no more bytes of them than of 32
// rows of w: with more, the other form is faster, which does so while it multiplies (docs/rationale/kernels.md).
func (s *state) keeps(w *weight, rows int, input uint32) bool {
	if rows > formRows || w.layout != dtype.Tiled16 || !frequent(w.typ) {
		return false
	}
	if dtype.FormOf(w.typ).Elems > 32 && w.cols%2048 != 0 { // segments are whole blocks
		return false
	}
	places := decl.FewRows(rows)
	size := uint64(2 * places * w.cols)
	if input == decl.InputScaled {
		size *= 2
	}
	weights, _ := w.typ.Bytes(uint64(fewRows * w.cols))
	memory := memoryOf(kernels.GEMMFew, wholeThreads, decl.Values{"shape": decl.ShapeWhole, "early": uint64(places), "in": uint64(w.cols)})
	return size <= weights && memory <= s.in.Chip.ThreadgroupMemory && wholeThreads <= s.in.Chip.MaxThreads
}

// wide reports whether the wide form of gemm_few is estimated to take less time. Its threadgroups request
// fewer bytes for each product, but there are fewer of them. For up to 8 rows the other form is faster, and
// prefill_few computes any number of rows up to 32.
func (a halvesProductArgs) wide(l *lowering) bool {
	return l.s.in.Options.Batching && a.w.typ.Quantized() && l.p.rows > 8 && a.fewTime(l, 2*fewRows) < a.fewTime(l, fewRows)
}

// fewTime estimates the time of gemm_few in clocks of a multiprocessor, if a threadgroup computes group rows
// of W and at most as many of x.
func (a halvesProductArgs) fewTime(l *lowering, group int) float64 {
	rows := decl.FewRows(l.p.rows)
	groups := float64(ceil(a.w.rows, group) * ceil(rows, group))
	cores := float64(max(l.s.in.Chip.Cores, 1))
	rows = min(rows, group)
	weights, _ := a.w.typ.Bytes(uint64(group * a.w.cols))
	bytes := float64(weights) + float64(2*rows*a.w.cols)
	one := max(float64(group*rows*a.w.cols)/fewProducts, bytes/fewBytes) // of a threadgroup
	return max(math.Ceil(groups/cores)*one, 2*groups/cores*bytes/fewBytes)
}

// early returns the number of places for the rows of a program of at most formRows rows, else 0.
func (a halvesProductArgs) early(l *lowering) uint32 {
	if l.p.rows > formRows {
		return 0
	}
	return uint32(decl.FewRows(l.p.rows))
}

// threadgroups returns the number of threadgroups of gemm_few that run at once, if W has more rows than they compute
// at once and the program has at most formRows rows, else 0. Two threadgroups with quantised weights fit in the
// threadgroup memory of a multiprocessor, one with float weights. A third of the time of a threadgroup for 32 rows
// of an 8B model passes before its first product (docs/rationale/kernels.md).
func (a halvesProductArgs) threadgroups(l *lowering) uint32 {
	running := l.s.in.Chip.Cores
	if a.w.typ.Quantized() && !a.whole(l) {
		running *= 2
	}
	if l.p.rows > formRows || ceil(a.w.rows, fewRows) <= running {
		return 0
	}
	return uint32(running)
}

// ahead returns the number of columns that a threadgroup of gemm_halves requests before its input is ready: those
// of the chip's number of bytes, in whole blocks of the largest size.
func (a halvesProductArgs) ahead(l *lowering) uint32 {
	const block = 256
	bytes, _ := a.w.typ.Bytes(halvesGroup * block)
	return uint32(l.s.in.Chip.RequestAhead / int(bytes) * block)
}

// halvesShape is the work of a threadgroup of gemm_halves.
type halvesShape struct {
	threads     int
	group, rows int // rows of W and of x
	spread      int // see decl
	cluster     int // see decl
	splits      int // see decl
}

// division returns how threadgroups divide the segments, a value of the constant.
func (s halvesShape) division() uint32 {
	switch {
	case s.splits > 0:
		return decl.DivisionApart
	case s.cluster > 0:
		return decl.DivisionClusters
	}
	return decl.Undivided
}

// shape returns the shape with the shortest estimated time. Threadgroups run in waves, one on each core.
// One takes a time proportional to its products, and a part that depends less on its shape.
func (a halvesProductArgs) shape(l *lowering) halvesShape {
	if !l.s.warpgroups() {
		return a.tile(l)
	}
	if a.apart {
		shape, _ := a.apartShape(l)
		return shape
	}
	shape, _ := a.wholeShape(l)
	return shape
}

// wholeShape returns the shape with the shortest estimated time if y is the product, and that time.
func (a halvesProductArgs) wholeShape(l *lowering) (best halvesShape, least int) {
	sizes := []int{256, 128, 64}
	switch {
	case l.s.segments():
		sizes = []int{64, 128}
	case a.act == decl.ActF16x2:
		sizes = []int{128, 64}
	}
	best = halvesShape{threads: warpgroupThreads, group: halvesGroup}
	for _, rows := range sizes {
		if time := a.waves(l, halvesGroup, rows) * a.columnTime(l, rows) * a.w.cols; least == 0 || time < least {
			best.rows, least = rows, time
		}
	}
	best.spread = a.spread(l, best.rows)
	if l.s.segments() {
		least = a.divide(l, &best, least)
	}
	return best, least
}

// columnTime estimates the time in which a threadgroup multiplies a column by the given number of rows of x.
func (a halvesProductArgs) columnTime(l *lowering, rows int) int {
	time := halvesGroup*rows + halvesConstant
	if l.s.segments() && a.w.typ.Quantized() {
		time = max(time, expandConstant)
	}
	return time
}

// divide makes clusters of threadgroups divide the columns if that is estimated to take clearly less than
// the time of the given shape. It returns the time of the resulting shape.
func (a halvesProductArgs) divide(l *lowering, shape *halvesShape, time int) int {
	// There are registers for four segments only with 64 rows of x. Quantised weights, whose products of 64
	// rows are those of gemm_few, have only the last form.
	forms := []struct{ rows, cluster int }{{64, 2}, {64, 4}, {128, 4}}
	if a.w.typ.Quantized() {
		forms = forms[2:]
	}
	least := time * 85 / 100
	for _, f := range forms {
		if t := a.clusterTime(l, f.rows, f.cluster); t < least {
			shape.rows, shape.cluster, least, time = f.rows, f.cluster, t, t
		}
	}
	return time
}

// clusterTime estimates the time of gemm_halves with clusters of threadgroups that compute the given number of
// rows of x.
func (a halvesProductArgs) clusterTime(l *lowering, rows, cluster int) int {
	room := max(l.s.groupedCores()/cluster, 1)
	groups := ceil(a.w.rows, halvesGroup) * ceil(l.p.rows, rows)
	wave := weight{typ: a.w.typ, rows: min(groups, room) * halvesGroup, cols: a.w.cols}
	one := max(a.columnTime(l, rows)*a.w.cols/cluster, l.s.copyTime(&wave))
	return ceil(groups, room) * (one + clusterConstant*rows)
}

// tile returns the shape of a threadgroup with SIMD-group matrices. Its bits do not depend on the shape.
func (a halvesProductArgs) tile(l *lowering) halvesShape {
	c := l.s.in.Chip
	best, least := halvesShape{}, 0
	for group := c.GEMMHalves / 2; group >= tileGroup; group /= 2 {
		for rows := min(c.GEMMTileRows, group); rows >= tileLeast; rows /= 2 {
			if rows/2 >= max(l.p.rows, tileLeast) {
				continue // half of the rows of x would be inactive
			}
			if time := a.waves(l, group, rows) * group * (rows + tileConstant); least == 0 || time < least {
				best, least = halvesShape{threads: 2 * group, group: group, rows: rows}, time
			}
		}
	}
	return best
}

// waves returns the number of waves of threadgroups that compute the given numbers of rows of W and of x.
func (a halvesProductArgs) waves(l *lowering, group, rows int) int {
	return ceil(ceil(a.w.rows, group)*ceil(l.p.rows, rows), max(l.s.in.Chip.Cores, 1))
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
