package cpu

import (
	"encoding/binary"
	"math"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// minScale is the smallest normal float32. A smaller scale has no reliable inverse and counts as
// 0.
const minScale = 0x1p-126

// roundMagic is 1.5 * 2^23. Adding it to a float32 of magnitude below 2^22 leaves the rounded
// integer in the low bits.
const roundMagic = 0x1.8p23

// quantize sets q and d to the 8-bit form of x: blocks of 32 with a scale each.
func quantize(q []int8, d, x []float32) {
	for b := range d {
		x := x[b*blockElems:][:blockElems]
		q := q[b*blockElems:][:blockElems]
		var amax float32
		for _, v := range x {
			if a := math.Float32frombits(math.Float32bits(v) &^ (1 << 31)); a > amax {
				amax = a
			}
		}
		scale := amax / 127
		var inverse float32
		if scale >= minScale {
			inverse = 1 / scale
		} else {
			scale = 0
		}
		d[b] = scale
		for i, v := range x {
			v = float32(v * inverse)
			// In this form NaN, which infinite inputs produce, becomes 127.
			if !(v < 127) {
				v = 127
			}
			if !(v > -127) {
				v = -127
			}
			q[i] = int8(int32(math.Float32bits(v+roundMagic)) - int32(math.Float32bits(roundMagic)))
		}
	}
}

// rowsQ8_0 multiplies Q8_0 rows with quantised activations.
func rowsQ8_0(y []float32, w []byte, x *input) {
	const size = 2 + blockElems
	row := len(x.d) * size
	for i := range y {
		w := w[i*row:][:row]
		var acc [8]float32
		for b, dx := range x.d {
			block, q := w[b*size:][:size], x.q[b*blockElems:][:blockElems]
			scale := float32(dtype.F16ToF32(binary.LittleEndian.Uint16(block)) * dx)
			for l := range acc {
				w, q := block[2+4*l:][:4], q[4*l:][:4]
				part := int32(int8(w[0]))*int32(q[0]) + int32(int8(w[1]))*int32(q[1]) +
					int32(int8(w[2]))*int32(q[2]) + int32(int8(w[3]))*int32(q[3])
				acc[l] += float32(scale * float32(part))
			}
		}
		y[i] = reduce8(&acc)
	}
}

// rowsQ4_0 multiplies Q4_0 rows with quantised activations. Byte j of a block holds element j in
// its low bits and element j + 16 in its high bits.
func rowsQ4_0(y []float32, w []byte, x *input) {
	const size = 2 + blockElems/2
	row := len(x.d) * size
	for i := range y {
		w := w[i*row:][:row]
		var acc [8]float32
		for b, dx := range x.d {
			block, q := w[b*size:][:size], x.q[b*blockElems:][:blockElems]
			scale := float32(dtype.F16ToF32(binary.LittleEndian.Uint16(block)) * dx)
			for l := range acc {
				w, q, shift := block[2+4*l%16:][:4], q[4*l:][:4], l/4*4
				part := (int32(w[0]>>shift&15)-8)*int32(q[0]) + (int32(w[1]>>shift&15)-8)*int32(q[1]) +
					(int32(w[2]>>shift&15)-8)*int32(q[2]) + (int32(w[3]>>shift&15)-8)*int32(q[3])
				acc[l] += float32(scale * float32(part))
			}
		}
		y[i] = reduce8(&acc)
	}
}
