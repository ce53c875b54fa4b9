package arch

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func init() {
	// The settings of Gemma 3n E4B, without those that equal defaults.
	published["Gemma 3n E4B"] = struct {
		config string
		check  func(*Config) bool
	}{`{"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text", "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_size": 2048,
		"hidden_size_per_layer_input": 256, "laurel_rank": 64, "max_position_embeddings": 32768, "num_attention_heads": 8, "num_hidden_layers": 35, "num_key_value_heads": 2,
		"num_kv_shared_layers": 15, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0, "rope_scaling": null, "rope_theta": 1000000.0, "sliding_window": 512,
		"altup_active_idx": 0, "altup_coef_clip": 120.0, "altup_correct_scale": true, "altup_num_inputs": 4, "vocab_size": 262400, "vocab_size_per_layer_input": 262144}}`,
		func(c *Config) bool {
			return c.AltUp == AltUp{4, 64} && c.Inputs == LayerInputs{256, 262144} && c.LogitSoftCap == 30 && c.AttnScale == 1 && c.ValueNorm && c.QKNorm && c.FF == 16384 &&
				c.Layer[9].TopGates && !c.Layer[10].TopGates && c.Layer[0].GateCutoff == 1.6448536 && c.Layer[4].Window == 0 && c.Layer[5].Window == 512 &&
				c.Ropes[c.Layer[4].Rope].Base == 1e6 && c.Ropes[c.Layer[0].Rope].Base == 1e4 && c.Layer[19].KVBack == 0 && c.Layer[20].KVBack == 2 && c.Layer[34].KVBack == 15 &&
				c.Tensor(AltUpUnembed, 2) == "model.altup_unembed_projections.2.weight" && c.Tensor(AltUpScale, 7) == "model.layers.7.altup.correct_output_scale"
		}}
}

// TestAltUpErrors reads settings of Gemma 3n that are not supported, and checks that errors name them.
func TestAltUpErrors(t *testing.T) {
	config := published["Gemma 3n E4B"].config
	for _, test := range []struct{ from, to, want string }{
		{`"altup_active_idx": 0`, `"altup_active_idx": 1`, "altup_active_idx: 1 is not supported"},
		{`"altup_correct_scale": true`, `"altup_correct_scale": false`, "altup_correct_scale: false is not supported"},
		{`"altup_num_inputs": 4`, `"altup_num_inputs": 5`, "altup_num_inputs: 5 is not in 2..4"},
		{`"laurel_rank": 64`, `"laurel_rank": 0`, "laurel_rank: 0 is not in 1.."},
		{`"laurel_rank": 64`, `"laurel_rank": 64, "activation_sparsity_pattern": [0.95]`, "activation_sparsity_pattern: 1 entries for 35 layers"},
		{`"num_hidden_layers": 35`, `"num_hidden_layers": 1, "num_kv_shared_layers": 0, "activation_sparsity_pattern": [1.0]`, "activation_sparsity_pattern: 1.0 is not a fraction below 1"},
		{`"hidden_size": 2048`, `"hidden_size": 2048, "intermediate_size": [1, 2]`, "intermediate_size: 2 entries for 35 layers"},
		{`"hidden_size_per_layer_input": 256`, `"hidden_size_per_layer_input": 0`, "alternating updates require inputs of layers"},
	} {
		changed := strings.Replace(config, test.from, test.to, 1)
		if test.to == `"num_hidden_layers": 1, "num_kv_shared_layers": 0, "activation_sparsity_pattern": [1.0]` {
			changed = strings.Replace(changed, `"num_kv_shared_layers": 15, `, ``, 1)
		}
		if _, err := Builtin().Read(hfSource(t, changed, nil)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", test.to, err, test.want)
		}
	}
}

// TestConvertAltUp checks what a GGUF file of Gemma 3n has beyond that of other families: the stacked matrices of
// copies, rows for all tokens in the embedding of inputs, and a cutoff for each layer.
func TestConvertAltUp(t *testing.T) {
	v, err := Builtin().Convert(tinyHF(t, "variants/gemma3n_three"))
	if err != nil {
		t.Fatal(err)
	}
	src := convertedSource(v)
	for name, want := range map[string][]uint64{
		"altup_proj.weight": {2, 96, 96}, "altup_unembd_proj.weight": {2, 96, 96}, "per_layer_token_embd.weight": {512, 100}, "blk.4.altup_correct_scale.weight": {96},
	} {
		if got := src.shapes[name]; !slices.Equal(got, want) {
			t.Errorf("%s: shape %d, want %d", name, got, want)
		}
	}
	list := src.meta["gemma3n.activation_sparsity_scale"].([]float32)
	if len(list) != 5 || list[0] != 0 || !math.IsInf(float64(list[1]), -1) || math.Abs(float64(list[2])-1.2815516) > 1e-6 || list[3] >= 0 {
		t.Errorf("cutoffs %v", list)
	}
	c, err := Builtin().Read(src)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Config.Same(c, nil); err != nil {
		t.Error(err)
	}
	if err := c.Check(src); err != nil {
		t.Error(err)
	}
	for name, value := range map[string]any{"activation_sparsity_scale": []float32{0, 0}, "altup.num_inputs": uint32(9), "altup.active_idx": uint32(1)} {
		src := convertedSource(v)
		src.meta["gemma3n."+name] = value
		if _, err := Builtin().Read(src); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s = %v: error %v", name, value, err)
		}
	}
}
