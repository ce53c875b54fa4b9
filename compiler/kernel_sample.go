package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/table"
)

// sampleAdjustArgs holds the arguments of sample_adjust. in is the logits, the tokens and the
// sampler's settings. out is the keys (the adjusted logits) and the largest key of each part.
type sampleAdjustArgs struct {
	unweighted
	parts int
}

func (sampleAdjustArgs) kernel() decl.ID    { return kernels.SampleAdjust }
func (a sampleAdjustArgs) describe() string { return describeSplits(a.parts) }

func (sampleAdjustArgs) lower(l *lowering) {
	l.bind(kernels.SampleAdjustBindLogits, l.n.in[0])
	l.bind(kernels.SampleAdjustBindTokens, l.n.in[1])
	l.bind(kernels.SampleAdjustBindSettings, l.n.in[2])
	l.bind(kernels.SampleAdjustBindKeys, l.n.out[0])
	l.bind(kernels.SampleAdjustBindLargest, l.n.out[1])
	kernels.SampleAdjustParams{N: l.vocab(), Part: uint32(l.s.samplePart()), Ring: l.ring(), MaxBias: sampler.MaxBias, Pool: l.pooled(), Stride: l.settingsStride()}.Put(&l.cmd)
	l.set(kernels.SampleAdjustSpecSequences, l.sequences())
	l.place(table.PatchToken, decl.SecondIndex)
}

// sampleFilterArgs holds the arguments of sample_filter. in is the keys, the largest key of each part
// and the settings. out[0] becomes the limit below which keys are dropped.
type sampleFilterArgs struct {
	unweighted
	parts int
}

func (sampleFilterArgs) kernel() decl.ID    { return kernels.SampleFilter }
func (a sampleFilterArgs) describe() string { return describeSplits(a.parts) }

// threads returns the chip's SampleThreads. The grid is one threadgroup.
func (sampleFilterArgs) threads(l *lowering) int {
	return min(l.s.in.Chip.SampleThreads, l.s.in.Chip.MaxThreads)
}

func (sampleFilterArgs) lower(l *lowering) {
	l.bind(kernels.SampleFilterBindKeys, l.n.in[0])
	l.bind(kernels.SampleFilterBindLargest, l.n.in[1])
	l.bind(kernels.SampleFilterBindSettings, l.n.in[2])
	l.bind(kernels.SampleFilterBindLimit, l.n.out[0])
	copy(l.spec.Values[kernels.SampleFilterSpecStage1:], l.s.stages)
	kernels.SampleFilterParams{N: l.vocab(), Part: uint32(l.s.samplePart()), Pool: l.pooled(), Stride: l.settingsStride()}.Put(&l.cmd)
	l.set(kernels.SampleFilterSpecSequences, l.sequences())
}

// sampleDrawArgs holds the arguments of sample_draw. in is the keys, their limit and the settings.
// out[0] becomes the drawn token of each part.
type sampleDrawArgs struct {
	unweighted
	parts int
}

func (sampleDrawArgs) kernel() decl.ID    { return kernels.SampleDraw }
func (a sampleDrawArgs) describe() string { return describeSplits(a.parts) }

func (sampleDrawArgs) lower(l *lowering) {
	l.bind(kernels.SampleDrawBindKeys, l.n.in[0])
	l.bind(kernels.SampleDrawBindLimit, l.n.in[1])
	l.bind(kernels.SampleDrawBindSettings, l.n.in[2])
	l.bind(kernels.SampleDrawBindOut, l.n.out[0])
	kernels.SampleDrawParams{N: l.vocab(), Part: uint32(l.s.drawPart()), Pool: l.pooled(), Stride: l.settingsStride()}.Put(&l.cmd)
	l.set(kernels.SampleDrawSpecSequences, l.sequences())
	l.place(table.PatchToken, decl.SecondIndex)
}

// rankPartArgs holds the arguments of rank_part. in is the logits and the settings. out[0] becomes the
// most probable tokens of each part.
type rankPartArgs struct{ unweighted }

func (rankPartArgs) kernel() decl.ID { return kernels.RankPart }

func (rankPartArgs) lower(l *lowering) {
	l.bind(kernels.RankPartBindLogits, l.n.in[0])
	l.bind(kernels.RankPartBindSettings, l.n.in[1])
	l.bind(kernels.RankPartBindOut, l.n.out[0])
	kernels.RankPartParams{N: l.vocab(), Part: uint32(l.s.rankPart()), Pool: l.pooled(), Stride: l.settingsStride()}.Put(&l.cmd)
	l.set(kernels.RankPartSpecSequences, l.sequences())
}

// rankArgs holds the arguments of rank. in is the logits, the most probable tokens of each part, the
// drawn tokens and the settings. rank writes an entry of the ranks slot, out[0].
type rankArgs struct {
	unweighted
	pairs int // number of drawn tokens
}

func (rankArgs) kernel() decl.ID    { return kernels.Rank }
func (a rankArgs) describe() string { return describeSplits(a.pairs) }

func (a rankArgs) lower(l *lowering) {
	l.bind(kernels.RankBindLogits, l.n.in[0])
	l.bind(kernels.RankBindParts, l.n.in[1])
	l.bind(kernels.RankBindDrawn, l.n.in[2])
	l.bind(kernels.RankBindSettings, l.n.in[3])
	l.bind(kernels.RankBindRanks, l.n.out[0])
	kernels.RankParams{N: l.vocab(), Part: uint32(l.s.rankPart()), Pairs: uint32(a.pairs), Entries: sampler.RankEntries, Pool: l.pooled(), Stride: l.settingsStride()}.Put(&l.cmd)
	l.set(kernels.RankSpecSequences, l.sequences())
	l.place(table.PatchToken, decl.SecondIndex)
}

// settingsStride returns the bytes from one sequence's settings to the next, or 0 without a pool.
func (l *lowering) settingsStride() uint32 {
	if l.s.pool == nil {
		return 0
	}
	return sampler.Size
}
