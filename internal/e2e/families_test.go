package e2e_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/convert"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// noGGUF are models whose family's GGUF form lacks a setting that they have, with what the error of
// a conversion names.
var noGGUF = map[string]string{
	"gemma2_caps":        "AttnScale: 0.1 came back as",
	"gemma2_g":           "AttnScale: 0.20412415 came back as",
	"gemma3_linear":      "AttnScale: 0.14142136 came back as",
	"lfm2_moe_nobias":    "Experts.OverAll: true came back as false",
	"llama4":             "Temper.Span: 16 came back as 8192",
	"llama4_interleaved": "QKNorm: false came back as true",
	"ministral":          "Layer[0].Window: 0 came back as 20",
	"ministral_tied":     "Layer[1].Window: 0 came back as 9",
	"qwen2_moe_sparse":   "Experts.OverAll: false came back as true",
	"qwen2_windows":      "Layer[0].Window: 0 came back as 9",
	"qwen3_layers":       "Layer[1].Window: 0 came back as 5",
	"qwen3_moe_sparse":   "Experts.OverAll: true came back as false",
	"smollm3":            "Layer[1].NoRope: true came back as false",
}

// TestFamilies compares both forms of the small models with their references: the directory and the
// GGUF file that it converts to. The prompt comes in pieces of several sizes, and the tokens in
// chains of several lengths. Without -tags exhaustive, one size and one length are tested.
func TestFamilies(t *testing.T) {
	goldens, err := filepath.Glob("testdata/variants/*/golden.json")
	if err != nil || len(goldens) == 0 {
		t.Fatal("no variants", err)
	}
	type run struct{ piece, chain int }
	type form struct {
		path  string
		table pianola.TableOptions
	}
	runs := exhaustive.Pick([]run{{1, 64}, {7, 1}, {64, 64}}, []run{{7, 64}})
	for _, path := range goldens {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			g, limit := readGolden(t, path), variantLimit(dir)
			forms := []form{{path: dir}, {dir, pianola.TableOptions{NoFuse: true}}, {dir, pianola.TableOptions{Batching: true}}}
			if file := converted(t, dir); file != "" {
				forms = append(forms, form{path: file})
			}
			for _, f := range forms {
				f.table.Context = roomy(t, dir)
				m := open(t, f.path, pianola.Options{Device: "cpu", Table: f.table})
				for _, run := range runs {
					for _, c := range g.Cases {
						logits, ids := greedyInPieces(t, m, run.chain, run.piece, c.PromptIDs, len(c.GreedyIDs))
						agree(t, limit, logits, ids, c.LastPromptLogits, c.GreedyIDs, c.Top2Gap)
					}
				}
			}
		})
	}
}

// converted returns the GGUF file that a model converts to, or "" if it is one of noGGUF.
func converted(t *testing.T, dir string) (file string) {
	t.Helper()
	m, err := convert.Open(testmodels.Path(t, dir))
	if want := noGGUF[filepath.Base(dir)]; want != "" {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("convert: error %v, want %q", err, want)
		}
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	file = filepath.Join(t.TempDir(), "model.gguf")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Write(t.Context(), f, m.Stored(), convert.WriteOptions{Threads: 1}); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}

// promptInPieces appends ids to the context, each piece in a submission of its own, and returns the
// next token.
func promptInPieces(t testing.TB, s *pianola.Session, ids []int32, size int) (next int32) {
	t.Helper()
	for piece := range slices.Chunk(ids, size) {
		if s.Len() > 0 { // the piece begins with the pending token
			if err := s.SetNext(piece[0]); err != nil {
				t.Fatal(err)
			}
			piece = piece[1:]
		}
		if len(piece) == 0 {
			tokens, _, err := s.Chain(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			next = tokens[0]
			continue
		}
		var err error
		if next, _, err = s.Prompt(t.Context(), piece); err != nil {
			t.Fatal(err)
		}
	}
	return next
}

// TestFamilyParallel compares generations in a batch, and speculative decoding, with plain decoding:
// scored routers, shared experts, factors of Q by position, parallel blocks, layers with heads of several
// sizes, and layers that share K and V.
func TestFamilyParallel(t *testing.T) {
	for _, name := range []string{"ministral3", "glm4_moe_qknorm", "cohere2", "qwen2_moe", "gemma4_untied", "gemma4_e_untied", "gemma4_moe", "llama4_step", "gemma3n_deep", "cohere_qknorm_deep"} {
		t.Run(name, func(t *testing.T) {
			dir := "testdata/variants/" + name
			table := pianola.TableOptions{Context: 256, Batching: true, LogProbs: true}
			alone := open(t, dir, pianola.Options{Device: pianola.DeviceCPU, Table: table})
			m := open(t, dir, pianola.Options{Device: pianola.DeviceCPU, Table: pianola.TableOptions{Draft: 3}})
			for _, c := range readGolden(t, dir+"/golden.json").Cases {
				want, _ := speculated(t, m, c.PromptIDs, 100, false)
				if got, _ := speculated(t, m, c.PromptIDs, 100, true); !slices.Equal(got, want) {
					t.Errorf("prompt of %d tokens: with speculation %v, without %v", len(c.PromptIDs), got, want)
				}
			}
			table.Pages = 12
			checkParallel(t, alone, open(t, dir, pianola.Options{Device: pianola.DeviceCPU, Parallel: 5, Table: table}), 12, briefPrompt)
		})
	}
}

// TestFamilySessions checks that chains, prompts in pieces, rewinds, forks, snapshots and attention sinks
// work for layers with heads of several sizes, for layers that share K and V, and for attention in chunks.
func TestFamilySessions(t *testing.T) {
	ids := latentPrompt(130)
	for _, name := range []string{"gemma4_untied", "gemma4_e_untied", "llama4", "gemma3n"} {
		t.Run(name, func(t *testing.T) {
			dir := "testdata/variants/" + name
			m := open(t, dir, pianola.Options{Device: pianola.DeviceCPU, Table: pianola.TableOptions{Draft: 4}})
			_, want := greedy(t, m, 64, ids, 40)
			checkSessions(t, m, ids, want)
			sinks := open(t, dir, pianola.Options{Device: pianola.DeviceCPU, Table: pianola.TableOptions{Context: 2048, KVSinks: 4, KVWindow: 200}})
			if _, got := greedy(t, sinks, 16, ids, 40); !slices.Equal(got, want) {
				t.Errorf("with attention sinks: %v, want %v", got, want)
			}
			if _, got := greedy(t, sinks, 64, ids, 400); len(got) != 400 {
				t.Errorf("%d tokens beyond the cache", len(got))
			}
			checkSharedKeys(t, m, ids)
		})
	}
}

// checkSharedKeys checks the shapes of K of each layer, and that layers which share K return the same.
func checkSharedKeys(t *testing.T, m *pianola.Model, ids []int32) {
	t.Helper()
	s, c := newSession(t, m, pianola.SessionOptions{IgnoreStops: true}), m.Config()
	promptInPieces(t, s, ids[:9], 64)
	for i, l := range c.Layer {
		keys, err := s.Keys(i)
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) != c.KVHeadsAt(i) || len(keys[0]) < 9 || len(keys[0][8]) != c.HeadDimAt(i) {
			t.Errorf("layer %d: %d heads, %d positions of %d", i, len(keys), len(keys[0]), len(keys[0][8]))
		}
		from, err := s.Keys(i - l.KVBack)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(keys[0][8], from[0][8]) {
			t.Errorf("layer %d has other K than layer %d", i, i-l.KVBack)
		}
	}
}
