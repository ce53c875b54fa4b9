package e2e_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/golden"
	"github.com/pianola-engine/pianola/internal/synth"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// TestQuantisedGemma runs quantised Gemma 3 models over a context longer than their windows.
// Fused and unfused tables must give the same bits. Weights in the file's layout and in tiles
// must agree closely; so must quantised and unquantised activations.
func TestQuantisedGemma(t *testing.T) {
	shape, _ := synth.FindShape("gemma-3-1b")
	shape.Layers, shape.Hidden, shape.FFN, shape.Heads, shape.HeadDim, shape.Vocab, shape.Context, shape.Window = 7, 256, 512, 4, 64, 4352, 256, 24
	for _, quant := range []string{"q8_0", "q4_k_m"} {
		path := filepath.Join(t.TempDir(), quant+".gguf")
		if err := synth.WriteFile(context.Background(), path, shape, quant, 1, nil); err != nil {
			t.Fatal(err)
		}
		prompt := make([]int32, 60)
		for i := range prompt {
			prompt[i] = int32(i*37%500 + 3)
		}
		result := func(o pianola.Options, chain int) ([]float32, []int32) {
			o.Device = "cpu"
			return greedy(t, open(t, path, o), chain, prompt, 40)
		}
		want, tokens := result(pianola.Options{}, 64)
		for _, o := range []struct {
			pianola.Options
			chain int
		}{{pianola.Options{}, 1}, {pianola.Options{Table: pianola.TableOptions{NoFuse: true}}, 64}, {pianola.Options{Threads: otherThreads}, 64}} {
			if logits, got := result(o.Options, o.chain); !slices.Equal(logits, want) || !slices.Equal(got, tokens) {
				t.Errorf("%s, %+v: the results differ", quant, o)
			}
		}
		ref := make([]float64, len(want))
		for i, v := range want {
			ref[i] = float64(v)
		}
		logits, _ := result(pianola.Options{Table: pianola.TableOptions{NoRepack: true}}, 64)
		if a := golden.Compare(3e-2, logits, nil, ref, nil, nil); a.Fault != nil {
			t.Errorf("%s, without tiles: %v", quant, a.Fault)
		}
		logits, _ = result(pianola.Options{Roll: roll(t, path, "m4-pro", pianola.TableOptions{}), AnyChip: true}, 64)
		a := golden.Compare(7e-2, logits, nil, ref, nil, nil)
		if a.Fault != nil {
			t.Errorf("%s, unquantised activations: %v", quant, a.Fault)
		}
		t.Logf("%s: relative error %.1e compared with unquantised activations", quant, a.Relative)
	}
}

// TestOlderGemma reads a model whose config.json has the form of older versions of
// transformers, or the form of a multimodal model. The results must have the same bits.
func TestOlderGemma(t *testing.T) {
	const path = "testdata/variants/gemma3_linear"
	text := map[string]any{}
	readJSON(t, filepath.Join(path, "config.json"), &text)
	for _, key := range []string{"layer_types", "rope_parameters", "_sliding_window_pattern"} {
		delete(text, key)
	}
	text["sliding_window_pattern"], text["rope_theta"], text["rope_local_base_freq"] = 3, 1e6, 1e4
	text["rope_scaling"] = map[string]any{"rope_type": "linear", "factor": 8}
	nested := map[string]any{"model_type": "gemma3", "architectures": []string{"Gemma3ForConditionalGeneration"}, "text_config": text}

	want, tokens := greedy(t, open(t, path, pianola.Options{Device: "cpu"}), 16, somePrompt, 20)
	for _, c := range []struct {
		name   string
		config map[string]any
		rename *strings.Replacer
	}{
		{"older", text, strings.NewReplacer()},
		{"language_model.", nested, strings.NewReplacer(`"model.`, `"language_model.model.`)},
		{"model.language_model.", nested, strings.NewReplacer(`"model.`, `"model.language_model.`)},
	} {
		dir := t.TempDir()
		b, err := json.Marshal(c.config)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644); err != nil {
			t.Fatal(err)
		}
		if b, err = os.ReadFile(filepath.Join(testmodels.Path(t, path), "model.safetensors")); err != nil {
			t.Fatal(err)
		}
		n := binary.LittleEndian.Uint64(b)
		head := c.rename.Replace(string(b[8:][:n]))
		out := append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)
		if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), append(out, b[8+n:]...), 0o644); err != nil {
			t.Fatal(err)
		}
		logits, got := greedy(t, open(t, dir, pianola.Options{Device: "cpu"}), 16, somePrompt, 20)
		if !slices.Equal(logits, want) || !slices.Equal(got, tokens) {
			t.Errorf("%s: the results differ", c.name)
		}
	}
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}
