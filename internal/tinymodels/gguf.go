package tinymodels

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/gguf"
)

// values holds the elements of a tensor. The tensor's element type represents each of them
// exactly.
type values struct {
	shape []uint64
	list  []float32
}

// source holds the tensors of a model by their names in Hugging Face's files.
type source map[string]values

// prefix is the beginning of a file. It reads as if zeros followed.
type prefix []byte

func (p prefix) ReadAt(b []byte, off int64) (int, error) {
	n := 0
	if off < int64(len(p)) {
		n = copy(b, p[off:])
	}
	clear(b[n:])
	return len(b), nil
}

// settings are the values of config.json on which the conversion to GGUF depends.
type settings struct {
	ModelType string `json:"model_type"`
	Heads     uint64 `json:"num_attention_heads"`
	KVHeads   uint64 `json:"num_key_value_heads"`
}

// writeGGUF returns a GGUF file that begins with head. head is a prefix of the file that
// llama.cpp's converter wrote: the metadata, the list of tensors, and the data of the leading
// tensors that depend on no weight (rope_freqs). The data of the other tensors is computed
// from weights as the converter computes it.
func writeGGUF(head, config []byte, weights source) ([]byte, error) {
	var c settings
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	file, err := gguf.Decode(prefix(head), math.MaxInt32)
	if err != nil {
		return nil, err
	}
	b := slices.Clone(head)
	for _, t := range file.Tensors {
		if t.Offset+t.Size <= uint64(len(head)) {
			continue
		}
		if uint64(len(b)) > t.Offset {
			return nil, fmt.Errorf("tensor %s overlaps the previous tensor", t.Name)
		}
		b = append(b, make([]byte, t.Offset-uint64(len(b)))...)
		list, err := c.convert(t.Name, weights)
		if err == nil {
			b, err = appendValues(b, t.TypeName, list)
		}
		if err == nil && uint64(len(b)) != t.Offset+t.Size {
			err = fmt.Errorf("its %d elements do not have the size in the list of tensors", len(list))
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", t.Name, err)
		}
	}
	for uint64(len(b))%file.Alignment != 0 {
		b = append(b, 0)
	}
	return b, nil
}

// hfNames maps the name of a GGUF tensor, without the layer prefix, to names in Hugging Face
// files. If there are several, the first one that the model has is used.
var hfNames = map[string][]string{
	"token_embd.weight":  {"model.embed_tokens.weight"},
	"output.weight":      {"lm_head.weight"},
	"output_norm.weight": {"model.norm.weight"},

	"attn_norm.weight":           {"input_layernorm.weight"},
	"attn_q.weight":              {"self_attn.q_proj.weight"},
	"attn_k.weight":              {"self_attn.k_proj.weight"},
	"attn_v.weight":              {"self_attn.v_proj.weight"},
	"attn_qkv.weight":            {"self_attn.qkv_proj.weight"},
	"attn_output.weight":         {"self_attn.o_proj.weight"},
	"attn_q.bias":                {"self_attn.q_proj.bias"},
	"attn_k.bias":                {"self_attn.k_proj.bias"},
	"attn_v.bias":                {"self_attn.v_proj.bias"},
	"attn_output.bias":           {"self_attn.o_proj.bias"},
	"attn_q_norm.weight":         {"self_attn.q_norm.weight"},
	"attn_k_norm.weight":         {"self_attn.k_norm.weight"},
	"attn_sinks.weight":          {"self_attn.sinks"},
	"post_attention_norm.weight": {"post_attention_layernorm.weight"},
	"ffn_norm.weight":            {"pre_feedforward_layernorm.weight", "post_attention_layernorm.weight"},
	"post_ffw_norm.weight":       {"post_feedforward_layernorm.weight"},
	"ffn_gate.weight":            {"mlp.gate_proj.weight"},
	"ffn_up.weight":              {"mlp.up_proj.weight", "mlp.gate_up_proj.weight"},
	"ffn_down.weight":            {"mlp.down_proj.weight"},
	"ffn_gate_inp.weight":        {"mlp.gate.weight", "mlp.router.weight"},
	"ffn_gate_inp.bias":          {"mlp.router.bias"},
	"ffn_down_exps.bias":         {"mlp.experts.down_proj_bias"},
}

// convert returns the elements of a GGUF tensor.
func (c *settings) convert(name string, weights source) ([]float32, error) {
	layerPrefix, short := "", name
	if rest, ok := strings.CutPrefix(name, "blk."); ok {
		layer, tensor, _ := strings.Cut(rest, ".")
		layerPrefix, short = "model.layers."+layer+".", tensor
	}
	if projection, ok := strings.CutSuffix(short, "_exps.weight"); ok {
		return experts(layerPrefix+"mlp.experts.", strings.TrimPrefix(projection, "ffn_"), weights)
	}
	switch short { // gpt_oss interleaves the biases of gate and up
	case "ffn_gate_exps.bias":
		return alternate(weights[layerPrefix+"mlp.experts.gate_up_proj_bias"].list, 0), nil
	case "ffn_up_exps.bias":
		return alternate(weights[layerPrefix+"mlp.experts.gate_up_proj_bias"].list, 1), nil
	}
	for _, hf := range hfNames[short] {
		v, ok := weights[layerPrefix+hf]
		if !ok {
			continue
		}
		switch {
		case c.ModelType == "llama" && short == "attn_q.weight":
			return interleaveHalves(v, c.Heads), nil
		case c.ModelType == "llama" && short == "attn_k.weight":
			return interleaveHalves(v, c.KVHeads), nil
		case strings.HasPrefix(c.ModelType, "gemma") && strings.HasSuffix(short, "norm.weight"):
			return onePlus(v.list), nil
		}
		return v.list, nil
	}
	return nil, fmt.Errorf("the safetensors file has no weights for it")
}

// interleaveHalves interleaves the rows of the two halves of each head, because llama.cpp's
// RoPE rotates adjacent rows.
func interleaveHalves(v values, heads uint64) []float32 {
	columns := v.shape[1]
	half := v.shape[0] / heads / 2
	list := make([]float32, 0, len(v.list))
	for h := range heads {
		for row := range half {
			for _, at := range []uint64{h*2*half + row, (h*2+1)*half + row} {
				list = append(list, v.list[at*columns:(at+1)*columns]...)
			}
		}
	}
	return list
}

// onePlus returns 1 + w for each element, rounded to float16 as the converter does.
func onePlus(list []float32) []float32 {
	sums := make([]float32, len(list))
	for i, w := range list {
		sums[i] = dtype.F16ToF32(dtype.F32ToF16(1 + w))
	}
	return sums
}

// alternate returns every second element, beginning with element first (0 or 1).
func alternate(list []float32, first int) []float32 {
	var half []float32
	for i := first; i < len(list); i += 2 {
		half = append(half, list[i])
	}
	return half
}

// experts returns the matrices of all experts of a layer. projection is "gate", "up" or
// "down".
func experts(prefix, projection string, weights source) ([]float32, error) {
	if _, ok := weights[prefix+"0."+projection+"_proj.weight"]; ok {
		var list []float32
		for e := 0; ; e++ {
			v, ok := weights[fmt.Sprintf("%s%d.%s_proj.weight", prefix, e, projection)]
			if !ok {
				return list, nil
			}
			list = append(list, v.list...)
		}
	}
	// gpt_oss stores all experts in one tensor. The matrices are transposed and the columns of
	// gate and up are interleaved.
	step, first, name := uint64(2), uint64(0), "gate_up_proj"
	switch projection {
	case "up":
		first = 1
	case "down":
		step, name = 1, "down_proj"
	}
	v, ok := weights[prefix+name]
	if !ok {
		return nil, fmt.Errorf("the safetensors file has no weights for it")
	}
	count, rows, columns := v.shape[0], v.shape[1], v.shape[2]
	var list []float32
	for e := range count {
		for column := first; column < columns; column += step {
			for row := range rows {
				list = append(list, v.list[(e*rows+row)*columns+column])
			}
		}
	}
	return list, nil
}
