package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/golden"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay/cuda"
)

var (
	gophers = flag.String("gophers", "", "a folder with additional GGUF files of gopher for the GPU tests")
	lowered = flag.Int("gpu-capability", 0, "the compute capability of an older GPU as which the GPU tests treat the NVIDIA GPU, such as 70")
	repeats = flag.Int("repeats", 3, "how often the GPU tests repeat a generation")

	firstModel = flag.String("first-model", "testdata/gopher-q8_0.gguf", "the model whose time to first token TestGPUFirstToken measures")
)

// gpuModes are the modes of the NVIDIA device.
var gpuModes = []pianola.Mode{pianola.ModeRecord, pianola.ModeResident, pianola.ModeEncode}

// anyGPU returns the GPU of this machine, an NVIDIA GPU or an Apple GPU, and its modes. It skips the
// test if there is none.
func anyGPU(t *testing.T) (pianola.Device, []pianola.Mode) {
	t.Helper()
	if _, err := cuda.FindGPU("", 0); err == nil {
		return pianola.DeviceCUDA, gpuModes
	}
	for _, s := range pianola.Devices() {
		if s.Device == pianola.DeviceMetal && s.Available {
			return s.Device, s.Modes
		}
	}
	t.Skip("no GPU to run on")
	return "", nil
}

// onGPU skips the test if there is no NVIDIA GPU.
func onGPU(t *testing.T) {
	t.Helper()
	if _, err := cuda.FindGPU("", 0); err != nil {
		t.Skipf("no GPU to run on: %v", err)
	}
}

// gpuModel is a model with its reference results and the required agreement.
type gpuModel struct {
	path, golden string
	limit        float64
}

// gpuModels returns the models of TestGPUModels.
func gpuModels(t *testing.T) (models []gpuModel) {
	t.Helper()
	add := func(path, golden string, limit float64) { models = append(models, gpuModel{path, golden, limit}) }
	for _, pattern := range []string{"testdata/tiny/*", "testdata/variants/*"} {
		dirs, err := filepath.Glob(pattern)
		if err != nil || len(dirs) == 0 {
			t.Fatal("no models", pattern, err)
		}
		for _, d := range dirs {
			g, limit := filepath.Join(d, "golden.json"), 5e-3
			if !exists(g) {
				continue // tests with an oracle have the model
			}
			switch filepath.Base(d) {
			case "qwen3_next":
				limit = 6e-3 // 5.2e-3 of a prompt of 7 tokens; TestGPUExact has it with 2e-3
			case "cohere_qknorm_deep":
				limit = 8e-3 // 2.7e-3 from the reference, but 6.2e-3 from the CPU after 64 layers
			}
			add(d, g, limit)
			if gguf := filepath.Join(d, "model.gguf"); exists(testmodels.Path(t, gguf)) {
				add(gguf, g, 5e-3)
			}
		}
	}
	const g = "testdata/gopher/golden.json"
	add("testdata/gopher", g, 5e-3)
	add("testdata/gopher-q8_0.gguf", g, 7e-2)
	if *gophers != "" {
		files, err := filepath.Glob(filepath.Join(*gophers, "*.gguf"))
		if err != nil || len(files) == 0 {
			t.Fatal("no models in", *gophers, err)
		}
		for _, f := range files {
			add(f, "", 0)
		}
	}
	return models
}

// TestGPUModels runs models on the GPU in every mode. The results must agree with the
// references and with the CPU device. All modes and chain lengths must give the same bits.
func TestGPUModels(t *testing.T) {
	gpu, modes := anyGPU(t)
	for _, md := range gpuModels(t) {
		t.Run(md.path, func(t *testing.T) { md.test(t, gpu, modes, 129) })
	}
}

// test decodes n tokens in every mode and in chains of several lengths.
func (md gpuModel) test(t *testing.T, gpu pianola.Device, modes []pianola.Mode, n int) {
	context := roomy(t, md.path)
	host := open(t, md.path, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: context}})
	ids := make([]int32, 40)
	for i := range ids {
		ids[i] = int32(i*37%(host.Config().Vocab-3) + 3)
	}
	var logits []float32
	var tokens []int32
	for _, mode := range modes {
		m, err := pianola.Open(t.Context(), testmodels.Path(t, md.path), pianola.Options{
			Device: gpu, Mode: mode, Table: pianola.TableOptions{Context: context}, CUDA: pianola.CUDAOptions{Capability: *lowered},
		})
		if err != nil {
			t.Fatal(err)
		}
		if md.golden != "" {
			for i, c := range readGolden(t, md.golden).Cases {
				l, ids := greedy(t, m, 16, c.PromptIDs, len(c.GreedyIDs))
				rel := agree(t, md.limit, l, ids, c.LastPromptLogits, c.GreedyIDs, c.Top2Gap)
				t.Logf("%s: case %d: relative error %.1e", mode, i, rel)
			}
		}
		for _, chain := range []int{1, 16, 128} {
			l, got := greedy(t, m, chain, ids, n)
			if logits == nil {
				logits, tokens = l, got
			}
			if !slices.Equal(l, logits) || !slices.Equal(got, tokens) {
				t.Errorf("mode %s, chain %d: the results differ from mode %s", mode, chain, modes[0])
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	md.likeCPU(t, gpu, host, ids, logits, tokens)
}

// likeCPU compares the results of a prompt with those of the CPU device. Of models with experts it tries
// another prompt if they differ: where the scores of two experts differ by less than the rounding of
// activations to float16, the devices may choose different ones.
func (md gpuModel) likeCPU(t *testing.T, gpu pianola.Device, host *pianola.Model, ids []int32, logits []float32, tokens []int32) {
	t.Helper()
	limit := 5e-3 // activations of a prompt are rounded to float16 on the GPU
	if strings.HasSuffix(md.path, ".gguf") && strings.Contains(md.path, "gopher") && !strings.Contains(md.path, "f16") {
		limit = 7e-2 // and to 8 bits on the CPU
	}
	n, prompts := len(tokens), 1
	if host.Config().Experts.Count > 0 {
		prompts = 3
	}
	for i := range prompts {
		if i > 0 {
			for j := range ids {
				ids[j] = int32(j*(37+4*i)%(host.Config().Vocab-3) + 3)
			}
			m := open(t, md.path, pianola.Options{Device: gpu, Table: pianola.TableOptions{Context: roomy(t, md.path)}})
			logits, tokens = greedy(t, m, 128, ids, n)
		}
		want, wantIDs := greedy(t, host, 128, ids, n)
		ref := make([]float64, len(want))
		for j, v := range want {
			ref[j] = float64(v)
		}
		a := golden.Compare(limit, logits, nil, ref, nil, nil)
		if a.Fault == nil {
			same := 0
			for same < n && tokens[same] == wantIDs[same] {
				same++
			}
			t.Logf("prompt %d compared with the CPU: relative error %.1e, %d of %d tokens equal", i, a.Relative, same, n)
			return
		}
		if t.Logf("prompt %d compared with the CPU: %v", i, a.Fault); i == prompts-1 {
			t.Error("no prompt has the results of the CPU")
		}
	}
}

// TestGPUExact checks that prefill with Options.Exact is as precise as with two float16 terms.
func TestGPUExact(t *testing.T) {
	gpu, _ := anyGPU(t)
	for _, path := range []string{"testdata/tiny/llama", "testdata/tiny/qwen3", "testdata/gopher", "testdata/variants/qwen3_next"} {
		m := open(t, path, pianola.Options{Device: gpu, Table: pianola.TableOptions{Context: roomy(t, path), Exact: true}})
		for _, c := range readGolden(t, filepath.Join(path, "golden.json")).Cases {
			l, ids := greedy(t, m, 16, c.PromptIDs, len(c.GreedyIDs))
			agree(t, 2e-3, l, ids, c.LastPromptLogits, c.GreedyIDs, c.Top2Gap)
		}
	}
}

// TestGPURepeats checks that repeating a generation always gives the same output.
func TestGPURepeats(t *testing.T) {
	gpu, modes := anyGPU(t)
	const path, n = "testdata/gopher-q8_0.gguf", 512
	ids := readGolden(t, "testdata/gopher/golden.json").Cases[0].PromptIDs
	for _, mode := range modes {
		m := open(t, path, pianola.Options{Device: gpu, Mode: mode})
		var want []int32
		for range *repeats {
			_, got := greedy(t, m, 128, ids, n)
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Fatalf("mode %s: the output differs", mode)
			}
		}
	}
}

// TestGPUCancel checks that a chain of any length ends soon after it is cancelled.
func TestGPUCancel(t *testing.T) {
	gpu, modes := anyGPU(t)
	const path, n, after = "testdata/gopher-q8_0.gguf", 1900, 40 * time.Millisecond
	most := 25 * time.Millisecond
	if gpu == pianola.DeviceMetal {
		most = 2 * pianola.DefaultChainTime // the command buffers in flight end first
	}
	ids := readGolden(t, "testdata/gopher/golden.json").Cases[0].PromptIDs
	for _, mode := range modes {
		s := newSession(t, open(t, path, pianola.Options{Device: gpu, Mode: mode}), pianola.SessionOptions{Chain: n, IgnoreStops: true})
		for range 3 {
			if err := s.Reset(); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.Prompt(t.Context(), ids); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var at time.Time
			time.AfterFunc(after, func() {
				at = time.Now()
				cancel()
			})
			tokens, _, err := s.Chain(ctx, n)
			took := time.Since(at)
			if !errors.Is(err, context.Canceled) || len(tokens) == 0 || len(tokens) == n || took > most {
				t.Errorf("mode %s: %d tokens, %v after the cancellation, %v", mode, len(tokens), took, err)
			}
			t.Logf("mode %s: %d tokens, %v after the cancellation", mode, len(tokens), took)
		}
	}
}

// TestGPUGrowth generates across the sizes at which KV caches grow, forks a session there and
// restores it. The tokens must equal those of caches with enough room from the start. The test
// logs how long growing takes.
func TestGPUGrowth(t *testing.T) {
	gpu, modes := anyGPU(t)
	for _, kind := range []pianola.Options{{}, {Table: pianola.TableOptions{KV: "q8_0"}}, {Table: pianola.TableOptions{KV: "q8_0", KVSinks: 4, KVWindow: 300}}} {
		kind.Device = gpu
		gpuGrowth(t, kind, modes)
	}
}

func gpuGrowth(t *testing.T, kind pianola.Options, modes []pianola.Mode) {
	const path, n = "testdata/gopher-q8_0.gguf", 1200
	prompt := readGolden(t, "testdata/gopher/golden.json").Cases[0].PromptIDs
	for _, kind.Mode = range modes {
		m := open(t, path, kind)
		o := pianola.GenerateOptions{MaxTokens: n}
		want := ids(t, newSession(t, m, pianola.SessionOptions{IgnoreStops: true, Reserve: 2048}), prompt, o)
		s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true, Reserve: 1})
		if got := ids(t, s, prompt, o); !slices.Equal(got, want) {
			t.Errorf("mode %s: the output differs", kind.Mode)
		}
		f, err := s.Fork()
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := f.Snapshot(&b); err != nil {
			t.Fatal(err)
		}
		r, err := m.Restore(&b, pianola.SessionOptions{IgnoreStops: true})
		if err != nil {
			t.Fatal(err)
		}
		o.MaxTokens = 100
		a, again, restored := ids(t, s, prompt, o), ids(t, f, prompt, o), ids(t, r, prompt, o)
		if !slices.Equal(a, again) || !slices.Equal(a, restored) {
			t.Errorf("mode %s: %v, in the fork %v, restored %v", kind.Mode, a, again, restored)
		}
		if err := errors.Join(f.Close(), r.Close()); err != nil {
			t.Error(err)
		}
		for _, room := range []int{256, 512, 1024, 2048} {
			start := time.Now()
			g := newSession(t, m, pianola.SessionOptions{Reserve: room})
			t.Logf("mode %s: a session with room for %d positions: %v", kind.Mode, room, time.Since(start))
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestGPUKVKinds runs models with every kind of KV cache. The results must agree with the CPU
// device, and all modes must give the same bits.
func TestGPUKVKinds(t *testing.T) {
	gpu, modes := anyGPU(t)
	for _, path := range []string{"testdata/gopher", "testdata/tiny/qwen3", "testdata/tiny/mistral"} {
		for _, o := range []pianola.Options{{Table: pianola.TableOptions{KV: "q8_0"}}, {Table: pianola.TableOptions{KV: "q8_0", NoFuse: true}}, {Table: pianola.TableOptions{KVSinks: 4, KVWindow: 60}}, {Table: pianola.TableOptions{KV: "q8_0", KVSinks: 4, KVWindow: 60}}} {
			o.Device = "cpu"
			host := open(t, path, o)
			ids := make([]int32, 200)
			for i := range ids {
				ids[i] = int32(i*37%(host.Config().Vocab-3) + 3)
			}
			want, _ := greedy(t, host, 1, ids, 1)
			ref := make([]float64, len(want))
			for i, v := range want {
				ref[i] = float64(v)
			}
			var first []float32
			var tokens []int32
			o.Device = gpu
			for _, o.Mode = range modes {
				logits, got := greedy(t, open(t, path, o), 16, ids, 100)
				if first == nil {
					first, tokens = logits, got
					// If a value of K or V is between two integers, devices may round it
					// differently.
					a := golden.Compare(1e-2, logits, nil, ref, nil, nil)
					if t.Logf("%s, %+v: relative error %.1e", path, o, a.Relative); a.Fault != nil {
						t.Errorf("%s, %+v: compared with the CPU: %v", path, o, a.Fault)
					}
				}
				if !slices.Equal(logits, first) || !slices.Equal(got, tokens) {
					t.Errorf("%s, %+v: the results differ from mode %s", path, o, modes[0])
				}
			}
		}
	}
}

// TestGPUFirstToken checks that the first request's time to first token is at most 1.1 times that of the tenth and
// 0.1 ms, because everything that takes time once is done when a model is opened. Before the tenth, too, the GPU is idle
// for as long as opening the first session takes: after a pause any request takes longer. It compares medians over
// several times that the model is opened.
func TestGPUFirstToken(t *testing.T) {
	onGPU(t)
	const opens, requests = 9, 10
	ids := readGolden(t, "testdata/gopher/golden.json").Cases[0].PromptIDs
	for _, mode := range gpuModes {
		var first, ninth, last []time.Duration
		for range opens {
			m := open(t, *firstModel, pianola.Options{Device: "cuda", Mode: mode})
			var took, pause time.Duration
			for i := range requests {
				from := time.Now()
				s, err := m.NewSession(pianola.SessionOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					pause = time.Since(from)
				}
				if i == requests-1 {
					ninth = append(ninth, took)
					time.Sleep(pause)
				}
				from = time.Now()
				if _, _, err := s.Prompt(t.Context(), ids); err != nil {
					t.Fatal(err)
				}
				took = time.Since(from)
				if i == 0 {
					first = append(first, took)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			last = append(last, took)
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
		}
		a, b, c := median(first), median(last), median(ninth)
		t.Logf("mode %s: first %v, tenth %v after a pause, ratio %.2f; ninth %v without", mode, a, b, float64(a)/float64(b), c)
		if a > b*11/10+100*time.Microsecond {
			t.Errorf("mode %s: the first request takes %v, the tenth %v", mode, a, b)
		}
	}
}

// median returns the middle of some times, which it sorts.
func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// TestGPUMissingFile checks that opening a missing file reports this error with a GPU too.
func TestGPUMissingFile(t *testing.T) {
	onGPU(t)
	if _, err := pianola.Open(t.Context(), "testdata/none.gguf", pianola.Options{Device: "cuda"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
