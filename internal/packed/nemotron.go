package packed

import (
	"fmt"
	"maps"
	"math/rand/v2"
)

// NemotronH is a small model of Nemotron-H, whose layers have one block each, in float32.
type NemotronH struct {
	Selective
	Pattern                                   string // of the layers: M, * or -
	Width, Heads, KVHeads, HeadDim, FF, Vocab int
	Eps, StepMin, StepMax                     float64
	Tensors                                   map[string]Floats // set by Write
}

// NemotronHs returns models with and without bounds of the step sizes that matter.
func NemotronHs() map[string]*NemotronH {
	return map[string]*NemotronH{
		"bounded": {Selective: Selective{StateHeads: 6, StateHeadDim: 16, Groups: 3, State: 16, Taps: 4, ConvBias: true}, Pattern: "M-*-M", StepMin: 0.1, StepMax: 0.6,
			Width: 64, Heads: 4, KVHeads: 2, HeadDim: 24, FF: 96, Vocab: 512, Eps: 1e-5},
		"attention first": {Selective: Selective{StateHeads: 2, StateHeadDim: 40, Groups: 1, State: 32, Taps: 4, ConvBias: true}, Pattern: "*M-", StepMax: 1e9,
			Width: 48, Heads: 2, KVHeads: 1, HeadDim: 32, FF: 64, Vocab: 512, Eps: 1e-4},
	}
}

// Write fills the model with random weights and writes it as a Hugging Face directory.
func (m *NemotronH) Write(dir string) error {
	r := random{rand.New(rand.NewPCG(19, 9)), map[string]Floats{}}
	r.add("backbone.embeddings.weight", 0, 1, m.Vocab, m.Width)
	r.norm("backbone.norm_f", m.Width)
	r.matrix("lm_head", m.Vocab, m.Width)
	for l, kind := range m.Pattern {
		in := func(name string) string { return fmt.Sprintf("backbone.layers.%d.mixer.%s", l, name) }
		r.norm(fmt.Sprintf("backbone.layers.%d.norm", l), m.Width)
		switch kind {
		case 'M':
			r.mamba(&m.Selective, m.Width, in)
			r.norm(in("norm"), m.Inner())
		case '*':
			r.attention(m.Width, m.Heads, m.KVHeads, m.HeadDim, in)
		default:
			r.matrix(in("up_proj"), m.FF, m.Width)
			r.matrix(in("down_proj"), m.Width, m.FF)
		}
	}
	m.Tensors = maps.Clone(r.tensors)
	return r.write(dir, map[string]any{
		"architectures": []string{"NemotronHForCausalLM"}, "model_type": "nemotron_h", "torch_dtype": "float32", "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu",
		"num_hidden_layers": len(m.Pattern), "hybrid_override_pattern": m.Pattern, "hidden_size": m.Width, "intermediate_size": m.FF,
		"num_attention_heads": m.Heads, "num_key_value_heads": m.KVHeads, "head_dim": m.HeadDim,
		"mamba_num_heads": m.StateHeads, "mamba_head_dim": m.StateHeadDim, "n_groups": m.Groups, "ssm_state_size": m.State, "conv_kernel": m.Taps,
		"use_conv_bias": m.ConvBias, "use_bias": false, "time_step_limit": []float64{m.StepMin, m.StepMax},
		"vocab_size": m.Vocab, "max_position_embeddings": 1024, "layer_norm_epsilon": m.Eps, "tie_word_embeddings": false,
	})
}
