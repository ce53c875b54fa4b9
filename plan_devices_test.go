package pianola

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/table"
)

// planned compares a plan with what a device holds once the model is loaded there, and
// with a session that has its whole context. But for the kinds that are counted alike
// on every device, the device may hold so many bytes more than is planned.
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
	m := &Model{dir: h.dir, cfg: h.cfg}
	if err := m.openOn(context.Background(), on, o); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	s, err := m.NewSession(SessionOptions{Reserve: p.Context})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	asPlanned(t, m, p, more)
}

// asPlanned is planned for a model that is open and has one session with its whole
// context.
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

// TestCUDAPlan compares plans with what the NVIDIA device allocates, on a fake driver.
func TestCUDAPlan(t *testing.T) {
	for mode, more := range map[string]uint64{"encode": 0, "record": 0, "resident": 64 << 10} { // resident: command arrays
		drv, o := fakeCUDA(t)
		planned(t, "testdata/tiny/qwen2", func() *target {
			on, err := newCUDA(mode, o)
			if err != nil {
				t.Fatal(err)
			}
			return on
		}, Options{Context: 300}, more)
		drv.Check()
	}
}

// TestCUDATaps asks the NVIDIA device for taps, which it has not.
func TestCUDATaps(t *testing.T) {
	drv, o := fakeCUDA(t)
	h, err := OpenHeader("testdata/tiny/qwen2", nil)
	if err != nil {
		t.Fatal(err)
	}
	on, err := newCUDA("encode", o)
	if err != nil {
		t.Fatal(err)
	}
	m := &Model{dir: h.dir, cfg: h.cfg}
	if err := m.openOn(context.Background(), on, Options{}); err != nil {
		t.Fatal(err)
	}
	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	taps := &Taps{Activations: []string{"layer.0.*"}, Show: func(Activation) error { return nil }}
	if err := s.SetTaps(taps); !errors.Is(err, ErrNoTaps) {
		t.Errorf("%v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	drv.Check()
}

// TestCUDAEvents opens a model on the NVIDIA device: its kernels run, all of them, after
// it is loaded and before it is ready. A driver that fails meanwhile makes it fail.
func TestCUDAEvents(t *testing.T) {
	for _, fails := range []bool{false, true} {
		drv, o := fakeCUDA(t)
		h, err := OpenHeader("testdata/tiny/qwen2", nil)
		if err != nil {
			t.Fatal(err)
		}
		on, err := newCUDA("encode", o)
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		m := &Model{dir: h.dir, cfg: h.cfg}
		m.life = newLifecycle(func(e Event) {
			name := string(e.State) + "/" + string(e.Stage)
			if len(order) == 0 || order[len(order)-1] != name {
				order = append(order, name)
			}
			if e.Stage == StageWarm && fails {
				drv.FailKernel(2)
			}
			if (e.State == StateReady) != (drv.Kernels() > 0) {
				t.Errorf("%d kernels have run at %+v", drv.Kernels(), e)
			}
		})
		err = m.openOn(context.Background(), on, Options{})
		want := []string{"loading/", "loading/tokenizer", "loading/compile", "loading/upload", "loaded/", "loaded/warm", "ready/"}
		if fails {
			want = want[:len(want)-1]
		}
		if (err != nil) != fails || !slices.Equal(order, want) {
			t.Errorf("fails %v: %v, %v", fails, err, order)
		}
		if err := m.Close(); err != nil && !fails {
			t.Error(err)
		}
		drv.Check()
	}
}
