package replay

import (
	"encoding/binary"
	"math"

	"github.com/pianola-engine/pianola/internal/sampler"
)

// LogProb is a token and the natural logarithm of its probability, which is minus infinity
// for a token that the model's logits exclude.
type LogProb struct {
	ID      int32
	LogProb float32
}

// LogProbs returns the log-probability of token i of those that the last Prompt, Reprompt
// or Chain returned, and appends to top the likeliest tokens at its position, the likeliest
// first. The number of likeliest tokens is Sampling.LogProbs, but at most the vocabulary.
// ok is false if no log-probabilities were asked for, if there is no token i, while another
// call is in progress, and after Close. A fork starts without log-probabilities.
func (s *Session) LogProbs(i int, top []LogProb) (of LogProb, _ []LogProb, ok bool) {
	if err := s.begin(); err != nil {
		return LogProb{}, top, false
	}
	defer s.done()
	if i < 0 || i >= s.entered {
		return LogProb{}, top, false
	}
	e := s.entries[i*sampler.RankWords*4:][:sampler.RankWords*4]
	pair := func(at int) LogProb {
		b := e[8*at:]
		return LogProb{int32(binary.LittleEndian.Uint32(b)), math.Float32frombits(binary.LittleEndian.Uint32(b[4:]))}
	}
	for j := range min(s.ranked, int(s.m.t.Header.Vocab)) {
		top = append(top, pair(1+j))
	}
	return pair(0), top, true
}

// keepRanks allocates the memory that readRanks needs.
func (s *Session) keepRanks() {
	if s.ranked > 0 && s.entries == nil {
		s.entries = make([]byte, sampler.RanksSize)
	}
}

// readRanks reads the entries of n tokens of the ring, starting at index at.
func (s *Session) readRanks(at, n int) error {
	s.entered = 0
	if s.ranked == 0 {
		return nil
	}
	const size = sampler.RankWords * 4
	for done := 0; done < n; {
		entry := (at + done) % sampler.RankEntries
		some := min(n-done, sampler.RankEntries-entry)
		if err := s.m.dev.Read(s.id, s.m.ranks, uint64(entry)*size, s.entries[done*size:(done+some)*size]); err != nil {
			return err
		}
		done += some
	}
	s.entered = n
	return nil
}
