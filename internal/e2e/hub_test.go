package e2e_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/hub/hubtest"
)

// TestHub opens a model by its id, from an empty cache and again without the server. The events begin
// with the download.
func TestHub(t *testing.T) {
	model, err := os.ReadFile(gopher)
	if err != nil {
		t.Fatal(err)
	}
	s := hubtest.New(t)
	s.Token = "hf_x"
	s.Add("org/gopher", map[string][]byte{"gopher-Q8_0.gguf": model})
	o := pianola.HubOptions{CacheDir: t.TempDir(), Endpoint: s.Hub.URL, Token: "hf_x"}
	life := append([]string{"downloading", "downloading/download"}, wholeLife...)
	for _, want := range [][]string{life, slices.Delete(slices.Clone(life), 1, 2)} {
		var events []pianola.Event
		m := open(t, "org/gopher:Q8_0", pianola.Options{
			Hub: &o, Device: "cpu", Table: pianola.TableOptions{NoRepack: true}, Events: func(e pianola.Event) { events = append(events, e) },
		})
		if got := lived(events); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		downloaded := func(e pianola.Event) bool {
			return e.Stage == pianola.StageDownload && e.Done == uint64(len(model)) && e.Total == e.Done
		}
		if slices.ContainsFunc(events, downloaded) != (len(want) == len(life)) {
			t.Error("the progress of the download does not reach its end")
		}
		newSession(t, m, pianola.SessionOptions{})
		s.Change(func() { s.Token = "changed" })
	}

	path, err := pianola.Resolve(t.Context(), "org/gopher:Q8_0", o)
	if err != nil || filepath.Base(path) != "gopher-Q8_0.gguf" {
		t.Errorf("Resolve: %s, %v", path, err)
	}
	if path, err := pianola.Resolve(t.Context(), gopher, o); err != nil || path != gopher {
		t.Errorf("Resolve of a local path: %s, %v", path, err)
	}
	if _, err := pianola.Open(t.Context(), "org/gopher:Q8_0", pianola.Options{Device: "cpu"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open without Options.Hub: %v", err)
	}
	for _, f := range []func(pianola.HubOptions) error{
		func(o pianola.HubOptions) error { _, err := pianola.Pull(t.Context(), "org/gopher", o); return err },
		func(o pianola.HubOptions) error { _, err := pianola.Resolve(t.Context(), "org/other", o); return err },
		func(o pianola.HubOptions) error {
			_, err := pianola.Open(t.Context(), "org/other", pianola.Options{Device: "cpu", Hub: &o, Events: o.Events})
			return err
		},
	} {
		var last pianola.Event
		o.Events = func(e pianola.Event) { last = e }
		if err := f(o); !errors.Is(err, pianola.ErrHubGated) || last.State != pianola.StateFailed || last.Err != err {
			t.Errorf("%v, and the last event is %+v", err, last)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	o.Events = func(pianola.Event) { cancel() }
	if _, err := pianola.Pull(ctx, "org/gopher", o); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled by the receiver of an event: %v", err)
	}
}
