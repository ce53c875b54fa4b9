package arch

import (
	"math"
	"slices"
)

// The kinds of RoPE that are implemented.
const (
	ropeDefault = "default"
	ropeLinear  = "linear"
	ropeLlama3  = "llama3"
	ropeYarn    = "yarn"
	ropeLong    = "longrope"
	ropeMulti   = "mrope"   // of images; a text has the same position in each section
	ropeDynamic = "dynamic" // only with a factor alpha of the base
	// ropeProportional has the frequencies of whole heads and rotates only the first pairs.
	ropeProportional = "proportional"
)

// ropeSpec is a RoPE setting as in metadata. The kind determines which fields are used.
type ropeSpec struct {
	kind   string
	dim    int
	base   float64
	factor float64 // factor by which scaling stretches the context; all kinds but default
	// origContext is the context length before stretching; llama3, yarn and longrope.
	origContext int

	lowFreq, highFreq float64 // llama3

	betaFast, betaSlow float64 // yarn: rotations over origContext
	extrapolation      float64 // yarn: share of extrapolation, nearly always 1
	keepFraction       bool    // yarn: the correction range is not rounded to whole dimensions

	pairs int // proportional: number of pairs that are rotated

	short, long []float64 // longrope: divisors of the frequencies, [dim/2], or nil

	attnFactor  float64
	factors     string
	longFactors string
}

// rope computes the inverse frequencies base^(-2i/dim) and scales them.
//
// The order of operations and the use of float32 match transformers' modeling_rope_utils.py. Each
// product is converted explicitly, so that no compiler fuses it with a sum and the results are
// the same on every machine.
func (s ropeSpec) rope() Rope {
	inv := make([]float32, s.dim/2)
	for i := range inv {
		inv[i] = 1 / s.period(i)
	}
	switch s.kind {
	case ropeLinear, ropeProportional:
		for i := range inv {
			inv[i] /= float32(s.factor)
		}
		if s.kind == ropeProportional {
			clear(inv[min(s.pairs, len(inv)):])
		}
	case ropeLlama3:
		s.llama3(inv)
	case ropeYarn:
		s.yarn(inv)
	}
	r := Rope{
		Kind: s.kind, Dim: s.dim, Base: s.base,
		InvFreq: inv, AttnFactor: float32(s.attnFactor), Factors: s.factors,
	}
	if s.kind == ropeLong {
		s.longRope(&r)
	}
	return r
}

// period returns base^(2i/dim).
func (s ropeSpec) period(i int) float32 {
	exponent := float32(2*i) / float32(s.dim)
	return float32(math.Pow(float64(float32(s.base)), float64(exponent)))
}

// llama3 scales by Llama 3.1's rule (apply_scaling in Meta's reference implementation,
// llama_models/llama3/model.py): frequencies with wavelengths above origContext/lowFreq are
// divided by the factor, those with wavelengths below origContext/highFreq are kept, and those in
// between are interpolated. The two limits may be equal.
func (s ropeSpec) llama3(inv []float32) {
	var (
		orig   = float64(s.origContext)
		factor = float32(s.factor)
		long   = float32(orig / s.lowFreq)
		short  = float32(orig / s.highFreq)
		span   = float32(s.highFreq - s.lowFreq)
	)
	for i, f := range inv {
		wavelength := float32(2*math.Pi) / f
		switch {
		case wavelength > long:
			inv[i] = f / factor
		case wavelength < short, span == 0:
		default:
			smooth := (float32(orig)/wavelength - float32(s.lowFreq)) / span
			inv[i] = float32(float32((1-smooth)*f)/factor) + float32(smooth*f)
		}
	}
}

// yarn scales by parts, section 3.2 of YaRN (arXiv:2309.00071). Pairs that rotate often within
// the original context keep their frequency (extrapolation); the frequency of pairs that rotate
// seldom is divided by the factor (interpolation); there is a ramp in between.
func (s ropeSpec) yarn(inv []float32) {
	low, high := s.correctionDim(s.betaFast), s.correctionDim(s.betaSlow)
	if !s.keepFraction {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(s.dim-1))
	if low == high {
		high += 0.001 // like the reference, to avoid a division by zero
	}
	for i := range inv {
		ramp := (float32(i) - float32(low)) / float32(high-low)
		extra := 1 - min(max(ramp, 0), 1)
		if s.extrapolation != 1 {
			extra *= float32(s.extrapolation)
		}
		period := s.period(i)
		interpolated := 1 / float32(float32(s.factor)*period)
		inv[i] = float32(interpolated*(1-extra)) + float32((1/period)*extra)
	}
}

// correctionDim returns the (fractional) index of the pair that makes the given number of
// rotations within the original context.
func (s ropeSpec) correctionDim(rotations float64) float64 {
	return float64(s.dim) * math.Log(float64(s.origContext)/(rotations*2*math.Pi)) / (2 * math.Log(s.base))
}

// yarnScale returns YaRN's factor of cosines and sines, 0.1 m ln(factor) + 1 (equation 22 with m
// = 1).
func yarnScale(factor, m float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*m*math.Log(factor) + 1
}

// addRope returns the index of r in ropes. It appends r if it is new.
func addRope(ropes []Rope, r Rope) ([]Rope, int) {
	for i := range ropes {
		if equalRopes(&ropes[i], &r) {
			return ropes, i
		}
	}
	return append(ropes, r), len(ropes)
}

func equalRopes(a, b *Rope) bool {
	return a.Kind == b.Kind && a.Dim == b.Dim && a.Base == b.Base && a.AttnFactor == b.AttnFactor &&
		a.Factors == b.Factors && slices.Equal(a.InvFreq, b.InvFreq) &&
		a.LongFrom == b.LongFrom && a.LongFactors == b.LongFactors && slices.Equal(a.LongInvFreq, b.LongInvFreq)
}
