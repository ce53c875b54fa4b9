package quantize_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/quantize"
)

// model lists the matrices of a model with the given number of layers, from the last layer to the
// first, so that the order of the list is not the order of the layers.
func model(layers int, experts uint64, names ...string) []quantize.Tensor {
	list := []quantize.Tensor{{Name: "token_embd.weight", Shape: []uint64{512, 256}, Type: dtype.F16}}
	for i := layers - 1; i >= 0; i-- {
		for _, name := range names {
			shape := []uint64{256, 256}
			switch {
			case strings.HasSuffix(name, "norm.weight") || strings.HasSuffix(name, "bias"):
				shape = shape[:1]
			case strings.Contains(name, "exps"):
				shape = append([]uint64{experts}, shape...)
			case strings.Contains(name, "odd"):
				shape[1] = 96
			}
			list = append(list, quantize.Tensor{Name: fmt.Sprintf("blk.%d.%s", i, name), Shape: shape, Type: dtype.F16})
		}
	}
	return list
}

// typesOf returns the types by name.
func typesOf(t *testing.T, mix string, m quantize.Model, list []quantize.Tensor, o quantize.Options) map[string]dtype.Type {
	t.Helper()
	x, err := quantize.FindMix(mix)
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]dtype.Type{}
	for i, typ := range x.Types(m, list, o) {
		types[list[i].Name] = typ
	}
	return types
}

// TestMixes compares the types of matrices with those that llama_tensor_get_type_impl of llama.cpp
// chooses. The models differ from gopher, whose types another test compares.
func TestMixes(t *testing.T) {
	dense := func(layers int) []quantize.Tensor {
		return model(layers, 0, "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "ffn_down.weight", "attn_norm.weight", "attn_v.bias")
	}
	sparse := model(4, 8, "attn_k.weight", "attn_v.weight", "attn_output.weight", "ffn_down_exps.weight", "ffn_gate_exps.weight", "ffn_gate_inp.weight", "ffn_down_exps.bias")
	untied := append(dense(2), quantize.Tensor{Name: "output.weight", Shape: []uint64{512, 256}, Type: dtype.F16})
	fused := model(16, 0, "attn_qkv.weight", "ffn_up.weight")
	odd := model(1, 0, "odd.weight")
	tests := []struct {
		mix   string
		model quantize.Model
		list  []quantize.Tensor
		o     quantize.Options
		want  map[string]dtype.Type
	}{
		{"Q4_K_M", quantize.Model{Layers: 80, QueriesPerKV: 8}, dense(80), quantize.Options{}, map[string]dtype.Type{
			"token_embd.weight": dtype.Q6_K, "blk.11.attn_v.weight": dtype.Q5_K, "blk.11.ffn_down.weight": dtype.Q4_K,
			"blk.12.attn_v.weight": dtype.Q6_K, "blk.70.ffn_down.weight": dtype.Q6_K, "blk.0.attn_norm.weight": dtype.F16, "blk.0.attn_v.bias": dtype.F16,
		}},
		{"Q3_K_M", quantize.Model{Layers: 32, QueriesPerKV: 1}, dense(32), quantize.Options{}, map[string]dtype.Type{
			"blk.1.attn_v.weight": dtype.Q5_K, "blk.2.attn_v.weight": dtype.Q4_K, "blk.1.ffn_down.weight": dtype.Q5_K,
			"blk.2.ffn_down.weight": dtype.Q4_K, "blk.3.attn_output.weight": dtype.Q4_K, "blk.3.attn_q.weight": dtype.Q3_K,
		}},
		{"Q4_K_M", quantize.Model{Layers: 4, QueriesPerKV: 4, Experts: 8}, sparse, quantize.Options{}, map[string]dtype.Type{
			"blk.0.attn_v.weight": dtype.Q8_0, "blk.0.attn_k.weight": dtype.Q8_0, "blk.0.attn_output.weight": dtype.Q5_K,
			"blk.0.ffn_down_exps.weight": dtype.Q4_K, "blk.3.ffn_down_exps.weight": dtype.Q6_K, "blk.0.ffn_gate_inp.weight": dtype.F16,
		}},
		{"mxfp4_moe", quantize.Model{Layers: 4, QueriesPerKV: 4, Experts: 4}, sparse, quantize.Options{}, map[string]dtype.Type{
			"token_embd.weight": dtype.Q8_0, "blk.0.attn_v.weight": dtype.Q8_0, "blk.0.ffn_gate_exps.weight": dtype.MXFP4,
		}},
		{"MXFP4", quantize.Model{Layers: 2, QueriesPerKV: 4}, dense(2), quantize.Options{}, map[string]dtype.Type{
			"token_embd.weight": dtype.Q8_0, "blk.0.attn_v.weight": dtype.MXFP4,
		}},
		{"Q2_K", quantize.Model{Layers: 2, QueriesPerKV: 4}, untied, quantize.Options{}, map[string]dtype.Type{
			"token_embd.weight": dtype.Q2_K, "output.weight": dtype.Q6_K, "blk.0.attn_v.weight": dtype.Q4_K, "blk.0.ffn_down.weight": dtype.Q3_K,
		}},
		{"Q2_K", quantize.Model{Layers: 2, QueriesPerKV: 4}, untied, quantize.Options{Embedding: dtype.Q8_0, Output: dtype.F16, Pure: true}, map[string]dtype.Type{
			"token_embd.weight": dtype.Q8_0, "output.weight": dtype.F16, "blk.0.attn_v.weight": dtype.Q2_K, "blk.0.ffn_down.weight": dtype.Q2_K,
		}},
		{"Q4_0", quantize.Model{Layers: 2, QueriesPerKV: 1}, dense(2), quantize.Options{Output: dtype.Q8_0}, map[string]dtype.Type{
			"token_embd.weight": dtype.Q8_0, "blk.0.attn_v.weight": dtype.Q4_0,
		}},
		{"Q5_K_M", quantize.Model{Layers: 16, QueriesPerKV: 1}, fused, quantize.Options{}, map[string]dtype.Type{
			"blk.0.attn_qkv.weight": dtype.Q6_K, "blk.2.attn_qkv.weight": dtype.Q5_K, "blk.4.attn_qkv.weight": dtype.Q6_K, "blk.4.ffn_up.weight": dtype.Q5_K,
		}},
		{"Q6_K", quantize.Model{Layers: 1, QueriesPerKV: 1}, odd, quantize.Options{}, map[string]dtype.Type{"blk.0.odd.weight": dtype.Q8_0}},
		{"BF16", quantize.Model{Layers: 1, QueriesPerKV: 1}, odd, quantize.Options{}, map[string]dtype.Type{"blk.0.odd.weight": dtype.BF16}},
	}
	for _, test := range tests {
		got := typesOf(t, test.mix, test.model, test.list, test.o)
		for name, want := range test.want {
			if got[name] != want {
				t.Errorf("%s, %+v: %s is %s, want %s", test.mix, test.model, name, got[name], want)
			}
		}
	}
}

func TestFindMix(t *testing.T) {
	for name, want := range map[string]string{"q4_k": "Q4_K_M", "Q3_K": "Q3_K_M", "iq4_xs": "IQ4_XS", "MXFP4_MOE": "MXFP4"} {
		if m, err := quantize.FindMix(name); err != nil || m.Name != want {
			t.Errorf("%s: got %v, %v", name, m, err)
		}
	}
	var unknown *quantize.MixError
	if _, err := quantize.FindMix("Q9"); !errors.As(err, &unknown) || !strings.Contains(err.Error(), "Q4_K_M") {
		t.Errorf("got %v", err)
	}
	for _, name := range quantize.Mixes() {
		if m, err := quantize.FindMix(name); err != nil || m.Name != name || !quantize.Can(m.Base) {
			t.Errorf("%s: got %v, %v", name, m, err)
		}
	}
}
