package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/batchtest"
	"github.com/pianola-engine/pianola/internal/packed"
	"github.com/pianola-engine/pianola/internal/synth"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

var gpuChip = flag.String("gpu-chip", "", "a file that describes the chip for which TestGPUBatching and TestGPUParallel compile, as the files in chip/data do")

// tunedChip returns the chip of the flag -gpu-chip, or nil.
func tunedChip(t *testing.T) *chip.Chip {
	t.Helper()
	if *gpuChip == "" {
		return nil
	}
	b, err := os.ReadFile(*gpuChip)
	if err != nil {
		t.Fatal(err)
	}
	c, err := chip.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// rowsOf is a session with the methods that batchtest.Check calls.
type rowsOf struct{ *pianola.Session }

func (s rowsOf) Logits(dst []float32) error { return s.NextLogits(dst) }

func (s rowsOf) RepromptLogits(ctx context.Context, ids []int32, from int, visit func(row int, logits []float32) error) error {
	for row, err := range s.Session.Logits(ctx, ids, from) {
		if err == nil {
			err = visit(row.Position, row.Logits)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// synthetic writes a small model with random weights of a type.
func synthetic(t *testing.T, shape, quant string, change func(*synth.Shape)) string {
	t.Helper()
	s, ok := synth.FindShape(shape)
	if !ok {
		t.Fatal("no shape", shape)
	}
	change(&s)
	path := filepath.Join(t.TempDir(), quant+".gguf")
	if err := synth.WriteFile(t.Context(), path, s, quant, 1, nil); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkBatching computes the rows of a table for batching alone, among others and in prompts that are
// cut at random, in a mode of the GPU.
func checkBatching(t *testing.T, path string, mode pianola.Mode, o pianola.TableOptions, most int) {
	t.Helper()
	o.Batching, o.AllLogits, o.Context, o.Chip = true, true, most, tunedChip(t)
	t.Parallel() // kernels of other models are assembled and run meanwhile
	m := open(t, path, pianola.Options{Device: "cuda", Mode: mode, Table: o})
	s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
	vocab := m.Config().Vocab
	if err := batchtest.Check(t.Context(), rowsOf{s}, vocab, batchtest.Tokens(most, vocab), batchtest.Counts, 1); err != nil {
		t.Errorf("mode %s, %+v: %v", mode, o, err)
	}
}

// batchedMixes are mixes that together contain every type of weights.
var batchedMixes = []string{
	"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K_S", "Q3_K_M", "Q4_K_M", "Q5_K_S", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "TQ1_0", "TQ2_0",
}

// TestGPUBatching computes rows of tables for batching alone, among other rows and in prompts that
// are cut at random: for every type of weights, for families with windows, soft caps, experts and
// learned sink logits, for every kind of KV cache, and in every mode. All bits must be the same.
func TestGPUBatching(t *testing.T) {
	onGPU(t)
	for i, quant := range batchedMixes {
		t.Run(quant, func(t *testing.T) {
			path := synthetic(t, "gopher", quant, func(s *synth.Shape) { s.Layers, s.Hidden, s.FFN, s.HeadDim = 2, 1024, 2304, 128 })
			most := 600
			if quant == "F16" {
				most = 2000 // the positions of the last rows are divided into four segments
			}
			checkBatching(t, path, gpuModes[i%len(gpuModes)], pianola.TableOptions{}, most)
		})
	}
	for i, s := range []packed.Setting{
		{Bits: 2, Group: 32, Scale: "F16"}, {Bits: 3, Group: 64, Scale: "F32"}, {Bits: 4, Group: 64, Scale: "BF16"}, {Bits: 5, Group: 128, Scale: "BF16"},
		{Bits: 6, Group: 64, Scale: "F16"}, {Bits: 8, Group: 32, Scale: "BF16"}, {Bits: 4, Group: 32, Mode: "mxfp4"},
	} {
		t.Run(fmt.Sprintf("mlx %d %d %s%s", s.Bits, s.Group, s.Scale, s.Mode), func(t *testing.T) {
			a, b, err := packed.MLX(packedModel, 0, s, nil)
			dir, _ := written(t, a, b, err)
			checkBatching(t, dir, gpuModes[i%len(gpuModes)], pianola.TableOptions{}, 200)
		})
	}
	t.Run("fp8", func(t *testing.T) {
		a, b, err := packed.E4M3(packedModel, 0, fp8Blocks)
		dir, _ := written(t, a, b, err)
		checkBatching(t, dir, pianola.ModeRecord, pianola.TableOptions{}, 200)
	})
	for i, path := range []string{
		"testdata/gopher-q8_0.gguf", "testdata/tiny/llama", "testdata/tiny/qwen3", "testdata/tiny/mistral", "testdata/tiny/gemma2", "testdata/tiny/gemma3_text",
		"testdata/tiny/phi3", "testdata/variants/gpt_oss", "testdata/variants/qwen3_moe", "testdata/variants/mixtral_window", "testdata/variants/llama_hd80",
		"testdata/variants/qwen3_hd40_bias", "testdata/variants/starcoder2", "testdata/variants/olmo2", "testdata/variants/granite",
	} {
		t.Run(path, func(t *testing.T) {
			checkBatching(t, path, gpuModes[i%len(gpuModes)], pianola.TableOptions{}, batchContext(t, path))
		})
	}
	for _, mode := range gpuModes {
		for _, o := range []pianola.TableOptions{{}, {KV: pianola.KVQ8}, {KVSinks: 4, KVWindow: 60}, {NoFuse: true}, {NoRepack: true}, {Exact: true}} {
			t.Run(fmt.Sprintf("%s %+v", mode, o), func(t *testing.T) { checkBatching(t, "testdata/gopher-q8_0.gguf", mode, o, 530) })
		}
	}
}

// TestGPUBatchingSetBack generates the rest of a text from contexts that are prefilled again, in every
// mode of the GPU.
func TestGPUBatchingSetBack(t *testing.T) {
	onGPU(t)
	for _, mode := range gpuModes {
		for _, path := range []string{"testdata/gopher-q8_0.gguf", "testdata/gopher"} {
			checkSetBack(t, open(t, path, pianola.Options{Device: "cuda", Mode: mode, Table: batchingPrograms}))
		}
	}
}

// batchContext returns the number of positions that a model is tested with.
func batchContext(t *testing.T, path string) int {
	t.Helper()
	h, err := pianola.OpenHeader(testmodels.Path(t, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	return min(530, h.Config().Context)
}
