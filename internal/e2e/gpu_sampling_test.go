package e2e_test

import (
	"math"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
)

// sampled returns n sampled tokens that follow ids, in chains of the given length.
func sampled(t *testing.T, m *pianola.Model, chain int, ids []int32, n int, o pianola.Sampling) []int32 {
	t.Helper()
	s := newSession(t, m, pianola.SessionOptions{Chain: chain, IgnoreStops: true})
	var out []int32
	for tok, err := range s.GenerateIDs(t.Context(), ids, pianola.GenerateOptions{MaxTokens: n, Sampling: o}) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, tok.ID)
	}
	return out
}

// samplings are settings that cover every sampling option.
var samplings = []pianola.Sampling{
	pianola.DefaultSampling(),
	{Temperature: 1},
	{Temperature: 1.2, TopP: 0.9},
	{Temperature: 0.7, TopK: 20, RepeatPenalty: 1.3, PresencePenalty: 0.2, FrequencyPenalty: 0.1, LogitBias: map[int32]float64{5: 2, 9: -3}},
	{RepeatPenalty: 1.5, RepeatLastN: -1},
	{Temperature: 3, MinP: 0.02},
}

// TestGPUSampling samples with 50 seeds. Every mode and chains of 1 and 128 must give the same
// tokens. The CPU must give the same tokens until the rounding of logits changes a choice.
func TestGPUSampling(t *testing.T) {
	onGPU(t)
	const path, n, seeds = "testdata/gopher-q8_0.gguf", 129, 50
	ids := readGolden(t, "testdata/gopher/golden.json").Cases[0].PromptIDs
	host := open(t, path, pianola.Options{Device: "cpu"})
	want := make([][]int32, seeds)
	for _, mode := range gpuModes {
		m := open(t, path, pianola.Options{Device: "cuda", Mode: mode})
		equal := 0
		for seed := range seeds {
			o := samplings[seed%len(samplings)]
			o.Seed = uint64(seed)
			for _, chain := range []int{1, 128} {
				got := sampled(t, m, chain, ids, n, o)
				if want[seed] == nil {
					want[seed] = got
				}
				if !slices.Equal(got, want[seed]) {
					t.Errorf("mode %s, chain %d, seed %d: the tokens differ", mode, chain, seed)
				}
			}
			if mode == gpuModes[0] {
				for i, id := range sampled(t, host, 128, ids, n, o) {
					if id != want[seed][i] {
						break
					}
					equal++
				}
			}
		}
		if mode == gpuModes[0] {
			t.Logf("on average %.1f of %d tokens equal those of the CPU", float64(equal)/seeds, n)
		}
	}
}

// TestGPULogProbs checks that chains of 1 and of 128 give the same log-probabilities in every
// mode, and that they are close to the CPU's where the tokens are equal.
func TestGPULogProbs(t *testing.T) {
	onGPU(t)
	// The model has float weights, because with quantized ones the logits of the devices differ by
	// up to a tenth.
	const path, n = "testdata/gopher", 129
	ids := readGolden(t, "testdata/gopher/golden.json").Cases[0].PromptIDs
	ranked := func(m *pianola.Model, chain int) []pianola.Token {
		s := newSession(t, m, pianola.SessionOptions{Chain: chain, IgnoreStops: true})
		var out []pianola.Token
		for tok, err := range s.GenerateIDs(t.Context(), ids, pianola.GenerateOptions{MaxTokens: n, Sampling: pianola.Sampling{LogProbs: 5}}) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, tok)
		}
		return out
	}
	host := ranked(open(t, path, pianola.Options{Device: "cpu", Table: pianola.TableOptions{LogProbs: true}}), 128)
	var want []pianola.Token
	for _, mode := range gpuModes {
		m := open(t, path, pianola.Options{Device: "cuda", Mode: mode, Table: pianola.TableOptions{LogProbs: true}})
		for _, chain := range []int{1, 128} {
			got := ranked(m, chain)
			if want == nil {
				want = got
			}
			for i, tok := range got {
				if tok.ID != want[i].ID || tok.LogProb != want[i].LogProb || !slices.Equal(tok.Top, want[i].Top) {
					t.Fatalf("mode %s, chain %d, token %d: %+v, want %+v", mode, chain, i, tok, want[i])
				}
			}
		}
	}
	for i, tok := range want {
		if tok.ID != host[i].ID {
			break
		}
		if d := math.Abs(float64(tok.LogProb - host[i].LogProb)); d > 1e-2 {
			t.Errorf("token %d: %v, on the CPU %v", i, tok.LogProb, host[i].LogProb)
		}
	}
}
