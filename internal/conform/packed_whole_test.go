package conform

import (
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/golden"
	"github.com/pianola-engine/pianola/internal/packed"
	"github.com/pianola-engine/pianola/replay/cpu"
)

// TestPackedWhole replays tables of models with latent attention and with recurrent state with the
// emulated kernels and on the CPU device.
func TestPackedWhole(t *testing.T) {
	prompt := make([]int32, 40)
	for i := range prompt {
		prompt[i] = int32(i*29%500 + 3)
	}
	for name, of := range map[string]struct {
		model interface{ Write(dir string) error }
		on    string
	}{
		"direct": {packed.Latents()["direct"], "m4-pro"}, "ranked": {packed.Latents()["ranked"], "h200"},
		"conv three": {packed.Convs()["three"], "h200"}, "conv bias": {packed.Convs()["bias"], "m4-pro"},
		"delta grouped": {packed.Deltas()["grouped"], "m4-pro"}, "delta equal": {packed.Deltas()["equal"], "h200"},
	} {
		t.Run(name, func(t *testing.T) {
			on, dir := of.on, t.TempDir()
			if err := of.model.Write(dir); err != nil {
				t.Fatal(err)
			}
			h, err := pianola.OpenHeader(dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			c, err := chip.Lookup(on)
			if err != nil {
				t.Fatal(err)
			}
			small(c)
			tab, err := compiler.Compile(compiler.Input{Config: h.Config(), Tensors: h.Directory(), Chip: c, Options: compiler.Options{Context: wholeContext}})
			if err != nil {
				t.Fatal(err)
			}
			src, err := h.Directory().Map()
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			host, err := cpu.New(cpu.Options{Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			p := builds.Get(t, (&whole{chip: on, fast: true}).emulator())
			want := generate(t, load(t, host, tab, src), prompt, 4)
			got := generate(t, load(t, emu.NewDevice(p, emu.DeviceOptions{Order: emu.Reverse, Seed: 1}), tab, src), prompt, 4)
			if a := golden.Compare(3e-3, got.first, nil, float64s(want.first), nil, nil); a.Fault != nil {
				t.Error(a.Fault)
			}
			if a := golden.Compare(3e-3, got.last, nil, float64s(want.last), nil, nil); slices.Equal(got.ids[:3], want.ids[:3]) && a.Fault != nil {
				t.Error(a.Fault)
			}
		})
	}
}
