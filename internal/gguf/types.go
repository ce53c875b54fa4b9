package gguf

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/dtype"
)

const (
	magic            = "GGUF"
	defaultAlignment = 32
	alignmentKey     = "general.alignment"
)

// valueType is a gguf_metadata_value_type.
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

// valueSizes holds the bytes of a value in the file: exact for numbers, the
// least for strings (a length) and arrays (an element type and a count).
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
	dtype        dtype.Type // Invalid: the type is known by name alone
	elems, bytes uint32     // of a block; 0 where the layout is not known
}

// ggmlTypes is indexed by id. Types without a dtype and a block were withdrawn
// from files, or have layouts that forks of ggml disagree about.
var ggmlTypes = [...]ggmlType{
	0:  {name: "F32", dtype: dtype.F32},
	1:  {name: "F16", dtype: dtype.F16},
	2:  {name: "Q4_0", dtype: dtype.Q4_0},
	3:  {name: "Q4_1", dtype: dtype.Q4_1},
	4:  {name: "Q4_2"},
	5:  {name: "Q4_3"},
	6:  {name: "Q5_0", dtype: dtype.Q5_0},
	7:  {name: "Q5_1", dtype: dtype.Q5_1},
	8:  {name: "Q8_0", dtype: dtype.Q8_0},
	9:  {name: "Q8_1", elems: 32, bytes: 36},
	10: {name: "Q2_K", dtype: dtype.Q2_K},
	11: {name: "Q3_K", dtype: dtype.Q3_K},
	12: {name: "Q4_K", dtype: dtype.Q4_K},
	13: {name: "Q5_K", dtype: dtype.Q5_K},
	14: {name: "Q6_K", dtype: dtype.Q6_K},
	15: {name: "Q8_K", elems: 256, bytes: 292},
	16: {name: "IQ2_XXS", elems: 256, bytes: 66},
	17: {name: "IQ2_XS", elems: 256, bytes: 74},
	18: {name: "IQ3_XXS", elems: 256, bytes: 98},
	19: {name: "IQ1_S", elems: 256, bytes: 50},
	20: {name: "IQ4_NL", dtype: dtype.IQ4_NL},
	21: {name: "IQ3_S", elems: 256, bytes: 110},
	22: {name: "IQ2_S", elems: 256, bytes: 82},
	23: {name: "IQ4_XS", dtype: dtype.IQ4_XS},
	24: {name: "I8", dtype: dtype.I8},
	25: {name: "I16", dtype: dtype.I16},
	26: {name: "I32", dtype: dtype.I32},
	27: {name: "I64", dtype: dtype.I64},
	28: {name: "F64", dtype: dtype.F64},
	29: {name: "IQ1_M", elems: 256, bytes: 56},
	30: {name: "BF16", dtype: dtype.BF16},
	31: {name: "Q4_0_4_4"},
	32: {name: "Q4_0_4_8"},
	33: {name: "Q4_0_8_8"},
	34: {name: "TQ1_0", elems: 256, bytes: 54},
	35: {name: "TQ2_0", elems: 256, bytes: 66},
	36: {name: "IQ4_NL_4_4"},
	37: {name: "IQ4_NL_4_8"},
	38: {name: "IQ4_NL_8_8"},
	39: {name: "MXFP4", dtype: dtype.MXFP4},
	40: {name: "NVFP4", elems: 64, bytes: 36},
	41: {name: "Q1_0"},
	42: {name: "Q2_0"},
}

// lookupType returns the entry of a ggml type id, with a name such as
// "ggml type 57" where ggml has none.
func lookupType(id uint32) ggmlType {
	if uint64(id) >= uint64(len(ggmlTypes)) {
		return ggmlType{name: fmt.Sprintf("ggml type %d", id)}
	}
	t := ggmlTypes[id]
	if t.dtype.Valid() {
		elems, bytes := t.dtype.Block()
		t.elems, t.bytes = uint32(elems), uint32(bytes)
	}
	return t
}

// Has reports whether GGUF files have tensors of a type.
func Has(t dtype.Type) bool {
	_, ok := typeID(t)
	return ok
}

// typeID returns the ggml type id of t. It is not ok for types that ggml does
// not have (U8).
func typeID(t dtype.Type) (id uint32, ok bool) {
	if !t.Valid() {
		return 0, false
	}
	for i := range ggmlTypes {
		if ggmlTypes[i].dtype == t {
			return uint32(i), true
		}
	}
	return 0, false
}
