package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// attentionArgs holds the arguments of attn. The operands in are Q and the caches and,
// if the layer has attention sinks, the angles that rotate Q to their distance. out[0]
// is the result, or the splits that attn_merge reads.
type attentionArgs struct {
	heads, kvHeads int
	half           int     // rotated pairs of a head
	window         int     // number of visible positions; 0 means all
	splits         int     // threadgroups that divide the positions
	scale          float32 // factor of the scores
	softCap        float32 // soft cap of the scores; 0 means none
	learned        *weight // learned sink logits, one per head; nil without them
	chunked        bool    // the visible positions are those of the row's chunk of window positions
}

func (a attentionArgs) kernel() decl.ID {
	if a.chunked {
		return kernels.AttnChunk
	}
	return kernels.Attn
}
func (a attentionArgs) weights() []*weight      { return []*weight{a.learned} }
func (a attentionArgs) threads(l *lowering) int { return l.s.in.Chip.AttnThreads }
func (a attentionArgs) describe() string        { return describeWindow(a.window, a.splits) }

// shrinks returns true, because each SIMD group works on its own positions.
func (attentionArgs) shrinks() bool { return true }

func (a attentionArgs) lower(l *lowering) {
	n := l.n
	if a.chunked {
		a.lowerChunk(l)
		return
	}
	l.bind(kernels.AttnBindQ, n.in[0])
	l.bind(kernels.AttnBindKCache, n.in[1])
	l.bind(kernels.AttnBindVCache, n.in[2])
	l.bind(kernels.AttnBindOut, n.out[0])
	l.bindWeight(kernels.AttnBindLogits, a.learned)
	l.set(kernels.AttnSpecHeadDim, l.headDim())
	l.flag(kernels.AttnSpecWindowed, a.window > 0)
	l.flag(kernels.AttnSpecSplit, a.splits > 1)
	l.set(kernels.AttnSpecKV, l.s.kv)
	l.flag(kernels.AttnSpecLearned, a.learned != nil)
	half := 0
	if n.layer.sinks > 0 {
		l.bind(kernels.AttnBindTurn, n.in[3])
		l.flag(kernels.AttnSpecSinks, true)
		l.set(kernels.AttnSpecLayout, l.ropeLayout())
		half = a.half
	}
	tables, entries := l.pages()
	kernels.AttnParams{
		Heads: uint32(a.heads), KVHeads: uint32(a.kvHeads), QStride: stride(n.in[0]), Cap: uint32(n.layer.cap),
		Window: uint32(a.window), Span: l.span(a.splits), Splits: uint32(a.splits), Scale: a.scale,
		HeadGroup: uint32(a.group(l)), First: uint32(n.layer.sinks), Half: uint32(half), SoftCap: a.softCap,
		Tables: tables, Table: entries, Pool: l.pooled(),
	}.Put(&l.cmd)
	l.set(kernels.AttnSpecSequences, l.sequences())
	l.place(table.PatchKVLen, decl.SecondKVLen)
}

// lowerChunk sets the fields of attn_chunk.
func (a attentionArgs) lowerChunk(l *lowering) {
	n := l.n
	l.bind(kernels.AttnChunkBindQ, n.in[0])
	l.bind(kernels.AttnChunkBindKCache, n.in[1])
	l.bind(kernels.AttnChunkBindVCache, n.in[2])
	l.bind(kernels.AttnChunkBindOut, n.out[0])
	l.bindWeight(kernels.AttnChunkBindLogits, a.learned)
	l.set(kernels.AttnChunkSpecHeadDim, l.headDim())
	l.flag(kernels.AttnChunkSpecWindowed, true)
	l.set(kernels.AttnChunkSpecKV, l.s.kv)
	l.flag(kernels.AttnChunkSpecLearned, a.learned != nil)
	tables, entries := l.pages()
	kernels.AttnChunkParams{
		Heads: uint32(a.heads), KVHeads: uint32(a.kvHeads), QStride: stride(n.in[0]), Cap: uint32(n.layer.cap),
		Window: uint32(a.window), Scale: a.scale, HeadGroup: uint32(a.group(l)), SoftCap: a.softCap,
		Tables: tables, Table: entries, Pool: l.pooled(),
	}.Put(&l.cmd)
	l.set(kernels.AttnChunkSpecSequences, l.sequences())
	l.place(table.PatchKVLen, decl.SecondKVLen)
}

// group returns the number of heads that a threadgroup computes. It divides heads that share K and V
// evenly among threadgroups.
func (a attentionArgs) group(l *lowering) int {
	return even(a.heads/a.kvHeads, l.s.in.Chip.AttnHeads)
}

// even returns the size of the parts if n is divided into the fewest parts of about the same size, at
// most limit.
func even(n, limit int) int { return ceil(n, ceil(n, limit)) }

// span returns the smallest number of positions in a split, or 0 if there is one split.
func (l *lowering) span(splits int) uint32 {
	if splits > 1 {
		return uint32(l.s.in.Chip.SplitSpan)
	}
	return 0
}

// ropeAttnArgs holds the arguments of rope_attn, which fuses qk_rope_kv and attn for one row. in is
// Q, K, V and the angles. out is the caches and the result of attention or its splits.
type ropeAttnArgs struct {
	attentionArgs
	own    *weight // the weights of QK norm, then the learned sink logits; each may be absent
	qkNorm bool    // own contains the weights of QK norm
	logits bool    // own contains the learned sink logits
	eps    float32
}

func (ropeAttnArgs) kernel() decl.ID      { return kernels.RoPEAttn }
func (a ropeAttnArgs) weights() []*weight { return []*weight{a.own} }
func (ropeAttnArgs) shrinks() bool        { return false }

func (a ropeAttnArgs) lower(l *lowering) {
	n := l.n
	l.bind(kernels.RoPEAttnBindQ, n.in[0])
	l.bind(kernels.RoPEAttnBindK, n.in[1])
	l.bind(kernels.RoPEAttnBindV, n.in[2])
	l.bind(kernels.RoPEAttnBindAngles, n.in[3])
	l.bindWeight(kernels.RoPEAttnBindNorm, a.own)
	l.bind(kernels.RoPEAttnBindKCache, n.out[0])
	l.bind(kernels.RoPEAttnBindVCache, n.out[1])
	l.bind(kernels.RoPEAttnBindOut, n.out[2])
	l.set(kernels.RoPEAttnSpecHeadDim, l.headDim())
	l.flag(kernels.RoPEAttnSpecWindowed, a.window > 0)
	l.flag(kernels.RoPEAttnSpecSplit, a.splits > 1)
	l.set(kernels.RoPEAttnSpecLayout, l.ropeLayout())
	l.flag(kernels.RoPEAttnSpecQKNorm, a.qkNorm)
	l.flag(kernels.RoPEAttnSpecLearned, a.logits)
	l.set(kernels.RoPEAttnSpecKV, l.s.kv)
	kernels.RoPEAttnParams{
		Heads: uint32(a.heads), KVHeads: uint32(a.kvHeads), Half: uint32(a.half), Cap: uint32(n.layer.cap),
		Window: uint32(a.window), Span: l.span(a.splits), Splits: uint32(a.splits), Scale: a.scale, HeadGroup: uint32(even(a.heads/a.kvHeads, l.s.attnHeads(n.layer))), Eps: a.eps,
		Shared: uint32(a.heads / a.kvHeads), SoftCap: a.softCap, Ahead: uint32(l.s.attnAhead(n.layer)),
	}.Put(&l.cmd)
	l.patch(table.PatchKVLen, decl.SecondKVLen)
}

// sharedHeads is the largest number of heads that rope_attn multiplies with the same K and V at once.
const sharedHeads = 8

// attnHeads returns the largest number of heads of a threadgroup of rope_attn.
func (s *state) attnHeads(l *layerPlan) int {
	if s.attnAhead(l) > 0 {
		return max(s.in.Chip.AttnHeads, sharedHeads)
	}
	return s.in.Chip.AttnHeads
}

// sharedRing is the smallest ring of a SIMD group of rope_attn, in bytes.
const sharedRing = 8192

// attnAhead returns the bytes of threadgroup memory per SIMD group of rope_attn into which K and V are
// prefetched, or 0 if the kernel does not prefetch heads of this size or has too little memory.
func (s *state) attnAhead(l *layerPlan) int {
	c, d := s.in.Chip, l.headDim
	fits := d%8 == 0 && d <= 128
	if s.kv == decl.KVQ8 {
		fits = d == 64 || d == 128
	}
	// Q needs threadgroup memory, too.
	room := c.ThreadgroupMemory * 3 / 4 / uint64(max(1, c.AttnThreads/c.SIMDWidth)) / 16 * 16
	if n := int(min(uint64(c.AttnAhead), room)); fits && n >= sharedRing {
		return n
	}
	return 0
}

// mergeArgs holds the arguments of attn_merge: out[0] becomes the merged result of
// the attention splits in[0].
type mergeArgs struct {
	unweighted
	heads, splits, window int
}

func (mergeArgs) kernel() decl.ID    { return kernels.AttnMerge }
func (a mergeArgs) describe() string { return describeWindow(a.window, a.splits) }

func (a mergeArgs) lower(l *lowering) {
	l.bind(kernels.AttnMergeBindPart, l.n.in[0])
	l.bind(kernels.AttnMergeBindOut, l.n.out[0])
	l.set(kernels.AttnMergeSpecHeadDim, l.headDim())
	kernels.AttnMergeParams{Heads: uint32(a.heads), Splits: uint32(a.splits), Span: l.span(a.splits), Window: uint32(a.window)}.Put(&l.cmd)
	l.patch(table.PatchKVLen, decl.SecondKVLen)
}
