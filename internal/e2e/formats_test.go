package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/packed"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/weights"
)

// relative returns the norm of got - want divided by the norm of want.
func relative(got, want []float32) float64 {
	var diff, norm float64
	for i := range want {
		d := float64(got[i]) - float64(want[i])
		diff, norm = diff+d*d, norm+float64(want[i])*float64(want[i])
	}
	return math.Sqrt(diff / norm)
}

const packedModel = "testdata/tiny/llama"

// written writes both models and returns their directories.
func written(t testing.TB, packed, plain *packed.Model, err error) (string, string) {
	t.Helper()
	a, b := t.TempDir(), t.TempDir()
	if err == nil {
		if err = packed.Write(a); err == nil {
			err = plain.Write(b)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

var shortPrompt = []int32{1, 17, 100, 45, 45, 9, 127}

var packedPrompt = []int32{1, 17, 300, 45, 45, 9, 211, 480, 3, 77, 128, 256, 31, 400, 12, 5, 6, 7, 8, 90}

// TestMLX compares models in MLX's packing with the same weights as float32, for every
// combination of bits and group size.
func TestMLX(t *testing.T) {
	scales := []string{"F16", "BF16", "F32"}
	for i, bits := range []int{2, 3, 4, 5, 6, 8} {
		for j, group := range []int{32, 64, 128} {
			s := packed.Setting{Bits: bits, Group: group, Scale: scales[(i+j)%3]}
			t.Run(fmt.Sprintf("%d bits/%d/%s", bits, group, s.Scale), func(t *testing.T) {
				a, b, err := packed.MLX(packedModel, 128, s, nil)
				packedDir, plain := written(t, a, b, err)
				o := pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 64, Sampler: "none"}}
				want, _ := greedy(t, open(t, plain, o), 4, shortPrompt, 1)
				m := open(t, packedDir, o)
				got, _ := greedy(t, m, 4, shortPrompt, 1)
				// The weights in memory take the size of the file plus some pages and norms.
				if st, err := os.Stat(filepath.Join(packedDir, "model.safetensors")); err != nil || m.Memory().Weights > uint64(st.Size())+16<<10 {
					t.Errorf("%d bytes of weights from a file of %v, %v", m.Memory().Weights, st.Size(), err)
				}
				o.Table.NoRepack = true
				rows, _ := greedy(t, open(t, packedDir, o), 4, shortPrompt, 1)
				t.Logf("relative error %.2e, in rows %.2e, between them %.2e", relative(got, want), relative(rows, want), relative(got, rows))
				if e := relative(got, want); !(e < 7e-2) {
					t.Errorf("relative error %.2e", e)
				}
				// The largest differences come from activations that round to another integer.
				if e := relative(got, rows); !(e < 3e-2) {
					t.Errorf("relative error between layouts %.2e", e)
				}
			})
		}
	}
}

// TestPackedTokens decodes with packed weights. The tokens must be the same for all chain
// lengths, with and without fusion, and equal those of the float32 model up to a near tie.
func TestPackedTokens(t *testing.T) {
	type maker func() (a, b *packed.Model, err error)
	mlx := func(s packed.Setting, named map[string]packed.Setting) maker {
		return func() (a, b *packed.Model, err error) { return packed.MLX(packedModel, 0, s, named) }
	}
	for _, c := range []struct {
		name  string
		make  maker
		limit float64
	}{
		{"4 bits 64", mlx(packed.Setting{Bits: 4, Group: 64, Scale: "BF16"}, nil), 7e-2},
		{"3 bits 32", mlx(packed.Setting{Bits: 3, Group: 32, Scale: "F16"}, nil), 7e-2},
		{"6 bits 128", mlx(packed.Setting{Bits: 6, Group: 128, Scale: "BF16"}, nil), 7e-2},
		{"8 bits 64 and one of 4", mlx(packed.Setting{Bits: 8, Group: 64, Scale: "F16"}, map[string]packed.Setting{
			"model.layers.1.mlp.down_proj": {Bits: 4, Group: 32, Scale: "F16"}, "model.embed_tokens": {Bits: 6, Group: 64, Scale: "F16"},
		}), 7e-2},
		{"mxfp4", mlx(packed.Setting{Bits: 4, Group: 32, Mode: "mxfp4"}, nil), 7e-2},
		{"fp8 blocks", func() (a, b *packed.Model, err error) { return packed.E4M3(packedModel, 0, fp8Blocks) }, 2e-3},
		{"fp8 tensors", func() (a, b *packed.Model, err error) { return packed.E4M3(packedModel, 0, fp8Tensors) }, 2e-3},
		{"fp8 rows", func() (a, b *packed.Model, err error) { return packed.E4M3(packedModel, 0, fp8Rows) }, 2e-3},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b, err := c.make()
			packedDir, plain := written(t, a, b, err)
			const n = 24
			o := pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 64, Sampler: "none"}}
			want, wantIDs := greedy(t, open(t, plain, o), 64, packedPrompt, n)
			m := open(t, packedDir, o)
			got, ids := greedy(t, m, 64, packedPrompt, n)
			if e := relative(got, want); !(e < c.limit) {
				t.Errorf("relative error %.2e", e)
			}
			same := 0
			for same < n && ids[same] == wantIDs[same] {
				same++
			}
			t.Logf("relative error %.2e, %d of %d tokens equal those of float32", relative(got, want), same, n)
			if c.limit < 1e-2 && same < n {
				t.Errorf("%d of %d tokens are the same", same, n)
			}
			for _, chain := range []int{1, 7} {
				if _, other := greedy(t, m, chain, packedPrompt, n); !slices.Equal(other, ids) {
					t.Errorf("chains of %d: the tokens differ", chain)
				}
			}
			if one, all := bothWays(t, m, packedPrompt, ids[:9]); !slices.Equal(one, all) {
				t.Errorf("decoding and a prompt of the same tokens give different logits: relative error %.2e", relative(one, all))
			}
			o.Table.NoFuse = true
			if _, other := greedy(t, open(t, packedDir, o), 64, packedPrompt, n); !slices.Equal(other, ids) {
				t.Error("without fusion: the tokens differ")
			}
		})
	}
}

// bothWays returns the logits after prompt and ids, once with ids decoded in a chain and once
// with ids as a part of the prompt.
func bothWays(t *testing.T, m *pianola.Model, prompt, ids []int32) (chain, whole []float32) {
	t.Helper()
	chain, whole = make([]float32, m.Config().Vocab), make([]float32, m.Config().Vocab)
	s, err := m.NewSession(pianola.SessionOptions{Chain: len(ids), IgnoreStops: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, _, err1 := s.Prompt(t.Context(), prompt)
	_, _, err2 := s.Chain(t.Context(), len(ids))
	err3 := s.NextLogits(chain)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	other, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, _, err1 = other.Prompt(t.Context(), slices.Concat(prompt, ids))
	if err := errors.Join(err1, other.NextLogits(whole)); err != nil {
		t.Fatal(err)
	}
	return chain, whole
}

var (
	fp8Blocks = packed.FP8{
		Rows: 128, Cols: 128, Name: "weight_scale_inv", Scale: "F32",
		Shape:  func(rows, cols int) []int { return []int{(rows + 127) / 128, (cols + 127) / 128} },
		Config: map[string]any{"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": []int{128, 128}},
	}
	fp8Tensors = packed.FP8{
		Name: "weight_scale", Scale: "F32",
		Shape:  func(int, int) []int { return nil },
		Config: map[string]any{"quant_method": "modelopt", "quant_algo": "FP8"},
	}
	fp8Rows = packed.FP8{
		Rows: 1, Name: "weight_scale", Scale: "BF16",
		Shape: func(rows, _ int) []int { return []int{rows, 1} },
		Config: map[string]any{"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": map[string]any{
			"group_0": map[string]any{"weights": map[string]any{"num_bits": 8, "type": "float", "strategy": "channel"}},
		}},
	}
)

// TestSplitModel splits a GGUF model into three files and compares the results with those of
// the single file.
func TestSplitModel(t *testing.T) {
	const path = "testdata/tiny/qwen3/model.gguf"
	h, err := pianola.OpenHeader(testmodels.Path(t, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	src, err := h.Directory().Map()
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dir, tensors := t.TempDir(), h.Directory().Tensors()
	const parts = 3
	for i := range parts {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("m-%05d-of-%05d.gguf", i+1, parts)))
		if err != nil {
			t.Fatal(err)
		}
		w := gguf.NewWriter(f)
		errs := []error{w.Set("split.no", uint16(i)), w.Set("split.count", uint16(parts)), w.Set("split.tensors.count", int32(len(tensors)))}
		if i == 0 {
			for _, k := range h.Directory().MetaKeys() {
				v, _ := h.Directory().Meta(k)
				errs = append(errs, w.Set(k, v))
			}
		}
		own := tensors[i*len(tensors)/parts : (i+1)*len(tensors)/parts]
		for _, x := range own {
			errs = append(errs, w.AddTensor(x.Name, x.Shape, x.Type))
		}
		for _, x := range own {
			b, err := src.Tensor(x.Name)
			errs = append(errs, err, w.WriteTensor(x.Name, func(w io.Writer) error {
				_, err := w.Write(b)
				return err
			}))
		}
		if err := errors.Join(append(errs, w.Close(), f.Close())...); err != nil {
			t.Fatal(err)
		}
	}
	o := pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 64, Sampler: "none"}}
	want, wantIDs := greedy(t, open(t, path, o), 16, packedPrompt, 20)
	for i := range parts {
		m := open(t, filepath.Join(dir, fmt.Sprintf("m-%05d-of-%05d.gguf", i+1, parts)), o)
		if got, ids := greedy(t, m, 16, packedPrompt, 20); !slices.Equal(got, want) || !slices.Equal(ids, wantIDs) {
			t.Errorf("opened by part %d: the logits or tokens differ", i+1)
		}
	}
}

// TestCheckWeights checks that opening reports a NaN in the weights.
func TestCheckWeights(t *testing.T) {
	config, tensors, err := packed.Read(packedModel)
	if err != nil {
		t.Fatal(err)
	}
	packed.Cut(config, tensors, 128)
	m, _ := packed.New(config)
	for name, f := range tensors {
		m.Tensors[name] = packed.F32(f)
	}
	dir := t.TempDir()
	if err := m.Write(dir); err != nil {
		t.Fatal(err)
	}
	var last pianola.Event
	o := pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 64}, CheckWeights: true, Events: func(e pianola.Event) {
		if e.Stage == pianola.StageCheck {
			last = e
		}
	}}
	open(t, dir, o)
	if last.Done == 0 || last.Done != last.Total {
		t.Errorf("%+v", last)
	}
	const bad = "model.layers.0.mlp.up_proj.weight"
	copy(m.Tensors[bad].Data[4*1000:], []byte{0, 0, 0xc0, 0x7f})
	if err := m.Write(dir); err != nil {
		t.Fatal(err)
	}
	_, err = pianola.Open(t.Context(), dir, o)
	var typed *weights.NotFiniteError
	if !errors.As(err, &typed) || len(typed.Tensors) != 1 || typed.Tensors[0] != (weights.NotFinite{Tensor: bad, Type: "F32", Count: 1, First: 1000}) {
		t.Errorf("%v", err)
	}
	o.CheckWeights = false
	open(t, dir, o)
}

// TestWrongTokenizer opens a model with the tokenizer of another model.
func TestWrongTokenizer(t *testing.T) {
	config, tensors, err := packed.Read(packedModel)
	if err != nil {
		t.Fatal(err)
	}
	m, _ := packed.New(config)
	for name, f := range tensors {
		m.Tensors[name] = packed.F32(f)
	}
	dir := t.TempDir()
	b, err := os.ReadFile("testdata/gopher/tokenizer.json") // of 4,096 tokens
	if err := errors.Join(err, m.Write(dir), os.WriteFile(filepath.Join(dir, "tokenizer.json"), b, 0o644)); err != nil {
		t.Fatal(err)
	}
	_, err = pianola.Open(t.Context(), dir, pianola.Options{Device: "cpu"})
	var typed *pianola.TokenizerSizeError
	if !errors.As(err, &typed) || *typed != (pianola.TokenizerSizeError{Tokens: 4096, Rows: 512}) {
		t.Errorf("%v", err)
	}
}

// TestUnsupportedFormat opens models whose format is not supported. They must be refused
// before their weights are read.
func TestUnsupportedFormat(t *testing.T) {
	config, tensors, err := packed.Read(packedModel)
	if err != nil {
		t.Fatal(err)
	}
	packed.Cut(config, tensors, 64)
	m, _ := packed.New(config)
	for name, f := range tensors {
		m.Tensors[name] = packed.F32(f)
	}
	for _, c := range []struct {
		change func()
		want   string
	}{
		{func() { m.Config["quantization_config"] = map[string]any{"quant_method": "gptq", "bits": 4} }, `quantization_config.quant_method: "gptq" is not supported`},
		{func() { m.Config["quantization_config"] = nil; delete(m.Tensors, "model.layers.0.mlp.up_proj.weight") }, "tensor model.layers.0.mlp.up_proj.weight: missing"},
		{func() {
			m.Tensors["model.layers.0.mlp.up_proj.weight"] = packed.Tensor{Type: "F8_E5M2", Shape: []int{512, 256}, Data: make([]byte, 512*256)}
		}, "tensor model.layers.0.mlp.up_proj.weight: type F8_E5M2 is not supported"},
		{func() {
			m.Tensors["model.layers.0.mlp.up_proj.weight"] = packed.Tensor{Type: "F32", Shape: []int{256, 512}, Data: make([]byte, 4*512*256)}
		}, "tensor model.layers.0.mlp.up_proj.weight: shape [256 512], want [512 256]"},
	} {
		c.change()
		dir := t.TempDir()
		if err := m.Write(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := pianola.Open(t.Context(), dir, pianola.Options{Device: "cpu"}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
