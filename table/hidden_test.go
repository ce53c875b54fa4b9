package table_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/table"
)

// TestHiddenSlot checks that Validate rejects an invalid hidden slot.
func TestHiddenSlot(t *testing.T) {
	for _, c := range []struct {
		want string
		brk  func(tab *table.Table, s *table.Slot)
	}{
		{"", func(*table.Table, *table.Slot) {}},
		{"slot 4 (hidden): size", func(_ *table.Table, s *table.Slot) { s.Size -= 4 }},
		{"has scope session, not executor", func(_ *table.Table, s *table.Slot) { s.Scope = table.ScopeExecutor }},
		{"2 slots of kind hidden", func(tab *table.Table, s *table.Slot) {
			other := *s
			other.Name = "other"
			tab.Slots = append(tab.Slots, other)
		}},
	} {
		tab := compiled(t, compiler.Options{Context: 100, Hidden: true})
		_, i, ok := tab.Slot(table.SlotHidden)
		if !ok {
			t.Fatal("there is no slot")
		}
		c.brk(tab, &tab.Slots[i])
		faults := tab.Validate()
		if c.want == "" && len(faults) > 0 || c.want != "" && !slices.ContainsFunc(faults, func(err error) bool { return strings.Contains(err.Error(), c.want) }) {
			t.Errorf("got %v, want a fault with %q", faults, c.want)
		}
	}
}
