package convert_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/convert"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/quantize"
	"github.com/pianola-engine/pianola/internal/sparse"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// TestVariants converts models of unusual shapes and RoPE scalings. convert reads the
// resulting header back and must either find the same model or refuse to write it.
func TestVariants(t *testing.T) {
	refused := map[string]string{
		"qwen2_windows":    "Layer[0].Window: 0 came back as 9", // GGUF stores one window for all layers
		"qwen3_layers":     "Layer[1].Window: 0 came back as 5",
		"gemma2_caps":      "AttnScale: 0.1 came back as", // GGUF has no query scale
		"gemma2_g":         "AttnScale: 0.20412415 came back as",
		"gemma3_linear":    "AttnScale: 0.14142136 came back as",
		"smollm3":          "Layer[1].NoRope: true came back as false", // GGUF implies every fourth layer
		"qwen3_moe_sparse": "Experts.OverAll: true came back as false", // GGUF implies a sum of one
	}
	for _, name := range []string{
		"llama_bias_f32", "llama_hd80", "llama_mqa_linear", "llama_yarn", "llama_yarn_mscale", "mistral_full_tied",
		"mistral_w7", "qwen2_windows", "qwen2_yarn_tied", "qwen3_hd40_bias", "qwen3_layers", "qwen3_wide",
		"gemma", "gemma2_caps", "gemma2_g", "gemma3_linear", "granite", "granite_bias", "olmo2", "olmo2_mha", "phi3_long", "phi3_short",
		"smollm3", "starcoder2", "starcoder2_nobias", "mixtral", "mixtral_window", "qwen3_moe_sparse", "seed_oss", "ernie4_5", "exaone4_full", "olmo3", "olmo3_yarn", "olmoe",
		"phi4_mini", "glm", "glm4", "glm4_nobias", "stablelm", "stablelm_parallel", "cohere", "cohere2", "hunyuan_dense", "hunyuan_dense_plain", "gemma4_untied", "gemma4_moe", "llama4_short", "llama4_step", "gemma4_e_untied", "gemma3n", "gemma3n_three", "gemma3n_deep", "cohere_qknorm", "cohere_qknorm_deep", "ministral3",
		"ministral3_tied", "qwen2_moe", "glm4_moe", "glm4_moe_qknorm", "minimax_m2", "minimax_m2_wide", "ernie4_5_moe", "granitemoe", "granitemoehybrid", "granitemoehybrid_moe", "falcon_h1", "falcon_h1_norm", "nemotron_h", "nemotron_h_wide", "dots1", "lfm2_moe", "deepseek_v3", "glm4_moe_lite", "glm4_moe_lite_groups",
	} {
		m, err := convert.Open(testmodels.Path(t, filepath.Join("../../testdata/variants", name)))
		if want := refused[name]; want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want an error with %q", name, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := m.Write(t.Context(), io.Discard, m.Stored(), convert.WriteOptions{Threads: 3}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestThreads checks that the output depends neither on the number of threads nor on whether
// the source is a safetensors or a GGUF file.
func TestThreads(t *testing.T) {
	dir := t.TempDir()
	asStored := filepath.Join(dir, "stored.gguf")
	if err := os.WriteFile(asStored, write(t, testmodels.Path(t, "../../testdata/tiny/llama"), "", quantize.Options{}), 0o600); err != nil {
		t.Fatal(err)
	}
	want := tensorsOf(t, write(t, testmodels.Path(t, "../../testdata/tiny/llama"), "Q3_K_S", quantize.Options{}))
	if got := tensorsOf(t, write(t, asStored, "Q3_K_S", quantize.Options{})); got != want {
		t.Error("the GGUF source and the safetensors source give different output")
	}
	m, err := convert.Open(asStored)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	mix, err := quantize.FindMix("q3_k_s")
	if err != nil {
		t.Fatal(err)
	}
	types, err := m.Types(mix, quantize.Options{}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, threads := range []int{1, 5} {
		var b bytes.Buffer
		if err := m.Write(t.Context(), &b, types, convert.WriteOptions{Threads: threads}); err != nil {
			t.Fatal(err)
		}
		if tensorsOf(t, b.Bytes()) != want {
			t.Errorf("the output differs with %d threads", threads)
		}
	}
}

// edited returns a copy of tiny/llama's directory in which edit has changed config.json.
func edited(t *testing.T, edit func(config map[string]any)) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile("../../testdata/tiny/llama/config.json")
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	edit(config)
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	model, err := os.ReadFile(testmodels.Path(t, "../../testdata/tiny/llama/model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"config.json": text, "model.safetensors": model} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestErrors(t *testing.T) {
	open := func(path string) error {
		m, err := convert.Open(path)
		if err == nil {
			err = m.Write(t.Context(), io.Discard, m.Stored(), convert.WriteOptions{})
			err = errors.Join(err, m.Close())
		}
		return err
	}
	unknown := edited(t, func(c map[string]any) { c["model_type"] = "other" })
	width := edited(t, func(c map[string]any) { c["hidden_size"] = 128 })
	badTokenizer := edited(t, func(map[string]any) {})
	if err := os.WriteFile(filepath.Join(badTokenizer, "tokenizer.json"), []byte(`{"model": {"type": "WordLevel", "vocab": {}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	extra := edited(t, func(c map[string]any) { c["tie_word_embeddings"] = true; c["num_hidden_layers"] = 1 })
	predicts := edited(t, func(c map[string]any) { c["num_hidden_layers"] = 1; c["num_nextn_predict_layers"] = 1 })
	if err := open(predicts); err != nil {
		t.Errorf("a layer that predicts a further token: %v", err)
	}
	cut := edited(t, func(map[string]any) {})
	m, err := convert.Open(cut)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := os.Truncate(filepath.Join(cut, "model.safetensors"), 1<<20); err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	whole, err := convert.Open(testmodels.Path(t, "../../testdata/tiny/llama"))
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	q8, err := convert.Open("../../testdata/gopher-q8_0.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer q8.Close()
	again := func(again bool) error {
		mix, err := quantize.FindMix("Q4_0")
		if err != nil {
			t.Fatal(err)
		}
		_, err = q8.Types(mix, quantize.Options{}, again)
		return err
	}
	if err := again(true); err != nil {
		t.Errorf("quantising again: %v", err)
	}
	for _, test := range []struct {
		name string
		err  error
		text string
	}{
		{"no model", open(t.TempDir()), "config.json is missing"},
		{"unknown architecture", open(unknown), `"other" is not supported`},
		{"other width", open(width), "tensor model.embed_tokens.weight"},
		{"tokenizer", open(badTokenizer), "WordLevel"},
		{"tensors that are left", open(extra), "tensor model.layers.1.input_layernorm.weight has no counterpart in the GGUF format of llama"},
		{"cut file", m.Write(t.Context(), io.Discard, m.Stored(), convert.WriteOptions{}), "unexpected EOF"},
		{"cancelled", whole.Write(cancelled, io.Discard, whole.Stored(), convert.WriteOptions{}), "context canceled"},
		{"full disk", whole.Write(t.Context(), fullDisk{}, whole.Stored(), convert.WriteOptions{}), "disk full"},
		{"quantised already", again(false), "tensor token_embd.weight is already quantised as Q8_0"},
	} {
		if test.err == nil || !strings.Contains(test.err.Error(), test.text) {
			t.Errorf("%s: got %v, want an error with %q", test.name, test.err, test.text)
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// TestNotFinite checks that the error for a NaN element names its tensor.
func TestNotFinite(t *testing.T) {
	dir := edited(t, func(map[string]any) {})
	path := filepath.Join(dir, "model.safetensors")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint16(data[8+binary.LittleEndian.Uint64(data):], 0x7e00) // a NaN in the output matrix
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := convert.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, name := range []string{"Q4_K_M", "Q8_0"} {
		mix, err := quantize.FindMix(name)
		if err != nil {
			t.Fatal(err)
		}
		types, err := m.Types(mix, quantize.Options{Pure: true}, false)
		if err != nil {
			t.Fatal(err)
		}
		err = m.Write(t.Context(), io.Discard, types, convert.WriteOptions{})
		if err == nil || !strings.Contains(err.Error(), "NaN") || !strings.Contains(err.Error(), "tensor ") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestMemory checks that converting a model of 320 MB takes only a few megabytes per thread.
func TestMemory(t *testing.T) {
	dir := t.TempDir()
	if err := (sparse.Llama{Layers: 1, Width: 4096, FF: 8192, Heads: 32, KVHeads: 8, Vocab: 4096, Tied: true}).Write(dir); err != nil {
		t.Fatal(err)
	}
	m, err := convert.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	mix, err := quantize.FindMix("Q8_0")
	if err != nil {
		t.Fatal(err)
	}
	types, err := m.Types(mix, quantize.Options{}, false)
	if err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapSys - s.HeapReleased
	}
	runtime.GC()
	before, most, left := heap(), uint64(0), 0
	progress := func(_, _ uint64) {
		if left--; left < 0 {
			left, most = 30, max(most, heap())
		}
	}
	if err := m.Write(t.Context(), io.Discard, types, convert.WriteOptions{Threads: 2, Progress: progress}); err != nil {
		t.Fatal(err)
	}
	if limit := before + 32<<20; most > limit || most == 0 {
		t.Errorf("the heap grew to %d MiB from %d MiB", most>>20, before>>20)
	}
}

// TestStored checks that a GGUF file with unusual metadata keeps its tensors.
func TestStored(t *testing.T) {
	var b bytes.Buffer
	w := gguf.NewWriter(&b)
	err := errors.Join(w.Set("general.architecture", "other"), w.Set("split.count", uint16(1)), w.Set("x.y", []string{"a"}),
		w.AddTensor("a.weight", []uint64{3, 2, 32}, dtype.F32), w.AddTensor("b", []uint64{7}, dtype.F16))
	for _, n := range []int{3 * 2 * 32 * 4, 14} {
		name := map[int]string{14: "b"}[n]
		if name == "" {
			name = "a.weight"
		}
		err = errors.Join(err, w.WriteTensor(name, func(w io.Writer) error {
			_, err := w.Write(bytes.Repeat([]byte{0, 0x3c}, n/2))
			return err
		}))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "odd.gguf")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := tensorsOf(t, write(t, path, "", quantize.Options{})), tensorsOf(t, b.Bytes()); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	got := tensorsOf(t, write(t, path, "Q4_K_M", quantize.Options{}))
	if !strings.Contains(got, "a.weight Q5_0 [3 2 32]") || !strings.Contains(got, "b F16 [7]") {
		t.Errorf("got\n%s", got)
	}
	if meta := metadataOf(t, write(t, path, "Q4_K_M", quantize.Options{})); meta["split.count"] != "" || meta["x.y"] != "[]string [a]" || meta["general.file_type"] != fmt.Sprintf("%T %v", uint32(15), 15) {
		t.Errorf("%v", meta)
	}
}
