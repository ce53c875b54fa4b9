package e2e_test

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pianola-engine/pianola"
)

// generated generates tokens after ids and returns them with the statistics.
func generated(t *testing.T, m *pianola.Model, ids []int32, o pianola.GenerateOptions) ([]int32, pianola.GenerateStats) {
	t.Helper()
	s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
	var out []int32
	for tok, err := range s.GenerateIDs(t.Context(), ids, o) {
		if err != nil {
			t.Error(err)
			break
		}
		out = append(out, tok.ID)
	}
	return out, s.Stats()
}

// speculated generates n tokens after ids, greedily.
func speculated(t *testing.T, m *pianola.Model, ids []int32, n int, speculate bool) ([]int32, pianola.GenerateStats) {
	t.Helper()
	return generated(t, m, ids, pianola.GenerateOptions{MaxTokens: n, Speculate: speculate})
}

// testSpeculation compares speculative with plain decoding and requires some accepted drafts.
func testSpeculation(t *testing.T, m *pianola.Model, n int) {
	t.Helper()
	accepted := 0
	for _, c := range readGolden(t, "testdata/gopher/golden.json").Cases {
		want, plain := speculated(t, m, c.PromptIDs, n, false)
		got, st := speculated(t, m, c.PromptIDs, n, true)
		if !slices.Equal(got, want) {
			t.Errorf("prompt of %d tokens: with speculation %v, without %v", len(c.PromptIDs), got, want)
		}
		if st.Accepted > st.Drafted || plain.Drafted != 0 {
			t.Errorf("accepted %d of %d drafted tokens; without speculation %d were drafted", st.Accepted, st.Drafted, plain.Drafted)
		}
		accepted += st.Accepted
	}
	if accepted == 0 {
		t.Error("no draft was accepted")
	}
}

// TestSpeculation uses gopher, whose generated text repeats itself after a while.
func TestSpeculation(t *testing.T) {
	m := open(t, gopher, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Draft: 3}})
	testSpeculation(t, m, 200)

	s := newSession(t, m, pianola.SessionOptions{})
	for _, err := range s.Generate(t.Context(), "func ", pianola.GenerateOptions{Speculate: true, Sampling: pianola.DefaultSampling()}) {
		if !errors.Is(err, pianola.ErrSpeculateSampled) {
			t.Errorf("sampled: %v", err)
		}
	}
	s = newSession(t, open(t, gopher, pianola.Options{Device: "cpu"}), pianola.SessionOptions{})
	for _, err := range s.Generate(t.Context(), "func ", pianola.GenerateOptions{Speculate: true}) {
		if !errors.Is(err, pianola.ErrNoVerify) {
			t.Errorf("without drafts: %v", err)
		}
	}
}

// testTogether compares generations that speculate together with the same ones alone without speculation. m is a
// model for many sequences, whose scheduler drafts where it predicts that drafts pay on this machine; a
// test of package replay requires accepted drafts.
func testTogether(t *testing.T, m *pianola.Model, n int) {
	t.Helper()
	var all sync.WaitGroup
	var accepted atomic.Int64
	for _, c := range readGolden(t, "testdata/gopher/golden.json").Cases {
		for _, sampling := range []pianola.Sampling{{}, {Temperature: 0.2, TopP: 0.9, RepeatPenalty: 1.05, Seed: 7}} {
			o := pianola.GenerateOptions{MaxTokens: n, Sampling: sampling}
			want, _ := generated(t, m, c.PromptIDs, o)
			o.Speculate = true
			all.Go(func() {
				got, st := generated(t, m, c.PromptIDs, o)
				if !slices.Equal(got, want) {
					t.Errorf("prompt of %d tokens, %+v: with speculation %v, without %v", len(c.PromptIDs), sampling, got, want)
				}
				accepted.Add(int64(st.Accepted))
			})
		}
	}
	all.Wait()
	t.Logf("%d tokens of drafts were accepted", accepted.Load())
}

// TestParallelSpeculation runs testTogether on the CPU.
func TestParallelSpeculation(t *testing.T) {
	m := open(t, gopher, pianola.Options{Device: "cpu", Parallel: 8})
	testTogether(t, m, 200)
}

// TestGPUParallelSpeculation runs testTogether on the GPU in every mode that has batches.
func TestGPUParallelSpeculation(t *testing.T) {
	onGPU(t)
	for _, mode := range gpuModes {
		t.Run(string(mode), func(t *testing.T) {
			testTogether(t, open(t, gopher, pianola.Options{Device: "cuda", Mode: mode, Parallel: 8}), 400)
		})
	}
}

// TestGPUSpeculation runs testSpeculation on the GPU in every mode.
func TestGPUSpeculation(t *testing.T) {
	onGPU(t)
	for _, mode := range gpuModes {
		for _, draft := range []int{3, 7} {
			testSpeculation(t, open(t, gopher, pianola.Options{Device: "cuda", Mode: mode, Table: pianola.TableOptions{Draft: draft}}), 400)
		}
	}
}
