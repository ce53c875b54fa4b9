//go:build softmetal

package e2e_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/metal/soft"
)

// TestMetalModel runs a model of TestGPUModels, which a Mac runs, on the software Metal. The other
// models, modes and the goldens would take long.
func TestMetalModel(t *testing.T) {
	if err := soft.Start("."); err != nil {
		t.Fatal(err)
	}
	gpu, modes := anyGPU(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	gpuModel{"testdata/tiny/llama", "", 0}.test(t, gpu, modes[1:], 6)
	if err := soft.Violation(); err != nil {
		t.Error(err)
	}
}

// TestMetalParallel generates in several sessions of a model with Options.Parallel at once, in both modes. Each
// gets the tokens that a model for batching gives.
func TestMetalParallel(t *testing.T) {
	if err := soft.Start("."); err != nil {
		t.Fatal(err)
	}
	gpu, modes := anyGPU(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	table := pianola.TableOptions{Context: 64, Batching: true, LogProbs: true}
	alone := open(t, "testdata/tiny/llama", pianola.Options{Device: gpu, Mode: modes[0], Table: table})
	prompts := [][]int32{{5, 6, 7}, {5, 6, 7, 8}, make([]int32, 40)}
	for i := range prompts[2] {
		prompts[2][i] = int32(i + 3)
	}
	o := make([]pianola.GenerateOptions, len(prompts))
	want := make([][]string, len(prompts))
	for i, ids := range prompts {
		o[i].MaxTokens = 4 + i
		if i == 1 {
			o[i].Sampling = pianola.Sampling{Temperature: 0.9, Seed: 5, LogProbs: 1}
		}
		want[i] = parallelTokens(t, t.Context(), alone, ids, o[i], -1, 0)
	}
	for _, mode := range modes {
		m := open(t, "testdata/tiny/llama", pianola.Options{Device: gpu, Mode: mode, Parallel: 3, Table: table})
		var all sync.WaitGroup
		for i, ids := range prompts {
			all.Go(func() {
				if got := parallelTokens(t, t.Context(), m, ids, o[i], -1, 0); !slices.Equal(got, want[i]) {
					t.Errorf("mode %s, prompt %d: %v, want %v", mode, i, got, want[i])
				}
			})
		}
		all.Wait()
		if l := m.Load(); l.Running+l.Waiting+l.UsedPages > 0 {
			t.Errorf("mode %s: %+v", mode, l)
		}
	}
	if err := soft.Violation(); err != nil {
		t.Error(err)
	}
}
