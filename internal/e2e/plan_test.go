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

// active is what a device holds, without the peaks.
func active(m pianola.Memory) pianola.Memory {
	for i := range m.Kinds {
		m.Kinds[i].Peak = 0
	}
	return m
}

// TestPlan compares plans with what the CPU device holds once the models are open, and
// with two sessions that have come to their whole context.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		path string
		o    pianola.Options
	}{
		{gopher, pianola.Options{}},
		{gopher, pianola.Options{Table: pianola.TableOptions{NoRepack: true, Context: 100}, Threads: 1}},
		{gopher, pianola.Options{Table: pianola.TableOptions{NoFuse: true, AllLogits: true, Sampler: "none"}}},
		{"testdata/tiny/mistral", pianola.Options{Roll: smallChunks(t, "mistral"), AnyChip: true}}, // caches that rotate
		{"testdata/tiny/qwen2", pianola.Options{Table: pianola.TableOptions{NoRepack: true}}},
		{"testdata/tiny/llama/model.gguf", pianola.Options{}},
	} {
		c.o.Device = "cpu"
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

// TestBudget opens a model within a budget and refuses it over one: the context that
// the error names fits, and one more position does not.
func TestBudget(t *testing.T) {
	o := pianola.Options{Device: "cpu", Threads: 1, BudgetSessions: 3}
	p, err := pianola.Plan(gopher, o)
	if err != nil {
		t.Fatal(err)
	}
	o.MemoryBudget = p.Total(3)
	if _, err := pianola.Plan(gopher, o); err != nil {
		t.Errorf("as much as is needed: %v", err)
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

// TestPlanErrors plans what Open would refuse.
func TestPlanErrors(t *testing.T) {
	if _, err := pianola.Plan("testdata/none.gguf", pianola.Options{}); err == nil {
		t.Error("a plan of no file")
	}
	var unknown *pianola.ValueError
	if _, err := pianola.Plan(gopher, pianola.Options{Device: "abacus"}); !errors.As(err, &unknown) {
		t.Errorf("%v", err)
	}
	if _, err := pianola.Plan(gopher, pianola.Options{Device: "cpu", Roll: []byte("x")}); err == nil {
		t.Error("a plan of a roll that is none")
	}
}

// TestPlanResident compares a plan with the memory that the process gets more: with
// real time all of a session is touched.
func TestPlanResident(t *testing.T) {
	o := pianola.Options{Device: "cpu", RealTime: true, Threads: 1}
	p, err := pianola.Plan(gopher, o)
	if err != nil {
		t.Fatal(err)
	}
	open(t, gopher, pianola.Options{Device: "cpu", Threads: 1}) // what the process makes once
	runtime.GC()                                                // twice: what has a finaliser goes then
	debug.FreeOSMemory()
	before := resident(t)
	if before == 0 {
		t.Skip("how much memory a process has is not asked for on this system")
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
	t.Logf("%d bytes more, planned %d", grown, want)
	// More: Go's heap with tokenizer and table. Less: rows of the arena that a short
	// prompt does not write.
	if less := int64(p.Kind(table.SlotScratch, 0)); grown < want*7/8-less || grown > want+16<<20 {
		t.Errorf("%d bytes more, planned %d", grown, want)
	}
}
