package replay_test

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/replay"
)

// rankedToken is a token with its log-probabilities.
type rankedToken struct {
	of  replay.LogProb
	top []replay.LogProb
}

// rankedTokens returns n tokens after a prompt with their log-probabilities.
func rankedTokens(t *testing.T, s *replay.Session, n int) []rankedToken {
	t.Helper()
	var out []rankedToken
	take := func(ids ...int32) {
		for i, id := range ids {
			of, top, ok := s.LogProbs(i, nil)
			if !ok || of.ID != id {
				t.Fatalf("token %d of %d: entry of %d, %v; want %d", i, len(ids), of.ID, ok, id)
			}
			out = append(out, rankedToken{of, top})
		}
		if _, _, ok := s.LogProbs(len(ids), nil); ok {
			t.Errorf("token %d of %d has an entry", len(ids), len(ids))
		}
	}
	next, _, err := s.Prompt(t.Context(), prompt(9))
	if err != nil {
		t.Fatal(err)
	}
	take(next)
	for len(out) < n {
		tokens, _, err := s.Chain(t.Context(), n-len(out))
		if err != nil {
			t.Fatal(err)
		}
		take(tokens...)
	}
	return out
}

func equalRanked(a, b rankedToken) bool { return a.of == b.of && slices.Equal(a.top, b.top) }

// testLogProbs checks that each token has the log-probability that follows from its logits, with
// greedy decoding and with sampling. Chains of any length must give the same log-probabilities,
// even if they wrap around the ring of entries. The tokens must be the same as without
// log-probabilities.
func testLogProbs(t *testing.T, loaded loader) {
	m := loaded(t, "qwen3", 64, compiler.Options{LogProbs: true})
	if got := m.Table().Header.Options; got != "log-probs" {
		t.Errorf("the table's options are %q", got)
	}
	logits := make([]float32, m.Table().Header.Vocab)
	for _, o := range []replay.Sampling{{}, samplings[0], samplings[3]} {
		const n = 10
		o.Seed = 3
		plain := sampled(t, m, 16, n, o)
		o.LogProbs = 5
		one := session(t, m, replay.SessionOptions{Chain: 1})
		if err := one.SetSampling(o); err != nil {
			t.Fatal(err)
		}
		s := session(t, m, replay.SessionOptions{Chain: 4})
		if err := s.SetSampling(o); err != nil {
			t.Fatal(err)
		}
		many := rankedTokens(t, s, n)
		first := rankedTokens(t, one, 1)[0]
		for i, want := range many {
			if i > 0 {
				if _, _, err := one.Chain(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				first.of, first.top, _ = one.LogProbs(0, nil)
			}
			if !equalRanked(first, want) {
				t.Fatalf("token %d: %+v in a chain of 1, %+v of 4", i, first, want)
			}
			if want.of.ID != plain[i] || len(want.top) != o.LogProbs {
				t.Fatalf("token %d: %d with %d likeliest, want %d", i, want.of.ID, len(want.top), plain[i])
			}
			if err := one.Logits(logits); err != nil {
				t.Fatal(err)
			}
			sum := 0.0
			for _, v := range logits {
				sum += math.Exp(float64(v))
			}
			for j, p := range append(want.top, want.of) {
				if ref := float64(logits[p.ID]) - math.Log(sum); !(math.Abs(float64(p.LogProb)-ref) < 1e-5) {
					t.Errorf("token %d, place %d: %v, want %v", i, j, p.LogProb, ref)
				}
			}
			if want.top[0].LogProb < want.of.LogProb || o.Temperature == 0 && o.RepeatPenalty == 0 && want.top[0] != want.of {
				t.Errorf("token %d: %+v beside %+v", i, want.of, want.top[0])
			}
		}
	}
}

// TestLogProbsOfLongChains decodes more tokens than the ring has entries.
func TestLogProbsOfLongChains(t *testing.T) {
	m := loadedOnCPU(t, "llama", 64, compiler.Options{LogProbs: true})
	n := min(m.Table().Header.Context-9, 2*sampler.RankEntries+100)
	var want []rankedToken
	for _, chain := range []int{100_000, 100} {
		s := session(t, m, replay.SessionOptions{Chain: chain})
		if err := s.SetSampling(replay.Sampling{Temperature: 1, Seed: 1, LogProbs: 1}); err != nil {
			t.Fatal(err)
		}
		got := rankedTokens(t, s, int(n))
		if want == nil {
			want = got
		}
		if !slices.EqualFunc(got, want, equalRanked) {
			t.Errorf("chains of %d give other log-probabilities", chain)
		}
	}
}

// TestLogProbsRefused checks that invalid counts, and tables without the programs, are
// refused.
func TestLogProbsRefused(t *testing.T) {
	s := session(t, loadedOnCPU(t, "llama", 64, compiler.Options{}), replay.SessionOptions{})
	for _, n := range []int{-1, sampler.MaxRanked + 1, math.MaxInt} {
		var refused *replay.SamplingError
		if err := s.SetSampling(replay.Sampling{LogProbs: n}); !errors.As(err, &refused) || refused.Value != n {
			t.Errorf("%d: %v", n, err)
		}
	}
	if err := s.SetSampling(replay.Sampling{LogProbs: 1}); !errors.Is(err, replay.ErrNoLogProbs) {
		t.Errorf("without the programs: %v", err)
	}
	generate(t, s, prompt(5), 3)
	if _, _, ok := s.LogProbs(0, nil); ok {
		t.Error("log-probabilities without a request")
	}
	with := session(t, loadedOnCPU(t, "llama", 64, compiler.Options{LogProbs: true}), replay.SessionOptions{})
	for _, n := range []int{3, 0} {
		if err := with.SetSampling(replay.Sampling{LogProbs: n}); err != nil {
			t.Fatal(err)
		}
		generate(t, with, prompt(5), 3)
		if _, top, ok := with.LogProbs(0, nil); ok != (n > 0) || len(top) != n {
			t.Errorf("%d asked for: %v, %v", n, top, ok)
		}
		if n == 0 {
			break
		}
		f, err := with.Fork()
		if err != nil {
			t.Fatal(err)
		}
		tokens, _, err := f.Chain(t.Context(), 2) // at least one token, even on a busy machine
		if err != nil {
			t.Fatal(err)
		}
		if _, top, ok := f.LogProbs(len(tokens)-1, nil); !ok || len(top) != n {
			t.Errorf("a fork: %v, %v", top, ok)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSampledAllocations checks that chains with sampling and log-probabilities allocate
// nothing.
func TestSampledAllocations(t *testing.T) {
	m := loadedOnCPU(t, "qwen3", 64, compiler.Options{LogProbs: true})
	for _, o := range []replay.Sampling{{Temperature: 1, TopP: 0.95, MinP: 0.01, RepeatPenalty: 1.1}, {Temperature: 1, TopK: 40, LogProbs: 5}} {
		allocations(t, m, o)
	}
}

// TestLogProbsOnThreads compares the log-probabilities that several threads and one compute for a
// model with capped logits. There the command that caps them, which one thread executes, comes before
// a command of one thread and one of several, which may run together.
func TestLogProbsOnThreads(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(4, before))
	defer runtime.GOMAXPROCS(before)
	var want []rankedToken
	for _, threads := range []int{1, 2, 4} {
		m := loadedOnThreads(t, threads, "gemma2", 64, compiler.Options{LogProbs: true})
		s := session(t, m, replay.SessionOptions{})
		if err := s.SetSampling(replay.Sampling{LogProbs: 2}); err != nil {
			t.Fatal(err)
		}
		got := rankedTokens(t, s, 60)
		if want == nil {
			want = got
		}
		if !slices.EqualFunc(got, want, equalRanked) {
			t.Errorf("%d threads give other log-probabilities than one", threads)
		}
	}
}
