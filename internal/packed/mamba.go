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
		"attention": {Selective: Selective{StateHeads: 4, StateHeadDim: 32, Groups: 1, State: 16, Taps: 4, ConvBias: true},
			Width: 64, Heads: 4, KVHeads: 2, FF: 96, Vocab: 512, Types: []string{"attention", "attention"},
			Rope: true, Theta: 1e4, Eps: 1e-5, Embed: 2, Attn: 0.2, Residual: 0.5, Logits: 2},
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

// FalconH1 is a small model of Falcon-H1, whose layers have attention beside Mamba-2, in float32.
type FalconH1 struct {
	Selective
	Layers, Width, Heads, KVHeads, HeadDim, FF, Vocab int
	Norm, NormFirst                                   bool // the groups of Mamba-2's result are normalised, before the gate
	Theta, Eps                                        float64
	Embed, Key, AttnIn, AttnOut, In, Out, Logits      float64 // multipliers
	Parts                                             [5]float64
	Gate, Down                                        float64
	Tensors                                           map[string]Floats // set by Write
}

// FalconH1s returns models with the possible norms.
func FalconH1s() map[string]*FalconH1 {
	return map[string]*FalconH1{
		"no norm": {Selective: Selective{StateHeads: 6, StateHeadDim: 16, Groups: 2, State: 16, Taps: 4, ConvBias: true},
			Layers: 2, Width: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FF: 96, Vocab: 512, Theta: 1e6, Eps: 1e-5,
			Embed: 1.5, Key: 0.7, AttnIn: 1.2, AttnOut: 0.8, In: 1.3, Out: 0.6, Logits: 0.3, Parts: [5]float64{0.5, 0.7, 0.9, 1.1, 0.8}, Gate: 0.9, Down: 0.7},
		"norm after": {Selective: Selective{StateHeads: 4, StateHeadDim: 24, Groups: 2, State: 20, Taps: 4, ConvBias: true}, Norm: true,
			Layers: 2, Width: 80, Heads: 2, KVHeads: 1, HeadDim: 32, FF: 64, Vocab: 512, Theta: 1e4, Eps: 1e-4,
			Embed: 1, Key: 1, AttnIn: 1, AttnOut: 1, In: 1, Out: 1, Logits: 1, Parts: [5]float64{1, 1, 1, 1, 1}, Gate: 1, Down: 1},
		"norm before": {Selective: Selective{StateHeads: 4, StateHeadDim: 16, Groups: 4, State: 8, Taps: 2}, Norm: true, NormFirst: true,
			Layers: 3, Width: 48, Heads: 3, KVHeads: 3, HeadDim: 16, FF: 64, Vocab: 512, Theta: 1e4, Eps: 1e-4,
			Embed: 2, Key: 1, AttnIn: 1, AttnOut: 0.5, In: 1, Out: 1, Logits: 2, Parts: [5]float64{1, 1, 0.5, 1, 1}, Gate: 1, Down: 1},
	}
}

// Write fills the model with random weights and writes it as a Hugging Face directory.
func (m *FalconH1) Write(dir string) error {
	r := random{rand.New(rand.NewPCG(19, 8)), map[string]Floats{}}
	r.add("model.embed_tokens.weight", 0, 1, m.Vocab, m.Width)
	r.norm("model.final_layernorm", m.Width)
	r.matrix("lm_head", m.Vocab, m.Width)
	for l := range m.Layers {
		in := func(block string) func(name string) string {
			return func(name string) string { return fmt.Sprintf("model.layers.%d.%s%s", l, block, name) }
		}
		own := in("")
		r.norm(own("input_layernorm"), m.Width)
		r.norm(own("pre_ff_layernorm"), m.Width)
		r.mamba(&m.Selective, m.Width, in("mamba."))
		if m.Norm {
			r.norm(own("mamba.norm"), m.Inner())
		}
		r.attention(m.Width, m.Heads, m.KVHeads, m.HeadDim, in("self_attn."))
		r.matrix(own("feed_forward.gate_proj"), m.FF, m.Width)
		r.matrix(own("feed_forward.up_proj"), m.FF, m.Width)
		r.matrix(own("feed_forward.down_proj"), m.Width, m.FF)
	}
	m.Tensors = maps.Clone(r.tensors)
	return r.write(dir, map[string]any{
		"architectures": []string{"FalconH1ForCausalLM"}, "model_type": "falcon_h1", "torch_dtype": "float32", "hidden_act": "silu",
		"num_hidden_layers": m.Layers, "hidden_size": m.Width, "intermediate_size": m.FF, "head_dim": m.HeadDim,
		"num_attention_heads": m.Heads, "num_key_value_heads": m.KVHeads,
		"mamba_n_heads": m.StateHeads, "mamba_d_ssm": m.Inner(), "mamba_n_groups": m.Groups, "mamba_d_state": m.State, "mamba_d_conv": m.Taps,
		"mamba_conv_bias": m.ConvBias, "mamba_proj_bias": false, "mamba_rms_norm": m.Norm, "mamba_norm_before_gate": m.NormFirst,
		"vocab_size": m.Vocab, "max_position_embeddings": 1024, "rms_norm_eps": m.Eps, "tie_word_embeddings": false,
		"embedding_multiplier": m.Embed, "key_multiplier": m.Key, "attention_in_multiplier": m.AttnIn, "attention_out_multiplier": m.AttnOut,
		"ssm_in_multiplier": m.In, "ssm_out_multiplier": m.Out, "lm_head_multiplier": m.Logits, "ssm_multipliers": m.Parts, "mlp_multipliers": [2]float64{m.Gate, m.Down},
		"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": m.Theta},
	})
}
