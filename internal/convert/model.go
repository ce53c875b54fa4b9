// Package convert writes models as GGUF files. It converts Hugging Face directories to the
// names, metadata and row order that llama.cpp expects, and GGUF files to other tensor types.
// It streams the weights: only a few megabytes per thread are in memory at a time, whatever
// the model's size.
package convert

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/quantize"
	"github.com/pianola-engine/pianola/weights"
)

// Model describes a model as a GGUF file. The tensor data is still in the source files, which
// stay open until Close.
type Model struct {
	Metadata []gguf.KV // without the keys about types, which Write adds
	Tensors  []Tensor

	path      string
	files     []source
	mapped    *weights.Mapped // the source of joined tensors
	joined    bool            // some tensors are joined from several stored tensors
	converted bool            // the source is not a GGUF file
}

// source is a file that contains tensors.
type source struct {
	*os.File
	path string
	size uint64
}

// Tensor is a tensor with its name in GGUF files.
type Tensor struct {
	Name  string
	Shape []uint64   // outermost dimension first
	Type  dtype.Type // type in which its elements are stored in the source

	parts  []part
	values []float32 // replaces parts

	plusOne  bool // add 1 to each element
	minusExp bool // replace each element x by -exp(x)
}

// part locates some of a tensor's rows.
type part struct {
	file   int
	offset uint64 // position in the file in bytes
	size   uint64 // size in bytes
	joined bool   // the files store it as several tensors
	rows   arch.ConvertedRows
}

// inOrder reports whether consecutive elements are stored consecutively and can be read at
// once.
func (p *part) inOrder() bool { return !p.joined && p.rows.InOrder() }

// Open opens a model, a GGUF file or a Hugging Face directory. It reads only headers.
func Open(path string) (*Model, error) {
	dir, err := weights.OpenDirectory(path)
	if err != nil {
		return nil, err
	}
	m := &Model{path: path}
	if dir.Format() == weights.GGUF {
		err = m.readGGUF(dir)
	} else {
		m.converted = true
		err = m.readHF(dir)
	}
	if err == nil {
		err = m.open(dir)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// open opens the files that contain tensors. They stay open until Close.
func (m *Model) open(dir *weights.Directory) error {
	for _, f := range dir.Files() {
		file, err := os.Open(f.Path)
		if err != nil {
			return fmt.Errorf("convert: %w", err)
		}
		m.files = append(m.files, source{file, f.Path, f.Size})
		info, err := file.Stat()
		switch {
		case err != nil:
			return fmt.Errorf("convert: %w", err)
		case uint64(info.Size()) != f.Size:
			return fmt.Errorf("convert: %s: has changed since its header was read (%d bytes, was %d)", f.Path, info.Size(), f.Size)
		}
	}
	if !m.joined {
		return nil
	}
	var err error
	m.mapped, err = dir.Map()
	return err
}

// Close closes the files.
func (m *Model) Close() error {
	var errs []error
	for _, f := range m.files {
		errs = append(errs, f.Close())
	}
	if m.mapped != nil {
		errs = append(errs, m.mapped.Close())
	}
	m.files, m.mapped = nil, nil
	return errors.Join(errs...)
}

// Reads reports whether the model is read from the file at path.
func (m *Model) Reads(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(m.files, func(f source) bool {
		other, err := f.Stat()
		return err == nil && os.SameFile(info, other)
	})
}

// Converted reports whether the source is not a GGUF file.
func (m *Model) Converted() bool { return m.converted }

// typeKeys are keys that Write sets itself, and keys that are not valid for the written file.
var typeKeys = []string{"general.file_type", "general.quantization_version", "split.no", "split.count", "split.tensors.count"}

func (m *Model) readGGUF(dir *weights.Directory) error {
	for _, key := range dir.MetaKeys() {
		if value, _ := dir.Meta(key); !slices.Contains(typeKeys, key) {
			m.Metadata = append(m.Metadata, gguf.KV{Key: key, Value: value})
		}
	}
	for _, t := range dir.Tensors() {
		if len(t.Shape) == 0 {
			return fmt.Errorf("convert: %s: tensor %s is a scalar, want at least one dimension", m.path, t.Name)
		}
		if err := m.add(dir, t.Name, t.Shape, []arch.ConvertedRows{{Tensor: t.Name, Rows: t.Shape[0], Columns: elements(t.Shape[1:])}}); err != nil {
			return err
		}
	}
	return nil
}

// add adds a tensor that consists of the given rows of the directory's tensors, in order.
func (m *Model) add(dir *weights.Directory, name string, shape []uint64, rows []arch.ConvertedRows) error {
	t := Tensor{Name: name, Shape: shape}
	for i, r := range rows {
		if r.Tensor == "" && i > 0 {
			t.parts = append(t.parts, part{rows: r})
			continue
		}
		from, ok := dir.Tensor(r.Tensor)
		if !ok {
			return fmt.Errorf("convert: %s: no tensor %s", m.path, r.Tensor)
		}
		if err := dequantizable(from); err != nil {
			return fmt.Errorf("convert: %s: %w", m.path, err)
		}
		if i > 0 && from.Type != t.Type {
			return fmt.Errorf("convert: %s: tensor %s has type %s, but the preceding part of %s has type %s", m.path, r.Tensor, from.TypeName, name, t.Type)
		}
		t.Type = from.Type
		t.parts = append(t.parts, part{from.File, from.Offset, from.Size, from.Joined, r})
		m.joined = m.joined || from.Joined
	}
	m.Tensors = append(m.Tensors, t)
	return nil
}

// dequantizable returns an error for a tensor whose elements cannot be converted.
func dequantizable(t weights.Tensor) error {
	elems, size := t.Type.Block()
	if !t.Type.Valid() || dtype.Dequantize(t.Type, make([]float32, elems), make([]byte, size)) != nil {
		return fmt.Errorf("tensor %s is of %s, which is not supported", t.Name, t.TypeName)
	}
	return nil
}

// Meta returns a value of the metadata.
func (m *Model) Meta(key string) (any, bool) {
	i := slices.IndexFunc(m.Metadata, func(kv gguf.KV) bool { return kv.Key == key })
	if i < 0 {
		return nil, false
	}
	return m.Metadata[i].Value, true
}

// facts returns the properties of the model on which the types of a mix depend.
func (m *Model) facts() quantize.Model {
	name, _ := m.Meta("general.architecture")
	number := func(key string) int {
		v, _ := m.Meta(fmt.Sprintf("%v.%s", name, key))
		return integer(v)
	}
	f := quantize.Model{Layers: number("block_count"), QueriesPerKV: 1, Experts: number("expert_count")}
	if heads, kv := number("attention.head_count"), number("attention.head_count_kv"); kv > 0 {
		f.QueriesPerKV = heads / kv
	}
	return f
}

// integer returns an integer of any Go type, or the first element of a list, as an int. It
// returns 0 for any other value.
func integer(v any) int {
	r := reflect.ValueOf(v)
	switch {
	case !r.IsValid():
	case r.CanInt():
		return int(min(max(r.Int(), 0), 1<<30))
	case r.CanUint():
		return int(min(r.Uint(), 1<<30))
	case r.Kind() == reflect.Slice && r.Len() > 0 && r.Index(0).Kind() != reflect.Slice:
		return integer(r.Index(0).Interface())
	}
	return 0
}

// Types returns the type of each tensor in a mix. If a tensor already has a quantised type,
// Types fails unless again is set, because the loss of precision is permanent.
func (m *Model) Types(mix *quantize.Mix, o quantize.Options, again bool) ([]dtype.Type, error) {
	types := mix.Types(m.facts(), m.list(), o)
	for i, t := range m.Tensors {
		if t.Type.Quantized() && t.Type.Family() != dtype.FP8 && types[i] != t.Type && !again {
			return nil, fmt.Errorf("convert: %s: tensor %s is already quantised as %s", m.path, t.Name, t.Type)
		}
	}
	return types, nil
}

// Stored returns the types of the tensors in the source.
func (m *Model) Stored() []dtype.Type {
	types := make([]dtype.Type, len(m.Tensors))
	for i, t := range m.list() {
		types[i] = t.Type
	}
	return types
}

// list returns the tensors in the form that package quantize uses. If the mix chooses no type
// for a tensor, it keeps the type listed here: F32 in a Hugging Face directory, as llama.cpp
// expects, and the stored type in a GGUF file.
func (m *Model) list() []quantize.Tensor {
	list := make([]quantize.Tensor, len(m.Tensors))
	for i, t := range m.Tensors {
		list[i] = quantize.Tensor{Name: t.Name, Shape: t.Shape, Type: t.Type}
		switch {
		case m.converted && (!quantize.Quantizes(&list[i]) || t.Type == dtype.F64):
			list[i].Type = dtype.F32
		case !gguf.Has(t.Type): // choose a type with enough precision for the elements
			list[i].Type = dtype.F16
		}
	}
	return list
}

// FileType returns llama.cpp's file type, which depends on the type that takes the most bytes.
func (m *Model) FileType(types []dtype.Type) uint32 {
	bytes := map[dtype.Type]uint64{}
	var most dtype.Type
	for i, t := range m.Tensors {
		n := uint64(1)
		for _, d := range t.Shape {
			n *= d
		}
		if bytes[types[i]] += n; bytes[types[i]] > bytes[most] {
			most = types[i]
		}
	}
	if mix, err := quantize.FindMix(most.String()); err == nil {
		return mix.FileType
	}
	return 1
}

// readAt reads len(b) bytes of a part's tensor, beginning at byte at. For a joined tensor it
// reads whole rows.
func (m *Model) readAt(p *part, b []byte, at uint64) error {
	if p.joined {
		return m.mapped.ReadJoined(p.rows.Tensor, at, b)
	}
	f := &m.files[p.file]
	if at+uint64(len(b)) > p.size {
		return fmt.Errorf("%s: read of bytes %d to %d is outside the tensor of %d bytes", f.path, at, at+uint64(len(b)), p.size)
	}
	if _, err := f.ReadAt(b, int64(p.offset+at)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("%s: %w", f.path, err)
	}
	return nil
}
