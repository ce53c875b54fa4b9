package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// latentKVArgs holds the arguments of latent_kv, which prepares latent attention. in is Q, the latents
// with the elements of K that are rotated, and the angles. out is Q for attention, of which the kernel
// writes the rotated elements, and the cache.
type latentKVArgs struct {
	w     *weight // weights of the latent's norm
	heads int
	nope  int // elements of a head of Q before the rotated ones
	half  int // rotated pairs of a head
	eps   float32
}

func (latentKVArgs) kernel() decl.ID      { return kernels.LatentKV }
func (a latentKVArgs) weights() []*weight { return []*weight{a.w} }

func (a latentKVArgs) lower(l *lowering) {
	n := l.n
	l.bind(kernels.LatentKVBindQ, n.in[0])
	l.bind(kernels.LatentKVBindKV, n.in[1])
	l.bind(kernels.LatentKVBindAngles, n.in[2])
	l.bindWeight(kernels.LatentKVBindW, a.w)
	l.bind(kernels.LatentKVBindQOut, n.out[0])
	l.bind(kernels.LatentKVBindKCache, n.out[1])
	l.set(kernels.LatentKVSpecHeadDim, l.headDim())
	l.set(kernels.LatentKVSpecLayout, l.ropeLayout())
	l.set(kernels.LatentKVSpecKV, l.s.kv)
	tables, entries := l.pages()
	kernels.LatentKVParams{
		Heads: uint32(a.heads), KVHeads: 1, QStride: stride(n.in[0]), KVStride: stride(n.in[1]), Nope: uint32(a.nope), Half: uint32(a.half),
		Cap: uint32(n.layer.cap), Eps: a.eps, First: n.layer.first(), Tables: tables, Table: entries, Pool: l.pooled(),
	}.Put(&l.cmd)
	l.set(kernels.LatentKVSpecSequences, l.sequences())
	l.place(table.PatchKVLen, decl.SecondKVLen)
}
