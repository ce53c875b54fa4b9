package e2e_test

import (
	"errors"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
)

// active returns the memory that a device uses, without the peaks.
func active(m pianola.Memory) pianola.Memory {
	for i := range m.Kinds {
		m.Kinds[i].Peak = 0
	}
	return m
}

// TestPlan compares plans with the memory that the CPU device uses after the models are
// opened, and with two sessions whose contexts are full.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		path string
		o    pianola.Options
	}{
		{gopher, pianola.Options{}},
		{gopher, pianola.Options{Table: pianola.TableOptions{NoRepack: true, Context: 100}, Threads: 1}},
		{gopher, pianola.Options{Table: pianola.TableOptions{NoFuse: true, AllLogits: true, Sampler: "none"}}},
		{"testdata/tiny/mistral", pianola.Options{Roll: smallChunks(t, "mistral"), AnyChip: true}}, // rotating caches
		{"testdata/tiny/qwen2", pianola.Options{Table: pianola.TableOptions{NoRepack: true}}},
		{"testdata/tiny/llama/model.gguf", pianola.Options{}},
	} {
		c.o.Device = "cpu"
		c.o = threaded(c.o)
		p, err := pianola.Plan(testmodels.Path(t, c.path), c.o)
		if err != nil {
			t.Fatal(err)
		}
		m := open(t, c.path, c.o)
		if got, want := active(m.Memory()), active(p.Loaded); got != want {
			t.Errorf("%s: loaded %+v, planned %+v", c.path, got, want)
		}
		for range 2 {
			newSession(t, m, pianola.SessionOptions{Reserve: p.Context})
		}
		got := m.Memory()
		if total := got.Weights + got.Mapped + got.Executor + got.Sessions; total != p.Total(2) {
			t.Errorf("%s: %d bytes with two sessions, planned %d", c.path, total, p.Total(2))
		}
		for k := range got.Kinds {
			if n, want := got.Kinds[k].Active, p.Kind(table.SlotKind(k), 2); n != want {
				t.Errorf("%s: %v takes %d bytes, planned %d", c.path, table.SlotKind(k), n, want)
			}
		}
		if p.Device.Device != "cpu" || p.Mode != "encode" || p.Context != int(m.Table().Header.Context) {
			t.Errorf("%+v", p)
		}
	}
}

// TestBudget opens a model within a memory budget and checks that it is refused above the
// budget. The context that the error suggests must fit, and one more position must not.
func TestBudget(t *testing.T) {
	o := pianola.Options{Device: "cpu", Threads: 1, BudgetSessions: 3}
	p, err := pianola.Plan(gopher, o)
	if err != nil {
		t.Fatal(err)
	}
	o.MemoryBudget = p.Total(3)
	if _, err := pianola.Plan(gopher, o); err != nil {
		t.Errorf("with a budget of exactly the planned memory: %v", err)
	}
	open(t, gopher, o)
	o.MemoryBudget -= 1 << 20
	var over *pianola.BudgetError
	if plan, err := pianola.Plan(gopher, o); !errors.As(err, &over) || plan == nil || over.Plan != plan {
		t.Fatalf("%v", err)
	}
	if over.Need != p.Total(3) || over.Have != o.MemoryBudget || over.Sessions != 3 || over.Longest <= 0 || over.Longest >= p.Context {
		t.Errorf("%+v", over)
	}
	var last pianola.Event
	o.Events = func(e pianola.Event) { last = e }
	if _, err := pianola.Open(t.Context(), gopher, o); !errors.As(err, &over) || last.State != pianola.StateFailed {
		t.Errorf("Open: %v, the last event %+v", err, last)
	}
	o.Table.Context = over.Longest
	open(t, gopher, o)
	o.Table.Context++
	if _, err := pianola.Plan(gopher, o); !errors.As(err, &over) {
		t.Errorf("%d positions: %v", o.Table.Context, err)
	}
	o.Table.Context, o.MemoryBudget = 0, 1000
	if _, err := pianola.Plan(gopher, o); !errors.As(err, &over) || over.Longest != 0 {
		t.Errorf("a budget of %d: %v", o.MemoryBudget, err)
	}
}

// TestPlanErrors checks that Plan refuses what Open would refuse.
func TestPlanErrors(t *testing.T) {
	if _, err := pianola.Plan("testdata/none.gguf", pianola.Options{}); err == nil {
		t.Error("Plan succeeds for a missing file")
	}
	var unknown *pianola.ValueError
	if _, err := pianola.Plan(gopher, pianola.Options{Device: "abacus"}); !errors.As(err, &unknown) {
		t.Errorf("%v", err)
	}
	if _, err := pianola.Plan(gopher, pianola.Options{Device: "cpu", Roll: []byte("x")}); err == nil {
		t.Error("Plan succeeds for an invalid roll")
	}
}

// TestPlanResident compares a plan with the growth of the process's resident memory. With
// RealTime, all memory of a session is touched.
func TestPlanResident(t *testing.T) {
	o := pianola.Options{Device: "cpu", RealTime: true, Threads: 1}
	p, err := pianola.Plan(gopher, o)
	if err != nil {
		t.Fatal(err)
	}
	open(t, gopher, pianola.Options{Device: "cpu", Threads: 1}) // makes the allocations of the first Open
	runtime.GC()                                                // FreeOSMemory collects a second time, for finalizers
	debug.FreeOSMemory()
	before := resident(t)
	if before == 0 {
		t.Skip("the resident memory of a process is not available on this system")
	}
	m := open(t, gopher, o)
	const sessions = 4
	for range sessions {
		s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
		collect(t, s, "func main() {", pianola.GenerateOptions{MaxTokens: 4})
	}
	runtime.GC()
	debug.FreeOSMemory()
	grown, want := resident(t)-before, int64(p.Total(sessions))
	t.Logf("the process grew by %d bytes, planned %d", grown, want)
	// The growth may be larger by Go's heap with tokenizer and table. It may be smaller by the
	// rows of the arena that a short prompt does not write.
	if less := int64(p.Kind(table.SlotScratch, 0)); grown < want*7/8-less || grown > want+16<<20 {
		t.Errorf("the process grew by %d bytes, planned %d", grown, want)
	}
}
