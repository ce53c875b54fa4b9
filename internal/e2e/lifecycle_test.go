package e2e_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
)

// lived returns the states and stages of events in order, without repetitions.
func lived(events []pianola.Event) (order []string) {
	for _, e := range events {
		name := string(e.State)
		if e.Stage != "" {
			name += "/" + string(e.Stage)
		}
		if len(order) == 0 || order[len(order)-1] != name {
			order = append(order, name)
		}
	}
	return order
}

var wholeLife = []string{
	"opening", "loading", "loading/tokenizer", "loading/compile", "loading/touch", "loading/upload",
	"loaded", "loaded/warm", "ready",
}

// TestEvents checks the events of a successful Open: states and stages in order, progress that
// grows to its total, and no event after Open has returned.
func TestEvents(t *testing.T) {
	var events []pianola.Event
	// Without repacking, the weights remain in the mapped file and Open touches its pages.
	m := open(t, gopher, pianola.Options{Device: "cpu", Table: pianola.TableOptions{NoRepack: true}, Events: func(e pianola.Event) { events = append(events, e) }})
	if got := lived(events); !slices.Equal(got, wholeLife) {
		t.Errorf("%v, want %v", got, wholeLife)
	}
	var last pianola.Event
	done := map[pianola.Stage]pianola.Event{}
	for i, e := range events {
		if e.After < last.After || e.Err != nil {
			t.Errorf("event %d: %+v after %+v", i, e, last)
		}
		if e.Stage == last.Stage && e.Done < last.Done || e.Done > e.Total {
			t.Errorf("event %d: %+v after %+v", i, e, last)
		}
		last, done[e.Stage] = e, e
	}
	for _, s := range []pianola.Stage{pianola.StageTouch, pianola.StageUpload} {
		if e := done[s]; e.Total == 0 || e.Done != e.Total {
			t.Errorf("%s ends with %d of %d bytes", s, e.Done, e.Total)
		}
	}
	n := len(events)
	newSession(t, m, pianola.SessionOptions{})
	if len(events) != n {
		t.Errorf("%+v after Open has returned", events[n:])
	}
}

// TestNoPrewarm opens a model without the warm-up. It must end in StateLoaded, without the stages
// that are left out, and generate the same tokens.
func TestNoPrewarm(t *testing.T) {
	var want []int32
	for _, no := range []bool{false, true} {
		var events []pianola.Event
		m, err := pianola.Open(t.Context(), gopher, pianola.Options{Device: "cpu", NoPrewarm: no, Table: pianola.TableOptions{NoRepack: true}, Events: func(e pianola.Event) { events = append(events, e) }})
		if err != nil {
			t.Fatal(err)
		}
		state, last := pianola.StateReady, wholeLife
		if no {
			state = pianola.StateLoaded
			last = slices.DeleteFunc(slices.Clone(wholeLife), func(s string) bool { return slices.Contains([]string{"loading/touch", "loaded/warm", "ready"}, s) })
		}
		if got := lived(events); m.State() != state || !slices.Equal(got, last) {
			t.Errorf("NoPrewarm %v: state %s, events %v", no, m.State(), got)
		}
		got := ids(t, newSession(t, m, pianola.SessionOptions{}), []int32{5, 6, 7}, pianola.GenerateOptions{MaxTokens: 8})
		if want = append(want, got...); !slices.Equal(want[:len(got)], got) {
			t.Errorf("%v, want %v", got, want)
		}
		n := len(events)
		for range 2 {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
		if m.State() != pianola.StateClosed || len(events) != n {
			t.Errorf("closed: state %s, %d more events", m.State(), len(events)-n)
		}
	}
}

// TestEventsOfFailure opens models that cannot be opened. Only the last event reports the
// failure, with the error that Open returns.
func TestEventsOfFailure(t *testing.T) {
	cut := filepath.Join(t.TempDir(), "cut.gguf")
	b, err := os.ReadFile(gopher)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path string
		o          pianola.Options
		want       []string
	}{
		{"no file", "testdata/none.gguf", pianola.Options{}, []string{"opening", "failed"}},
		{"a cut file", cut, pianola.Options{}, []string{"opening", "failed"}},
		{"no device", gopher, pianola.Options{Device: "abacus"}, []string{"opening", "failed"}},
		{"no table", gopher, pianola.Options{Device: "cpu", Roll: []byte("x")}, []string{"opening", "loading", "loading/tokenizer", "loading/compile", "failed"}},
	} {
		var events []pianola.Event
		c.o.Events = func(e pianola.Event) { events = append(events, e) }
		_, err := pianola.Open(context.Background(), c.path, c.o)
		if got := lived(events); err == nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.name, err, got, c.want)
		} else if last := events[len(events)-1]; last.Err != err {
			t.Errorf("%s: the event has %v, Open %v", c.name, last.Err, err)
		}
	}
}

// TestEventsOfCancelling cancels Open at the first event of each kind. The next event must
// report the failure, and no goroutine or memory may remain.
func TestEventsOfCancelling(t *testing.T) {
	before := runtime.NumGoroutine()
	for i, at := range wholeLife {
		ctx, cancel := context.WithCancelCause(context.Background())
		cause := errors.New("enough")
		var events []pianola.Event
		m, err := pianola.Open(ctx, gopher, pianola.Options{Device: "cpu", Table: pianola.TableOptions{NoRepack: true}, Events: func(e pianola.Event) {
			events = append(events, e)
			if order := lived(events); order[len(order)-1] == at {
				cancel(cause)
			}
		}})
		if m != nil {
			t.Fatalf("cancelled at %s: Open succeeded", at)
		}
		if !errors.Is(err, cause) {
			t.Errorf("%s: %v", at, err)
		}
		if got, want := lived(events), append(slices.Clone(wholeLife[:i+1]), "failed"); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", at, got, want)
		}
		cancel(nil)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var events []pianola.Event
	_, err := pianola.Open(ctx, gopher, pianola.Options{Events: func(e pianola.Event) { events = append(events, e) }})
	if !errors.Is(err, context.Canceled) || !slices.Equal(lived(events), []string{"failed"}) {
		t.Errorf("cancelled before Open: %v, %v", err, lived(events))
	}
	for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, before %d", runtime.NumGoroutine(), before)
		}
	}
}
