package convert_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/pianola-engine/pianola/dtype"
	"github.com/pianola-engine/pianola/internal/packed"
	"github.com/pianola-engine/pianola/quantize"
	"github.com/pianola-engine/pianola/weights/gguf"
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

// TestPacked: matrices whose scales are tensors of their own, in MLX's and in FP8's form, give the
// elements of the same model in float32, Q's and K's rows reordered in either.
func TestPacked(t *testing.T) {
	const dir = "../testdata/tiny/llama"
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
