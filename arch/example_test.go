package arch_test

import (
	"encoding/json"
	"fmt"
	"log"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/arch"
)

// directory is a model whose tensors are not used.
type directory map[string]any

func (directory) Kind() string                  { return "safetensors" }
func (d directory) Meta(key string) (any, bool) { v, ok := d[key]; return v, ok }
func (directory) Shape(string) ([]uint64, bool) { return nil, false }

func ExampleSet_Read() {
	const config = `{"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "head_dim": 128,
		"num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 28, "vocab_size": 151936,
		"max_position_embeddings": 40960, "rope_theta": 1000000, "tie_word_embeddings": true}`
	d := directory{}
	dec := json.NewDecoder(strings.NewReader(config))
	dec.UseNumber()
	if err := dec.Decode(&d); err != nil {
		log.Fatal(err)
	}
	c, err := arch.Builtin().Read(d)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Arch, c.Layers, "layers,", c.Heads, "heads of", c.HeadDim)
	fmt.Println(c.Tensor(arch.Q, 3), c.WantShape(arch.Q, 3))
	fmt.Println(c.Check(d))
	// Output:
	// qwen3 28 layers, 16 heads of 128
	// model.layers.3.self_attn.q_proj.weight [2048 1024]
	// arch: tensor model.embed_tokens.weight: missing
}

func ExampleSet_Names() {
	fmt.Println(slices.Contains(arch.Builtin().Names(), "qwen3"))
	// Output: true
}
