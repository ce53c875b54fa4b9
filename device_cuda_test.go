//go:build !nocuda

package pianola

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay/cuda"
)

// fakeCUDA returns the options of an NVIDIA device without a GPU.
func fakeCUDA(t *testing.T) (*fake.Driver, cuda.Options) {
	t.Helper()
	drv := fake.New(t)
	m := &cuda.Modules{Pooled: true, Texts: []cuda.Text{{Name: "all", Arch: 70, Read: func() ([]byte, error) { return fake.PTX(fake.Kernels()...), nil }}}}
	for _, k := range fake.Kernels() {
		m.Instances = append(m.Instances, cuda.Instance{Kernel: k, Text: "all", Entry: k})
	}
	return drv, cuda.Options{Library: drv.Path, Modules: m}
}

// openCUDA opens a model on the fake CUDA driver that o names.
func openCUDA(t *testing.T, path string, mode Mode, o cuda.Options) *Model {
	t.Helper()
	h, err := OpenHeader(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	on, err := newCUDA(mode, o)
	if err != nil {
		t.Fatal(err)
	}
	m := &Model{h: h}
	if err := m.openOn(context.Background(), on, Options{}); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestCUDA opens a model, and a roll for its chip, on the NVIDIA device with a fake driver. The
// generated tokens must equal the CPU's.
func TestCUDA(t *testing.T) {
	path := testmodels.Path(t, "testdata/tiny/qwen2")
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
	for _, mode := range []Mode{ModeAuto, ModeEncode, ModeRecord, ModeResident} {
		drv, o := fakeCUDA(t)
		m := openCUDA(t, path, mode, o)
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
	if _, err := newCUDA("", o); !errors.As(err, &missing) || !errors.Is(err, cuda.ErrNoGPU) || err.Error() != "pianola: device cuda: no NVIDIA GPU: cuInit: CUDA_ERROR_NO_DEVICE (100)" {
		t.Errorf("%v", err)
	}
}

// TestCUDACache checks which directory the options select, and that a model opened twice is
// assembled once.
func TestCUDACache(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	dir := filepath.Join(t.TempDir(), "kernels")
	for _, c := range []struct {
		o    CUDAOptions
		want string
	}{{CUDAOptions{}, filepath.Join(home, "pianola", "cuda")}, {CUDAOptions{CacheDir: dir}, dir}, {CUDAOptions{NoCache: true}, ""}, {CUDAOptions{CacheDir: dir, NoCache: true}, ""}} {
		if got := c.o.cache(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.o, got, c.want)
		}
	}
	path := testmodels.Path(t, "testdata/tiny/qwen2")
	for _, mode := range []Mode{ModeRecord, ModeResident} {
		drv, o := fakeCUDA(t)
		o.Cache = filepath.Join(dir, string(mode))
		for i := range 2 {
			before := drv.Assembled()
			m := openCUDA(t, path, mode, o)
			if l := m.LoadTimes(); l.Kernels <= 0 || l.Upload <= 0 || l.Warm <= 0 {
				t.Errorf("%+v", l)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			drv.Check()
			if n := drv.Assembled() - before; (n > 0) != (i == 0) || drv.JITs() != 0 {
				t.Errorf("%s: opening %d assembles %d modules, %d from PTX", mode, i+1, n, drv.JITs())
			}
		}
	}
}

// TestCUDAStatus checks the status of an available GPU, and the reasons why one is unavailable.
func TestCUDAStatus(t *testing.T) {
	drv, o := fakeCUDA(t)
	s := cudaStatus(o)
	if !s.Available || s.Memory != 1<<30 || s.Name != "Fake GPU" || s.Limits != "threadgroups of 1024 threads and 227 KiB" ||
		!slices.Equal(s.Modes, []Mode{"record", "resident", "encode"}) || !strings.Contains(s.Detail, "132 multiprocessors") {
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

// TestCUDAChip checks that an H200 gets its own chip data, and any other GPU the generic data with
// the values that the driver reports.
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
	if c, err := cudaChip(part); err != nil || c.Name != "cuda" || c.Cores != 16 || c.GEMMHalves != 384 || c.AttnTileDim == 0 {
		t.Errorf("%+v, %v", c, err)
	}
	part.SharedMemory = 101376
	if c, err := cudaChip(part); err != nil || c.GEMMHalves != 0 {
		t.Errorf("too little shared memory: %+v, %v", c, err)
	}
	t4 := cuda.GPU{Name: "Tesla T4", Major: 7, Minor: 5, Multiprocessors: 40, Memory: 15 << 30, MaxThreads: 1024, SharedMemory: 65536, BandwidthGBs: 320}
	c, err := cudaChip(t4)
	if err != nil || c.Title != "Tesla T4" || c.Cores != 40 || c.MaxBufferBytes != 15<<30 || c.ThreadgroupMemory != 65536 || c.BandwidthGBs != 320 || c.GEMMHalves != 0 || c.AttnTileDim != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := cudaChip(cuda.GPU{Name: "nothing known"}); err == nil {
		t.Error("a GPU without threads has a chip")
	}
}

// TestCUDAPlan compares plans with what the NVIDIA device allocates, on a fake driver.
func TestCUDAPlan(t *testing.T) {
	for mode, more := range map[Mode]uint64{"encode": 0, "record": 0, "resident": 64 << 10} { // resident: command arrays
		for _, options := range []Options{{Table: TableOptions{Context: 300}}, {Parallel: 5, Table: TableOptions{Context: 300, Sequences: 5, LogProbs: true}}} {
			drv, o := fakeCUDA(t)
			planned(t, testmodels.Path(t, "testdata/tiny/qwen2"), func() *target {
				on, err := newCUDA(mode, o)
				if err != nil {
					t.Fatal(err)
				}
				return on
			}, options, more)
			drv.Check()
		}
	}
}

// TestCUDATaps compares what taps show on the NVIDIA device, in each mode, with the CPU.
func TestCUDATaps(t *testing.T) {
	for _, mode := range []Mode{ModeEncode, ModeRecord, ModeResident} {
		drv, o := fakeCUDA(t)
		m := openCUDA(t, testmodels.Path(t, "testdata/tiny/qwen3"), mode, o)
		tapsAgree(t, m)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		drv.Check()
	}
}

// TestCUDAEvents opens a model on the NVIDIA device. Its kernels must run in the warm-up, between
// StateLoaded and StateReady, and an error of the driver there must fail Open.
func TestCUDAEvents(t *testing.T) {
	for _, fails := range []bool{false, true} {
		drv, o := fakeCUDA(t)
		h, err := OpenHeader(testmodels.Path(t, "testdata/tiny/qwen2"), nil)
		if err != nil {
			t.Fatal(err)
		}
		on, err := newCUDA("encode", o)
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		m := &Model{h: h}
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

// TestCUDAParallel opens models with Options.Parallel on the NVIDIA device with a fake driver. The embedded
// kernels must have an entry for every command of the programs for many sequences.
func TestCUDAParallel(t *testing.T) {
	h200, err := chip.Lookup("h200")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tiny/llama", "tiny/qwen3", "tiny/gemma2", "tiny/gemma3_text", "variants/gpt_oss", "variants/qwen3_moe", "variants/qwen3_5_equal", "variants/lfm2", "variants/falcon_h1", "variants/gemma3n", "variants/cohere_qknorm", "variants/llama_hd80"} {
		for i, p := range []TableOptions{{LogProbs: true}, {KV: KVQ8, NoFuse: true}, {KVSinks: 4, KVWindow: 60}, {Exact: true}} {
			if i > 0 && name != "tiny/llama" {
				break // the options are independent of the family
			}
			drv, o := fakeCUDA(t)
			o.Modules = cudaModules()
			on, err := newCUDA(ModeRecord, o)
			if err != nil {
				t.Fatal(err)
			}
			if i != 1 {
				on.chip = h200
			}
			h, err := OpenHeader(testmodels.Path(t, "testdata/"+name), nil)
			if err != nil {
				t.Fatal(err)
			}
			p.Context, p.Sequences = 128, 9
			m := &Model{h: h}
			err = m.openOn(context.Background(), on, Options{Parallel: 9, Table: p})
			switch {
			case p.Exact:
				if err == nil || !strings.Contains(err.Error(), "exact attention of many sequences") {
					t.Errorf("%s, %+v: error %v", name, p, err)
				}
			case err == nil:
				if err := m.Close(); err != nil {
					t.Error(err)
				}
				drv.Check()
			case name != "variants/llama_hd80" || !strings.Contains(err.Error(), "heads of 80 elements is not supported"):
				t.Errorf("%s, %+v: %v", name, p, err)
			}
		}
	}
}
