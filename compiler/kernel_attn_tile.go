package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// attnTileArgs holds the arguments of attn_tile, attention by matrix products for the rows of a
// chunk. The operands are those of attn without attention sinks.
type attnTileArgs struct {
	attentionArgs
	act    uint32 // decl.ActF16, decl.ActF16x2 or decl.ActF32
	shape  tileShape
	halves bool // the result becomes float16, as the kernel halves writes it
	few    bool // in the order of gemm_few
	joined bool // of a batch, only rows that are not the only ones of their sequence
}

// tileShape is the shape of a threadgroup of attn_tile.
type tileShape struct {
	units, threads, slots int
}

const (
	attnTileUnit  = 16  // unit of the head size
	attnTilePairs = 64  // pairs of a row and a head in a unit
	attnTileHalf  = 128 // threads that compute a unit
)

// tileShapes lists the shapes without slots. cost is the time of a threadgroup that occupies a core,
// relative to one unit computed by 256 threads: they divide positions evenly, but read each K and V
// for half as many rows as two units do. 128 threads leave the matrix units idle while they compute
// weights.
var tileShapes = []struct {
	tileShape
	cost float64
}{
	{tileShape{units: 2, threads: 2 * attnTileHalf}, 1.8},
	{tileShape{units: 1, threads: 2 * attnTileHalf}, 1},
	{tileShape{units: 1, threads: attnTileHalf}, 1.6},
}

// memory returns the threadgroup memory of a shape in bytes, as attn_tile declares it.
func (t tileShape) memory(headDim int, act uint32) int {
	terms := 1
	if act == decl.ActF16x2 {
		terms = 2
	}
	return 1024 + 8192*ceil(headDim, 64)*(terms*t.units+2*t.slots*t.ways())
}

// ways returns the number of parts into which a threadgroup divides the positions of a row. It
// determines the order of the row's sums.
func (t tileShape) ways() int { return t.threads / (attnTileHalf * t.units) }

// simdMatrixRows is the number of rows of Apple's SIMD-group matrices.
const simdMatrixRows = 8

// matrixShape returns the shape of attn_tile for SIMD-group matrices: a SIMD group computes 16 pairs
// of small heads and otherwise 8, so that their sums fit in registers.
func matrixShape(headDim int) tileShape {
	switch {
	case headDim <= 64:
		return tileShape{units: 4, threads: 128}
	case headDim <= 128:
		return tileShape{units: 2, threads: 128}
	}
	return tileShape{units: 1, threads: 64}
}

// maxSlots is the largest number of slots that attn_tile takes.
const maxSlots = 4

// tiledAttention returns the arguments of attn_tile for a layer's attention in a program of a chunk.
// It reports whether the kernel supports it. Of the shapes that fit in threadgroup memory it takes
// the one with the shortest estimated time. Threadgroups run in waves, one on each core. In a table
// for batching all programs divide the positions of a row in the same number of ways, the largest.
func (s *state) tiledAttention(p *program, l *layerPlan, a attentionArgs) (tiled attnTileArgs, ok bool) {
	c, d := s.in.Chip, l.headDim
	if !p.wide || l.sinks > 0 || a.chunked || d%attnTileUnit != 0 || d > c.AttnTileDim {
		return tiled, false
	}
	if c.AttnTileRows == simdMatrixRows {
		return attnTileArgs{attentionArgs: a, act: decl.ActF32, shape: matrixShape(d)}, true
	}
	tiled = attnTileArgs{attentionArgs: a, act: decl.ActF16}
	if s.in.Options.Exact {
		tiled.act = decl.ActF16x2
	}
	least := 0.0
	for _, t := range tileShapes {
		for t.slots = s.mostSlots(p); t.slots > 1 && uint64(t.memory(d, tiled.act)) > c.ThreadgroupMemory; t.slots-- {
		}
		if t.slots <= 1 || t.threads > c.MaxThreads {
			continue
		}
		groups := a.kvHeads * ceil(p.rows*(a.heads/a.kvHeads), attnTilePairs*t.units)
		time := float64(ceil(groups, max(c.Cores, 1))) * t.cost
		better := !ok || time < least
		if ok && s.in.Options.Batching && t.ways() != tiled.shape.ways() {
			better = t.ways() > tiled.shape.ways()
		}
		if better {
			tiled.shape, least, ok = t.tileShape, time, true
		}
	}
	return tiled, ok
}

// mostSlots returns the largest number of slots of attn_tile in a program. It does not determine the order
// of sums.
func (s *state) mostSlots(p *program) int {
	if n := s.in.Chip.BatchSlots; n > 0 && p.flags.Has(table.FlagBatch) {
		return n
	}
	return maxSlots
}

func (attnTileArgs) kernel() decl.ID         { return kernels.AttnTile }
func (a attnTileArgs) threads(*lowering) int { return a.shape.threads }
func (attnTileArgs) shrinks() bool           { return false }

func (a attnTileArgs) lower(l *lowering) {
	n := l.n
	l.bind(kernels.AttnTileBindQ, n.in[0])
	l.bind(kernels.AttnTileBindKCache, n.in[1])
	l.bind(kernels.AttnTileBindVCache, n.in[2])
	out := kernels.AttnTileBindOut
	if a.halves {
		out = kernels.AttnTileBindHalves
	}
	l.bind(out, n.out[0])
	l.flag(kernels.AttnTileSpecHalves, a.halves)
	l.bindWeight(kernels.AttnTileBindLogits, a.learned)
	l.set(kernels.AttnTileSpecHeadDim, l.headDim())
	l.flag(kernels.AttnTileSpecWindowed, a.window > 0)
	l.set(kernels.AttnTileSpecKV, l.s.kv)
	l.flag(kernels.AttnTileSpecLearned, a.learned != nil)
	l.set(kernels.AttnTileSpecAct, a.act)
	tables, entries := l.pages()
	kernels.AttnTileParams{
		Heads: uint32(a.heads), KVHeads: uint32(a.kvHeads), QStride: stride(n.in[0]), Cap: uint32(n.layer.cap),
		Window: uint32(a.window), Scale: a.scale, SoftCap: a.softCap, Units: uint32(a.shape.units), Slots: uint32(a.shape.slots),
		Tables: tables, Table: entries, Pool: l.pooled(), Few: one(a.few), Joined: one(a.joined),
	}.Put(&l.cmd)
	l.set(kernels.AttnTileSpecSequences, l.sequences())
	l.place(table.PatchKVLen, decl.SecondKVLen)
}

// ropeAttnTileArgs holds the arguments of rope_attn_tile, which fuses qk_rope_kv and attn_tile for rows of
// different sequences. in is Q, K, V and the angles. out is the caches and the result of attention.
type ropeAttnTileArgs struct {
	attnTileArgs
	own    *weight // the weights of QK norm, then the learned sink logits; each may be absent
	qkNorm bool    // own contains the weights of QK norm
	logits bool    // own contains the learned sink logits
	eps    float32
}

func (ropeAttnTileArgs) kernel() decl.ID      { return kernels.RoPEAttnTile }
func (a ropeAttnTileArgs) weights() []*weight { return []*weight{a.own} }

// threads returns 128 for each part into which the positions are divided.
func (a ropeAttnTileArgs) threads(*lowering) int { return attnTileHalf * a.shape.ways() }

// ownPairs is the largest number of heads that rope_attn_tile computes with the same K and V, and ownGroups that
// of its threadgroups that a core runs at once.
const (
	ownPairs  = 16
	ownGroups = 2
)

// fitsOwn reports whether rope_attn_tile computes a layer's attention.
func (s *state) fitsOwn(l *layerPlan, a attnTileArgs) bool {
	return a.halves && l.headDim%64 == 0 && a.heads/a.kvHeads <= ownPairs && s.ownMemory(l, a, 1) <= s.in.Chip.ThreadgroupMemory
}

// ownMemory returns the threadgroup memory of rope_attn_tile in bytes.
func (s *state) ownMemory(l *layerPlan, a attnTileArgs, slots int) uint64 {
	values := decl.Values{"slots": uint64(slots), "head_dim": uint64(l.headDim), "kv": uint64(s.kv)}
	return memoryOf(kernels.RoPEAttnTile, attnTileHalf*a.shape.ways(), values)
}

// slots returns the number of slots of rope_attn_tile: as many as fit for the threadgroups that a core runs at
// once.
func (a ropeAttnTileArgs) slots(l *lowering) int {
	c := l.s.in.Chip
	groups := min(ownGroups, ceil(l.rows()*a.kvHeads, max(c.Cores, 1)))
	n := maxSlots
	for ; n > 1 && l.s.ownMemory(l.n.layer, a.attnTileArgs, n)*uint64(groups) > c.ThreadgroupMemory; n-- {
	}
	return n
}

func (a ropeAttnTileArgs) lower(l *lowering) {
	n := l.n
	l.bind(kernels.RoPEAttnTileBindQ, n.in[0])
	l.bind(kernels.RoPEAttnTileBindK, n.in[1])
	l.bind(kernels.RoPEAttnTileBindV, n.in[2])
	l.bind(kernels.RoPEAttnTileBindAngles, n.in[3])
	l.bindWeight(kernels.RoPEAttnTileBindNorm, a.own)
	l.bind(kernels.RoPEAttnTileBindKCache, n.out[0])
	l.bind(kernels.RoPEAttnTileBindVCache, n.out[1])
	l.bind(kernels.RoPEAttnTileBindHalves, n.out[2])
	l.set(kernels.RoPEAttnTileSpecHeadDim, l.headDim())
	l.flag(kernels.RoPEAttnTileSpecWindowed, a.window > 0)
	l.set(kernels.RoPEAttnTileSpecLayout, l.ropeLayout())
	l.flag(kernels.RoPEAttnTileSpecQKNorm, a.qkNorm)
	l.set(kernels.RoPEAttnTileSpecKV, l.s.kv)
	l.flag(kernels.RoPEAttnTileSpecLearned, a.logits)
	l.set(kernels.RoPEAttnTileSpecAct, a.act)
	tables, entries := l.pages()
	kernels.RoPEAttnTileParams{
		Heads: uint32(a.heads), KVHeads: uint32(a.kvHeads), QStride: stride(n.in[0]), KVStride: stride(n.in[1]),
		Half: uint32(a.half), Cap: uint32(n.layer.cap), Window: uint32(a.window), Scale: a.scale, SoftCap: a.softCap, Eps: a.eps,
		Slots: uint32(a.slots(l)), Tables: tables, Table: entries, Pool: l.pooled(), Few: one(a.few),
	}.Put(&l.cmd)
	l.set(kernels.RoPEAttnTileSpecSequences, l.sequences())
	l.place(table.PatchKVLen, decl.SecondKVLen)
}
