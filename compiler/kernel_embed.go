package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// embedArgs holds the arguments of embed: out[0] becomes the rows of w for the tokens in[0].
type embedArgs struct {
	w     *weight
	scale float32 // factor of each element
}

func (embedArgs) kernel() decl.ID      { return kernels.Embed }
func (a embedArgs) weights() []*weight { return []*weight{a.w} }

func (a embedArgs) lower(l *lowering) {
	l.bind(kernels.EmbedBindTokens, l.n.in[0])
	l.bindWeight(kernels.EmbedBindW, a.w)
	l.bind(kernels.EmbedBindOut, l.n.out[0])
	l.set(kernels.EmbedSpecWType, uint32(a.w.typ))
	l.set(kernels.EmbedSpecWeights, uint32(a.w.layout))
	kernels.EmbedParams{N: uint32(a.w.cols), Vocab: uint32(a.w.rows), Ring: l.ring(), Scale: a.scale, Pool: l.pooled()}.Put(&l.cmd)
	l.set(kernels.EmbedSpecSequences, l.sequences())
	l.place(table.PatchToken, decl.SecondIndex)
}
