package arch

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// moved returns a source in which move has replaced the feed-forward tensors of each layer. move
// gets the layer's prefix.
func (s *fakeSource) moved(layers int, move func(shapes map[string][]uint64, layer string)) *fakeSource {
	out := s.with(nil)
	for i := range layers {
		layer := fmt.Sprintf("model.layers.%d.", i)
		for name := range out.shapes {
			if strings.HasPrefix(name, layer+"mlp.") || strings.HasPrefix(name, layer+"block_sparse_moe.") {
				delete(out.shapes, name)
			}
		}
		move(out.shapes, layer)
	}
	return out
}

// TestExpertForms reads the layouts in which files store experts.
func TestExpertForms(t *testing.T) {
	qwen := tinyHF(t, "variants/qwen3_moe")
	stacked := qwen.moved(2, func(m map[string][]uint64, layer string) {
		m[layer+"mlp.gate.weight"] = []uint64{8, 128}
		m[layer+"mlp.experts.gate_up_proj"] = []uint64{8, 192, 128}
		m[layer+"mlp.experts.down_proj"] = []uint64{8, 128, 96}
	})
	oss := tinyHF(t, "variants/gpt_oss")
	apart := oss.moved(2, func(m map[string][]uint64, layer string) {
		m[layer+"mlp.router.weight"], m[layer+"mlp.router.bias"] = []uint64{4, 128}, []uint64{4}
		for name, n := range map[string]uint64{"gate": 192, "up": 192, "down": 128} {
			m[layer+"mlp.experts."+name+"_proj.weight"] = []uint64{4, n, 320 - n}
			m[layer+"mlp.experts."+name+"_proj.bias"] = []uint64{4, n}
		}
	})
	mixtral := tinyHF(t, "variants/mixtral").moved(2, func(m map[string][]uint64, layer string) {
		m[layer+"mlp.gate.weight"] = []uint64{8, 128}
		m[layer+"mlp.experts.gate_up_proj"] = []uint64{8, 192, 128}
		m[layer+"mlp.experts.down_proj"] = []uint64{8, 128, 96}
	})
	for _, c := range []struct {
		name   string
		src    *fakeSource
		router string
		up     ExpertTensor // of expert 3 in layer 1
	}{
		{"each", qwen, "model.layers.1.mlp.gate.weight", ExpertTensor{Name: "model.layers.1.mlp.experts.3.up_proj.weight", Shape: []uint64{96, 128}, Each: true, Step: 1, Stack: 96}},
		{"stacked", stacked, "model.layers.1.mlp.gate.weight", ExpertTensor{Name: "model.layers.1.mlp.experts.gate_up_proj", Shape: []uint64{8, 192, 128}, First: 96, Step: 1, Stack: 192}},
		{"transposed", oss, "model.layers.1.mlp.router.weight",
			ExpertTensor{Name: "model.layers.1.mlp.experts.gate_up_proj", Shape: []uint64{4, 128, 384}, Bias: "model.layers.1.mlp.experts.gate_up_proj_bias", Transposed: true, First: 1, Step: 2, Stack: 384}},
		{"apart", apart, "model.layers.1.mlp.router.weight",
			ExpertTensor{Name: "model.layers.1.mlp.experts.up_proj.weight", Shape: []uint64{4, 192, 128}, Bias: "model.layers.1.mlp.experts.up_proj.bias", Step: 1, Stack: 192}},
		{"mixtral", mixtral, "model.layers.1.mlp.gate.weight", ExpertTensor{Name: "model.layers.1.mlp.experts.gate_up_proj", Shape: []uint64{8, 192, 128}, First: 96, Step: 1, Stack: 192}},
	} {
		cfg := readChecked(t, Builtin(), c.src)
		if up := cfg.Expert(ExpertUp, 1, 3); fmt.Sprint(up) != fmt.Sprint(c.up) || cfg.Tensor(Router, 1) != c.router {
			t.Errorf("%s: %+v of router %s, want %+v", c.name, up, cfg.Tensor(Router, 1), c.up)
		}
	}
}

// TestSparseLayers reads which layers have experts and how they are weighted.
func TestSparseLayers(t *testing.T) {
	c := readChecked(t, Builtin(), tinyHF(t, "variants/qwen3_moe_sparse"))
	var sparse []bool
	for i := range c.Layer {
		sparse = append(sparse, c.Layer[i].Sparse)
	}
	e := c.Experts
	if fmt.Sprint(sparse) != "[false true false false]" || e.Count != 16 || e.Used != 4 || e.FF != 64 || !e.OverAll || e.Bias || c.FF != 128 {
		t.Errorf("layers %v, %+v", sparse, e)
	}
	c = readChecked(t, Builtin(), tinyHF(t, "variants/gpt_oss"))
	if e := c.Experts; e.OverAll || !e.Bias || !c.AttnSinks || c.Activation != ClampedSwiGLU || c.ActLimit != 7 || !c.Bias.Router || c.Layer[0].Window != 16 || c.Layer[1].Window != 0 {
		t.Errorf("%+v", c)
	}
}

func TestExpertErrors(t *testing.T) {
	qwen := tinyHF(t, "variants/qwen3_moe")
	for _, c := range []struct {
		key   string
		value any
		want  string
	}{
		{"num_experts_per_tok", 9.0, "arch: num_experts_per_tok: 9 is not in 1..8"},
		{"num_local_experts", 1e9, "arch: num_local_experts: 1e+09 is not in 0..1024"},
		{"num_local_experts", math.NaN(), "arch: num_local_experts: NaN is not an integer"},
		{"moe_intermediate_size", 0.0, "arch: moe_intermediate_size: 0 is not in 1..1048576"},
		{"mlp_only_layers", "all", `arch: mlp_only_layers: "all" is not a list`},
		{"mlp_only_layers", []any{"one"}, `arch: mlp_only_layers: "one" is not a layer`},
		{"decoder_sparse_step", 0.0, "arch: decoder_sparse_step: 0 is not in 1..1024"},
	} {
		if _, err := Builtin().Read(qwen.with(map[string]any{c.key: c.value})); err == nil || err.Error() != c.want {
			t.Errorf("%s = %v: %v, want %s", c.key, c.value, err, c.want)
		}
	}
	for _, name := range []string{"model.layers.1.mlp.experts.7.down_proj.weight", "model.layers.0.mlp.gate.weight"} {
		src := qwen.with(nil)
		delete(src.shapes, name)
		cfg, err := Builtin().Read(src)
		if err == nil {
			err = cfg.Check(src)
		}
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
