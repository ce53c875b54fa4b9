// Package weights opens model files: it gives one directory of tensors and
// metadata for GGUF files, safetensors files and Hugging Face directories, and
// maps their bytes into memory.
//
// A [Directory] comes from headers alone, so that a table can be compiled
// without reading weights; a [Mapped] has the bytes too. A matrix that
// safetensors files have as several tensors, quants and their scales, is one of a
// type with blocks. The package knows no architecture, and of metadata and names
// interprets only what says that; it converts no element.
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

// The formats.
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

// Tensor is what a tensor is and where it lies. Of one that the files have as
// several, quants and their scales, File and Offset are those of the quants and
// Size is that of its blocks; [Mapped.ReadJoined] reads it.
type Tensor struct {
	Name     string
	Type     dtype.Type // dtype.Invalid for types that are known by name alone
	TypeName string     // as the format calls it, such as "Q4_0", "IQ2_XS", "BF16", "F8_E4M3"
	Shape    []uint64   // row-major, outermost first: [rows, columns]
	File     int        // index in Directory.Files
	Offset   uint64     // bytes from the start of the file; not aligned in safetensors files
	Size     uint64     // bytes
	Joined   bool       // the files have it as several
}

// File is a file that tensors lie in.
type File struct {
	Path string
	Size uint64 // bytes, when its header was read
}

// Directory says which tensors a model has, where they lie, and what its
// metadata says. It comes from headers alone, is immutable, and may be used
// from several goroutines. Slices and values that it returns must not be
// modified.
type Directory struct {
	path    string
	format  Format
	files   []File
	changed []time.Time // when each file was last modified
	tensors []Tensor    // by file, then by offset
	index   map[string]int
	meta    map[string]any

	raw         []Tensor           // as tensors, before those that are one matrix were joined
	joined      map[string]*joined // by name
	names       map[string]string  // in the file, of tensors that lost a part of theirs
	unsupported []error
}

// Unsupported returns what the files have that is not supported, each an
// [*UnsupportedError]. Types of tensors are not among it.
func (d *Directory) Unsupported() []error { return slices.Clone(d.unsupported) }

// original returns what the file calls a module.
func (d *Directory) original(module string) string {
	return strings.TrimSuffix(d.names[module+".weight"], ".weight")
}

// Path returns the path that the directory was opened with.
func (d *Directory) Path() string { return d.path }

// Format returns the format of the model's files.
func (d *Directory) Format() Format { return d.format }

// Kind returns the format's name, for those who read a model through an
// interface that cannot name Format.
func (d *Directory) Kind() string { return d.format.String() }

// Files returns the files that tensors lie in.
func (d *Directory) Files() []File { return slices.Clone(d.files) }

// Tensors returns all tensors, ordered by file and by offset.
func (d *Directory) Tensors() []Tensor { return slices.Clone(d.tensors) }

// Tensor returns the tensor of a name.
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

// Meta returns a value of the model's metadata: of a GGUF key, of one of the
// types that gguf.KV names, or of a top-level key of config.json, a
// json.Number, string, bool, nil, []any or map[string]any. There, the key
// "generation_config" is all of generation_config.json, a map[string]any, where
// that file is there.
func (d *Directory) Meta(key string) (value any, ok bool) {
	value, ok = d.meta[key]
	return value, ok
}

// MetaKeys returns the keys that Meta knows, sorted.
func (d *Directory) MetaKeys() []string { return slices.Sorted(maps.Keys(d.meta)) }

// Fingerprint returns a SHA-256 of the names, types, shapes and sizes of all
// tensors. It does not depend on their order, on where they lie, on the
// metadata, or on their data.
func (d *Directory) Fingerprint() [sha256.Size]byte {
	sorted := slices.Clone(d.tensors)
	slices.SortFunc(sorted, func(a, b Tensor) int { return cmp.Compare(a.Name, b.Name) })
	// Each field has a fixed size or its length before it, so that no two
	// directories share an encoding.
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

// maxTensors bounds the tensors of a model. The largest models with an own
// tensor for each expert have about 200,000.
const maxTensors = 1 << 19

// add appends a tensor; sort comes after the last.
func (d *Directory) add(t Tensor) error {
	if len(d.tensors) == maxTensors {
		return fmt.Errorf("weights: %s: more than %d tensors", d.path, maxTensors)
	}
	d.tensors = append(d.tensors, t)
	return nil
}

// sort puts tensors in order and fills the index.
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

// MissingFileError says that a model directory lacks a file.
type MissingFileError struct {
	Dir  string
	Name string
}

func (e *MissingFileError) Error() string {
	return fmt.Sprintf("weights: %s: %s is missing", e.Dir, e.Name)
}

// Unwrap makes the error one of fs.ErrNotExist.
func (e *MissingFileError) Unwrap() error { return fs.ErrNotExist }

// printable returns a name from a file for an error message, in quotes where
// it is not plain.
func printable(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f }) || name == "" || len(name) > 256 {
		return fmt.Sprintf("%+.256q", name)
	}
	return name
}
