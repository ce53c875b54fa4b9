package tinymodels

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/safetensors"
)

// TestRebuild generates files of the gopher model from its tensors and compares every byte
// with files that other programs wrote: the safetensors library, and llama.cpp's converter and
// quantizer.
func TestRebuild(t *testing.T) {
	want := read(t, "gopher/model.safetensors")
	header, err := safetensors.Decode(bytes.NewReader(want), int64(len(want)))
	if err != nil {
		t.Fatal(err)
	}
	weights, err := readSource(want)
	if err != nil {
		t.Fatal(err)
	}
	f := File{Name: "model.safetensors"}
	for _, x := range header.Tensors {
		f.Tensors = append(f.Tensors, Tensor{Name: x.Name, DType: x.TypeName, Shape: x.Shape})
	}
	if got, err := f.write(weights); err != nil || !bytes.Equal(got, want) {
		t.Errorf("model.safetensors differs from the stored file, %v", err)
	}

	want = read(t, "gopher-q8_0.gguf")
	file, err := gguf.Decode(bytes.NewReader(want), int64(len(want)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := writeGGUF(want[:file.DataOffset], read(t, "gopher/config.json"), weights)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("gopher-q8_0.gguf differs from the stored file, %v", err)
	}

	c, err := BuildGopher(testdata)
	if err != nil {
		t.Fatal(err)
	}
	if sum := c.Sum(); sum != c.Want {
		t.Errorf("%s has the SHA-256 %s, want %s", c.Name, sum, c.Want)
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(testdata, filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
