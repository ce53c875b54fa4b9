package pianola_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
)

// expertModels are the models with sparse layers, and what their goldens are.
func expertModels(t *testing.T) (models [][2]string) {
	for _, dir := range []string{"testdata/variants/qwen3_moe", "testdata/variants/gpt_oss", "testdata/variants/mixtral", "testdata/variants/mixtral_window", "testdata/variants/qwen3_moe_sparse", os.Getenv("PIANOLA_EXPERTS")} {
		if dir == "" {
			continue
		}
		golden := filepath.Join(dir, "golden.json")
		models = append(models, [2]string{dir, golden})
		if gguf := filepath.Join(dir, "model.gguf"); exists(gguf) {
			models = append(models, [2]string{gguf, golden})
		}
	}
	return models
}

// TestExperts compares chains of 1 and of 64 tokens with the references; both
// have the same tokens, fused or not, by one thread or more.
func TestExperts(t *testing.T) {
	for _, md := range expertModels(t) {
		t.Run(md[0], func(t *testing.T) {
			g := readGolden(t, md[1])
			for i, c := range g.Cases {
				m := open(t, md[0], pianola.Options{Device: "cpu", Context: 128})
				logits, ids := greedy(t, m, 64, c.PromptIDs, len(c.GreedyIDs))
				rel := agree(t, 2e-3, logits, ids, c.LastPromptLogits, c.GreedyIDs, c.Top2Gap)
				same := 0
				for same < len(ids) && ids[same] == c.GreedyIDs[same] {
					same++
				}
				t.Logf("case %d: relative error %.1e, %d of %d tokens equal", i, rel, same, len(ids))
				if i != len(g.Cases)-1 {
					continue
				}
				for _, o := range []pianola.Options{{Device: "cpu", Context: 128}, {Device: "cpu", Context: 128, NoFuse: true, Threads: 1}} {
					other, got := greedy(t, open(t, md[0], o), 1, c.PromptIDs, len(ids))
					if !slices.Equal(other, logits) || !slices.Equal(got, ids) {
						t.Errorf("%+v: other logits or tokens", o)
					}
				}
			}
		})
	}
}
