package e2e_test

import (
	"os"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// TestGPUCache opens models without a cache of kernels, with an empty one and with a filled one, in
// every mode. The driver's own loader, its linker and the cache must give the same bits. The float16
// model's prefill has kernels for exactly one compute capability.
func TestGPUCache(t *testing.T) {
	onGPU(t)
	for _, path := range []string{"testdata/gopher", "testdata/gopher-q8_0.gguf"} {
		for _, mode := range gpuModes {
			dir := t.TempDir()
			var logits []float32
			var tokens []int32
			var kept []string // the files after the first opening
			for i, o := range []pianola.CUDAOptions{{NoCache: true}, {CacheDir: dir}, {CacheDir: dir}} {
				m, err := pianola.Open(t.Context(), testmodels.Path(t, path), pianola.Options{Device: "cuda", Mode: mode, CUDA: o})
				if err != nil {
					t.Fatal(err)
				}
				ids := make([]int32, 200)
				for i := range ids {
					ids[i] = int32(i*37%1000 + 3)
				}
				l, got := greedy(t, m, 16, ids, 64)
				if i == 0 {
					logits, tokens = l, got
				}
				if !slices.Equal(l, logits) || !slices.Equal(got, tokens) {
					t.Errorf("%s, %s, opening %d: other logits or tokens than without a cache", path, mode, i)
				}
				t.Logf("%s, %s, opening %d: %+v", path, mode, i, m.LoadTimes())
				if err := m.Close(); err != nil {
					t.Error(err)
				}
				files, err := os.ReadDir(dir)
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, f := range files {
					st, err := f.Info()
					if err != nil {
						t.Fatal(err)
					}
					names = append(names, f.Name()+st.ModTime().String())
				}
				switch {
				case i == 0 && len(names) > 0, i == 1 && len(names) < 5, i == 2 && !slices.Equal(names, kept):
					t.Errorf("%s, %s, opening %d: files %v", path, mode, i, names)
				}
				kept = names
			}
		}
	}
}
