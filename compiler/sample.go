package compiler

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/table/decl"
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

func (s *state) samplePart() int {
	if n := s.in.Chip.ArgmaxPart; n > 0 {
		return min(n, 2048) // what sample_adjust has room for
	}
	return samplePart
}

// sample emits the choice of a token as the sampler slot says.
func (s *state) sample(p *program) {
	n := s.cfg.Vocab
	parts := ceil(n, s.samplePart())
	keys, largest := p.value("sample.keys", n), p.value("sample.largest", parts)
	limit, drawn := p.value("sample.limit", 4), p.value("sample.drawn", 2*parts)
	logits := operand{v: s.logits, width: n}
	p.emit(&node{kernel: table.KernelSampleAdjust, label: "sample.adjust", region: keys.name, splits: parts,
		in: []operand{logits, s.tokens.all(), s.sampler.all()}, out: []operand{keys.all(), largest.all()}})
	p.emit(&node{kernel: table.KernelSampleFilter, label: "sample.filter", region: limit.name, splits: parts,
		in: []operand{keys.all(), largest.all(), s.sampler.all()}, out: []operand{limit.all()}})
	p.emit(&node{kernel: table.KernelSampleDraw, label: "sample.draw", region: drawn.name, splits: parts,
		in: []operand{keys.all(), limit.all(), s.sampler.all()}, out: []operand{drawn.all()}})
	p.emit(&node{kernel: table.KernelArgmax, label: "sample.choose", splits: parts,
		in: []operand{drawn.all(), s.stops.all()}, out: []operand{s.tokens.all()}})
}

// sampling fills the arguments of the sampler's kernels.
func (l *lowering) sampling() {
	n, h := l.n, &l.s.t.Header
	part := uint32(l.s.samplePart())
	switch n.kernel {
	case table.KernelSampleAdjust:
		l.bind(table.SampleAdjustBindLogits, n.in[0])
		l.bind(table.SampleAdjustBindTokens, n.in[1])
		l.bind(table.SampleAdjustBindSettings, n.in[2])
		l.bind(table.SampleAdjustBindKeys, n.out[0])
		l.bind(table.SampleAdjustBindLargest, n.out[1])
		table.SampleAdjustParams{N: h.Vocab, Part: part, Ring: h.Context + 1, MaxBias: table.MaxBias}.Put(&l.cmd)
		l.patch(table.PatchToken, decl.SecondIndex)
	case table.KernelSampleFilter:
		l.bind(table.SampleFilterBindKeys, n.in[0])
		l.bind(table.SampleFilterBindLargest, n.in[1])
		l.bind(table.SampleFilterBindSettings, n.in[2])
		l.bind(table.SampleFilterBindLimit, n.out[0])
		copy(l.spec.Values[table.SampleFilterSpecStage1:], l.s.stages)
		table.SampleFilterParams{N: h.Vocab, Part: part}.Put(&l.cmd)
	case table.KernelSampleDraw:
		l.bind(table.SampleDrawBindKeys, n.in[0])
		l.bind(table.SampleDrawBindLimit, n.in[1])
		l.bind(table.SampleDrawBindSettings, n.in[2])
		l.bind(table.SampleDrawBindOut, n.out[0])
		table.SampleDrawParams{N: h.Vocab, Part: part}.Put(&l.cmd)
		l.patch(table.PatchToken, decl.SecondIndex)
	}
}
