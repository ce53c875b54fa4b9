// Package quantize encodes tensors in quantization blocks, searching for the scales with the
// smallest error, and determines the type of each tensor of a model in a mix such as Q4_K_M.
//
// Without an importance matrix the importance of columns is unknown, so errors are weighted by
// the elements themselves. The searches take the same steps as ggml's quantize_row_*_ref
// functions, in the same order and each rounded to float32, so that on every machine a file
// equals the one that llama-quantize makes from the same weights. The package reads and writes no
// files.
package quantize

import (
	"fmt"
	"math"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// Version is ggml's GGML_QNT_VERSION, for general.quantization_version.
const Version = 2

// encoding describes how a matrix is written in a type.
type encoding struct {
	// encode writes one block in the layout of package dtype's decoder.
	encode func(b []byte, x []float32)
	// smaller is the type of a matrix whose row length is not a multiple of this type's block, the
	// same type as in llama.cpp's tensor_type_fallback. Invalid stands for F16.
	smaller dtype.Type
}

// encodings holds the types whose encoders search for good scales. Package dtype encodes the
// other types.
var encodings = map[dtype.Type]encoding{
	dtype.Q2_K:   {encodeQ2_K, dtype.Q4_0},
	dtype.Q3_K:   {encodeQ3_K, dtype.Q4_0},
	dtype.Q4_K:   {encodeQ4_K, dtype.Q5_0},
	dtype.Q5_K:   {encodeQ5_K, dtype.Q5_1},
	dtype.Q6_K:   {encodeQ6_K, dtype.Q8_0},
	dtype.IQ4_NL: {encodeIQ4_NL, dtype.Invalid},
	dtype.IQ4_XS: {encodeIQ4_XS, dtype.IQ4_NL},
	dtype.MXFP4:  {encodeMXFP4, dtype.Invalid},
	dtype.NVFP4:  {encodeNVFP4, dtype.IQ4_NL},
	dtype.TQ1_0:  {encodeTQ1_0, dtype.Q4_0},
	dtype.TQ2_0:  {encodeTQ2_0, dtype.Q4_0},
}

// Can reports whether [Encode] supports the type.
func Can(t dtype.Type) bool { return encodings[t].encode != nil || t.CanQuantize() }

// largest exceeds what any type with float16 scales can represent, and is low enough that no sum
// of squares in a block overflows.
const largest = 1e9

// Encode encodes src, whole blocks of t, to dst, which must have exactly the size of the result.
// For quantised types, an element that is not finite is an error; for these and F16, an element
// or a scale that is too large for float16 is an error too. For types and lengths it returns the
// errors of [dtype.Quantize].
func Encode(t dtype.Type, dst []byte, src []float32) error {
	if err := encode(t, dst, src); err != nil {
		return err
	}
	form := dtype.FormOf(t)
	if form == nil {
		return nil
	}
	elems, size := t.Block()
	for _, at := range form.Offsets() {
		for b := 0; b < len(dst); b += size {
			if dst[b+at+1]&0x7c == 0x7c { // infinite
				return fmt.Errorf("quantize: %s: elements %d to %d have no scale in float16: the largest is %v",
					t, b/size*elems, (b/size+1)*elems-1, extreme(src[b/size*elems:][:elems]))
			}
		}
	}
	return nil
}

func encode(t dtype.Type, dst []byte, src []float32) error {
	encode := encodings[t].encode
	if encode == nil {
		return dtype.Quantize(t, dst, src)
	}
	elems, size := t.Block()
	if len(src)%elems != 0 || len(dst) != len(src)/elems*size {
		return &dtype.SizeError{Op: "quantize", Type: t, Elems: len(src), Bytes: len(dst)}
	}
	for i, v := range src {
		if !(abs(v) <= largest) && dtype.FormOf(t).D == dtype.Half || math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return fmt.Errorf("quantize: %s: element %d is %v", t, i, v)
		}
	}
	for len(src) > 0 {
		encode(dst[:size:size], src[:elems:elems])
		dst, src = dst[size:], src[elems:]
	}
	return nil
}

// tiny is the magnitude below which a group of elements counts as zero.
const tiny = 1e-15

// nearest rounds to the nearest integer, ties to even, for magnitudes below 2^22: after adding
// 1.5*2^23, a float32 has no fraction bits.
func nearest(f float32) int32 {
	const shift = 3 << 22
	return int32(math.Float32bits(f+shift)&(1<<23-1)) - 1<<22
}

// clamp rounds f to an integer in lo..hi.
func clamp(f float32, lo, hi int32) int32 { return min(max(nearest(f), lo), hi) }

func abs(f float32) float32 { return math.Float32frombits(math.Float32bits(f) &^ (1 << 31)) }

func sqrt(f float32) float32 { return float32(math.Sqrt(float64(f))) }

// putHalf writes f as float16 and returns the value written.
func putHalf(b []byte, f float32) float32 {
	h := dtype.F32ToF16(f)
	b[0], b[1] = byte(h), byte(h>>8)
	return dtype.F16ToF32(h)
}

// extreme returns the element with the largest magnitude, or the first of them, with its sign.
func extreme(x []float32) float32 {
	var most, magnitude float32
	for _, v := range x {
		if a := abs(v); a > magnitude {
			most, magnitude = v, a
		}
	}
	return most
}
