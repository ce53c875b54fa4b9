package compiler

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// productArgs holds the arguments of gemv and gemm: out[0] becomes the product of w with an input.
// The field input selects how the input is computed from the operands in.
type productArgs struct {
	wide     bool // gemm, for a chunk; otherwise gemv
	w        *weight
	bias     *weight // nil without a bias
	biasFrom int     // first element of bias, for a part of a split product
	output   uint32  // a decl.Output
	next     *weight // for decl.OutputAddScaled: the weights of the norm of out[0]; out[1] is the scaled out[0], out[2] the partial sums of its squares

	input      uint32    // a decl.Input
	activation uint32    // for decl.InputSiLUMul, activation(in[0]) * in[1], and for decl.OutputGated: a decl.Activation
	norm       *weight   // for decl.InputNorm: the weights of the norm of in[0]
	eps        float32   // for decl.InputNorm and decl.InputScaled
	sums       int       // for decl.InputScaled: the number of partial sums in in[1]
	merge      mergeArgs // for decl.InputMerge: in[0] is the attention splits, in[1] their sums
}

// adds reports whether the product is added to out[0].
func (a productArgs) adds() bool {
	return a.output == decl.OutputAdd || a.output == decl.OutputAddScaled
}

func (a productArgs) kernel() decl.ID {
	if a.wide {
		return kernels.GEMM
	}
	return kernels.GEMV
}

func (a productArgs) weights() []*weight { return []*weight{a.w, a.bias, a.norm, a.next} }

func (a productArgs) describe() string {
	return describeInput(a.input, a.activation) + describeOutput(a.output) + a.merge.describe()
}

// plain reports whether the input is in[0], without a fused operation.
func (a productArgs) plain() bool { return a.input == decl.InputPlain }

func (a productArgs) lower(l *lowering) {
	n := l.n
	l.bind(kernels.GEMVBindX, n.in[0])
	switch a.input {
	case decl.InputSiLUMul, decl.InputMerge, decl.InputScaled:
		l.bind(kernels.GEMVBindX2, n.in[1])
	case decl.InputNorm:
		l.bindWeight(kernels.GEMVBindX2, a.norm)
	}
	l.bindWeight(kernels.GEMVBindW, a.w)
	l.bindVector(kernels.GEMVBindB, a.bias, a.biasFrom)
	l.bind(kernels.GEMVBindY, n.out[0])
	if a.output == decl.OutputAddScaled {
		l.bindWeight(kernels.GEMVBindNext, a.next)
		l.bind(kernels.GEMVBindScaled, n.out[1])
		l.bind(kernels.GEMVBindSquares, n.out[2])
	}
	l.set(kernels.GEMVSpecWType, uint32(a.w.typ))
	l.set(kernels.GEMVSpecWeights, uint32(a.w.layout))
	l.set(kernels.GEMVSpecInput, a.input)
	l.set(kernels.GEMVSpecActivation, a.activation)
	l.flag(kernels.GEMVSpecBias, a.bias != nil)
	l.set(kernels.GEMVSpecOutput, a.output)
	l.set(kernels.GEMVSpecAct, l.act(a.w))
	group, rows := a.group(l)
	params := kernels.GEMVParams{
		In: uint32(a.w.cols), Out: uint32(a.w.rows), XStride: stride(n.in[0]), YStride: stride(n.out[0]),
		Group: uint32(group), RowGroup: uint32(rows), Eps: a.eps,
	}
	if !a.wide {
		params.Ahead, params.Stage = l.ahead(a.w), l.stage()
		if a.single(l, group) {
			l.set(kernels.GEMVSpecSingle, decl.SingleOn)
			params.Ahead = uint32(a.singleAhead(l, group))
		}
	}
	if a.input == decl.InputMerge {
		params.Heads, params.HeadDim, params.Splits = uint32(a.merge.heads), l.headDim(), uint32(a.merge.splits)
		params.Span, params.Window = l.span(a.merge.splits), uint32(a.merge.window)
		l.patch(table.PatchKVLen, decl.SecondKVLen)
	}
	if a.input == decl.InputScaled {
		params.Splits = uint32(a.sums)
	}
	params.Put(&l.cmd)
}

const (
	gemvUnit  = 8   // unit of the rows of W per threadgroup of gemv: half a strip of tiles
	stageUnit = 256 // unit of the columns that are staged at a time
)

// group returns the number of rows of W and of the input that a threadgroup computes.
func (a productArgs) group(l *lowering) (group, rows int) {
	c, out := l.s.in.Chip, a.w.rows
	switch {
	case !a.wide && a.output == decl.OutputGated && c.GEMVLimit == 0:
		return a.gatedGroup(l), l.rows()
	case !a.wide:
		return l.s.gemvGroup(a.w, a.cores(l)), l.rows()
	case c.GEMMUnit == 0:
		return c.GEMMRows, l.p.rows
	case a.narrow(l):
		return narrowRows, narrowRows
	}
	// The largest groups that keep all cores busy.
	group = roundUp(min(c.GEMMRows, out), c.GEMMUnit)
	for group > 2*c.GEMMUnit && ceil(out, group)*ceil(l.p.rows, c.GEMMTileRows) < c.Cores {
		group = roundUp(group/2, c.GEMMUnit)
	}
	return group, c.GEMMTileRows
}

// narrowRows is the number of rows of W of a threadgroup of gemm that multiplies a float32 matrix with few rows,
// and that of rows of the input.
const narrowRows = 8

// narrow reports whether a product of a chunk multiplies a float32 matrix with so few rows that the tiles of gemm
// would leave most of the GPU idle, such as that of a router.
func (a productArgs) narrow(l *lowering) bool {
	return a.w.typ == dtype.F32 && a.w.rows <= l.s.in.Chip.GEMMNarrow && a.plain() && a.w.cols%4 == 0 && stride(l.n.in[0])%4 == 0
}

// cores returns the number of cores among which the rows of W of a product of gemv are divided: half of them if the
// matrix is so small that the time in which its threadgroups begin matters more than the bandwidth of all cores.
func (a productArgs) cores(l *lowering) int {
	if a.half(l) {
		return max(l.s.in.Chip.Cores/2, 1)
	}
	return l.s.in.Chip.Cores
}

// half reports whether a product in the form for one row has threadgroups for half of the cores.
func (a productArgs) half(l *lowering) bool {
	c := l.s.in.Chip
	limit := c.GEMVHalf
	if a.input == decl.InputMerge {
		limit = c.GEMVHalfMerge
	}
	return a.singleForm(l) && a.w.bytes() < limit
}

// gemvGroup returns the number of rows of w that a threadgroup of gemv computes if they are divided among a number of
// cores.
func (s *state) gemvGroup(w *weight, cores int) int {
	c := s.in.Chip
	switch {
	case c.GEMVLimit > 0:
		return s.groupOf(w, w.rows, 1)
	case c.GEMVWave > 0:
		// Each threadgroup prepares the whole input, so a single wave of threadgroups is best.
		return max(c.GEMVRows, roundUp(ceil(w.rows, c.GEMVWave*max(cores, 1)), gemvUnit))
	}
	return c.GEMVRows
}

// gatedGroup is gemvGroup for a gated output: gates, and as many of the rows that they are multiplied with.
func (a productArgs) gatedGroup(l *lowering) int {
	half := *a.w
	half.rows /= 2
	return 2 * roundUp(l.s.gemvGroup(&half, a.cores(l)), gemvUnit)
}

// groupOf returns the number of rows, a multiple of gemvUnit, of a threadgroup for which a core
// requests the fewest bytes, if w is multiplied in several products at once, with out rows each. A core
// executes GEMVWave threadgroups at a time, and each requests its rows and the input.
func (s *state) groupOf(w *weight, out, products int) int {
	c := s.in.Chip
	row, input := float64(w.bytes())/float64(w.rows), float64(4*w.cols)
	best, least := c.GEMVRows, math.Inf(1)
	for n := roundUp(c.GEMVRows, gemvUnit); n <= c.GEMVLimit; n += gemvUnit {
		waves := ceil(ceil(out, n)*products, c.GEMVWave*max(c.Cores, 1))
		if sum := float64(waves) * (float64(min(n, out))*row + input); sum <= least {
			best, least = n, sum
		}
		if n >= out {
			break
		}
	}
	return best
}

// threads returns the chip's GEMVThreads for gemv and for narrow products, and those of singleThreads for gemv's
// form for one row. For others of gemm it returns one thread per row of W in the threadgroup, or GEMMShare threads per
// row if there are few rows; these threads share the rows of the input.
func (a productArgs) threads(l *lowering) int {
	c := l.s.in.Chip
	group, _ := a.group(l)
	switch {
	case !a.wide && a.single(l, group):
		return a.singleThreads(l)
	case !a.wide || c.GEMMUnit == 0 || a.narrow(l):
		return c.GEMVThreads
	}
	if c.GEMMShare*group <= c.GEMMRows {
		return c.GEMMShare * group
	}
	return group
}

// act returns the constant of package decl for the type in which products with w multiply
// activations.
func (l *lowering) act(w *weight) uint32 {
	if l.s.quantises(w) {
		return decl.ActQ8
	}
	return decl.ActF32
}

// output returns the constant of package decl for storing or adding the result of a product.
func output(add bool) uint32 {
	if add {
		return decl.OutputAdd
	}
	return decl.OutputStore
}

// stage returns the number of columns of an unquantised input that a threadgroup of
// gemv holds in its memory at a time, or 0 if it does not stage the input.
func (l *lowering) stage() uint32 {
	c := l.s.in.Chip
	if c.GEMVStage == 0 {
		return 0
	}
	return uint32(max(c.ThreadgroupMemory/uint64(4*c.GEMVStage), stageUnit) / stageUnit * stageUnit)
}

// ahead returns the bytes of threadgroup memory per SIMD group of gemv into which weights are
// prefetched, or 0 if the kernel does not prefetch weights of this layout.
func (l *lowering) ahead(w *weight) uint32 {
	c := l.s.in.Chip
	if l.p.wide || w.layout != dtype.Tiled16 && w.typ.Quantized() {
		return 0
	}
	// The input needs threadgroup memory, too.
	if uint64(c.GEMVThreads/c.SIMDWidth*c.GEMVAhead) > c.ThreadgroupMemory*5/8 {
		return 0
	}
	return uint32(c.GEMVAhead)
}

// single reports whether a product of groups of rows uses gemv's form for one row.
func (a productArgs) single(l *lowering, group int) bool {
	return a.singleForm(l) && a.singleMemory(l, group, a.singleAhead(l, group)) <= l.s.in.Chip.ThreadgroupMemory
}

// singleForm reports whether gemv has a form for one row for a product, if there is enough threadgroup memory.
func (a productArgs) singleForm(l *lowering) bool {
	c, w := l.s.in.Chip, a.w
	switch {
	case c.GEMVSingle == 0 || l.rows() != 1 || l.p.rows != 1 || l.ahead(w) < tileSlots || w.cols%8 != 0:
		return false
	case a.output == decl.OutputAddScaled || a.input == decl.InputScaled:
		return false
	case a.output == decl.OutputGated && a.input != decl.InputNorm && (a.input != decl.InputPlain || w.layout == dtype.Tiled16):
		return false
	case w.layout == dtype.Tiled16:
		return frequent(w.typ)
	}
	return (w.typ == dtype.F16 || w.typ == dtype.BF16) && w.cols <= int(l.stage())
}

// frequent reports whether gemv has entries for one row, and gemm_few for few, with quantised weights of a type.
func frequent(t dtype.Type) bool {
	f := dtype.FormOf(t)
	return f != nil && f.Frequent
}

// Threadgroup memory in bytes that a SIMD group of gemv can fill with weights: of any type, of float16 or
// bfloat16, and of quantised types in the form for one row.
const (
	tileSlots   = 10240
	floatSlots  = 8192
	singleSlots = 13056
)

// singleAhead returns the parameter Ahead of a product in the form for one row: what the kernel fills, and
// what the chip's GEMVAhead has beyond that. Quantised products, and others whose input is a norm, have at
// least the chip's GEMVSingle of threadgroup memory.
func (a productArgs) singleAhead(l *lowering, group int) int {
	c := l.s.in.Chip
	tiles := a.w.layout == dtype.Tiled16
	ahead := floatSlots
	if tiles {
		ahead = singleSlots
	}
	ahead += max(0, c.GEMVAhead-tileSlots)
	if tiles || a.input == decl.InputNorm {
		rest := max(c.GEMVSingle-int(a.singleMemory(l, group, 0)), 0)
		ahead = max(ahead, roundUp(ceil(rest, a.singleThreads(l)/c.SIMDWidth), 16))
	}
	return ahead
}

// singleThreads returns the number of threads of a product in the form for one row. Float matrices below the chip's
// GEMVSingleWide have GEMVThreads, so that a multiprocessor has room for two threadgroups, unless they have threadgroups
// for half of the multiprocessors.
func (a productArgs) singleThreads(l *lowering) int {
	c, w := l.s.in.Chip, a.w
	if w.layout == dtype.Tiled16 || a.half(l) {
		return c.GEMVSingleThreads
	}
	if w.bytes() < c.GEMVSingleWide {
		return c.GEMVThreads
	}
	return c.GEMVSingleThreads
}

// singleMemory returns the threadgroup memory of the form for one row in bytes, of which each SIMD group has ahead for
// weights.
func (a productArgs) singleMemory(l *lowering, group, ahead int) uint64 {
	return memoryOf(kernels.GEMV, a.singleThreads(l), decl.Values{
		"single": decl.SingleOn, "act": uint64(l.act(a.w)), "in": uint64(a.w.cols), "group": uint64(group), "stage": uint64(l.stage()), "ahead": uint64(ahead),
	})
}

// rows returns the number of rows that a command computes.
func (l *lowering) rows() int {
	if l.n.single {
		return 1
	}
	return l.p.rows
}
