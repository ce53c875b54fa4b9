package arch

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// published are configurations as published, without keys that no engine reads, and what must be
// read from them.
var published = map[string]struct {
	config string
	check  func(c *Config) bool
}{
	"Seed-OSS 36B": {`{"model_type": "seed_oss", "attention_bias": true, "attention_out_bias": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
		"intermediate_size": 27648, "max_position_embeddings": 524288, "mlp_bias": false, "num_attention_heads": 80, "num_hidden_layers": 64,
		"num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0, "tie_word_embeddings": false, "vocab_size": 155136}`,
		func(c *Config) bool { return c.Bias == Bias{Q: true, K: true, V: true} && c.HeadDim == 128 }},
	"Gemma 4 31B": {`{"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "attention_k_eq_v": true, "enable_moe_block": false, "final_logit_softcapping": 30.0,
		"global_head_dim": 512, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 5376, "hidden_size_per_layer_input": 0, "intermediate_size": 21504,
		"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
		"max_position_embeddings": 262144, "num_attention_heads": 32, "num_global_key_value_heads": 4, "num_hidden_layers": 6, "num_key_value_heads": 16, "num_kv_shared_layers": 0,
		"rms_norm_eps": 1e-06, "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
		"sliding_window": 1024, "tie_word_embeddings": true, "use_bidirectional_attention": "vision", "use_double_wide_mlp": false, "vocab_size": 262144}}`,
		func(c *Config) bool {
			full := &c.Ropes[c.Layer[5].Rope]
			return c.HeadDimAt(0) == 256 && c.HeadDimAt(5) == 512 && c.KVHeadsAt(0) == 16 && c.KVHeadsAt(5) == 4 && c.Layer[5].ValueIsKey && !c.Layer[4].ValueIsKey &&
				c.AttnScale == 1 && c.ValueNorm && c.LayerScale && c.Inputs.Width == 0 && full.Dim == 512 && full.InvFreq[63] > 0 && full.InvFreq[64] == 0
		}},
	"Gemma 4 12B, without defaults": {`{"model_type": "gemma4_unified", "text_config": {"model_type": "gemma4_unified_text", "attention_k_eq_v": true, "final_logit_softcapping": 30.0,
		"global_head_dim": 512, "head_dim": 256, "hidden_size": 3840, "intermediate_size": 15360, "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
		"num_attention_heads": 16, "num_global_key_value_heads": 1, "num_hidden_layers": 6, "num_key_value_heads": 8,
		"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
		"use_bidirectional_attention": "vision", "vocab_size": 262144}}`,
		func(c *Config) bool {
			return c.Inputs.Width == 0 && c.Layer[0].Window == 1024 && c.Layer[5].Window == 0 && c.Context == 262144 && c.KVHeadsAt(5) == 1 && c.Layer[5].ValueIsKey && c.HeadDimAt(5) == 512
		}},
	"Gemma 4 E2B, shorter": {`{"model_type": "gemma4_text", "head_dim": 256, "hidden_size": 1536, "hidden_size_per_layer_input": 256, "intermediate_size": 6144,
		"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
		"sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"], "num_attention_heads": 8, "num_hidden_layers": 10,
		"num_key_value_heads": 1, "num_kv_shared_layers": 5, "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
		"sliding_window": 512, "use_double_wide_mlp": true, "vocab_size": 262144, "vocab_size_per_layer_input": 262144}`,
		func(c *Config) bool {
			return c.Inputs == LayerInputs{256, 262144} && c.Layer[4].KVBack == 0 && c.Layer[5].KVBack == 2 && c.Layer[8].KVBack == 5 && c.Layer[9].KVBack == 5 &&
				c.FFAt(4) == 6144 && c.FFAt(5) == 12288 && !c.Has(K, 5) && c.Has(K, 4) && slices.Equal(c.WantShape(Q, 9), []uint64{4096, 1536})
		}},
	"Gemma 4 26B A4B": {`{"model_type": "gemma4_text", "attention_k_eq_v": true, "enable_moe_block": true, "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
		"hidden_size": 2816, "hidden_size_per_layer_input": 0, "intermediate_size": 2112, "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
		"moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128, "num_global_key_value_heads": 2, "num_hidden_layers": 6, "num_key_value_heads": 8,
		"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
		"sliding_window": 1024, "top_k_experts": 8, "vocab_size": 262144}`,
		func(c *Config) bool {
			e := &c.Experts
			return e.Count == 128 && e.Used == 8 && e.FF == 704 && e.Beside && !e.OverAll && c.FF == 2112 && c.Layer[0].Sparse && c.Has(Gate, 0) && c.Has(ExpertScale, 5) &&
				slices.Equal(c.WantShape(RouterNorm, 0), []uint64{2816})
		}},
	"Llama 4 Scout": {`{"model_type": "llama4", "text_config": {"model_type": "llama4_text", "attention_bias": false, "attention_chunk_size": 8192, "attn_scale": 0.1,
		"attn_temperature_tuning": 4, "floor_scale": 8192, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "interleave_moe_layer_step": 1, "intermediate_size": 8192,
		"intermediate_size_mlp": 16384, "max_position_embeddings": 10485760, "no_rope_layers": [], "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48,
		"num_key_value_heads": 8, "num_local_experts": 16, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false, "use_qk_norm": true, "vocab_size": 202048,
		"rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}}}`,
		func(c *Config) bool {
			e := &c.Experts
			return c.Temper == Temper{Scale: 0.1, Span: 8192, Offset: 1, NoRope: true} && c.QKNormRotated && c.BareQKNorm && e.WeighInput && e.Sigmoid && e.FF == 8192 && e.SharedFF == 8192 &&
				c.FF == 16384 && c.Layer[2].Chunked && c.Layer[2].Window == 8192 && c.Layer[3].NoRope && c.Layer[3].Window == 0
		}},
	"Llama 4 Maverick, shorter": {`{"model_type": "llama4_text", "hidden_size": 5120, "interleave_moe_layer_step": 2, "num_hidden_layers": 8, "num_local_experts": 128,
		"no_rope_layer_interval": 4, "use_qk_norm": false, "attn_temperature_tuning": false}`,
		func(c *Config) bool {
			return !c.QKNorm && c.Temper == Temper{} && !c.Layer[0].Sparse && c.Layer[1].Sparse && c.Layer[7].NoRope && c.Layer[0].Chunked && !c.Layer[3].Chunked
		}},
	"Command R7B": {`{"model_type": "cohere2", "attention_bias": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
		"layer_norm_eps": 1e-05, "logit_scale": 0.25, "max_position_embeddings": 8192, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
		"rope_theta": 50000, "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4, "use_parallel_block": true, "vocab_size": 256000}`,
		func(c *Config) bool {
			return c.Parallel && c.LayerNorm && c.PlainLayerNorm && c.LogitScale == 0.25 && c.TiedHead && slices.Equal(windows(c), but(32, 4)) &&
				!c.Layer[2].NoRope && c.Layer[3].NoRope && c.RopeLayout == Interleaved && c.Tensor(FFNNorm, 0) == ""
		}},
	"EXAONE 4.0 32B": {`{"model_type": "exaone4", "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 27392, "max_position_embeddings": 131072,
		"num_attention_heads": 40, "num_hidden_layers": 4, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000, "sliding_window": 4096,
		"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"], "sliding_window_pattern": "LLLG",
		"rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "vocab_size": 102400}`,
		func(c *Config) bool {
			return c.QKNorm && slices.Equal(windows(c), []int{0, 1, 2}) && c.Layer[3].NoRope && !c.Layer[0].NoRope && c.Tensor(AttnNorm, 0) == ""
		}},
	"OLMo 3 7B": {`{"model_type": "olmo3", "attention_bias": false, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 65536,
		"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"], "num_attention_heads": 32, "num_hidden_layers": 4, "num_key_value_heads": 32,
		"rms_norm_eps": 1e-06, "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"},
		"rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 100278}`,
		func(c *Config) bool {
			full, local := &c.Ropes[c.Layer[3].Rope], &c.Ropes[c.Layer[0].Rope]
			return c.WideQKNorm && full.Kind == "yarn" && local.Kind == "default" && local.Base == 500000 && local.AttnFactor == 1
		}},
	"Hunyuan 7B": {`{"model_type": "hunyuan_v1_dense", "attention_bias": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
		"max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
		"rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "dynamic"},
		"use_cla": false, "use_qk_norm": true, "vocab_size": 128167}`,
		func(c *Config) bool {
			return c.QKNorm && c.QKNormRotated && math.Abs(c.Ropes[0].Base/(10000*math.Pow(1000, 128.0/126))-1) < 1e-9 && c.Ropes[0].Kind == "default"
		}},
	"Ministral 3 8B": {`{"model_type": "mistral3", "text_config": {"model_type": "ministral3", "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
		"max_position_embeddings": 262144, "num_attention_heads": 32, "num_hidden_layers": 34, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
		"rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
		"original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn"}, "sliding_window": null, "vocab_size": 131072}}`,
		func(c *Config) bool {
			return c.Temper == Temper{Scale: 0.1, Span: 16384} && c.Ropes[0].Kind == "yarn" && c.Ropes[0].AttnFactor == 1
		}},
	"Qwen1.5 MoE A2.7B": {`{"model_type": "qwen2_moe", "decoder_sparse_step": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 8192,
		"max_window_layers": 21, "moe_intermediate_size": 1408, "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
		"num_hidden_layers": 24, "num_key_value_heads": 16, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "shared_expert_intermediate_size": 5632,
		"sliding_window": 32768, "use_sliding_window": false, "vocab_size": 151936}`,
		func(c *Config) bool {
			e := c.Experts
			return e.Count == 60 && e.Used == 4 && e.FF == 1408 && e.OverAll && !e.Sigmoid && e.SharedFF == 5632 && e.SharedGated && c.Bias.Q && !c.Bias.O
		}},
	"GLM-4.5 Air": {`{"model_type": "glm4_moe", "attention_bias": true, "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
		"intermediate_size": 10944, "max_position_embeddings": 131072, "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
		"norm_topk_prob": true, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
		"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000, "routed_scaling_factor": 1.0, "topk_group": 1, "use_qk_norm": false, "vocab_size": 151552}`,
		func(c *Config) bool {
			e := c.Experts
			return !c.QKNorm && e.Sigmoid && e.RankBias && !e.OverAll && e.Groups == 0 && e.SharedFF == 1408 && !e.SharedGated && !c.Layer[0].Sparse && c.Layer[1].Sparse && c.Ropes[0].Dim == 64
		}},
	"Qwen2.5 VL 3B": {`{"model_type": "qwen2_5_vl", "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 128000, "max_window_layers": 70,
		"num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"},
		"rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "use_sliding_window": false, "vision_config": {"depth": 32}, "vocab_size": 151936}`,
		func(c *Config) bool { return c.Arch == "qwen2" && c.Ropes[0].Kind == "default" && c.Bias.Q }},
	"Qwen3 VL 4B": {`{"model_type": "qwen3_vl", "text_config": {"attention_bias": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 9728,
		"max_position_embeddings": 262144, "model_type": "qwen3_vl_text", "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
		"rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"}, "rope_theta": 5000000, "vocab_size": 151936}, "tie_word_embeddings": true}`,
		func(c *Config) bool { return c.Arch == "qwen3" && c.QKNorm && c.TiedHead && c.Ropes[0].Base == 5000000 }},
	"MiniMax-M2": {`{"model_type": "minimax_m2", "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 1536, "max_position_embeddings": 196608,
		"num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62, "num_key_value_heads": 8, "num_local_experts": 256, "qk_norm_type": "per_layer",
		"rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid", "shared_intermediate_size": 0, "use_qk_norm": true, "use_routing_bias": true, "vocab_size": 200064}`,
		func(c *Config) bool {
			e := c.Experts
			return c.WideQKNorm && c.Ropes[0].Dim == 64 && e.Sigmoid && e.RankBias && e.FF == 1536 && e.SharedFF == 0 && e.Count == 256
		}},
	"ERNIE 4.5 21B A3B": {`{"model_type": "ernie4_5_moe", "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 12288, "max_position_embeddings": 131072, "moe_intermediate_size": 1536,
		"moe_k": 6, "moe_layer_end_index": 27, "moe_layer_interval": 1, "moe_layer_start_index": 1, "moe_num_experts": 64, "moe_num_shared_experts": 2, "num_attention_heads": 20,
		"num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-05, "rope_theta": 500000, "tie_word_embeddings": true, "use_bias": false, "vocab_size": 103424}`,
		func(c *Config) bool {
			e := c.Experts
			return e.RankBias && !e.Sigmoid && !e.OverAll && e.SharedFF == 3072 && !c.Layer[0].Sparse && c.Layer[27].Sparse
		}},
	"DeepSeek V3": {`{"model_type": "deepseek_v3", "attention_bias": false, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
		"max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
		"num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
		"qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
		"original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280}`,
		func(c *Config) bool {
			e := c.Experts
			return c.Latent.KVRank == 512 && e.Sigmoid && e.RankBias && e.Groups == 8 && e.TopGroups == 4 && e.Scale == 2.5 && e.SharedFF == 2048 && !c.Layer[2].Sparse && c.Layer[3].Sparse
		}},
}

// TestPublished reads the configurations of real models.
func TestPublished(t *testing.T) {
	for name, p := range published {
		c, err := Builtin().Read(hfSource(t, p.config, nil))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !p.check(c) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestRouterErrors reads settings that are not supported, and checks that errors name them.
func TestRouterErrors(t *testing.T) {
	for _, test := range []struct{ name, from, to, want string }{
		{"DeepSeek V3", `"topk_method": "noaux_tc"`, `"topk_method": "random"`, `topk_method: "random" is not supported (known: greedy, group_limited_greedy, noaux_tc)`},
		{"DeepSeek V3", `"scoring_func": "sigmoid"`, `"scoring_func": "sqrt"`, `scoring_func: "sqrt" is not supported (known: softmax, sigmoid)`},
		{"DeepSeek V3", `"n_group": 8`, `"n_group": 7`, "n_group: 256 experts do not form 7 groups"},
		{"DeepSeek V3", `"n_group": 8`, `"n_group": 256`, "n_group: 256 is not in 0..32"},
		{"DeepSeek V3", `"topk_group": 4`, `"topk_group": 9`, "topk_group: 9 is not in 1..8"},
		{"DeepSeek V3", `"attention_bias": false`, `"attention_bias": true`, "attention_bias: true is not supported"},
		{"GLM-4.5 Air", `"topk_group": 1`, `"mlp_layer_types": ["dense"]`, "mlp_layer_types: 1 entries for 46 layers"},
		{"ERNIE 4.5 21B A3B", `"use_bias": false`, `"use_bias": true`, "use_bias: true is not supported"},
		{"MiniMax-M2", `"shared_intermediate_size": 0`, `"shared_intermediate_size": 8`, "shared_intermediate_size: 8 is not supported"},
		{"Command R7B", `"use_parallel_block": true`, `"use_qk_norm": true`, "use_qk_norm: true is not supported"},
		{"Hunyuan 7B", `"use_cla": false`, `"use_cla": true`, "use_cla: true is not supported"},
		{"Hunyuan 7B", `"alpha": 1000.0, `, ``, `rope_scaling.type: "dynamic" is not supported`},
		{"Ministral 3 8B", `"original_max_position_embeddings": 16384, `, ``, "original_max_position_embeddings: missing"},
		{"Seed-OSS 36B", `"model_type": "seed_oss"`, `"model_type": "gemma9_text"`, `architecture "gemma9_text" is not supported (known: cohere, `},
		{"Gemma 4 E2B, shorter", `"num_kv_shared_layers": 5`, `"num_kv_shared_layers": 10`, `num_kv_shared_layers: 10 is not below the number of layers 10`},
		{"Gemma 4 E2B, shorter", `"num_kv_shared_layers": 5`, `"num_kv_shared_layers": 6`, `no layer before layer 4 has K and V for it`},
		{"Gemma 4 E2B, shorter", `"hidden_size_per_layer_input": 256`, `"hidden_size_per_layer_input": 254`, `254 is not a multiple of 4`},
		{"Gemma 4 E2B, shorter", `"vocab_size_per_layer_input": 262144`, `"vocab_size_per_layer_input": 262143`, `the embedding of inputs has 262143 rows for 262144 tokens`},
		{"Llama 4 Scout", `"num_experts_per_tok": 1`, `"num_experts_per_tok": 2`, `num_experts_per_tok: 2 experts, where their weights multiply their inputs, are not supported`},
		{"Gemma 4 31B", `"vision"`, `"all"`, `use_bidirectional_attention: "all" is not supported`},
		{"Gemma 4 31B", `"num_global_key_value_heads": 4`, `"num_global_key_value_heads": 5`, `layer 5: 32 heads of 512 elements cannot share 5 KV heads`},
		{"Qwen1.5 MoE A2.7B", `"hidden_act": "silu"`, `"hidden_act": "xielu"`, `hidden_act: "xielu" is not supported (known: `},
	} {
		config := strings.Replace(published[test.name].config, test.from, test.to, 1)
		if config == published[test.name].config {
			t.Fatalf("%s has no %s", test.name, test.from)
		}
		_, err := Builtin().Read(hfSource(t, config, nil))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s with %s: got %v, want %s", test.name, test.to, err, test.want)
		}
	}
	var unsupported *UnsupportedError
	if _, err := Builtin().Read(hfSource(t, `{"model_type": "mamba3"}`, nil)); !errors.As(err, &unsupported) || unsupported.Name != "mamba3" {
		t.Errorf("an unknown family: %v", err)
	}
}

// convertedSource returns the GGUF file of a conversion.
func convertedSource(v *Conversion) *fakeSource {
	src := &fakeSource{kind: kindGGUF, meta: map[string]any{}, shapes: map[string][]uint64{}}
	for _, s := range v.Settings {
		src.meta[s.Key] = s.Value
	}
	for _, x := range v.Tensors {
		src.shapes[x.Name] = x.Shape
	}
	return src
}

// TestPredictors reads a GGUF file whose last layer predicts a further token and is no layer of the
// model.
func TestPredictors(t *testing.T) {
	v, err := Builtin().Convert(tinyHF(t, "variants/glm4_moe_qknorm"))
	if err != nil {
		t.Fatal(err)
	}
	src := convertedSource(v)
	src.meta["glm4moe.block_count"], src.meta["glm4moe.nextn_predict_layers"] = uint32(4), uint32(1)
	if c := readChecked(t, Builtin(), src); c.Layers != 3 || c.Experts.Groups != 4 || c.Experts.TopGroups != 2 || c.Experts.SharedFF != 128 || c.Experts.Scale != 2.5 {
		t.Errorf("%+v", c)
	}
	src.meta["glm4moe.expert_gating_func"] = uint32(4)
	if _, err := Builtin().Read(src); err == nil || !strings.Contains(err.Error(), "glm4moe.expert_gating_func: 4 is not supported (known: softmax, sigmoid)") {
		t.Errorf("an unknown score: %v", err)
	}
}

// TestJoinedDelta reads a GGUF file of an older converter, in which one tensor has Q, K, V and Z of the
// gated delta rule.
func TestJoinedDelta(t *testing.T) {
	src := tinyHF(t, "variants/qwen3_next")
	v, err := Builtin().Convert(src)
	if err != nil {
		t.Fatal(err)
	}
	file := convertedSource(v)
	newer := readChecked(t, Builtin(), file)
	if newer.Tensor(DeltaZ, 0) != "blk.0.attn_gate.weight" || newer.Delta.Tiled {
		t.Errorf("%s, %+v", newer.Tensor(DeltaZ, 0), newer.Delta)
	}
	for i := range newer.Layers {
		if newer.Layer[i].Mixer.Recurrent() {
			name := func(stem string) string { return fmt.Sprintf("blk.%d.%s.weight", i, stem) }
			in, z := file.shapes[name("attn_qkv")], file.shapes[name("attn_gate")]
			file.shapes[name("ssm_in")] = []uint64{in[0] + z[0], in[1]}
			delete(file.shapes, name("attn_qkv"))
			delete(file.shapes, name("attn_gate"))
		}
	}
	if older := readChecked(t, Builtin(), file); older.Tensor(DeltaIn, 0) != "blk.0.ssm_in.weight" || older.Has(DeltaZ, 0) && older.Tensor(DeltaZ, 0) != "" {
		t.Errorf("%s, %s", older.Tensor(DeltaIn, 0), older.Tensor(DeltaZ, 0))
	}
}
