package cuda

import (
	"context"
	"errors"
	"testing"

	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/replay"
)

// TestPrepare checks that Load uses the context that Prepare created, and that nothing is left
// when a prepared device is closed or cannot load.
func TestPrepare(t *testing.T) {
	m := tiny(t, "llama")
	drv := fake.New(t)
	prepared := func() *Device {
		d := open(t, drv, "encode")
		d.Prepare()
		d.Prepare()
		return d
	}
	if err := prepared().Close(); err != nil {
		t.Error(err)
	}
	drv.Check()

	d := prepared()
	if err := d.Load(context.Background(), m.t, m.src, replay.LoadOptions{}); err != nil {
		t.Fatal(err)
	}
	if drv.Retained() != 1 {
		t.Errorf("the context is retained %d times", drv.Retained())
	}
	chains(t, d, begun(t, d), 3, 3)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	drv.Check()

	d = prepared()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.Load(ctx, m.t, m.src, replay.LoadOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	drv.Check()
	if err := errors.Join(d.Load(context.Background(), m.t, m.src, replay.LoadOptions{}), d.Close()); err != nil {
		t.Error(err)
	}
	drv.Check()

	d = open(t, drv, "encode")
	drv.FailAt(1, 2)
	d.Prepare()
	var e *DriverError
	if err := d.Load(context.Background(), m.t, m.src, replay.LoadOptions{}); !errors.As(err, &e) || e.Call != "cuDevicePrimaryCtxRetain" || !placed(err) {
		t.Errorf("%v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	drv.Check()
}
