package e2e_test

import (
	"flag"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/packed"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// experts is an additional model for TestExperts.
var experts = flag.String("experts", "", "a folder with a model that has experts, and its golden.json")

// expertModels returns models with sparse layers and the paths of their reference results.
func expertModels(t testing.TB) (models [][2]string) {
	for _, dir := range []string{"testdata/variants/qwen3_moe", "testdata/variants/gpt_oss", "testdata/variants/mixtral", "testdata/variants/mixtral_window", "testdata/variants/qwen3_moe_sparse", *experts} {
		if dir == "" {
			continue
		}
		golden := filepath.Join(dir, "golden.json")
		models = append(models, [2]string{dir, golden})
		if gguf := filepath.Join(dir, "model.gguf"); exists(testmodels.Path(t, gguf)) {
			models = append(models, [2]string{gguf, golden})
		}
	}
	return models
}

// TestExperts compares models with their references, in chains of 1 and of 64 tokens. Both
// must give the same tokens, with and without fusion, with one thread and with several.
func TestExperts(t *testing.T) {
	for _, md := range expertModels(t) {
		t.Run(md[0], func(t *testing.T) {
			g := readGolden(t, md[1])
			for i, c := range g.Cases {
				m := open(t, md[0], pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 128}})
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
				for _, o := range []pianola.Options{{Device: "cpu", Table: pianola.TableOptions{Context: 128}}, {Device: "cpu", Table: pianola.TableOptions{Context: 128, NoFuse: true}, Threads: otherThreads}} {
					other, got := greedy(t, open(t, md[0], o), 1, c.PromptIDs, len(ids))
					if !slices.Equal(other, logits) || !slices.Equal(got, ids) {
						t.Errorf("%+v: the logits or tokens differ", o)
					}
				}
			}
		})
	}
}

// TestExpertsMXFP4 runs experts in the published format of gpt-oss: blocks and scales, with
// the rows of gate and up interleaved. It compares them with transposed float32 experts of the
// same values.
func TestExpertsMXFP4(t *testing.T) {
	config, tensors, err := packed.Read("testdata/variants/gpt_oss")
	if err != nil {
		t.Fatal(err)
	}
	blocks, plain := packed.New(config)
	blocks.Config["quantization_config"] = map[string]any{"quant_method": "mxfp4", "modules_to_not_convert": []string{"lm_head"}}
	levels := []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}
	r := rand.New(rand.NewPCG(1, 2))
	for name, f := range tensors {
		if len(f.Shape) != 3 {
			blocks.Tensors[name], plain.Tensors[name] = packed.F32(f), packed.F32(f)
			continue
		}
		experts, columns, rows := f.Shape[0], f.Shape[1], f.Shape[2]
		var quants, scales []byte
		for e := range experts {
			for row := range rows {
				for c := range columns {
					if c%32 == 0 {
						scales = append(scales, byte(127-4-r.IntN(3)))
					}
					q := r.IntN(16)
					if c%2 == 0 {
						quants = append(quants, byte(q))
					} else {
						quants[len(quants)-1] |= byte(q << 4)
					}
					f.Values[(e*columns+c)*rows+row] = levels[q] * float32(math.Ldexp(1, int(scales[len(scales)-1])-127))
				}
			}
		}
		plain.Tensors[name] = packed.F32(f)
		blocks.Tensors[name+"_blocks"] = packed.Tensor{Type: "U8", Shape: []int{experts, rows, columns / 32, 16}, Data: quants}
		blocks.Tensors[name+"_scales"] = packed.Tensor{Type: "U8", Shape: []int{experts, rows, columns / 32}, Data: scales}
	}
	a, b := written(t, blocks, plain, nil)
	ids := []int32{5, 6, 7, 300, 31, 9, 9, 100, 77, 12, 450, 3, 8, 256, 41, 2, 17, 18, 19, 20}
	want, _ := greedy(t, open(t, b, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 64}}), 4, ids, 4)
	first, tokens := greedy(t, open(t, a, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 64}}), 4, ids, 24)
	rel := relative(first, want)
	t.Logf("relative error %.1e", rel)
	if rel > 7e-2 {
		t.Errorf("the relative error is %v", rel)
	}
	for _, o := range []pianola.Options{{Table: pianola.TableOptions{NoFuse: true}, Threads: otherThreads}, {Table: pianola.TableOptions{NoRepack: true}}} {
		o.Device, o.Table.Context = "cpu", 64
		logits, got := greedy(t, open(t, a, o), 1, ids, 24)
		if o.Table.NoRepack {
			if rel := relative(logits, first); rel > 1e-2 {
				t.Errorf("not repacked: the relative error is %v", rel)
			}
		} else if !slices.Equal(logits, first) || !slices.Equal(got, tokens) {
			t.Errorf("%+v: the logits or tokens differ", o)
		}
	}
}
