package arch

import "math"

// longRopeName returns the kind of the setting in p. "longrope" was formerly called "su" or, with
// factors for both lengths, "yarn".
func longRopeName(kind string, p *fields) string {
	if kind == "su" {
		return ropeLong
	}
	if kind == ropeYarn {
		_, short := p.value("short_factor")
		_, long := p.value("long_factor")
		if short && long {
			return ropeLong
		}
	}
	return kind
}

// hfLongRope reads the settings of LongRoPE (arXiv:2402.13753): a divisor of each frequency for
// contexts up to the original length, and another one for longer contexts.
func hfLongRope(p *fields, s *ropeSpec, c *Config) {
	s.short, s.long = p.factors("short_factor", s.dim/2), p.factors("long_factor", s.dim/2)
	stretched := float64(c.Context) / float64(max(s.origContext, 1))
	factor := p.float("factor", minRopeFactor, maxRopeFactor, stretched)
	s.attnFactor = 1
	if factor > 1 && s.origContext > 1 {
		s.attnFactor = math.Sqrt(1 + math.Log(factor)/math.Log(float64(s.origContext)))
	}
	s.attnFactor = p.float("attention_factor", minRopeFactor, maxRopeFactor, s.attnFactor)
}

// factors returns a list of n divisors of the frequencies.
func (f *fields) factors(key string, n int) []float64 {
	list := f.list(key)
	switch {
	case f.err != nil:
		return nil
	case list == nil:
		f.failf(key, "missing")
		return nil
	case len(list) != n:
		f.failf(key, "%d entries for %d frequencies", len(list), n)
		return nil
	}
	out := make([]float64, n)
	for i, v := range list {
		x, ok := toFloat(v)
		if !ok || !(x >= minRopeFactor && x <= maxRopeFactor) {
			f.failf(key, "%s is not a number in %v..%v", clip(v), minRopeFactor, maxRopeFactor)
			return nil
		}
		out[i] = x
	}
	return out
}

// longRope sets r's two lists of inverse frequencies: InvFreq for contexts up to the length that
// the model was first trained with, s.origContext, and LongInvFreq for longer ones. It divides
// the frequencies by LongRoPE's factors if these are metadata. If they are tensors, the kernel
// rope_angles divides by them.
func (s ropeSpec) longRope(r *Rope) {
	r.LongFrom, r.LongFactors = s.origContext, s.longFactors
	r.LongInvFreq = make([]float32, len(r.InvFreq))
	copy(r.LongInvFreq, r.InvFreq)
	for i := range s.short {
		r.InvFreq[i] = 1 / float32(float32(s.short[i])*s.period(i))
		r.LongInvFreq[i] = 1 / float32(float32(s.long[i])*s.period(i))
	}
}

// DefaultContext returns the context to use if the user asks for none: most, or the model's
// context if that is less. If the frequencies depend on the context, it is at most the longest
// context with the frequencies of short contexts.
func (c *Config) DefaultContext(most int) int {
	most = min(most, c.Context)
	for i := range c.Ropes {
		if from := c.Ropes[i].LongFrom; from > 0 {
			most = min(most, from)
		}
	}
	return most
}
