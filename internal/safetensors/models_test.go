package safetensors_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/pianola-engine/pianola/internal/safetensors"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// These tests are in an external package because package testmodels imports package
// safetensors.

// allocated returns the number of bytes that a function allocates.
var allocated = safetensors.Allocated

func decode(b []byte) (*safetensors.Header, error) {
	return safetensors.Decode(bytes.NewReader(b), int64(len(b)))
}

func TestCutModel(t *testing.T) {
	model, err := os.ReadFile(testmodels.Path(t, "../../testdata/tiny/qwen3/model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 16 {
		var err error
		n := allocated(func() { _, err = decode(model[:len(model)*i/16]) })
		if err == nil || n > 1<<20 {
			t.Errorf("truncated to %d/16 of the file: error %v, %d bytes allocated", i, err, n)
		}
	}
}

func TestModels(t *testing.T) {
	for path, tensors := range map[string]int{"gopher": 74, "tiny/llama": 21, "tiny/mistral": 21, "tiny/qwen2": 27, "tiny/qwen3": 24} {
		b, err := os.ReadFile(testmodels.Path(t, "../../testdata/"+path+"/model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		h, err := decode(b)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if len(h.Tensors) != tensors || h.Metadata["format"] != "pt" {
			t.Errorf("%s: %d tensors, metadata %q", path, len(h.Tensors), h.Metadata)
		}
	}
}
