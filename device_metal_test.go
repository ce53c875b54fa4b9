package pianola

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/internal/metal/kernels"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay/metal"
)

// TestMetalChip checks that smaller limits of a GPU replace those in the chip data.
func TestMetalChip(t *testing.T) {
	p := driver.Properties{Name: "Apple M4 Max", Family: 9, Cores: 32, MaxThreads: 512, ThreadgroupMemory: 16 << 10, MaxBuffer: 1 << 30}
	c, note, err := metalChip(p)
	if err != nil || note != "" || c.Name != "m4-max-32" || c.Cores != 32 || c.MaxBufferBytes != 1<<30 || c.MaxThreads != 512 || c.ThreadgroupMemory != 16<<10 || c.GEMMHalves != 0 {
		t.Errorf("%+v, %q, %v", c, note, err)
	}
	p.MaxThreads = 8
	if c, _, err := metalChip(p); err == nil {
		t.Errorf("threadgroups of 8 threads: %+v", c)
	}
	if _, _, err := metalChip(driver.Properties{}); err == nil {
		t.Error("a GPU without limits")
	}
}

// TestMetalSource checks that the kernel source contains all headers and that the list of kernels matches it.
func TestMetalSource(t *testing.T) {
	k, err := kernels.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	source, err := k.Source()
	if err != nil {
		t.Fatal(err)
	}
	text := string(source)
	if strings.Contains(text, `#include "`) || strings.Count(text, "#include <metal_stdlib>") == 0 {
		t.Error("headers are not all in the text")
	}
	if len(k.List) < 15 || k.BindingAlign != 16 {
		t.Errorf("%d kernels, aligned to %d", len(k.List), k.BindingAlign)
	}
	for _, kernel := range k.List {
		if strings.Count(text, "kernel void "+kernel.Name+"(") != 1 || kernel.MaxThreads == 0 {
			t.Errorf("kernel %s: %+v", kernel.Name, kernel)
		}
	}
}

// TestMetalOptions checks the errors of Metal options and methods on other devices and of invalid
// Metal objects.
func TestMetalOptions(t *testing.T) {
	ctx := context.Background()
	path := testmodels.Path(t, "testdata/tiny/llama/model.gguf")
	var missing *DeviceError
	for _, o := range []Options{{Device: "cpu"}, {Device: "cuda"}, {Device: "metal", Threads: 2}} {
		o.Metal.Shared = &metal.Shared{}
		if _, err := Open(ctx, path, o); !errors.As(err, &missing) || !strings.Contains(err.Error(), "Options.Metal.Shared") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	// An invalid Metal device is an error; DeviceAuto must not fall back to the CPU.
	if _, err := Open(ctx, path, Options{Metal: MetalOptions{Shared: &metal.Shared{}}}); !errors.As(err, &missing) || missing.Device != "metal" {
		t.Error(err)
	}
	m, err := Open(ctx, path, Options{Device: "cpu", Table: TableOptions{Context: 16}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.MetalObjects(); !errors.As(err, &missing) || !strings.HasSuffix(err.Error(), "the model runs on device cpu") {
		t.Error(err)
	}
	if _, err := s.MetalSpan("logits"); !errors.As(err, &missing) {
		t.Error(err)
	}
	if s := MetalStatus(nil); s.Available || s.Why == "" {
		t.Errorf("%+v", s)
	}
	if err := errors.Join(s.Close(), m.Close()); err != nil {
		t.Error(err)
	}
}
