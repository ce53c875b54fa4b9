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

	segments bool // the sums of segments of the positions are joined in order
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

// memory returns the threadgroup memory of attn_tile with a shape, for heads of headDim elements, in bytes.
func (t tileShape) memory(headDim int, act uint32, segments bool) uint64 {
	return memoryOf(kernels.AttnTile, t.threads, decl.Values{
		"head_dim": uint64(headDim), "act": uint64(act), "units": uint64(t.units), "slots": uint64(t.slots), "segments": uint64(one(segments)),
	})
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
	// Only where threadgroups of rope_attn_tile divide the segments of a row.
	tiled.segments = s.in.Options.Batching && tiled.act == decl.ActF16 && s.warpgroups()
	least := 0.0
	for _, t := range tileShapes {
		for t.slots = s.mostSlots(p); t.slots > 1 && t.memory(d, tiled.act, tiled.segments) > c.ThreadgroupMemory; t.slots-- {
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
	l.flag(kernels.AttnTileSpecSegments, a.segments)
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

func (a ropeAttnTileArgs) threads(l *lowering) int { return a.work(l).threads }

// Limits of rope_attn_tile.
const (
	ownPairs     = 16  // most Q heads that a threadgroup computes with the same K and V
	ownHead      = 128 // most elements of a head whose positions are divided into segments
	ownWays      = 2   // ways that divide the positions of such a segment
	ownSegments  = 4   // most segments of a row
	leastSegment = 512 // least positions of a segment
	ownThreads   = 512 // most threads for which a core has registers
)

// fitsOwn reports whether rope_attn_tile computes a layer's attention.
func (s *state) fitsOwn(l *layerPlan, a attnTileArgs) bool {
	if !a.halves || !a.segments || l.headDim%64 != 0 || a.heads/a.kvHeads > ownPairs || (l.headDim <= ownHead && a.shape.ways() != ownWays) {
		return false
	}
	return s.ownMemory(l, a, ownWork{threads: attnTileHalf * a.shape.ways(), cluster: 1, slots: 1}) <= s.in.Chip.ThreadgroupMemory
}

// ownWork is the shape of the threadgroups of rope_attn_tile.
type ownWork struct {
	threads, cluster, slots int
}

// ownMemory returns the threadgroup memory of rope_attn_tile in bytes.
func (s *state) ownMemory(l *layerPlan, a attnTileArgs, w ownWork) uint64 {
	return memoryOf(kernels.RoPEAttnTile, w.threads, decl.Values{
		"slots": uint64(w.slots), "head_dim": uint64(l.headDim), "kv": uint64(s.kv), "heads": uint64(a.heads), "kv_heads": uint64(a.kvHeads), "cluster": uint64(w.cluster),
	})
}

// work returns the shape of the command's threadgroups. While each has a core of its own, clusters of them divide the
// segments of a row. If there are more, they have half as many threads, so that more of them run at once, because a
// row of few positions waits for memory most of the time. The slots are as many as fit for the threadgroups that a core
// runs at once.
func (a ropeAttnTileArgs) work(l *lowering) ownWork {
	c, layer := l.s.in.Chip, l.n.layer
	cores, groups := max(c.Cores, 1), l.rows()*a.kvHeads
	w := ownWork{threads: attnTileHalf * a.shape.ways(), cluster: 1, slots: 1}
	switch {
	case layer.headDim > ownHead:
	case groups > cores:
		w.threads = attnTileHalf
	default:
		visible := l.s.in.Options.Context
		if a.window > 0 {
			visible = min(visible, a.window)
		}
		most := min(ceil(visible, leastSegment), ownSegments)
		for w.cluster < most && groups*2*w.cluster <= l.s.clusterCores(2*w.cluster) {
			w.cluster *= 2
		}
		for w.cluster > 1 && l.s.ownMemory(layer, a.attnTileArgs, w) > c.ThreadgroupMemory {
			w.cluster /= 2
		}
	}
	running := min(ceil(groups*w.cluster, cores), max(ownThreads/w.threads, 1))
	for w.slots = maxSlots; w.slots > 1 && l.s.ownMemory(layer, a.attnTileArgs, w)*uint64(running) > c.ThreadgroupMemory; w.slots-- {
	}
	return w
}

// clusterCores returns the number of cores that clusters of a number of threadgroups can use. Clusters of two fit on all
// cores, because each of the GPU's groups has an even number.
func (s *state) clusterCores(cluster int) int {
	if cluster <= 2 {
		return s.in.Chip.Cores
	}
	return s.groupedCores()
}

// groupedCores returns the number of cores that clusters of four threadgroups can use. A cluster runs in one of the GPU's
// groups of about 16 multiprocessors: on an H100 with 132, there is room for 30 clusters of four.
func (s *state) groupedCores() int { return s.in.Chip.Cores * 10 / 11 }

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
	w := a.work(l)
	l.set(kernels.RoPEAttnTileSpecCluster, uint32(w.cluster))
	tables, entries := l.pages()
	kernels.RoPEAttnTileParams{
		Heads: uint32(a.heads), KVHeads: uint32(a.kvHeads), QStride: stride(n.in[0]), KVStride: stride(n.in[1]),
		Half: uint32(a.half), Cap: uint32(n.layer.cap), Window: uint32(a.window), Scale: a.scale, SoftCap: a.softCap, Eps: a.eps,
		Slots: uint32(w.slots), Tables: tables, Table: entries, Pool: l.pooled(), Few: one(a.few),
	}.Put(&l.cmd)
	l.set(kernels.RoPEAttnTileSpecSequences, l.sequences())
	l.place(table.PatchKVLen, decl.SecondKVLen)
}
