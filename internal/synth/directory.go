package synth

import (
	"crypto/sha256"
	"fmt"

	"github.com/pianola-engine/pianola/weights"
)

// Directory is the metadata and the tensor directory of a shape, in memory. It takes the place of
// a model file where no weights are read, for example to compile a table: it implements
// arch.Source and compiler.Tensors.
type Directory struct {
	meta    map[string]any
	tensors map[string]weights.Tensor
	sum     [sha256.Size]byte
}

// NewDirectory returns the directory of a shape in one of the mixes of [quantize.Mixes]. For an
// unknown mix the error is a [*quantize.MixError].
func NewDirectory(s Shape, quant string) (*Directory, error) {
	entries, list, err := describe(s, quant)
	if err != nil {
		return nil, err
	}
	d := &Directory{meta: make(map[string]any, len(entries)), tensors: make(map[string]weights.Tensor, len(list))}
	for _, e := range entries {
		d.meta[e.Key] = e.Value
	}
	h := sha256.New()
	for i := range list {
		t := &list[i]
		rowBytes, rows := t.size()
		fmt.Fprintln(h, t.Name, t.Type, t.Shape)
		d.tensors[t.Name] = weights.Tensor{Name: t.Name, Type: t.Type, TypeName: t.Type.String(), Shape: t.Shape, Size: rowBytes * rows}
	}
	h.Sum(d.sum[:0])
	return d, nil
}

// Kind returns "gguf", the format of the files that Write writes.
func (d *Directory) Kind() string { return weights.GGUF.String() }

// Meta returns the value of a GGUF key.
func (d *Directory) Meta(key string) (any, bool) {
	v, ok := d.meta[key]
	return v, ok
}

// Shape returns a tensor's shape, row-major and outermost first.
func (d *Directory) Shape(name string) ([]uint64, bool) {
	t, ok := d.tensors[name]
	return t.Shape, ok
}

// Tensor returns the tensor with the given name. Its offset is 0.
func (d *Directory) Tensor(name string) (weights.Tensor, bool) {
	t, ok := d.tensors[name]
	return t, ok
}

// Fingerprint returns a hash of the names, types and shapes of the tensors. It differs from the
// fingerprint of a file.
func (d *Directory) Fingerprint() [sha256.Size]byte { return d.sum }
