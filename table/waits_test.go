package table_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	. "github.com/pianola-engine/pianola/table"
)

// dumpedCmd is the part of a command in a JSON dump that tells what it waits for.
type dumpedCmd struct {
	Program, Label string
	Barrier        bool
	Waits          []struct {
		Command int
		Slot    string
		Size    uint64
		Kind    string
	}
}

func dumpedCmds(t *testing.T, table *Table) []dumpedCmd {
	t.Helper()
	var b bytes.Buffer
	if err := table.DumpJSON(&b, DumpOptions{}); err != nil {
		t.Fatal(err)
	}
	var dump struct{ Commands []dumpedCmd }
	if err := json.Unmarshal(b.Bytes(), &dump); err != nil {
		t.Fatal(err)
	}
	return dump.Commands
}

// TestWaits checks that exactly the commands with a barrier wait, and that a command of the same
// program that they wait for is not before an earlier barrier. A removed barrier leaves its reasons.
func TestWaits(t *testing.T) {
	table := smallTable()
	if err := table.PlaceBarriers(); err != nil {
		t.Fatal(err)
	}
	cmds := dumpedCmds(t, table)
	for i, c := range cmds {
		if (len(c.Waits) > 0) != c.Barrier {
			t.Errorf("command %d (%s): barrier %v, waits %v", i, c.Label, c.Barrier, c.Waits)
		}
		for _, w := range c.Waits {
			if w.Size == 0 {
				t.Errorf("command %d waits for an empty range: %v", i, w)
			}
			between := func(c dumpedCmd) bool { return c.Barrier }
			if w.Command < i && cmds[w.Command].Program == c.Program && slices.ContainsFunc(cmds[w.Command+1:i], between) {
				t.Errorf("command %d waits for %d, which an earlier barrier covers", i, w.Command)
			}
		}
	}
	i := slices.IndexFunc(cmds, func(c dumpedCmd) bool { return c.Label == "layer.0.attn.qkv" })
	if i < 0 || len(cmds[i].Waits) == 0 || cmds[i].Waits[0].Kind != "read after write" {
		t.Fatalf("layer.0.attn.qkv does not wait for the norm: %v", cmds)
	}
	table.Cmds[i].Barrier = 0
	if got := dumpedCmds(t, table)[i].Waits; !slices.Equal(got, cmds[i].Waits) {
		t.Errorf("without its barrier command %d waits for %v, not for %v", i, got, cmds[i].Waits)
	}
}

// TestWaitsOfInvalidTables dumps tables whose waits cannot be computed.
func TestWaitsOfInvalidTables(t *testing.T) {
	for name, spoil := range map[string]func(*Table){
		"program past the end": func(t *Table) { t.Programs[0].Count = 1 << 31 },
		"unknown kernel":       func(t *Table) { t.Cmds[3].Kernel = 0xffff },
	} {
		table := smallTable()
		spoil(table)
		for _, c := range dumpedCmds(t, table) {
			if len(c.Waits) > 0 {
				t.Errorf("%s: %s waits", name, c.Label)
			}
		}
	}
}

// TestDiffCommands checks the commands that differences name.
func TestDiffCommands(t *testing.T) {
	a, b := smallTable(), smallTable()
	b.Labels[5] = "another label"
	b.Cmds[7].Grid[0]++
	b.Slots[1].Size += 4
	found := map[[2]int]DifferenceKind{}
	for _, d := range Diff(a, b) {
		found[[2]int{d.CmdA, d.CmdB}] = d.Kind
	}
	want := map[[2]int]DifferenceKind{{-1, -1}: Changed, {5, -1}: OnlyA, {-1, 5}: OnlyB, {7, 7}: Changed}
	for at, kind := range want {
		if got, ok := found[at]; !ok || got != kind {
			t.Errorf("commands %v: %v, want %v", at, got, kind)
		}
	}
	if len(found) != len(want) {
		t.Errorf("differences of %v", found)
	}
}
