package arch

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestReadErrorsHF(t *testing.T) {
	yarn := func(more string) any {
		return object(t, `{"x": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768`+more+`}}`)["x"]
	}
	llama3 := func(more string) any {
		return object(t, `{"x": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1`+more+`}}`)["x"]
	}
	j := func(text string) any { return object(t, `{"x": `+text+`}`)["x"] }
	for _, test := range []struct {
		key   string
		value any
		want  string
	}{
		{"num_attention_heads", j("0"), "arch: num_attention_heads: 0 is not in 1..1024"},
		{"num_attention_heads", j("-4"), "arch: num_attention_heads: -4 is not in 1..1024"},
		{"num_attention_heads", j("14.5"), "arch: num_attention_heads: 14.5 is not an integer"},
		{"num_attention_heads", j("1e300"), "arch: num_attention_heads: 1e300 is not in 1..1024"},
		{"num_attention_heads", j("1e999"), "arch: num_attention_heads: 1e999 is not in 1..1024"},
		{"num_attention_heads", j("99999999999999999999"), "arch: num_attention_heads: 99999999999999999999 is not in 1..1024"},
		{"num_attention_heads", j(`"14"`), `arch: num_attention_heads: "14" is not an integer`},
		{"num_attention_heads", j(`[14]`), "arch: num_attention_heads: a list is not an integer"},
		{"num_attention_heads", j(`{}`), "arch: num_attention_heads: an object is not an integer"},
		{"num_attention_heads", j(`true`), "arch: num_attention_heads: true is not an integer"},
		{"num_attention_heads", nil, "arch: num_attention_heads: missing"},
		{"num_attention_heads", absent, "arch: num_attention_heads: missing"},
		{"num_attention_heads", j("15"), "arch: num_attention_heads: 15 is not a multiple of num_key_value_heads 2"},
		{"num_key_value_heads", j("0"), "arch: num_key_value_heads: 0 is not in 1..1024"},
		{"num_hidden_layers", j("1000000000"), "arch: num_hidden_layers: 1000000000 is not in 1..1024"},
		{"num_hidden_layers", j("9223372036854775807"), "arch: num_hidden_layers: 9223372036854775807 is not in 1..1024"},
		{"hidden_size", j("0"), "arch: hidden_size: 0 is not in 1..131072"},
		{"intermediate_size", absent, "arch: intermediate_size: missing"},
		{"vocab_size", j("-1"), "arch: vocab_size: -1 is not in 1..4194304"},
		{"max_position_embeddings", j("0"), "arch: max_position_embeddings: 0 is not in 1..134217728"},
		{"head_dim", j("63"), "arch: head_dim: 63 is odd"},
		{"head_dim", j("4096"), "arch: head_dim: 4096 is not in 1..1024"},
		{"rms_norm_eps", j("0"), "arch: rms_norm_eps: 0 is not above 0"},
		{"rms_norm_eps", j("1e-300"), "arch: rms_norm_eps: 1e-300 is not above 0"},
		{"rms_norm_eps", j("-1e-6"), "arch: rms_norm_eps: -1e-6 is not in 0..0.1"},
		{"rms_norm_eps", j("1e300"), "arch: rms_norm_eps: 1e300 is not in 0..0.1"},
		{"rms_norm_eps", j(`"x"`), `arch: rms_norm_eps: "x" is not a number`},
		{"hidden_act", j(`"softsign"`), `arch: hidden_act: "softsign" is not supported (known: ` + strings.Join(activationNames(), ", ") + ")"},
		{"hidden_act", j(`3`), "arch: hidden_act: 3 is not a string"},
		{"tie_word_embeddings", j(`1`), "arch: tie_word_embeddings: 1 is not true or false"},
		{"num_local_experts", j(`8`), "arch: num_local_experts: 8 is not supported"},
		{"model_type", j(`7`), "arch: model_type: 7 is not a string"},
		{"architectures", j(`"LlamaForCausalLM"`), `arch: architectures: "LlamaForCausalLM" is not a list`},
		{"eos_token_id", j(`[1, 2.5]`), "arch: eos_token_id: 2.5 is not a token id"},
		{"generation_config", j(`{"eos_token_id": "x"}`), `arch: generation_config.eos_token_id: "x" is not a token id`},
		{"layer_types", j(`["full_attention"]`), "arch: layer_types: 1 entries for 24 layers"},
		{"rope_theta", j("1"), "arch: rope_theta: 1 is not in 2..1e+15"},
		{"rope_theta", j("1e300"), "arch: rope_theta: 1e300 is not in 2..1e+15"},
		{"partial_rotary_factor", j("0.52"), "arch: partial_rotary_factor: 0.52 of head_dim 64 are 33, not an even number of elements"},
		{"partial_rotary_factor", j("0"), "arch: partial_rotary_factor: 0 of head_dim 64 are 0, not an even number of elements"},
		{"partial_rotary_factor", j("2"), "arch: partial_rotary_factor: 2 is not in 0..1"},
		{"rope_scaling", j(`"linear"`), `arch: rope_scaling: "linear" is not an object`},
		{"rope_scaling", j(`{"type": "dynamic", "factor": 2}`), `arch: rope_scaling.type: "dynamic" is not supported (known: default, linear, llama3, yarn, longrope, proportional)`},
		{"rope_parameters", j(`{"rope_type": "longrope"}`), `arch: rope_parameters.short_factor: missing`},
		{"rope_scaling", j(`{"type": "linear"}`), "arch: rope_scaling.factor: missing"},
		{"rope_scaling", j(`{"type": "linear", "factor": 0}`), "arch: rope_scaling.factor: 0 is not in 0.001..1e+06"},
		{"rope_scaling", j(`{"type": "linear", "factor": 1e-300}`), "arch: rope_scaling.factor: 1e-300 is not in 0.001..1e+06"},
		{"rope_scaling", llama3(``), "arch: rope_scaling.high_freq_factor: missing"},
		{"rope_scaling", llama3(`, "high_freq_factor": 0.5`), "arch: rope_scaling.high_freq_factor: 0.5 is below low_freq_factor 1"},
		{"rope_scaling", yarn(`, "beta_fast": -1`), "arch: rope_scaling.beta_fast: -1 is not in 0..1e+06"},
		{"rope_scaling", yarn(`, "truncate": 1`), "arch: rope_scaling.truncate: 1 is not true or false"},
		{"rope_scaling", yarn(`, "attention_factor": 0`), "arch: rope_scaling.attention_factor: 0 is not in 0.001..1e+06"},
		{"original_max_position_embeddings", j("0"), ""}, // used only by llama3 and yarn
		{"rope_parameters", j(`{"sliding_attention": {"rope_theta": 1e4}}`), "arch: rope_parameters.full_attention: missing"},
		{"rope_parameters", j(`{"full_attention": {"rope_theta": -1}}`), "arch: rope_parameters.full_attention.rope_theta: -1 is not in 2..1e+15"},
	} {
		t.Run(test.key, func(t *testing.T) {
			src := hfSource(t, qwen25, qwen25Size.hfShapes())
			src.meta["use_sliding_window"] = test.key == "layer_types"
			_, err := Builtin().Read(src.with(map[string]any{test.key: test.value}))
			if got := message(err); got != test.want {
				t.Errorf("%v: got  %s\nwant %s", test.value, got, test.want)
			}
		})
	}
	t.Run("sliding without a window", func(t *testing.T) {
		src := hfSource(t, qwen25, qwen25Size.hfShapes())
		src.meta["layer_types"] = j(`[` + strings.Repeat(`"sliding_attention",`, 23) + `"full_attention"]`)
		_, err := Builtin().Read(src)
		if got, want := message(err), "arch: layer_types: layer 0 slides, but there is no sliding_window"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		src.meta["layer_types"] = j(`[` + strings.Repeat(`"full_attention",`, 23) + `"chunked_attention"]`)
		var unsupported *UnsupportedValueError
		if _, err := Builtin().Read(src); !errors.As(err, &unsupported) || unsupported.Key != "layer_types" {
			t.Errorf("got %v", err)
		}
	})
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestReadErrorsGGUF(t *testing.T) {
	base := tinyGGUF(t, "tiny/llama/model.gguf")
	for _, test := range []struct {
		key   string
		value any
		want  string
	}{
		{"general.architecture", absent, "arch: general.architecture: missing"},
		{"general.architecture", uint32(1), "arch: general.architecture: 1 is not a string"},
		{"general.architecture", "gpt2", `arch: architecture "gpt2" is not supported (known: ` + strings.Join(Builtin().Names(), ", ") + ")"},
		{"llama.attention.head_count", absent, "arch: llama.attention.head_count: missing"},
		{"llama.attention.head_count", uint64(math.MaxUint64), "arch: llama.attention.head_count: 18446744073709551615 is not in 1..1024"},
		{"llama.attention.head_count", int64(-3), "arch: llama.attention.head_count: -3 is not in 1..1024"},
		{"llama.attention.head_count", float32(math.NaN()), "arch: llama.attention.head_count: NaN is not an integer"},
		{"llama.attention.head_count", math.Inf(-1), "arch: llama.attention.head_count: -Inf is not in 1..1024"},
		{"llama.attention.head_count", []uint32{4, 4}, ""},
		{"llama.attention.head_count", []uint32{4, 8}, "arch: llama.attention.head_count: an array is not an integer"},
		{"llama.attention.head_count", []uint32{}, "arch: llama.attention.head_count: an array is not an integer"},
		{"llama.attention.head_count", []string{"4"}, "arch: llama.attention.head_count: an array is not an integer"},
		{"llama.attention.head_count_kv", uint32(3), "arch: llama.attention.head_count: 4 is not a multiple of llama.attention.head_count_kv 3"},
		{"llama.attention.value_length", uint32(32), "arch: llama.attention.value_length: 32 is not the key length 64"},
		{"llama.attention.layer_norm_rms_epsilon", float32(math.NaN()), "arch: llama.attention.layer_norm_rms_epsilon: NaN is not in 0..0.1"},
		{"llama.block_count", uint32(1_000_000_000), "arch: llama.block_count: 1000000000 is not in 1..1024"},
		{"llama.expert_count", uint32(8), "arch: llama.expert_used_count: missing"},
		{"llama.expert_count", uint32(0), ""},
		{"llama.rope.dimension_count", uint32(128), "arch: llama.rope.dimension_count: 128 is not in 2..64"},
		{"llama.rope.dimension_count", uint32(33), "arch: llama.rope.dimension_count: 33 is odd"},
		{"llama.rope.freq_base", float32(math.Inf(1)), "arch: llama.rope.freq_base: +Inf is not in 2..1e+15"},
		{"llama.rope.scaling.factor", float32(1e-30), "arch: llama.rope.scaling.factor: 1.0000000031710769e-30 is not in 0.001..1e+06"},
		{"llama.rope.scaling.type", "su", `arch: llama.rope.scaling.type: "su" is not supported (known: none, linear, yarn, longrope)`},
		{"tokenizer.ggml.eos_token_id", "x", `arch: tokenizer.ggml.eos_token_id: "x" is not a token id`},
	} {
		t.Run(test.key, func(t *testing.T) {
			_, err := Builtin().Read(base.with(map[string]any{test.key: test.value}))
			if got := message(err); got != test.want {
				t.Errorf("%v: got  %s\nwant %s", test.value, got, test.want)
			}
		})
	}
	if _, err := Builtin().Read(&fakeSource{kind: "onnx"}); err == nil || !strings.Contains(err.Error(), `"onnx"`) {
		t.Errorf("kind onnx: %v", err)
	}
}

func TestCheck(t *testing.T) {
	hf := hfSource(t, qwen25, qwen25Size.hfShapes())
	hf.meta["tie_word_embeddings"] = false
	hf.shapes["lm_head.weight"] = []uint64{151936, 896}
	for _, test := range []struct {
		name  string
		shape []uint64 // nil: missing
		want  string
	}{
		{"model.layers.3.self_attn.k_proj.weight", []uint64{256, 896}, "arch: tensor model.layers.3.self_attn.k_proj.weight: shape [256 896], want [128 896]"},
		{"model.layers.23.mlp.down_proj.weight", nil, "arch: tensor model.layers.23.mlp.down_proj.weight: missing"},
		{"model.layers.0.input_layernorm.weight", []uint64{896, 1}, "arch: tensor model.layers.0.input_layernorm.weight: shape [896 1], want [896]"},
		{"model.layers.5.self_attn.q_proj.bias", nil, "arch: tensor model.layers.5.self_attn.q_proj.bias: missing"},
		{"model.layers.5.self_attn.q_proj.bias", []uint64{895}, "arch: tensor model.layers.5.self_attn.q_proj.bias: shape [895], want [896]"},
		{"model.layers.5.self_attn.o_proj.bias", []uint64{896}, "arch: tensor model.layers.5.self_attn.o_proj.bias: present, but the configuration does not call for it"},
		{"model.layers.5.self_attn.q_norm.weight", []uint64{64}, "arch: tensor model.layers.5.self_attn.q_norm.weight: present, but the configuration does not call for it"},
		{"model.embed_tokens.weight", []uint64{151935, 896}, "arch: tensor model.embed_tokens.weight: shape [151935 896], want [151936 896]"},
		{"model.norm.weight", []uint64{}, "arch: tensor model.norm.weight: shape [], want [896]"},
		{"lm_head.weight", nil, "arch: tensor lm_head.weight: missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			src := hf.with(nil)
			if test.shape == nil {
				delete(src.shapes, test.name)
			} else {
				src.shapes[test.name] = test.shape
			}
			c, err := Builtin().Read(src)
			if err != nil {
				t.Fatal(err)
			}
			err = c.Check(src)
			var tensor *TensorError
			if !errors.As(err, &tensor) || tensor.Name != test.name || err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}

	gguf := tinyGGUF(t, "tiny/llama/model.gguf")
	gguf.shapes["rope_freqs.weight"] = []uint64{64}
	c, err := Builtin().Read(gguf)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := message(c.Check(gguf)), "arch: tensor rope_freqs.weight: shape [64], want [32]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	delete(gguf.shapes, "rope_freqs.weight")
	gguf.shapes["blk.1.attn_q.scale"] = []uint64{1}
	if got, want := message(c.Check(gguf)), "arch: tensor blk.1.attn_q.scale: present, but the configuration does not call for it"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	delete(gguf.shapes, "token_embd.weight")
	if _, err := Builtin().Read(gguf); message(err) != "arch: tensor token_embd.weight: missing" {
		t.Errorf("got %v", err)
	}
}

// A bias that only some layers of a GGUF file have is an error.
func TestCheckUnevenBias(t *testing.T) {
	for _, layer := range []string{"0", "1"} {
		src := tinyGGUF(t, "tiny/qwen2/model.gguf")
		delete(src.shapes, "blk."+layer+".attn_v.bias")
		c, err := Builtin().Read(src)
		if err != nil {
			t.Fatal(err)
		}
		var tensor *TensorError
		if err := c.Check(src); !errors.As(err, &tensor) || !strings.HasSuffix(tensor.Name, ".attn_v.bias") {
			t.Errorf("without layer %s's: %v", layer, err)
		}
	}
}

func TestHeadDim(t *testing.T) {
	wide := size{2, 64, 4, 2, 32, 128, 100, true, false, ""}
	const config = `{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
		"num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 100, "rms_norm_eps": 1e-6}`
	src := hfSource(t, config, wide.hfShapes())
	if c := readChecked(t, Builtin(), src); c.HeadDim != 32 || c.Context != 2048 {
		t.Errorf("from Q's rows: head size %d, context %d", c.HeadDim, c.Context)
	}
	src.shapes["model.layers.0.self_attn.q_proj.weight"] = []uint64{129, 64}
	if _, err := Builtin().Read(src); message(err) !=
		"arch: tensor model.layers.0.self_attn.q_proj.weight: shape [129 64] is not a matrix of 4 heads of 1..1024 rows" {
		t.Errorf("129 rows: %v", err)
	}
	delete(src.shapes, "model.layers.0.self_attn.q_proj.weight")
	if c, err := Builtin().Read(src); err != nil || c.HeadDim != 16 {
		t.Errorf("from the width: %v, %v", c, err)
	}
	src.meta["hidden_size"] = 66
	if _, err := Builtin().Read(src); message(err) != "arch: num_attention_heads: 4 heads do not divide the width 66" {
		t.Errorf("width 66: %v", err)
	}
	// A given size is checked against the tensor.
	src = hfSource(t, config, wide.hfShapes())
	src.meta["head_dim"] = 16
	c, err := Builtin().Read(src)
	if err != nil {
		t.Fatal(err)
	}
	if message(c.Check(src)) != "arch: tensor model.layers.0.self_attn.q_proj.weight: shape [128 64], want [64 64]" {
		t.Errorf("head_dim 16: %v", c.Check(src))
	}
}
