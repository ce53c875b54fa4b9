package arch

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

const phi3Mini = `{"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
	"num_hidden_layers": 2, "vocab_size": 32064, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "sliding_window": 262144,
	"original_max_position_embeddings": 4096, "rope_theta": 10000.0, "rope_scaling": null}`

func phi3Shapes(heads, kvHeads, headDim uint64) map[string][]uint64 {
	m := map[string][]uint64{"model.embed_tokens.weight": {32064, 3072}, "lm_head.weight": {32064, 3072}, "model.norm.weight": {3072}}
	for i := range 2 {
		layer := fmt.Sprintf("model.layers.%d.", i)
		m[layer+"input_layernorm.weight"], m[layer+"post_attention_layernorm.weight"] = []uint64{3072}, []uint64{3072}
		m[layer+"self_attn.qkv_proj.weight"] = []uint64{(heads + 2*kvHeads) * headDim, 3072}
		m[layer+"self_attn.o_proj.weight"] = []uint64{3072, heads * headDim}
		m[layer+"mlp.gate_up_proj.weight"], m[layer+"mlp.down_proj.weight"] = []uint64{16384, 3072}, []uint64{3072, 8192}
	}
	return m
}

func divisors(n int, from, step float64) []any {
	var list []any
	for i := range n {
		list = append(list, from+step*float64(i))
	}
	return list
}

// Several roles share one tensor, and LongRoPE has settings for short and long contexts, under
// each of its names.
func TestPhi3(t *testing.T) {
	short, long := divisors(48, 1, 0.05), divisors(48, 1.5, 0.7)
	for _, test := range []struct {
		name   string
		change map[string]any
		factor float64
	}{
		{"longrope", map[string]any{"rope_scaling": map[string]any{"type": "longrope", "short_factor": short, "long_factor": long}}, 1.190238},
		{"su", map[string]any{"rope_scaling": map[string]any{"type": "su", "short_factor": short, "long_factor": long}}, 1.190238},
		{"yarn", map[string]any{"rope_scaling": map[string]any{"type": "yarn", "short_factor": short, "long_factor": long}}, 1.190238},
		{"transformers 5", map[string]any{"original_max_position_embeddings": absent, "rope_theta": absent, "rope_scaling": absent, "rope_parameters": map[string]any{
			"rope_type": "longrope", "rope_theta": 10000, "short_factor": short, "long_factor": long, "original_max_position_embeddings": 4096,
			"partial_rotary_factor": 1}}, 1.190238},
		{"factor", map[string]any{"rope_scaling": map[string]any{"type": "longrope", "short_factor": short, "long_factor": long, "factor": 8}}, 1.118034},
		{"attention factor", map[string]any{"rope_scaling": map[string]any{"type": "longrope", "short_factor": short, "long_factor": long, "attention_factor": 1.5}}, 1.5},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := readChecked(t, Builtin(), hfSource(t, phi3Mini, phi3Shapes(32, 32, 96)).with(test.change))
			r := c.Ropes[0]
			if c.HeadDim != 96 || c.Layer[0].Window != 262144 || r.Kind != "longrope" || r.LongFrom != 4096 || math.Abs(float64(r.AttnFactor)-test.factor) > 1e-5 {
				t.Fatalf("%+v", c)
			}
			var near, far []float64
			for i := range 48 {
				period := math.Pow(10000, float64(2*i)/96)
				near, far = append(near, 1/(period*(1+0.05*float64(i)))), append(far, 1/(period*(1.5+0.7*float64(i))))
			}
			for context, want := range map[int][]float64{1: near, 4096: near, 4097: far, 131072: far} {
				inv, factors := r.For(context)
				if err := closeTo(inv, want, 1e-6); err != nil || factors != "" {
					t.Errorf("context %d: %v", context, err)
				}
			}
			if c.DefaultContext(8192) != 4096 || c.DefaultContext(100) != 100 {
				t.Error("the default context is not the short one")
			}
			for role, want := range map[Role][3]uint64{
				Q: {0, 3072, 9216}, K: {3072, 3072, 9216}, V: {6144, 3072, 9216}, O: {0, 3072, 3072}, Gate: {0, 8192, 16384}, Up: {8192, 8192, 16384},
			} {
				if first, count, total := c.Rows(role, 0); first != want[0] || count != want[1] || total != want[2] {
					t.Errorf("%v: rows %d, %d of %d", role, first, count, total)
				}
			}
		})
	}

	// Only a part of the head is rotated, fewer KV heads, no scaling.
	c := readChecked(t, Builtin(), hfSource(t, phi3Mini, phi3Shapes(24, 8, 128)).with(map[string]any{
		"num_attention_heads": 24, "num_key_value_heads": 8, "partial_rotary_factor": 0.75, "sliding_window": nil}))
	if r := c.Ropes[0]; c.HeadDim != 128 || r.Dim != 96 || r.LongFrom != 0 || c.DefaultContext(8192) != 8192 || c.Layer[0].Window != 0 {
		t.Errorf("%+v", c)
	}

	for _, test := range []struct{ old, replacement, want string }{
		{`"short_factor": [1]`, `"short_factor": [1]`, "arch: rope_scaling.short_factor: 1 entries for 48 frequencies"},
		{`"short_factor": [1]`, `"short_factor": 1`, "arch: rope_scaling.short_factor: 1 is not a list"},
		{`"short_factor": [1]`, `"long_factor": [1]`, "arch: rope_scaling.short_factor: missing"},
		{`"short_factor": [1]`, `"short_factor": [` + strings.Repeat("1,", 47) + `0]`, "arch: rope_scaling.short_factor: 0 is not a number in 0.001..1e+06"},
	} {
		config := strings.Replace(phi3Mini, `"rope_scaling": null`, `"rope_scaling": {"type": "longrope", "short_factor": [1]}`, 1)
		_, err := Builtin().Read(hfSource(t, strings.Replace(config, test.old, test.replacement, 1), nil))
		if message(err) != test.want {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}

	shapes := phi3Shapes(32, 32, 96)
	shapes["model.layers.1.self_attn.qkv_proj.weight"][0]--
	c, err := Builtin().Read(hfSource(t, phi3Mini, shapes))
	if err != nil || message(c.Check(hfSource(t, phi3Mini, shapes))) != "arch: tensor model.layers.1.self_attn.qkv_proj.weight: shape [9215 3072], want [9216 3072]" {
		t.Errorf("%v, %v", err, c.Check(hfSource(t, phi3Mini, shapes)))
	}
}

func TestNoRope(t *testing.T) {
	const config = `{"model_type": "smollm3", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
		"num_hidden_layers": 5, "vocab_size": 100, "rope_theta": 5000000.0, "rope_scaling": null}`
	for _, test := range []struct {
		change  map[string]any
		without []int
		windows []int
		want    string
	}{
		{nil, []int{3}, nil, ""},
		{map[string]any{"no_rope_layer_interval": 2}, []int{1, 3}, nil, ""},
		{map[string]any{"no_rope_layers": []any{1, 0, 1, 1, 0}, "sliding_window": 8}, []int{1, 4}, nil, ""},
		{map[string]any{"no_rope_layers": []any{1, 0, 1, 1, 0, 0}, "sliding_window": 8, "use_sliding_window": true}, []int{1, 4}, []int{1, 4}, ""},
		{map[string]any{"no_rope_layers": []any{1}}, nil, nil, "arch: no_rope_layers: 1 entries for 5 layers"},
		{map[string]any{"no_rope_layers": []any{1, 0, 1, 1, 2}}, nil, nil, "arch: no_rope_layers: 2 is not 0 or 1"},
		{map[string]any{"no_rope_layer_interval": 0}, nil, nil, "arch: no_rope_layer_interval: 0 is not in 1..1024"},
	} {
		c, err := Builtin().Read(hfSource(t, config, nil).with(test.change))
		if message(err) != test.want {
			t.Errorf("%v: got %v, want %s", test.change, err, test.want)
		}
		if err != nil {
			continue
		}
		var without, windows []int
		for i, l := range c.Layer {
			if l.NoRope {
				without = append(without, i)
			}
			if l.Window > 0 {
				windows = append(windows, i)
			}
		}
		if !slices.Equal(without, test.without) || !slices.Equal(windows, test.windows) || !c.TiedHead || c.Ropes[0].Base != 5e6 {
			t.Errorf("%v: without RoPE %v, windows %v", test.change, without, windows)
		}
	}
}

func TestScales(t *testing.T) {
	const config = `{"model_type": "granite", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
		"num_hidden_layers": 1, "vocab_size": 100}`
	type scales struct{ embed, attn, residual, logits float32 }
	for _, test := range []struct {
		change map[string]any
		want   scales
		fault  string
	}{
		{nil, scales{0, 1, 0, 0}, ""}, // the defaults of transformers' class
		{map[string]any{"embedding_multiplier": 12, "attention_multiplier": 0.0078125, "residual_multiplier": 0.22, "logits_scaling": 16}, scales{12, 0.0078125, 0.22, 0.0625}, ""},
		{map[string]any{"logits_scaling": -1}, scales{}, "arch: logits_scaling: -1 is not in 0..1e+06"},
		{map[string]any{"residual_multiplier": 1e-9}, scales{}, "arch: residual_multiplier: 1e-09 is not in 1e-06..1e+06"},
		{map[string]any{"residual_multiplier": "x"}, scales{}, `arch: residual_multiplier: "x" is not a number`},
	} {
		c, err := Builtin().Read(hfSource(t, config, nil).with(test.change))
		if message(err) != test.fault {
			t.Errorf("%v: got %v, want %s", test.change, err, test.fault)
		} else if err == nil && test.want != (scales{c.EmbedScale, c.AttnScale, c.ResidualScale, c.LogitScale}) {
			t.Errorf("%v: %+v", test.change, c)
		}
	}
}

// Norms over all heads, post-norms, and biases of norms have shapes of their own.
func TestDenseShapes(t *testing.T) {
	for _, test := range []struct {
		variant, tensor string
		shape           []uint64
	}{
		{"olmo2", "model.layers.1.self_attn.q_norm.weight", []uint64{32}},
		{"olmo2", "model.layers.1.self_attn.k_norm.weight", []uint64{128}},
		{"olmo2", "model.layers.0.post_feedforward_layernorm.weight", nil},
		{"starcoder2", "model.layers.1.input_layernorm.bias", nil},
		{"starcoder2", "model.norm.bias", []uint64{1}},
		{"starcoder2", "model.layers.0.mlp.c_fc.bias", nil},
		{"starcoder2_nobias", "model.layers.0.post_attention_layernorm.bias", nil},
	} {
		src := tinyHF(t, "variants/"+test.variant)
		readChecked(t, Builtin(), src)
		shapes := maps.Clone(src.shapes)
		if src.shapes = shapes; test.shape == nil {
			delete(shapes, test.tensor)
		} else {
			shapes[test.tensor] = test.shape
		}
		c, err := Builtin().Read(src)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(src); !strings.Contains(message(err), test.tensor) {
			t.Errorf("%s: %v", test.tensor, err)
		}
	}
}

// One name for roles that cannot share a tensor is an error.
func TestFusedErrors(t *testing.T) {
	for _, test := range []struct{ old, replacement, want string }{
		{`"k": "h.%d.k"`, `"k": "h.%d.q"`, `hf.tensors.k: "h.%d.q" is q's too`},
		{`"o": "h.%d.o"`, `"o": "h.%d.q"`, `hf.tensors.o: "h.%d.q" is q's too`},
		{`"up": "h.%d.up"`, `"up": "h.%d.down"`, `hf.tensors.down: "h.%d.down" is up's too`},
		{`"out": "h"`, `"out": "h"`, ``},
		{`"up": "h.%d.up"`, `"up": "h.%d.gate"`, ``},
	} {
		_, err := Builtin().With(files(map[string]string{"custom.json": strings.Replace(custom, test.old, test.replacement, 1)}))
		if test.want == "" && err != nil || !strings.Contains(message(err), test.want) {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
	for _, edit := range [][2]string{
		{`"qk_norm": true`, `"wide_qk_norm": true`},
		{`"bias": {`, `"no_rope": {"every": -1}, "bias": {`},
		{`"bias": {`, `"no_rope": {"every": 4, "interval": "x"}, "bias": {`},
	} {
		if _, err := Builtin().With(files(map[string]string{"custom.json": strings.Replace(custom, edit[0], edit[1], 1)})); err == nil {
			t.Errorf("%s is no mistake", edit[1])
		}
	}
}
