package replay_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/batchtest"
	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/replay/cuda"
)

// fakeCUDA returns the CUDA device on a fake driver, whose kernels are written in C.
func fakeCUDA(t testing.TB, mode string) *cuda.Device {
	t.Helper()
	drv := fake.New(t)
	t.Cleanup(drv.Check) // runs after Close
	return onFake(t, drv, mode)
}

// onFake returns the CUDA device on a fake driver.
func onFake(t testing.TB, drv *fake.Driver, mode string) *cuda.Device {
	t.Helper()
	m := &cuda.Modules{Pooled: true, Texts: []cuda.Text{{Name: "all", Arch: 90, Exact: true, Read: func() ([]byte, error) { return fake.PTX(fake.Kernels()...), nil }}}}
	for _, k := range fake.Kernels() {
		m.Instances = append(m.Instances, cuda.Instance{Kernel: k, Text: "all", Entry: k})
	}
	dev, err := cuda.New(cuda.Options{Library: drv.Path, Mode: mode, Modules: m})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// anyMode lists tests of sessionTests that take long and depend neither on the mode of a device nor
// on the number of threads. A sample runs them in one mode, and with one thread.
var anyMode = []string{"AllLogits", "Chunks", "Fork", "KVKinds", "Release", "Reprompt", "RepromptRotating", "SpeculateCancel", "SpeculateState", "SpeculateStop"}

// TestCUDA runs the tests of every device on the CUDA device without a GPU.
func TestCUDA(t *testing.T) {
	for _, mode := range cuda.Modes() {
		for _, c := range sessionTests {
			if c.name == "LogProbs" {
				continue // the driver's kernels do not sample
			}
			t.Run(mode+"/"+c.name, func(t *testing.T) {
				if c.name == "Allocations" && fake.Race() {
					t.Skip("the race detector makes pools forget what they hold")
				}
				if c.name == "KVKinds" && mode == "encode" {
					t.Skip("the other modes cover what encode does with a cache")
				}
				if mode != "record" && slices.Contains(anyMode, c.name) {
					exhaustive.Only(t, "the sample has it in mode record")
				}
				chip := "h200"
				if c.name == "AllLogits" || c.name == "RepromptRows" {
					// gemm_halves rounds differently than gemv, so the table must be compiled
					// for a GPU.
					chip = "cuda"
				}
				c.run(t, func(t testing.TB, name string, chunk int, o compiler.Options) *replay.Model {
					t.Helper()
					// These tests compare contexts that were decoded with prefilled ones over
					// many tokens.
					o.Exact = c.name == "KVKinds"
					return loadedOn(t, fakeCUDA(t, mode), chip, name, chunk, o)
				})
			})
		}
	}
}

// TestCUDABatching replays a table for batching in every mode of the CUDA device, without a GPU. Mode
// resident must replay its programs as mode record does.
func TestCUDABatching(t *testing.T) {
	for _, mode := range cuda.Modes() {
		m := loadedOn(t, fakeCUDA(t, mode), "h200", "qwen3", 32, compiler.Options{Batching: true, AllLogits: true, Context: 64})
		ids := batchtest.Tokens(40, 512)
		if err := batchtest.Check(t.Context(), session(t, m, replay.SessionOptions{}), 512, ids, batchtest.Counts, 3); err != nil {
			t.Errorf("mode %s: %v", mode, err)
		}
	}
}

// TestPooledCUDA replays pooled tables in the modes of the CUDA device, without a GPU.
func TestPooledCUDA(t *testing.T) {
	for _, mode := range cuda.Modes() {
		t.Run(mode, func(t *testing.T) {
			testPooled(t, sizeOfPooled(), func(t *testing.T, name string, chunk int, o compiler.Options) *pooled {
				if strings.Contains(name, "gpt_oss") {
					t.Skip("the driver's kernels have no learned sinks")
				}
				if mode != "record" && (name != "llama" || o.KVSinks > 0) {
					exhaustive.Only(t, "the sample has the other models in mode record")
				}
				return openPooled(t, fakeCUDA(t, mode), "h200", name, chunk, o)
			})
		})
	}
}

// TestParallelCUDA plays random scripts on a model for many sequences on the CUDA device, without a GPU.
func TestParallelCUDA(t *testing.T) {
	for _, mode := range cuda.Modes() {
		t.Run(mode, func(t *testing.T) {
			n := exhaustive.Pick(200, 20)
			if mode != "record" { // the scheduler is the same
				n = exhaustive.Pick(60, 8)
			}
			testInvariance(t, n, compiler.Options{}, func(o compiler.Options) *replay.Model {
				if o.Sequences == 0 {
					return loadedOn(t, fakeCUDA(t, mode), "h200", "llama", 48, o)
				}
				return parallelOn(t, fakeCUDA(t, mode), "h200", "llama", o, replay.LoadOptions{Queue: 1000})
			})
		})
	}
}

// TestParallelRowsCUDA reads logits and hidden states in several sessions at once, with the fake driver, which runs the kernels in C.
func TestParallelRowsCUDA(t *testing.T) {
	for _, mode := range cuda.Modes() {
		t.Run(mode, func(t *testing.T) {
			testParallelRows(t, uint64(exhaustive.Pick(6, 3)), func(o compiler.Options) *replay.Model {
				if o.Sequences == 0 {
					return loadedOn(t, fakeCUDA(t, mode), "h200", "llama", 48, o)
				}
				return parallelOn(t, fakeCUDA(t, mode), "h200", "llama", o, replay.LoadOptions{})
			})
		})
	}
}

// TestParallelFaults plays random scripts on a model for many sequences while driver calls fail. Scripts end with
// the fault or have the tokens that they have without; afterwards no page is in use, and unless the device is
// lost, other scripts succeed.
func TestParallelFaults(t *testing.T) {
	o := compiler.Options{Context: 256, LogProbs: true, Batching: true}
	reference := loadedOn(t, fakeCUDA(t, "record"), "h200", "llama", 48, o)
	o.Sequences, o.Pages = 4, 12
	r := rand.New(rand.NewPCG(8, 9))
	var scripts []*script
	var wants [][]result
	for range 6 {
		sc := randomScript(r, 512, false)
		want, err := sc.play(t.Context(), session(t, reference, replay.SessionOptions{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		scripts, wants = append(scripts, sc), append(wants, want)
	}
	drv := fake.New(t)
	var m *replay.Model
	lost, failed, whole := 0, 0, 0
	for range exhaustive.Pick(100, 8) {
		if m == nil {
			m = parallelOn(t, onFake(t, drv, "record"), "h200", "llama", o, replay.LoadOptions{Queue: 100})
		}
		for _, fails := range []bool{true, false} {
			if fails {
				drv.FailAt(1+r.IntN(500), 2)
			}
			faulty := playAll(t, m, scripts, wants)
			drv.FailAt(0, 0)
			failed += faulty
			whole += len(scripts) - faulty
			if l := m.Occupancy(); l.Running+l.Waiting+l.UsedPages > 0 {
				t.Fatalf("after a fault: %+v", l)
			}
			if !fails && faulty > 0 { // the device is lost
				lost++
				if err := m.Close(); err != nil && !errors.Is(err, cuda.ErrOutOfMemory) {
					t.Error(err)
				}
				m = nil
			}
		}
	}
	t.Logf("%d scripts failed and %d did not; the device was lost %d times", failed, whole, lost)
	if failed == 0 || whole == 0 {
		t.Error("the test proves nothing")
	}
}

// TestParallelClose closes a model for many sequences while sessions generate, in the modes of the CUDA device.
// Every call ends, and nothing stays allocated.
func TestParallelClose(t *testing.T) {
	for _, mode := range cuda.Modes() {
		drv := fake.New(t)
		t.Cleanup(drv.Check)
		drv.SetDelay(5)
		m := parallelOn(t, onFake(t, drv, mode), "h200", "llama", compiler.Options{Context: 256, Sequences: 4}, replay.LoadOptions{})
		var all sync.WaitGroup
		for i := range 6 {
			s := session(t, m, replay.SessionOptions{})
			all.Go(func() {
				_, _, err := s.Prompt(t.Context(), prompt(5+i))
				for err == nil {
					_, _, err = s.Chain(t.Context(), 20)
				}
				if !errors.Is(err, replay.ErrClosed) && !errors.Is(err, replay.ErrContextFull) {
					t.Errorf("mode %s: %v", mode, err)
				}
			})
		}
		time.Sleep(20 * time.Millisecond)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
	}
}

// playAll plays scripts at once and returns the number of those that fail.
func playAll(t *testing.T, m *replay.Model, scripts []*script, wants [][]result) (failed int) {
	t.Helper()
	var all sync.WaitGroup
	var faults atomic.Int64
	for i, sc := range scripts {
		all.Go(func() {
			s, err := m.NewSession(replay.SessionOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			got, err := sc.play(t.Context(), s, nil)
			switch {
			case err != nil:
				faults.Add(1)
				if !errors.Is(err, cuda.ErrOutOfMemory) {
					t.Errorf("script %d: %v", i, err)
				}
			case !slices.Equal(got, wants[i]):
				t.Errorf("script %d: %v, want %v", i, got, wants[i])
			}
		})
	}
	all.Wait()
	return int(faults.Load())
}

// TestCUDAAgrees replays tables on the CUDA device, without a GPU, and on the CPU. Prompts of
// several chunks must give the same logits, with and without fusion.
func TestCUDAAgrees(t *testing.T) {
	for _, name := range []string{"llama", "mistral", "qwen2", "qwen3"} {
		for _, o := range []compiler.Options{{}, {NoFuse: true}, {KV: "q8_0"}, {KV: "q8_0", KVSinks: 4, KVWindow: 40, NoFuse: true}} {
			if name != "qwen3" && (o.KV != "" || !exhaustive.On && o.NoFuse) {
				continue
			}
			on := func(dev replay.Device) []float32 {
				s := session(t, loadedOn(t, dev, "h200", name, 32, o), replay.SessionOptions{})
				generate(t, s, prompt(75), 20)
				if err := s.Reset(); err != nil {
					t.Fatal(err)
				}
				if _, _, err := s.Prompt(context.Background(), prompt(75)); err != nil {
					t.Fatal(err)
				}
				logits := make([]float32, 512)
				if err := s.Logits(logits); err != nil {
					t.Fatal(err)
				}
				return logits
			}
			host, err := cpu.New(cpu.Options{Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			want := on(host)
			for _, mode := range cuda.Modes() {
				var diff, norm float64
				for i, v := range on(fakeCUDA(t, mode)) {
					diff += math.Pow(float64(v-want[i]), 2)
					norm += math.Pow(float64(want[i]), 2)
				}
				if e := math.Sqrt(diff / norm); !(e < 2e-3) {
					t.Errorf("%s, %+v, %s: relative error of the logits %g", name, o, mode, e)
				}
			}
		}
	}
}
