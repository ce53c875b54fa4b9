package weights

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/testmodels"
)

func TestMapChanged(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"cut":      func(path string) error { return os.Truncate(path, 100) },
		"longer":   func(path string) error { return os.Truncate(path, 1000) },
		"empty":    func(path string) error { return os.Truncate(path, 0) },
		"removed":  os.Remove,
		"modified": func(path string) error { return os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(writeDir(t, map[string][]byte{"m.gguf": ggufFile(16, 1)}), "m.gguf")
			d := open(t, path)
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			if m, err := d.Map(); err == nil || !strings.HasPrefix(err.Error(), "weights: "+path) {
				t.Errorf("Map of a changed file: %v, error %v", m, err)
			}
		})
	}
}

func TestClose(t *testing.T) {
	path := filepath.Join(writeDir(t, map[string][]byte{"m.gguf": ggufFile(16, 1)}), "m.gguf")
	d := open(t, path)
	m, err := d.Map()
	if err != nil {
		t.Fatal(err)
	}
	if m.Directory() != d {
		t.Error("Directory returns a different directory")
	}
	b, err := m.Tensor("x")
	if err != nil || len(b) != 64 || cap(b) != 64 || b[63] != 63 {
		t.Errorf("tensor %v, error %v", b, err)
	}
	if _, err := m.Tensor("y\n"); err == nil || !strings.HasSuffix(err.Error(), `no tensor "y\n"`) {
		t.Errorf("absent tensor: %v", err)
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if _, err := m.Tensor("x"); !errors.Is(err, ErrClosed) {
			t.Errorf("Tensor after Close: %v", err)
		}
		if _, err := m.Touch(t.Context(), 1, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("Touch after Close: %v", err)
		}
	}
	// The file can be mapped again after Close.
	mapped(t, d)
}

// gapped returns a model of three files. The index omits some of their tensors, so that some
// pages contain no tensor of the model.
func gapped(t *testing.T) *Directory {
	const page = 4096
	return open(t, writeDir(t, map[string][]byte{
		"config.json":                  []byte("{}"),
		"1.safetensors":                safetensorsFile(t, f32s("a", page, 0), f32s("-", 100*page, 0), f32s("b", 1, 0), f32s("c", page, 0)),
		"2.safetensors":                safetensorsFile(t, f32s("d", 3, 0)),
		"3.safetensors":                safetensorsFile(t, f32s("e", 3<<20, 0), f32s("--", 100*page, 0)),
		"model.safetensors.index.json": []byte(`{"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"1.safetensors","d":"2.safetensors","e":"3.safetensors"}}`),
	}))
}

// noLimit stands for a system that does not report its free memory.
func noLimit() (uint64, bool) { return 0, false }

func TestTouch(t *testing.T) {
	d := gapped(t)
	m := mapped(t, d)
	// Count the pages that contain tensor data, one by one.
	page := uint64(os.Getpagesize())
	type key struct {
		file int
		page uint64
	}
	pages := map[key]bool{}
	var want uint64
	for _, x := range d.Tensors() {
		for p := x.Offset / page; p*page < x.Offset+x.Size; p++ {
			if k := (key{x.File, p}); !pages[k] {
				pages[k] = true
				want += min(page, d.Files()[x.File].Size-p*page)
			}
		}
	}
	var size uint64
	for _, f := range d.Files() {
		size += f.Size
	}
	if want >= size-100*page {
		t.Fatalf("%d of %d bytes are in pages with tensors, want a page without", want, size)
	}
	for _, workers := range []int{-1, 1, 2, 100} {
		var last uint64
		calls := 0
		got, err := m.touch(t.Context(), nil, workers, func(done, total uint64) {
			calls++
			if done <= last || done > total || total != want {
				t.Errorf("progress(%d, %d) after %d, want a total of %d", done, total, last, want)
			}
			last = done
		}, noLimit)
		if err != nil || got.Bytes != want || got.Skipped || got.Reason != "" || got.Elapsed <= 0 {
			t.Errorf("%d workers: %+v, error %v, want %d bytes", workers, got, err, want)
		}
		if last != want || calls < int(want/touchStep) {
			t.Errorf("%d workers: progress up to %d in %d calls", workers, last, calls)
		}
	}
	for _, pageSize := range []uint64{4 << 10, 16 << 10, 64 << 10} {
		spans, total := m.pages(pageSize, nil)
		var sum uint64
		for i, s := range spans {
			sum += s.end - s.start
			if s.start%pageSize != 0 || s.end <= s.start || s.end-s.start > touchStep || s.end > d.Files()[s.file].Size {
				t.Errorf("pages of %d: span %+v", pageSize, s)
			}
			if i > 0 && s.file == spans[i-1].file && s.start < spans[i-1].end {
				t.Errorf("pages of %d: span %+v after %+v", pageSize, s, spans[i-1])
			}
		}
		if sum != total {
			t.Errorf("pages of %d: %d bytes, want %d", pageSize, sum, total)
		}
	}
}

func TestTouchSkipped(t *testing.T) {
	m := mapped(t, gapped(t))
	_, total := m.pages(uint64(os.Getpagesize()), nil)
	for _, tc := range []struct {
		free    uint64
		known   bool
		skipped bool
	}{
		{total - 1, true, true},
		{0, true, true},
		{total, true, false},
		{math.MaxUint64, true, false},
		{0, false, false},
	} {
		calls := 0
		got, err := m.touch(t.Context(), nil, 2, func(done, total uint64) { calls++ }, func() (uint64, bool) { return tc.free, tc.known })
		if err != nil || got.Skipped != tc.skipped || (got.Bytes == 0) != tc.skipped || (calls == 0) != tc.skipped || (got.Reason != "") != tc.skipped {
			t.Errorf("with %d bytes free (known: %v): %+v, %d calls, error %v", tc.free, tc.known, got, calls, err)
		}
	}
	got, err := m.touch(t.Context(), nil, 2, nil, func() (uint64, bool) { return 3 << 29, true })
	if err != nil || got.Skipped {
		t.Errorf("%+v, error %v", got, err)
	}
	if got, _ := m.touch(t.Context(), nil, 2, nil, func() (uint64, bool) { return 1536, true }); !strings.HasSuffix(got.Reason, "MiB of weights, 1.5 KiB of free memory") {
		t.Errorf("reason %q", got.Reason)
	}
}

func TestTouchCancelled(t *testing.T) {
	m := mapped(t, gapped(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := m.touch(ctx, nil, 2, nil, noLimit); !errors.Is(err, context.Canceled) || got.Bytes != 0 {
		t.Errorf("cancelled before Touch: %+v, error %v", got, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	_, total := m.pages(uint64(os.Getpagesize()), nil)
	got, err := m.touch(ctx, nil, 1, func(done, total uint64) { cancel() }, noLimit)
	if !errors.Is(err, context.Canceled) || got.Bytes == 0 || got.Bytes >= total {
		t.Errorf("cancelled during Touch: %+v of %d bytes, error %v", got, total, err)
	}
}

// TestConcurrent uses and closes a Mapped from several goroutines, so that the race detector
// can find errors.
func TestConcurrent(t *testing.T) {
	m := mapped(t, gapped(t))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				if _, err := m.Tensor("a"); errors.Is(err, ErrClosed) {
					return
				} else if err != nil {
					t.Error(err)
					return
				}
			}
		})
		wg.Go(func() {
			if _, err := m.touch(t.Context(), nil, 2, nil, noLimit); err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
	time.Sleep(time.Millisecond)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func TestAvailableMemory(t *testing.T) {
	n, ok := AvailableMemory()
	if ok && (n < 1<<20 || n > 1<<50) {
		t.Errorf("%d bytes free", n)
	}
	t.Logf("%s free, known: %v", formatBytes(n), ok)
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0:              "0 bytes",
		1023:           "1023 bytes",
		1024:           "1.0 KiB",
		1 << 20:        "1.0 MiB",
		7 << 29:        "3.5 GiB",
		math.MaxUint64: "16.0 EiB",
	} {
		if got := formatBytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// TestRelease releases bytes and reads them again.
func TestRelease(t *testing.T) {
	dir, err := OpenDirectory(testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "qwen3")))
	if err != nil {
		t.Fatal(err)
	}
	m, err := dir.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	b, err := m.Tensor("model.layers.0.mlp.up_proj.weight")
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(b)
	m.Release(b)
	m.Release(b[100:200])          // contains no whole page
	m.Release(make([]byte, 1<<16)) // not part of the model
	m.Release(nil)
	if !bytes.Equal(b, before) {
		t.Error("released bytes have changed")
	}
	if whole, ok := m.Mapping(b); !ok || uint64(len(whole)) != dir.Files()[0].Size || len(whole) <= len(b) {
		t.Errorf("Mapping of %d bytes returns %d bytes, %t", len(b), len(whole), ok)
	}
	for _, other := range [][]byte{make([]byte, 1<<16), nil} {
		if _, ok := m.Mapping(other); ok {
			t.Error("Mapping succeeds for bytes outside the model")
		}
	}
}
