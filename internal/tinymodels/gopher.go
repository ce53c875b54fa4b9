package tinymodels

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pianola-engine/pianola/internal/safetensors"
)

// GopherQ4 is the name of the 4-bit file of the gopher model, below testdata.
const GopherQ4 = "gopher/gopher-q4_0.gguf"

// gopherSum is the SHA-256 of the file that llama.cpp's quantizer wrote.
const gopherSum = "1642ba989c6b66ebecb2beaedd701de61b288412bc4ec41dd0cbac2f6401bebb"

// BuildGopher returns the file [GopherQ4]: the header that llama.cpp wrote, followed by the
// weights of testdata/gopher/model.safetensors in the types that the header lists.
func BuildGopher(testdata string) (*Content, error) {
	head, err := os.ReadFile(filepath.Join(testdata, filepath.FromSlash(GopherQ4)+".head"))
	if err != nil {
		return nil, fmt.Errorf("tinymodels: %w", err)
	}
	config, err := os.ReadFile(filepath.Join(testdata, "gopher", "config.json"))
	if err != nil {
		return nil, fmt.Errorf("tinymodels: %w", err)
	}
	file, err := os.ReadFile(filepath.Join(testdata, "gopher", "model.safetensors"))
	if err != nil {
		return nil, fmt.Errorf("tinymodels: %w", err)
	}
	weights, err := readSource(file)
	if err != nil {
		return nil, fmt.Errorf("tinymodels: %s: %w", GopherQ4, err)
	}
	b, err := writeGGUF(head, config, weights)
	if err != nil {
		return nil, fmt.Errorf("tinymodels: %s: %w", GopherQ4, err)
	}
	return &Content{filepath.Base(GopherQ4), b, gopherSum}, nil
}

// readSource returns the tensors of a safetensors file.
func readSource(file []byte) (source, error) {
	header, err := safetensors.Decode(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return nil, err
	}
	weights := source{}
	for _, t := range header.Tensors {
		list, err := readValues(t.TypeName, file[t.Offset:t.Offset+t.Size])
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", t.Name, err)
		}
		weights[t.Name] = values{t.Shape, list}
	}
	return weights, nil
}
