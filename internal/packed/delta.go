package packed

import (
	"fmt"
	"maps"
	"math/rand/v2"
)

// Delta is a small model with gated delta layers and gated attention, in float32.
type Delta struct {
	Width, Heads, KVHeads, HeadDim, FF, Vocab int
	KeyHeads, Values, KeyDim, ValueDim, Taps  int
	Types                                     []string // of the layers: linear_attention or full_attention
	Theta, Eps, Partial                       float64
	Joined                                    bool              // the projections are stored as Qwen3-Next stores them
	Tensors                                   map[string]Floats // set by Write
}

// Deltas returns models with different heads.
func Deltas() map[string]*Delta {
	const linear, full = "linear_attention", "full_attention"
	return map[string]*Delta{
		"grouped": {Width: 64, Heads: 4, KVHeads: 2, HeadDim: 32, FF: 96, Vocab: 512, KeyHeads: 2, Values: 6, KeyDim: 16, ValueDim: 24, Taps: 4,
			Types: []string{linear, linear, full, linear}, Theta: 1e7, Eps: 1e-6, Partial: 0.25},
		"equal": {Width: 96, Heads: 2, KVHeads: 1, HeadDim: 64, FF: 64, Vocab: 512, KeyHeads: 4, Values: 4, KeyDim: 40, ValueDim: 32, Taps: 3,
			Types: []string{full, linear}, Theta: 1e4, Eps: 1e-3, Partial: 0.5},
		"joined": {Width: 64, Heads: 4, KVHeads: 2, HeadDim: 32, FF: 96, Vocab: 512, KeyHeads: 2, Values: 4, KeyDim: 16, ValueDim: 24, Taps: 4,
			Types: []string{linear, full, linear}, Theta: 1e7, Eps: 1e-6, Partial: 0.25, Joined: true},
	}
}

// Write fills the model with random weights and writes it as a Hugging Face directory. The weights of
// norms are those without the 1 that is added to them.
func (m *Delta) Write(dir string) error {
	r := random{rand.New(rand.NewPCG(19, 4)), map[string]Floats{}}
	zeroNorm := func(name string, n int) { r.add(name+".weight", 0, 0.1, n) }
	r.add("model.embed_tokens.weight", 0, 1, m.Vocab, m.Width)
	r.matrix("lm_head", m.Vocab, m.Width)
	zeroNorm("model.norm", m.Width)
	keys, values := m.KeyHeads*m.KeyDim, m.Values*m.ValueDim
	for l, kind := range m.Types {
		in := func(name string) string { return fmt.Sprintf("model.layers.%d.%s", l, name) }
		zeroNorm(in("input_layernorm"), m.Width)
		zeroNorm(in("post_attention_layernorm"), m.Width)
		if kind == "linear_attention" {
			r.matrix(in("linear_attn.in_proj_qkv"), 2*keys+values, m.Width)
			r.matrix(in("linear_attn.in_proj_z"), values, m.Width)
			r.matrix(in("linear_attn.in_proj_b"), m.Values, m.Width)
			r.matrix(in("linear_attn.in_proj_a"), m.Values, m.Width)
			r.add(in("linear_attn.conv1d.weight"), 0, 0.6, 2*keys+values, 1, m.Taps)
			r.add(in("linear_attn.A_log"), -1, 0.7, m.Values)
			r.add(in("linear_attn.dt_bias"), -1, 1, m.Values)
			r.norm(in("linear_attn.norm"), m.ValueDim)
			r.matrix(in("linear_attn.out_proj"), m.Width, values)
		} else {
			r.matrix(in("self_attn.q_proj"), 2*m.Heads*m.HeadDim, m.Width)
			r.matrix(in("self_attn.k_proj"), m.KVHeads*m.HeadDim, m.Width)
			r.matrix(in("self_attn.v_proj"), m.KVHeads*m.HeadDim, m.Width)
			r.matrix(in("self_attn.o_proj"), m.Width, m.Heads*m.HeadDim)
			zeroNorm(in("self_attn.q_norm"), m.HeadDim)
			zeroNorm(in("self_attn.k_norm"), m.HeadDim)
		}
		r.matrix(in("mlp.gate_proj"), m.FF, m.Width)
		r.matrix(in("mlp.up_proj"), m.FF, m.Width)
		r.matrix(in("mlp.down_proj"), m.Width, m.FF)
	}
	m.Tensors = maps.Clone(r.tensors)
	config := map[string]any{
		"architectures": []string{"Qwen3_5ForCausalLM"}, "model_type": "qwen3_5_text", "torch_dtype": "float32", "hidden_act": "silu",
		"num_hidden_layers": len(m.Types), "hidden_size": m.Width, "intermediate_size": m.FF, "layer_types": m.Types,
		"num_attention_heads": m.Heads, "num_key_value_heads": m.KVHeads, "head_dim": m.HeadDim,
		"linear_num_key_heads": m.KeyHeads, "linear_num_value_heads": m.Values, "linear_key_head_dim": m.KeyDim, "linear_value_head_dim": m.ValueDim,
		"linear_conv_kernel_dim": m.Taps, "vocab_size": m.Vocab, "max_position_embeddings": 1024, "rms_norm_eps": m.Eps, "tie_word_embeddings": false,
		"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": m.Theta, "partial_rotary_factor": m.Partial},
	}
	if m.Joined {
		m.join(r.tensors)
		all := make([]int, len(m.Types))
		for i := range all {
			all[i] = i
		}
		config["architectures"], config["model_type"], config["mlp_only_layers"] = []string{"Qwen3NextForCausalLM"}, "qwen3_next", all
	}
	return r.write(dir, config)
}

// join replaces the projections of gated delta layers by joined ones, which have the rows of all of them
// for each head of Q and K.
func (m *Delta) join(tensors map[string]Floats) {
	for l, kind := range m.Types {
		if kind != "linear_attention" {
			continue
		}
		in := func(name string) string { return fmt.Sprintf("model.layers.%d.linear_attn.in_proj_%s.weight", l, name) }
		qkvz, ba := Floats{Shape: []int{0, m.Width}}, Floats{Shape: []int{0, m.Width}}
		rows := func(to *Floats, from string, first, n int) {
			to.Shape[0] += n
			to.Values = append(to.Values, tensors[in(from)].Values[first*m.Width:][:n*m.Width]...)
		}
		each := m.Values / m.KeyHeads
		keys, values := m.KeyHeads*m.KeyDim, each*m.ValueDim
		for h := range m.KeyHeads {
			rows(&qkvz, "qkv", h*m.KeyDim, m.KeyDim)
			rows(&qkvz, "qkv", keys+h*m.KeyDim, m.KeyDim)
			rows(&qkvz, "qkv", 2*keys+h*values, values)
			rows(&qkvz, "z", h*values, values)
			rows(&ba, "b", h*each, each)
			rows(&ba, "a", h*each, each)
		}
		for _, name := range []string{"qkv", "z", "b", "a"} {
			delete(tensors, in(name))
		}
		tensors[in("qkvz")], tensors[in("ba")] = qkvz, ba
	}
}
