package quantize

import (
	"encoding/binary"
	"math"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// The encoders write the scales first. Then they choose the quants again for the rounded scales,
// with which decoders multiply.

var (
	gridQ2_K  = newGrid(3, -0.5, 0.1, 15, true)
	gridQ4_K  = newGrid(15, -1, 0.1, 20, false)
	gridQ5_K  = newGrid(31, -0.5, 0.1, 15, false)
	spansQ6_K = newSpans(32)
)

// none holds the minimums of types without them.
var none [16]float32

// q2_K encodes 16 sub-blocks of 16 with scales and minima of four bits.
func (e *encoder) q2_K(b []byte, x []float32) {
	e.affine(e, gridQ2_K, x, 16)
	var sc, mn [16]uint8
	d := putScales(b[80:], sc[:], e.scale[:], 15)
	m := putScales(b[82:], mn[:], e.minimum[:], 15)
	for s := range 16 {
		b[s] = sc[s] | mn[s]<<4
		e.scale[s], e.minimum[s] = d*float32(sc[s]), m*float32(mn[s])
	}
	e.quants(e.q[:256], x, e.scale[:], e.minimum[:], 0, 3, 0)
	for h := range 2 {
		join(b[16+32*h:][:32], e.q[128*h:], 4, 32, bits{count: 2})
	}
}

// putScales writes the unit of integer scales up to top at b and sets n to the integers. It returns
// the unit as written.
func putScales(b []byte, n []uint8, scales []float32, top float32) float32 {
	var most float32
	for _, v := range scales {
		most = max(most, v)
	}
	if most <= 0 {
		clear(n)
		return putHalf(b, 0)
	}
	inverse := top / most
	for s, v := range scales {
		n[s] = uint8(clamp(inverse*v, 0, int32(top)))
	}
	return putHalf(b, most/top)
}

// bits selects count bits of a quant, from bit first on.
type bits struct{ first, count int }

// join sets each byte of dst to the selected bits of n quants, which are stride apart. The length of
// dst is a multiple of 8.
func join(dst []byte, q []uint8, n, stride int, of bits) {
	mask := 0x0101010101010101 * (uint64(1)<<of.count - 1)
	for i := 0; i < len(dst); i += 8 {
		var word uint64
		for j := range n {
			word |= binary.LittleEndian.Uint64(q[i+j*stride:]) >> of.first & mask << (j * of.count)
		}
		binary.LittleEndian.PutUint64(dst[i:], word)
	}
}

// q3_K encodes 16 sub-blocks of 16 with signed scales of six bits.
func (e *encoder) q3_K(b []byte, x []float32) {
	e.descend(e, x, 16, 4)
	hmask, qs, packed := b[:32], b[32:96], b[96:108]
	clear(b[96:])
	var d float32
	var six [16]int32
	if top := extreme(e.scale[:]); top != 0 {
		inverse := -32 / top
		for s, v := range e.scale {
			six[s] = clamp(inverse*v, -32, 31)
			n := uint8(six[s] + 32)
			packed[s%8] |= n & 15 << (s / 8 * 4)
			packed[8+s%4] |= n >> 4 << (s / 4 * 2)
		}
		d = putHalf(b[108:], 1/inverse)
	}
	for s := range 16 {
		e.scale[s] = d * float32(six[s])
	}
	e.quants(e.q[:256], x, e.scale[:], none[:], -4, 3, 4)
	for h := range 2 {
		join(qs[32*h:][:32], e.q[128*h:], 4, 32, bits{count: 2})
	}
	join(hmask, e.q[:], 8, 32, bits{2, 1})
}

// scaleK4 writes the scales and minima of a block of Q4_K or Q5_K, 8 sub-blocks of 32, in the layout
// of dtype's decoders. It replaces both by what was written.
func scaleK4(b []byte, scales, minima []float32) {
	var sc, mn [8]uint8
	d := putScales(b, sc[:], scales, 63)
	m := putScales(b[2:], mn[:], minima, 63)
	packed := b[4:16]
	for s := range 4 {
		packed[s] = sc[s] | sc[s+4]>>4<<6
		packed[s+4] = mn[s] | mn[s+4]>>4<<6
		packed[s+8] = sc[s+4]&15 | mn[s+4]&15<<4
	}
	for s := range 8 {
		scales[s], minima[s] = d*float32(sc[s]), m*float32(mn[s])
	}
}

func (e *encoder) q4_K(b []byte, x []float32) {
	e.affine(e, gridQ4_K, x, 32)
	for k := 0; len(b) > 0; k, b, x = k+8, b[144:], x[256:] {
		scale, minimum := e.scale[k:k+8], e.minimum[k:k+8]
		scaleK4(b, scale, minimum)
		e.quants(e.q[:256], x[:256], scale, minimum, 0, 15, 0)
		for j := range 4 {
			join(b[16+32*j:][:32], e.q[64*j:], 2, 32, bits{count: 4})
		}
	}
}

func (e *encoder) q5_K(b []byte, x []float32) {
	e.affine(e, gridQ5_K, x, 32)
	for k := 0; len(b) > 0; k, b, x = k+8, b[176:], x[256:] {
		scale, minimum := e.scale[k:k+8], e.minimum[k:k+8]
		scaleK4(b, scale, minimum)
		e.quants(e.q[:256], x[:256], scale, minimum, 0, 31, 0)
		join(b[16:48], e.q[:], 8, 32, bits{4, 1})
		for j := range 4 {
			join(b[48+32*j:][:32], e.q[64*j:], 2, 32, bits{count: 4})
		}
	}
}

// q6_K encodes 16 sub-blocks of 16 with signed scales of eight bits.
func (e *encoder) q6_K(b []byte, x []float32) {
	e.symmetric(e, spansQ6_K, x, 16)
	top := extreme(e.scale[:])
	if abs(top) < tiny {
		clear(b)
		return
	}
	inverse := -128 / top
	d := putHalf(b[208:], 1/inverse)
	for s, v := range e.scale {
		n := min(nearest(inverse*v), 127)
		b[192+s] = byte(int8(n))
		e.scale[s] = d * float32(n)
	}
	e.quants(e.q[:256], x, e.scale[:], none[:], -32, 31, 32)
	for h := range 2 {
		join(b[64*h:][:64], e.q[128*h:], 2, 64, bits{count: 4})
		join(b[128+32*h:][:32], e.q[128*h:], 4, 32, bits{4, 2})
	}
}

func (e *encoder) iq4_NL(b []byte, x []float32) {
	e.levels(e, x, 32)
	n := len(x) / 32
	for s, scale := range e.scale[:n] {
		putHalf(b[18*s:], scale)
		e.scale[s] = 0
		if scale != 0 {
			e.scale[s] = 1 / scale
		}
	}
	e.levelQuants(e.q[:len(x)], x, e.scale[:n])
	for s := range n {
		join(b[18*s+2:][:16], e.q[32*s:], 2, 16, bits{count: 4})
	}
}

// iq4_XS encodes 8 sub-blocks of 32 with signed scales of six bits.
func (e *encoder) iq4_XS(b []byte, x []float32) {
	e.levels(e, x, 32)
	for k := 0; len(b) > 0; k, b, x = k+8, b[136:], x[256:] {
		scales := e.scale[k : k+8]
		clear(b[:8])
		d := -extreme(scales) / 32
		putHalf(b, d)
		var id float32
		if d != 0 {
			id = 1 / d
		}
		for s, v := range scales {
			n := clamp(id*v, -32, 31)
			scales[s] = 0
			if scale := d * float32(n); scale != 0 {
				scales[s] = 1 / scale
			}
			six := uint16(n + 32)
			b[4+s/2] |= byte(six&15) << (s % 2 * 4)
			b[2+s/4] |= byte(six>>4) << (s % 4 * 2)
		}
		e.levelQuants(e.q[:256], x[:256], scales)
		for s := range 8 {
			join(b[8+16*s:][:16], e.q[32*s:], 2, 16, bits{count: 4})
		}
	}
}

// mxfp4 chooses as scale the power of two that brings the extreme element between 4 and 8,
// as the OCP specification of microscaling formats prescribes; E2M1 represents values up to 6.
func (*encoder) mxfp4(b []byte, x []float32) {
	e := uint8(0)
	if top := abs(extreme(x)); top > 0 {
		_, exp := math.Frexp(float64(top)) // top = frac * 2^exp, frac in [0.5, 1)
		e = uint8(min(max(exp-1-2+127, 0), 254))
	}
	b[0] = e
	codes := newE2M1s(math.Ldexp(1, int(e)-127))
	for i := range 16 {
		b[1+i] = codes.code(x[i]) | codes.code(x[i+16])<<4
	}
}

// nvfp4 encodes 4 sub-blocks of 16 with UE4M3 scales. A scale maps the extreme element to 6,
// the largest value of E2M1. The elements are rounded to the values nearest for the rounded scale.
func (*encoder) nvfp4(b []byte, x []float32) {
	for s := range 4 {
		sub := x[16*s:][:16]
		b[s] = dtype.F32ToUE4M3(abs(extreme(sub)) / 6)
		unit := math.Ldexp(float64(dtype.UE4M3Half(b[s])), -9)
		if unit == 0 {
			clear(b[4+8*s:][:8])
			continue
		}
		codes := newE2M1s(unit)
		for i := range 8 {
			b[4+8*s+i] = codes.code(sub[i]) | codes.code(sub[8+i])<<4
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

// tq1_0 encodes a block of 256 elements with five digits of base 3 per byte.
func (*encoder) tq1_0(b []byte, x []float32) {
	q, d := ternary(x)
	dtype.PutTrits(b, &q)
	putHalf(b[52:], d)
}

// tq2_0 encodes a block of 256 elements with four pairs of bits per byte.
func (*encoder) tq2_0(b []byte, x []float32) {
	q, d := ternary(x)
	clear(b)
	for i, v := range q {
		b[i/128*32+i%32] |= v & 3 << (i / 32 % 4 * 2)
	}
	putHalf(b[64:], d)
}

// halves are the numbers halfway between the magnitudes of E2M1.
var halves = [7]float64{0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5}

// e2m1s holds the bits of the numbers halfway between the magnitudes of E2M1 times a unit.
type e2m1s [7]int32

// newE2M1s returns the halves for a unit with few significant bits, so that the products are exact.
func newE2M1s(unit float64) (e e2m1s) {
	for i, v := range halves {
		e[i] = int32(math.Float32bits(float32(v * unit)))
	}
	return e
}

// code returns the code of the value nearest to v; of two equally near values, the one with the
// smaller magnitude. It compares bits, which have the order of magnitudes, and has no branches,
// because a processor could not predict them.
func (e *e2m1s) code(v float32) uint8 {
	b := math.Float32bits(v)
	magnitude, code := int32(b&^(1<<31)), uint32(0)
	for _, half := range e {
		code += uint32(half-magnitude) >> 31
	}
	return uint8(code | (code+7)&(b>>28)&8) // there is no negative zero
}
