package replay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/table"
)

var (
	// ErrNoSampler is returned if the table was compiled without the sampling programs.
	ErrNoSampler = errors.New("replay: the table has no sampling programs")
	// ErrNoLogProbs is returned if the table was compiled without the programs that compute
	// log-probabilities (compiler.Options.LogProbs).
	ErrNoLogProbs = errors.New("replay: the table has no programs for log-probabilities")
)

// SamplingError reports a field of Sampling that is invalid or not supported by the table.
type SamplingError struct {
	Field string // "temperature"
	Value any
	What  string // "is not in 0..100"
}

// Error implements error.
func (e *SamplingError) Error() string {
	return fmt.Sprintf("replay: %s %v %s", e.Field, e.Value, e.What)
}

// Sampling selects how tokens are chosen. The sampler first adds LogitBias, then applies
// the penalties, then the filters and the temperature in the order that the table was
// compiled with (compiler.Options.Sampler), and then draws a token. The zero value is
// greedy decoding: it chooses the largest logit, the first of equal ones. docs/SAMPLING.md
// has the formulas.
type Sampling struct {
	// Temperature divides the logits. 0, or a value below 10^-6, chooses the largest logit
	// after bias and penalties.
	Temperature float64
	TopK        int     // keeps the k largest logits; 0: all
	TopP        float64 // keeps the likeliest tokens until their probabilities sum to p; 0 or 1: all
	MinP        float64 // keeps tokens with at least this fraction of the likeliest token's probability; 0: all

	// RepeatPenalty divides positive logits and multiplies other logits of the tokens that
	// occur among the last RepeatLastN, once for each token; 0 or 1: no penalty.
	RepeatPenalty    float64
	PresencePenalty  float64 // is subtracted from the logits of these tokens
	FrequencyPenalty float64 // is subtracted once for each occurrence
	// RepeatLastN is the number of last tokens, including the prompt's, to which the
	// penalties apply; 0: DefaultRepeatLastN, -1: the whole context.
	RepeatLastN int

	// LogitBias is added to the logits of tokens; minus infinity bans a token. It has at
	// most sampler.MaxBias entries.
	LogitBias map[int32]float64

	// LogProbs requests the log-probability of each token and of this number of likeliest
	// tokens at its position, at most sampler.MaxRanked. Log-probabilities are natural
	// logarithms of the softmax of the model's logits, before bias, penalties, filters and
	// temperature. With LogProbs a greedy chain also executes the sampling commands. 0:
	// none.
	LogProbs int

	// Seed, a token's position and the number of rollovers determine its draw: the same
	// seed gives the same tokens, whatever the chain length and the mode.
	Seed uint64
}

// DefaultRepeatLastN is the number of last tokens to which penalties apply if RepeatLastN
// is 0.
const DefaultRepeatLastN = 64

// DefaultSampling returns llama.cpp's defaults, with seed 0.
func DefaultSampling() Sampling {
	return Sampling{Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05}
}

// coldest is the lowest temperature at which tokens are drawn; lower ones count as 0.
const coldest = 1e-6

// hot reports whether tokens are drawn at random.
func (o *Sampling) hot() bool { return o.Temperature >= coldest }

// penalises reports whether earlier tokens change the logits.
func (o *Sampling) penalises() bool {
	return o.RepeatPenalty != 0 && o.RepeatPenalty != 1 || o.PresencePenalty != 0 || o.FrequencyPenalty != 0
}

// Greedy reports whether the choice is always the model's largest logit.
func (o *Sampling) Greedy() bool { return !o.hot() && !o.penalises() && len(o.LogitBias) == 0 }

// Check returns a *SamplingError for the first value that is out of range.
func (o *Sampling) Check() error {
	for _, f := range []struct {
		name      string
		v, lo, hi float64
	}{
		{"temperature", o.Temperature, 0, 100}, {"top-p", o.TopP, 0, 1}, {"min-p", o.MinP, 0, 1}, {"repeat penalty", o.RepeatPenalty, 0, 100},
		{"presence penalty", o.PresencePenalty, -100, 100}, {"frequency penalty", o.FrequencyPenalty, -100, 100},
	} {
		if !(f.v >= f.lo && f.v <= f.hi) {
			return &SamplingError{f.name, f.v, fmt.Sprintf("is not in %v..%v", f.lo, f.hi)}
		}
	}
	switch {
	case o.TopK < 0 || int64(o.TopK) > math.MaxInt32:
		return &SamplingError{"top-k", o.TopK, fmt.Sprintf("is not in 0..%d", math.MaxInt32)}
	case o.RepeatLastN < -1 || int64(o.RepeatLastN) > math.MaxInt32:
		return &SamplingError{"repeat-last-n", o.RepeatLastN, fmt.Sprintf("is not in -1..%d", math.MaxInt32)}
	case o.LogProbs < 0 || o.LogProbs > sampler.MaxRanked:
		return &SamplingError{"number of log-probabilities", o.LogProbs, fmt.Sprintf("is not in 0..%d", sampler.MaxRanked)}
	case len(o.LogitBias) > sampler.MaxBias:
		return &SamplingError{"number of logit biases", len(o.LogitBias), fmt.Sprintf("is more than %d", sampler.MaxBias)}
	}
	for id, v := range o.LogitBias {
		if math.IsNaN(v) || v > maxBias || v < -maxBias && !math.IsInf(v, -1) {
			return &SamplingError{fmt.Sprintf("logit bias of token %d", id), v, fmt.Sprintf("is not in %v..%v, nor minus infinity", -maxBias, maxBias)}
		}
	}
	return nil
}

// maxBias bounds biases, far above any logit.
const maxBias = 1e6

// stages returns the sampler's stages after the penalties, in order. It returns nil for a
// table without sampling programs.
func stages(t *table.Table) []uint32 {
	p, _, ok := t.Program(table.ProgramSample)
	if !ok {
		return nil
	}
	for _, c := range t.ProgramCmds(p) {
		if c.Kernel == kernels.SampleFilter {
			return slices.Clone(t.Specs[c.Spec].Values[kernels.SampleFilterSpecStage1:][:decl.SamplerStages])
		}
	}
	return nil
}

// sampler returns o in the form of the sampler slot, for the given order of stages.
func (o *Sampling) sampler(order []uint32, context int) (sampler.Settings, error) {
	at := func(stage uint32) int { return slices.Index(order, stage) }
	for _, f := range []struct {
		stage uint32
		on    bool
		name  string
		value any
	}{
		{decl.StageTemperature, o.hot() && o.Temperature != 1, "temperature", o.Temperature}, {decl.StageTopK, o.TopK > 0, "top-k", o.TopK},
		{decl.StageTopP, o.TopP > 0 && o.TopP < 1, "top-p", o.TopP}, {decl.StageMinP, o.MinP > 0, "min-p", o.MinP},
	} {
		if f.on && o.hot() && at(f.stage) < 0 {
			return sampler.Settings{}, &SamplingError{f.name, f.value, "has no stage in the table's sampler"}
		}
	}
	// temperature returns the temperature already applied before a stage.
	temperature := func(stage uint32) float64 {
		if t := at(decl.StageTemperature); t >= 0 && t < at(stage) && o.hot() {
			return o.Temperature
		}
		return 1
	}
	s := sampler.Settings{
		Seed: o.Seed, TopK: uint32(o.TopK), TopPScale: float32(math.Log2E / temperature(decl.StageTopP)), MinPDrop: sampler.Far,
		Repetition: 1, Presence: float32(o.PresencePenalty), Frequency: float32(o.FrequencyPenalty), Biases: uint32(len(o.LogitBias)),
		Ranked: uint32(o.LogProbs),
	}
	if o.hot() {
		s.InvTemperature = float32(1 / o.Temperature)
	}
	if o.TopP > 0 && o.TopP < 1 {
		s.TopP = uint32(max(1, min(o.TopP*(1<<32), math.MaxUint32)))
	}
	if o.MinP > 0 {
		s.MinPDrop = float32(-math.Log(o.MinP) * temperature(decl.StageMinP))
	}
	if o.RepeatPenalty != 0 {
		s.Repetition = float32(o.RepeatPenalty)
	}
	if o.penalises() {
		switch s.Window = uint32(o.RepeatLastN); {
		case o.RepeatLastN == 0:
			s.Window = DefaultRepeatLastN
		case o.RepeatLastN < 0:
			s.Window = uint32(context)
		}
	}
	return s, nil
}

// SetSampling selects how the tokens of the following prompts and chains are chosen. The
// error is a *SamplingError, ErrNoSampler or ErrNoLogProbs, and leaves the settings
// unchanged.
func (s *Session) SetSampling(o Sampling) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.done()
	if err := o.Check(); err != nil {
		return err
	}
	switch {
	case o.LogProbs > 0 && s.m.programs.rankedHead < 0:
		return ErrNoLogProbs
	case o.LogProbs == 0 && o.Greedy():
		if s.par != nil {
			s.settle()
			s.setChoice(&choice{})
			return nil
		}
		s.sampled, s.ranked = false, 0
		return nil
	case s.m.stages == nil:
		return ErrNoSampler
	}
	set, err := o.sampler(s.m.stages, s.Context())
	if err != nil {
		return err
	}
	set.Seed = s.drawsFrom(o.Seed)
	var head [sampler.Words * 4]byte
	set.Put(&head)
	b := head[:]
	for _, id := range slices.Sorted(maps.Keys(o.LogitBias)) {
		if vocab := int(s.m.t.Header.Vocab); id < 0 || int(id) >= vocab {
			return &SamplingError{"logit bias of token", id, fmt.Sprintf("is not in the vocabulary of %d", vocab)}
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(o.LogitBias[id])))
	}
	if s.par != nil {
		s.settle()
		s.seed = o.Seed
		s.setChoice(&choice{ranked: o.LogProbs, sampled: true, sampler: slices.Clone(b)})
		return nil
	}
	if err := s.m.dev.Write(s.id, s.m.sampler, 0, b); err != nil {
		return err
	}
	s.sampled, s.seed, s.ranked = true, o.Seed, o.LogProbs
	s.keepRanks()
	return nil
}

// drawsFrom returns the seed that the device draws with. It differs after each rollover,
// because draws depend on positions, which start again at 0.
func (s *Session) drawsFrom(seed uint64) uint64 {
	return seed + uint64(s.rolls)*0x9e3779b97f4a7c15 // 2^64 over the golden ratio, odd
}

// setRolls sets the number of rollovers.
func (s *Session) setRolls(n uint32) error {
	if s.rolls == n {
		return nil
	}
	s.rolls = n
	if !s.sampled {
		return nil
	}
	// The sampler slot begins with the seed.
	return s.m.dev.Write(s.id, s.m.sampler, 0, binary.LittleEndian.AppendUint64(nil, s.drawsFrom(s.seed)))
}

// choosers returns the programs that choose a token: the one of a chain and the head of a
// prompt.
func (s *Session) choosers() (chain, head int) {
	switch {
	case s.ranked > 0:
		return s.m.programs.ranked, s.m.programs.rankedHead
	case s.sampled:
		return s.m.programs.sample, s.m.programs.sampleHead
	}
	return s.m.programs.decode, s.m.programs.head
}
