//go:build softmetal

package pianola

import (
	"context"
	"testing"

	"github.com/pianola-engine/pianola/internal/golden"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// TestMetalExperts decodes models with experts on a Metal device simulated in software, in chains of 1
// and 64 tokens, and compares the results with references.
func TestMetalExperts(t *testing.T) {
	if err := soft.Start("."); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for _, md := range []struct {
		path, golden string
		chain        int
	}{
		{"testdata/variants/qwen3_moe/model.gguf", "testdata/variants/qwen3_moe/golden.json", 64},
		{"testdata/variants/gpt_oss", "testdata/variants/gpt_oss/golden.json", 1},
		{"testdata/variants/mixtral", "testdata/variants/mixtral/golden.json", 64},
	} {
		t.Run(md.path, func(t *testing.T) {
			g, err := golden.Read(md.golden)
			if err != nil {
				t.Fatal(err)
			}
			m, err := Open(ctx, testmodels.Path(t, md.path), Options{Device: "metal", Table: TableOptions{Context: 64}, Metal: MetalOptions{NoArchive: true}})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			c := g.Cases[1]
			s, err := m.NewSession(SessionOptions{Chain: md.chain, IgnoreStops: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			next, _, err := s.Prompt(ctx, c.PromptIDs)
			if err != nil {
				t.Fatal(err)
			}
			logits, ids := make([]float32, m.Config().Vocab), []int32{next}
			if err := s.NextLogits(logits); err != nil {
				t.Fatal(err)
			}
			for len(ids) < 8 {
				tokens, _, err := s.Chain(ctx, 8-len(ids))
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, tokens...)
			}
			a := golden.Compare(2e-3, logits, ids, c.LastPromptLogits, c.GreedyIDs[:len(ids)], c.Top2Gap)
			if a.Fault != nil {
				t.Error(a.Fault)
			}
			t.Logf("relative error %.1e", a.Relative)
		})
	}
	if err := soft.Violation(); err != nil {
		t.Error(err)
	}
}
