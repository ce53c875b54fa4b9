// Package tinymodels generates the small models of the tests. It fills the tensors that a
// model's weights.json lists with seeded pseudo-random values, which are the same on every
// platform, and writes them as safetensors and GGUF files next to a copy of the model's
// config.json.
//
// Tests get the models from package testmodels, which stores them in the user's cache. The
// reference results in golden.json come from transformers (goldens.py), never from this
// module.
package tinymodels

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
)

// Spec is the content of a model's weights.json.
type Spec struct {
	Seed  uint64 `json:"seed"`
	Files []File `json:"files"`
	GGUF  string `json:"gguf_sha256,omitempty"` // the checksum of model.gguf, for models with a model.gguf.head
}

// File is a safetensors file. Its tensors are stored in the order of the list.
type File struct {
	Name    string   `json:"name"`
	SHA256  string   `json:"sha256"`
	Tensors []Tensor `json:"tensors"`
}

// Tensor is a tensor with the distribution of its values.
type Tensor struct {
	Name  string   `json:"name"`
	DType string   `json:"dtype"` // "F16", "BF16" or "F32"
	Shape []uint64 `json:"shape"`
	Mean  float64  `json:"mean"`
	Std   float64  `json:"std"` // the standard deviation
}

const (
	specFile = "weights.json"
	headFile = "model.gguf.head"
	ggufFile = "model.gguf"
)

// Names returns the names of the models below a testdata folder, such as "tiny/llama", in
// ascending order.
func Names(testdata string) ([]string, error) {
	var names []string
	for _, group := range []string{"tiny", "variants"} {
		files, err := filepath.Glob(filepath.Join(testdata, group, "*", specFile))
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			names = append(names, path.Join(group, filepath.Base(filepath.Dir(f))))
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("tinymodels: the folder %s contains no models", testdata)
	}
	slices.Sort(names)
	return names, nil
}

// ReadSpec reads the weights.json of a model.
func ReadSpec(testdata, name string) (*Spec, error) {
	b, err := os.ReadFile(filepath.Join(testdata, filepath.FromSlash(name), specFile))
	if err != nil {
		return nil, fmt.Errorf("tinymodels: %w", err)
	}
	s := new(Spec)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("tinymodels: %s: %s: %w", name, specFile, err)
	}
	return s, nil
}

// readHead returns the GGUF head of a model, or nil if the model has none.
func readHead(testdata, name string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(testdata, filepath.FromSlash(name), headFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// format returns the text of a weights.json, with one tensor per line.
func (s *Spec) format() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\"seed\": %d,\n", s.Seed)
	if s.GGUF != "" {
		fmt.Fprintf(&b, "\"gguf_sha256\": %q,\n", s.GGUF)
	}
	b.WriteString("\"files\": [")
	for i, f := range s.Files {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "{\"name\": %q, \"sha256\": %q, \"tensors\": [\n", f.Name, f.SHA256)
		for j, t := range f.Tensors {
			line, err := json.Marshal(t)
			if err != nil {
				return nil, err
			}
			b.Write(line)
			if j < len(f.Tensors)-1 {
				b.WriteByte(',')
			}
			b.WriteByte('\n')
		}
		b.WriteString("]}")
	}
	b.WriteString("]}\n")
	return b.Bytes(), nil
}
