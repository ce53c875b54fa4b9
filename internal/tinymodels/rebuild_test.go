package tinymodels

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/pianola-engine/pianola/internal/safetensors"
)

// TestRebuild makes each file that is stored whole again from its tensors: the safetensors files
// byte by byte as their own writer made them, and from them the GGUF files byte by byte as
// llama.cpp's converter made them.
func TestRebuild(t *testing.T) {
	names, err := Names(testdata)
	if err != nil {
		t.Fatal(err)
	}
	converted := 0
	for _, name := range names {
		spec, err := ReadSpec(testdata, name)
		if err != nil {
			t.Fatal(err)
		}
		weights := source{}
		for _, f := range spec.Files {
			want := read(t, name, f.Name)
			header, err := safetensors.Decode(bytes.NewReader(want), int64(len(want)))
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range header.Tensors {
				list, err := readValues(x.TypeName, want[x.Offset:x.Offset+x.Size])
				if err != nil {
					t.Fatal(err)
				}
				weights[x.Name] = values{x.Shape, list}
			}
			got, err := f.write(weights)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %s is not the same, %v", name, f.Name, err)
			}
		}
		head, err := readHead(testdata, name)
		if err != nil {
			t.Fatal(err)
		}
		if head == nil {
			continue
		}
		converted++
		want := read(t, name, ggufFile)
		got, err := writeGGUF(head, read(t, name, "config.json"), weights)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %s is not the same, %v", name, ggufFile, err)
		}
	}
	if len(names) != 37 || converted != 8 {
		t.Errorf("%d models, %d of them as GGUF, want 37 and 8", len(names), converted)
	}
}

func read(t *testing.T, name, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(testdata, name, file))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
