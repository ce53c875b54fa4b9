package pianola_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/pianola-engine/pianola"
)

// A loop over token ids that makes one submission per call.
func ExampleSession_Prompt() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{ChainTime: pianola.DefaultChainTime})
	if err != nil {
		log.Fatal(err)
	}
	tok, err := m.Tokenizer()
	if err != nil {
		log.Fatal(err)
	}
	ids, err := tok.Encode("func main() {", pianola.EncodeOptions{AddSpecial: true})
	if err != nil {
		log.Fatal(err)
	}
	next, stopped, err := s.Prompt(ctx, ids)
	if err != nil {
		log.Fatal(err)
	}
	logits := make([]float32, m.Config().Vocab)
	if err := s.NextLogits(logits); err != nil {
		log.Fatal(err)
	}
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	fmt.Println("the largest logit is chosen:", int(next) == best, stopped)
	if err := s.SetNext(int32(best)); err != nil { // or another token
		log.Fatal(err)
	}
	if _, _, err := s.Chain(ctx, 4); err != nil {
		log.Fatal(err)
	}
	fmt.Println("bound of a submission:", s.ChainTime())
	if err := s.Rewind(len(ids)); err != nil {
		log.Fatal(err)
	}
	fmt.Println("rewound to the prompt:", s.Len() == len(ids))

	if err := s.SetSampling(pianola.DefaultSampling()); err != nil {
		log.Fatal(err)
	}
	if _, _, err := s.Chain(ctx, 4); err != nil {
		log.Fatal(err)
	}
	var total pianola.Counters = s.Counters()
	fmt.Println("prefilled:", total.Prefilled >= len(ids))
	fmt.Println(s.Reset(), s.Len())
	// Output:
	// the largest logit is chosen: true false
	// bound of a submission: 50ms
	// rewound to the prompt: true
	// prefilled: true
	// <nil> 0
}

// The time of each command, and the host's overhead.
func ExampleSession_Profile() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	times := map[string][]time.Duration{}
	for _, p := range m.Table().Programs {
		times[p.Name] = make([]time.Duration, p.Count)
	}
	if err := s.ProfilePrompt(ctx, []int32{5, 6, 7}, times["prefill"], times["head"]); err != nil {
		log.Fatal(err)
	}
	if err := s.Profile(ctx, times["decode"]); err != nil {
		log.Fatal(err)
	}
	overhead, err := s.Dry(1)
	if err != nil {
		log.Fatal(err)
	}
	sum := time.Duration(0)
	for _, t := range times["decode"] {
		sum += t
	}
	fmt.Println(sum > 0, overhead > 0)
	// Output: true true
}

// The logits and the hidden state after each token of a text.
func ExampleSession_Logits() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{
		Device: pianola.DeviceCPU, Table: pianola.TableOptions{AllLogits: true, Hidden: true, Context: 64},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	ids := []int32{5, 6, 7}
	var last pianola.LogitsRow
	for row, err := range s.Logits(ctx, ids, 0) {
		if err != nil {
			log.Fatal(err)
		}
		last = row
	}
	fmt.Println(last.Position, last.Token, len(last.Logits) == m.Config().Vocab)
	var state pianola.HiddenRow
	for row, err := range s.Hidden(ctx, ids, 2) {
		if err != nil {
			log.Fatal(err)
		}
		state = row
	}
	fmt.Println(state.Position, state.Token, len(state.State))
	// Output:
	// 2 7 true
	// 2 7 256
}

// Sampling with log-probabilities.
func ExampleSampling() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{
		Device: pianola.DeviceCPU, Table: pianola.TableOptions{LogProbs: true, Context: 64},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	o := pianola.Sampling{
		Temperature: 0.8, TopK: 40, TopP: 0.95, Seed: 42,
		MinP: 0.05, PresencePenalty: 0.1, FrequencyPenalty: 0.1,
		RepeatPenalty: 1.1, RepeatLastN: pianola.DefaultRepeatLastN,
		LogitBias: map[int32]float64{7: -1}, // at most pianola.MaxLogitBias tokens
		LogProbs:  min(2, pianola.MaxLogProbs),
	}
	fmt.Println("greedy:", o.Greedy(), len(o.LogitBias) <= pianola.MaxLogitBias)
	var tok pianola.Token
	for tok, err = range s.Generate(ctx, "func main() {", pianola.GenerateOptions{Sampling: o, MaxTokens: 1}) {
		if err != nil {
			log.Fatal(err)
		}
	}
	var likeliest pianola.LogProb = tok.Top[0]
	fmt.Println(len(tok.Top), likeliest.LogProb >= tok.LogProb)
	// Output:
	// greedy: false true
	// 2 true
}

// A session that continues when its context is full.
func ExampleRollover() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{
		Device: pianola.DeviceCPU, Table: pianola.TableOptions{Context: 32},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true, Rollover: pianola.Rollover{Sinks: 4, Window: 12}})
	if err != nil {
		log.Fatal(err)
	}
	for _, err := range s.Generate(ctx, "func main() {", pianola.GenerateOptions{MaxTokens: 64}) {
		if err != nil {
			log.Fatal(err)
		}
	}
	var st pianola.GenerateStats = s.Stats()
	fmt.Println(st.Tokens, "tokens in a context of", s.Context())
	// Output: 64 tokens in a context of 32
}

// A context that is kept in a file.
func ExampleModel_RestoreFile() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if _, _, err := s.Prompt(ctx, []int32{5, 6, 7}); err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pianola")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "context")
	if err := s.SnapshotFile(path); err != nil {
		log.Fatal(err)
	}
	r, err := m.RestoreFile(path, pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Len())
	// Output: 3
}
