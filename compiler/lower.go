package compiler

import (
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// lower turns nodes into commands: parameters, specialisation, bindings, grid
// and patch. How a kernel's operands become its bindings is written once, in
// the function of its case.
func (s *state) lower() error {
	for _, p := range s.programs {
		first := len(s.t.Cmds)
		for _, n := range p.nodes {
			l := &lowering{s: s, p: p, n: n}
			l.cmd.Kernel = n.kernel
			for i := range l.cmd.Bind {
				l.cmd.Bind[i].Slot = table.NoSlot
			}
			l.arguments()
			if err := l.finish(); err != nil {
				return fmt.Errorf("compiler: %s: %s: %w", p.name, n.label, err)
			}
		}
		s.t.Programs = append(s.t.Programs, table.Program{
			Name: p.name, First: uint32(first), Count: uint32(len(p.nodes)), MaxRows: uint32(p.rows), Flags: p.flags,
		})
	}
	for i := range s.t.Cmds {
		if err := s.grid(i); err != nil {
			return err
		}
	}
	s.regions()
	return nil
}

// lowering is one node on its way to a command.
type lowering struct {
	s    *state
	p    *program
	n    *node
	cmd  table.Cmd
	spec table.Spec
}

// bind sets binding i to an operand.
func (l *lowering) bind(i int, o operand) {
	l.cmd.Bind[i] = table.Binding{Slot: o.v.slot, Offset: o.v.offset + uint64(o.row*o.v.width+o.off)*4}
}

// bindWeight sets binding i to a weight, if there is one.
func (l *lowering) bindWeight(i int, w *weight) {
	if w != nil {
		l.cmd.Bind[i] = table.Binding{Slot: w.slot}
	}
}

// patch sets the patch kind: from the step record in every program, and the
// rows too where the program has more than one.
func (l *lowering) patch(kind table.Patch, offset uint8) {
	l.cmd.PatchOffset = [2]uint8{table.NoPatch, table.NoPatch}
	if kind != table.PatchNone {
		l.cmd.PatchOffset[0] = offset
	}
	l.cmd.Patch = kind
	k, _ := decl.Lookup(l.n.kernel)
	if l.n.behind > 0 {
		l.cmd.PutSecond(decl.SecondBehind, uint32(l.n.behind))
	}
	if !k.HasSecond(decl.SecondRows) {
		return
	}
	l.cmd.PutSecond(decl.SecondRows, 1)
	if l.p.rows > 1 && !l.n.single {
		l.cmd.Patch |= table.PatchRows
	}
}

// one returns 1 for true.
func one(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

// layout returns the declaration's value of the configuration's RoPE layout.
func (l *lowering) layout() uint32 {
	if l.s.cfg.RopeLayout == arch.Interleaved {
		return decl.LayoutInterleaved
	}
	return decl.LayoutHalf
}

func stride(o operand) uint32 { return uint32(o.v.width) }

// arguments fills bindings, parameters, specialisation and patch.
func (l *lowering) arguments() {
	n, h := l.n, &l.s.t.Header
	l.patch(table.PatchNone, 0)
	headDim := uint32(l.s.cfg.HeadDim)
	switch n.kernel {
	case kernels.Embed:
		l.bind(kernels.EmbedBindTokens, n.in[0])
		l.bindWeight(kernels.EmbedBindW, n.w)
		l.bind(kernels.EmbedBindOut, n.out[0])
		l.spec.Values[kernels.EmbedSpecWType] = uint32(n.w.typ)
		l.spec.Values[kernels.EmbedSpecWeights] = uint32(n.w.layout)
		kernels.EmbedParams{N: uint32(n.w.cols), Vocab: uint32(n.w.rows), Ring: h.Context + 1, Scale: n.scale}.Put(&l.cmd)
		l.patch(table.PatchToken, decl.SecondIndex)
	case kernels.RoPEAngles:
		l.bindWeight(kernels.RoPEAnglesBindInvFreq, n.w)
		l.bindWeight(kernels.RoPEAnglesBindFactors, n.extra)
		l.bind(kernels.RoPEAnglesBindOut, n.out[0])
		l.spec.Values[kernels.RoPEAnglesSpecFactors] = one(n.extra != nil)
		kernels.RoPEAnglesParams{Half: uint32(n.half), AttnFactor: n.scale, Still: uint32(n.still)}.Put(&l.cmd)
		l.patch(table.PatchPosition, decl.SecondIndex)
	case kernels.RMSNorm:
		l.bind(kernels.RMSNormBindX, n.in[0])
		l.bindWeight(kernels.RMSNormBindW, n.w)
		l.bind(kernels.RMSNormBindOut, n.out[0])
		kernels.RMSNormParams{N: uint32(n.w.cols), XRows: uint32(n.in[0].v.rows), Eps: n.eps, Scale: n.scale}.Put(&l.cmd)
		if n.rowPatch {
			l.patch(table.PatchRow, decl.SecondIndex)
		}
	case kernels.AddRMSNorm:
		l.bind(kernels.AddRMSNormBindX, n.out[0])
		l.bind(kernels.AddRMSNormBindDelta, n.in[0])
		l.bindWeight(kernels.AddRMSNormBindW, n.w)
		l.bind(kernels.AddRMSNormBindOut, n.out[1])
		kernels.AddRMSNormParams{N: uint32(n.w.cols), Eps: n.eps, Scale: n.scale, DeltaScale: n.delta}.Put(&l.cmd)
	case kernels.Add:
		l.bind(kernels.AddBindX, n.out[0])
		l.bind(kernels.AddBindDelta, n.in[0])
		kernels.AddParams{N: uint32(n.out[0].width), DeltaScale: n.delta}.Put(&l.cmd)
	case kernels.LayerNorm, kernels.Activate:
		l.dense()
	case kernels.GEMV, kernels.GEMM:
		l.matmul()
	case kernels.Halves:
		l.bind(kernels.HalvesBindX, n.in[0])
		if n.input == decl.InputSiLUMul {
			l.bind(kernels.HalvesBindX2, n.in[1])
		}
		l.bind(kernels.HalvesBindOut, n.out[0])
		l.spec.Values[kernels.HalvesSpecInput] = n.input
		l.spec.Values[kernels.HalvesSpecActivation] = n.activation
		kernels.HalvesParams{In: uint32(n.in[0].width), XStride: stride(n.in[0])}.Put(&l.cmd)
	case kernels.GEMMHalves:
		l.bind(kernels.GEMMHalvesBindX, n.in[0])
		l.bindWeight(kernels.GEMMHalvesBindW, n.w)
		l.bindWeight(kernels.GEMMHalvesBindB, n.bias)
		l.bind(kernels.GEMMHalvesBindY, n.out[0])
		l.spec.Values[kernels.GEMMHalvesSpecWType] = uint32(n.w.typ)
		l.spec.Values[kernels.GEMMHalvesSpecBias] = one(n.bias != nil)
		kernels.GEMMHalvesParams{
			In: uint32(n.w.cols), Out: uint32(n.w.rows), YStride: stride(n.out[0]), Group: halvesGroup, RowGroup: uint32(l.halvesRows()),
		}.Put(&l.cmd)
	case kernels.HeadNorm:
		l.bind(kernels.HeadNormBindX, n.out[0])
		l.bindWeight(kernels.HeadNormBindW, n.w)
		l.spec.Values[kernels.HeadNormSpecHeadDim] = uint32(n.w.cols) // that of a head, or of all
		kernels.HeadNormParams{Heads: uint32(n.heads), Stride: stride(n.out[0]), Eps: n.eps}.Put(&l.cmd)
	case kernels.RoPE:
		l.bind(kernels.RoPEBindX, n.out[0])
		l.bind(kernels.RoPEBindAngles, n.in[0])
		l.spec.Values[kernels.RoPESpecHeadDim] = headDim
		l.spec.Values[kernels.RoPESpecLayout] = l.layout()
		kernels.RoPEParams{Heads: uint32(n.heads), Stride: stride(n.out[0]), Half: uint32(n.half)}.Put(&l.cmd)
	case kernels.KVWrite:
		l.bind(kernels.KVWriteBindK, n.in[0])
		l.bind(kernels.KVWriteBindV, n.in[1])
		l.bind(kernels.KVWriteBindKCache, n.out[0])
		l.bind(kernels.KVWriteBindVCache, n.out[1])
		l.spec.Values[kernels.KVWriteSpecHeadDim] = headDim
		l.spec.Values[kernels.KVWriteSpecKV] = l.s.kv
		kernels.KVWriteParams{KVHeads: uint32(n.kvHeads), KStride: stride(n.in[0]), VStride: stride(n.in[1]), Cap: uint32(n.layer.cap), First: uint32(n.layer.sinks)}.Put(&l.cmd)
		l.patch(table.PatchKVLen, decl.SecondKVLen)
	case kernels.QKRoPEKV:
		l.ropeKV()
	case kernels.Attn:
		l.attn()
	case kernels.RoPEAttn:
		l.ropeAttn()
	case kernels.AttnMerge:
		l.bind(kernels.AttnMergeBindPart, n.in[0])
		l.bind(kernels.AttnMergeBindOut, n.out[0])
		l.spec.Values[kernels.AttnMergeSpecHeadDim] = headDim
		kernels.AttnMergeParams{Heads: uint32(n.heads), Splits: uint32(n.splits), Span: l.span(), Window: uint32(n.window)}.Put(&l.cmd)
		l.patch(table.PatchKVLen, decl.SecondKVLen)
	case kernels.SiLUMul:
		l.bind(kernels.SiLUMulBindGate, n.in[0])
		l.bind(kernels.SiLUMulBindUp, n.in[1])
		l.bind(kernels.SiLUMulBindOut, n.out[0])
		l.spec.Values[kernels.SiLUMulSpecActivation] = n.activation
		kernels.SiLUMulParams{N: uint32(n.out[0].width), Stride: stride(n.in[0]), Limit: l.limit()}.Put(&l.cmd)
	case kernels.Argmax:
		l.bind(kernels.ArgmaxBindLogits, n.in[0])
		l.bind(kernels.ArgmaxBindStops, n.in[1])
		l.bind(kernels.ArgmaxBindTokens, n.out[0])
		count := n.in[0].width
		if n.splits > 0 {
			count = n.splits
			l.spec.Values[kernels.ArgmaxSpecParts] = 1
		}
		kernels.ArgmaxParams{N: uint32(count), Ring: h.Context + 1, MaxStops: h.MaxStops}.Put(&l.cmd)
		l.patch(table.PatchArgmax, decl.SecondIndex)
	case kernels.ArgmaxPart:
		l.bind(kernels.ArgmaxPartBindLogits, n.in[0])
		l.bind(kernels.ArgmaxPartBindOut, n.out[0])
		kernels.ArgmaxPartParams{N: uint32(n.in[0].width), Part: uint32(n.part)}.Put(&l.cmd)
	case kernels.Route, kernels.ExpertGEMV, kernels.ExpertSum:
		l.expertArguments()
	case kernels.NormAdd:
		l.bind(kernels.NormAddBindX, n.out[0])
		l.bind(kernels.NormAddBindDelta, n.in[0])
		l.bindWeight(kernels.NormAddBindPost, n.w)
		l.bindWeight(kernels.NormAddBindW, n.extra)
		if n.extra != nil {
			l.bind(kernels.NormAddBindOut, n.out[1])
		}
		l.spec.Values[kernels.NormAddSpecNorm] = one(n.extra != nil)
		kernels.NormAddParams{N: uint32(n.w.cols), Eps: n.eps}.Put(&l.cmd)
	case kernels.SoftCap:
		l.bind(kernels.SoftCapBindX, n.out[0])
		kernels.SoftCapParams{N: uint32(n.out[0].width), Part: uint32(l.s.drawPart()), Cap: n.softCap}.Put(&l.cmd)
	case kernels.Accept, kernels.Draft:
		l.verifying()
	case kernels.SampleAdjust, kernels.SampleFilter, kernels.SampleDraw, kernels.RankPart, kernels.Rank:
		l.sampling()
	}
}

func (l *lowering) matmul() {
	n := l.n
	l.bind(kernels.GEMVBindX, n.in[0])
	switch n.input {
	case decl.InputSiLUMul, decl.InputMerge:
		l.bind(kernels.GEMVBindX2, n.in[1])
	case decl.InputNorm:
		l.bindWeight(kernels.GEMVBindX2, n.extra)
	}
	l.bindWeight(kernels.GEMVBindW, n.w)
	if n.bias != nil {
		l.cmd.Bind[kernels.GEMVBindB] = table.Binding{Slot: n.bias.slot, Offset: uint64(n.biasFrom) * 4}
	}
	l.bind(kernels.GEMVBindY, n.out[0])
	l.spec.Values[kernels.GEMVSpecWType] = uint32(n.w.typ)
	l.spec.Values[kernels.GEMVSpecWeights] = uint32(n.w.layout)
	l.spec.Values[kernels.GEMVSpecInput] = n.input
	l.spec.Values[kernels.GEMVSpecActivation] = n.activation
	l.spec.Values[kernels.GEMVSpecBias] = one(n.bias != nil)
	if n.add {
		l.spec.Values[kernels.GEMVSpecOutput] = decl.OutputAdd
	}
	if l.s.quantises(n.w) {
		l.spec.Values[kernels.GEMVSpecAct] = decl.ActQ8
	}
	group, rows := l.matmulGroup()
	params := kernels.GEMVParams{
		In: uint32(n.w.cols), Out: uint32(n.w.rows), XStride: stride(n.in[0]), YStride: stride(n.out[0]), Group: uint32(group), RowGroup: uint32(rows),
		Eps: n.eps, Ahead: l.ahead(), Stage: l.stage(),
	}
	if n.input == decl.InputMerge {
		params.Heads, params.HeadDim, params.Splits = uint32(n.heads), uint32(l.s.cfg.HeadDim), uint32(n.splits)
		params.Span, params.Window = l.span(), uint32(n.window)
		l.patch(table.PatchKVLen, decl.SecondKVLen)
	}
	params.Put(&l.cmd)
}

// stage returns how many columns of an input that is not quantised a threadgroup
// has in its memory at once; 0: none.
func (l *lowering) stage() uint32 {
	c := l.s.in.Chip
	if c.GEMVStage == 0 || l.n.kernel != kernels.GEMV && l.n.kernel != kernels.ExpertGEMV {
		return 0
	}
	return uint32(max(c.ThreadgroupMemory/uint64(4*c.GEMVStage), stageUnit) / stageUnit * stageUnit)
}

// ahead returns how much threadgroup memory a SIMD group has for weights that
// are on their way, where the layout has such a path.
func (l *lowering) ahead() uint32 {
	w, c := l.n.w, l.s.in.Chip
	if l.n.kernel != kernels.GEMV && l.n.kernel != kernels.ExpertGEMV || l.p.wide || w.layout != dtype.Tiled16 && w.typ.Quantized() {
		return 0
	}
	// The input needs room too.
	if uint64(l.threads()/c.SIMDWidth*c.GEMVAhead) > c.ThreadgroupMemory*5/8 {
		return 0
	}
	return uint32(c.GEMVAhead)
}

const (
	gemvUnit  = 8   // rows of W, half a strip of tiles
	stageUnit = 256 // columns of an input
)

// matmulGroup returns how many rows of W and of x a threadgroup takes.
func (l *lowering) matmulGroup() (group, rows int) {
	c, out := l.s.in.Chip, l.n.w.rows
	switch {
	case !l.p.wide && c.GEMVWave > 0:
		// Each threadgroup makes its input ready, so there is one wave of them.
		return max(c.GEMVRows, roundUp(ceil(out, c.GEMVWave*max(c.Cores, 1)), gemvUnit)), l.fewRows()
	case !l.p.wide:
		return c.GEMVRows, l.fewRows()
	case c.GEMMUnit == 0:
		return c.GEMMRows, l.p.rows
	}
	// As few threadgroups as keep the cores busy.
	group = roundUp(min(c.GEMMRows, out), c.GEMMUnit)
	for group > 2*c.GEMMUnit && ceil(out, group)*ceil(l.p.rows, c.GEMMTileRows) < c.Cores {
		group = roundUp(group/2, c.GEMMUnit)
	}
	return group, c.GEMMTileRows
}

// fewRows returns the rows of a program that is not for chunks: a threadgroup takes
// all, so that weights come from memory once.
func (l *lowering) fewRows() int {
	if l.n.single {
		return 1
	}
	return l.p.rows
}

// halvesThreads is how many threads a threadgroup of gemm_halves has.
const halvesThreads = 256

// halvesGroup is how many rows of W a threadgroup of gemm_halves takes, for 64 or
// 128 rows of x.
const halvesGroup = 128

// halvesRows returns for how many rows of x: those with which the product takes
// the least time, which is that of the bytes that a core gets, two float16 of x
// and one of W. A wave of threadgroups is one on each core.
func (l *lowering) halvesRows() int {
	best, least := 0, 0
	for _, rows := range []int{128, 64} {
		waves := ceil(ceil(l.n.w.rows, halvesGroup)*ceil(l.p.rows, rows), max(l.s.in.Chip.Cores, 1))
		if time := waves * (halvesGroup + 2*rows); least == 0 || time < least {
			best, least = rows, time
		}
	}
	return best
}

// ceil returns a/b rounded up, roundUp a rounded up to a multiple of b.
func ceil(a, b int) int    { return (a + b - 1) / b }
func roundUp(a, b int) int { return ceil(a, b) * b }

func (l *lowering) ropeKV() {
	n := l.n
	l.bind(kernels.QKRoPEKVBindQ, n.in[0])
	l.bind(kernels.QKRoPEKVBindK, n.in[1])
	l.bind(kernels.QKRoPEKVBindV, n.in[2])
	l.bind(kernels.QKRoPEKVBindAngles, n.in[3])
	l.bindWeight(kernels.QKRoPEKVBindNorm, n.w)
	l.bind(kernels.QKRoPEKVBindQOut, n.out[0])
	l.bind(kernels.QKRoPEKVBindKCache, n.out[1])
	l.bind(kernels.QKRoPEKVBindVCache, n.out[2])
	l.spec.Values[kernels.QKRoPEKVSpecHeadDim] = uint32(l.s.cfg.HeadDim)
	l.spec.Values[kernels.QKRoPEKVSpecLayout] = l.layout()
	l.spec.Values[kernels.QKRoPEKVSpecQKNorm] = one(n.w != nil)
	l.spec.Values[kernels.QKRoPEKVSpecKV] = l.s.kv
	kernels.QKRoPEKVParams{
		Heads: uint32(n.heads), KVHeads: uint32(n.kvHeads),
		QStride: stride(n.in[0]), KStride: stride(n.in[1]), VStride: stride(n.in[2]),
		Half: uint32(n.half), Cap: uint32(n.layer.cap), Eps: n.eps, First: uint32(n.layer.sinks),
	}.Put(&l.cmd)
	l.patch(table.PatchKVLen, decl.SecondKVLen)
}

// span returns how many positions a split has at least, 0 if there is one.
func (l *lowering) span() uint32 {
	if l.n.splits > 1 {
		return uint32(l.s.in.Chip.SplitSpan)
	}
	return 0
}

func (l *lowering) attn() {
	n := l.n
	l.bind(kernels.AttnBindQ, n.in[0])
	l.bind(kernels.AttnBindKCache, n.in[1])
	l.bind(kernels.AttnBindVCache, n.in[2])
	l.bind(kernels.AttnBindOut, n.out[0])
	l.spec.Values[kernels.AttnSpecHeadDim] = uint32(l.s.cfg.HeadDim)
	l.spec.Values[kernels.AttnSpecWindowed] = one(n.window > 0)
	l.spec.Values[kernels.AttnSpecSplit] = one(n.splits > 1)
	l.spec.Values[kernels.AttnSpecKV] = l.s.kv
	heads, rows := l.attnGroup()
	l.spec.Values[kernels.AttnSpecTile] = one(rows > 1)
	l.bindWeight(kernels.AttnBindLogits, n.extra)
	l.spec.Values[kernels.AttnSpecLearned] = one(n.extra != nil)
	half := 0
	if n.layer.sinks > 0 {
		l.bind(kernels.AttnBindTurn, n.in[3])
		l.spec.Values[kernels.AttnSpecSinks] = 1
		l.spec.Values[kernels.AttnSpecLayout] = l.layout()
		half = n.half
	}
	kernels.AttnParams{
		Heads: uint32(n.heads), KVHeads: uint32(n.kvHeads), QStride: stride(n.in[0]), Cap: uint32(n.layer.cap),
		Window: uint32(n.window), Span: l.span(), Splits: uint32(n.splits), Scale: n.scale,
		HeadGroup: uint32(heads), RowGroup: uint32(rows), First: uint32(n.layer.sinks), Half: uint32(half), SoftCap: n.softCap,
	}.Put(&l.cmd)
	l.patch(table.PatchKVLen, decl.SecondKVLen)
}

func (l *lowering) ropeAttn() {
	n := l.n
	l.bind(kernels.RoPEAttnBindQ, n.in[0])
	l.bind(kernels.RoPEAttnBindK, n.in[1])
	l.bind(kernels.RoPEAttnBindV, n.in[2])
	l.bind(kernels.RoPEAttnBindAngles, n.in[3])
	l.bindWeight(kernels.RoPEAttnBindNorm, n.w)
	l.bind(kernels.RoPEAttnBindKCache, n.out[0])
	l.bind(kernels.RoPEAttnBindVCache, n.out[1])
	l.bind(kernels.RoPEAttnBindOut, n.out[2])
	l.spec.Values[kernels.RoPEAttnSpecHeadDim] = uint32(l.s.cfg.HeadDim)
	l.spec.Values[kernels.RoPEAttnSpecWindowed] = one(n.window > 0)
	l.spec.Values[kernels.RoPEAttnSpecSplit] = one(n.splits > 1)
	l.spec.Values[kernels.RoPEAttnSpecLayout] = l.layout()
	l.spec.Values[kernels.RoPEAttnSpecQKNorm] = one(n.norm)
	l.spec.Values[kernels.RoPEAttnSpecLearned] = one(n.learned)
	l.spec.Values[kernels.RoPEAttnSpecKV] = l.s.kv
	heads, _ := l.attnGroup()
	kernels.RoPEAttnParams{
		Heads: uint32(n.heads), KVHeads: uint32(n.kvHeads), Half: uint32(n.half), Cap: uint32(n.layer.cap),
		Window: uint32(n.window), Span: l.span(), Splits: uint32(n.splits), Scale: n.scale, HeadGroup: uint32(heads), Eps: n.eps,
		Shared: uint32(n.heads / n.kvHeads), SoftCap: n.softCap,
	}.Put(&l.cmd)
	l.patch(table.PatchKVLen, decl.SecondKVLen)
}

// attnTileUnit is the number that a head's size is a multiple of in tiles.
const attnTileUnit = 16

// attnGroup returns how many heads and rows a threadgroup takes. Heads that
// share K and V are divided evenly.
func (l *lowering) attnGroup() (heads, rows int) {
	c := l.s.in.Chip
	shared := l.n.heads / l.n.kvHeads
	heads = ceil(shared, ceil(shared, c.AttnHeads))
	if d := l.s.cfg.HeadDim; !l.p.wide || l.n.layer.sinks > 0 || l.n.softCap > 0 || d%attnTileUnit != 0 || d > c.AttnTileDim {
		return heads, 1
	}
	return heads, c.AttnTileRows * max(1, c.AttnThreads/c.SIMDWidth/heads)
}

// threads returns the threadgroup's size on the chip.
func (l *lowering) threads() int {
	c := l.s.in.Chip
	switch l.n.kernel {
	case kernels.GEMM:
		if c.GEMMUnit == 0 {
			return c.GEMVThreads
		}
		// One thread for each row of W, or GEMMShare of them, which divide the rows of x.
		group, _ := l.matmulGroup()
		if c.GEMMShare*group <= c.GEMMRows {
			return c.GEMMShare * group
		}
		return group
	case kernels.GEMMHalves:
		return halvesThreads
	case kernels.GEMV, kernels.ExpertGEMV:
		return c.GEMVThreads
	case kernels.Route:
		// One SIMD group works; a kernel that stays wants two.
		return min(c.NormThreads, 2*c.SIMDWidth)
	case kernels.Attn, kernels.RoPEAttn:
		return c.AttnThreads
	case kernels.SampleFilter:
		return min(c.SampleThreads, c.MaxThreads)
	case kernels.QKRoPEKV:
		// A chunk has many heads.
		if l.p.wide && c.RopePairThreads {
			return min(c.NormThreads, roundUp(ceil(l.s.cfg.HeadDim, 2), c.SIMDWidth))
		}
	}
	return c.NormThreads
}

// finish appends the command with its label and its shared specialisation.
func (l *lowering) finish() error {
	t := l.s.t
	k, ok := decl.Lookup(l.n.kernel)
	if !ok {
		return fmt.Errorf("kernel %d is unknown", l.n.kernel)
	}
	l.cmd.Bindings = uint8(len(k.Bindings))
	if len(k.Second) > 0 {
		l.cmd.SecondSize = decl.SecondBytes
	}
	l.cmd.Threadgroup = [3]uint32{uint32(l.threads()), 1, 1}
	l.spec.Kernel = l.n.kernel
	i := slices.Index(t.Specs, l.spec)
	if i < 0 {
		i = len(t.Specs)
		t.Specs = append(t.Specs, l.spec)
	}
	l.cmd.Spec = uint16(i)
	t.Cmds = append(t.Cmds, l.cmd)
	t.Labels = append(t.Labels, l.n.label)
	return nil
}

// grid sets the grid of command i as its declaration has it, and its memory: a
// worker's, or a GPU's threadgroup's.
func (s *state) grid(i int) error {
	c := &s.t.Cmds[i]
	for pi := range s.t.Programs {
		p := &s.t.Programs[pi]
		if uint32(i) < p.First || uint32(i) >= p.First+p.Count {
			continue
		}
		env, err := s.t.NewEnv(c, p)
		if err != nil {
			return fmt.Errorf("compiler: command %d (%s): %w", i, s.t.Label(i), err)
		}
		grid, err := env.Kernel().GridSize(env)
		if err != nil {
			return fmt.Errorf("compiler: command %d (%s): %w", i, s.t.Label(i), err)
		}
		for d, n := range grid {
			if n == 0 || n > 1<<31-1 {
				return fmt.Errorf("compiler: command %d (%s): a grid of %v", i, s.t.Label(i), grid)
			}
			c.Grid[d] = uint32(n)
		}
		need := env.WorkerBytes
		if !s.in.Chip.WorkerMemory {
			need = env.ThreadgroupBytes
		}
		mem, err := need()
		// Attention takes as many threads as have room for their rows of Q.
		for err == nil && mem > s.in.Chip.ThreadgroupMemory && c.Kernel == kernels.Attn && c.Threadgroup[0] > 32 {
			c.Threadgroup[0] = c.Threadgroup[0] / 64 * 32
			mem, err = need()
		}
		if err != nil || mem > s.in.Chip.ThreadgroupMemory {
			return fmt.Errorf("compiler: command %d (%s): needs %d bytes of threadgroup memory, chip %s has %d", i, s.t.Label(i), mem, s.in.Chip.Name, s.in.Chip.ThreadgroupMemory)
		}
		c.TGMem = uint32(mem)
	}
	return nil
}
