package e2e_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

func replaceAll(b []byte, pairs ...string) []byte {
	return []byte(strings.NewReplacer(pairs...).Replace(string(b)))
}

// TestBadFiles opens damaged and wrong files. Each must fail with an error of one line and
// take little memory.
func TestBadFiles(t *testing.T) {
	write := func(name string, b []byte) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(path string) []byte {
		t.Helper()
		b, err := os.ReadFile(testmodels.Path(t, path))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	dir := func(files map[string][]byte) string {
		t.Helper()
		d := t.TempDir()
		for name, b := range files {
			if err := os.WriteFile(filepath.Join(d, name), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return d
	}
	gguf := read("testdata/tiny/qwen3/model.gguf")
	tensors, config := read("testdata/tiny/qwen3/model.safetensors"), read("testdata/tiny/qwen3/config.json")
	type bad struct{ name, path, want string }
	cases := []bad{
		{"missing", filepath.Join(t.TempDir(), "no.gguf"), "no such file"},
		{"empty", write("empty.gguf", nil), "empty"},
		{"no config", dir(map[string][]byte{"model.safetensors": tensors}), "config.json"},
		{"no tensors", dir(map[string][]byte{"config.json": config}), "safetensors"},
		{"text", write("text.gguf", []byte("hello, this is not a model\n")), "magic"},
		{"unknown architecture", dir(map[string][]byte{"model.safetensors": tensors, "config.json": replaceAll(config, `"qwen3"`, `"mamba"`)}), "mamba"},
		{"zero heads", dir(map[string][]byte{"model.safetensors": tensors, "config.json": replaceAll(config, `"num_attention_heads": 4`, `"num_attention_heads": 0`)}), "num_attention_heads"},
		{"more layers", dir(map[string][]byte{"model.safetensors": tensors, "config.json": replaceAll(config, `"num_hidden_layers": 2`, `"num_hidden_layers": 3`)}), "3 layers"},
		{"a billion layers", dir(map[string][]byte{"model.safetensors": tensors, "config.json": replaceAll(config, `"num_hidden_layers": 2`, `"num_hidden_layers": 1000000000`)}), "num_hidden_layers"},
		{"another width", dir(map[string][]byte{"model.safetensors": tensors, "config.json": replaceAll(config, `"hidden_size": 256`, `"hidden_size": 128`)}), "shape"},
		{"broken json", dir(map[string][]byte{"model.safetensors": tensors, "config.json": config[:len(config)/2]}), "config.json"},
	}
	for i := range 16 {
		cases = append(cases, bad{"cut gguf", write("cut.gguf", gguf[:len(gguf)*i/16]), ""})
		cases = append(cases, bad{"cut safetensors", dir(map[string][]byte{"config.json": config, "model.safetensors": tensors[:len(tensors)*i/16]}), ""})
	}
	for _, c := range cases {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m, err := pianola.Open(context.Background(), c.path, pianola.Options{})
		runtime.ReadMemStats(&after)
		if err == nil {
			m.Close()
			t.Errorf("%s: opened", c.name)
			continue
		}
		if s := err.Error(); strings.Contains(s, "\n") || !strings.Contains(s, c.want) {
			t.Errorf("%s: %q, want one line with %q", c.name, s, c.want)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 100<<20 {
			t.Errorf("%s: %d MiB allocated", c.name, n>>20)
		}
	}
}

// TestBadOptions opens a model with options that are invalid or not supported.
func TestBadOptions(t *testing.T) {
	for _, c := range []struct {
		o    pianola.Options
		want string
	}{
		{pianola.Options{Device: "tpu"}, `unknown device "tpu"`},
		{pianola.Options{Device: "metal"}, "metal"},
		{pianola.Options{Device: "cuda"}, "cuda"},
		{pianola.Options{Mode: "record"}, "not support mode record"},
		{pianola.Options{Mode: "fast"}, `unknown mode "fast"`},
		{pianola.Options{Table: pianola.TableOptions{Context: -5}}, "context of -5"},
		{pianola.Options{Table: pianola.TableOptions{Context: 1 << 30}}, "context of 1073741824"},
		{pianola.Options{Threads: -1}, "thread"},
		{pianola.Options{Threads: 100000}, "thread"},
	} {
		m, err := pianola.Open(context.Background(), testmodels.Path(t, "testdata/tiny/llama"), c.o)
		if err == nil {
			m.Close()
			t.Errorf("%+v: opened", c.o)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %q, want one line with %q", c.o, err, c.want)
		}
	}
}

// TestTensorValues opens a GGUF file in which a tensor's offset is wrong. Opening must fail
// with an error that names the tensor.
func TestTensorValues(t *testing.T) {
	b, err := os.ReadFile(testmodels.Path(t, "testdata/tiny/llama/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	i := bytes.Index(b, []byte("blk.0.attn_q.weight"))
	if i < 0 {
		t.Fatal("the file lacks blk.0.attn_q.weight")
	}
	// After the name, the file has a u32 number of dimensions, a u64 per dimension, a u32 type and
	// a u64 offset.
	at := i + len("blk.0.attn_q.weight") + 4 + 16 + 4
	for _, off := range []uint64{1 << 63, uint64(len(b)), 7} {
		c := bytes.Clone(b)
		for j := range 8 {
			c[at+j] = byte(off >> (8 * j))
		}
		path := filepath.Join(t.TempDir(), "bad.gguf")
		if err := os.WriteFile(path, c, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := pianola.OpenHeader(path, nil); err == nil || !strings.Contains(err.Error(), "blk.0.attn_q.weight") {
			t.Errorf("offset %d: got %v, want an error that names the tensor", off, err)
		}
	}
}
