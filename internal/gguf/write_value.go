package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// appendValue appends the type and the encoding of a metadata value. If GGUF cannot encode the
// value, it returns b unchanged and an error.
func appendValue(b []byte, value any) ([]byte, error) {
	le := binary.LittleEndian
	switch v := value.(type) {
	case uint8:
		return appendScalar(b, typeUint8, v, appendUint8), nil
	case int8:
		return appendScalar(b, typeInt8, v, appendInt8), nil
	case uint16:
		return appendScalar(b, typeUint16, v, le.AppendUint16), nil
	case int16:
		return appendScalar(b, typeInt16, v, appendInt16), nil
	case uint32:
		return appendScalar(b, typeUint32, v, le.AppendUint32), nil
	case int32:
		return appendScalar(b, typeInt32, v, appendInt32), nil
	case uint64:
		return appendScalar(b, typeUint64, v, le.AppendUint64), nil
	case int64:
		return appendScalar(b, typeInt64, v, appendInt64), nil
	case float32:
		return appendScalar(b, typeFloat32, v, appendFloat32), nil
	case float64:
		return appendScalar(b, typeFloat64, v, appendFloat64), nil
	case bool:
		return appendScalar(b, typeBool, v, appendBool), nil
	case string:
		return appendScalar(b, typeString, v, appendString), nil
	case []uint8:
		return appendArray(b, typeUint8, v, appendUint8), nil
	case []int8:
		return appendArray(b, typeInt8, v, appendInt8), nil
	case []uint16:
		return appendArray(b, typeUint16, v, le.AppendUint16), nil
	case []int16:
		return appendArray(b, typeInt16, v, appendInt16), nil
	case []uint32:
		return appendArray(b, typeUint32, v, le.AppendUint32), nil
	case []int32:
		return appendArray(b, typeInt32, v, appendInt32), nil
	case []uint64:
		return appendArray(b, typeUint64, v, le.AppendUint64), nil
	case []int64:
		return appendArray(b, typeInt64, v, appendInt64), nil
	case []float32:
		return appendArray(b, typeFloat32, v, appendFloat32), nil
	case []float64:
		return appendArray(b, typeFloat64, v, appendFloat64), nil
	case []bool:
		return appendArray(b, typeBool, v, appendBool), nil
	case []string:
		return appendArray(b, typeString, v, appendString), nil
	}
	return b, fmt.Errorf("no GGUF value for a %T", value)
}

func appendScalar[T any](b []byte, t valueType, v T, put func([]byte, T) []byte) []byte {
	return put(binary.LittleEndian.AppendUint32(b, uint32(t)), v)
}

func appendArray[T any](b []byte, t valueType, v []T, put func([]byte, T) []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(typeArray))
	b = binary.LittleEndian.AppendUint32(b, uint32(t))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(v)))
	for _, e := range v {
		b = put(b, e)
	}
	return b
}

func appendUint8(b []byte, v uint8) []byte { return append(b, v) }
func appendInt8(b []byte, v int8) []byte   { return append(b, uint8(v)) }
func appendInt16(b []byte, v int16) []byte { return binary.LittleEndian.AppendUint16(b, uint16(v)) }
func appendInt32(b []byte, v int32) []byte { return binary.LittleEndian.AppendUint32(b, uint32(v)) }
func appendInt64(b []byte, v int64) []byte { return binary.LittleEndian.AppendUint64(b, uint64(v)) }

func appendFloat32(b []byte, v float32) []byte {
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
}

func appendFloat64(b []byte, v float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}
