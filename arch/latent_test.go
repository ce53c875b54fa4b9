package arch

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
)

// latentGGUF returns a GGUF file with the sizes of DeepSeek-V2-Lite without experts, in the newer form
// or in the older one.
func latentGGUF(newer bool) *fakeSource {
	meta := map[string]any{
		"general.architecture": "deepseek2", "deepseek2.block_count": uint32(2), "deepseek2.embedding_length": uint32(2048),
		"deepseek2.feed_forward_length": uint32(10944), "deepseek2.context_length": uint32(163840), "deepseek2.attention.head_count": uint32(16),
		"deepseek2.attention.layer_norm_rms_epsilon": float32(1e-6), "deepseek2.attention.kv_lora_rank": uint32(512),
		"deepseek2.rope.dimension_count": uint32(64), "deepseek2.rope.scaling.type": "yarn", "deepseek2.rope.scaling.factor": float32(40),
		"deepseek2.rope.scaling.original_context_length": uint32(4096), "deepseek2.rope.scaling.yarn_log_multiplier": float32(0.0707),
	}
	shapes := map[string][]uint64{"token_embd.weight": {102400, 2048}, "output.weight": {102400, 2048}, "output_norm.weight": {2048}}
	if newer {
		meta["deepseek2.attention.key_length"], meta["deepseek2.attention.value_length"] = uint32(576), uint32(512)
		meta["deepseek2.attention.key_length_mla"], meta["deepseek2.attention.value_length_mla"] = uint32(192), uint32(128)
	} else {
		meta["deepseek2.attention.key_length"], meta["deepseek2.attention.value_length"] = uint32(192), uint32(128)
	}
	for l := range 2 {
		add := func(name string, shape ...uint64) { shapes[fmt.Sprintf("blk.%d.%s.weight", l, name)] = shape }
		add("attn_norm", 2048)
		add("ffn_norm", 2048)
		add("attn_q", 16*192, 2048)
		add("attn_kv_a_mqa", 576, 2048)
		add("attn_kv_a_norm", 512)
		if newer {
			add("attn_k_b", 16, 512, 128)
			add("attn_v_b", 16, 128, 512)
		} else {
			add("attn_kv_b", 16*256, 512)
		}
		add("attn_output", 2048, 16*128)
		add("ffn_gate", 10944, 2048)
		add("ffn_up", 10944, 2048)
		add("ffn_down", 2048, 10944)
	}
	return &fakeSource{kind: kindGGUF, meta: meta, shapes: shapes}
}

// TestLatentGGUF reads both forms of the same model.
func TestLatentGGUF(t *testing.T) {
	for _, newer := range []bool{true, false} {
		src := latentGGUF(newer)
		c := readChecked(t, Builtin(), src)
		want := Latent{KVRank: 512, Nope: 128, Rope: 64, Value: 128, Joined: !newer, Eps: 1e-6}
		mscale := 0.1*0.707*math.Log(40) + 1
		if c.Latent != want || c.KVHeads != 1 || c.HeadDim != 576 || c.RopeLayout != Interleaved || c.Ropes[0].Dim != 64 || c.Ropes[0].AttnFactor != 1 ||
			!close6(float64(c.AttnScale), mscale*mscale/math.Sqrt(192)) || c.Tensor(Q, 1) != "blk.1.attn_q.weight" {
			t.Errorf("newer %t: %+v", newer, c)
		}
		if _, err := Builtin().Read(src.with(map[string]any{"deepseek2.expert_count": uint32(64)})); err == nil || !strings.Contains(err.Error(), "expert_used_count") {
			t.Errorf("experts of which none is used: %v", err)
		}
		for key, value := range map[string]uint32{"attention.kv_lora_rank": 510, "rope.dimension_count": 192, "attention.head_count": 0} {
			if _, err := Builtin().Read(src.with(map[string]any{"deepseek2." + key: value})); err == nil {
				t.Errorf("%s %d is accepted", key, value)
			}
		}
	}
}

// TestLatentEpsilon converts a model whose norms inside latent attention have another epsilon than the
// others, as those of GLM 4.7 Flash, and reads the settings of both from the file.
func TestLatentEpsilon(t *testing.T) {
	src := tinyHF(t, "variants/glm4_moe_lite")
	src.meta["rms_norm_eps"] = json.Number("1e-05")
	v, err := Builtin().Convert(src)
	if err != nil {
		t.Fatal(err)
	}
	file := convertedSource(v)
	c := readChecked(t, Builtin(), file)
	if c.Eps != 1e-5 || c.Latent.Eps != 1e-6 {
		t.Errorf("epsilons %v and %v", c.Eps, c.Latent.Eps)
	}
	if err := v.Config.Same(c, nil); err != nil {
		t.Error(err)
	}
	file.meta["deepseek2."+latentEpsKey] = float32(0)
	if _, err := Builtin().Read(file); err == nil || !strings.Contains(err.Error(), latentEpsKey+": 0 is not above 0") {
		t.Errorf("an epsilon of 0: %v", err)
	}
}
