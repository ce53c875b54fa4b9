package e2e_test

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// TestAppleTables replays tables for an Apple chip on the CPU device. They agree with the references, and
// fused with unfused ones, though gates and norms have another arithmetic.
func TestAppleTables(t *testing.T) {
	var dirs []string
	for _, glob := range []string{"testdata/tiny/*", "testdata/variants/*"} {
		list, err := filepath.Glob(glob)
		if err != nil || len(list) == 0 {
			t.Fatal(glob, err)
		}
		dirs = append(dirs, list...)
	}
	special := 0 // tables with a product that only Apple's GPUs compute
	for _, dir := range dirs {
		if !exists(filepath.Join(dir, "golden.json")) {
			continue // tests with an oracle have the model
		}
		t.Run(dir, func(t *testing.T) {
			g := readGolden(t, filepath.Join(dir, "golden.json"))
			o := pianola.TableOptions{Context: roomy(t, dir)}
			fused := open(t, dir, pianola.Options{Device: "cpu", Roll: roll(t, dir, "m4-pro", o), AnyChip: true})
			o.NoFuse = true
			unfused := open(t, dir, pianola.Options{Device: "cpu", Roll: roll(t, dir, "m4-pro", o), AnyChip: true})
			for _, c := range fused.Table().Cmds {
				if c.Kernel == kernels.GEMV && fused.Table().Specs[c.Spec].Values[kernels.GEMVSpecOutput] > 1 {
					special++
					break
				}
			}
			for _, c := range g.Cases[:exhaustive.Pick(len(g.Cases), 1)] {
				logits, ids := greedy(t, fused, 16, c.PromptIDs, len(c.GreedyIDs))
				// Prompts are multiplied with one float16 term for each activation.
				limit := max(5e-3, variantLimit(dir))
				if filepath.Base(dir) == "qwen3_next" {
					limit = 6e-3 // 5.4e-3 after a prompt of 7 tokens
				}
				agree(t, limit, logits, ids, c.LastPromptLogits, c.GreedyIDs, c.Top2Gap)
				// The logits of the last token that was decoded.
				want, wantIDs := decoded(t, unfused, c.PromptIDs, 5)
				got, gotIDs := decoded(t, fused, c.PromptIDs, 5)
				if !slices.Equal(gotIDs, wantIDs) {
					continue // agree has found a near tie
				}
				var off, norm float64
				for i := range want {
					off += math.Pow(float64(got[i]-want[i]), 2)
					norm += math.Pow(float64(want[i]), 2)
				}
				if relative := math.Sqrt(off / norm); !(relative <= 1e-4) {
					t.Errorf("relative error %.1e of fused products", relative)
				}
			}
		})
	}
	if special < len(dirs)/3 {
		t.Errorf("%d of %d tables have gated or scaled products", special, len(dirs))
	}
}
