package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// maxNesting bounds the depth of nested arrays.
const maxNesting = 8

// numbers holds the decoders for value types of fixed size.
var numbers = [valueTypes]numberDecoder{
	typeUint8:   decoderOf(1, func(b []byte) uint8 { return b[0] }),
	typeInt8:    decoderOf(1, func(b []byte) int8 { return int8(b[0]) }),
	typeUint16:  decoderOf(2, binary.LittleEndian.Uint16),
	typeInt16:   decoderOf(2, func(b []byte) int16 { return int16(binary.LittleEndian.Uint16(b)) }),
	typeUint32:  decoderOf(4, binary.LittleEndian.Uint32),
	typeInt32:   decoderOf(4, func(b []byte) int32 { return int32(binary.LittleEndian.Uint32(b)) }),
	typeFloat32: decoderOf(4, func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }),
	typeBool:    decoderOf(1, func(b []byte) bool { return b[0] != 0 }),
	typeUint64:  decoderOf(8, binary.LittleEndian.Uint64),
	typeInt64:   decoderOf(8, func(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) }),
	typeFloat64: decoderOf(8, func(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }),
}

// numberDecoder decodes one value as a T, or count values as a []T. The caller must check that
// the file contains them.
type numberDecoder struct {
	scalar func(d *reader) (any, error)
	array  func(d *reader, count uint64) (any, error)
}

func decoderOf[T any](size uint64, get func([]byte) T) numberDecoder {
	return numberDecoder{
		scalar: func(d *reader) (any, error) {
			b, err := d.next(size)
			if err != nil {
				return nil, err
			}
			return get(b), nil
		},
		array: func(d *reader, count uint64) (any, error) {
			values := make([]T, 0, count)
			for left := count; left > 0; {
				n := min(left, windowSize/size)
				b, err := d.next(n * size)
				if err != nil {
					return nil, err
				}
				for ; len(b) > 0; b = b[size:] {
					values = append(values, get(b))
				}
				left -= n
			}
			return values, nil
		},
	}
}

// value reads a value type and then a value of that type.
func (d *reader) value() (any, error) {
	t, err := d.valueType()
	if err != nil {
		return nil, err
	}
	switch t {
	case typeString:
		return d.string()
	case typeArray:
		return d.array(1)
	}
	return numbers[t].scalar(d)
}

func (d *reader) valueType() (valueType, error) {
	id, err := d.uint32()
	if err != nil {
		return 0, err
	}
	if id >= uint32(valueTypes) {
		return 0, fmt.Errorf("value type %d is unknown", id)
	}
	return valueType(id), nil
}

// array reads an element type, a count and the elements. It returns a slice of that type.
func (d *reader) array(depth int) (any, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("arrays are nested deeper than %d", maxNesting)
	}
	t, err := d.valueType()
	if err != nil {
		return nil, fmt.Errorf("array: %w", err)
	}
	count, err := d.uint64()
	if err != nil {
		return nil, fmt.Errorf("array: %w", err)
	}
	// In memory, a string takes a header of 16 bytes in addition to its text. An array takes an
	// interface value of 16 bytes and a slice header of 24 bytes.
	cost := valueSizes[t]
	switch t {
	case typeString:
		cost = 16
	case typeArray:
		cost = 40
	}
	if err := d.checkCount(count, valueSizes[t], cost); err != nil {
		return nil, fmt.Errorf("array: %w", err)
	}
	switch t {
	case typeString:
		return d.strings(count)
	case typeArray:
		values := make([]any, count)
		for i := range values {
			if values[i], err = d.array(depth + 1); err != nil {
				return nil, fmt.Errorf("element %d of %d: %w", i, count, err)
			}
		}
		return values, nil
	}
	return numbers[t].array(d, count)
}

// strings reads count strings as substrings of one large string. It reads them twice: first it
// adds up their lengths.
func (d *reader) strings(count uint64) ([]string, error) {
	start := d.pos
	var total uint64
	for i := range count {
		n, err := d.stringLen()
		if err != nil {
			return nil, fmt.Errorf("element %d of %d: %w", i, count, err)
		}
		if err := d.skip(n); err != nil {
			return nil, fmt.Errorf("element %d of %d: %w", i, count, err)
		}
		if total += n; total > d.memory {
			return nil, errMemory
		}
	}
	if err := d.charge(total); err != nil {
		return nil, err
	}
	d.pos = start
	var all strings.Builder
	all.Grow(int(total))
	values := make([]string, count)
	for i := range values {
		n, err := d.stringLen()
		if err != nil {
			return nil, err
		}
		from := all.Len()
		// If the file has changed between the two passes, the text must not be reallocated,
		// because earlier strings refer to it.
		if n > total-uint64(from) {
			return nil, fmt.Errorf("element %d of %d: the file changed while it was read", i, count)
		}
		if err := d.copyTo(&all, n); err != nil {
			return nil, err
		}
		values[i] = all.String()[from:]
	}
	return values, nil
}
