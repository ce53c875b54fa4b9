package replay_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/replay"
)

// samplings are settings of all kinds.
var samplings = []replay.Sampling{
	replay.DefaultSampling(),
	{Temperature: 1},
	{Temperature: 1.2, TopP: 0.9},
	{Temperature: 0.7, TopK: 20, RepeatPenalty: 1.3, PresencePenalty: 0.2, FrequencyPenalty: 0.1, LogitBias: map[int32]float64{5: 2, 9: -3}},
	{RepeatPenalty: 1.5, RepeatLastN: -1},
	{Temperature: 3, MinP: 0.02},
}

// sampled returns n tokens after a prompt.
func sampled(t *testing.T, m *replay.Model, chain, n int, o replay.Sampling) []int32 {
	t.Helper()
	s := session(t, m, replay.SessionOptions{Chain: chain})
	if err := s.SetSampling(o); err != nil {
		t.Fatal(err)
	}
	return generate(t, s, prompt(9), n)
}

// TestSampledChains checks that each of 50 seeds gives the same tokens for chains of 1 and
// 128 tokens and for all teams and chunk sizes, and that other seeds give other tokens.
func TestSampledChains(t *testing.T) {
	m := loadedOnCPU(t, "qwen3", 64, compiler.Options{})
	small := loadedOnCPU(t, "qwen3", 4, compiler.Options{})
	texts := map[string]bool{}
	for seed := range exhaustive.Pick(50, len(samplings)) {
		o := samplings[seed%len(samplings)]
		o.Seed = uint64(seed)
		want := sampled(t, m, 128, 129, o)
		if got := sampled(t, m, 1, 129, o); !slices.Equal(got, want) {
			t.Errorf("seed %d: chains of 1 give other tokens", seed)
		}
		if got := sampled(t, small, 7, 129, o); !slices.Equal(got, want) {
			t.Errorf("seed %d: chunks of 4 give other tokens", seed)
		}
		if o.Temperature > 0 {
			key := fmt.Sprint(want)
			if texts[key] {
				t.Errorf("seed %d gives the tokens of another", seed)
			}
			texts[key] = true
		}
	}
}

// TestSetSampling checks that invalid settings are refused and leave the session unchanged.
func TestSetSampling(t *testing.T) {
	m := loadedOnCPU(t, "llama", 64, compiler.Options{})
	s := session(t, m, replay.SessionOptions{})
	nan, inf := math.NaN(), math.Inf(1)
	for _, bad := range []replay.Sampling{
		{Temperature: -1}, {Temperature: nan}, {Temperature: inf}, {Temperature: 1, TopP: 2}, {Temperature: 1, TopP: nan}, {Temperature: 1, MinP: -1}, {Temperature: 1, TopK: -1},
		{RepeatPenalty: -2}, {PresencePenalty: inf}, {FrequencyPenalty: nan}, {RepeatPenalty: 2, RepeatLastN: -2},
		{LogitBias: map[int32]float64{1: nan}}, {LogitBias: map[int32]float64{1: inf}}, {LogitBias: map[int32]float64{-1: 1}}, {LogitBias: map[int32]float64{512: 1}},
		{LogitBias: func() map[int32]float64 {
			b := map[int32]float64{}
			for i := range int32(sampler.MaxBias + 1) {
				b[i] = 1
			}
			return b
		}()},
	} {
		var want *replay.SamplingError
		if err := s.SetSampling(bad); !errors.As(err, &want) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	greedy := generate(t, session(t, m, replay.SessionOptions{}), prompt(9), 20)
	if got := generate(t, s, prompt(9), 20); !slices.Equal(got, greedy) {
		t.Errorf("after refusals: %v, want %v", got, greedy)
	}
	for _, o := range []replay.Sampling{{Temperature: 1, TopK: 1}, {Temperature: 1e-3}, {Temperature: 1, TopP: 1e-9}, {Temperature: 1, MinP: 1}, {RepeatPenalty: 1.0000001}, {Temperature: 1e-9}} {
		if got := sampled(t, m, 16, 20, o); !slices.Equal(got, greedy) {
			t.Errorf("%+v is not greedy: %v, want %v", o, got, greedy)
		}
	}
	// A banned token is never chosen, and a token with a large bias always.
	ban := map[int32]float64{greedy[0]: math.Inf(-1)}
	if got := sampled(t, m, 16, 20, replay.Sampling{LogitBias: ban}); slices.Contains(got, greedy[0]) {
		t.Errorf("token %d is banned: %v", greedy[0], got)
	}
	if got := sampled(t, m, 16, 5, replay.Sampling{Temperature: 1, LogitBias: map[int32]float64{77: 1e5}}); !slices.Equal(got, []int32{77, 77, 77, 77, 77}) {
		t.Errorf("a bias of 1e5 for 77: %v", got)
	}
}

// TestSamplerOrders checks that settings without a stage in the table's order, and tables
// without a sampler, are refused.
func TestSamplerOrders(t *testing.T) {
	var refused *replay.SamplingError
	s := session(t, loadedOnCPU(t, "llama", 64, compiler.Options{Sampler: "edgerunner"}), replay.SessionOptions{})
	if err := s.SetSampling(replay.Sampling{Temperature: 1, MinP: 0.1}); !errors.As(err, &refused) || refused.Field != "min-p" {
		t.Errorf("min-p without a stage: %v", err)
	}
	if err := s.SetSampling(replay.Sampling{Temperature: 0.5, TopK: 3, TopP: 0.5}); err != nil {
		t.Error(err)
	}
	none := session(t, loadedOnCPU(t, "llama", 64, compiler.Options{Sampler: "none"}), replay.SessionOptions{})
	if err := none.SetSampling(replay.DefaultSampling()); !errors.Is(err, replay.ErrNoSampler) {
		t.Errorf("without a sampler: %v", err)
	}
	if err := none.SetSampling(replay.Sampling{}); err != nil {
		t.Errorf("greedy needs no sampler: %v", err)
	}
	generate(t, none, prompt(5), 3)
}

// TestSampledLogits checks that Logits returns the model's logits without penalties, and that a
// session continues correctly after a rewind.
func TestSampledLogits(t *testing.T) {
	m := loadedOnCPU(t, "qwen2", 64, compiler.Options{})
	logits := func(o replay.Sampling) []float32 {
		s := session(t, m, replay.SessionOptions{})
		if err := s.SetSampling(o); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Prompt(context.Background(), prompt(12)); err != nil {
			t.Fatal(err)
		}
		x := make([]float32, 512)
		if err := s.Logits(x); err != nil {
			t.Fatal(err)
		}
		return x
	}
	if !slices.Equal(logits(replay.Sampling{}), logits(samplings[3])) {
		t.Error("penalties have changed the logits")
	}
	s := session(t, m, replay.SessionOptions{Chain: 20})
	if err := s.SetSampling(samplings[1]); err != nil {
		t.Fatal(err)
	}
	want := generate(t, s, prompt(9), 41)
	if err := s.Rewind(9 + 10); err != nil {
		t.Fatal(err)
	}
	got, _, err := s.Chain(context.Background(), 20)
	if err != nil || !slices.Equal(got, want[11:31]) {
		t.Errorf("after a rewind: %v, %v, want %v", got, err, want[11:31])
	}
}
