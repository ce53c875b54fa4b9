//go:build softmetal

package pianola

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay/metal"
)

// TestMetal opens a model on a Metal device simulated in software. The generated tokens must equal
// the CPU's.
func TestMetal(t *testing.T) {
	if err := soft.Start("."); err != nil {
		t.Fatal(err)
	}
	path := testmodels.Path(t, "testdata/tiny/llama/model.gguf")
	ctx := context.Background()
	ids := func(o Options) (out []int32) {
		o.Table.Context = 64
		m, err := Open(ctx, path, o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}()
		s, err := m.NewSession(SessionOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if o.Device == "metal" {
			p, err := Plan(path, o)
			if err != nil {
				t.Fatal(err)
			}
			asPlanned(t, m, p, 256<<10) // the plan excludes the parameters of the commands
		}
		for tok, err := range s.GenerateIDs(ctx, []int32{5, 6, 7}, GenerateOptions{MaxTokens: 10}) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, tok.ID)
		}
		if o.Device == "metal" && (m.Device().Device != "metal" || m.Table().Header.Chip != "m4-pro" || m.Memory().Mapped == 0) {
			t.Errorf("%+v, chip %s, %+v", m.Device(), m.Table().Header.Chip, m.Memory())
		}
		return out
	}
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	want := ids(Options{Device: "cpu"})
	for i := range 2 {
		before := soft.Compiled()
		if got := ids(Options{Device: "metal", Mode: "record"}); !slices.Equal(got, want) {
			t.Errorf("%v, the CPU %v", got, want)
		}
		kept, err := filepath.Glob(filepath.Join(cache, "pianola", "metal", "*.metalarchive"))
		if n := soft.Compiled() - before; err != nil || len(kept) != 1 || (n == 0) != (i == 1) {
			t.Errorf("open %d: %d pipelines were compiled; files %v, %v", i, n, kept, err)
		}
	}
	if o := (MetalOptions{NoArchive: true}); o.archive() != "" {
		t.Errorf("without an archive there is %s", o.archive())
	}
	if s := metalStatus(); !s.Available || s.Memory == 0 || s.Limits != "20 cores, threadgroups of 1024 threads and 32 KiB, buffers of 4096 MiB, chip m4-pro" ||
		!slices.Equal(s.Modes, []Mode{"encode", "record"}) {
		t.Errorf("%+v", s)
	}
	if objects, bytes := soft.Live(); objects != 0 || bytes != 0 {
		t.Errorf("%d objects and %d bytes are left", objects, bytes)
	}
	if err := soft.Violation(); err != nil {
		t.Error(err)
	}
}

// TestMetalRoll replays a table that was compiled for the chip's name.
func TestMetalRoll(t *testing.T) {
	c, _, err := metalChip(driver.Properties{Name: "Apple M4 Pro", Family: 9, Cores: 20, MaxThreads: 1024, ThreadgroupMemory: 32 << 10, MaxBuffer: 5 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if own, err := chip.Lookup("m4-pro"); err != nil || own.Fingerprint() != c.Fingerprint() || strings.Contains(c.Title, "software") {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestMetalStatus checks the status of GPUs with fewer cores and of unknown GPUs.
func TestMetalStatus(t *testing.T) {
	if err := soft.Start("."); err != nil {
		t.Fatal(err)
	}
	defer soft.SetGPU("", 0, 0, 0)
	for _, c := range []struct {
		name                 string
		family, cores, entry int
		limits               string
	}{
		{"Apple M4 Max", 9, 32, soft.EntryGPU, "32 cores, threadgroups of 1024 threads and 32 KiB, buffers of 4096 MiB, chip m4-max-32"},
		{"Apple M3", 9, 10, soft.EntryNone, "threadgroups of 1024 threads and 32 KiB, buffers of 4096 MiB, chip m3"},
		{"Apple M6 Max", 11, 40, soft.EntryGPU,
			"40 cores, threadgroups of 1024 threads and 32 KiB, buffers of 4096 MiB, chip m5-max (the GPU is not known, the data are those of m5-max)"},
	} {
		soft.SetGPU(c.name, c.family, c.cores, c.entry)
		if s := metalStatus(); s.Limits != c.limits || s.Name != c.name || s.Detail != fmt.Sprintf("family Apple %d", c.family) {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
}

// TestMetalShared opens a model on a program's own Metal device and queue. The logits that the
// program's passes read must equal the session's.
func TestMetalShared(t *testing.T) {
	if err := soft.Start("."); err != nil {
		t.Fatal(err)
	}
	path := testmodels.Path(t, "testdata/tiny/llama/model.gguf")
	ctx := context.Background()
	objects, bytes := soft.Live()
	device, queue := soft.GPU()
	var logits metal.Span
	passes := 0
	m, err := Open(ctx, path, Options{Table: TableOptions{Context: 16}, Mode: "record", Metal: MetalOptions{NoArchive: true, Shared: &metal.Shared{Device: device, Queue: queue, After: func(p *metal.Pass) error {
		passes++
		return nil
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	o, err := m.MetalObjects()
	if err != nil || o.Device != device || o.Queue != queue || o.Fence == nil || m.Device().Device != "metal" {
		t.Errorf("%+v, %v", o, err)
	}
	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if logits, err = s.MetalSpan("logits"); err != nil || logits.Size != uint64(m.Config().Vocab)*4 {
		t.Errorf("%+v, %v", logits, err)
	}
	if _, err := s.MetalSpan("login"); err == nil || !strings.Contains(err.Error(), `"login"`) {
		t.Errorf("%v", err)
	}
	if passes != 0 {
		t.Errorf("%d passes while the model was opened", passes)
	}
	if _, _, err := s.Prompt(ctx, []int32{5, 6, 7}); err != nil {
		t.Fatal(err)
	}
	row := make([]float32, m.Config().Vocab)
	if err := s.NextLogits(row); err != nil {
		t.Fatal(err)
	}
	mem := soft.Contents(logits.Buffer, logits.Offset, logits.Size)
	for i, v := range row {
		if math.Float32bits(v) != binary.LittleEndian.Uint32(mem[4*i:]) {
			t.Fatalf("logit %d differs", i)
		}
	}
	if passes == 0 {
		t.Error("no pass with the prompt")
	}
	if err := errors.Join(s.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	if soft.References(device) != 2 || soft.References(queue) != 1 { // the queue holds a reference to the device
		t.Errorf("%d and %d references", soft.References(device), soft.References(queue))
	}
	if status := MetalStatus(device); !status.Available || status.Name != "Apple M4 Pro (software)" {
		t.Errorf("%+v", status)
	}
	soft.Release(queue)
	soft.Release(device)
	if o, b := soft.Live(); o != objects || b != bytes {
		t.Errorf("%d objects and %d bytes are left", o-objects, b-bytes)
	}
	if err := soft.Violation(); err != nil {
		t.Error(err)
	}
}

// TestMetalTaps compares what taps show on a Metal device simulated in software, in each mode, with
// the CPU.
func TestMetalTaps(t *testing.T) {
	if err := soft.Start("."); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for _, mode := range []Mode{ModeEncode, ModeRecord} {
		m, err := Open(t.Context(), testmodels.Path(t, "testdata/tiny/qwen3"), Options{Device: DeviceMetal, Mode: mode, Table: TableOptions{Context: 32}})
		if err != nil {
			t.Fatal(err)
		}
		tapsAgree(t, m)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := soft.Violation(); err != nil {
		t.Error(err)
	}
}
