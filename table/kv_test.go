package table_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/kernels"
	. "github.com/pianola-engine/pianola/table"

	"github.com/pianola-engine/pianola/internal/decl"
)

// within returns the table of a session whose KV caches have room for the given number of
// positions: a copy of t whose context has that length.
func within(t *Table, positions int) *Table {
	own := *t
	own.Header.Context = uint32(positions)
	own.Slots, own.Cmds = slices.Clone(t.Slots), slices.Clone(t.Cmds)
	for i := range own.Cmds {
		c := &own.Cmds[i]
		if at, ok := c.CapacityParam(); ok {
			c.PutU32(at, min(c.U32(at), uint32(positions)))
		}
		if k, ok := decl.Lookup(c.Kernel); ok {
			if at, _, ok := k.Param("ring"); ok {
				c.PutU32(at, uint32(positions+1))
			}
		}
	}
	for i := range own.Slots {
		if own.Slots[i].Kind == SlotTokens {
			own.Slots[i].Size = (uint64(positions) + 1) * 4
		}
	}
	for _, c := range t.KVCaches() {
		small := c.Within(positions)
		own.Slots[c.Slot].Size = small.Size()
	}
	return &own
}

// TestKVCacheWithin validates a table for every number of positions that a session's caches may
// hold.
func TestKVCacheWithin(t *testing.T) {
	tab := smallTable()
	caches := tab.KVCaches()
	if len(caches) == 0 {
		t.Fatal("the table has no caches")
	}
	for n := int(tab.Header.Chunk); n <= int(tab.Header.Context); n++ { // with fewer positions a full chunk does not fit
		if faults := within(tab, n).Validate(); len(faults) > 0 {
			t.Fatalf("%d positions: %v", n, faults[0])
		}
	}
	// A cache that is one byte too small must be a fault.
	bad := within(tab, 3)
	bad.Slots[caches[0].Slot].Size--
	if !slices.ContainsFunc(bad.Validate(), func(err error) bool {
		return strings.Contains(err.Error(), "past the end of slot "+bad.Slots[caches[0].Slot].Name)
	}) {
		t.Error("a cache that is a byte too small was taken")
	}
}

func TestKVCaches(t *testing.T) {
	tab := smallTable()
	for _, c := range tab.KVCaches() {
		s := tab.Slots[c.Slot]
		if c.Size() != s.Size || c.Heads != smallKVHeads || c.Rows != smallContext || c.Planes != [2]uint64{2 * smallHeadDim} || c.Parts() != smallKVHeads {
			t.Errorf("slot %s of %d bytes: %+v", s.Name, s.Size, c)
		}
		if at, n := c.Span(1, 2, 5); at != uint64(smallContext+2)*c.RowSize() || n != 3*c.RowSize() {
			t.Errorf("rows 2 to 4 of head 1: %d bytes at %d", n, at)
		}
		if c.Used(-1) != 0 || c.Used(3) != 3 || c.Used(1<<20) != smallContext || c.Within(0).Rows != 1 || c.Within(1<<20).Rows != smallContext {
			t.Errorf("%+v: rows in use", c)
		}
	}
	if got := tab.KVSlack(); got != smallContext {
		t.Errorf("%d positions can be taken back, want all %d", got, smallContext)
	}
	// If commands disagree on a cache's layout, it must stay whole.
	for name, change := range map[string]func(t *Table, cmd int){
		"rows":   func(t *Table, cmd int) { at, _ := t.Cmds[cmd].CapacityParam(); t.Cmds[cmd].PutU32(at, 1) },
		"offset": func(t *Table, cmd int) { t.Cmds[cmd].Bind[cacheBinding(t, cmd)].Offset = 256 },
		"kind": func(t *Table, _ int) {
			for i := range t.Specs {
				if t.Specs[i].Kernel == kernels.Attn {
					t.Specs[i].Values[kernels.AttnSpecKV] = decl.KVQ8
				}
			}
		},
		"size": func(t *Table, cmd int) { t.Slots[t.Cmds[cmd].Bind[cacheBinding(t, cmd)].Slot].Size++ },
		"unused": func(t *Table, _ int) {
			t.Slots = append(t.Slots, Slot{Name: "kv.9.k", Kind: SlotKV, Scope: ScopeSession, Size: 64})
		},
	} {
		tab := smallTable()
		cmd := slices.IndexFunc(tab.Cmds, func(c Cmd) bool { _, ok := c.CapacityParam(); return ok })
		change(tab, cmd)
		if got := tab.KVCaches(); got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestKVCachesQ8 uses int8 caches: the scales of all rows are a second plane after the elements.
func TestKVCachesQ8(t *testing.T) {
	const dim, row = 64, 64 + 2*2
	tab := smallTable()
	for i := range tab.Specs {
		if k, ok := decl.Lookup(tab.Specs[i].Kernel); ok {
			kind, has := k.Spec("kv")
			if at, _ := k.Spec("head_dim"); has {
				tab.Specs[i].Values[at], tab.Specs[i].Values[kind] = dim, decl.KVQ8
			}
		}
	}
	for i := range tab.Slots {
		if tab.Slots[i].Kind == SlotKV {
			tab.Slots[i].Size = smallKVHeads * smallContext * row
		}
	}
	caches := tab.KVCaches()
	if len(caches) == 0 {
		t.Fatal("the table has no caches")
	}
	for _, c := range caches {
		if c.RowSize() != row || c.Size() != tab.Slots[c.Slot].Size || c.Parts() != 2*smallKVHeads {
			t.Errorf("%+v", c)
		}
		if at, n := c.Span(smallKVHeads+1, 3, 5); at != smallKVHeads*smallContext*dim+(smallContext+3)*4 || n != 8 {
			t.Errorf("scales of rows 3 and 4 of head 1: %d bytes at %d", n, at)
		}
		// Parts and rows follow each other without a gap, and Part finds every byte.
		next := uint64(0)
		for part := range c.Parts() {
			for r := range c.Rows {
				at, n := c.Span(part, r, r+1)
				if at != next {
					t.Fatalf("part %d, row %d: at %d, want %d", part, r, at, next)
				}
				for i := range n {
					if p, of, skip := c.Part(at + i); p != part || of != r || skip != i {
						t.Fatalf("byte %d: part %d, row %d, byte %d; want %d, %d, %d", at+i, p, of, skip, part, r, i)
					}
				}
				next += n
			}
		}
		if next != c.Size() {
			t.Errorf("parts end at %d of %d", next, c.Size())
		}
	}
}

// TestKVSinks uses caches whose first rows are reserved for attention sinks. Even the smallest
// cache has a row for other positions. Positions that the sinks and the window cover cannot be
// taken back.
func TestKVSinks(t *testing.T) {
	tab := smallTable()
	for i := range tab.Cmds {
		c := &tab.Cmds[i]
		if k, ok := decl.Lookup(c.Kernel); ok {
			for name, v := range map[string]uint32{"cap": smallContext - 8, "first": 5, "window": 20} {
				if at, _, has := k.Param(name); has {
					c.PutU32(at, v)
				}
			}
		}
	}
	for i := range tab.Slots {
		if tab.Slots[i].Kind == SlotKV {
			tab.Slots[i].Size = smallKVHeads * (smallContext - 8) * 2 * smallHeadDim
		}
	}
	caches := tab.KVCaches()
	if len(caches) == 0 || caches[0].First != 5 {
		t.Fatalf("%+v", caches)
	}
	for positions, want := range map[int]uint32{0: 6, 5: 6, 6: 6, 7: 7, 1000: smallContext - 8} {
		if got := caches[0].Within(positions).Rows; got != want {
			t.Errorf("%d rows for %d positions, want %d", got, positions, want)
		}
	}
	if got := tab.KVSlack(); got != smallContext-8-25 {
		t.Errorf("%d positions can be taken back, want %d", got, smallContext-8-25)
	}
}

// cacheBinding returns the index of a command's first binding of a KV cache.
func cacheBinding(t *Table, cmd int) int {
	return slices.IndexFunc(t.Cmds[cmd].Bind[:], func(b Binding) bool {
		return b.Slot != NoSlot && t.Slots[b.Slot].Kind == SlotKV
	})
}
