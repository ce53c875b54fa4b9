// Package sparse writes models of any size for tests of size limits. The result is a Hugging
// Face directory whose weights file is sparse, so it takes almost no disk space.
package sparse

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Llama holds the dimensions of a Llama model with float16 weights.
type Llama struct {
	Layers, Width, FF, Heads, KVHeads, Vocab int
	Tied                                     bool
}

// Llama70B returns the dimensions of Llama 3 70B, whose weights take 141 GB.
func Llama70B() Llama {
	return Llama{Layers: 80, Width: 8192, FF: 28672, Heads: 64, KVHeads: 8, Vocab: 128_256}
}

// tensor is an entry of a safetensors header.
type tensor struct {
	DType   string    `json:"dtype"`
	Shape   []int     `json:"shape"`
	Offsets [2]uint64 `json:"data_offsets"`
}

// Write writes the model to a directory. It takes a few KiB on file systems that support
// sparse files.
func (l Llama) Write(dir string) error {
	config, err := json.Marshal(map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "hidden_act": "silu", "torch_dtype": "float16",
		"num_hidden_layers": l.Layers, "hidden_size": l.Width, "intermediate_size": l.FF, "num_attention_heads": l.Heads,
		"num_key_value_heads": l.KVHeads, "vocab_size": l.Vocab, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
		"tie_word_embeddings": l.Tied,
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		return err
	}
	header, end := map[string]tensor{}, uint64(0)
	add := func(name string, shape ...int) {
		size := uint64(2)
		for _, n := range shape {
			size *= uint64(n)
		}
		header[name+".weight"] = tensor{"F16", shape, [2]uint64{end, end + size}}
		end += size
	}
	add("model.embed_tokens", l.Vocab, l.Width)
	kv := l.Width / l.Heads * l.KVHeads
	for i := range l.Layers {
		in := func(name string, shape ...int) { add(fmt.Sprintf("model.layers.%d.%s", i, name), shape...) }
		in("input_layernorm", l.Width)
		in("self_attn.q_proj", l.Width, l.Width)
		in("self_attn.k_proj", kv, l.Width)
		in("self_attn.v_proj", kv, l.Width)
		in("self_attn.o_proj", l.Width, l.Width)
		in("post_attention_layernorm", l.Width)
		in("mlp.gate_proj", l.FF, l.Width)
		in("mlp.up_proj", l.FF, l.Width)
		in("mlp.down_proj", l.Width, l.FF)
	}
	add("model.norm", l.Width)
	if !l.Tied {
		add("lm_head", l.Vocab, l.Width)
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	for (8+len(text))%64 != 0 { // the tensors are aligned for every device
		text = append(text, ' ')
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return err
	}
	_, err = f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...))
	if err == nil {
		err = f.Truncate(int64(8 + uint64(len(text)) + end))
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
