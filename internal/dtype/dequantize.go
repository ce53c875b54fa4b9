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
	elems, size := t.Block()
	decode := decoders[t]
	for len(src) > 0 {
		decode(dst[:elems:elems], src[:size:size])
		dst, src = dst[elems:], src[size:]
	}
	return nil
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
