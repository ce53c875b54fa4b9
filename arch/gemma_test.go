package arch

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

// Configurations as published, without keys that no engine reads.
const (
	gemma7b = `{"architectures": ["GemmaForCausalLM"], "attention_bias": false, "eos_token_id": 1, "head_dim": 256,
		"hidden_act": "gelu_pytorch_tanh", "hidden_activation": null, "hidden_size": 3072, "intermediate_size": 24576,
		"max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 16, "num_hidden_layers": 28,
		"num_key_value_heads": 16, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000.0, "vocab_size": 256000}`
	gemma2at27b = `{"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": 50.0,
		"eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 128, "hidden_act": "gelu_pytorch_tanh",
		"hidden_activation": "gelu_pytorch_tanh", "hidden_size": 4608, "intermediate_size": 36864,
		"max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 32, "num_hidden_layers": 46,
		"num_key_value_heads": 16, "query_pre_attn_scalar": 144, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
		"sliding_window": 4096, "vocab_size": 256000}`
	gemma3at1b = `{"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": null,
		"eos_token_id": [1, 106], "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
		"hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text",
		"num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256,
		"rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000,
		"sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144}`
	gemma3at4b = `{"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "model_type": "gemma3",
		"text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
		"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
		"vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"}}`
)

// fourNorms returns the shapes of a model with post-norms.
func fourNorms(s size, prefix string) map[string][]uint64 {
	shapes := map[string][]uint64{}
	for name, shape := range s.hfShapes() {
		if stem, ok := strings.CutSuffix(name, "post_attention_layernorm.weight"); ok {
			for _, norm := range []string{"pre_feedforward_layernorm", "post_feedforward_layernorm"} {
				shapes[prefix+stem+norm+".weight"] = shape
			}
		}
		shapes[prefix+name] = shape
	}
	return shapes
}

// windows returns the layers of a configuration that have a window.
func windows(c *Config) (list []int) {
	for i, l := range c.Layer {
		if l.Window > 0 {
			list = append(list, i)
		}
	}
	return list
}

// but returns 0 to n-1 without every period-th number.
func but(n, period int) (list []int) {
	for i := range n {
		if (i+1)%period != 0 {
			list = append(list, i)
		}
	}
	return list
}

func TestReadGemma(t *testing.T) {
	c := readChecked(t, Builtin(), hfSource(t, gemma7b, size{28, 3072, 16, 16, 256, 24576, 256000, false, false, ""}.hfShapes()))
	if c.Activation != GELUTanh || !c.NormPlusOne || !c.TiedHead || c.EmbedScale != float32(math.Sqrt(3072)) || c.AttnScale != 0 ||
		c.AttnSoftCap != 0 || c.LogitSoftCap != 0 || c.Tensor(AttnPostNorm, 0) != "" || len(windows(c)) > 0 {
		t.Errorf("gemma: %+v", c)
	}

	c = readChecked(t, Builtin(), hfSource(t, gemma2at27b, fourNorms(size{46, 4608, 32, 16, 128, 36864, 256000, false, false, ""}, "")))
	if c.AttnScale != 1.0/12 || c.AttnSoftCap != 50 || c.LogitSoftCap != 30 || c.Layer[0].Window != 4096 || len(c.Ropes) != 1 ||
		!slices.Equal(windows(c), but(46, 2)) || c.Tensor(AttnPostNorm, 3) != "model.layers.3.post_attention_layernorm.weight" ||
		c.Tensor(FFNNorm, 3) != "model.layers.3.pre_feedforward_layernorm.weight" {
		t.Errorf("gemma2: %+v", c)
	}

	c = readChecked(t, Builtin(), hfSource(t, gemma3at1b, fourNorms(size{26, 1152, 4, 1, 256, 6912, 262144, false, true, ""}, "")))
	if c.AttnScale != 1.0/16 || !c.QKNorm || c.LogitSoftCap != 0 || c.Layer[0].Window != 512 || !slices.Equal(windows(c), but(26, 6)) ||
		len(c.Ropes) != 2 || c.Ropes[c.Layer[0].Rope].Base != 1e4 || c.Ropes[c.Layer[5].Rope].Base != 1e6 ||
		!slices.Equal(c.StopIDs, []int32{1, 106}) {
		t.Errorf("gemma3: %+v", c)
	}
	period := hfSource(t, gemma3at1b, nil).with(map[string]any{"sliding_window_pattern": 3})
	if c, err := Builtin().Read(period); err != nil || !slices.Equal(windows(c), but(26, 3)) {
		t.Errorf("a period of 3: %v, %v", c, err)
	}
}

// TestReadGemma3Nested reads the text model of a multimodal model, whose defaults are those of
// the text configuration, under each known prefix.
func TestReadGemma3Nested(t *testing.T) {
	text := size{34, 2560, 8, 4, 256, 10240, 262208, false, true, ""}
	inside := map[string][]uint64{}
	for name, shape := range fourNorms(text, "") {
		inside[strings.Replace(name, "model.", "model.language_model.", 1)] = shape
	}
	for prefix, shapes := range map[string]map[string][]uint64{
		"language_model.model.": fourNorms(text, "language_model."), "model.language_model.": inside,
	} {
		shapes = maps.Clone(shapes)
		shapes["vision_tower.vision_model.embeddings.patch_embedding.weight"] = []uint64{1152, 3, 14, 14}
		c := readChecked(t, Builtin(), hfSource(t, gemma3at4b, shapes))
		full, local := c.Ropes[c.Layer[5].Rope], c.Ropes[c.Layer[0].Rope]
		if c.Arch != "gemma3" || c.Heads != 8 || c.KVHeads != 4 || c.HeadDim != 256 || c.Vocab != 262208 || c.Context != 131072 || !c.TiedHead ||
			full.Kind != "linear" || full.Base != 1e6 || full.InvFreq[0] != 1.0/8 || local.Kind != "default" || local.Base != 1e4 || local.InvFreq[0] != 1 ||
			!slices.Equal(windows(c), but(34, 6)) || c.Tensor(OutNorm, 0) != prefix+"norm.weight" {
			t.Errorf("%s: %+v", prefix, c)
		}
	}
}

// TestReadGemmaGGUF reads settings that the files leave to the engine.
func TestReadGemmaGGUF(t *testing.T) {
	two := tinyGGUF(t, "tiny/gemma2/model.gguf")
	c := readChecked(t, Builtin(), two.with(map[string]any{
		"gemma2.attention.sliding_window": absent, "gemma2.attn_logit_softcapping": absent, "gemma2.final_logit_softcapping": absent,
	}))
	if c.Layer[0].Window != 4096 || c.Layer[1].Window != 0 || c.AttnSoftCap != 50 || c.LogitSoftCap != 30 || c.NormPlusOne {
		t.Errorf("gemma2's defaults: %+v", c)
	}
	if c, err := Builtin().Read(two.with(map[string]any{"gemma2.block_count": uint32(46)})); err != nil || c.AttnScale != 1.0/8 { // 256 / 4 heads
		t.Errorf("gemma2 of 46 layers: %v, %v", c, err)
	}

	three := tinyGGUF(t, "tiny/gemma3_text/model.gguf")
	c = readChecked(t, Builtin(), three.with(map[string]any{
		"gemma3.rope.freq_base_swa": absent, "gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": float32(8),
	}))
	full, local := c.Ropes[c.Layer[5].Rope], c.Ropes[c.Layer[0].Rope]
	if full.Base != 1e6 || full.InvFreq[0] != 1.0/8 || local.Base != 1e4 || local.InvFreq[0] != 1 || !slices.Equal(windows(c), but(6, 6)) {
		t.Errorf("gemma3's set-ups of RoPE: %+v", c.Ropes)
	}
	for _, test := range []struct {
		pattern any
		want    []int
	}{{uint32(2), but(6, 2)}, {[]bool{false, true, true, false, false, true}, []int{1, 2, 5}}} {
		c := readChecked(t, Builtin(), three.with(map[string]any{"gemma3.attention.sliding_window_pattern": test.pattern}))
		if !slices.Equal(windows(c), test.want) {
			t.Errorf("pattern %v: windows in %v, want %v", test.pattern, windows(c), test.want)
		}
	}
	if _, err := Builtin().Read(three.with(map[string]any{"gemma3.attention.sliding_window_pattern": []bool{true}})); message(err) !=
		"arch: gemma3.attention.sliding_window_pattern: 1 entries for 6 layers" {
		t.Errorf("a pattern that is too short: %v", err)
	}
	if c, err := Builtin().Read(three.with(map[string]any{"gemma3.attention.sliding_window": absent})); err != nil || len(windows(c)) > 0 || len(c.Ropes) != 1 {
		t.Errorf("without windows: %v, %v", c, err)
	}
}
