package convert_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/convert"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/packed"
	"github.com/pianola-engine/pianola/internal/quantize"
)

// elementsOf returns the elements of each tensor of a GGUF file.
func elementsOf(t *testing.T, data []byte) map[string][]float32 {
	t.Helper()
	file, err := gguf.Decode(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]float32{}
	for _, x := range file.Tensors {
		n := uint64(1)
		for _, d := range x.Shape {
			n *= d
		}
		all[x.Name] = make([]float32, n)
		if err := dtype.Dequantize(x.Type, all[x.Name], data[x.Offset:][:x.Size]); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestPacked converts models whose scales are separate tensors, in MLX's and in FP8's format.
// The results must equal those of the same model in float32. In both models the rows of Q and
// K are reordered.
func TestPacked(t *testing.T) {
	const dir = "../../testdata/tiny/llama"
	for _, test := range []struct {
		name string
		make func() (a, b *packed.Model, err error)
	}{
		{"MLX", func() (a, b *packed.Model, err error) {
			return packed.MLX(dir, 128, packed.Setting{Bits: 6, Group: 64, Scale: "F16"}, nil)
		}},
		{"FP8", func() (a, b *packed.Model, err error) {
			return packed.E4M3(dir, 128, packed.FP8{Rows: 1, Name: "weight_scale", Scale: "F32",
				Shape: func(rows, _ int) []int { return []int{rows, 1} }, Config: map[string]any{"quant_method": "fp8"}})
		}},
	} {
		a, b, err := test.make()
		if err != nil {
			t.Fatal(err)
		}
		one, other := t.TempDir(), t.TempDir()
		if err := a.Write(one); err != nil {
			t.Fatal(err)
		}
		if err := b.Write(other); err != nil {
			t.Fatal(err)
		}
		got, want := elementsOf(t, write(t, one, "", quantize.Options{})), elementsOf(t, write(t, other, "", quantize.Options{}))
		if len(got) != len(want) {
			t.Fatalf("%s: %d tensors, want %d", test.name, len(got), len(want))
		}
		for name, w := range want {
			g := got[name]
			for i := range w {
				if d := math.Abs(float64(g[i] - w[i])); d > 1e-3*math.Abs(float64(w[i]))+1e-6 {
					t.Fatalf("%s: %s: element %d is %v, want %v", test.name, name, i, g[i], w[i])
				}
			}
		}
	}
}

// TestMXFP4 converts experts in the published format of gpt-oss, where the rows of gate and up
// are interleaved. The results must be MXFP4 blocks with the same elements.
func TestMXFP4(t *testing.T) {
	config, tensors, err := packed.Read("../../testdata/variants/gpt_oss")
	if err != nil {
		t.Fatal(err)
	}
	model, _ := packed.New(config)
	r := rand.New(rand.NewPCG(1, 2))
	const experts, width, ff = 4, 128, 192
	type matrix struct {
		rows, columns  int
		blocks, scales []byte
	}
	made := map[string]*matrix{}
	for name, f := range tensors {
		if !strings.HasSuffix(name, "_proj") {
			model.Tensors[name] = packed.F32(f)
			continue
		}
		m := &matrix{rows: 2 * ff, columns: width}
		if strings.HasSuffix(name, "down_proj") {
			m.rows, m.columns = width, ff
		}
		m.blocks, m.scales = make([]byte, experts*m.rows*m.columns/2), make([]byte, experts*m.rows*m.columns/32)
		for i := range m.blocks {
			m.blocks[i] = byte(r.Uint32())
		}
		for i := range m.scales {
			m.scales[i] = byte(118 + r.IntN(6))
		}
		model.Tensors[name+"_blocks"] = packed.Tensor{Type: "U8", Shape: []int{experts, m.rows, m.columns / 32, 16}, Data: m.blocks}
		model.Tensors[name+"_scales"] = packed.Tensor{Type: "U8", Shape: []int{experts, m.rows, m.columns / 32}, Data: m.scales}
		made[name] = m
	}
	model.Config["quantization_config"] = map[string]any{"quant_method": "mxfp4"}
	dir := t.TempDir()
	if err := model.Write(dir); err != nil {
		t.Fatal(err)
	}
	data := write(t, dir, "", quantize.Options{})
	if list := tensorsOf(t, data); !strings.Contains(list, "blk.1.ffn_up_exps.weight MXFP4 [4 192 128]") {
		t.Errorf("got\n%s", list)
	}
	got := elementsOf(t, data)
	values := []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	for _, part := range []struct {
		to, from    string
		first, step int
	}{{"blk.1.ffn_gate_exps.weight", "gate_up_proj", 0, 2}, {"blk.1.ffn_up_exps.weight", "gate_up_proj", 1, 2}, {"blk.1.ffn_down_exps.weight", "down_proj", 0, 1}} {
		m := made["model.layers.1.mlp.experts."+part.from]
		i := 0
		for e := range experts {
			for row := part.first; row < m.rows; row += part.step {
				for col := range m.columns {
					at := (e*m.rows+row)*m.columns + col
					code := m.blocks[at/2] >> (at % 2 * 4) & 15
					want := values[code&7] * math.Ldexp(1, int(m.scales[at/32])-127)
					if code > 7 {
						want = -want
					}
					if float64(got[part.to][i]) != want {
						t.Fatalf("%s: expert %d, row %d, column %d: %v, want %v", part.to, e, row, col, got[part.to][i], want)
					}
					i++
				}
			}
		}
	}
}

// TestPlainGranite converts a model of Granite 4 without Mamba-2 layers, which becomes one of Granite as
// llama.cpp's converter writes it.
func TestPlainGranite(t *testing.T) {
	for name, want := range map[string]string{"attention": "granite", "one group": "granitehybrid"} {
		dir := t.TempDir()
		if err := packed.Granites()[name].Write(dir); err != nil {
			t.Fatal(err)
		}
		m, err := convert.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := m.Meta("general.architecture"); got != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
