// Package convert writes models as GGUF files: Hugging Face directories with the
// names, the metadata and the order of rows that llama.cpp knows, GGUF files with
// other types. It streams: a few megabytes for each thread are in memory at a
// time, whatever the model's size.
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

// Model is a model as a GGUF file would have it, of which the tensors' elements
// are still where they come from. It is open until Close.
type Model struct {
	Metadata []gguf.KV // without the types' keys: Write adds them
	Tensors  []Tensor

	path      string
	files     []source
	mapped    *weights.Mapped // where tensors are joined
	joined    bool            // some are
	converted bool            // not a GGUF file yet
}

// source is a file that tensors lie in.
type source struct {
	*os.File
	path string
	size uint64
}

// Tensor is a tensor by its name in GGUF files.
type Tensor struct {
	Name  string
	Shape []uint64   // outermost dimension first
	Type  dtype.Type // in which its elements are stored now

	parts  []part
	values []float32 // instead of parts

	plusOne bool // one is added to each element
}

// part is where some of a tensor's rows are.
type part struct {
	file   int
	offset uint64 // in the file
	size   uint64 // bytes
	joined bool   // the files have it as several tensors
	rows   arch.ConvertedRows
}

// inOrder reports whether any run of elements can be read at once.
func (p *part) inOrder() bool { return !p.joined && p.rows.InOrder() }

// Open opens a model, a GGUF file or a Hugging Face directory, and reads headers
// alone.
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

// open opens the files that tensors lie in, for as long as the model is.
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

// Reads reports whether a file is one that the model is read from.
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

// Converted reports whether the model is one that is not a GGUF file yet.
func (m *Model) Converted() bool { return m.converted }

// typeKeys are what Write says anew, and what no longer holds.
var typeKeys = []string{"general.file_type", "general.quantization_version", "split.no", "split.count", "split.tensors.count"}

func (m *Model) readGGUF(dir *weights.Directory) error {
	for _, key := range dir.MetaKeys() {
		if value, _ := dir.Meta(key); !slices.Contains(typeKeys, key) {
			m.Metadata = append(m.Metadata, gguf.KV{Key: key, Value: value})
		}
	}
	for _, t := range dir.Tensors() {
		if len(t.Shape) == 0 {
			return fmt.Errorf("convert: %s: tensor %s has no dimension", m.path, t.Name)
		}
		if err := m.add(dir, t.Name, t.Shape, []arch.ConvertedRows{{Tensor: t.Name, Rows: t.Shape[0], Columns: elements(t.Shape[1:])}}); err != nil {
			return err
		}
	}
	return nil
}

// add adds a tensor whose rows are those of the directory's.
func (m *Model) add(dir *weights.Directory, name string, shape []uint64, rows []arch.ConvertedRows) error {
	t := Tensor{Name: name, Shape: shape}
	for i, r := range rows {
		from, ok := dir.Tensor(r.Tensor)
		if !ok {
			return fmt.Errorf("convert: %s: no tensor %s", m.path, r.Tensor)
		}
		if err := dequantizable(from); err != nil {
			return fmt.Errorf("convert: %s: %w", m.path, err)
		}
		if i > 0 && from.Type != t.Type {
			return fmt.Errorf("convert: %s: tensor %s is of %s, what goes before it in %s of %s", m.path, r.Tensor, from.TypeName, name, t.Type)
		}
		t.Type = from.Type
		t.parts = append(t.parts, part{from.File, from.Offset, from.Size, from.Joined, r})
		m.joined = m.joined || from.Joined
	}
	m.Tensors = append(m.Tensors, t)
	return nil
}

// dequantizable reports an error for a tensor of which elements cannot be had.
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

// facts returns what mixes ask of the model.
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

// integer returns a whole number of any type, or the first of several, else 0.
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

// Types returns the type of each tensor in a mix. Tensors that have quantised
// types already are an error unless again is set: what was lost stays lost.
func (m *Model) Types(mix *quantize.Mix, o quantize.Options, again bool) ([]dtype.Type, error) {
	types := mix.Types(m.facts(), m.list(), o)
	for i, t := range m.Tensors {
		if t.Type.Quantized() && t.Type.Family() != dtype.FP8 && types[i] != t.Type && !again {
			return nil, fmt.Errorf("convert: %s: tensor %s is quantised already, as %s", m.path, t.Name, t.Type)
		}
	}
	return types, nil
}

// Stored returns the types that tensors have now.
func (m *Model) Stored() []dtype.Type {
	types := make([]dtype.Type, len(m.Tensors))
	for i, t := range m.list() {
		types[i] = t.Type
	}
	return types
}

// list returns the tensors as mixes know them. What comes from a Hugging Face
// directory and is no matrix that mixes have a say in becomes F32, as llama.cpp
// wants it; a GGUF file has it as it has to be.
func (m *Model) list() []quantize.Tensor {
	list := make([]quantize.Tensor, len(m.Tensors))
	for i, t := range m.Tensors {
		list[i] = quantize.Tensor{Name: t.Name, Shape: t.Shape, Type: t.Type}
		switch {
		case m.converted && (!quantize.Quantizes(&list[i]) || t.Type == dtype.F64):
			list[i].Type = dtype.F32
		case !gguf.Has(t.Type): // as finely as the elements of such types need it
			list[i].Type = dtype.F16
		}
	}
	return list
}

// FileType returns llama.cpp's number for a file that has most of its bytes in
// one type.
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

// readAt reads bytes of a part's tensor, whole rows where it is joined.
func (m *Model) readAt(p *part, b []byte, at uint64) error {
	if p.joined {
		return m.mapped.ReadJoined(p.rows.Tensor, at, b)
	}
	f := &m.files[p.file]
	if at+uint64(len(b)) > p.size {
		return fmt.Errorf("%s: bytes %d to %d of %d", f.path, at, at+uint64(len(b)), p.size)
	}
	if _, err := f.ReadAt(b, int64(p.offset+at)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("%s: %w", f.path, err)
	}
	return nil
}
