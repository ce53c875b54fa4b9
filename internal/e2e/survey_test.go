package e2e_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/synth"
)

// wideModel writes a small model with a large vocabulary, and returns its path.
func wideModel(t testing.TB) string {
	t.Helper()
	shape, _ := synth.FindShape("qwen3-0.6b")
	shape.Layers, shape.Hidden, shape.FFN, shape.Heads, shape.KVHeads, shape.HeadDim = 1, 64, 64, 2, 1, 64
	path := filepath.Join(t.TempDir(), "wide.gguf")
	if err := synth.WriteFile(context.Background(), path, shape, "q8_0", 1, nil); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSurvey samples with top-p from a large vocabulary, whose keys a team of threads surveys together. One
// thread filters without a survey, and must choose the same tokens.
func TestSurvey(t *testing.T) {
	path := wideModel(t)
	var want [][]int32
	for _, threads := range []int{1, 2} {
		m := open(t, path, pianola.Options{Device: "cpu", Threads: threads, Table: pianola.TableOptions{Context: 128}})
		for i, p := range []pianola.Sampling{{Temperature: 1, TopP: 0.95}, {Temperature: 0.2, TopP: 0.5}, {Temperature: 3, TopP: 0.999, MinP: 1e-6}, {Temperature: 1, TopK: 5000, TopP: 0.9}} {
			p.Seed = uint64(i)
			s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
			got := ids(t, s, somePrompt, pianola.GenerateOptions{MaxTokens: 20, Sampling: p})
			if threads == 1 {
				want = append(want, got)
			} else if !slices.Equal(got, want[i]) {
				t.Errorf("%+v: %d threads choose %d, one chooses %d", p, threads, got, want[i])
			}
		}
	}
}
