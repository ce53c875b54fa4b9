package arch

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// readChecked reads a model and checks its tensors.
func readChecked(t *testing.T, s *Set, src Source) *Config {
	t.Helper()
	c, err := s.Read(src)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(src); err != nil {
		t.Fatal(err)
	}
	return c
}

// plain returns c without the fields that the tests compare separately.
func plain(c *Config) Config {
	p := *c
	p.Ropes, p.StopTokens, p.names = nil, nil, tensorNames{}
	return p
}

// Configurations as published, without keys that no engine reads.
const (
	llama32 = `{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000,
		"eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
		"max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
		"num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
		"rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
		"original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
		"tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256}`
	qwen25 = `{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
		"eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
		"max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,
		"num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
		"sliding_window": 32768, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936}`
	qwen3 = `{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
		"eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
		"max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16,
		"num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
		"rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
		"vocab_size": 151936}`
	mistral7b = `{"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
		"hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
		"num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
		"rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000}`
)

var (
	llama32Size = size{16, 2048, 32, 8, 64, 8192, 128256, false, false, ""}
	qwen25Size  = size{24, 896, 14, 2, 64, 4864, 151936, false, false, "q k v"}
	qwen3Size   = size{28, 1024, 16, 8, 128, 3072, 151936, false, true, ""}
	mistralSize = size{32, 4096, 32, 8, 128, 14336, 32000, true, false, ""}
)

func TestReadHF(t *testing.T) {
	full := func(n int) []Layer { return make([]Layer, n) }
	for _, test := range []struct {
		name, config string
		size         size
		want         Config
		stops        []string
		base         float64
		kind         string
	}{
		{"Llama-3.2-1B", llama32, llama32Size, Config{
			Arch: "llama", Layers: 16, Width: 2048, Heads: 32, KVHeads: 8, HeadDim: 64, FF: 8192, Vocab: 128256,
			Context: 131072, Eps: 1e-5, TiedHead: true, Layer: full(16), StopIDs: []int32{128001},
		}, []string{"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>"}, 500000, "llama3"},
		{"Qwen2.5-0.5B", qwen25, qwen25Size, Config{
			Arch: "qwen2", Layers: 24, Width: 896, Heads: 14, KVHeads: 2, HeadDim: 64, FF: 4864, Vocab: 151936,
			Context: 32768, Eps: 1e-6, TiedHead: true, Bias: Bias{Q: true, K: true, V: true}, Layer: full(24),
			StopIDs: []int32{151645},
		}, []string{"<|im_end|>", "<|endoftext|>"}, 1e6, "default"},
		{"Qwen3-0.6B", qwen3, qwen3Size, Config{
			Arch: "qwen3", Layers: 28, Width: 1024, Heads: 16, KVHeads: 8, HeadDim: 128, FF: 3072, Vocab: 151936,
			Context: 40960, Eps: 1e-6, TiedHead: true, QKNorm: true, Layer: full(28), StopIDs: []int32{151645},
		}, []string{"<|im_end|>", "<|endoftext|>"}, 1e6, "default"},
		{"Mistral-7B-v0.1", mistral7b, mistralSize, Config{
			Arch: "mistral", Layers: 32, Width: 4096, Heads: 32, KVHeads: 8, HeadDim: 128, FF: 14336, Vocab: 32000,
			Context: 32768, Eps: 1e-5, Layer: slices.Repeat([]Layer{{Window: 4096}}, 32), StopIDs: []int32{2},
		}, []string{"</s>"}, 10000, "default"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := readChecked(t, Builtin(), hfSource(t, test.config, test.size.hfShapes()))
			if got := plain(c); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
			if !slices.Equal(c.StopTokens, test.stops) {
				t.Errorf("stop tokens %q, want %q", c.StopTokens, test.stops)
			}
			if len(c.Ropes) != 1 || c.Ropes[0].Base != test.base || c.Ropes[0].Kind != test.kind ||
				c.Ropes[0].Dim != c.HeadDim || len(c.Ropes[0].InvFreq) != c.HeadDim/2 || c.Ropes[0].AttnFactor != 1 {
				t.Errorf("RoPE %+v", c.Ropes)
			}
		})
	}
}

// Both forms of a model must give the same configuration, except for settings that only one of
// them has.
func TestReadTiny(t *testing.T) {
	for _, name := range []string{"llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3"} {
		t.Run(name, func(t *testing.T) {
			hf := readChecked(t, Builtin(), tinyHF(t, "tiny/"+name))
			src := tinyGGUF(t, "tiny/"+name+"/model.gguf")
			gguf := readChecked(t, Builtin(), src)
			got, want := plain(gguf), plain(hf)
			got.Name, got.RopeLayout = "", want.RopeLayout
			if got.NormPlusOne || want.NormPlusOne != strings.HasPrefix(name, "gemma") {
				t.Errorf("1 + w: GGUF %v, HF %v", got.NormPlusOne, want.NormPlusOne)
			}
			if scale := 1 / math.Sqrt(float64(want.HeadDim)); want.NormPlusOne && want.AttnScale != float32(scale) {
				t.Errorf("scale %v, want %v", want.AttnScale, scale)
			}
			want.NormPlusOne, want.AttnScale = false, 0
			want.StopIDs = nil // the GGUF files have no tokenizer
			if !reflect.DeepEqual(got, want) {
				t.Errorf("GGUF %+v\nHF   %+v", got, want)
			}
			layout := Half
			if name == "llama" {
				layout = Interleaved
			}
			if gguf.RopeLayout != layout || hf.RopeLayout != Half {
				t.Errorf("layouts %v and %v", gguf.RopeLayout, hf.RopeLayout)
			}
			// llama.cpp's converter stores llama3's scaling as a tensor.
			factors := src.floats[gguf.Ropes[0].Factors]
			if (name == "llama") != (factors != nil) {
				t.Fatalf("factors %q", gguf.Ropes[0].Factors)
			}
			freqs := make([]float64, len(gguf.Ropes[0].InvFreq))
			for i, f := range gguf.Ropes[0].InvFreq {
				freqs[i] = float64(f)
				if factors != nil {
					freqs[i] /= float64(factors[i])
				}
			}
			if err := closeTo(hf.Ropes[0].InvFreq, freqs, 1e-6); err != nil {
				t.Error("inverse frequencies:", err)
			}
		})
	}
	c := readChecked(t, Builtin(), tinyHF(t, "tiny/mistral"))
	if want := []Layer{{Window: 16}, {Window: 16}}; !slices.Equal(c.Layer, want) {
		t.Errorf("mistral's layers %v, want %v", c.Layer, want)
	}
	if c := readChecked(t, Builtin(), tinyGGUF(t, "gopher-q8_0.gguf")); c.Arch != "llama" || !c.TiedHead || c.Layers != 8 ||
		c.Tensor(Head, 0) != "token_embd.weight" || c.Context != 2048 || len(c.StopIDs) == 0 {
		t.Errorf("gopher's GGUF: %+v", c)
	}
	if c := readChecked(t, Builtin(), tinyHF(t, "gopher")); !c.TiedHead || c.Tensor(Head, 0) != "model.embed_tokens.weight" ||
		!slices.Equal(c.StopIDs, []int32{1}) {
		t.Errorf("gopher: %+v", c)
	}
}

func TestSelectHF(t *testing.T) {
	small := size{2, 64, 4, 2, 16, 128, 100, true, false, ""}
	qwen2, qwen3 := small, small
	qwen2.bias, qwen3.qkNorm = "q k v", true
	const rest = `"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
		"num_hidden_layers": 2, "vocab_size": 100, "max_position_embeddings": 512, "rms_norm_eps": 1e-6`
	prefixed := map[string][]uint64{}
	for name, shape := range small.hfShapes() {
		prefixed["language_model."+name] = shape
	}
	for _, test := range []struct {
		name, head string
		shapes     map[string][]uint64
		want       string
		tensor     string
	}{
		{"model_type", `"model_type": "qwen2", "architectures": ["LlamaForCausalLM"],`, qwen2.hfShapes(), "qwen2", "model.norm.weight"},
		{"class", `"architectures": ["MistralForCausalLM"],`, small.hfShapes(), "mistral", "model.norm.weight"},
		{"tensors: llama", ``, small.hfShapes(), "llama", "model.norm.weight"},
		{"tensors: qwen2", ``, qwen2.hfShapes(), "qwen2", "model.norm.weight"},
		{"tensors: qwen3", `"architectures": [],`, qwen3.hfShapes(), "qwen3", "model.norm.weight"},
		{"text_config", `"model_type": "mistral3", "text_config": {"model_type": "mistral"},`, prefixed, "mistral", "language_model.model.norm.weight"},
		{"text_config without a type", `"model_type": "llama", "text_config": {"tie_word_embeddings": false}, "tie_word_embeddings": true,`, small.hfShapes(), "llama", "model.norm.weight"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := readChecked(t, Builtin(), hfSource(t, "{"+test.head+rest+"}", test.shapes))
			if c.Arch != test.want || c.HeadDim != 16 || c.Tensor(OutNorm, 0) != test.tensor {
				t.Errorf("got %s, head size %d, %s", c.Arch, c.HeadDim, c.Tensor(OutNorm, 0))
			}
		})
	}
	for _, test := range []struct{ name, head, want string }{
		{"unknown model_type", `"model_type": "gpt2", "architectures": ["LlamaForCausalLM"],`, "gpt2"},
		{"unknown class", `"architectures": ["GPT2LMHeadModel"],`, "GPT2LMHeadModel"},
		{"nothing", ``, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Builtin().Read(hfSource(t, "{"+test.head+rest+"}", nil))
			var unsupported *UnsupportedError
			if !errors.As(err, &unsupported) || unsupported.Name != test.want ||
				!slices.Equal(unsupported.Known, Builtin().Names()) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestStopIDs(t *testing.T) {
	src := hfSource(t, llama32, llama32Size.hfShapes())
	for _, test := range []struct {
		name               string
		config, generation any
		want               []int32
	}{
		{"neither", absent, absent, nil},
		{"null", nil, map[string]any{}, nil},
		{"union", object(t, `{"x": [128009, 128001]}`)["x"], object(t, `{"eos_token_id": [128008, 128001, 128008]}`),
			[]int32{128001, 128008, 128009}},
		{"outside the vocabulary", object(t, `{"x": [-1, 128256, 1e30, 7]}`)["x"], absent, []int32{7}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := Builtin().Read(src.with(map[string]any{"eos_token_id": test.config, "generation_config": test.generation}))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(c.StopIDs, test.want) {
				t.Errorf("got %v, want %v", c.StopIDs, test.want)
			}
		})
	}
	gguf := tinyGGUF(t, "tiny/llama/model.gguf").with(map[string]any{
		"tokenizer.ggml.eos_token_id": uint32(9), "tokenizer.ggml.eot_token_id": uint32(3),
		"tokenizer.ggml.eom_token_id": uint32(1<<32 - 1),
	})
	if c := readChecked(t, Builtin(), gguf); !slices.Equal(c.StopIDs, []int32{3, 9}) {
		t.Errorf("GGUF: %v", c.StopIDs)
	}
}

func TestWindows(t *testing.T) {
	small := size{4, 64, 4, 2, 16, 128, 100, true, false, "q k v"}
	const rest = `"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
		"num_hidden_layers": 4, "vocab_size": 100, "max_position_embeddings": 512, "rms_norm_eps": 1e-6`
	plainSize := small
	plainSize.bias = ""
	for _, test := range []struct {
		name, head string
		size       size
		want       []int
	}{
		{"qwen2 off by default", `"model_type": "qwen2", "sliding_window": 16, "max_window_layers": 0,`, small, []int{0, 0, 0, 0}},
		{"qwen2 from a layer on", `"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 16, "max_window_layers": 3,`, small, []int{0, 0, 0, 16}},
		{"qwen2 default from", `"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 16,`, small, []int{0, 0, 0, 0}},
		{"qwen2 by types", `"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 16, "max_window_layers": 1,
			"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],`, small, []int{16, 0, 16, 0}},
		{"mistral", `"model_type": "mistral", "sliding_window": 7,`, plainSize, []int{7, 7, 7, 7}},
		{"mistral null", `"model_type": "mistral", "sliding_window": null,`, plainSize, []int{0, 0, 0, 0}},
		{"mistral absent", `"model_type": "mistral",`, plainSize, []int{4096, 4096, 4096, 4096}},
		{"llama has none", `"model_type": "llama", "sliding_window": 7,`, plainSize, []int{0, 0, 0, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := readChecked(t, Builtin(), hfSource(t, "{"+test.head+rest+"}", test.size.hfShapes()))
			var got []int
			for _, l := range c.Layer {
				got = append(got, l.Window)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
	gguf := tinyGGUF(t, "tiny/llama/model.gguf").with(map[string]any{"llama.attention.sliding_window": uint32(5)})
	if c := readChecked(t, Builtin(), gguf); !slices.Equal(c.Layer, []Layer{{Window: 5}, {Window: 5}}) {
		t.Errorf("GGUF: %v", c.Layer)
	}
}
