package table_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// firstOf returns the first command of a kernel.
func firstOf(tab *table.Table, kernel table.KernelID) *table.Cmd {
	return &tab.Cmds[slices.IndexFunc(tab.Cmds, func(c table.Cmd) bool { return c.Kernel == kernel })]
}

// withConstant gives the first command of a kernel another value of a constant, and returns the command.
func withConstant(tab *table.Table, kernel table.KernelID, constant int, value uint32) *table.Cmd {
	c := firstOf(tab, kernel)
	tab.Specs = append(tab.Specs, tab.Specs[c.Spec])
	c.Spec = uint16(len(tab.Specs) - 1)
	tab.Specs[c.Spec].Values[constant] = value
	return c
}

// TestBatchingFaults damages tables for batching so that a row's bits depend on the number of rows.
func TestBatchingFaults(t *testing.T) {
	const down, attn, experts = "layer.0.ffn.down", "layer.0.attn.attention", "layer.0.ffn.experts.gate_up"
	for _, c := range []struct {
		name, chip, model string
		label             string
		brk               func(tab *table.Table, c *table.Cmd)
		want              string
	}{
		{"another order in gemm_halves", "h200", "gopher-q8_0.gguf", down, func(tab *table.Table, _ *table.Cmd) {
			// Decode has gemm_few.
			c := firstOf(tab, kernels.GEMMHalves)
			p := kernels.GEMMHalvesParamsOf(c)
			p.Spread = 1
			p.Put(c)
		}, "spread == 0 does not hold"},
		{"another constant", "h200", "tiny/qwen3", attn, func(tab *table.Table, _ *table.Cmd) {
			c := withConstant(tab, kernels.AttnTile, kernels.AttnTileSpecLearned, 1) // decode has rope_attn_tile
			c.Bind[kernels.AttnTileBindLogits] = c.Bind[kernels.AttnTileBindQ]
		}, "its arithmetic for slot kv.0.k is attn_tile with constants"},
		{"a number of ways", "h200", "tiny/qwen3", attn, func(tab *table.Table, _ *table.Cmd) {
			firstOf(tab, kernels.AttnTile).Threadgroup[0] = 128
		}, "threads/(128*units) [1]"},
		{"no segments", "h200", "tiny/qwen3", attn, func(tab *table.Table, _ *table.Cmd) {
			withConstant(tab, kernels.AttnTile, kernels.AttnTileSpecSegments, 0)
		}, "its arithmetic for slot kv.0.k is attn_tile with constants"},
		{"a group of rows of experts", "cpu", "variants/qwen3_moe", experts, func(_ *table.Table, c *table.Cmd) {
			p := kernels.ExpertGEMVParamsOf(c)
			p.Group = 8
			p.Put(c)
			c.Grid[0] = (p.Out + 7) / 8
		}, "group, threads, stage [8 "},
		{"threads that divide the columns of a router", "h200", "variants/qwen3_moe/model.gguf", "layer.0.ffn.router", func(_ *table.Table, c *table.Cmd) { c.Threadgroup[0] = 128 }, "threads : 0 [128]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := compiledOn(t, c.chip, c.model, compiler.Options{Context: 100, Batching: true})
			if faults := tab.Validate(); len(faults) > 0 {
				t.Fatal(faults)
			}
			c.brk(tab, &tab.Cmds[command(t, tab, c.label)])
			faults := tab.Validate()
			if !slices.ContainsFunc(faults, func(err error) bool { return strings.Contains(err.Error(), c.want) }) {
				t.Errorf("got %v, want a fault with %q", faults, c.want)
			}
		})
	}
}

// TestBatchingOption marks ordinary tables as tables for batching. Decode has other kernels than
// prefill there, which Validate must report.
func TestBatchingOption(t *testing.T) {
	for _, chipName := range chip.Names() {
		tab := compiledOn(t, chipName, "tiny/qwen3", compiler.Options{Context: 100})
		if tab.Header.Batching() {
			t.Errorf("%s: a table without the option is for batching", chipName)
		}
		tab.Header.Options = "no-fuse " + table.OptionBatching
		if faults := tab.Validate(); !tab.Header.Batching() || !slices.ContainsFunc(faults, func(err error) bool { return strings.Contains(err.Error(), "batching: its arithmetic") }) {
			t.Errorf("%s: %v", chipName, faults)
		}
	}
}
