package gguf

import (
	"fmt"
	"maps"

	"github.com/pianola-engine/pianola/internal/dtype"
)

const (
	magic            = "GGUF"
	defaultAlignment = 32
	alignmentKey     = "general.alignment"
)

// valueType is a value of ggml's enum gguf_metadata_value_type.
type valueType uint32

const (
	typeUint8 valueType = iota
	typeInt8
	typeUint16
	typeInt16
	typeUint32
	typeInt32
	typeFloat32
	typeBool
	typeString
	typeArray
	typeUint64
	typeInt64
	typeFloat64
	valueTypes
)

// valueSizes holds the size in bytes of each value type in a file. Strings (a length) and
// arrays (an element type and a count) have the size of their fixed part.
var valueSizes = [valueTypes]uint64{
	typeUint8:   1,
	typeInt8:    1,
	typeUint16:  2,
	typeInt16:   2,
	typeUint32:  4,
	typeInt32:   4,
	typeFloat32: 4,
	typeBool:    1,
	typeString:  8,
	typeArray:   12,
	typeUint64:  8,
	typeInt64:   8,
	typeFloat64: 8,
}

// ggmlType is an entry of ggml's enum ggml_type.
type ggmlType struct {
	name         string
	dtype        dtype.Type // Invalid: package dtype does not support the type
	elems, bytes uint32     // size of a block; 0 if the layout is unknown
}

// named holds the ggml types that package dtype does not declare, by type id. Types without a
// block size were withdrawn, or forks of ggml disagree about their layouts.
var named = map[uint32]ggmlType{
	4:  {name: "Q4_2"},
	5:  {name: "Q4_3"},
	9:  {name: "Q8_1", elems: 32, bytes: 36},
	15: {name: "Q8_K", elems: 256, bytes: 292},
	16: {name: "IQ2_XXS", elems: 256, bytes: 66},
	17: {name: "IQ2_XS", elems: 256, bytes: 74},
	18: {name: "IQ3_XXS", elems: 256, bytes: 98},
	19: {name: "IQ1_S", elems: 256, bytes: 50},
	21: {name: "IQ3_S", elems: 256, bytes: 110},
	22: {name: "IQ2_S", elems: 256, bytes: 82},
	29: {name: "IQ1_M", elems: 256, bytes: 56},
	31: {name: "Q4_0_4_4"},
	32: {name: "Q4_0_4_8"},
	33: {name: "Q4_0_8_8"},
	36: {name: "IQ4_NL_4_4"},
	37: {name: "IQ4_NL_4_8"},
	38: {name: "IQ4_NL_8_8"},
	41: {name: "Q1_0"},
	42: {name: "Q2_0"},
}

// ggmlTypes holds all types with a known name by type id: those that package dtype declares
// and those in named.
var ggmlTypes = func() map[uint32]ggmlType {
	types := maps.Clone(named)
	for _, f := range dtype.Forms() {
		if f.ID >= 0 {
			types[uint32(f.ID)] = ggmlType{f.Name, f.Type, uint32(f.Elems), uint32(f.Bytes)}
		}
	}
	return types
}()

// lookupType returns the entry for a ggml type id. An unknown id has a name such as "ggml type
// 57".
func lookupType(id uint32) ggmlType {
	if t, ok := ggmlTypes[id]; ok {
		return t
	}
	return ggmlType{name: fmt.Sprintf("ggml type %d", id)}
}

// Has reports whether GGUF files can store tensors of type t.
func Has(t dtype.Type) bool {
	_, ok := typeID(t)
	return ok
}

// typeID returns the ggml type id of t. ok is false for types that ggml lacks, such as U8.
func typeID(t dtype.Type) (id uint32, ok bool) {
	if f := dtype.FormOf(t); f != nil && f.ID >= 0 {
		return uint32(f.ID), true
	}
	return 0, false
}
