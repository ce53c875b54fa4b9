package e2e_test

import (
	"math"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/exhaustive"
)

// batchingPrograms are options with which a table for batching has every program.
var batchingPrograms = pianola.TableOptions{Batching: true, LogProbs: true, Draft: 4, AllLogits: true, Hidden: true}

// chosen is a generated token with its log-probabilities.
type chosen struct {
	id  int32
	log uint32 // bits of the log-probability
	top []pianola.LogProb
}

// choices returns n generated tokens.
func choices(t *testing.T, m *pianola.Model, ids []int32, n int, o pianola.GenerateOptions) (list []chosen) {
	t.Helper()
	s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
	o.MaxTokens = n
	for tok, err := range s.GenerateIDs(t.Context(), ids, o) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, chosen{tok.ID, math.Float32bits(tok.LogProb), slices.Clone(tok.Top)})
	}
	return list
}

// checkSetBack generates tokens in a table for batching, and then again from contexts that are
// prefilled up to some of these tokens. Tokens and log-probabilities must be the same, with and
// without sampling and drafts.
func checkSetBack(t *testing.T, m *pianola.Model) {
	t.Helper()
	const n = 60
	ids := readGolden(t, "testdata/gopher/golden.json").Cases[0].PromptIDs
	for i, o := range []pianola.GenerateOptions{
		{}, {Speculate: true}, {Sampling: pianola.Sampling{Temperature: 1, Seed: 7, LogProbs: 3}},
		{Sampling: pianola.Sampling{Temperature: 0.7, TopK: 20, RepeatPenalty: 1.3, PresencePenalty: 0.2, Seed: 8}},
	} {
		want := choices(t, m, ids, n, o)
		if o.Speculate {
			o.Speculate = false // the contexts below are decoded without drafts
		}
		for _, at := range exhaustive.Pick([]int{1, 2, 9, 33, 59}, []int{2, 33}) {
			prompt := slices.Clone(ids)
			for _, c := range want[:at] {
				prompt = append(prompt, c.id)
			}
			got := choices(t, m, prompt, n-at, o)
			if !slices.EqualFunc(got, want[at:], func(a, b chosen) bool { return a.id == b.id && a.log == b.log && slices.Equal(a.top, b.top) }) {
				t.Errorf("generation %d: after a prompt with the first %d tokens the others differ", i, at)
			}
		}
	}
}

// TestBatchingSetBack generates the rest of a text from contexts that are prefilled again.
func TestBatchingSetBack(t *testing.T) {
	checkSetBack(t, open(t, "testdata/gopher-q8_0.gguf", pianola.Options{Device: "cpu", Table: batchingPrograms}))
}
