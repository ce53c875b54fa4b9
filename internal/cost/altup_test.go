package cost_test

import (
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/cost"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// TestCountsAltUp counts the loads and stores of the kernels of Gemma 3n and of norms of heads that
// subtract the mean, and compares them with the formulas by binding. synth has no shape with these
// kernels.
func TestCountsAltUp(t *testing.T) {
	emulator := builds.Get(t, emu.Options{Apple: true, Count: true})
	m4, err := chip.Lookup("m4-pro")
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]bool{}
	for _, name := range []string{"gemma3n", "cohere_qknorm"} {
		dir, err := weights.OpenDirectory(testmodels.Path(t, "../../testdata/variants/"+name))
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := arch.Builtin().Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		tab, err := compiler.Compile(compiler.Input{Config: cfg, Tensors: dir, Chip: m4, Options: compiler.Options{Context: 128}})
		if err != nil {
			t.Fatal(err)
		}
		p, _, _ := tab.Program(table.ProgramPrefill)
		at := cost.Point{Position: 32, Rows: 24}
		for i := range p.Count {
			index := int(p.First + i)
			k, _ := decl.Lookup(tab.Cmds[index].Kernel)
			if !strings.HasPrefix(k.Name, "altup_") && k.Name != "top_gates" && k.Name != "head_layernorm" {
				continue
			}
			counted[k.Name] = true
			d := dispatch(t, tab, p, index, at)
			if err := emulator.Run(d); err != nil {
				t.Fatal(err)
			}
			loads, stores, err := cost.Requests(tab, p, index, at, chip.Metal)
			if err != nil {
				t.Fatal(err)
			}
			for b := range k.Bindings {
				if n := d.Counts.Loads[b]; float64(n) > 1.02*float64(loads[b]) || float64(n) < 0.8*float64(loads[b]) {
					t.Errorf("%s: %d bytes loaded from %s, the formula has %d", tab.Label(index), n, k.Bindings[b].Name, loads[b])
				}
				if n := d.Counts.Stores[b]; float64(n) > 1.02*float64(stores[b]) || float64(n) < 0.8*float64(stores[b]) {
					t.Errorf("%s: %d bytes stored to %s, the formula has %d", tab.Label(index), n, k.Bindings[b].Name, stores[b])
				}
			}
		}
	}
	if len(counted) != 6 {
		t.Errorf("counted %v", counted)
	}
}
