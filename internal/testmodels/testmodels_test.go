package testmodels

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola/internal/tinymodels"
)

const testdata = "../../testdata"

// inCache sets the environment so that a test starts with an empty cache.
func inCache(t *testing.T) string {
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir) // Linux
	t.Setenv("HOME", dir)           // macOS
	t.Setenv("LocalAppData", dir)   // Windows
	return dir
}

// TestGoldensHaveWeights checks that the reference results of each model were computed from
// its current weights, by comparing the checksums in golden.json. TestAltUp in internal/e2e computes the
// logits of gemma3n_three instead.
func TestGoldensHaveWeights(t *testing.T) {
	names, err := tinymodels.Names(testdata)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if path.Base(name) == "gemma3n_three" {
			continue
		}
		dir := Path(t, path.Join(testdata, name))
		b, err := os.ReadFile(filepath.Join(dir, "golden.json"))
		if err != nil {
			t.Fatal(err)
		}
		var golden struct {
			Source string            `json:"source"`
			Sums   map[string]string `json:"weights_sha256"`
		}
		if err := json.Unmarshal(b, &golden); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !strings.HasPrefix(golden.Source, "transformers ") && !strings.HasPrefix(golden.Source, "llama.cpp ") {
			t.Errorf("%s: the reference results come from %q, want transformers or llama.cpp", name, golden.Source)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
		if err != nil || len(files) == 0 || len(files) != len(golden.Sums) {
			t.Errorf("%s: golden.json lists %d weight files, the model has %d, %v", name, len(golden.Sums), len(files), err)
		}
		for _, f := range files {
			if sum, err := fileSum(f); err != nil || sum != golden.Sums[filepath.Base(f)] {
				t.Errorf("%s: %s has the SHA-256 %s, golden.json was made from %s, %v", name, filepath.Base(f), sum, golden.Sums[filepath.Base(f)], err)
			}
		}
	}
}

// TestPath checks which names are mapped to the cache and which are returned unchanged.
func TestPath(t *testing.T) {
	cache := inCache(t)
	for _, name := range []string{"", ".", "testdata", "a/tiny/llama", "../../testdata/tiny", "../../testdata/gopher", "../../testdata/gopher-q8_0.gguf", "testdata/help/tiny.txt"} {
		if got := Path(t, name); got != name {
			t.Errorf("Find maps %q to %q", name, got)
		}
	}
	abs, err := filepath.Abs(testdata)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, base string }{
		{"tiny/llama/model.gguf", "model.gguf"}, {"variants/qwen2_windows/model-00002-of-00005.safetensors", "model-00002-of-00005.safetensors"},
		{tinymodels.GopherQ4, "gopher-q4_0.gguf"},
	} {
		got := Path(t, path.Join(testdata, c.name))
		if info, err := os.Stat(got); err != nil || !info.Mode().IsRegular() || filepath.Base(got) != c.base || !strings.HasPrefix(got, cache) {
			t.Errorf("Find maps %s to %s, %v", c.name, got, err)
		}
		if again := Path(t, filepath.Join(abs, filepath.FromSlash(c.name))); again != got {
			t.Errorf("%s: Find maps the absolute path to %s, want %s", c.name, again, got)
		}
	}
	if _, err := Find(testdata + "/tiny/nosuch"); err == nil {
		t.Error("Find succeeds for a model that does not exist")
	}
}

// TestAtOnce generates one model in several goroutines at once, as several test processes may
// do.
func TestAtOnce(t *testing.T) {
	cache := inCache(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := Find(testdata + "/variants/llama_yarn"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	found, err := filepath.Glob(filepath.Join(cache, "*", "*"))
	if more, err2 := filepath.Glob(filepath.Join(cache, "*", "*", "pianola-testmodels", "*")); err2 == nil { // macOS
		found = append(found, more...)
	}
	left := 0
	for _, f := range found {
		if strings.HasPrefix(filepath.Base(f), "new-") {
			left++
		}
	}
	if err != nil || len(found) == 0 || left != 0 {
		t.Errorf("the cache has %d entries, %d of them temporary, %v", len(found), left, err)
	}
}

// TestDamaged checks that a changed file in the cache is detected.
func TestDamaged(t *testing.T) {
	inCache(t)
	file := Path(t, testdata+"/variants/llama_yarn/model.safetensors")
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{1, 2, 3}, 20000); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(testdata + "/variants/llama_yarn"); err == nil || !strings.Contains(err.Error(), "model.safetensors") {
		t.Errorf("a damaged file: %v", err)
	}
}
