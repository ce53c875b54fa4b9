package pianola

import (
	"context"
	"testing"

	"github.com/pianola-engine/pianola/table"
)

// planned compares a plan with the memory of a device after the model is loaded, and after a session
// with its whole context is opened. The total may exceed the plan by more bytes. Kinds of slots that
// all devices count in the same way must match exactly.
func planned(t *testing.T, path string, newTarget func() *target, o Options, more uint64) {
	t.Helper()
	h, err := OpenHeader(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	on := newTarget()
	p, err := h.plan(on, o)
	if err != nil {
		t.Fatal(err)
	}
	m := &Model{h: h}
	if err := m.openOn(context.Background(), on, o); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	if o.Parallel == 0 { // else the model has a session of the device
		s, err := m.NewSession(SessionOptions{Reserve: p.Context})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	asPlanned(t, m, p, more)
}

// asPlanned is like planned, for an open model that has one session with its whole context.
func asPlanned(t *testing.T, m *Model, p *MemoryPlan, more uint64) {
	t.Helper()
	got, device := m.Memory(), m.Device().Device
	total := got.Weights + got.Mapped + got.Executor + got.Sessions
	if want := p.Total(1); total < want || total > want+more {
		t.Errorf("%s, mode %s: %d bytes, planned %d: %+v", device, m.Mode(), total, want, p)
	}
	if got.Weights != p.Loaded.Weights || got.Mapped != p.Loaded.Mapped {
		t.Errorf("%s, mode %s: %d bytes of weights and %d mapped, planned %d and %d", device, m.Mode(),
			got.Weights, got.Mapped, p.Loaded.Weights, p.Loaded.Mapped)
	}
	for k := range got.Kinds {
		k := table.SlotKind(k)
		n, want := got.Kinds[k].Active, p.Kind(k, 1)
		if n != want && (k != table.SlotKV || n < want || n > want+more) {
			t.Errorf("%s, mode %s: %v takes %d bytes, planned %d", device, m.Mode(), k, n, want)
		}
	}
}
