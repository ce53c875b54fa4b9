package table_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// settledOf returns the parameter settled of a command, if its kernel has it.
func settledOf(c *table.Cmd) (v []byte, ok bool) {
	k, _ := decl.Lookup(c.Kernel)
	offset, ok := k.SettledParam()
	return c.Param[offset : offset+4], ok
}

// TestSettled checks which commands may read early: attention of one row and the product that merges its splits, but
// not attention of the next rows of a draft, whose K and V the phase before writes.
func TestSettled(t *testing.T) {
	tab := compiledOn(t, "h200", "tiny/qwen3", compiler.Options{Context: 512, Draft: 2})
	for _, name := range []string{"decode", "verify"} {
		i := slices.IndexFunc(tab.Programs, func(p table.Program) bool { return p.Name == name })
		if i < 0 {
			t.Fatalf("there is no program %s", name)
		}
		p := tab.Programs[i]
		var attention, merges []uint32 // settled of each command
		for c := p.First; c < p.First+p.Count; c++ {
			v, _ := settledOf(&tab.Cmds[c])
			settled := binary.LittleEndian.Uint32(v)
			switch tab.Cmds[c].Kernel {
			case kernels.RoPEAttn:
				attention = append(attention, settled)
			case kernels.GEMV:
				if g := kernels.GEMVParamsOf(&tab.Cmds[c]); g.Heads > 0 {
					merges = append(merges, settled)
				}
			}
		}
		if len(attention) < 2 || len(merges) == 0 {
			t.Fatalf("%s has %d attentions and %d merges", name, len(attention), len(merges))
		}
		if name == "verify" && (attention[0] != 1 || attention[1] != 0) {
			t.Errorf("attention of the rows of a draft has settled %v; the second row reads what the first wrote", attention)
		}
		if name == "decode" && slices.Contains(attention, 0) {
			t.Errorf("attention of decode has settled %v", attention)
		}
		if slices.Contains(merges, 0) {
			t.Errorf("%s: products that merge splits have settled %v", name, merges)
		}
	}
}

// TestSettledFaults checks that a table is refused if a command says of what it reads that it is settled, and it is not.
func TestSettledFaults(t *testing.T) {
	good := compiledOn(t, "h200", "tiny/qwen3", compiler.Options{Context: 512, Draft: 2})
	if faults := good.Validate(); len(faults) > 0 {
		t.Fatal(faults)
	}
	changed := 0
	for i := range good.Cmds {
		v, ok := settledOf(&good.Cmds[i])
		if !ok || binary.LittleEndian.Uint32(v) != 0 {
			continue
		}
		changed++
		binary.LittleEndian.PutUint32(v, 1)
		faults := good.Validate()
		binary.LittleEndian.PutUint32(v, 0)
		if len(faults) != 1 || !strings.Contains(faults[0].Error(), "settled") {
			t.Errorf("command %d: %v", i, faults)
		}
	}
	if changed == 0 {
		t.Error("all commands are settled")
	}
}

// TestSettledBatch checks that attention of a batch reads early behind gemm_few, and not behind gemm_halves, whose weights
// K and V of many rows would delay.
func TestSettledBatch(t *testing.T) {
	tab := compiledOn(t, "h200", "gopher-q8_0.gguf", compiler.Options{Context: 512, Sequences: 128})
	for name, want := range map[string]uint32{"batch.1": 1, "batch.32": 1, "batch.128": 0} {
		i := slices.IndexFunc(tab.Programs, func(p table.Program) bool { return p.Name == name })
		if i < 0 {
			t.Fatalf("there is no program %s", name)
		}
		seen := 0
		for _, c := range tab.Cmds[tab.Programs[i].First:][:tab.Programs[i].Count] {
			if c.Kernel != kernels.RoPEAttnTile {
				continue
			}
			seen++
			if got := kernels.RoPEAttnTileParamsOf(&c).Settled; got != want {
				t.Errorf("%s: attention has settled %d, want %d", name, got, want)
			}
		}
		if seen == 0 {
			t.Errorf("%s has no attention of one kernel", name)
		}
	}
}
