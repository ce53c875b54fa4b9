package packed

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Latent is a small model with latent attention, in float32. Its feed-forward blocks are dense, or all
// but the first have experts.
type Latent struct {
	Layers, Width, Heads, FF, Vocab        int
	QRank, Rank, Nope, Rope, Value         int
	Theta, Factor, Original, Mscale, AllOf float64 // YaRN if Factor is above 1
	Eps                                    float64
	Experts                                LatentExperts
	Tensors                                map[string]Floats // set by Write
}

// LatentExperts are the experts of a Latent, of which there are none if Count is 0.
type LatentExperts struct {
	Count, Used, FF, Shared int
	Groups, TopGroups       int
	Scale                   float64
}

// Sparse reports whether a layer has experts.
func (m *Latent) Sparse(layer int) bool { return m.Experts.Count > 0 && layer > 0 }

// Latents returns models with different sizes of heads and ranks, without and with a low rank of Q,
// YaRN, and experts.
func Latents() map[string]*Latent {
	return map[string]*Latent{
		"direct": {Layers: 2, Width: 64, Heads: 4, FF: 96, Vocab: 512, Rank: 32, Nope: 16, Rope: 8, Value: 24, Theta: 10000, Eps: 1e-6},
		"ranked": {Layers: 2, Width: 96, Heads: 6, FF: 64, Vocab: 512, QRank: 40, Rank: 64, Nope: 24, Rope: 32, Value: 12, Theta: 10000, Eps: 1e-2,
			Factor: 8, Original: 64, Mscale: 0.707, AllOf: 0.707},
		"experts": {Layers: 3, Width: 64, Heads: 4, FF: 96, Vocab: 512, Rank: 32, Nope: 16, Rope: 8, Value: 16, Theta: 10000, Eps: 1e-6,
			Experts: LatentExperts{Count: 8, Used: 3, FF: 32, Shared: 2, Groups: 4, TopGroups: 2, Scale: 1.5}},
	}
}

// Write fills the model with random weights and writes it as a Hugging Face directory.
func (m *Latent) Write(dir string) error {
	config := map[string]any{
		"architectures": []string{"DeepseekV2ForCausalLM"}, "model_type": "deepseek_v2", "hidden_act": "silu", "torch_dtype": "float32",
		"num_hidden_layers": m.Layers, "hidden_size": m.Width, "intermediate_size": m.FF, "num_attention_heads": m.Heads, "num_key_value_heads": m.Heads,
		"vocab_size": m.Vocab, "max_position_embeddings": 512, "rms_norm_eps": m.Eps, "tie_word_embeddings": false,
		"q_lora_rank": nil, "kv_lora_rank": m.Rank, "qk_nope_head_dim": m.Nope, "qk_rope_head_dim": m.Rope, "v_head_dim": m.Value,
		"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": m.Theta},
	}
	if m.QRank > 0 {
		config["q_lora_rank"] = m.QRank
	}
	if m.Factor > 0 {
		config["rope_parameters"] = map[string]any{"rope_type": "yarn", "rope_theta": m.Theta, "factor": m.Factor,
			"original_max_position_embeddings": m.Original, "mscale": m.Mscale, "mscale_all_dim": m.AllOf, "beta_fast": 32.0, "beta_slow": 1.0}
	}
	if e := &m.Experts; e.Count > 0 {
		for key, value := range map[string]any{
			"n_routed_experts": e.Count, "num_experts_per_tok": e.Used, "moe_intermediate_size": e.FF, "n_shared_experts": e.Shared, "first_k_dense_replace": 1,
			"n_group": e.Groups, "topk_group": e.TopGroups, "topk_method": "group_limited_greedy", "routed_scaling_factor": e.Scale, "norm_topk_prob": false,
		} {
			config[key] = value
		}
	}
	r := rand.New(rand.NewPCG(19, 2))
	m.Tensors = map[string]Floats{}
	add := func(name string, mean, deviation float64, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		f := Floats{Shape: shape}
		for range n {
			f.Values = append(f.Values, float32(mean+deviation*r.NormFloat64()))
		}
		m.Tensors[name+".weight"] = f
	}
	matrix := func(name string, rows, columns int) { add(name, 0, 1/math.Sqrt(float64(columns)), rows, columns) }
	norm := func(name string, n int) { add(name, 1, 0.1, n) }
	add("model.embed_tokens", 0, 1, m.Vocab, m.Width)
	matrix("lm_head", m.Vocab, m.Width)
	norm("model.norm", m.Width)
	for l := range m.Layers {
		in := func(name string) string { return fmt.Sprintf("model.layers.%d.%s", l, name) }
		norm(in("input_layernorm"), m.Width)
		norm(in("post_attention_layernorm"), m.Width)
		if m.QRank > 0 {
			matrix(in("self_attn.q_a_proj"), m.QRank, m.Width)
			norm(in("self_attn.q_a_layernorm"), m.QRank)
			matrix(in("self_attn.q_b_proj"), m.Heads*(m.Nope+m.Rope), m.QRank)
		} else {
			matrix(in("self_attn.q_proj"), m.Heads*(m.Nope+m.Rope), m.Width)
		}
		matrix(in("self_attn.kv_a_proj_with_mqa"), m.Rank+m.Rope, m.Width)
		norm(in("self_attn.kv_a_layernorm"), m.Rank)
		matrix(in("self_attn.kv_b_proj"), m.Heads*(m.Nope+m.Value), m.Rank)
		matrix(in("self_attn.o_proj"), m.Width, m.Heads*m.Value)
		block := func(name string, ff int) {
			matrix(in(name+"gate_proj"), ff, m.Width)
			matrix(in(name+"up_proj"), ff, m.Width)
			matrix(in(name+"down_proj"), m.Width, ff)
		}
		if !m.Sparse(l) {
			block("mlp.", m.FF)
			continue
		}
		matrix(in("mlp.gate"), m.Experts.Count, m.Width)
		block("mlp.shared_experts.", m.Experts.Shared*m.Experts.FF)
		for e := range m.Experts.Count {
			block(fmt.Sprintf("mlp.experts.%d.", e), m.Experts.FF)
		}
	}
	_, plain := New(config)
	for name, f := range m.Tensors {
		plain.Tensors[name] = F32(f)
	}
	return plain.Write(dir)
}
