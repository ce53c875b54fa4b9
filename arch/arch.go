// Package arch holds transformer architectures as data.
//
// A descriptor, one JSON file in data/, describes a family of models: its norms, biases, windows
// and RoPE layout, the keys of its metadata and the names of its tensors. Read combines a
// descriptor with a model's metadata into a Config. No code here or elsewhere tests for a model's
// name: an architecture of a known shape is added as one file. The package must not know file
// formats or element types, and it reads no tensor data.
package arch

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
)

// The kinds of Source.
const (
	kindGGUF        = "gguf"
	kindSafetensors = "safetensors"
)

// Source gives access to a model's metadata and tensor shapes.
type Source interface {
	// Kind returns the format of the model: "gguf" or "safetensors".
	Kind() string
	// Meta returns a metadata value. For GGUF it is any Go integer, float32, float64, string,
	// bool, or a slice of those. For a Hugging Face directory it is the value of a top-level key
	// of config.json: a json.Number, string, bool, nil, map[string]any or []any; the key
	// "generation_config" returns the content of generation_config.json as a map[string]any.
	Meta(key string) (any, bool)
	// Shape returns a tensor's shape, outermost dimension first: a matrix is [rows, columns].
	Shape(name string) ([]uint64, bool)
}

//go:embed data/*.json
var data embed.FS

// Set is an immutable collection of descriptors. The zero value is empty.
type Set struct {
	list []*descriptor // sorted by name
}

var builtin = sync.OnceValue(func() *Set {
	sub, err := fs.Sub(data, "data")
	if err == nil {
		var s *Set
		if s, err = new(Set).With(sub); err == nil {
			return s
		}
	}
	panic(err) // the files are embedded, and a test reads them
})

// Builtin returns the descriptors that come with the package.
func Builtin() *Set { return builtin() }

// With returns the set with the descriptors of fsys's *.json files added. A descriptor replaces
// one of the same name. An error names the file and the field.
func (s *Set) With(fsys fs.FS) (*Set, error) {
	files, err := fs.Glob(fsys, "*.json")
	if err != nil {
		return nil, fmt.Errorf("arch: descriptors: %w", err)
	}
	out := &Set{list: slices.Clone(s.list)}
	for _, file := range files {
		d, err := loadDescriptor(fsys, file)
		if err != nil {
			return nil, fmt.Errorf("arch: %s: %w", file, err)
		}
		i, found := slices.BinarySearchFunc(out.list, d.Name, func(d *descriptor, name string) int {
			return strings.Compare(d.Name, name)
		})
		if found {
			out.list[i] = d
		} else {
			out.list = slices.Insert(out.list, i, d)
		}
	}
	if err := out.checkClaims(); err != nil {
		return nil, fmt.Errorf("arch: %w", err)
	}
	return out, nil
}

// checkClaims returns an error if two descriptors claim the same name in metadata.
func (s *Set) checkClaims() error {
	owner := map[string]string{}
	for _, d := range s.list {
		for _, claim := range d.claims() {
			if other, taken := owner[claim]; taken {
				return fmt.Errorf("%s is claimed by %s and by %s", claim, other, d.Name)
			}
			owner[claim] = d.Name
		}
	}
	return nil
}

// Names returns the descriptors' names, sorted.
func (s *Set) Names() []string {
	names := make([]string, len(s.list))
	for i, d := range s.list {
		names[i] = d.Name
	}
	return names
}

// Read returns the configuration of a model. It checks every number against the limits of this
// package, and the sizes against each other. Use Config.Check to check that the tensors exist and
// have the expected shapes.
//
// The error is an *UnsupportedError if no descriptor fits the model, an *UnsupportedValueError if
// a setting has a value that is not implemented, a *FieldError if a setting is missing or
// malformed, and a *TensorError if a tensor that sizes are inferred from is malformed.
func (s *Set) Read(src Source) (*Config, error) {
	switch kind := src.Kind(); kind {
	case kindGGUF:
		return s.readGGUF(src)
	case kindSafetensors:
		return s.readHF(src)
	default:
		return nil, fmt.Errorf("arch: a model of kind %q is not supported", kind)
	}
}
