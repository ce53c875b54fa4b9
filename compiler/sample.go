package compiler

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/table"
)

// samplerPresets are the orders of other engines, the default first. Bias comes
// before the penalties in all of them.
var samplerPresets = []struct{ name, order string }{
	{"llama.cpp", "penalties,top_k,top_p,min_p,temperature"},
	{"mlx", "penalties,top_p,min_p,top_k,temperature"},
	{"edgerunner", "penalties,temperature,top_k,top_p"},
}

// SamplerNone is the sampler of a table that only decodes greedily.
const SamplerNone = "none"

// stagePenalties stands before the stages that decl has.
const stagePenalties = "penalties"

// stageNames are the other stages, by decl's values.
var stageNames = [...]string{decl.StageTemperature: "temperature", decl.StageTopK: "top_k", decl.StageTopP: "top_p", decl.StageMinP: "min_p"}

// SamplerError says what is wrong with the order of a sampler's stages.
type SamplerError struct{ Order, What string }

// Error implements error.
func (e *SamplerError) Error() string {
	return fmt.Sprintf("compiler: sampler order %.60q: %s", e.Order, e.What)
}

// SamplerPresets returns the names of the presets.
func SamplerPresets() []string {
	names := make([]string, len(samplerPresets))
	for i, p := range samplerPresets {
		names[i] = p.name
	}
	return names
}

// ParseSampler returns the stages of an order, a preset's name or a list of
// stages with commas between: 0 for the penalties, which are first, then values
// of decl.Stage, each once at most. "" is the first preset; "none" has no stages.
func ParseSampler(order string) ([]uint32, error) {
	list := order
	for i, p := range samplerPresets {
		if order == p.name || order == "" && i == 0 {
			list = p.order
		}
	}
	if list == SamplerNone {
		return nil, nil
	}
	var stages []uint32
	for i, name := range strings.Split(list, ",") {
		name = strings.TrimSpace(name)
		at := slices.Index(stageNames[:], name)
		switch {
		case name == stagePenalties && i == 0:
			at = 0
		case name == stagePenalties:
			return nil, &SamplerError{order, "the penalties come first"}
		case i == 0:
			return nil, &SamplerError{order, fmt.Sprintf("it begins with %q, not with %s; the presets are %s", name, stagePenalties, strings.Join(SamplerPresets(), ", "))}
		case at <= 0:
			return nil, &SamplerError{order, fmt.Sprintf("there is no stage %q; there are %s, %s", name, stagePenalties, strings.Join(stageNames[1:], ", "))}
		case slices.Contains(stages, uint32(at)):
			return nil, &SamplerError{order, fmt.Sprintf("stage %s is there twice", name)}
		}
		stages = append(stages, uint32(at))
	}
	return stages, nil
}

// samplePart is how many logits a worker takes at once where the chip's argmax
// has no parts.
const samplePart = 64

// samplePart is how many it takes: of the sampler, and to verify drafts.
func (s *state) samplePart() int {
	if n := s.in.Chip.ArgmaxPart; n > 0 {
		return min(n, 2048) // what sample_adjust has room for
	}
	return samplePart
}

// drawPart is how many keys a worker draws from at once, likewise: the more, the
// fewer logarithms it takes.
const drawPart = 1024

func (s *state) drawPart() int {
	if s.in.Chip.ArgmaxPart > 0 {
		return s.samplePart()
	}
	return drawPart
}

// rankPart is how many logits a worker ranks at once, likewise.
const rankPart = 2048

func (s *state) rankPart() int {
	if n := s.in.Chip.ArgmaxPart; n > 0 {
		return min(n, rankPart)
	}
	return rankPart
}

// sample emits the choice of a token as the sampler slot says.
func (s *state) sample(p *program) { s.choose(p, s.draw(p)) }

// ranked is sample that leaves log-probabilities. They come before the choice, which
// may set the stop flag.
func (s *state) ranked(p *program) {
	n := s.cfg.Vocab
	logits := operand{v: s.logits, width: n}
	best := p.value("rank.best", ceil(n, s.rankPart())*sampler.RankWords)
	p.emit(&node{kernel: kernels.RankPart, label: "rank.part", region: best.name,
		in: []operand{logits, s.sampler.all()}, out: []operand{best.all()}})
	drawn := s.draw(p)
	p.emit(&node{kernel: kernels.Rank, label: "rank.entry", splits: drawn.width / 2,
		in: []operand{logits, best.all(), drawn.all(), s.sampler.all()}, out: []operand{s.ranks.all()}})
	s.choose(p, drawn)
}

// choose emits the choice of what draw has left.
func (s *state) choose(p *program, drawn *value) {
	p.emit(&node{kernel: kernels.Argmax, label: "sample.choose", splits: drawn.width / 2,
		in: []operand{drawn.all(), s.stops.all()}, out: []operand{s.tokens.all()}})
}

// draw emits what comes before the choice and returns the best tokens of each part.
func (s *state) draw(p *program) *value {
	n := s.cfg.Vocab
	parts := ceil(n, s.samplePart())
	keys, largest := p.value("sample.keys", n), p.value("sample.largest", parts)
	draws := ceil(n, s.drawPart())
	limit, drawn := p.value("sample.limit", 4), p.value("sample.drawn", 2*draws)
	logits := operand{v: s.logits, width: n}
	p.emit(&node{kernel: kernels.SampleAdjust, label: "sample.adjust", region: keys.name, splits: parts,
		in: []operand{logits, s.tokens.all(), s.sampler.all()}, out: []operand{keys.all(), largest.all()}})
	p.emit(&node{kernel: kernels.SampleFilter, label: "sample.filter", region: limit.name, splits: parts,
		in: []operand{keys.all(), largest.all(), s.sampler.all()}, out: []operand{limit.all()}})
	p.emit(&node{kernel: kernels.SampleDraw, label: "sample.draw", region: drawn.name, splits: draws,
		in: []operand{keys.all(), limit.all(), s.sampler.all()}, out: []operand{drawn.all()}})
	return drawn
}

// sampling fills the arguments of the sampler's kernels.
func (l *lowering) sampling() {
	n, h := l.n, &l.s.t.Header
	part := uint32(l.s.samplePart())
	switch n.kernel {
	case kernels.SampleAdjust:
		l.bind(kernels.SampleAdjustBindLogits, n.in[0])
		l.bind(kernels.SampleAdjustBindTokens, n.in[1])
		l.bind(kernels.SampleAdjustBindSettings, n.in[2])
		l.bind(kernels.SampleAdjustBindKeys, n.out[0])
		l.bind(kernels.SampleAdjustBindLargest, n.out[1])
		kernels.SampleAdjustParams{N: h.Vocab, Part: part, Ring: h.Context + 1, MaxBias: sampler.MaxBias}.Put(&l.cmd)
		l.patch(table.PatchToken, decl.SecondIndex)
	case kernels.SampleFilter:
		l.bind(kernels.SampleFilterBindKeys, n.in[0])
		l.bind(kernels.SampleFilterBindLargest, n.in[1])
		l.bind(kernels.SampleFilterBindSettings, n.in[2])
		l.bind(kernels.SampleFilterBindLimit, n.out[0])
		copy(l.spec.Values[kernels.SampleFilterSpecStage1:], l.s.stages)
		kernels.SampleFilterParams{N: h.Vocab, Part: part}.Put(&l.cmd)
	case kernels.SampleDraw:
		l.bind(kernels.SampleDrawBindKeys, n.in[0])
		l.bind(kernels.SampleDrawBindLimit, n.in[1])
		l.bind(kernels.SampleDrawBindSettings, n.in[2])
		l.bind(kernels.SampleDrawBindOut, n.out[0])
		kernels.SampleDrawParams{N: h.Vocab, Part: uint32(l.s.drawPart())}.Put(&l.cmd)
		l.patch(table.PatchToken, decl.SecondIndex)
	case kernels.RankPart:
		l.bind(kernels.RankPartBindLogits, n.in[0])
		l.bind(kernels.RankPartBindSettings, n.in[1])
		l.bind(kernels.RankPartBindOut, n.out[0])
		kernels.RankPartParams{N: h.Vocab, Part: uint32(l.s.rankPart())}.Put(&l.cmd)
	case kernels.Rank:
		l.bind(kernels.RankBindLogits, n.in[0])
		l.bind(kernels.RankBindParts, n.in[1])
		l.bind(kernels.RankBindDrawn, n.in[2])
		l.bind(kernels.RankBindSettings, n.in[3])
		l.bind(kernels.RankBindRanks, n.out[0])
		kernels.RankParams{N: h.Vocab, Part: uint32(l.s.rankPart()), Pairs: uint32(n.splits), Entries: sampler.RankEntries}.Put(&l.cmd)
		l.patch(table.PatchToken, decl.SecondIndex)
	}
}
