package compiler

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/sampler"
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

// SamplerError reports an error in the order of a sampler's stages.
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
	p.emit(spot{role: roleRankPart}, rankPartArgs{}, []operand{logits, s.sampler.all()}, best.all())
	drawn := s.draw(p)
	p.emit(spot{role: roleRank}, rankArgs{pairs: drawn.width / 2}, []operand{logits, best.all(), drawn.all(), s.sampler.all()}, s.ranks.all())
	s.choose(p, drawn)
}

// choose emits the command that chooses a token from the candidates that draw returns.
func (s *state) choose(p *program, drawn *value) {
	p.emit(spot{role: roleSampleChoose}, argmaxArgs{parts: drawn.width / 2}, []operand{drawn.all(), s.stops.all()}, s.tokens.all())
}

// draw emits the commands of the sampler before the choice, and returns the best token
// of each part of the vocabulary.
func (s *state) draw(p *program) *value {
	n := s.cfg.Vocab
	parts, draws := ceil(n, s.samplePart()), ceil(n, s.drawPart())
	keys, largest := p.value("sample.keys", n), p.value("sample.largest", parts)
	limit, drawn := p.value("sample.limit", 4), p.value("sample.drawn", 2*draws)
	logits, settings := operand{v: s.logits, width: n}, s.sampler.all()
	p.emit(spot{role: roleSampleAdjust}, sampleAdjustArgs{parts: parts}, []operand{logits, s.tokens.all(), settings}, keys.all(), largest.all())
	p.emit(spot{role: roleSampleFilter}, sampleFilterArgs{parts: parts}, []operand{keys.all(), largest.all(), settings}, limit.all())
	p.emit(spot{role: roleSampleDraw}, sampleDrawArgs{parts: draws}, []operand{keys.all(), limit.all(), settings}, drawn.all())
	return drawn
}

// splitArgmax finds the largest logits of parts of the vocabulary first, where
// it is more than one threadgroup should read.
func (s *state) splitArgmax() error {
	part := s.in.Chip.ArgmaxPart
	if s.cfg.Vocab <= part {
		return nil
	}
	for _, p := range s.programs {
		for i, n := range p.nodes {
			if a, ok := n.args.(argmaxArgs); ok && a.parts == 0 {
				best := s.argmaxParts(p, part)
				first := &node{spot: spot{role: roleArgmaxPart}, args: argmaxPartArgs{part: part}, in: []operand{n.in[0]}, out: []operand{best.all()}}
				p.splice(i, 0, first)
				n.in[0], n.args = best.all(), argmaxArgs{parts: best.width / 2}
				break
			}
		}
	}
	return nil
}

// argmaxParts makes the value that has the best token of each part of the
// vocabulary: its logit and its id.
func (s *state) argmaxParts(p *program, part int) *value {
	return p.value("out.parts", 2*ceil(s.cfg.Vocab, part))
}
