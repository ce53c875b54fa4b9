package e2e_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

// fakeCgroup is a directory with the files of a cgroup v2 with a limit of 1000 bytes.
type fakeCgroup string

func newCgroup(t *testing.T) fakeCgroup {
	t.Helper()
	g := fakeCgroup(t.TempDir())
	g.write(t, "memory.max", "1000\n")
	g.write(t, "memory.stat", "inactive_file 0\nactive_file 0\n")
	g.write(t, "memory.current", "10\n")
	return g
}

// write replaces a file as a whole, as the kernel's files change.
func (g fakeCgroup) write(t *testing.T, name, text string) {
	t.Helper()
	next := filepath.Join(string(g), name+".next")
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, filepath.Join(string(g), name))); err != nil {
		t.Fatal(err)
	}
}

// TestPressure makes a cgroup fuller while a model has idle sessions. At moderate pressure only those
// that have been idle for long must lose their caches, at critical pressure all, and the sessions must
// go on with the same tokens.
func TestPressure(t *testing.T) {
	g := newCgroup(t)
	events := make(chan pianola.PressureEvent, 100)
	for _, c := range []struct {
		idle    time.Duration
		current string
		frees   bool
	}{{time.Hour, "870\n", false}, {time.Nanosecond, "870\n", true}, {time.Hour, "990\n", true}} {
		g.write(t, "memory.current", "10\n")
		m := open(t, gopher, pianola.Options{
			Device: pianola.DeviceCPU, Threads: 1, Table: pianola.TableOptions{Context: 512, Batching: true},
			Pressure: &pianola.Pressure{Cgroup: string(g), Interval: time.Millisecond, Idle: c.idle, Notify: func(e pianola.PressureEvent) {
				select {
				case events <- e:
				default: // pressure that lasts is reported again and again
				}
			}},
		})
		s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
		prompt := heldout(t, m, 300)
		want := ids(t, newSession(t, m, pianola.SessionOptions{IgnoreStops: true}), prompt, pianola.GenerateOptions{MaxTokens: 16})
		if got := ids(t, s, prompt, pianola.GenerateOptions{MaxTokens: 8}); !slices.Equal(got, want[:8]) {
			t.Errorf("%v, want %v", got, want[:8])
		}
		if n := len(events); n > 0 {
			t.Errorf("%d events without pressure", n)
		}
		before := m.Memory().Kinds[table.SlotKV].Active
		g.write(t, "memory.current", c.current)
		var e pianola.PressureEvent
		select {
		case e = <-events:
		case <-time.After(time.Minute):
			t.Fatal("no event")
		}
		after := m.Memory().Kinds[table.SlotKV].Active
		if e.Err != nil || e.Limit != 1000 || e.Critical != (c.current == "990\n") || (after == 0) != c.frees || e.Released != before-after {
			t.Errorf("%+v: %+v, from %d to %d bytes of caches", c, e, before, after)
		}
		next, _, err := s.Chain(t.Context(), 1)
		if err != nil || next[0] != want[8] {
			t.Errorf("%+v: afterwards %v, %v, want %d", c, next, err, want[8])
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		for len(events) > 0 {
			<-events
		}
	}
}

// TestPressureErrors opens models with options that cannot be used, and removes a cgroup while it is
// watched.
func TestPressureErrors(t *testing.T) {
	for _, p := range []pianola.Pressure{{Cgroup: t.TempDir()}, {Interval: -1}, {Idle: -1}} {
		if m, err := pianola.Open(t.Context(), gopher, pianola.Options{Device: pianola.DeviceCPU, Pressure: &p}); err == nil {
			t.Errorf("%+v: no error", p)
			m.Close()
		}
	}
	g := newCgroup(t)
	events := make(chan pianola.PressureEvent, 1)
	open(t, gopher, pianola.Options{Device: pianola.DeviceCPU, Pressure: &pianola.Pressure{
		Cgroup: string(g), Interval: time.Millisecond, Notify: func(e pianola.PressureEvent) { events <- e },
	}})
	if err := os.Remove(filepath.Join(string(g), "memory.current")); err != nil {
		t.Fatal(err)
	}
	if e := <-events; !errors.Is(e.Err, os.ErrNotExist) {
		t.Errorf("%+v", e)
	}
}
