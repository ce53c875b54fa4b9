package gguf

import (
	"cmp"
	"fmt"
	"io"
	"math/bits"
	"slices"

	"github.com/pianola-engine/pianola/internal/dtype"
)

const (
	maxDims      = 4         // GGML_MAX_DIMS
	maxName      = 1<<16 - 1 // bytes of a key or a tensor name
	maxAlignment = 1 << 24

	// The smallest entries in a file: a key of one byte with a value of one byte, and a tensor of
	// one dimension with a name of one byte.
	minKVSize     = 8 + 1 + 4 + 1
	minTensorSize = 8 + 1 + 4 + 8 + 4 + 8

	// The memory cost of an entry in addition to its name and value. It includes the map that
	// finds duplicates.
	kvCost     = 96
	tensorCost = 192
)

// KV is one entry of the metadata.
//
// Value is a uint8, int8, uint16, int16, uint32, int32, uint64, int64, float32, float64, bool or
// string; a slice of one of these; or, for arrays of arrays, an []any of slices.
type KV struct {
	Key   string
	Value any
}

// Tensor describes a tensor and its place in the file.
type Tensor struct {
	Name     string
	Type     dtype.Type // dtype.Invalid for types that package dtype does not support
	TypeName string     // ggml's name, such as "IQ2_XS", or "ggml type 57"
	Shape    []uint64   // row-major, outermost first: [rows, columns]
	Offset   uint64     // bytes from the start of the file
	Size     uint64     // in bytes; reaches to the next tensor if the type's layout is unknown
}

// File is a decoded header. Callers must not modify it.
type File struct {
	Version    uint32 // 2 or 3
	Alignment  uint64 // alignment of tensor data in bytes
	DataOffset uint64 // bytes from the start of the file
	Metadata   []KV   // in file order
	Tensors    []Tensor

	keys map[string]int // index in Metadata
}

// Meta returns the value of a metadata key.
func (f *File) Meta(key string) (value any, ok bool) {
	i, ok := f.keys[key]
	if !ok {
		return nil, false
	}
	return f.Metadata[i].Value, true
}

// MagicError reports that a file is not a GGUF file.
type MagicError struct {
	Magic string // the file's first four bytes, or fewer if it is shorter
}

func (e *MagicError) Error() string {
	return fmt.Sprintf("not a GGUF file: magic %q, want %q", e.Magic, magic)
}

// VersionError reports a GGUF file whose version or byte order is not supported.
type VersionError struct {
	Version   uint32
	BigEndian bool
}

func (e *VersionError) Error() string {
	if e.BigEndian {
		return fmt.Sprintf("gguf: big-endian file (version %d), want little-endian", e.Version)
	}
	return fmt.Sprintf("gguf: version %d is not supported, want 2 or 3", e.Version)
}

// Decode reads the header of a GGUF file of size bytes. It checks that every tensor lies
// within the file, is aligned and does not overlap another. It does not read tensor data.
//
// The error is a [*MagicError] or a [*VersionError], wraps io.ErrUnexpectedEOF if the file
// ends within its header, or names the faulty key or tensor. Before Decode allocates memory
// for a number of items, it checks that the file is long enough to contain them. Decoding a
// header takes at most about 100 MiB.
func Decode(r io.ReaderAt, size int64) (*File, error) {
	if size < 0 {
		return nil, fmt.Errorf("gguf: file size %d is negative", size)
	}
	d := newReader(r, uint64(size))
	f := new(File)
	kvs, tensors, err := f.decodePreamble(d)
	if err != nil {
		return nil, err
	}
	if err := f.decodeMetadata(d, kvs); err != nil {
		return nil, err
	}
	if err := f.setAlignment(); err != nil {
		return nil, err
	}
	if err := f.decodeTensors(d, tensors); err != nil {
		return nil, err
	}
	f.DataOffset = (d.pos + f.Alignment - 1) &^ (f.Alignment - 1)
	if err := f.place(d.size); err != nil {
		return nil, err
	}
	return f, nil
}

// decodePreamble reads everything before the metadata and returns the numbers of metadata
// entries and tensors, which it does not check.
func (f *File) decodePreamble(d *reader) (kvs, tensors uint64, err error) {
	m, err := d.next(min(uint64(len(magic)), d.size))
	if err != nil {
		return 0, 0, fmt.Errorf("gguf: %w", err)
	}
	if string(m) != magic {
		return 0, 0, &MagicError{Magic: string(m)}
	}
	if f.Version, err = d.uint32(); err != nil {
		return 0, 0, fmt.Errorf("gguf: version: %w", err)
	}
	// A version that is a multiple of 65536 is a small number in the other byte order.
	if f.Version != 0 && f.Version&0xffff == 0 {
		return 0, 0, &VersionError{Version: bits.ReverseBytes32(f.Version), BigEndian: true}
	}
	if f.Version != 2 && f.Version != 3 {
		return 0, 0, &VersionError{Version: f.Version}
	}
	if tensors, err = d.uint64(); err != nil {
		return 0, 0, fmt.Errorf("gguf: tensor count: %w", err)
	}
	if kvs, err = d.uint64(); err != nil {
		return 0, 0, fmt.Errorf("gguf: metadata count: %w", err)
	}
	return kvs, tensors, nil
}

func (f *File) decodeMetadata(d *reader, count uint64) error {
	if err := d.checkCount(count, minKVSize, kvCost); err != nil {
		return fmt.Errorf("gguf: metadata: %w", err)
	}
	f.Metadata = make([]KV, 0, count)
	f.keys = make(map[string]int, count)
	for i := range count {
		key, err := d.name()
		if err != nil {
			return fmt.Errorf("gguf: metadata entry %d of %d: key: %w", i, count, err)
		}
		if _, dup := f.keys[key]; dup {
			return fmt.Errorf("gguf: key %s: duplicate key", quote(key))
		}
		value, err := d.value()
		if err != nil {
			return fmt.Errorf("gguf: key %s: %w", quote(key), err)
		}
		f.keys[key] = len(f.Metadata)
		f.Metadata = append(f.Metadata, KV{Key: key, Value: value})
	}
	return nil
}

func (f *File) setAlignment() error {
	f.Alignment = defaultAlignment
	v, ok := f.Meta(alignmentKey)
	if !ok {
		return nil
	}
	a, ok := v.(uint32)
	if !ok {
		return fmt.Errorf("gguf: key %s: is %T, want uint32", alignmentKey, v)
	}
	if a == 0 || a&(a-1) != 0 || a > maxAlignment {
		return fmt.Errorf("gguf: key %s: %d is not a power of two up to %d", alignmentKey, a, maxAlignment)
	}
	f.Alignment = uint64(a)
	return nil
}

// decodeTensors reads the tensor infos. It leaves the offsets relative to the data and
// unchecked.
func (f *File) decodeTensors(d *reader, count uint64) error {
	if err := d.checkCount(count, minTensorSize, tensorCost); err != nil {
		return fmt.Errorf("gguf: tensors: %w", err)
	}
	f.Tensors = make([]Tensor, 0, count)
	names := make(map[string]struct{}, count)
	for i := range count {
		name, err := d.name()
		if err != nil {
			return fmt.Errorf("gguf: tensor %d of %d: name: %w", i, count, err)
		}
		if _, dup := names[name]; dup {
			return fmt.Errorf("gguf: tensor %s: duplicate name", quote(name))
		}
		names[name] = struct{}{}
		t, err := d.tensor()
		if err != nil {
			return fmt.Errorf("gguf: tensor %s: %w", quote(name), err)
		}
		t.Name = name
		f.Tensors = append(f.Tensors, t)
	}
	return nil
}

// tensor reads the part of a tensor info that follows the name.
func (d *reader) tensor() (Tensor, error) {
	dims, err := d.uint32()
	if err != nil {
		return Tensor{}, err
	}
	if dims == 0 || dims > maxDims {
		return Tensor{}, fmt.Errorf("%d dimensions, want 1 to %d", dims, maxDims)
	}
	shape := make([]uint64, dims)
	for i := range shape {
		// The file stores the innermost dimension first.
		if shape[len(shape)-1-i], err = d.uint64(); err != nil {
			return Tensor{}, err
		}
	}
	id, err := d.uint32()
	if err != nil {
		return Tensor{}, err
	}
	offset, err := d.uint64()
	if err != nil {
		return Tensor{}, err
	}
	typ := lookupType(id)
	size, err := typ.size(shape)
	if err != nil {
		return Tensor{}, err
	}
	return Tensor{Type: typ.dtype, TypeName: typ.name, Shape: shape, Offset: offset, Size: size}, nil
}

// size returns the size in bytes of a tensor of the shape, or 0 if the type's layout is unknown.
func (t ggmlType) size(shape []uint64) (uint64, error) {
	n := uint64(1)
	for _, dim := range shape {
		if dim == 0 {
			return 0, fmt.Errorf("shape %d has an empty dimension", shape)
		}
		hi, lo := bits.Mul64(n, dim)
		if hi != 0 || lo>>63 != 0 {
			return 0, fmt.Errorf("shape %d has more than 2^63 elements", shape)
		}
		n = lo
	}
	if t.bytes == 0 {
		return 0, nil
	}
	if row := shape[len(shape)-1]; row%uint64(t.elems) != 0 {
		return 0, fmt.Errorf("rows of %d elements are not a multiple of the %d elements of a %s block", row, t.elems, t.name)
	}
	hi, lo := bits.Mul64(n/uint64(t.elems), uint64(t.bytes))
	if hi != 0 || lo>>63 != 0 {
		return 0, fmt.Errorf("shape %d in %s has more than 2^63 bytes", shape, t.name)
	}
	return lo, nil
}

// place checks that tensors lie within the file and do not overlap. It makes the offsets
// absolute and sets the sizes of tensors whose type has an unknown layout.
func (f *File) place(fileSize uint64) error {
	data := fileSize - min(fileSize, f.DataOffset)
	order := make([]*Tensor, len(f.Tensors))
	for i := range f.Tensors {
		t := &f.Tensors[i]
		order[i] = t
		if t.Offset%f.Alignment != 0 {
			return fmt.Errorf("gguf: tensor %s: offset %d is not a multiple of the alignment %d", quote(t.Name), t.Offset, f.Alignment)
		}
		// No tensor is empty, so a tensor of unknown size cannot begin at the end of the data
		// either.
		if t.Offset >= data || t.Size > data-t.Offset {
			return fmt.Errorf("gguf: tensor %s: offset %d + %d bytes is past the end of the file, which has %d bytes of data",
				quote(t.Name), t.Offset, t.Size, data)
		}
		t.Offset += f.DataOffset
	}
	slices.SortStableFunc(order, func(a, b *Tensor) int { return cmp.Compare(a.Offset, b.Offset) })
	for i, t := range order {
		end := fileSize
		if i+1 < len(order) {
			end = order[i+1].Offset
		}
		if t.Size == 0 {
			t.Size = end - t.Offset
		}
		if t.Size == 0 || t.Size > end-t.Offset {
			next := order[i+1] // exists, because the last tensor ends within the file
			return fmt.Errorf("gguf: tensor %s: offset %d + %d bytes overlaps tensor %s at %d", quote(t.Name), t.Offset, t.Size, quote(next.Name), end)
		}
	}
	return nil
}
