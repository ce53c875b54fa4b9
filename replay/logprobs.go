package replay

import (
	"encoding/binary"
	"math"

	"github.com/pianola-engine/pianola/internal/sampler"
)

// LogProb is a token with the natural logarithm of its probability, minus infinity
// for one that the model's logits exclude.
type LogProb struct {
	ID      int32
	LogProb float32
}

// LogProbs returns the log-probability of token i of those that the last Prompt,
// Reprompt or Chain gave, and appends to top the likeliest in its place, the
// likeliest first, as many as Sampling.LogProbs asked for or the vocabulary has. ok
// is false where none were asked for, where there is no such token, while another call
// is in progress, and after Close. A fork starts without log-probabilities.
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

// keepRanks makes room for what readRanks reads.
func (s *Session) keepRanks() {
	if s.ranked > 0 && s.entries == nil {
		s.entries = make([]byte, sampler.RanksSize)
	}
}

// readRanks reads the entries of n tokens from index at of the ring on.
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
