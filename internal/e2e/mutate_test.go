package e2e_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// TestMutations damages the headers of models at random, and decodes a few tokens if a model
// still opens. Each attempt must give a result or an error of one line, without a panic and
// with little memory.
func TestMutations(t *testing.T) {
	rounds := exhaustive.Pick(150, 12)
	rng := rand.New(rand.NewPCG(5, 6))
	for _, c := range []struct {
		path   string
		file   string // the file to damage
		others []string
		limit  int // bytes from the start that may be damaged
	}{
		{"testdata/tiny/qwen3/model.gguf", "model.gguf", nil, 2500},
		{"testdata/tiny/llama/model.gguf", "model.gguf", nil, 2500},
		{"testdata/variants/qwen2_yarn_tied/config.json", "config.json", []string{"model.safetensors"}, 1 << 20},
		{"testdata/variants/mistral_w7/config.json", "config.json", []string{"model.safetensors"}, 1 << 20},
		{"testdata/variants/qwen3_layers/model.safetensors", "model.safetensors", []string{"config.json"}, 3000},
	} {
		c.path = testmodels.Path(t, c.path)
		base, err := os.ReadFile(c.path)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for _, other := range c.others {
			b, err := os.ReadFile(filepath.Join(filepath.Dir(c.path), other))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, other), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		target := filepath.Join(dir, c.file)
		model := dir
		if strings.HasSuffix(c.file, ".gguf") {
			model = target
		}
		opened := 0
		for range rounds {
			b := bytes.Clone(base)
			for range 1 + rng.IntN(3) {
				at := rng.IntN(min(len(b), c.limit))
				switch rng.IntN(3) {
				case 0:
					b[at] ^= 1 << rng.IntN(8)
				case 1:
					b[at] = byte(rng.IntN(256))
				case 2:
					if d := b[at]; d >= '0' && d <= '9' { // replace a digit by another
						b[at] = '0' + byte(rng.IntN(10))
					}
				}
			}
			if err := os.WriteFile(target, b, 0o644); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := decodeSome(model)
			runtime.ReadMemStats(&after)
			if err == nil {
				opened++
			} else if strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: an error of several lines: %q", c.path, err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 200<<20 {
				t.Errorf("%s: %d MiB allocated, %v", c.path, n>>20, err)
			}
		}
		t.Logf("%s: %d of %d opened", c.path, opened, rounds)
	}
}

// decodeSome opens a model and decodes three tokens.
func decodeSome(path string) (err error) {
	ctx := context.Background()
	m, err := pianola.Open(ctx, path, pianola.Options{Table: pianola.TableOptions{Context: 32}, Threads: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{Chain: 2})
	if err != nil {
		return err
	}
	defer s.Close()
	for _, err := range s.GenerateIDs(ctx, []int32{1, 2}, pianola.GenerateOptions{MaxTokens: 3}) {
		if err != nil {
			return err
		}
	}
	return nil
}
