package cpu

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/sampler"
)

// A team surveys the keys of a large vocabulary together before one worker filters them by top-p: it computes
// the weight of each key, and counts the tokens that reach some marks. Bisection then begins between two marks.
const (
	surveyKeys  = 4096  // keys of a piece, which fit with their weights in the first-level cache
	surveyLeast = 32768 // size of the smallest vocabulary for which a survey takes less time than it saves
)

// marks are the distances of the survey's keys from the largest logit, in units of 1/TopPScale. The weight of
// a token at a distance of d is 2^-d.
var marks = [...]float32{0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10, 12, 16, 24}

// surveyWords is the size of a survey: the levels of all tokens and of each mark, as the number of tokens and
// the two halves of the sum of their weights. The declaration of sample_filter contains this size.
const surveyWords = 3 * (1 + len(marks))

// pieces implements prepared. Several rows are divided among the workers anyway.
func (k *sampleFilter) pieces(w *worker, _ int) int {
	if k.n < surveyLeast || k.active(w) != 1 || k.stopped(0) || !k.weighsAll(w) {
		return 0
	}
	return (k.n + k.surveyed() - 1) / k.surveyed()
}

// surveyed returns the number of keys of a piece, which are whole parts.
func (k *sampleFilter) surveyed() int { return max(1, surveyKeys/k.part) * k.part }

// weighsAll reports whether top-p is the first filter of row 0, so that it weighs all tokens.
func (k *sampleFilter) weighsAll(w *worker) bool {
	set := sampler.Parse(k.sampler.of(k.of(w, 0)))
	for _, s := range k.stages {
		switch {
		case s == decl.StageTopK && set.TopK > 0, s == decl.StageMinP:
			return false
		case s == decl.StageTopP && set.TopP > 0:
			return set.InvTemperature != 0
		}
	}
	return false
}

// surveys returns the surveys of all pieces, which are behind the weights in the team's memory.
func (k *sampleFilter) surveys(w *worker) []uint32 {
	return uint32s(w.prepared())[k.n:][:k.pieces(w, 1)*surveyWords]
}

// prepare implements prepared: it surveys pieces lo to hi-1.
func (k *sampleFilter) prepare(w *worker, lo, hi int) {
	f := k.filtering(w, 0)
	f.weights = uint32s(w.prepared())[:k.n]
	surveys := k.surveys(w)
	for i := lo; i < hi; i++ {
		first, last := i*k.surveyed(), min((i+1)*k.surveyed(), k.n)
		g := f
		g.keys, g.weights, g.largest = f.keys[first:last], f.weights[first:last], f.largest[first/k.part:(last+k.part-1)/k.part]
		words := surveys[i*surveyWords:]
		g.weigh()
		for j := range 1 + len(marks) {
			at := g.reach(f.mark(j), true)
			words[3*j], words[3*j+1], words[3*j+2] = uint32(at.n), uint32(at.sum), uint32(at.sum>>32)
		}
	}
}

// mark returns the key of a level of the survey. Level 0 is that of all tokens.
func (f *filtering) mark(j int) uint32 {
	if j == 0 {
		return f.limit
	}
	return sampler.OrderKey(f.value - marks[j-1]/f.set.TopPScale)
}

// surveyed returns a level of the survey.
func (f *filtering) surveyed(j int) level {
	at := level{key: f.mark(j)}
	for i := 3 * j; i < len(f.surveys); i += surveyWords {
		at.n += int(f.surveys[i])
		at.sum += uint64(f.surveys[i+2])<<32 | uint64(f.surveys[i+1])
	}
	return at
}

// between returns the levels of the survey next to each other of which the lower one reaches the target.
func (f *filtering) between(lo, hi level, target uint64) (level, level) {
	for j := range marks {
		at := f.surveyed(j + 1)
		if at.key <= lo.key {
			break
		}
		if at.sum >= target {
			return at, hi
		}
		hi = at
	}
	return lo, hi
}
