package gguf_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// These tests are in an external package because package testmodels imports package gguf.

// allocated returns the number of bytes that a function allocates.
var allocated = gguf.Allocated

func decode(b []byte) (*gguf.File, error) { return gguf.Decode(bytes.NewReader(b), int64(len(b))) }

func TestCutModel(t *testing.T) {
	b, err := os.ReadFile(testmodels.Path(t, "../../testdata/tiny/qwen3/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decode(b); err != nil {
		t.Fatal(err)
	}
	for i := range 16 {
		var err error
		n := allocated(func() { _, err = decode(b[:len(b)*i/16]) })
		if err == nil || n > 1<<20 {
			t.Errorf("truncated to %d/16 of the file: error %v, %d bytes allocated", i, err, n)
		}
	}
}

func TestModels(t *testing.T) {
	for _, tc := range []struct {
		path, arch string
		tensors    int
	}{
		{"../../testdata/gopher-q8_0.gguf", "llama", 74},
		{"../../testdata/tiny/llama/model.gguf", "llama", 22},
		{"../../testdata/tiny/qwen2/model.gguf", "qwen2", 27},
		{"../../testdata/tiny/qwen3/model.gguf", "qwen3", 24},
	} {
		b, err := os.ReadFile(testmodels.Path(t, tc.path))
		if err != nil {
			t.Fatal(err)
		}
		f, err := decode(b)
		if err != nil {
			t.Errorf("%s: %v", tc.path, err)
			continue
		}
		if got, _ := f.Meta("general.architecture"); got != tc.arch {
			t.Errorf("%s: architecture %v, want %s", tc.path, got, tc.arch)
		}
		end := f.DataOffset
		for _, tensor := range f.Tensors {
			if tensor.Offset != (end+f.Alignment-1)&^(f.Alignment-1) {
				t.Errorf("%s: tensor %s begins at %d, want the end of the previous tensor, %d", tc.path, tensor.Name, tensor.Offset, end)
			}
			end = tensor.Offset + tensor.Size
		}
		if uint64(len(b))-end >= f.Alignment {
			t.Errorf("%s: tensors end at %d in a file of %d bytes", tc.path, end, len(b))
		}
		if len(f.Tensors) != tc.tensors {
			t.Errorf("%s: %d tensors, want %d", tc.path, len(f.Tensors), tc.tensors)
		}
	}
}
