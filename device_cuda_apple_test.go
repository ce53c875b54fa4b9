//go:build !nocuda

package pianola

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/golden"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cuda"
	"github.com/pianola-engine/pianola/shaders"
)

var (
	applePTX    = flag.String("apple-ptx", "", "the folder that go run ./internal/shadergen -apple -ptx FOLDER wrote, for TestGPUApple")
	appleModels = flag.String("apple-models", "testdata/gopher-q8_0.gguf", "the models that TestGPUApple measures, separated by commas")
)

// folderModules returns the kernels of a folder that internal/shadergen wrote.
func folderModules(dir string) (*cuda.Modules, error) {
	b, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return nil, err
	}
	m := new(shaders.Manifest)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, err
	}
	return modulesOf(m, func(file, arch string) cuda.Text {
		return cuda.Text{Read: func() ([]byte, error) { return os.ReadFile(filepath.Join(dir, file+"."+arch+".ptx")) }}
	})
}

// speed is what a configuration of the kernels computes of a prompt, and how fast.
type speed struct {
	prefill, decode float64 // tokens a second
	logits          []float32
	ids             []int32
}

// speedOf opens a model and measures the prompt and n tokens after it: the fastest of three runs.
func speedOf(t *testing.T, path string, on *target, prompt []int32, n int) speed {
	t.Helper()
	h, err := OpenHeader(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &Model{h: h}
	if err := m.openOn(t.Context(), on, Options{Table: TableOptions{Context: len(prompt) + n + 1}}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	best := speed{logits: make([]float32, m.Config().Vocab)}
	for range 3 {
		s, err := m.m.NewSession(replay.SessionOptions{})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		first, _, err := s.Prompt(t.Context(), prompt)
		if err != nil {
			t.Fatal(err)
		}
		best.prefill = max(best.prefill, float64(len(prompt))/time.Since(start).Seconds())
		if err := s.Logits(best.logits); err != nil {
			t.Fatal(err)
		}
		best.ids = []int32{first}
		for start = time.Now(); len(best.ids) <= n; {
			ids, _, err := s.Chain(t.Context(), n+1-len(best.ids))
			if err != nil {
				t.Fatal(err)
			}
			best.ids = append(best.ids, ids...)
		}
		best.decode = max(best.decode, float64(n)/time.Since(start).Seconds())
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return best
}

// TestGPUApple measures the kernels of Apple's configuration on an NVIDIA GPU, with tables for an
// M4 Pro, beside the kernels and tables for that GPU, in mode record. Both must agree with the CPU
// device. docs/METAL.md says what the figures mean.
func TestGPUApple(t *testing.T) {
	if *applePTX == "" {
		t.Skip("no -apple-ptx: go run ./internal/shadergen -apple -ptx FOLDER makes the folder")
	}
	if _, err := cuda.FindGPU("", 0); err != nil {
		t.Skipf("no GPU to run on: %v", err)
	}
	mods, err := folderModules(*applePTX)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Split(*appleModels, ",") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			path := testmodels.Path(t, path)
			const n = 128
			prompt := make([]int32, 512)
			for i := range prompt {
				prompt[i] = int32(i*37%500 + 3)
			}
			native, err := newCUDA(ModeRecord, cuda.Options{Modules: cudaModules()})
			if err != nil {
				t.Fatal(err)
			}
			of := speedOf(t, path, native, prompt, n)
			apple, err := newCUDA(ModeRecord, cuda.Options{Modules: mods})
			if err != nil {
				t.Fatal(err)
			}
			if apple.chip, err = chip.Lookup("m4-pro"); err != nil {
				t.Fatal(err)
			}
			got := speedOf(t, path, apple, prompt, n)
			host, err := newCPU(&Options{})
			if err != nil {
				t.Fatal(err)
			}
			host.chip = apple.chip
			want := speedOf(t, path, host, prompt[:64], 1)
			short, err := newCUDA(ModeRecord, cuda.Options{Modules: mods})
			if err != nil {
				t.Fatal(err)
			}
			short.chip = apple.chip
			ref := make([]float64, len(want.logits))
			for i, v := range want.logits {
				ref[i] = float64(v)
			}
			if a := golden.Compare(1e-2, speedOf(t, path, short, prompt[:64], 1).logits, nil, ref, nil, nil); a.Fault != nil {
				t.Errorf("beside the CPU device: %v", a.Fault)
			}
			same := 0
			for same < len(got.ids) && got.ids[same] == of.ids[same] {
				same++
			}
			t.Logf("Apple's configuration: prefill %.0f tok/s, decode %.1f tok/s; native: %.0f and %.1f; %.2f and %.2f of it; %d of %d tokens equal",
				got.prefill, got.decode, of.prefill, of.decode, got.prefill/of.prefill, got.decode/of.decode, same, len(of.ids))
			if same == 0 {
				t.Error("the first tokens differ")
			}
		})
	}
}
