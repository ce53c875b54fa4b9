package replay_test

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/synth"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// limitedLogits returns the logits of every row of a prompt and the tokens after it, on a
// CPU with a limited slot size, and the number of decode commands that are parts of a
// divided product.
func limitedLogits(t *testing.T, path string, slot uint64) (logits []float32, next []int32, parts int) {
	t.Helper()
	m := loadedFile(t, path, cpu.Options{Threads: min(2, runtime.GOMAXPROCS(0))}, func(c *chip.Chip, _ *arch.Config) compiler.Options {
		c.PrefillChunk, c.MaxBufferBytes = 16, slot
		return compiler.Options{Context: 64, AllLogits: true}
	})
	tab := m.Table()
	decode, _, _ := tab.Program(table.ProgramDecode)
	for i := range tab.ProgramCmds(decode) {
		if strings.Contains(tab.Label(int(decode.First)+i), ".part") {
			parts++
		}
	}
	s := session(t, m, replay.SessionOptions{})
	err := s.AllLogits(context.Background(), prompt(20), func(_ int, row []float32) error {
		logits = append(logits, row...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return logits, generate(t, session(t, m, replay.SessionOptions{}), prompt(20), 20), parts
}

// loadedFile returns a model in a file, on the CPU. options returns the options of its table, and may
// change the chip.
func loadedFile(t *testing.T, path string, o cpu.Options, options func(*chip.Chip, *arch.Config) compiler.Options) *replay.Model {
	t.Helper()
	dir, err := weights.OpenDirectory(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := arch.Builtin().Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := chip.Lookup("cpu")
	if err != nil {
		t.Fatal(err)
	}
	tab, err := compiler.Compile(compiler.Input{Config: cfg, Tensors: dir, Chip: c, Options: options(c, cfg)})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := cpu.New(o)
	if err != nil {
		t.Fatal(err)
	}
	mapped, err := dir.Map()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(dev.Close(), mapped.Close()); err != nil {
			t.Error(err)
		}
	})
	m, err := replay.Load(context.Background(), dev, tab, mapped, replay.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestSplitWeights replays tables whose products are divided by rows. The logits must not
// change.
func TestSplitWeights(t *testing.T) {
	models := map[string]uint64{} // slot size, by path
	for _, name := range []string{"llama", "qwen2", "qwen3", "mistral"} {
		models[testmodels.Path(t, filepath.Join("..", "testdata", "tiny", name))] = 300 << 10
	}
	for _, quant := range []string{"q8_0", "q4_k_m"} {
		shape, _ := synth.FindShape("gopher")
		shape.Layers, shape.FFN = 2, 4096
		path := filepath.Join(t.TempDir(), quant+".gguf")
		if err := synth.WriteFile(context.Background(), path, shape, quant, 1, nil); err != nil {
			t.Fatal(err)
		}
		models[path] = 1140 << 10
	}
	for path, slot := range models {
		want, tokens, none := limitedLogits(t, path, 1<<40)
		logits, got, parts := limitedLogits(t, path, slot)
		if none != 0 || parts == 0 {
			t.Errorf("%s: %d parts, %d with slots of %d bytes", path, none, parts, slot)
		}
		if !slices.Equal(logits, want) || !slices.Equal(got, tokens) {
			t.Errorf("%s: what %d parts compute differs", path, parts)
		}
	}
}
