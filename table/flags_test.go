package table_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/table"
)

// TestFlags checks the flags of every program that the compiler generates, and that Validate rejects
// a program with different flags.
func TestFlags(t *testing.T) {
	options := compiler.Options{Context: 64, Draft: 3, AllLogits: true, Hidden: true, LogProbs: true}
	tab := compiled(t, options)
	want := map[string]string{
		table.ProgramDecode: "chooses", table.ProgramPrefill: "none", table.ProgramHead: "chooses,reads_row",
		table.ProgramLogits: "reads_row", table.ProgramHidden: "reads_row",
		table.ProgramSample: "chooses,samples", table.ProgramSampleHead: "chooses,reads_row,samples",
		table.ProgramRanked: "chooses,samples,ranks", table.ProgramRankedHead: "chooses,reads_row,samples,ranks",
		table.ProgramVerify: "chooses,advances",
	}
	if len(tab.Programs) != len(want) {
		t.Errorf("%d programs, want %d", len(tab.Programs), len(want))
	}
	for i := range tab.Programs {
		p := &tab.Programs[i]
		if got := p.Flags.String(); got != want[p.Name] {
			t.Errorf("program %s: flags %s, want %s", p.Name, got, want[p.Name])
		}
		for bit := range 32 {
			// Validate rejects a missing or an additional flag, whatever the program's name is.
			p.Flags ^= 1 << bit
			faults := fmt.Sprint(tab.Validate())
			if !strings.Contains(faults, "flags") && !strings.Contains(faults, "slot 1 (logits)") && !strings.Contains(faults, "rows are not in") {
				t.Errorf("program %s with flags %#x: %.200s", p.Name, uint32(p.Flags), faults)
			}
			p.Flags ^= 1 << bit
		}
	}
	if faults := tab.Validate(); len(faults) > 0 {
		t.Fatal(faults[0])
	}
	if f := table.FlagChooses | table.FlagRanks; !f.Has(table.FlagRanks) || f.Has(table.FlagRanks|table.FlagSamples) || !slices.Equal(f.Names(), []string{"chooses", "ranks"}) {
		t.Errorf("flags %s", f)
	}
}
