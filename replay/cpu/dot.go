package cpu

import (
	"encoding/binary"
	"math"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// lanes is the number of sums of a float dot product.
const lanes = 16

// accumulate adds the products of a and b to the sums. a and b begin at a multiple of lanes in
// their rows.
func accumulate(acc *[lanes]float32, a, b []float32) {
	b = b[:len(a)]
	for l, v := range a {
		c := &acc[l&(lanes-1)]
		if s := float64(float64(v)*float64(b[l])) + float64(*c); !twiceRounded(s) {
			*c = float32(s) // fma32, inlined because calls would take most of the time
		} else {
			*c = fma32Odd(v, b[l], *c)
		}
	}
}

// reduce16 reduces the sums of a float dot product.
func reduce16(acc *[lanes]float32) float32 {
	var v [8]float32
	for l := range v {
		v[l] = acc[l] + acc[8+l]
	}
	return reduce8(&v)
}

// reduce8 reduces eight lanes in the order of the vector instructions.
func reduce8(v *[8]float32) float32 {
	a, b, c, d := v[0]+v[4], v[1]+v[5], v[2]+v[6], v[3]+v[7]
	return (a + c) + (b + d)
}

// dot returns the float dot product of a and b.
func dot(a, b []float32) float32 {
	var acc [lanes]float32
	accumulate(&acc, a, b)
	return reduce16(&acc)
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

// decodeWith returns the conversion of a quantised type by its reference, dtype.Dequantize.
func decodeWith(t dtype.Type) func(dst []float32, src []byte) {
	return func(dst []float32, src []byte) {
		size, _ := t.Bytes(uint64(len(dst)))
		// The lengths match by construction, and the type has a decoder.
		_ = dtype.Dequantize(t, dst, src[:size])
	}
}

// fp8ToF32 converts len(dst) elements of E4M3 and multiplies them by scale.
func fp8ToF32(dst []float32, src []byte, scale float32) {
	for i := range dst {
		dst[i] = float32(dtype.E4M3(src[i]) * scale)
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

// addScaledF16 adds weighted rows of v to accumulators: acc[i] += w[i][j] * v[j] with fused
// operations, in the order of j. acc is [len(acc)/n, n], v is [m, n] float16, and each row of w
// has m elements; rows are wStride apart.
func addScaledF16(acc []float32, n int, v []byte, m int, w []float32, wStride int) {
	for i := 0; (i+1)*n <= len(acc) && n > 0; i++ {
		acc, w := acc[i*n:][:n], w[i*wStride:][:m]
		for j, s := range w {
			row := v[2*j*n:][:2*n]
			for i := range acc {
				acc[i] = fma32(s, dtype.F16ToF32(binary.LittleEndian.Uint16(row[2*i:])), acc[i])
			}
		}
	}
}

// kvQ8 converts a row of int8 with a scale per block of 32. The conversion is exact because a
// float16 has 11 bits.
func kvQ8(dst []float32, q []int8, scales []float32) {
	for i := range dst {
		dst[i] = float32(float32(q[i]) * scales[i/blockElems])
	}
}

// dotQ8 computes y[j*yStride+i] = dot(row i of w, row j of x) for n consecutive rows of int8 with
// a scale per block of 32.
func dotQ8(y []float32, yStride int, w []byte, scales []float32, n int, x *floatInput) {
	q, blocks := int8s(w), x.in/blockElems
	for j := 0; j < x.rows; j += len(x.sums) {
		sums := x.sums[:min(len(x.sums), x.rows-j)]
		for i := range n {
			clear(sums)
			for at := 0; at < x.in; at += len(x.buf) {
				buf := x.buf[:min(len(x.buf), x.in-at)]
				kvQ8(buf, q[i*x.in+at:], scales[i*blocks+at/blockElems:])
				for k := range sums {
					accumulate(&sums[k], buf, x.row(j + k)[at:])
				}
			}
			for k := range sums {
				y[(j+k)*yStride+i] = reduce16(&sums[k])
			}
		}
	}
}

// addScaledQ8 is addScaledF16 for rows of int8 with a scale per block of 32.
func addScaledQ8(acc []float32, n int, v []byte, scales []float32, m int, w []float32, wStride int) {
	q := int8s(v)
	for i := 0; (i+1)*n <= len(acc) && n > 0; i++ {
		acc, w := acc[i*n:][:n], w[i*wStride:][:m]
		for j, s := range w {
			row, scales := q[j*n:][:n], scales[j*n/blockElems:]
			for i := range acc {
				acc[i] = fma32(s, float32(float32(row[i])*scales[i/blockElems]), acc[i])
			}
		}
	}
}
