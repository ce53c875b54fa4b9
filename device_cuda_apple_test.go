//go:build !nocuda

package pianola

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/cuda/kernels"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/golden"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cuda"
	"github.com/pianola-engine/pianola/shaders"
	"github.com/pianola-engine/pianola/table"
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
	mods, err := kernels.Of(m, func(file, arch string) cuda.Text {
		return cuda.Text{Read: func() ([]byte, error) { return os.ReadFile(filepath.Join(dir, file+"."+arch+".ptx")) }}
	})
	if err == nil {
		mods.Apple = true
	}
	return mods, err
}

// relabelled is a device that takes tables for chips of other devices.
type relabelled struct {
	replay.Device
	name string
}

func (d relabelled) Load(ctx context.Context, t *table.Table, src replay.Source, o replay.LoadOptions) error {
	own := *t
	own.Header.Device = d.name
	return d.Device.Load(ctx, &own, src, o)
}

// relabel makes a target take tables for a chip of another device.
func relabel(on *target, c *chip.Chip) {
	on.dev, on.chip = relabelled{on.dev, string(on.device)}, c
}

// speed is what a configuration of the kernels computes of a prompt, and how fast.
type speed struct {
	prefill, decode float64 // tokens a second
	logits          []float32
	ids             []int32

	prompt, token map[string]time.Duration // times of the kernels, with a barrier after each command
}

// products returns the time of the prompt's matrix products.
func (s *speed) products() (d time.Duration) {
	for kernel, t := range s.prompt {
		if strings.HasPrefix(kernel, "gemm") || strings.HasPrefix(kernel, "gemv") {
			d += t
		}
	}
	return d
}

// shares lists the kernels that take the most time.
func shares(times map[string]time.Duration) string {
	all := slices.SortedFunc(maps.Keys(times), func(a, b string) int { return cmp.Compare(times[b], times[a]) })
	var b strings.Builder
	for _, kernel := range all[:min(len(all), 6)] {
		fmt.Fprintf(&b, " %s %v", kernel, times[kernel].Round(time.Microsecond))
	}
	return b.String()
}

// profile measures the kernels of a prompt and of the token after it.
func (s *speed) profile(t *testing.T, m *replay.Model, prompt []int32) {
	t.Helper()
	session, err := m.NewSession(replay.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	tab := m.Table()
	chunk, _ := tab.Prefill(len(prompt))
	head, _, _ := tab.Program(table.ProgramHead)
	decode, _, _ := tab.Program(table.ProgramDecode)
	for range 2 { // the first time warms up
		s.prompt, s.token = map[string]time.Duration{}, map[string]time.Duration{}
		a, b, c := make([]time.Duration, chunk.Count), make([]time.Duration, head.Count), make([]time.Duration, decode.Count)
		if err := errors.Join(session.Reset(), session.ProfilePrompt(t.Context(), prompt, a, b), session.Profile(t.Context(), c)); err != nil {
			t.Fatal(err)
		}
		add := func(to map[string]time.Duration, p *table.Program, times []time.Duration) {
			for i, c := range tab.ProgramCmds(p) {
				k, _ := decl.Lookup(c.Kernel)
				to[k.Name] += times[i]
			}
		}
		add(s.prompt, chunk, a)
		add(s.prompt, head, b)
		add(s.token, decode, c)
	}
}

// speedOf opens a model and measures the prompt and n tokens after it: the fastest of three runs.
func speedOf(t *testing.T, path string, on *target, prompt []int32, n int) speed {
	t.Helper()
	h, err := OpenHeader(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &Model{h: h}
	if err := m.openOn(t.Context(), on, Options{Table: TableOptions{Context: min(4096, h.Config().Context)}}); err != nil {
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
	if n > 1 {
		best.profile(t, m.m, prompt)
	}
	return best
}

// applePrompt is the prompt of the tests of Apple's configuration.
func applePrompt() []int32 {
	prompt := make([]int32, 512)
	for i := range prompt {
		prompt[i] = int32(i*37%500 + 3)
	}
	return prompt
}

// appleTarget returns an NVIDIA GPU that runs the kernels of Apple's configuration with tables for a
// chip.
func appleTarget(t *testing.T, c *chip.Chip) *target {
	t.Helper()
	mods, err := folderModules(*applePTX)
	if err != nil {
		t.Fatal(err)
	}
	on, err := newCUDA(ModeRecord, cuda.Options{Modules: mods})
	if err != nil {
		t.Fatal(err)
	}
	relabel(on, c)
	return on
}

// eachApple calls f for each model of the flag -apple-models, with the chip data of an M4 Pro that
// has as many cores as the GPU has multiprocessors. It skips the test if there is no GPU or no PTX.
func eachApple(t *testing.T, f func(t *testing.T, path string, m4 *chip.Chip)) {
	t.Helper()
	if *applePTX == "" {
		t.Skip("no -apple-ptx: go run ./internal/shadergen -apple -ptx FOLDER makes the folder")
	}
	gpu, err := cuda.FindGPU("", 0)
	if err != nil {
		t.Skipf("no GPU to run on: %v", err)
	}
	found, err := chip.Lookup("m4-pro")
	if err != nil {
		t.Fatal(err)
	}
	m4 := *found
	// With fewer cores, most of the GPU would have nothing to do.
	m4.MergeLimit = m4.MergeLimit / m4.Cores * gpu.Multiprocessors
	m4.Cores = gpu.Multiprocessors
	for _, path := range strings.Split(*appleModels, ",") {
		t.Run(filepath.Base(path), func(t *testing.T) { f(t, testmodels.Path(t, path), &m4) })
	}
}

// TestGPUApple measures the kernels of Apple's configuration on an NVIDIA GPU, with tables for an
// M4 Pro, beside the kernels and tables for that GPU, in mode record. docs/METAL.md says what the
// figures mean.
func TestGPUApple(t *testing.T) {
	eachApple(t, func(t *testing.T, path string, m4 *chip.Chip) {
		native, err := newCUDA(ModeRecord, cuda.Options{Modules: cudaModules()})
		if err != nil {
			t.Fatal(err)
		}
		of := speedOf(t, path, native, applePrompt(), 128)
		got := speedOf(t, path, appleTarget(t, m4), applePrompt(), 128)
		for name, s := range map[string]*speed{"Apple": &got, "native": &of} {
			t.Logf("%s, a prompt of 512:%s; a token:%s", name, shares(s.prompt), shares(s.token))
		}
		t.Logf("Apple's configuration: prefill %.0f tok/s, decode %.1f tok/s; native: %.0f and %.1f; %.2f and %.2f of it; products of the prompt %v and %v",
			got.prefill, got.decode, of.prefill, of.decode, got.prefill/of.prefill, got.decode/of.decode, got.products(), of.products())
	})
}

// TestGPUAppleFallback measures prefill of Apple's configuration with SIMD-group matrices beside prefill
// without, which is what every product fell back to before.
func TestGPUAppleFallback(t *testing.T) {
	eachApple(t, func(t *testing.T, path string, m4 *chip.Chip) {
		without := *m4
		without.GEMMHalves, without.PrefillFew = 0, 0
		got := speedOf(t, path, appleTarget(t, m4), applePrompt(), 2)
		old := speedOf(t, path, appleTarget(t, &without), applePrompt(), 2)
		t.Logf("products of the prompt: %v, without SIMD-group matrices %v; prefill %.0f and %.0f tok/s", got.products(), old.products(), got.prefill, old.prefill)
		if got.products()*3 > old.products() {
			t.Errorf("the products take %v, which is more than a third of %v", got.products(), old.products())
		}
	})
}

// TestGPUAppleAgrees compares the logits of Apple's configuration on an NVIDIA GPU with those of the CPU
// device.
func TestGPUAppleAgrees(t *testing.T) {
	eachApple(t, func(t *testing.T, path string, m4 *chip.Chip) {
		host, err := newCPU(&Options{})
		if err != nil {
			t.Fatal(err)
		}
		relabel(host, m4)
		prompt := applePrompt()[:64]
		want := speedOf(t, path, host, prompt, 1)
		ref := make([]float64, len(want.logits))
		for i, v := range want.logits {
			ref[i] = float64(v)
		}
		if a := golden.Compare(1e-2, speedOf(t, path, appleTarget(t, m4), prompt, 1).logits, nil, ref, nil, nil); a.Fault != nil {
			t.Error(a.Fault)
		}
	})
}
