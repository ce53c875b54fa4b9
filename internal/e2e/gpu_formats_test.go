package e2e_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/packed"
)

// TestGPUPacked runs models whose scales are separate tensors. The results must agree with the
// CPU device, and all modes and chain lengths must give the same bits.
func TestGPUPacked(t *testing.T) {
	onGPU(t)
	type maker func() (a, b *packed.Model, err error)
	// limit holds the limits other than 3e-2. Weights with float32 scales stay in rows, so results
	// may differ as much as those of quantised and float activations do.
	limit := map[string]float64{}
	models := map[string]maker{
		"fp8 blocks": func() (a, b *packed.Model, err error) { return packed.E4M3(packedModel, 0, fp8Blocks) },
		"fp8 rows":   func() (a, b *packed.Model, err error) { return packed.E4M3(packedModel, 0, fp8Rows) },
	}
	for i, bits := range []int{2, 3, 4, 5, 6, 8} {
		for j, group := range []int{32, 64, 128} {
			s := packed.Setting{Bits: bits, Group: group, Scale: []string{"F16", "BF16", "F32"}[(i+j)%3]}
			name := fmt.Sprintf("mlx %d %d %s", bits, group, s.Scale)
			if s.Scale == "F32" {
				limit[name] = 7e-2
			}
			models[name] = func() (a, b *packed.Model, err error) { return packed.MLX(packedModel, 0, s, nil) }
		}
	}
	for name, make := range models {
		t.Run(name, func(t *testing.T) {
			a, b, err := make()
			dir, _ := written(t, a, b, err)
			const n = 24
			o := pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 64, Sampler: "none"}}
			want, _ := greedy(t, open(t, dir, o), 64, packedPrompt, n)
			var first []float32
			var tokens []int32
			o.Device = "cuda"
			for _, o.Mode = range gpuModes {
				for _, chain := range []int{1, 16} {
					logits, got := greedy(t, open(t, dir, o), chain, packedPrompt, n)
					if first == nil {
						first, tokens = logits, got
						e := relative(logits, want)
						if t.Logf("relative error %.1e", e); !(e < cmp.Or(limit[name], 3e-2)) {
							t.Errorf("the relative error compared with the CPU is %.1e", e)
						}
					}
					if !slices.Equal(logits, first) || !slices.Equal(got, tokens) {
						t.Errorf("mode %s, chains of %d: the results differ from mode %s", o.Mode, chain, gpuModes[0])
					}
				}
			}
		})
	}
}
