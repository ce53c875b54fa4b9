package pianola

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Sampling chooses tokens at random from the model's distribution. The stages
// run in llama.cpp's order: repetition penalty, top-k, top-p, min-p,
// temperature. The zero value, and any with Temperature 0, is greedy.
type Sampling struct {
	Temperature   float64
	TopK          int     // the k likeliest; 0: all
	TopP          float64 // the likeliest whose probabilities sum to p; 0 or 1: all
	MinP          float64 // those with at least this share of the likeliest's probability; 0: all
	RepeatPenalty float64 // divides positive and multiplies negative logits of tokens seen; 0 or 1: none
	Seed          uint64  // the same seed gives the same tokens
}

// greedy reports whether the device's argmax is the choice.
func (s Sampling) greedy() bool {
	return s.Temperature == 0 && (s.RepeatPenalty == 0 || s.RepeatPenalty == 1)
}

func (s Sampling) check() error {
	for _, f := range []struct {
		name      string
		v, lo, hi float64
	}{
		{"temperature", s.Temperature, 0, 100}, {"top-p", s.TopP, 0, 1}, {"min-p", s.MinP, 0, 1},
		{"repeat penalty", s.RepeatPenalty, 0, 100},
	} {
		if math.IsNaN(f.v) || f.v < f.lo || f.v > f.hi {
			return fmt.Errorf("pianola: %s %v is not in %v..%v", f.name, f.v, f.lo, f.hi)
		}
	}
	if s.TopK < 0 {
		return fmt.Errorf("pianola: top-k %d is negative", s.TopK)
	}
	return nil
}

// repeatWindow is how many of the last tokens the penalty looks at.
const repeatWindow = 64

// sampler draws tokens on the host.
type sampler struct {
	o      Sampling
	rng    *rand.Rand
	seen   []int32 // the last tokens, at most repeatWindow
	logits []float32
	cand   []candidate
}

type candidate struct {
	id    int32
	logit float64
	p     float64
}

func newSampler(o Sampling, vocab int, prompt []int32) (*sampler, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	s := &sampler{
		o: o, rng: rand.New(rand.NewPCG(o.Seed, 0x7069616e6f6c61)),
		logits: make([]float32, vocab), cand: make([]candidate, 0, vocab),
	}
	s.seen = append(s.seen, prompt[max(0, len(prompt)-repeatWindow):]...)
	return s, nil
}

// draw returns a token for s.logits and remembers it.
func (s *sampler) draw() int32 {
	s.penalise()
	id := s.pick()
	if len(s.seen) == repeatWindow {
		s.seen = append(s.seen[:0], s.seen[1:]...)
	}
	s.seen = append(s.seen, id)
	return id
}

// penalise makes tokens seen less likely, each once, however often it was
// seen.
func (s *sampler) penalise() {
	p := float32(s.o.RepeatPenalty)
	if p == 0 || p == 1 {
		return
	}
	for i, id := range s.seen {
		if slices.Contains(s.seen[:i], id) || int(id) >= len(s.logits) {
			continue
		}
		if s.logits[id] > 0 {
			s.logits[id] /= p
		} else {
			s.logits[id] *= p
		}
	}
}

func (s *sampler) pick() int32 {
	s.cand = s.cand[:0]
	for id, l := range s.logits {
		if l == l { // NaN is never chosen
			s.cand = append(s.cand, candidate{id: int32(id), logit: float64(l)})
		}
	}
	if len(s.cand) == 0 {
		return 0
	}
	slices.SortStableFunc(s.cand, func(a, b candidate) int {
		switch {
		case a.logit > b.logit:
			return -1
		case a.logit < b.logit:
			return 1
		}
		return 0
	})
	if s.o.Temperature == 0 {
		return s.cand[0].id
	}
	c := s.cand
	if k := s.o.TopK; k > 0 && k < len(c) {
		c = c[:k]
	}
	c = cutTopP(c, s.o.TopP)
	c = cutMinP(c, s.o.MinP)
	softmax(c, s.o.Temperature)
	u := s.rng.Float64()
	for _, x := range c {
		if u -= x.p; u < 0 {
			return x.id
		}
	}
	return c[len(c)-1].id
}

// softmax sets the probabilities of candidates that are sorted by logit.
func softmax(c []candidate, temperature float64) {
	sum := 0.0
	for i := range c {
		c[i].p = math.Exp((c[i].logit - c[0].logit) / temperature)
		sum += c[i].p
	}
	for i := range c {
		c[i].p /= sum
	}
}

// cutTopP keeps the shortest prefix whose probabilities reach p.
func cutTopP(c []candidate, p float64) []candidate {
	if p <= 0 || p >= 1 {
		return c
	}
	softmax(c, 1)
	sum := 0.0
	for i := range c {
		if sum += c[i].p; sum >= p {
			return c[:i+1]
		}
	}
	return c
}

// cutMinP keeps candidates with at least a share p of the first's probability.
func cutMinP(c []candidate, p float64) []candidate {
	if p <= 0 {
		return c
	}
	limit := c[0].logit + math.Log(p)
	for i := range c {
		if c[i].logit < limit {
			return c[:max(i, 1)]
		}
	}
	return c
}
