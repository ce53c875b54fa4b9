package tinymodels

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// elementBytes is the size in bytes of an element of each type.
var elementBytes = map[string]uint64{"F16": 2, "BF16": 2, "F32": 4}

// header returns the header of a safetensors file exactly as the format's reference
// implementation writes it: no spaces between keys, and spaces at the end up to a multiple of
// 8 bytes.
func (f *File) header() ([]byte, error) {
	var b strings.Builder
	b.WriteString(`{"__metadata__":{"format":"pt"}`)
	var at uint64
	for _, t := range f.Tensors {
		size := elementBytes[t.DType]
		if size == 0 {
			return nil, fmt.Errorf("tensor %s: element type %q is not one of F16, BF16, F32", t.Name, t.DType)
		}
		dims := make([]string, len(t.Shape))
		for i, d := range t.Shape {
			dims[i] = fmt.Sprint(d)
			size *= d
		}
		fmt.Fprintf(&b, `,"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}`, t.Name, t.DType, strings.Join(dims, ","), at, at+size)
		at += size
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(b.Len())), b.String()...), nil
}

// write returns the bytes of the file.
func (f *File) write(weights source) ([]byte, error) {
	b, err := f.header()
	if err != nil {
		return nil, err
	}
	for _, t := range f.Tensors {
		values, ok := weights[t.Name]
		if !ok {
			return nil, fmt.Errorf("tensor %s has no values", t.Name)
		}
		if b, err = appendValues(b, t.DType, values.list); err != nil {
			return nil, fmt.Errorf("tensor %s: %w", t.Name, err)
		}
	}
	return b, nil
}
