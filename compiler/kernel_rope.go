package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// anglesArgs holds the arguments of rope_angles: out[0] becomes the cosines and sines of the
// rows' positions.
type anglesArgs struct {
	invFreq *weight
	factors *weight // divisors of the frequencies; nil means none
	half    int     // number of rotated pairs
	factor  float32 // factor of the cosines and sines
	still   int     // number of positions without rotation, for attention sinks
}

func (anglesArgs) kernel() decl.ID      { return kernels.RoPEAngles }
func (a anglesArgs) weights() []*weight { return []*weight{a.invFreq, a.factors} }

func (a anglesArgs) lower(l *lowering) {
	l.bindWeight(kernels.RoPEAnglesBindInvFreq, a.invFreq)
	l.bindWeight(kernels.RoPEAnglesBindFactors, a.factors)
	l.bind(kernels.RoPEAnglesBindOut, l.n.out[0])
	l.flag(kernels.RoPEAnglesSpecFactors, a.factors != nil)
	kernels.RoPEAnglesParams{Half: uint32(a.half), AttnFactor: a.factor, Still: uint32(a.still)}.Put(&l.cmd)
	l.set(kernels.RoPEAnglesSpecSequences, l.sequences())
	l.place(table.PatchPosition, decl.SecondIndex)
}

// ropeArgs holds the arguments of rope, which rotates the heads of out[0] by the angles
// in[0].
type ropeArgs struct {
	unweighted
	heads int
	half  int // rotated pairs of a head
}

func (ropeArgs) kernel() decl.ID { return kernels.RoPE }

func (a ropeArgs) lower(l *lowering) {
	l.bind(kernels.RoPEBindX, l.n.out[0])
	l.bind(kernels.RoPEBindAngles, l.n.in[0])
	l.set(kernels.RoPESpecHeadDim, l.headDim())
	l.set(kernels.RoPESpecLayout, l.ropeLayout())
	kernels.RoPEParams{Heads: uint32(a.heads), Stride: stride(l.n.out[0]), Half: uint32(a.half)}.Put(&l.cmd)
}

// kvWriteArgs holds the arguments of kv_write, which writes K and V, in[0] and in[1], to the
// caches out[0] and out[1].
type kvWriteArgs struct {
	unweighted
	kvHeads int
}

func (kvWriteArgs) kernel() decl.ID { return kernels.KVWrite }

func (a kvWriteArgs) lower(l *lowering) {
	k, v, layer := l.n.in[0], l.n.in[1], l.n.layer
	l.bind(kernels.KVWriteBindK, k)
	l.bind(kernels.KVWriteBindV, v)
	l.bind(kernels.KVWriteBindKCache, l.n.out[0])
	l.bind(kernels.KVWriteBindVCache, l.n.out[1])
	l.set(kernels.KVWriteSpecHeadDim, l.headDim())
	l.set(kernels.KVWriteSpecKV, l.s.kv)
	tables, entries := l.pages()
	kernels.KVWriteParams{
		KVHeads: uint32(a.kvHeads), KStride: stride(k), VStride: stride(v), Cap: uint32(layer.cap), First: layer.first(),
		Tables: tables, Table: entries, Pool: l.pooled(),
	}.Put(&l.cmd)
	l.set(kernels.KVWriteSpecSequences, l.sequences())
	l.place(table.PatchKVLen, decl.SecondKVLen)
}

// ropeKVArgs holds the arguments of qk_rope_kv, which fuses QK norm, RoPE and KV write. in is Q, K, V
// and the angles. out is Q and the caches.
type ropeKVArgs struct {
	norm           *weight // norm weights for a head of Q, then for a head of K; nil without QK norm
	heads, kvHeads int
	half           int // rotated pairs of a head
	eps            float32
	joined         bool // of a batch, only rows that are not the only ones of their sequence
}

func (ropeKVArgs) kernel() decl.ID      { return kernels.QKRoPEKV }
func (a ropeKVArgs) weights() []*weight { return []*weight{a.norm} }

// group returns the number of heads of a threadgroup: a whole number for each of its SIMD groups, as
// large as leaves two threadgroups for each core.
func (a ropeKVArgs) group(l *lowering) int {
	c := l.s.in.Chip
	simds := max(1, c.NormThreads/c.SIMDWidth)
	each := ceil(a.heads+a.kvHeads, simds)
	return simds * min(each, max(1, l.rows()*each/(2*max(1, c.Cores))))
}

func (a ropeKVArgs) lower(l *lowering) {
	n := l.n
	l.bind(kernels.QKRoPEKVBindQ, n.in[0])
	l.bind(kernels.QKRoPEKVBindK, n.in[1])
	l.bind(kernels.QKRoPEKVBindV, n.in[2])
	l.bind(kernels.QKRoPEKVBindAngles, n.in[3])
	l.bindWeight(kernels.QKRoPEKVBindNorm, a.norm)
	l.bind(kernels.QKRoPEKVBindQOut, n.out[0])
	l.bind(kernels.QKRoPEKVBindKCache, n.out[1])
	l.bind(kernels.QKRoPEKVBindVCache, n.out[2])
	l.set(kernels.QKRoPEKVSpecHeadDim, l.headDim())
	l.set(kernels.QKRoPEKVSpecLayout, l.ropeLayout())
	l.flag(kernels.QKRoPEKVSpecQKNorm, a.norm != nil)
	l.set(kernels.QKRoPEKVSpecKV, l.s.kv)
	tables, entries := l.pages()
	kernels.QKRoPEKVParams{
		Heads: uint32(a.heads), KVHeads: uint32(a.kvHeads),
		QStride: stride(n.in[0]), KStride: stride(n.in[1]), VStride: stride(n.in[2]),
		Half: uint32(a.half), Cap: uint32(n.layer.cap), Eps: a.eps, First: n.layer.first(),
		HeadGroup: uint32(a.group(l)),
		Tables:    tables, Table: entries, Pool: l.pooled(), Joined: one(a.joined),
	}.Put(&l.cmd)
	l.set(kernels.QKRoPEKVSpecSequences, l.sequences())
	l.place(table.PatchKVLen, decl.SecondKVLen)
}
