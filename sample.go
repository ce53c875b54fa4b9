package pianola

import (
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/replay"
)

// Sampling says how tokens are chosen; the zero value is greedy. The order of
// the stages is the table's, see Options.Sampler.
type Sampling = replay.Sampling

// SamplingError says which field of Sampling cannot be used.
type SamplingError = replay.SamplingError

// ErrNoSampler says that the model was opened, or its table compiled, without the
// programs that sample.
var ErrNoSampler = replay.ErrNoSampler

// ErrNoLogProbs says that the model was opened, or its table compiled, without the
// programs that leave log-probabilities, Options.LogProbs.
var ErrNoLogProbs = replay.ErrNoLogProbs

// MaxLogProbs is how many likeliest tokens come with a token at most.
const MaxLogProbs = sampler.MaxRanked

// LogProb is a token with the natural logarithm of its probability.
type LogProb = replay.LogProb

// DefaultSampling returns llama.cpp's defaults, with seed 0.
func DefaultSampling() Sampling { return replay.DefaultSampling() }

// DefaultRepeatLastN is how many tokens penalties look at where nothing else is
// asked for.
const DefaultRepeatLastN = replay.DefaultRepeatLastN
