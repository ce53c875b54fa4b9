package e2e_test

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/golden"
)

// TestGPULongPrompts compares the logits after prompts of several hundred tokens, in one chunk and in
// two, with those of the CPU device.
func TestGPULongPrompts(t *testing.T) {
	onGPU(t)
	for _, path := range []string{
		"testdata/tiny/llama", "testdata/tiny/qwen3", "testdata/tiny/gemma2", "testdata/tiny/mistral",
		"testdata/variants/llama_hd80", "testdata/variants/gpt_oss", "testdata/variants/qwen3_layers", "testdata/gopher",
	} {
		for _, test := range []struct {
			options pianola.TableOptions
			limit   float64
		}{{pianola.TableOptions{}, 5e-3}, {pianola.TableOptions{Exact: true}, 2e-3}} {
			host := open(t, path, pianola.Options{Device: "cpu", Table: test.options})
			ids := make([]int32, min(int(host.Table().Header.Context)-2, 700))
			for i := range ids {
				ids[i] = int32(i*37%(host.Config().Vocab-3) + 3)
			}
			want, _ := greedy(t, host, 1, ids, 1)
			ref := make([]float64, len(want))
			for i, v := range want {
				ref[i] = float64(v)
			}
			logits, _ := greedy(t, open(t, path, pianola.Options{Device: "cuda", Table: test.options}), 1, ids, 1)
			a := golden.Compare(test.limit, logits, nil, ref, nil, nil)
			if a.Fault != nil || math.IsNaN(a.Relative) {
				t.Errorf("%s, exact %t, %d tokens: %v", path, test.options.Exact, len(ids), a.Fault)
			}
			t.Logf("%s, exact %t, %d tokens: relative error %.1e", filepath.Base(path), test.options.Exact, len(ids), a.Relative)
		}
	}
}
