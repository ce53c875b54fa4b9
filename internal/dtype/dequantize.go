package dtype

import (
	"encoding/binary"
	"math"
)

// Dequantize converts the elements stored in src to float32, in order. src must be whole
// blocks, and dst must have as many elements as src. Dequantize supports every
// floating-point and quantised type and rounds F64. It returns an [UnsupportedError] for
// integer types and a [SizeError] for wrong lengths.
//
// Products and sums are rounded separately, as in ggml's dequantize_row functions, so that every
// machine gives the same bits. Explicit conversions keep the compiler from fusing them.
func Dequantize(t Type, dst []float32, src []byte) error {
	if !t.Valid() || decoders[t] == nil {
		return &UnsupportedError{Op: "dequantize", Type: t}
	}
	if err := checkLengths("dequantize", t, len(dst), len(src)); err != nil {
		return err
	}
	if t == F16 {
		decodeHalves(dst, src)
		return nil
	}
	elems, size := t.Block()
	decode := decoders[t]
	for len(src) > 0 {
		decode(dst[:elems:elems], src[:size:size])
		dst, src = dst[elems:], src[size:]
	}
	return nil
}

// decodeHalves converts float16 as F16ToF32 does. It is written for speed: most models that are
// converted are in this type.
func decodeHalves(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := range dst {
		h := uint32(binary.LittleEndian.Uint16(src[2*i:]))
		// Both kinds of finite numbers are right except for the bias of the exponent, and the
		// product is exact.
		b := math.Float32bits(math.Float32frombits(h&0x7fff<<13) * 0x1p112)
		if h&0x7c00 == 0x7c00 {
			b = 0x7f800000 | h&0x3ff<<13
		}
		dst[i] = math.Float32frombits(b | h&0x8000<<16)
	}
}

// decoders convert one block each.
var decoders = func() (of [count]func(dst []float32, b []byte)) {
	for _, f := range formOf {
		if f != nil && f.Elems > 1 {
			of[f.Type] = f.decode
		}
	}
	of[F32] = func(dst []float32, b []byte) { dst[0] = math.Float32frombits(word(b)) }
	of[F16] = func(dst []float32, b []byte) { dst[0] = half(b) }
	of[BF16] = func(dst []float32, b []byte) { dst[0] = BF16ToF32(binary.LittleEndian.Uint16(b)) }
	of[F64] = func(dst []float32, b []byte) {
		dst[0] = float32(math.Float64frombits(binary.LittleEndian.Uint64(b)))
	}
	return of
}()
