// Package weights opens model files. It presents a GGUF file, a safetensors file or a Hugging
// Face directory as a directory of tensors with metadata, and maps the tensors' bytes into
// memory.
//
// A [Directory] is read from headers alone, so that a table can be compiled without reading
// weights. A [Mapped] also gives access to the bytes. If safetensors files store a quantized
// matrix as several tensors (quants and scales), the directory lists it as one tensor with a
// block type.
//
// The package does not convert elements and must not know architectures. The only metadata and
// tensor names that it interprets are those that describe quantization.
package weights

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// Format is the file format of a model.
type Format uint8

// The supported formats.
const (
	GGUF Format = iota + 1
	Safetensors
)

// String returns "gguf" or "safetensors".
func (f Format) String() string {
	switch f {
	case GGUF:
		return "gguf"
	case Safetensors:
		return "safetensors"
	}
	return fmt.Sprintf("format(%d)", uint8(f))
}

// Type is the element type of a tensor: a float type, or a quantization such as Q4_K. The zero
// value stands for an unsupported type.
type Type = dtype.Type

// Tensor describes a tensor and its place in the files. If the files store it as several
// tensors (quants and scales), File and Offset locate the quants, and Size is the size of the
// joined blocks, which [Mapped.ReadJoined] reads.
type Tensor struct {
	Name     string
	Type     Type     // dtype.Invalid for unsupported types
	TypeName string   // the format's name, such as "Q4_0", "IQ2_XS", "BF16" or "F8_E4M3"
	Shape    []uint64 // row-major, outermost first: [rows, columns]
	File     int      // index in Directory.Files
	Offset   uint64   // bytes from the start of the file; not aligned in safetensors files
	Size     uint64   // bytes
	Joined   bool     // the files store it as several tensors
}

// File is a file that contains tensors.
type File struct {
	Path string
	Size uint64 // size in bytes when the header was read
}

// Directory lists the tensors of a model, their places in the files, and the model's metadata.
// It is read from headers alone. It is immutable and may be used from several goroutines.
// Callers must not modify the slices and values that it returns.
type Directory struct {
	path    string
	format  Format
	files   []File
	changed []time.Time // modification time of each file
	tensors []Tensor    // by file, then by offset
	index   map[string]int
	meta    map[string]any

	raw         []Tensor           // tensors as stored, before matrices were joined
	joined      map[string]*joined // by name
	names       map[string]string  // names in the file of tensors whose prefix was removed
	unsupported []error
}

// Unsupported returns the parts of the files that are not supported, each as an
// [*UnsupportedError]. It does not report unsupported tensor types.
func (d *Directory) Unsupported() []error { return slices.Clone(d.unsupported) }

// original returns the name that a module has in the file.
func (d *Directory) original(module string) string {
	return strings.TrimSuffix(d.names[module+".weight"], ".weight")
}

// Path returns the path that OpenDirectory was called with.
func (d *Directory) Path() string { return d.path }

// Format returns the format of the model's files.
func (d *Directory) Format() Format { return d.format }

// Kind returns the name of the format. It implements a method of arch.Source, which does not
// refer to the type Format.
func (d *Directory) Kind() string { return d.format.String() }

// Files returns the files that contain tensors.
func (d *Directory) Files() []File { return slices.Clone(d.files) }

// Tensors returns all tensors, ordered by file and by offset.
func (d *Directory) Tensors() []Tensor { return slices.Clone(d.tensors) }

// Tensor returns the tensor with the given name.
func (d *Directory) Tensor(name string) (t Tensor, ok bool) {
	i, ok := d.index[name]
	if !ok {
		return Tensor{}, false
	}
	return d.tensors[i], true
}

// Shape returns the shape of a tensor, row-major and outermost first.
func (d *Directory) Shape(name string) (shape []uint64, ok bool) {
	t, ok := d.Tensor(name)
	return t.Shape, ok
}

// Meta returns a metadata value. For GGUF, key is a GGUF key and the value has one of the types
// listed at gguf.KV. For a Hugging Face directory, key is a top-level key of config.json and the
// value is a json.Number, string, bool, nil, []any or map[string]any; the key "generation_config"
// returns the content of generation_config.json as a map[string]any, if that file exists.
func (d *Directory) Meta(key string) (value any, ok bool) {
	value, ok = d.meta[key]
	return value, ok
}

// MetaKeys returns all keys that Meta accepts, sorted.
func (d *Directory) MetaKeys() []string { return slices.Sorted(maps.Keys(d.meta)) }

// Fingerprint returns a SHA-256 hash of the names, types, shapes and sizes of all tensors. It
// does not depend on the order, places or data of the tensors, nor on the metadata.
func (d *Directory) Fingerprint() [sha256.Size]byte {
	sorted := slices.Clone(d.tensors)
	slices.SortFunc(sorted, func(a, b Tensor) int { return cmp.Compare(a.Name, b.Name) })
	// Each field has a fixed size or follows its length, so that different directories have
	// different encodings.
	h := sha256.New()
	var b []byte
	for _, t := range sorted {
		b = binary.LittleEndian.AppendUint64(b[:0], uint64(len(t.Name)))
		b = append(b, t.Name...)
		b = binary.LittleEndian.AppendUint64(b, uint64(len(t.TypeName)))
		b = append(b, t.TypeName...)
		b = binary.LittleEndian.AppendUint64(b, uint64(len(t.Shape)))
		for _, dim := range t.Shape {
			b = binary.LittleEndian.AppendUint64(b, dim)
		}
		b = binary.LittleEndian.AppendUint64(b, t.Size)
		h.Write(b)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// maxTensors bounds the number of tensors of a model. The largest models with separate tensors
// per expert have about 200,000.
const maxTensors = 1 << 19

// add appends a tensor. Call sort after the last one.
func (d *Directory) add(t Tensor) error {
	if len(d.tensors) == maxTensors {
		return fmt.Errorf("weights: %s: more than %d tensors", d.path, maxTensors)
	}
	d.tensors = append(d.tensors, t)
	return nil
}

// sort orders the tensors and fills the index.
func (d *Directory) sort() error {
	slices.SortStableFunc(d.tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Offset, b.Offset))
	})
	return d.reindex()
}

// reindex fills the index.
func (d *Directory) reindex() error {
	d.index = make(map[string]int, len(d.tensors))
	for i, t := range d.tensors {
		if j, dup := d.index[t.Name]; dup {
			return fmt.Errorf("weights: %s: two tensors are named %s, one in %s and one in %s",
				d.path, printable(t.Name), d.files[d.tensors[j].File].Path, d.files[t.File].Path)
		}
		d.index[t.Name] = i
	}
	return nil
}

// MissingFileError reports that a model directory lacks a file.
type MissingFileError struct {
	Dir  string
	Name string
}

func (e *MissingFileError) Error() string {
	return fmt.Sprintf("weights: %s: %s is missing", e.Dir, e.Name)
}

// Unwrap returns fs.ErrNotExist.
func (e *MissingFileError) Unwrap() error { return fs.ErrNotExist }

// printable returns a name from a file in the form that error messages use. Unusual names are
// quoted.
func printable(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f }) || name == "" || len(name) > 256 {
		return fmt.Sprintf("%+.256q", name)
	}
	return name
}
