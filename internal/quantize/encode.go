// Package quantize encodes tensors in quantization blocks, searching for the scales with the
// smallest error, and determines the type of each tensor of a model in a mix such as Q4_K_M.
//
// Without an importance matrix the importance of columns is unknown, so errors are weighted by
// the elements themselves. The searches take the same steps as ggml's quantize_row_*_ref
// functions, in the same order and each rounded to float32, so that on every machine a file
// equals the one that llama-quantize makes from the same weights. Vector loops search for the scales
// of 16 sub-blocks at a time and give the same bits as portable Go. The package reads and writes no
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
	// encode writes up to together whole blocks in the layout of package dtype's decoder.
	encode   func(e *encoder, b []byte, x []float32)
	together int
	// smaller is the type of a matrix whose row length is not a multiple of this type's block, the
	// same type as in llama.cpp's tensor_type_fallback. Invalid stands for F16.
	smaller dtype.Type
}

// encodings holds the types whose encoders search for good scales. Package dtype encodes the
// other types.
var encodings = map[dtype.Type]encoding{
	dtype.Q2_K:   {(*encoder).q2_K, 1, dtype.Q4_0},
	dtype.Q3_K:   {(*encoder).q3_K, 1, dtype.Q4_0},
	dtype.Q4_K:   {(*encoder).q4_K, 2, dtype.Q5_0},
	dtype.Q5_K:   {(*encoder).q5_K, 2, dtype.Q5_1},
	dtype.Q6_K:   {(*encoder).q6_K, 1, dtype.Q8_0},
	dtype.IQ4_NL: {(*encoder).iq4_NL, 16, dtype.Invalid},
	dtype.IQ4_XS: {(*encoder).iq4_XS, 2, dtype.IQ4_NL},
	dtype.MXFP4:  {(*encoder).mxfp4, 1, dtype.Invalid},
	dtype.NVFP4:  {(*encoder).nvfp4, 1, dtype.IQ4_NL},
	dtype.TQ1_0:  {(*encoder).tq1_0, 1, dtype.Q4_0},
	dtype.TQ2_0:  {(*encoder).tq2_0, 1, dtype.Q4_0},
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
	all := available()
	return encodeWith(all[len(all)-1], t, dst, src)
}

// encodeWith is Encode with the given loops.
func encodeWith(l *loops, t dtype.Type, dst []byte, src []float32) error {
	if err := encode(l, t, dst, src); err != nil {
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

func encode(l *loops, t dtype.Type, dst []byte, src []float32) error {
	how := encodings[t]
	if how.encode == nil {
		return dtype.Quantize(t, dst, src)
	}
	elems, size := t.Block()
	if len(src)%elems != 0 || len(dst) != len(src)/elems*size {
		return &dtype.SizeError{Op: "quantize", Type: t, Elems: len(src), Bytes: len(dst)}
	}
	limit := float32(math.MaxFloat32)
	if dtype.FormOf(t).D == dtype.Half {
		limit = largest
	}
	if i := firstAbove(src, limit); i >= 0 {
		return fmt.Errorf("quantize: %s: element %d is %v", t, i, src[i])
	}
	e := &encoder{loops: l}
	for len(src) > 0 {
		n := min(how.together, len(src)/elems)
		how.encode(e, dst[:n*size:n*size], src[:n*elems:n*elems])
		dst, src = dst[n*size:], src[n*elems:]
	}
	return nil
}

// firstAbove returns the index of the first element whose magnitude is not at most limit, or -1.
func firstAbove(x []float32, limit float32) int {
	var most uint32 // twice the bits of the largest magnitude; they order magnitudes, and NaN last
	for _, v := range x {
		most = max(most, math.Float32bits(v)<<1)
	}
	if most > math.Float32bits(limit)<<1 {
		for i, v := range x {
			if !(abs(v) <= limit) {
				return i
			}
		}
	}
	return -1
}

// tiny is the magnitude below which a group of elements counts as zero.
const tiny = 1e-15

// nearest rounds to the nearest integer, ties to even, for magnitudes below 2^22: after adding
// 1.5*2^23, a float32 has no fraction bits. The conversion keeps the compiler from fusing the
// addition with a product before it.
func nearest(f float32) int32 {
	const shift = 3 << 22
	return int32(math.Float32bits(float32(f)+shift)&(1<<23-1)) - 1<<22
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
