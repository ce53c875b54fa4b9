package arch

import (
	"math"
	"testing"
)

// The references are in float64 and follow the papers' formulas, not the code.

func refFreq(base float64, dim, i int) float64 {
	return math.Exp(-2 * float64(i) / float64(dim) * math.Log(base))
}

// refLlama3 is Llama 3.1's rule, in terms of the ratio of the original context to the wavelength.
func refLlama3(f, factor, low, high, context float64) float64 {
	turns := context * f / (2 * math.Pi)
	switch {
	case turns < low:
		return f / factor
	case turns > high:
		return f
	}
	smooth := (turns - low) / (high - low)
	return (1-smooth)*f/factor + smooth*f
}

// refYarn is YaRN's rule. It interpolates between pair low, the last pair with at least fast rotations
// over the context, and pair high, the first pair with at most slow rotations.
func refYarn(base float64, dim, i int, factor, context, fast, slow float64, round bool) float64 {
	pair := func(turns float64) float64 { // base^(-2 pair/dim) * context = 2 pi turns
		return float64(dim) / 2 * math.Log(context/(2*math.Pi*turns)) / math.Log(base)
	}
	low, high := pair(fast), pair(slow)
	if round {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = math.Max(low, 0), math.Min(high, float64(dim-1))
	mix := math.Min(math.Max((float64(i)-low)/(high-low), 0), 1)
	f := refFreq(base, dim, i)
	return f*(1-mix) + f/factor*mix
}

func TestRopeHF(t *testing.T) {
	const dim = 64 // head size of Qwen2.5-0.5B
	ref := func(base float64, scale func(i int, f float64) float64) []float64 {
		out := make([]float64, dim/2)
		for i := range out {
			out[i] = scale(i, refFreq(base, dim, i))
		}
		return out
	}
	same := func(_ int, f float64) float64 { return f }
	yarn := func(factor, context, fast, slow float64, round bool) []float64 {
		return ref(1e6, func(i int, _ float64) float64 { return refYarn(1e6, dim, i, factor, context, fast, slow, round) })
	}
	for _, test := range []struct {
		name, key, rope string
		kind            string
		attn            float64
		want            []float64
	}{
		{"none", "rope_scaling", `null`, "default", 1, ref(1e6, same)},
		{"empty", "rope_parameters", `{}`, "default", 1, ref(1e6, same)},
		{"theta of 5", "rope_parameters", `{"rope_type": "default", "rope_theta": 5e5}`, "default", 1, ref(5e5, same)},
		{"linear", "rope_scaling", `{"type": "linear", "factor": 4}`, "linear", 1,
			ref(1e6, func(_ int, f float64) float64 { return f / 4 })},
		{"llama3", "rope_scaling", `{"rope_type": "llama3", "factor": 32, "low_freq_factor": 1, "high_freq_factor": 4,
			"original_max_position_embeddings": 8192}`, "llama3", 1,
			ref(1e6, func(_ int, f float64) float64 { return refLlama3(f, 32, 1, 4, 8192) })},
		{"llama3 of 5", "rope_parameters", `{"rope_type": "llama3", "rope_theta": 5e5, "factor": 8, "low_freq_factor": 1,
			"high_freq_factor": 4, "original_max_position_embeddings": 64}`, "llama3", 1,
			ref(5e5, func(_ int, f float64) float64 { return refLlama3(f, 8, 1, 4, 64) })},
		{"yarn", "rope_scaling", `{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}`, "yarn",
			1.1386294361119891, yarn(4, 32768, 32, 1, true)},
		{"yarn, the context as original", "rope_scaling", `{"type": "yarn", "factor": 2}`, "yarn", 1.0693147180559945,
			yarn(2, 32768, 32, 1, true)},
		{"yarn, factor from contexts", "rope_scaling", `{"type": "yarn", "factor": null, "original_max_position_embeddings": 4096}`,
			"yarn", 1 + 0.1*math.Log(8), yarn(8, 4096, 32, 1, true)},
		{"yarn, betas, not rounded", "rope_parameters", `{"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 4096,
			"beta_fast": 20, "beta_slow": 2, "truncate": false}`, "yarn", 1 + 0.1*math.Log(16), yarn(16, 4096, 20, 2, false)},
		{"yarn, attention_factor", "rope_scaling", `{"type": "yarn", "factor": 4, "attention_factor": 0.75, "mscale": 1, "mscale_all_dim": 2}`,
			"yarn", 0.75, yarn(4, 32768, 32, 1, true)},
		{"yarn, mscale", "rope_scaling", `{"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 1.2,
			"original_max_position_embeddings": 4096}`, "yarn",
			(1 + 0.0707*math.Log(40)) / (1 + 0.12*math.Log(40)), yarn(40, 4096, 32, 1, true)},
		{"yarn, one mscale", "rope_scaling", `{"type": "yarn", "factor": 40, "mscale": 0.707}`, "yarn", 1 + 0.1*math.Log(40),
			yarn(40, 32768, 32, 1, true)},
		{"yarn, factor 1", "rope_scaling", `{"type": "yarn", "factor": 1}`, "yarn", 1, ref(1e6, same)},
	} {
		t.Run(test.name, func(t *testing.T) {
			src := hfSource(t, qwen25, qwen25Size.hfShapes())
			src.meta[test.key] = object(t, `{"x": `+test.rope+`}`)["x"]
			c := readChecked(t, Builtin(), src)
			if len(c.Ropes) != 1 {
				t.Fatalf("%d set-ups", len(c.Ropes))
			}
			r := c.Ropes[0]
			if r.Kind != test.kind || r.Dim != dim || r.AttnFactor != float32(test.attn) || r.Factors != "" {
				t.Errorf("got %s, %d, %v, %q; want %s, %v", r.Kind, r.Dim, r.AttnFactor, r.Factors, test.kind, float32(test.attn))
			}
			if err := closeTo(r.InvFreq, test.want, 1e-6); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRopeByLayerType(t *testing.T) {
	const config = `{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
		"num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 100, "use_sliding_window": true,
		"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
		"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8},
		"sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}}`
	shapes := size{3, 64, 4, 2, 16, 128, 100, true, true, ""}.hfShapes()
	c := readChecked(t, Builtin(), hfSource(t, config, shapes))
	if want := []Layer{{Window: 16}, {Rope: 1}, {Window: 16}}; len(c.Ropes) != 2 || c.Layer[0] != want[0] || c.Layer[1] != want[1] || c.Layer[2] != want[2] {
		t.Fatalf("layers %v, RoPE %+v", c.Layer, c.Ropes)
	}
	if local, global := c.Ropes[0], c.Ropes[1]; local.Dim != 8 || len(local.InvFreq) != 4 || local.Base != 1e4 ||
		global.Kind != "linear" || global.Dim != 16 || global.Base != 1e6 || global.InvFreq[0] != 0.125 {
		t.Errorf("RoPE %+v", c.Ropes)
	}

	// Equal settings are stored once.
	src := hfSource(t, config, shapes)
	src.meta["rope_parameters"] = object(t, `{"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 10000}}`)
	if c := readChecked(t, Builtin(), src); len(c.Ropes) != 1 || c.Layer[1].Rope != 0 {
		t.Errorf("layers %v, RoPE %+v", c.Layer, c.Ropes)
	}
}

func TestRopeGGUF(t *testing.T) {
	const dim, base = 64, 10000
	ref := func(scale func(i int) float64) []float64 {
		out := make([]float64, dim/2)
		for i := range out {
			out[i] = scale(i)
		}
		return out
	}
	same := ref(func(i int) float64 { return refFreq(base, dim, i) })
	eighth := ref(func(i int) float64 { return refFreq(base, dim, i) / 8 })
	yarn := ref(func(i int) float64 { return refYarn(base, dim, i, 8, 64, 32, 1, true) })
	half := ref(func(i int) float64 { return (yarn[i] + eighth[i]) / 2 })
	paper := 1 + 0.1*math.Log(8)
	for _, test := range []struct {
		name string
		meta map[string]any
		kind string
		attn float64
		want []float64
	}{
		{"none", nil, "default", 1, same},
		{"factor alone", map[string]any{"factor": float32(8)}, "linear", 1, eighth},
		{"factor 0", map[string]any{"factor": float32(0)}, "default", 1, same},
		{"type none", map[string]any{"type": "none", "factor": float32(8)}, "default", 1, same},
		{"linear", map[string]any{"type": "linear", "factor": float32(8), "attn_factor": float32(1.5)}, "linear", 1.5, eighth},
		{"yarn", map[string]any{"type": "yarn", "factor": float32(8), "original_context_length": uint32(64)}, "yarn", paper, yarn},
		// llama.cpp computes the factor itself and ignores yarn_attn_factor.
		{"yarn with factors", map[string]any{"type": "yarn", "factor": float32(8), "original_context_length": uint32(64),
			"attn_factor": float32(2), "yarn_attn_factor": float32(3)}, "yarn", 2 * paper, yarn},
		{"yarn with mscale_all_dim", map[string]any{"type": "yarn", "factor": float32(8), "original_context_length": uint32(64),
			"yarn_log_multiplier": float32(0.5)}, "yarn", paper / (1 + 0.05*math.Log(8)), yarn},
		{"yarn with betas", map[string]any{"type": "yarn", "factor": float32(8), "original_context_length": uint32(64),
			"yarn_beta_fast": float32(4), "yarn_beta_slow": float32(2)}, "yarn", paper,
			ref(func(i int) float64 { return refYarn(base, dim, i, 8, 64, 4, 2, true) })},
		{"half of yarn", map[string]any{"type": "yarn", "factor": float32(8), "original_context_length": uint32(64),
			"yarn_ext_factor": float32(0.5)}, "yarn", paper, half},
		{"no extrapolation", map[string]any{"type": "yarn", "factor": float32(8), "yarn_ext_factor": float32(0),
			"yarn_attn_factor": float32(3)}, "yarn", 3, eighth},
	} {
		t.Run(test.name, func(t *testing.T) {
			meta := map[string]any{"qwen2.rope.dimension_count": uint32(dim)}
			for key, v := range test.meta {
				meta["qwen2.rope.scaling."+key] = v
			}
			c := readChecked(t, Builtin(), tinyGGUF(t, "tiny/qwen2/model.gguf").with(meta))
			r := c.Ropes[0]
			if r.Kind != test.kind || r.Dim != dim || r.Base != base || math.Abs(float64(r.AttnFactor)-test.attn) > 1e-6 {
				t.Errorf("got %s, %d, %v, %v; want %s, %v", r.Kind, r.Dim, r.Base, r.AttnFactor, test.kind, test.attn)
			}
			if err := closeTo(r.InvFreq, test.want, 1e-6); err != nil {
				t.Error(err)
			}
		})
	}
	src := tinyGGUF(t, "tiny/qwen2/model.gguf").with(map[string]any{"qwen2.rope.scale_linear": float32(8)})
	if c := readChecked(t, Builtin(), src); c.Ropes[0].Kind != "linear" || c.Ropes[0].InvFreq[0] != 0.125 {
		t.Errorf("the older key: %+v", c.Ropes[0])
	}
}
