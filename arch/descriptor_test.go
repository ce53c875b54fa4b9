package arch

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func files(contents map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, text := range contents {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

// custom is an architecture of a known shape with names of its own: head norms, a bias on two
// projections, windows by layer type.
const custom = `{
  "name": "custom", "activation": "silu", "qk_norm": true, "stop_tokens": ["<eos>"],
  "hf": {
    "model_types": ["custom_lm"], "architectures": ["CustomForCausalLM"], "rope_layout": "interleaved",
    "keys": {"hidden_size": "n_embd", "rms_norm_eps": "norm_eps", "num_hidden_layers": "n_layer"},
    "defaults": {"norm_eps": 1e-5, "max_position_embeddings": 1024, "use_bias": true, "n_layer": 2},
    "bias": {"gate": "use_bias", "down": true},
    "window": {"size": "window", "layer_types": "layer_types"},
    "tensors": {
      "embed": "wte", "out_norm": "ln_f", "head": "out", "attn_norm": "h.%d.ln_1",
      "q": "h.%d.q", "k": "h.%d.k", "v": "h.%d.v", "o": "h.%d.o", "q_norm": "h.%d.qn", "k_norm": "h.%d.kn",
      "ffn_norm": "h.%d.ln_2", "gate": "h.%d.gate", "up": "h.%d.up", "down": "h.%d.down"
    }
  }
}`

func TestWith(t *testing.T) {
	set, err := Builtin().With(files(map[string]string{"custom.json": custom, "README.md": "not a descriptor"}))
	if err != nil {
		t.Fatal(err)
	}
	if want := slices.Sorted(slices.Values(append(Builtin().Names(), "custom"))); !slices.Equal(set.Names(), want) {
		t.Errorf("names %q, want %q", set.Names(), want)
	}
	if slices.Contains(Builtin().Names(), "custom") {
		t.Error("the built-in set changed")
	}
	shapes := map[string][]uint64{"wte.weight": {100, 64}, "ln_f.weight": {64}, "out.weight": {100, 64}}
	for _, layer := range []string{"h.0.", "h.1."} {
		for name, shape := range map[string][]uint64{
			"ln_1.weight": {64}, "ln_2.weight": {64}, "q.weight": {64, 64}, "k.weight": {32, 64}, "v.weight": {32, 64},
			"o.weight": {64, 64}, "qn.weight": {16}, "kn.weight": {16}, "gate.weight": {128, 64}, "up.weight": {128, 64},
			"down.weight": {64, 128}, "gate.bias": {128}, "down.bias": {64},
		} {
			shapes[layer+name] = shape
		}
	}
	c := readChecked(t, set, hfSource(t, `{"model_type": "custom_lm", "n_embd": 64, "num_attention_heads": 4,
		"num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "window": 8,
		"layer_types": ["sliding_attention", "full_attention"]}`, shapes))
	if c.Arch != "custom" || c.Layers != 2 || c.Width != 64 || c.Eps != 1e-5 || c.Context != 1024 || c.HeadDim != 16 || !c.QKNorm ||
		c.Bias != (Bias{Gate: true, Down: true}) || c.RopeLayout != Interleaved || c.Layer[0].Window != 8 || c.Layer[1].Window != 0 ||
		c.Tensor(QNorm, 1) != "h.1.qn.weight" || c.BiasTensor(Gate, 1) != "h.1.gate.bias" || c.BiasTensor(QNorm, 1) != "" {
		t.Errorf("got %+v", c)
	}
	_, err = set.Read(hfSource(t, `{"model_type": "custom_lm"}`, nil))
	if message(err) != "arch: n_embd: missing" {
		t.Errorf("an error under the usual name: %v", err)
	}

	again, err := set.With(files(map[string]string{"custom.json": strings.Replace(custom, "custom_lm", "other_lm", 1)}))
	if err != nil || len(again.Names()) != len(set.Names()) {
		t.Errorf("replacing: %v, %v", again, err)
	}
}

func TestWithErrors(t *testing.T) {
	edit := func(old, replacement string) string {
		if !strings.Contains(custom, old) {
			t.Fatalf("%q is not in the descriptor", old)
		}
		return strings.Replace(custom, old, replacement, 1)
	}
	for _, test := range []struct{ name, text, want string }{
		{"unknown field", edit(`"qk_norm"`, `"qk_nrom"`), `unknown field "qk_nrom"`},
		{"unknown nested field", edit(`"size"`, `"width"`), `unknown field "width"`},
		{"type", edit(`"qk_norm": true`, `"qk_norm": 1`), "qk_norm"},
		{"name", edit(`"name": "custom"`, `"name": ""`), "name: missing"},
		{"no form", `{"name": "x", "activation": "silu"}`, "hf and gguf: one of them is required"},
		{"no activation", edit(`"activation": "silu", `, ``), "activation: missing"},
		{"activation", edit(`"silu"`, `"softsign"`), `activation: "softsign" is not one of silu, swish, `},
		{"layout", edit(`"interleaved"`, `"mixed"`), `rope_layout: "mixed" is not half or interleaved`},
		{"no layout", edit(`"rope_layout": "interleaved",`, ``), "hf.rope_layout: missing"},
		{"no types", edit(`["custom_lm"]`, `[]`), "hf.model_types: missing"},
		{"no classes", edit(`["CustomForCausalLM"]`, `[]`), "hf.architectures: missing"},
		{"missing tensor", edit(`"embed": "wte", `, ``), "hf.tensors.embed: missing"},
		{"missing norm", edit(`"q_norm": "h.%d.qn", `, ``), "hf.tensors.q_norm: missing"},
		{"no layer in a name", edit(`h.%d.up`, `h.up`), `hf.tensors.up: "h.up" does not have "%d" 1 times`},
		{"a layer too many", edit(`ln_f`, `ln_%d`), `hf.tensors.out_norm: "ln_%d" does not have "%d" 0 times`},
		{"another verb", edit(`h.%d.up`, `h.%d.%s`), `hf.tensors.up`},
		{"role", edit(`"up":`, `"upp":`), `role "upp" is not one of embed, out_norm`},
		{"bias of a norm", edit(`"gate": "use_bias"`, `"q_norm": true`), "hf.bias: q_norm has no bias"},
		{"bias value", edit(`"down": true`, `"down": 1`), "bias: "},
		{"key", edit(`"hidden_size":`, `"hiden_size":`), `hf.keys: "hiden_size" is not one of num_hidden_layers`},
		{"default", edit(`"use_bias": true`, `"use_bais": true`), `hf.defaults: nothing reads "use_bais"`},
		{"default under the usual name", edit(`"norm_eps": 1e-5`, `"rms_norm_eps": 1e-5`), `hf.defaults: nothing reads "rms_norm_eps"`},
		{"defaults of another model", edit(`"keys"`, `"model_defaults": {"llama": {}}, "keys"`), `hf.model_defaults: "llama" is not in model_types`},
		{"default of a model", edit(`"keys"`, `"model_defaults": {"custom_lm": {"use_bais": true}}, "keys"`), `hf.model_defaults: nothing reads "use_bais"`},
		{"prefix", edit(`"keys"`, `"prefixes": ["%d."], "keys"`), "hf.prefixes"},
		{"window", edit(`"size": "window", `, ``), "hf.window.size: missing"},
		{"claimed type", edit(`custom_lm`, `llama`), `model type "llama" is claimed by`},
		{"claimed class", edit(`CustomForCausalLM`, `Qwen2ForCausalLM`), `class "Qwen2ForCausalLM" is claimed by`},
		{"more", custom + "{}", "data after the descriptor"},
		{"cut", custom[:100], "unexpected EOF"},
		{"long", custom + strings.Repeat(" ", maxDescriptor), "longer than 1048576 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Builtin().With(files(map[string]string{"bad.json": test.text}))
			if err == nil || !strings.HasPrefix(err.Error(), "arch: ") || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %s", err, test.want)
			}
			if !strings.Contains(err.Error(), "bad.json") && !strings.HasPrefix(test.name, "claimed") {
				t.Errorf("%v does not name the file", err)
			}
		})
	}
}
