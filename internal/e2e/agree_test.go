package e2e_test

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/golden"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

func readGolden(t *testing.T, path string) *golden.Reference {
	t.Helper()
	g, err := golden.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// In a sample, tests use one thread of the CPU device, and two where threads matter. go test runs
// several packages at once, and threads that wait for a thread without a processor waste time.
var (
	someThreads  = min(2, runtime.GOMAXPROCS(0))
	otherThreads = exhaustive.Pick(1, someThreads) // differs from the default of threaded
	teamThreads  = exhaustive.Pick(0, someThreads) // for concurrent sessions; 0 selects all
)

// onlyCPU reports whether DeviceAuto selects the CPU device.
var onlyCPU = sync.OnceValue(func() bool {
	return !slices.ContainsFunc(pianola.Devices(), func(s pianola.DeviceStatus) bool { return s.Available && s.Device != pianola.DeviceCPU })
})

// threaded returns the options with the number of threads that tests use by default, and on an NVIDIA GPU with
// the compute capability of the flag -gpu-capability.
func threaded(o pianola.Options) pianola.Options {
	onCPU := o.Device == pianola.DeviceCPU || o.Device == "" && onlyCPU()
	if !exhaustive.On && onCPU && !o.RealTime {
		o.Threads = cmp.Or(o.Threads, 1)
	}
	if o.Device == pianola.DeviceCUDA {
		o.CUDA.Capability = *lowered
	}
	return o
}

func open(t testing.TB, path string, o pianola.Options) *pianola.Model {
	t.Helper()
	m, err := pianola.Open(context.Background(), testmodels.Path(t, path), threaded(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// greedy returns the logits after a prompt and n greedily decoded tokens. chain is the chain
// length.
func greedy(t testing.TB, m *pianola.Model, chain int, ids []int32, n int) ([]float32, []int32) {
	t.Helper()
	return greedyInPieces(t, m, chain, len(ids), ids, n)
}

// greedyInPieces is greedy with a prompt that comes in pieces of a size.
func greedyInPieces(t testing.TB, m *pianola.Model, chain, size int, ids []int32, n int) ([]float32, []int32) {
	t.Helper()
	s, err := m.NewSession(pianola.SessionOptions{Chain: chain, IgnoreStops: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := context.Background()
	next := promptInPieces(t, s, ids, size)
	logits := make([]float32, m.Config().Vocab)
	if err := s.NextLogits(logits); err != nil {
		t.Fatal(err)
	}
	out := []int32{next}
	for len(out) < n {
		tokens, _, err := s.Chain(ctx, n-len(out))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, tokens...)
	}
	return logits, out
}

// agree compares a result with the reference by golden.Compare and returns the relative error
// of the logits.
func agree(t *testing.T, limit float64, logits []float32, ids []int32, ref []float64, refIDs []int32, gap []float64) float64 {
	t.Helper()
	a := golden.Compare(limit, logits, ids[:len(refIDs)], ref, refIDs, gap)
	if a.Fault != nil {
		t.Error(a.Fault)
	}
	return a.Relative
}

func TestGoldens(t *testing.T) {
	type model struct {
		path, golden string
		limit        float64
	}
	var models []model
	dirs, err := filepath.Glob("testdata/tiny/*")
	if err != nil || len(dirs) == 0 {
		t.Fatal("no tiny models", err)
	}
	for _, d := range dirs {
		g := filepath.Join(d, "golden.json")
		models = append(models, model{d, g, 2e-3})
		if gguf := filepath.Join(d, "model.gguf"); exists(testmodels.Path(t, gguf)) {
			models = append(models, model{gguf, g, 2e-3})
		}
	}
	variants, err := filepath.Glob("testdata/variants/*/golden.json")
	if err != nil || len(variants) == 0 {
		t.Fatal("no variants", err)
	}
	for _, g := range variants {
		d := filepath.Dir(g)
		models = append(models, model{d, g, variantLimit(d)})
	}
	const g = "testdata/gopher/golden.json"
	models = append(models,
		model{"testdata/gopher", g, 2e-3},
		model{"testdata/gopher-q8_0.gguf", g, 7e-2},
	)
	for _, md := range models {
		t.Run(md.path, func(t *testing.T) {
			g := readGolden(t, md.golden)
			m := open(t, md.path, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: roomy(t, md.path)}})
			for i, c := range g.Cases {
				logits, ids := greedy(t, m, 16, c.PromptIDs, len(c.GreedyIDs))
				rel := agree(t, md.limit, logits, ids, c.LastPromptLogits, c.GreedyIDs, c.Top2Gap)
				same := 0
				for same < len(ids) && ids[same] == c.GreedyIDs[same] {
					same++
				}
				t.Logf("case %d: relative error %.1e, %d of %d tokens equal", i, rel, same, len(ids))
			}
		})
	}
}

// roomy returns the context length for opening a model: 0 for the default, or a longer one if
// a prompt and its tokens in golden.json need it.
func roomy(t testing.TB, path string) int {
	t.Helper()
	h, err := pianola.OpenHeader(testmodels.Path(t, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	const need = 40 + 129
	if c := h.Config(); c.DefaultContext(c.Context) < need {
		return min(2*need, c.Context)
	}
	return 0
}

// variantLimit returns the largest relative error of a variant's logits. The scores of
// granite_bias are so large that rounding K and V to float16 alone causes an error of 2.06e-3.
func variantLimit(dir string) float64 {
	if filepath.Base(dir) == "granite_bias" {
		return 2.5e-3
	}
	return 2e-3
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestSameTokens checks that chain length, fusion, threads and chunk size do not change any
// bit of the results.
func TestSameTokens(t *testing.T) {
	for _, path := range []string{"testdata/tiny/qwen3", "testdata/tiny/mistral", "testdata/tiny/qwen2/model.gguf", "testdata/gopher-q8_0.gguf", "testdata/variants/gemma2_caps", "testdata/tiny/gemma3_text/model.gguf"} {
		t.Run(path, func(t *testing.T) {
			ids := make([]int32, 40)
			for i := range ids {
				ids[i] = int32(i*37%500 + 3)
			}
			const n = 130
			wantLogits, want := greedy(t, open(t, path, pianola.Options{Device: "cpu"}), 1, ids, n)
			for _, o := range []struct {
				pianola.Options
				chains []int
			}{
				{pianola.Options{Device: "cpu"}, []int{2, 7, 64, 128, 0}},
				{pianola.Options{Device: "cpu", Table: pianola.TableOptions{NoFuse: true}}, []int{64}},
				{pianola.Options{Device: "cpu", Threads: otherThreads}, []int{64}},
				{pianola.Options{Device: "cpu", Table: pianola.TableOptions{NoFuse: true}, Threads: otherThreads}, []int{7}},
			} {
				m := open(t, path, o.Options)
				for _, chain := range o.chains {
					logits, got := greedy(t, m, chain, ids, n)
					if !slices.Equal(logits, wantLogits) {
						t.Errorf("%+v, chain %d: the logits differ", o, chain)
					}
					if !slices.Equal(got, want) {
						t.Errorf("%+v, chain %d: the tokens differ", o, chain)
					}
				}
			}
		})
	}
}
