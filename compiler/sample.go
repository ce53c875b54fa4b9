package compiler

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/table"
)

// samplerPresets are the stage orders of other engines, the default first. All of them apply the
// bias before the penalties.
var samplerPresets = []struct{ name, order string }{
	{"llama.cpp", "penalties,top_k,top_p,min_p,temperature"},
	{"mlx", "penalties,top_p,min_p,top_k,temperature"},
	{"edgerunner", "penalties,temperature,top_k,top_p"},
}

// SamplerNone is the sampler of a table that only decodes greedily.
const SamplerNone = "none"

// stagePenalties is the name of the first stage, which has no value in package decl.
const stagePenalties = "penalties"

// stageNames are the names of the other stages, indexed by decl.Stage.
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

// ParseSampler returns the stages of an order, which is the name of a preset or a list of stages
// separated by commas. The first stage is 0, the penalties; the others are values of decl.Stage, and
// each occurs at most once. "" selects the first preset. "none" has no stages.
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
			return nil, &SamplerError{order, "the penalties must be the first stage"}
		case i == 0:
			return nil, &SamplerError{order, fmt.Sprintf("the first stage is %q, want %s; the presets are %s", name, stagePenalties, strings.Join(SamplerPresets(), ", "))}
		case at <= 0:
			return nil, &SamplerError{order, fmt.Sprintf("no stage %q; the stages are %s, %s", name, stagePenalties, strings.Join(stageNames[1:], ", "))}
		case slices.Contains(stages, uint32(at)):
			return nil, &SamplerError{order, fmt.Sprintf("stage %s occurs twice", name)}
		}
		stages = append(stages, uint32(at))
	}
	return stages, nil
}

// samplePart is the number of logits in a part if the chip's data do not divide argmax into parts.
const samplePart = 64

// samplePart returns the number of logits in a part, which one worker processes at a time.
func (s *state) samplePart() int {
	if n := s.in.Chip.ArgmaxPart; n > 0 {
		return min(n, 2048) // the threadgroup memory of sample_adjust holds 2048
	}
	return samplePart
}

// drawPart is the number of keys in a part for the draw, under the same condition as the constant
// samplePart. Larger parts need fewer logarithms.
const drawPart = 1024

func (s *state) drawPart() int {
	if s.in.Chip.ArgmaxPart > 0 {
		return s.samplePart()
	}
	return drawPart
}

// rankPart is the largest number of logits in a part for the ranking.
const rankPart = 2048

func (s *state) rankPart() int {
	if n := s.in.Chip.ArgmaxPart; n > 0 {
		return min(n, rankPart)
	}
	return rankPart
}

// sample emits the choice of a token with the settings in the sampler slot.
func (s *state) sample(p *program) { s.choose(p, s.draw(p)) }

// ranked is like sample, but also stores log-probabilities. It computes them before the choice,
// because the choice may set the stop flag, after which kernels do nothing.
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
	var a args = argmaxArgs{parts: drawn.width / 2}
	if p.flags.Has(table.FlagBatch) {
		a = chooseArgs{parts: drawn.width / 2}
	}
	p.emit(spot{role: roleSampleChoose}, a, []operand{drawn.all(), s.stops.all()}, s.tokens.all())
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

// splitArgmax splits argmax into two nodes if the vocabulary is larger than one part. The first finds
// the largest logit of each part, the second the largest of those.
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

// argmaxParts creates the value that holds the logit and the id of the best token of each part of
// the vocabulary.
func (s *state) argmaxParts(p *program, part int) *value {
	return p.value("out.parts", 2*ceil(s.cfg.Vocab, part))
}
