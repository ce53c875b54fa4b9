package packed

import (
	"fmt"
	"maps"
	"math/rand/v2"
)

// Selective are the sizes of Mamba-2 layers.
type Selective struct {
	StateHeads, StateHeadDim, Groups, State, Taps int
	ConvBias                                      bool
}

// Inner returns the elements of all heads.
func (s *Selective) Inner() int { return s.StateHeads * s.StateHeadDim }

// Channels returns the elements of the convolution.
func (s *Selective) Channels() int { return s.Inner() + 2*s.Groups*s.State }

// mamba adds the tensors of a Mamba-2 layer, whose names begin as in returns them.
func (r *random) mamba(s *Selective, width int, in func(name string) string) {
	r.matrix(in("in_proj"), s.Inner()+s.Channels()+s.StateHeads, width)
	r.add(in("conv1d.weight"), 0, 0.6, s.Channels(), 1, s.Taps)
	if s.ConvBias {
		r.add(in("conv1d.bias"), 0, 0.3, s.Channels())
	}
	r.add(in("A_log"), 0.5, 0.7, s.StateHeads)
	r.add(in("dt_bias"), -1, 1, s.StateHeads)
	r.add(in("D"), 1, 0.3, s.StateHeads)
	r.matrix(in("out_proj"), width, s.Inner())
}

// attention adds the tensors of an attention layer.
func (r *random) attention(width, heads, kvHeads, dim int, in func(name string) string) {
	r.matrix(in("q_proj"), heads*dim, width)
	r.matrix(in("k_proj"), kvHeads*dim, width)
	r.matrix(in("v_proj"), kvHeads*dim, width)
	r.matrix(in("o_proj"), width, heads*dim)
}

// Granite is a small model of Granite 4 with Mamba-2 layers and without experts, in float32.
type Granite struct {
	Selective
	Width, Heads, KVHeads, FF, Vocab int
	Types                            []string // of the layers: mamba or attention
	Rope                             bool     // attention rotates Q and K
	Theta, Eps                       float64
	Embed, Attn, Residual, Logits    float64           // multipliers
	Tensors                          map[string]Floats // set by Write
}

// Granites returns models with different heads, groups and layers.
func Granites() map[string]*Granite {
	return map[string]*Granite{
		"one group": {Selective: Selective{StateHeads: 4, StateHeadDim: 32, Groups: 1, State: 16, Taps: 4, ConvBias: true},
			Width: 64, Heads: 4, KVHeads: 2, FF: 96, Vocab: 512, Types: []string{"mamba", "mamba", "attention", "mamba"},
			Theta: 1e4, Eps: 1e-5, Embed: 2, Attn: 0.2, Residual: 0.5, Logits: 2},
		"two groups": {Selective: Selective{StateHeads: 6, StateHeadDim: 20, Groups: 2, State: 24, Taps: 3},
			Width: 60, Heads: 2, KVHeads: 1, FF: 64, Vocab: 512, Types: []string{"attention", "mamba"},
			Rope: true, Theta: 1e5, Eps: 1e-3, Embed: 1, Attn: 0.3, Residual: 1, Logits: 1},
	}
}

// Write fills the model with random weights and writes it as a Hugging Face directory.
func (m *Granite) Write(dir string) error {
	r := random{rand.New(rand.NewPCG(19, 7)), map[string]Floats{}}
	r.add("model.embed_tokens.weight", 0, 1, m.Vocab, m.Width)
	r.norm("model.norm", m.Width)
	r.matrix("lm_head", m.Vocab, m.Width)
	for l, kind := range m.Types {
		in := func(block string) func(name string) string {
			return func(name string) string { return fmt.Sprintf("model.layers.%d.%s%s", l, block, name) }
		}
		own := in("")
		r.norm(own("input_layernorm"), m.Width)
		r.norm(own("post_attention_layernorm"), m.Width)
		if kind == "mamba" {
			r.mamba(&m.Selective, m.Width, in("mamba."))
			r.norm(own("mamba.norm"), m.Inner())
		} else {
			r.attention(m.Width, m.Heads, m.KVHeads, m.Width/m.Heads, in("self_attn."))
		}
		r.matrix(own("shared_mlp.input_linear"), 2*m.FF, m.Width)
		r.matrix(own("shared_mlp.output_linear"), m.Width, m.FF)
	}
	m.Tensors = maps.Clone(r.tensors)
	position := "nope"
	if m.Rope {
		position = "rope"
	}
	return r.write(dir, map[string]any{
		"architectures": []string{"GraniteMoeHybridForCausalLM"}, "model_type": "granitemoehybrid", "torch_dtype": "float32", "hidden_act": "silu",
		"num_hidden_layers": len(m.Types), "hidden_size": m.Width, "intermediate_size": 4 * m.FF, "shared_intermediate_size": m.FF, "layer_types": m.Types,
		"num_attention_heads": m.Heads, "num_key_value_heads": m.KVHeads, "num_local_experts": 0, "num_experts_per_tok": 0,
		"mamba_n_heads": m.StateHeads, "mamba_d_head": m.StateHeadDim, "mamba_n_groups": m.Groups, "mamba_d_state": m.State, "mamba_d_conv": m.Taps,
		"mamba_expand": m.Inner() / m.Width, "mamba_conv_bias": m.ConvBias, "mamba_proj_bias": false,
		"vocab_size": m.Vocab, "max_position_embeddings": 1024, "rms_norm_eps": m.Eps, "tie_word_embeddings": false, "position_embedding_type": position,
		"embedding_multiplier": m.Embed, "attention_multiplier": m.Attn, "residual_multiplier": m.Residual, "logits_scaling": m.Logits,
		"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": m.Theta},
	})
}
