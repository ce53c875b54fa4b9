package pianola

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/replay/cuda"
)

// fakeCUDA returns the options of an NVIDIA device without a GPU.
func fakeCUDA(t *testing.T) (*fake.Driver, cuda.Options) {
	t.Helper()
	drv := fake.New(t)
	m := &cuda.Modules{Texts: []cuda.Text{{Name: "all", Arch: 70, Read: func() ([]byte, error) { return fake.PTX(fake.Kernels()...), nil }}}}
	for _, k := range fake.Kernels() {
		m.Instances = append(m.Instances, cuda.Instance{Kernel: k, Text: "all", Entry: k})
	}
	return drv, cuda.Options{Library: drv.Path, Modules: m}
}

// TestCUDA opens a model on the NVIDIA device, on a fake driver, and generates
// the tokens that the CPU does; a roll of its chip too.
func TestCUDA(t *testing.T) {
	const path = "testdata/tiny/qwen2"
	ctx := context.Background()
	ids := func(m *Model) (out []int32) {
		s, err := m.NewSession(SessionOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for tok, err := range s.GenerateIDs(ctx, []int32{5, 6, 7}, GenerateOptions{MaxTokens: 20}) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, tok.ID)
		}
		return out
	}
	host, err := Open(ctx, path, Options{Device: "cpu"})
	if err != nil {
		t.Fatal(err)
	}
	want := ids(host)
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	for _, mode := range []string{"", "encode", "record", "resident"} {
		drv, o := fakeCUDA(t)
		h, err := OpenHeader(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		on, err := newCUDA(mode, o)
		if err != nil {
			t.Fatal(err)
		}
		m := &Model{dir: h.dir, cfg: h.cfg}
		if err := m.openOn(ctx, on, Options{}); err != nil {
			t.Fatal(err)
		}
		if got := ids(m); !slices.Equal(got, want) {
			t.Errorf("mode %q: %v, the CPU %v", mode, got, want)
		}
		if asked := mode; m.Mode() != asked && (asked != "" || m.Mode() != "record") {
			t.Errorf("mode %q became %s", asked, m.Mode())
		}
		if m.Device().Device != "cuda" || m.Table().Header.Chip != "cuda" {
			t.Errorf("%+v, chip %s", m.Device(), m.Table().Header.Chip)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		drv.Check()
	}
	drv, o := fakeCUDA(t)
	var missing *DeviceError
	drv.SetDevices(0)
	if _, err := newCUDA("", o); !errors.As(err, &missing) || !errors.Is(err, cuda.ErrNoGPU) || err.Error() != "pianola: device cuda: cuda: no NVIDIA GPU: cuInit: CUDA_ERROR_NO_DEVICE (100)" {
		t.Errorf("%v", err)
	}
}

// TestCUDAStatus is what is listed of a GPU, or why it is not.
func TestCUDAStatus(t *testing.T) {
	drv, o := fakeCUDA(t)
	s := cudaStatus(o)
	if !s.Available || s.Memory != 1<<30 || s.Name != "Fake GPU" || s.Limits != "threadgroups of 1024 threads and 227 KiB" ||
		!slices.Equal(s.Modes, []string{"record", "resident", "encode"}) || !strings.Contains(s.Detail, "132 multiprocessors") {
		t.Errorf("%+v", s)
	}
	drv.Check()
	drv.SetVersion(11000)
	if s := cudaStatus(o); s.Available || !strings.Contains(s.Why, "too old") {
		t.Errorf("%+v", s)
	}
	if s := cudaStatus(cuda.Options{Library: "/nonexistent.so"}); s.Available || !strings.Contains(s.Why, "no NVIDIA driver: /nonexistent.so") {
		t.Errorf("%+v", s)
	}
}

// TestCUDAChip gives an H200 its own data, and any other GPU what the driver
// says of it.
func TestCUDAChip(t *testing.T) {
	own, err := chip.Lookup("h200")
	if err != nil {
		t.Fatal(err)
	}
	h200 := cuda.GPU{Name: "NVIDIA H200", Major: 9, Multiprocessors: 132, Memory: 150 << 30, MaxThreads: 1024, SharedMemory: 232448}
	if c, err := cudaChip(h200); err != nil || c.Fingerprint() != own.Fingerprint() {
		t.Errorf("%+v, %v", c, err)
	}
	part := h200
	part.Name, part.Multiprocessors = "NVIDIA H200 MIG 1g.18gb", 16
	if c, err := cudaChip(part); err != nil || c.Name != "cuda" || c.Cores != 16 || !c.GEMMHalves {
		t.Errorf("%+v, %v", c, err)
	}
	part.SharedMemory = 101376
	if c, err := cudaChip(part); err != nil || c.GEMMHalves {
		t.Errorf("no room for it: %+v, %v", c, err)
	}
	t4 := cuda.GPU{Name: "Tesla T4", Major: 7, Minor: 5, Multiprocessors: 40, Memory: 15 << 30, MaxThreads: 1024, SharedMemory: 65536, BandwidthGBs: 320}
	c, err := cudaChip(t4)
	if err != nil || c.Title != "Tesla T4" || c.Cores != 40 || c.MaxBufferBytes != 15<<30 || c.ThreadgroupMemory != 65536 || c.BandwidthGBs != 320 || c.GEMMHalves {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := cudaChip(cuda.GPU{Name: "nothing known"}); err == nil {
		t.Error("a GPU without threads has a chip")
	}
}

// TestTarget is what the options choose where there is no GPU, or no kernels for
// it.
func TestTarget(t *testing.T) {
	automatic := []Options{{}, {Device: "auto"}}
	if on, err := newMetal("", MetalOptions{}); err == nil { // the test runs on a Mac, or on Metal in software
		if err := on.dev.Close(); err != nil {
			t.Error(err)
		}
		automatic = nil
	} else if !strings.HasPrefix(err.Error(), "pianola: device metal: metal: there is no Metal: ") {
		t.Errorf("%v", err)
	}
	for _, o := range append(automatic, Options{Device: "cpu", Mode: "encode"}, Options{Threads: 1}) {
		if on, err := newDevice(o); err != nil || on.dev.Info().Device != "cpu" || on.mode != "encode" || !on.stays {
			t.Errorf("%+v: %+v, %v", o, on, err)
		}
	}
	for want, o := range map[string]Options{
		"device cuda: threads are for the CPU device":  {Device: "cuda", Threads: 2},
		"device cuda: cuda: ":                          {Device: "cuda"},
		"device metal: threads are for the CPU device": {Device: "metal", Threads: 2},
		"device metal has no mode resident: the modes": {Device: "metal", Mode: "resident"},
		"device cpu has no mode record: ":              {Mode: "record"},
		"device cuda has no mode fast: ":               {Device: "cuda", Mode: "fast"},
		"device abacus: unknown":                       {Device: "abacus"},
	} {
		var missing *DeviceError
		if _, err := newDevice(o); !errors.As(err, &missing) || !strings.HasPrefix(err.Error(), "pianola: "+want) {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
}
