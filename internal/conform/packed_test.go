package conform

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/golden"
	"github.com/pianola-engine/pianola/internal/packed"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// tableOf compiles the table of a model in a directory.
func tableOf(t *testing.T, dir string, change func(*chip.Chip)) (*table.Table, *weights.Mapped) {
	t.Helper()
	h, err := pianola.OpenHeader(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := chip.Lookup("m4-pro")
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(c)
	}
	tab, err := compiler.Compile(compiler.Input{Config: h.Config(), Tensors: h.Directory(), Chip: c, Options: compiler.Options{Context: 32, Sampler: "none"}})
	if err != nil {
		t.Fatal(err)
	}
	src, err := h.Directory().Map()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return tab, src
}

// TestPacked replays models with packed weights, in rows and in tiles: MLX types with every
// number of bits and every group size. It compares the results with the same weights as
// float32.
func TestPacked(t *testing.T) {
	const model, vocab = "../../testdata/tiny/llama", 32
	type one struct {
		name  string
		make  func() (a, b *packed.Model, err error)
		tiles bool
	}
	var list []one
	scales := []string{"F16", "BF16", "F32"}
	for i, bits := range []int{2, 3, 4, 5, 6, 8} {
		for j, group := range []int{32, 64, 128} {
			s := packed.Setting{Bits: bits, Group: group, Scale: scales[(i+j)%3]}
			list = append(list, one{fmt.Sprintf("%d bits/%d/%s", bits, group, s.Scale), func() (a, b *packed.Model, err error) {
				return packed.MLX(model, vocab, s, nil)
			}, s.Scale == "BF16"})
		}
	}
	list = append(list,
		one{"mxfp4", func() (a, b *packed.Model, err error) {
			return packed.MLX(model, vocab, packed.Setting{Bits: 4, Group: 32, Mode: "mxfp4"}, nil)
		}, false},
		one{"fp8", func() (a, b *packed.Model, err error) {
			return packed.E4M3(model, vocab, packed.FP8{
				Rows: 128, Cols: 128, Name: "weight_scale_inv", Scale: "F32", Config: map[string]any{"quant_method": "fp8"},
				Shape: func(rows, cols int) []int { return []int{rows / 128, cols / 128} },
			})
		}, false},
	)
	p := builds.Get(t, appleFast) // the tables are for an Apple chip
	// The sample has tiles, rows, and both kinds of families.
	list = exhaustive.Pick(list, slices.DeleteFunc(slices.Clone(list), func(c one) bool {
		return !slices.Contains([]string{"3 bits/32/BF16", "8 bits/64/F16", "fp8"}, c.name)
	}))
	if len(list) < 3 {
		t.Fatalf("the sample has only %d cases", len(list))
	}
	for _, c := range list {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, b, err := c.make()
			packedDir, plainDir := t.TempDir(), t.TempDir()
			if err == nil {
				if err = a.Write(packedDir); err == nil {
					err = b.Write(plainDir)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			change, limit := func(c *chip.Chip) { c.TileWeights, c.ActQ8 = false, false }, 2e-3
			device := limit
			if c.tiles {
				change, limit, device = integers, 7e-2, 3e-2
			}
			prompt := []int32{1, 17, 9}
			var outs [3]generated
			for i, dir := range []string{plainDir, packedDir, packedDir} {
				tab, src := tableOf(t, dir, change)
				if i < 2 {
					host, err := cpu.New(cpu.Options{Threads: 1})
					if err != nil {
						t.Fatal(err)
					}
					outs[i] = generate(t, load(t, host, tab, src), prompt, 2)
				} else {
					outs[i] = generate(t, load(t, emu.NewDevice(p, emu.DeviceOptions{Order: emu.Random, Seed: 1}), tab, src), prompt, 2)
				}
			}
			beside := golden.Compare(device, outs[2].first, nil, float64s(outs[1].first), nil, nil)
			reference := golden.Compare(limit, outs[2].first, nil, float64s(outs[0].first), nil, nil)
			if beside.Fault != nil || reference.Fault != nil {
				t.Errorf("beside the CPU device: %v; beside float32: %v", beside.Fault, reference.Fault)
			}
			if outs[1].ids[0] == outs[2].ids[0] {
				if last := golden.Compare(device, outs[2].last, nil, float64s(outs[1].last), nil, nil); last.Fault != nil {
					t.Errorf("the last token: %v", last.Fault)
				}
			}
			t.Logf("%.1e beside the CPU device, %.1e beside float32", beside.Relative, reference.Relative)
		})
	}
}
