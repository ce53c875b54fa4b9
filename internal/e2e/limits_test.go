package e2e_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

// TestLimits opens a model with limits of its weights, its scratch memory and its KV caches, exactly
// what it needs and less.
func TestLimits(t *testing.T) {
	o := pianola.Options{Device: pianola.DeviceCPU, Threads: 1, Table: pianola.TableOptions{Context: 512}}
	plan, err := pianola.Plan(gopher, o)
	if err != nil {
		t.Fatal(err)
	}
	weights, scratch := plan.Loaded.Kinds[table.SlotWeight].Active, plan.Loaded.Kinds[table.SlotScratch].Active
	for _, c := range []struct {
		weights, scratch uint64
		over             table.SlotKind // the kind over its limit, if fails is set
		fails            bool
	}{
		{weights, scratch, 0, false},
		{weights - 1, 0, table.SlotWeight, true},
		{0, scratch - 1, table.SlotScratch, true},
	} {
		limited := o
		limited.WeightLimit, limited.ScratchLimit = c.weights, c.scratch
		m, err := pianola.Open(t.Context(), gopher, limited)
		_, planned := pianola.Plan(gopher, limited)
		if !c.fails {
			if err := errors.Join(err, planned); err != nil {
				t.Fatal(err)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		for _, err := range []error{err, planned} {
			var over *pianola.LimitError
			if !errors.As(err, &over) || over.Kind != c.over || over.Need != over.Limit+1 {
				t.Errorf("%v, want the limit of %v", err, c.over)
			}
		}
	}

	o.KVLimit = plan.Session.Kinds[table.SlotKV].Active
	m := open(t, gopher, o)
	a, b := newSession(t, m, pianola.SessionOptions{}), newSession(t, m, pianola.SessionOptions{})
	prompt := heldout(t, m, 300)
	want := ids(t, a, prompt, pianola.GenerateOptions{MaxTokens: 8})
	if got := ids(t, b, prompt, pianola.GenerateOptions{MaxTokens: 8}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if kv := m.Memory().Kinds[table.SlotKV]; kv.Active > o.KVLimit || kv.Peak > o.KVLimit || kv.Peak == kv.Active {
		t.Errorf("KV caches %+v, the limit is %d", kv, o.KVLimit)
	}
	if n, err := m.ReleaseIdle(0); n == 0 || err != nil {
		t.Errorf("%d bytes are released, %v", n, err)
	}
	m.ResetPeaks()
	if kv := m.Memory().Kinds[table.SlotKV]; kv.Active != 0 || kv.Peak != 0 {
		t.Errorf("released: %+v", kv)
	}
	if next := ids(t, a, []int32{prompt[5]}, pianola.GenerateOptions{MaxTokens: 3}); len(next) != 3 || a.Len() < 300 {
		t.Errorf("afterwards: %v, %d positions", next, a.Len())
	}
}

// TestReleasePrefixes checks that a model for many sequences empties its cache of prefixes.
func TestReleasePrefixes(t *testing.T) {
	m := open(t, gopher, pianola.Options{Device: pianola.DeviceCPU, Threads: 1, Parallel: 2, Table: pianola.TableOptions{Context: 2048}})
	prompt := heldout(t, m, 1500)
	reused := func() int {
		s := newSession(t, m, pianola.SessionOptions{})
		ids(t, s, prompt, pianola.GenerateOptions{MaxTokens: 2})
		n := s.Counters().Reused
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		return n
	}
	if a, b := reused(), reused(); a != 0 || b == 0 {
		t.Errorf("%d and %d tokens are reused", a, b)
	}
	// A position has 4 KiB in gopher's 8 layers, and 1,500 positions have 23 whole pages.
	before := resident(t)
	n, err := m.ReleaseIdle(0)
	if err != nil || n < 23*64*4<<10 {
		t.Errorf("%d bytes are released, %v", n, err)
	}
	if after := resident(t); after > 0 && before-after < int64(n)/2 {
		t.Errorf("the process has %d bytes, before the release of %d bytes it had %d", after, n, before)
	}
	if n := reused(); n != 0 {
		t.Errorf("%d tokens are reused after a release", n)
	}
}
