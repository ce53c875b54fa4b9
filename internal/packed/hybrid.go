package packed

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Conv is a small model with short convolutions and attention, in float32.
type Conv struct {
	Width, Heads, KVHeads, FF, Vocab, Taps int
	Types                                  []string // of the layers: conv or full_attention
	Bias                                   bool     // of convolutions and their projections
	Theta, Eps                             float64
	Tensors                                map[string]Floats // set by Write
}

// Convs returns models with different numbers of taps, without and with biases.
func Convs() map[string]*Conv {
	return map[string]*Conv{
		"three": {Width: 64, Heads: 4, KVHeads: 2, FF: 96, Vocab: 512, Taps: 3, Types: []string{"conv", "full_attention", "conv", "conv"}, Theta: 1e6, Eps: 1e-5},
		"bias":  {Width: 160, Heads: 5, KVHeads: 5, FF: 64, Vocab: 512, Taps: 4, Types: []string{"full_attention", "conv", "conv"}, Bias: true, Theta: 1e4, Eps: 1e-3},
	}
}

// random fills a model with random weights.
type random struct {
	r       *rand.Rand
	tensors map[string]Floats
}

func (m *random) add(name string, mean, deviation float64, shape ...int) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	f := Floats{Shape: shape}
	for range n {
		f.Values = append(f.Values, float32(mean+deviation*m.r.NormFloat64()))
	}
	m.tensors[name] = f
}

func (m *random) matrix(name string, rows, columns int) {
	m.add(name+".weight", 0, 1/math.Sqrt(float64(columns)), rows, columns)
}

func (m *random) norm(name string, n int) { m.add(name+".weight", 1, 0.1, n) }

func (m *random) write(dir string, config map[string]any) error {
	_, plain := New(config)
	for name, f := range m.tensors {
		plain.Tensors[name] = F32(f)
	}
	return plain.Write(dir)
}

// Write fills the model with random weights and writes it as a Hugging Face directory.
func (m *Conv) Write(dir string) error {
	r := random{rand.New(rand.NewPCG(19, 3)), map[string]Floats{}}
	r.add("model.embed_tokens.weight", 0, 1, m.Vocab, m.Width)
	r.norm("model.embedding_norm", m.Width)
	head := m.Width / m.Heads
	for l, kind := range m.Types {
		in := func(name string) string { return fmt.Sprintf("model.layers.%d.%s", l, name) }
		r.norm(in("operator_norm"), m.Width)
		r.norm(in("ffn_norm"), m.Width)
		if kind == "conv" {
			r.matrix(in("conv.in_proj"), 3*m.Width, m.Width)
			r.add(in("conv.conv.weight"), 0, 0.6, m.Width, 1, m.Taps)
			r.matrix(in("conv.out_proj"), m.Width, m.Width)
			if m.Bias {
				r.add(in("conv.in_proj.bias"), 0, 0.3, 3*m.Width)
				r.add(in("conv.conv.bias"), 0, 0.3, m.Width)
				r.add(in("conv.out_proj.bias"), 0, 0.3, m.Width)
			}
		} else {
			r.matrix(in("self_attn.q_proj"), m.Width, m.Width)
			r.matrix(in("self_attn.k_proj"), m.KVHeads*head, m.Width)
			r.matrix(in("self_attn.v_proj"), m.KVHeads*head, m.Width)
			r.matrix(in("self_attn.out_proj"), m.Width, m.Width)
			r.norm(in("self_attn.q_layernorm"), head)
			r.norm(in("self_attn.k_layernorm"), head)
		}
		r.matrix(in("feed_forward.w1"), m.FF, m.Width)
		r.matrix(in("feed_forward.w3"), m.FF, m.Width)
		r.matrix(in("feed_forward.w2"), m.Width, m.FF)
	}
	m.Tensors = r.tensors
	return r.write(dir, map[string]any{
		"architectures": []string{"Lfm2ForCausalLM"}, "model_type": "lfm2", "torch_dtype": "float32",
		"num_hidden_layers": len(m.Types), "hidden_size": m.Width, "intermediate_size": m.FF, "block_auto_adjust_ff_dim": false,
		"num_attention_heads": m.Heads, "num_key_value_heads": m.KVHeads, "layer_types": m.Types,
		"vocab_size": m.Vocab, "max_position_embeddings": 1024, "norm_eps": m.Eps, "conv_L_cache": m.Taps, "conv_bias": m.Bias,
		"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": m.Theta},
	})
}
