package quantize

import (
	"math"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// The encoders write the scales first. Then they choose the quants again for the rounded scales,
// with which decoders multiply.

// encodeQ2_K encodes 16 sub-blocks of 16 with scales and minima of four bits.
func encodeQ2_K(b []byte, x []float32) {
	g := grid{top: 3, first: -0.5, step: 0.1, steps: 15, absolute: true}
	var weights [16]float32
	var scales, minima [16]float32
	for s := range 16 {
		sub := x[s*16:][:16]
		for i, v := range sub {
			weights[i] = abs(v)
		}
		scales[s], minima[s] = g.affine(sub, weights[:])
	}
	clear(b)
	d := putScales(b[80:], scales[:], 15, func(s int, n uint8) { b[s] = n })
	m := putScales(b[82:], minima[:], 15, func(s int, n uint8) { b[s] |= n << 4 })
	for s := range 16 {
		scale, minimum := d*float32(b[s]&15), m*float32(b[s]>>4)
		at, shift := 16+s/8*32+s%2*16, s%8/2*2
		for i, v := range x[s*16:][:16] {
			b[at+i] |= quant(v, minimum, scale, 3) << shift
		}
	}
}

// putScales writes the unit of integer scales up to top at b, and each scale with put. It returns
// the unit as written.
func putScales(b []byte, scales []float32, top float32, put func(s int, n uint8)) float32 {
	var most float32
	for _, v := range scales {
		most = max(most, v)
	}
	if most <= 0 {
		return putHalf(b, 0)
	}
	inverse := top / most
	for s, v := range scales {
		put(s, uint8(clamp(inverse*v, 0, int32(top))))
	}
	return putHalf(b, most/top)
}

// quant returns the quant of v for a scale and a minimum. If the scale is zero, every quant
// decodes to the same value.
func quant(v, minimum, scale float32, top int32) uint8 {
	if scale == 0 {
		return 0
	}
	return uint8(clamp((v+minimum)/scale, 0, top))
}

// encodeQ3_K encodes 16 sub-blocks of 16 with signed scales of six bits.
func encodeQ3_K(b []byte, x []float32) {
	var scales [16]float32
	for s := range 16 {
		scales[s] = descend(x[s*16:][:16], 4)
	}
	clear(b)
	hmask, qs, packed := b[:32], b[32:96], b[96:108]
	var d float32
	var six [16]int32
	if top := extreme(scales[:]); top != 0 {
		inverse := -32 / top
		for s, v := range scales {
			six[s] = clamp(inverse*v, -32, 31)
			n := uint8(six[s] + 32)
			packed[s%8] |= n & 15 << (s / 8 * 4)
			packed[8+s%4] |= n >> 4 << (s / 4 * 2)
		}
		d = putHalf(b[108:], 1/inverse)
	}
	for s := range 16 {
		scale := d * float32(six[s])
		at, shift, bit := s%2*16, s%8/2*2, s/2
		for i, v := range x[s*16:][:16] {
			q := uint8(4)
			if scale != 0 {
				q = uint8(clamp(v/scale, -4, 3) + 4)
			}
			qs[s/8*32+at+i] |= q & 3 << shift
			hmask[at+i] |= q >> 2 << bit
		}
	}
}

// scaleK4 finds the scales and minima of Q4_K and Q5_K, 8 sub-blocks of 32, and writes them in
// the layout of dtype's decoders.
func scaleK4(b []byte, x []float32, g *grid) (scale, minimum [8]float32) {
	var scales, minima [8]float32
	var weights [32]float32
	for s := range 8 {
		sub := x[s*32:][:32]
		var squares float32
		for _, v := range sub {
			squares += float32(v * v)
		}
		mean := sqrt(squares / 32)
		for i, v := range sub {
			weights[i] = mean + abs(v)
		}
		scales[s], minima[s] = g.affine(sub, weights[:])
	}
	var sc, mn [8]uint8
	d := putScales(b, scales[:], 63, func(s int, n uint8) { sc[s] = n })
	m := putScales(b[2:], minima[:], 63, func(s int, n uint8) { mn[s] = n })
	packed := b[4:16]
	for s := range 4 {
		packed[s] = sc[s] | sc[s+4]>>4<<6
		packed[s+4] = mn[s] | mn[s+4]>>4<<6
		packed[s+8] = sc[s+4]&15 | mn[s+4]&15<<4
	}
	for s := range 8 {
		scale[s], minimum[s] = d*float32(sc[s]), m*float32(mn[s])
	}
	return scale, minimum
}

func encodeQ4_K(b []byte, x []float32) {
	scale, minimum := scaleK4(b, x, &grid{top: 15, first: -1, step: 0.1, steps: 20})
	qs := b[16:144]
	clear(qs)
	for s := range 8 {
		q, shift := qs[s/2*32:][:32], s%2*4
		for i, v := range x[s*32:][:32] {
			q[i] |= quant(v, minimum[s], scale[s], 15) << shift
		}
	}
}

func encodeQ5_K(b []byte, x []float32) {
	scale, minimum := scaleK4(b, x, &grid{top: 31, first: -0.5, step: 0.1, steps: 15})
	qh, qs := b[16:48], b[48:176]
	clear(b[16:])
	for s := range 8 {
		q, shift := qs[s/2*32:][:32], s%2*4
		for i, v := range x[s*32:][:32] {
			n := quant(v, minimum[s], scale[s], 31)
			q[i] |= n & 15 << shift
			qh[i] |= n >> 4 << s
		}
	}
}

// encodeQ6_K encodes 16 sub-blocks of 16 with signed scales of eight bits.
func encodeQ6_K(b []byte, x []float32) {
	var scales [16]float32
	for s := range 16 {
		scales[s] = symmetric(x[s*16:][:16], 32)
	}
	clear(b)
	top := extreme(scales[:])
	if abs(top) < tiny {
		return
	}
	ql, qh, packed := b[:128], b[128:192], b[192:208]
	inverse := -128 / top
	d := putHalf(b[208:], 1/inverse)
	for s := range 16 {
		n := min(nearest(inverse*scales[s]), 127)
		packed[s] = byte(int8(n))
		scale := d * float32(n)
		quarter, at := s%8/2, s%2*16
		lo := ql[s/8*64+quarter%2*32+at:][:16]
		hi := qh[s/8*32+at:][:16]
		for i, v := range x[s*16:][:16] {
			q := uint8(32)
			if scale != 0 {
				q = uint8(clamp(v/scale, -32, 31) + 32)
			}
			lo[i] |= q & 15 << (quarter / 2 * 4)
			hi[i] |= q >> 4 << (quarter * 2)
		}
	}
}

func encodeIQ4_NL(b []byte, x []float32) {
	scale := scaleOfLevels(x)
	putHalf(b, scale)
	var inverse float32
	if scale != 0 {
		inverse = 1 / scale
	}
	putLevels(b[2:18], x, inverse)
}

// encodeIQ4_XS encodes 8 sub-blocks of 32 with signed scales of six bits.
func encodeIQ4_XS(b []byte, x []float32) {
	var scales [8]float32
	for s := range 8 {
		scales[s] = scaleOfLevels(x[s*32:][:32])
	}
	clear(b)
	d := -extreme(scales[:]) / 32
	putHalf(b, d)
	var id float32
	if d != 0 {
		id = 1 / d
	}
	for s := range 8 {
		n := clamp(id*scales[s], -32, 31)
		var inverse float32
		if scale := d * float32(n); scale != 0 {
			inverse = 1 / scale
		}
		putLevels(b[8+s*16:][:16], x[s*32:][:32], inverse)
		six := uint16(n + 32)
		b[4+s/2] |= byte(six&15) << (s % 2 * 4)
		b[2+s/4] |= byte(six>>4) << (s % 4 * 2)
	}
}

// putLevels writes the levels nearest to inverse*x.
func putLevels(qs []byte, x []float32, inverse float32) {
	for i := range qs {
		qs[i] = levels.find(inverse*x[i]) | levels.find(inverse*x[i+16])<<4
	}
}

// encodeMXFP4 chooses as scale the power of two that brings the extreme element between 4 and 8,
// as the OCP specification of microscaling formats prescribes; E2M1 represents values up to 6.
func encodeMXFP4(b []byte, x []float32) {
	e := uint8(0)
	if top := abs(extreme(x)); top > 0 {
		_, exp := math.Frexp(float64(top)) // top = frac * 2^exp, frac in [0.5, 1)
		e = uint8(min(max(exp-1-2+127, 0), 254))
	}
	b[0] = e
	unit := math.Ldexp(1, int(e)-127)
	for i := range 16 {
		b[1+i] = e2m1(x[i], unit) | e2m1(x[i+16], unit)<<4
	}
}

// encodeNVFP4 encodes 4 sub-blocks of 16 with UE4M3 scales. A scale maps the extreme element to 6,
// the largest value of E2M1. The elements are rounded to the values nearest for the rounded scale.
func encodeNVFP4(b []byte, x []float32) {
	for s := range 4 {
		sub := x[16*s:][:16]
		b[s] = dtype.F32ToUE4M3(abs(extreme(sub)) / 6)
		unit := math.Ldexp(float64(dtype.UE4M3Half(b[s])), -9)
		if unit == 0 {
			clear(b[4+8*s:][:8])
			continue
		}
		for i := range 8 {
			b[4+8*s+i] = e2m1(sub[i], unit) | e2m1(sub[8+i], unit)<<4
		}
	}
}

// ternary returns the scale, which is the largest magnitude, and for each element -1, 0 or 1, plus
// 1. Halves round away from zero.
func ternary(x []float32) (q [256]uint8, d float32) {
	d = abs(extreme(x))
	var inverse float32
	if d >= 0x1p-126 { // the inverse of a smaller number can be infinite
		inverse = 1 / d
	}
	for i, v := range x {
		q[i] = uint8(math.Round(float64(float32(v*inverse))) + 1)
	}
	return q, d
}

// encodeTQ1_0 encodes a block of 256 elements with five digits of base 3 per byte.
func encodeTQ1_0(b []byte, x []float32) {
	q, d := ternary(x)
	dtype.PutTrits(b, &q)
	putHalf(b[52:], d)
}

// encodeTQ2_0 encodes a block of 256 elements with four pairs of bits per byte.
func encodeTQ2_0(b []byte, x []float32) {
	q, d := ternary(x)
	clear(b)
	for i, v := range q {
		b[i/128*32+i%32] |= v & 3 << (i / 32 % 4 * 2)
	}
	putHalf(b[64:], d)
}

// e2m1 returns the code of the value nearest to v; of two equally near values, the one with the
// smaller magnitude.
func e2m1(v float32, unit float64) uint8 {
	magnitude := float64(abs(v)) / unit
	code := uint8(0)
	for _, above := range [...]float64{0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5} {
		if magnitude <= above {
			break
		}
		code++
	}
	if v < 0 && code > 0 {
		code |= 8
	}
	return code
}
