// Package safetensors decodes the headers of safetensors files, and the index files of models
// that consist of several files.
//
// Decoding returns a list of tensors and checks that they fit the file. The package does not
// read or map tensor data, and must not know architectures or config.json. The format is
// described at https://github.com/huggingface/safetensors#format.
package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"

	"github.com/pianola-engine/pianola/internal/dtype"
)

const (
	// maxHeader is the limit that the format itself sets, in bytes.
	maxHeader   = 100_000_000
	maxDims     = 16
	maxTypeName = 32
	metadataKey = "__metadata__"
	tensorCost  = 160 // memory cost of a tensor in addition to its name
)

// Tensor describes a tensor and its place in the file.
type Tensor struct {
	Name     string
	Type     dtype.Type // dtype.Invalid for types that package dtype does not support
	TypeName string     // as in the file, such as "BF16" or "F8_E4M3"
	Shape    []uint64   // row-major, outermost first; empty for a scalar
	Offset   uint64     // bytes from the start of the file, not aligned
	Size     uint64     // bytes
}

// Header is the decoded header of a file. Callers must not modify it.
type Header struct {
	DataOffset uint64            // bytes from the start of the file
	Metadata   map[string]string // content of "__metadata__"; nil if it is absent
	Tensors    []Tensor          // in the order of their data
}

// elementType is an element type of the format.
type elementType struct {
	dtype dtype.Type // Invalid: package dtype does not support the type
	bits  uint64
}

// elementTypes holds the types of the reference implementation's enum Dtype by name.
var elementTypes = map[string]elementType{
	"BOOL":        {dtype.U8, 8},
	"U8":          {dtype.U8, 8},
	"I8":          {dtype.I8, 8},
	"I16":         {dtype.I16, 16},
	"I32":         {dtype.I32, 32},
	"I64":         {dtype.I64, 64},
	"F16":         {dtype.F16, 16},
	"BF16":        {dtype.BF16, 16},
	"F32":         {dtype.F32, 32},
	"F64":         {dtype.F64, 64},
	"U16":         {dtype.Invalid, 16},
	"U32":         {dtype.Invalid, 32},
	"U64":         {dtype.Invalid, 64},
	"C64":         {dtype.Invalid, 64},
	"F4":          {dtype.Invalid, 4},
	"F6_E2M3":     {dtype.Invalid, 6},
	"F6_E3M2":     {dtype.Invalid, 6},
	"F8_E4M3":     {dtype.Invalid, 8},
	"F8_E5M2":     {dtype.Invalid, 8},
	"F8_E8M0":     {dtype.Invalid, 8},
	"F8_E4M3FNUZ": {dtype.Invalid, 8},
	"F8_E5M2FNUZ": {dtype.Invalid, 8},
}

// Decode reads the header of a safetensors file of size bytes. It checks that the tensors fill
// the rest of the file without gaps or overlaps, as the format requires. It does not read
// tensor data.
//
// The error wraps io.ErrUnexpectedEOF if the file ends within its header, or names the faulty
// tensor. Decoding a header takes at most about 100 MiB.
func Decode(r io.ReaderAt, size int64) (*Header, error) {
	var prefix [9]byte
	if size < int64(len(prefix)) {
		return nil, fmt.Errorf("not a safetensors file: %d bytes long", size)
	}
	if n, err := r.ReadAt(prefix[:], 0); n < len(prefix) {
		return nil, fmt.Errorf("safetensors: %w", unexpected(err))
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	if prefix[8] != '{' {
		return nil, fmt.Errorf("not a safetensors file: header starts with %q, want '{'", prefix[8:])
	}
	if length > maxHeader {
		return nil, fmt.Errorf("safetensors: header length %d is above the limit of %d", length, maxHeader)
	}
	if length > uint64(size)-8 {
		return nil, fmt.Errorf("safetensors: header length %d is past the end of the file at %d: %w", length, size, io.ErrUnexpectedEOF)
	}
	h := &Header{DataOffset: 8 + length}
	if err := h.decode(newParser(io.NewSectionReader(r, 8, int64(length)))); err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	if err := h.place(uint64(size) - h.DataOffset); err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return h, nil
}

func unexpected(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decode reads the header. It leaves the offsets relative to the data and unchecked.
func (h *Header) decode(p *parser) error {
	err := p.object(func(name string) error {
		if name == metadataKey {
			if err := h.decodeMetadata(p); err != nil {
				return fmt.Errorf("%s: %w", metadataKey, err)
			}
			return nil
		}
		t, err := p.tensor()
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		if err := p.charge(tensorCost); err != nil {
			return err
		}
		t.Name = name
		h.Tensors = append(h.Tensors, t)
		return nil
	})
	if err == nil {
		err = p.end()
	}
	if err != nil {
		return fmt.Errorf("header: %w", err)
	}
	return nil
}

func (h *Header) decodeMetadata(p *parser) error {
	h.Metadata = map[string]string{}
	return p.object(func(key string) error {
		value, err := p.string()
		if err != nil {
			return err
		}
		h.Metadata[key] = value
		return p.charge(len(value) + 64)
	})
}

// tensor reads the description of a tensor.
func (p *parser) tensor() (Tensor, error) {
	var t Tensor
	var offsets []uint64
	err := p.object(func(key string) (err error) {
		switch key {
		case "dtype":
			t.TypeName, err = p.string()
		case "shape":
			t.Shape, err = p.uints(maxDims)
		case "data_offsets":
			offsets, err = p.uints(2)
		default:
			return fmt.Errorf("field %s is unknown", quote(key))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	switch {
	case err != nil:
		return t, err
	case t.TypeName == "":
		return t, errors.New("has no dtype")
	case len(t.TypeName) > maxTypeName || quote(t.TypeName) != t.TypeName:
		return t, fmt.Errorf("dtype %s is not a valid type name", quote(t.TypeName))
	case t.Shape == nil:
		return t, errors.New("has no shape")
	case len(offsets) != 2:
		return t, fmt.Errorf("%d data_offsets, want 2", len(offsets))
	case offsets[0] >= offsets[1]:
		return t, fmt.Errorf("data_offsets %d are not in order", offsets)
	}
	t.Offset, t.Size = offsets[0], offsets[1]-offsets[0]
	known, ok := elementTypes[t.TypeName]
	t.Type = known.dtype
	elems, err := elements(t.Shape)
	if err != nil {
		return t, err
	}
	if !ok {
		return t, nil // unknown type: the size follows from data_offsets
	}
	hi, lo := bits.Mul64(elems, known.bits)
	if hi != 0 || lo%8 != 0 || lo/8 != t.Size {
		return t, fmt.Errorf("data_offsets %d span %d bytes, which is not the size of shape %d in %s", offsets, t.Size, t.Shape, t.TypeName)
	}
	return t, nil
}

// elements returns the number of elements of a shape.
func elements(shape []uint64) (uint64, error) {
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
	return n, nil
}

// place checks that the tensors fill the data, sorts them by offset and makes their offsets
// absolute.
func (h *Header) place(data uint64) error {
	slices.SortStableFunc(h.Tensors, func(a, b Tensor) int { return cmp.Compare(a.Offset, b.Offset) })
	var end uint64
	last := "the header"
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if t.Offset > data || t.Size > data-t.Offset {
			return fmt.Errorf("tensor %s: offset %d + %d bytes is past the end of the file, which has %d bytes of data",
				quote(t.Name), t.Offset, t.Size, data)
		}
		if t.Offset < end {
			return fmt.Errorf("tensor %s: offset %d overlaps %s, which ends at %d", quote(t.Name), t.Offset, last, end)
		}
		if t.Offset > end {
			return fmt.Errorf("tensor %s: offset %d leaves a gap after %s, which ends at %d", quote(t.Name), t.Offset, last, end)
		}
		end, last = t.Offset+t.Size, "tensor "+quote(t.Name)
		t.Offset += h.DataOffset
	}
	if end != data {
		return fmt.Errorf("%d bytes of data follow the last tensor", data-end)
	}
	return nil
}
