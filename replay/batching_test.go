package replay_test

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/batchtest"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/packed"
	"github.com/pianola-engine/pianola/internal/quantize"
	"github.com/pianola-engine/pianola/internal/synth"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
)

// batched is a model whose rows TestBatching computes alone and among others.
type batched struct {
	name     string
	path     func(t *testing.T) string
	o        compiler.Options
	rows     int // positions; 0 selects the default
	portable bool
}

// batchedTypes are models with each type of weights.
func batchedTypes() (list []batched) {
	mixes := quantize.Mixes()
	if !exhaustive.On {
		mixes = []string{"F16", "BF16", "Q4_K_M"}
	}
	for _, quant := range mixes {
		list = append(list, batched{name: quant, path: func(t *testing.T) string { return small(t, quant) }})
	}
	list[len(list)-1].rows = 530 // also in a sample
	settings := []packed.Setting{{Bits: 4, Group: 64, Scale: "BF16"}}
	if exhaustive.On {
		settings = append(settings, packed.Setting{Bits: 3, Group: 32, Scale: "F32"}) // has no tiles and is slow
		for i, bits := range []int{2, 3, 4, 5, 6, 8} {
			settings = append(settings, packed.Setting{Bits: bits, Group: []int{32, 64, 128}[i%3], Scale: []string{"F16", "BF16"}[i%2]})
		}
	}
	for _, s := range settings {
		list = append(list, batched{name: fmt.Sprintf("mlx %d %d %s", s.Bits, s.Group, s.Scale), rows: exhaustive.Pick(70, 0), path: func(t *testing.T) string {
			a, _, err := packed.MLX("../testdata/tiny/llama", 0, s, nil)
			return written(t, a, err)
		}})
	}
	list = append(list, batched{name: "fp8", path: func(t *testing.T) string {
		a, _, err := packed.E4M3("../testdata/tiny/llama", 0, packed.FP8{
			Rows: 128, Cols: 128, Name: "weight_scale_inv", Scale: "F32",
			Shape:  func(rows, cols int) []int { return []int{(rows + 127) / 128, (cols + 127) / 128} },
			Config: map[string]any{"quant_method": "fp8", "weight_block_size": []int{128, 128}},
		})
		return written(t, a, err)
	}})
	for _, quant := range exhaustive.Pick(mixes, []string{"Q4_0"}) {
		list = append(list, batched{name: "portable " + quant, path: func(t *testing.T) string { return small(t, quant) }, rows: 12, portable: true})
	}
	return list
}

// batchedFamilies are models with each kind of attention, norm and feed-forward block.
func batchedFamilies(t *testing.T) (list []batched) {
	names := []string{"tiny/mistral", "tiny/gemma2", "variants/gpt_oss", "variants/qwen3_moe"}
	if exhaustive.On {
		names = nil // these are among all
		for _, pattern := range []string{"tiny/*", "variants/*"} {
			dirs, err := filepath.Glob(filepath.Join("..", "testdata", pattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range dirs {
				names = append(names, strings.TrimPrefix(filepath.ToSlash(d), "../testdata/"))
			}
		}
	}
	for _, name := range names {
		path := func(t *testing.T) string { return testmodels.Path(t, filepath.Join("..", "testdata", name)) }
		list = append(list, batched{name: name, path: path})
	}
	for name, o := range map[string]compiler.Options{
		"q8_0": {KV: "q8_0"}, "sinks": {KVSinks: 4, KVWindow: 40}, "no fusion": {NoFuse: true}, "rows": {NoRepack: true}, "drafts": {Draft: 3},
	} {
		path := func(t *testing.T) string { return small(t, "Q8_0") }
		list = append(list, batched{name: name, path: path, o: o, rows: exhaustive.Pick(0, 70)})
	}
	return list
}

// small writes a model of two layers with random weights of a type.
func small(t *testing.T, quant string) string {
	t.Helper()
	shape, _ := synth.FindShape("gopher")
	shape.Layers, shape.FFN = 2, 512
	path := filepath.Join(t.TempDir(), quant+".gguf")
	if err := synth.WriteFile(context.Background(), path, shape, quant, 1, nil); err != nil {
		t.Fatal(err)
	}
	return path
}

// written writes a model with packed weights.
func written(t *testing.T, m *packed.Model, err error) string {
	t.Helper()
	dir := t.TempDir()
	if err == nil {
		err = m.Write(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestBatching computes the rows of tables for batching alone, among other rows and in prompts that
// are cut at random. All bits must be the same.
func TestBatching(t *testing.T) {
	for _, b := range append(batchedTypes(), batchedFamilies(t)...) {
		t.Run(b.name, func(t *testing.T) {
			var rows int
			m := loadedFile(t, b.path(t), cpu.Options{Threads: exhaustive.Pick(2, 1), Portable: b.portable}, func(_ *chip.Chip, c *arch.Config) compiler.Options {
				rows = min(cmp.Or(b.rows, exhaustive.Pick(530, 140)), c.Context)
				o := b.o
				o.Batching, o.AllLogits, o.Context = true, true, rows
				return o
			})
			vocab := int(m.Table().Header.Vocab)
			s := session(t, m, replay.SessionOptions{})
			if err := batchtest.Check(t.Context(), s, vocab, batchtest.Tokens(rows, vocab), batchtest.Counts, 1); err != nil {
				t.Error(err)
			}
			if b.o.Draft > 0 {
				checkDrafts(t, m)
			}
		})
	}
}

// checkDrafts compares the tokens of speculative decoding with those of decoding.
func checkDrafts(t *testing.T, m *replay.Model) {
	t.Helper()
	ids := []int32{7, 8, 9, 7, 8, 9, 7, 8}
	want := generate(t, session(t, m, replay.SessionOptions{}), ids, 40)
	s := session(t, m, replay.SessionOptions{})
	if err := s.SetSpeculation(true); err != nil {
		t.Fatal(err)
	}
	if got := generate(t, s, ids, 40); !slices.Equal(got, want) {
		t.Errorf("with drafts %v, without %v", got, want)
	}
}
