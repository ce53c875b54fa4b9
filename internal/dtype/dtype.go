// Package dtype declares the element types of tensors: their blocks, their sizes and the
// reference conversions to and from float32.
//
// File decoders, tables and kernels share this one list of types. The package must not
// know file formats, kernels or architectures.
package dtype

import (
	"fmt"
	"math/bits"
	"strings"
)

// Type is the element type of a tensor. The zero value is Invalid. Values are
// part of the .roll format: append only.
type Type uint8

// The types, by ggml's names where ggml has them.
const (
	Invalid Type = iota
	F32
	F16
	BF16
	Q8_0
	Q4_0
	Q4_1
	Q5_0
	Q5_1
	Q2_K
	Q3_K
	Q4_K
	Q5_K
	Q6_K
	IQ4_NL
	IQ4_XS
	MXFP4
	I8
	I16
	I32
	I64
	F64
	U8
	NVFP4
	TQ1_0
	TQ2_0
)

// block is the size of a block of a type, in elements and in bytes.
type block struct {
	name         string
	elems, bytes uint32
}

// blocks holds the block of each type. The file mlx.go adds MLX's types and FP8.
var blocks = func() (b [count]block) {
	b[Invalid] = block{"invalid", 1, 0}
	for _, f := range formOf {
		if f != nil {
			b[f.Type] = block{f.Name, uint32(f.Elems), uint32(f.Bytes)}
		}
	}
	return b
}()

// String returns the type's name, such as "Q4_0".
func (t Type) String() string {
	if t != Invalid && !t.Valid() {
		return fmt.Sprintf("type(%d)", uint8(t))
	}
	return blocks[t].name
}

// Valid reports whether t is a known type.
func (t Type) Valid() bool { return t > Invalid && t < count && blocks[t].elems > 0 }

// Block returns the size of a block in elements and in bytes. Types that are not quantised
// have blocks of one element.
func (t Type) Block() (elems, bytes int) {
	if !t.Valid() {
		return 1, 0
	}
	return int(blocks[t].elems), int(blocks[t].bytes)
}

// Quantized reports whether elements share a scale in blocks.
func (t Type) Quantized() bool { return t.Valid() && blocks[t].elems > 1 }

// Bytes returns the size in bytes of n consecutive elements. It is not ok if n is not a
// multiple of the block size or the result does not fit in 63 bits.
func (t Type) Bytes(n uint64) (size uint64, ok bool) {
	if !t.Valid() {
		return 0, false
	}
	b := blocks[t]
	if n%uint64(b.elems) != 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(n/uint64(b.elems), uint64(b.bytes))
	if hi != 0 || lo>>63 != 0 {
		return 0, false
	}
	return lo, true
}

// Parse returns the type of a name such as "Q4_0", in either case.
func Parse(name string) (Type, error) {
	for t := F32; t < count; t++ {
		if t.Valid() && strings.EqualFold(blocks[t].name, name) {
			return t, nil
		}
	}
	return Invalid, fmt.Errorf("dtype: unknown type %q", name)
}

// All returns every type, in order.
func All() []Type {
	all := make([]Type, 0, count-1)
	for t := F32; t < count; t++ {
		if t.Valid() {
			all = append(all, t)
		}
	}
	return all
}
