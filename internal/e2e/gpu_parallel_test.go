package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/synth"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// parallelOnGPU generates n times at once on a model with Options.Parallel, with few pages, and compares the
// tokens and log-probabilities with those of a model for batching on the same GPU. The memory must not grow.
func parallelOnGPU(t *testing.T, path string, mode pianola.Mode, o pianola.TableOptions, n int) {
	t.Helper()
	o.Context, o.Batching, o.LogProbs, o.Chip = 256, true, true, tunedChip(t)
	alone := open(t, path, pianola.Options{Device: "cuda", Mode: mode, Table: o})
	o.Pages = 70
	m := open(t, path, pianola.Options{Device: "cuda", Mode: mode, Parallel: 40, Queue: n, Table: o})
	before := m.Memory()
	checkParallel(t, alone, m, n, briefPrompt)
	if after := m.Memory(); after != before {
		t.Errorf("mode %s, %+v: memory %+v, before %+v", mode, o, after, before)
	}
}

// TestGPUParallel generates in many sessions of models with Options.Parallel: in every mode, for families with
// windows, soft caps, experts and learned sink logits, for every kind of KV cache, and for types of weights.
// All bits must be those of a model for batching.
func TestGPUParallel(t *testing.T) {
	onGPU(t)
	for _, mode := range gpuModes {
		for _, o := range []pianola.TableOptions{{}, {KV: pianola.KVQ8}, {KVSinks: 4, KVWindow: 60}, {NoFuse: true}} {
			t.Run(fmt.Sprintf("%s %+v", mode, o), func(t *testing.T) { parallelOnGPU(t, "testdata/gopher-q8_0.gguf", mode, o, 100) })
		}
	}
	for i, path := range []string{
		"testdata/tiny/llama", "testdata/tiny/qwen3", "testdata/tiny/mistral", "testdata/tiny/gemma2", "testdata/tiny/gemma3_text",
		"testdata/variants/gpt_oss", "testdata/variants/qwen3_moe", "testdata/variants/olmo2",
		"testdata/variants/qwen3_5", "testdata/variants/lfm2", "testdata/variants/granitemoehybrid", "testdata/variants/falcon_h1", "testdata/variants/nemotron_h",
		"testdata/variants/gemma3n", "testdata/variants/cohere_qknorm",
	} {
		t.Run(path, func(t *testing.T) {
			parallelOnGPU(t, path, gpuModes[i%2], pianola.TableOptions{}, 60)
		})
	}
	for i, quant := range []string{"F16", "BF16", "Q8_0", "Q4_0", "Q4_K_M", "MXFP4"} {
		t.Run(quant, func(t *testing.T) {
			path := synthetic(t, "gopher", quant, func(s *synth.Shape) { s.Layers, s.Hidden, s.FFN, s.HeadDim = 2, 1024, 2304, 128 })
			parallelOnGPU(t, path, gpuModes[i%2], pianola.TableOptions{}, 60)
		})
	}
}

// TestGPUParallelDeep generates behind prompts of up to 1,900 tokens, whose positions are divided into segments, in
// sessions of a model with Options.Parallel. All bits must be those of a model for batching.
func TestGPUParallelDeep(t *testing.T) {
	onGPU(t)
	path := synthetic(t, "gopher", "F16", func(s *synth.Shape) { s.Layers, s.Hidden, s.FFN, s.HeadDim = 2, 1024, 2304, 128 })
	for _, kv := range []pianola.KVType{pianola.KVF16, pianola.KVQ8} {
		table := pianola.TableOptions{Context: 2048, Batching: true, LogProbs: true, KV: kv, Chip: tunedChip(t)}
		alone := open(t, path, pianola.Options{Device: "cuda", Table: table})
		table.Pages = 100
		checkParallel(t, alone, open(t, path, pianola.Options{Device: "cuda", Parallel: 6, Table: table}), 30, 1900)
	}
}

// TestGPUParallelRefused opens models with the forms of attention that a GPU does not support for many
// sequences. Open must name them.
func TestGPUParallelRefused(t *testing.T) {
	onGPU(t)
	for _, c := range []struct {
		path, want string
		table      pianola.TableOptions
	}{
		{"testdata/gopher-q8_0.gguf", "exact attention of many sequences", pianola.TableOptions{Exact: true}},
		{"testdata/variants/llama_hd80", "heads of 80 elements", pianola.TableOptions{}},
	} {
		m, err := pianola.Open(t.Context(), testmodels.Path(t, c.path), pianola.Options{Device: "cuda", Parallel: 2, Table: c.table})
		if err == nil {
			m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.path, err, c.want)
		}
	}
}

// TestGPUParallelInvariance makes 2,000 requests of a model with Options.Parallel.
func TestGPUParallelInvariance(t *testing.T) {
	onGPU(t)
	parallelOnGPU(t, "testdata/gopher-q8_0.gguf", pianola.ModeRecord, pianola.TableOptions{}, 2000)
}

// TestGPUParallelLeaks leaves generations at random.
func TestGPUParallelLeaks(t *testing.T) {
	onGPU(t)
	checkLeaks(t, open(t, "testdata/gopher-q8_0.gguf", pianola.Options{Device: "cuda", Parallel: 24, Queue: 1 << 20, Table: pianola.TableOptions{Context: 512, Pages: 60}}), 32, 60)
}
