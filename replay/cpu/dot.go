package cpu

import (
	"encoding/binary"
	"math"

	"github.com/pianola-engine/pianola/dtype"
)

// lanes is the number of sums of a float dot product.
const lanes = 32

// accumulate adds the products of a and b to the sums. What is before them in
// their rows is a whole number of steps of lanes.
func accumulate(acc *[lanes]float32, a, b []float32) {
	b = b[:len(a)]
	for l, v := range a {
		acc[l&(lanes-1)] += float32(v * b[l])
	}
}

// reduce32 adds up the sums of a float dot product.
func reduce32(acc *[lanes]float32) float32 {
	var v [8]float32
	for l := range v {
		v[l] = (acc[l] + acc[8+l]) + (acc[16+l] + acc[24+l])
	}
	return reduce8(&v)
}

// reduce8 adds up eight lanes as the vector instructions do.
func reduce8(v *[8]float32) float32 {
	a, b, c, d := v[0]+v[4], v[1]+v[5], v[2]+v[6], v[3]+v[7]
	return (a + c) + (b + d)
}

// dot returns the float dot product of a and b.
func dot(a, b []float32) float32 {
	var acc [lanes]float32
	for len(a) > lanes {
		accumulate(&acc, a[:lanes], b)
		a, b = a[lanes:], b[lanes:]
	}
	accumulate(&acc, a, b)
	return reduce32(&acc)
}

// rowsDecoded returns the product of weights that decode converts to float32,
// with size bytes for a block of elems elements, and float activations.
func rowsDecoded(decode func(dst []float32, src []byte), elems, size int) rowsFunc {
	return func(y []float32, w []byte, x *input) {
		n := len(x.f)
		row := n / elems * size
		for i := range y {
			w := w[i*row:][:row]
			var acc [lanes]float32
			for at := 0; at < n; at += len(x.buf) {
				f := x.f[at:min(at+len(x.buf), n)]
				buf := x.buf[:len(f)]
				decode(buf, w[at/elems*size:])
				accumulate(&acc, buf, f)
			}
			y[i] = reduce32(&acc)
		}
	}
}

// decodeF32 converts len(dst) little-endian float32.
func decodeF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// decodeBF16 converts len(dst) bfloat16.
func decodeBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = dtype.BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// decodeWith returns the conversion of a quantised type by its reference.
func decodeWith(t dtype.Type) func(dst []float32, src []byte) {
	return func(dst []float32, src []byte) {
		size, _ := t.Bytes(uint64(len(dst)))
		// The lengths match by construction and the type has a decoder.
		_ = dtype.Dequantize(t, dst, src[:size])
	}
}

// f16ToF32 converts len(dst) float16.
func f16ToF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = dtype.F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// f32ToF16 converts src to float16, rounded to nearest even.
func f32ToF16(dst []byte, src []float32) {
	for i, v := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], dtype.F32ToF16(v))
	}
}

// addScaledF16 adds w[j] * row j of v to acc, rows in order.
func addScaledF16(acc []float32, v []byte, w []float32) {
	for j, s := range w {
		row := v[2*j*len(acc):][:2*len(acc)]
		for i := range acc {
			acc[i] += float32(s * dtype.F16ToF32(binary.LittleEndian.Uint16(row[2*i:])))
		}
	}
}
