package synth

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/quantize"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

func readModel(t *testing.T, name string) (*gguf.File, []byte) {
	t.Helper()
	f, err := os.Open(testmodels.Path(t, "../../testdata/"+name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, info.Size())
	if _, err := f.ReadAt(data, 0); err != nil {
		t.Fatal(err)
	}
	file, err := gguf.Decode(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	return file, data
}

// reshaped returns the shape gopher with changed sizes.
func reshaped(t *testing.T, change func(*Shape)) Shape {
	t.Helper()
	s, ok := FindShape("gopher")
	if !ok {
		t.Fatal("FindShape does not find gopher")
	}
	change(&s)
	return s
}

func f16(t *testing.T) *quantize.Mix {
	t.Helper()
	m, err := quantize.FindMix("F16")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestSizes compares the file sizes with those of the files that llama-quantize (llama.cpp
// v0.5.0) wrote for each F16 file. The types differ in size, so a wrong type in a single
// tensor changes the total.
func TestSizes(t *testing.T) {
	tests := []struct {
		name  string
		shape Shape
		sizes map[string]uint64
	}{
		{"gopher", reshaped(t, func(*Shape) {}), map[string]uint64{
			"F16": 14822272, "BF16": 14822272, "Q8_0": 7940992, "Q4_0": 4541312, "Q4_1": 4934528,
			"Q5_0": 5327744, "Q5_1": 5720960, "Q2_K": 3306368, "Q3_K_S": 3705728, "Q3_K_M": 4027264,
			"Q3_K_L": 4313984, "Q4_K_S": 4582272, "Q4_K_M": 4777856, "Q5_K_S": 5327744,
			"Q5_K_M": 5449600, "Q6_K": 6163328, "IQ4_NL": 4565888, "IQ4_XS": 4375424,
		}},
		{"an output matrix, 4 heads a KV head", reshaped(t, func(s *Shape) {
			s.Layers, s.Heads, s.HeadDim, s.FFN, s.Tied = 32, 8, 32, 512, false
		}), map[string]uint64{
			"F16": 40050208, "BF16": 40050208, "Q8_0": 21372448, "Q4_0": 11681312, "Q4_1": 12860960,
			"Q5_0": 14040608, "Q5_1": 15220256, "Q2_K": 8019488, "Q3_K_S": 9174560, "Q3_K_M": 10116640,
			"Q3_K_L": 10931744, "Q4_K_S": 11755040, "Q4_K_M": 12289568, "Q5_K_S": 14040608,
			"Q5_K_M": 14353952, "Q6_K": 16547360, "IQ4_NL": 11812384, "IQ4_XS": 11255328,
		}},
		{"rows that are no blocks of 256", reshaped(t, func(s *Shape) {
			s.Layers, s.Hidden, s.Heads, s.KVHeads, s.HeadDim, s.FFN = 26, 224, 7, 1, 32, 288
		}), map[string]uint64{
			"F16": 18044608, "BF16": 18044608, "Q8_0": 9671488, "Q4_0": 5664576, "Q4_1": 6165440,
			"Q5_0": 6666304, "Q5_1": 7167168, "Q2_K": 5687872, "Q3_K_S": 5664576, "Q3_K_M": 6065536,
			"Q3_K_L": 6258624, "Q4_K_S": 6680192, "Q4_K_M": 7015744, "Q5_K_S": 7167168,
			"Q5_K_M": 7458368, "Q6_K": 9671488, "IQ4_NL": 5735808, "IQ4_XS": 5735808,
		}},
		{"some rows of either kind", reshaped(t, func(s *Shape) {
			s.Layers, s.Hidden, s.Heads, s.KVHeads, s.HeadDim, s.FFN, s.Tied = 5, 224, 7, 7, 32, 512, false
		}), map[string]uint64{
			"F16": 9250816, "BF16": 9250816, "Q8_0": 4976896, "Q4_0": 3156224, "Q4_1": 3383808,
			"Q5_0": 3611392, "Q5_1": 3838976, "Q2_K": 3080064, "Q3_K_S": 3080064, "Q3_K_M": 3225216,
			"Q3_K_L": 3321984, "Q4_K_S": 3552256, "Q4_K_M": 3636480, "Q5_K_S": 3803136,
			"Q5_K_M": 3864960, "Q6_K": 4838016, "IQ4_NL": 3156224, "IQ4_XS": 3138304,
		}},
	}
	for _, test := range tests {
		for quant, want := range test.sizes {
			if got, err := Size(test.shape, quant); err != nil || got != want {
				t.Errorf("%s in %s: got %d bytes and %v, want %d", test.name, quant, got, err, want)
			}
		}
	}
}

// TestTensorBytes compares the size of the tensor data with published files of the real
// models, in units of 10^6 bytes.
func TestTensorBytes(t *testing.T) {
	tests := []struct {
		shape, quant string
		want         float64
	}{
		{"qwen3-0.6b", "Q4_0", 376}, {"qwen3-0.6b", "Q4_K_M", 391},
		{"qwen3-0.6b", "Q8_0", 634}, {"qwen3-0.6b", "F16", 1192},
		{"llama-3.1-8b", "Q4_K_M", 4913}, {"llama-3.1-8b", "F16", 16061},
		{"qwen2.5-0.5b", "F16", 988}, {"gemma-3-1b", "F16", 2000}, {"llama-3.2-1b", "F16", 2472},
		{"qwen3-1.7b", "F16", 3441},
	}
	for _, test := range tests {
		s, _ := FindShape(test.shape)
		tensors, err := Tensors(s, test.quant)
		if err != nil {
			t.Fatal(err)
		}
		var sum uint64
		for i := range tensors {
			rowBytes, rows := tensors[i].size()
			sum += rowBytes * rows
		}
		if got := float64(sum) / 1e6; math.Abs(got-test.want) > 1 {
			t.Errorf("%s in %s: got %.1f MB, want %.0f", test.shape, test.quant, got, test.want)
		}
	}
}

// TestEveryShapeInEveryMix checks that each combination of shape and mix has a valid header
// and rows of whole blocks.
func TestEveryShapeInEveryMix(t *testing.T) {
	for _, s := range Shapes() {
		w, _, err := declare(io.Discard, s, "F16")
		if err != nil {
			t.Errorf("%s: %v", s.Name, err)
		} else if err := w.Close(); err == nil {
			t.Errorf("%s: Close succeeds without tensor data", s.Name)
		}
		for _, quant := range quantize.Mixes() {
			tensors, err := Tensors(s, strings.ToLower(quant))
			if err != nil {
				t.Errorf("%s in %s: %v", s.Name, quant, err)
			}
			for i := range tensors {
				if rowBytes, rows := tensors[i].size(); rowBytes == 0 || rows == 0 {
					t.Errorf("%s in %s: %v", s.Name, quant, tensors[i])
				}
			}
		}
	}
	var unknown *quantize.MixError
	if _, err := Size(Shapes()[0], "Q7_K"); !errors.As(err, &unknown) || !strings.Contains(err.Error(), "Q4_K_M") {
		t.Errorf("Q7_K: got %v", err)
	}
	if _, ok := FindShape("gpt-5"); ok {
		t.Error("FindShape finds a shape that does not exist")
	}
}

// TestLikeConverter compares tensors (names, order, number of dimensions) and metadata keys
// with files that llama.cpp's converter wrote.
func TestLikeConverter(t *testing.T) {
	for _, test := range []struct{ shape, model string }{
		{"llama-3.1-8b", "tiny/llama/model.gguf"},
		{"qwen2.5-0.5b", "tiny/qwen2/model.gguf"},
		{"qwen3-0.6b", "tiny/qwen3/model.gguf"},
	} {
		s, _ := FindShape(test.shape)
		file, _ := readModel(t, test.model)
		layers, _ := file.Meta(s.Arch + ".block_count")
		s.Layers = layers.(uint32)
		_, untied := slices.BinarySearch(tensorNames(file.Tensors), "output.weight")
		s.Tied = !untied
		tensors, err := Tensors(s, "F16")
		if err != nil {
			t.Fatal(err)
		}
		if len(tensors) != len(file.Tensors) {
			t.Errorf("%s: %d tensors, want %d", test.shape, len(tensors), len(file.Tensors))
			continue
		}
		for i, want := range file.Tensors {
			got := tensors[i]
			if got.Name != want.Name || got.Type != want.Type || len(got.Shape) != len(want.Shape) {
				t.Errorf("%s: tensor %d is %s, %s %v, want %s, %s %v",
					test.shape, i, got.Name, got.Type, got.Shape, want.Name, want.Type, want.Shape)
			}
		}
		entries, err := metadata(s, f16(t))
		if err != nil {
			t.Fatal(err)
		}
		keys := map[string]bool{}
		for _, e := range entries {
			keys[e.Key] = true
		}
		for _, kv := range file.Metadata {
			// The converter writes vocab_size for a model without tokens.
			if !keys[kv.Key] && !strings.HasSuffix(kv.Key, ".vocab_size") {
				t.Errorf("%s: no key %s", test.shape, kv.Key)
			}
		}
	}
}

// TestGemma3Layer checks the tensors of a Gemma 3 layer against those that the converter
// writes.
func TestGemma3Layer(t *testing.T) {
	s, _ := FindShape("gemma-3-1b")
	s.Layers = 1
	tensors, err := Tensors(s, "F16")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tensor := range tensors {
		got = append(got, fmt.Sprint(strings.TrimSuffix(tensor.Name, ".weight"), " ", tensor.Type, " ", tensor.Shape))
	}
	want := []string{
		"token_embd F16 [262144 1152]",
		"blk.0.attn_norm F32 [1152]",
		"blk.0.ffn_down F16 [1152 6912]",
		"blk.0.ffn_gate F16 [6912 1152]",
		"blk.0.ffn_up F16 [6912 1152]",
		"blk.0.post_attention_norm F32 [1152]",
		"blk.0.post_ffw_norm F32 [1152]",
		"blk.0.ffn_norm F32 [1152]",
		"blk.0.attn_k_norm F32 [256]",
		"blk.0.attn_k F16 [256 1152]",
		"blk.0.attn_output F16 [1152 1024]",
		"blk.0.attn_q_norm F32 [256]",
		"blk.0.attn_q F16 [1024 1152]",
		"blk.0.attn_v F16 [256 1152]",
		"output_norm F32 [1152]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	entries, err := metadata(s, f16(t))
	if err != nil {
		t.Fatal(err)
	}
	if window := find(t, entries, "gemma3.attention.sliding_window"); window != uint32(512) {
		t.Errorf("window: %v", window)
	}
	if base := find(t, entries, "gemma3.rope.freq_base_swa"); base != float32(10_000) {
		t.Errorf("the RoPE base of sliding layers is %v", base)
	}
}

// TestHybridLayers checks the tensors of the layers of a hybrid model, and the keys that describe them.
func TestHybridLayers(t *testing.T) {
	s, _ := FindShape("qwen3.5-4b")
	tensors, err := Tensors(s, "F16")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tensor := range tensors {
		name := strings.TrimSuffix(tensor.Name, ".weight")
		if rest, ok := strings.CutPrefix(name, "blk.2."); ok {
			got = append(got, fmt.Sprint(rest, " ", tensor.Type, " ", tensor.Shape))
		} else if rest, ok := strings.CutPrefix(name, "blk.3.attn"); ok {
			got = append(got, fmt.Sprint("attn", rest, " ", tensor.Type, " ", tensor.Shape))
		}
	}
	want := []string{
		"attn_norm F32 [2560]",
		"ssm_a F32 [32]",
		"ssm_conv1d F32 [8192 4]",
		"ssm_dt.bias F32 [32]",
		"ssm_alpha F16 [32 2560]",
		"ssm_beta F16 [32 2560]",
		"attn_qkv F16 [8192 2560]",
		"attn_gate F16 [4096 2560]",
		"ssm_norm F32 [128]",
		"ssm_out F16 [2560 4096]",
		"ffn_down F16 [2560 9216]",
		"ffn_gate F16 [9216 2560]",
		"ffn_up F16 [9216 2560]",
		"post_attention_norm F32 [2560]",
		"attn_norm F32 [2560]",
		"attn_k_norm F32 [256]",
		"attn_k F16 [1024 2560]",
		"attn_output F16 [2560 4096]",
		"attn_q_norm F32 [256]",
		"attn_q F16 [8192 2560]",
		"attn_v F16 [1024 2560]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	entries, err := metadata(s, f16(t))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"ssm.inner_size": uint32(4096), "ssm.time_step_rank": uint32(32), "ssm.group_count": uint32(16), "ssm.state_size": uint32(128),
		"ssm.conv_kernel": uint32(4), "full_attention_interval": uint32(4), "rope.dimension_count": uint32(64),
	} {
		if got := find(t, entries, "qwen35."+key); got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if got := find(t, entries, "qwen35.rope.dimension_sections"); !slices.Equal(got.([]int32), []int32{11, 11, 10, 0}) {
		t.Errorf("the sections of RoPE are %v", got)
	}
}

// TestHybridErrors checks that hybrid shapes with inconsistent sizes are refused.
func TestHybridErrors(t *testing.T) {
	for what, change := range map[string]func(*Delta){
		"no interval":              func(d *Delta) { d.Interval = 0 },
		"heads without keys":       func(d *Delta) { d.KeyHeads = 3 },
		"a convolution of one tap": func(d *Delta) { d.Taps = 1 },
		"no key elements":          func(d *Delta) { d.KeyDim = 0 },
		"an odd rotation":          func(d *Delta) { d.RopeDim = 63 },
		"a rotation of too much":   func(d *Delta) { d.RopeDim = 258 },
	} {
		s, _ := FindShape("qwen3.5-0.8b")
		d := *s.Delta
		change(&d)
		s.Delta = &d
		if _, err := Tensors(s, "F16"); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

func tensorNames(tensors []gguf.Tensor) []string {
	names := make([]string, len(tensors))
	for i := range tensors {
		names[i] = tensors[i].Name
	}
	slices.Sort(names)
	return names
}

// TestLlama3Rope compares the factors with those that llama.cpp's converter computed from the
// scaling in testdata/tiny/llama/config.json.
func TestLlama3Rope(t *testing.T) {
	file, data := readModel(t, "tiny/llama/model.gguf")
	i := slices.IndexFunc(file.Tensors, func(t gguf.Tensor) bool { return t.Name == "rope_freqs.weight" })
	if i < 0 {
		t.Fatal("the model has no rope_freqs.weight")
	}
	tensor := file.Tensors[i]
	rope := Llama3Rope{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalContext: 64}
	got := rope.frequencies(64, 500_000)
	if uint64(len(got)) != tensor.Shape[0] {
		t.Fatalf("%d factors, want %v", len(got), tensor.Shape)
	}
	for i := range got {
		want := math.Float32frombits(binary.LittleEndian.Uint32(data[tensor.Offset+4*uint64(i):]))
		if math.Abs(float64(got[i]/want-1)) > 1e-5 {
			t.Errorf("factor %d: got %v, want %v", i, got[i], want)
		}
	}
}
