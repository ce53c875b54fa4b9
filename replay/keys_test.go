package replay_test

import (
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// testKV reads the caches of a session, some of them rings, after prompts, chains, a rewind and a
// fork. A row must not change while the context grows, until later positions overwrite it.
func testKV(t *testing.T, loaded loader) {
	m := loaded(t, "mistral", 8, compiler.Options{Context: 96}) // layers with a window of 16
	s := session(t, m, replay.SessionOptions{Chain: 5})
	rows := func(s *replay.Session) (all [][][][]float32) {
		t.Helper()
		for i := range m.Table().Slots {
			if m.Table().Slots[i].Kind != table.SlotKV {
				continue
			}
			kv, err := s.KV(uint32(i))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, kv)
		}
		return all
	}
	same := func(what string, a, b [][][][]float32, n int) (missing int) {
		t.Helper()
		for i := range a {
			for h := range a[i] {
				if len(a[i][h]) < n || len(b[i][h]) < n {
					t.Fatalf("%s: %d and %d positions", what, len(a[i][h]), len(b[i][h]))
				}
				for p := range n {
					x, y := a[i][h][p], b[i][h][p]
					if x == nil || y == nil {
						missing++
					} else if !slices.Equal(x, y) {
						t.Fatalf("%s: slot %d, head %d, position %d differs", what, i, h, p)
					}
				}
			}
		}
		return missing
	}
	generate(t, s, prompt(10), 4)
	early := rows(s) // of 13 positions
	if n := same("early", early, early, s.Len()); n != 0 || s.Len() != 13 {
		t.Errorf("%d rows of %d positions are missing", n, s.Len())
	}
	generate(t, s, prompt(30), 20)
	late := rows(s)
	if n := same("late", late, late, s.Len()); n == 0 {
		t.Error("no row of the rings is missing")
	}
	same("grown", early, late, 13)
	f, err := s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	if a, b := same("fork", late, rows(f), s.Len()), same("late", late, late, s.Len()); a != b {
		t.Errorf("the fork misses %d rows of %d", a, b)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	n := s.Len() - 3
	if err := s.Rewind(n); err != nil {
		t.Fatal(err)
	}
	if kv := rows(s); len(kv[0][0]) != n {
		t.Errorf("%d positions after a rewind to %d", len(kv[0][0]), n)
	} else if a, b := same("rewind", late, kv, n), same("late", late, late, n); a != b {
		t.Errorf("after a rewind %d rows are missing, before %d", a, b)
	}
	if _, err := s.KV(uint32(len(m.Table().Slots))); err == nil {
		t.Error("no error for a slot that does not exist")
	}
}

// TestKVOverwritten checks which rows of a ring with attention sinks are missing.
func TestKVOverwritten(t *testing.T) {
	for _, o := range []compiler.Options{{KVWindow: 16, KVSinks: 4}, {KVWindow: 16, KVSinks: 4, KV: "q8_0"}} {
		o.Context = 256
		m := loadedOnCPU(t, "llama", 8, o)
		caches := m.Table().KVCaches()
		s := session(t, m, replay.SessionOptions{Chain: 7})
		generate(t, s, prompt(60), 40)
		for _, c := range caches {
			kv, err := s.KV(c.Slot)
			if err != nil {
				t.Fatal(err)
			}
			ring := int(c.Rows - c.First)
			for h := range kv {
				for p, row := range kv[h] {
					if kept := p < int(c.First) || p >= s.Len()-ring; kept != (row != nil) {
						t.Fatalf("position %d of %d, a ring of %d rows: %v", p, s.Len(), ring, row)
					}
				}
			}
			if ring >= s.Len() {
				t.Errorf("a ring of %d rows loses nothing", ring)
			}
		}
	}
}
