package dtype

import (
	"encoding/binary"
	"math"
)

// Dequantize converts the elements stored in src to float32, in order. src is
// a whole number of blocks and dst has exactly as many elements as they hold.
// Every floating-point and quantised type converts; F64 rounds. Integer types
// give an [UnsupportedError], wrong lengths a [SizeError].
//
// Products and sums round separately (the explicit conversions keep the
// compiler from fusing them), as in ggml's dequantize_row functions, so that
// every machine gives the same bits.
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

// decoders convert one block each. The layouts are the structs of ggml's
// ggml-common.h; fields are named as there.
var decoders = [count]func(dst []float32, b []byte){
	F32:    decodeF32,
	F16:    func(dst []float32, b []byte) { dst[0] = half(b) },
	BF16:   func(dst []float32, b []byte) { dst[0] = BF16ToF32(binary.LittleEndian.Uint16(b)) },
	F64:    decodeF64,
	Q8_0:   decodeQ8_0,
	Q4_0:   decodeQ4_0,
	Q4_1:   decodeQ4_1,
	Q5_0:   decodeQ5_0,
	Q5_1:   decodeQ5_1,
	Q2_K:   decodeQ2_K,
	Q3_K:   decodeQ3_K,
	Q4_K:   decodeQ4_K,
	Q5_K:   decodeQ5_K,
	Q6_K:   decodeQ6_K,
	IQ4_NL: decodeIQ4_NL,
	IQ4_XS: decodeIQ4_XS,
	MXFP4:  decodeMXFP4,
}

// half reads the float16 at the start of b.
func half(b []byte) float32 { return F16ToF32(binary.LittleEndian.Uint16(b)) }

func decodeF32(dst []float32, b []byte) {
	dst[0] = math.Float32frombits(binary.LittleEndian.Uint32(b))
}

func decodeF64(dst []float32, b []byte) {
	dst[0] = float32(math.Float64frombits(binary.LittleEndian.Uint64(b)))
}

// d, qs[32]int8: d*q.
func decodeQ8_0(dst []float32, b []byte) {
	d, qs := half(b), b[2:34]
	for i, q := range qs {
		dst[i] = d * float32(int8(q))
	}
}

// d, qs[16]: d*(q-8). Byte j holds element j low and element j+16 high, as in
// every block of 32 below.
func decodeQ4_0(dst []float32, b []byte) {
	d, qs := half(b), b[2:18]
	for j, q := range qs {
		dst[j] = d * float32(int(q&15)-8)
		dst[j+16] = d * float32(int(q>>4)-8)
	}
}

// d, m, qs[16]: d*q + m.
func decodeQ4_1(dst []float32, b []byte) {
	d, m, qs := half(b), half(b[2:]), b[4:20]
	for j, q := range qs {
		dst[j] = float32(d*float32(q&15)) + m
		dst[j+16] = float32(d*float32(q>>4)) + m
	}
}

// d, qh[4], qs[16]: d*(q-16); bit i of qh is the fifth bit of element i.
func decodeQ5_0(dst []float32, b []byte) {
	d, qh, qs := half(b), binary.LittleEndian.Uint32(b[2:]), b[6:22]
	for j, q := range qs {
		dst[j] = d * float32(int(q&15|fifth(qh, j))-16)
		dst[j+16] = d * float32(int(q>>4|fifth(qh, j+16))-16)
	}
}

// d, m, qh[4], qs[16]: d*q + m.
func decodeQ5_1(dst []float32, b []byte) {
	d, m, qh, qs := half(b), half(b[2:]), binary.LittleEndian.Uint32(b[4:]), b[8:24]
	for j, q := range qs {
		dst[j] = float32(d*float32(q&15|fifth(qh, j))) + m
		dst[j+16] = float32(d*float32(q>>4|fifth(qh, j+16))) + m
	}
}

// fifth returns bit i of qh in the place of a quant's fifth bit.
func fifth(qh uint32, i int) byte { return byte(qh>>i&1) << 4 }

// scales[16] (scale low, min high), qs[64], d, dmin: d*scale*q - dmin*min in
// sub-blocks of 16. Each 32 bytes of qs hold 128 elements, two bits at a time.
func decodeQ2_K(dst []float32, b []byte) {
	scales, qs, d, dmin := b[:16], b[16:80], half(b[80:]), half(b[82:])
	for s, sc := range scales {
		scale, min := float32(d*float32(sc&15)), float32(dmin*float32(sc>>4))
		q, shift := qs[s/8*32+s%2*16:][:16], s%8/2*2
		for l := range 16 {
			dst[s*16+l] = float32(scale*float32(q[l]>>shift&3)) - min
		}
	}
}

// hmask[32], qs[64], scales[12], d: d*(scale-32)*q in sub-blocks of 16, where
// q is two bits of qs, less four if its bit of hmask is clear.
func decodeQ3_K(dst []float32, b []byte) {
	hmask, qs, scales, d := b[:32], b[32:96], b[96:108], half(b[108:])
	for s := range 16 {
		scale := d * float32(int(scaleQ3_K(scales, s))-32)
		at := s % 2 * 16
		q, h := qs[s/8*32+at:][:16], hmask[at:][:16]
		shift, bit := s%8/2*2, s/2
		for l := range 16 {
			v := int(q[l] >> shift & 3)
			if h[l]>>bit&1 == 0 {
				v -= 4
			}
			dst[s*16+l] = scale * float32(v)
		}
	}
}

// scaleQ3_K returns scale s of 16, six bits: the low four in the first eight
// bytes, the high two in the last four.
func scaleQ3_K(scales []byte, s int) byte {
	return scales[s%8]>>(s/8*4)&15 | scales[8+s%4]>>(s/4*2)&3<<4
}

// scaleMinK4 returns scale and min s of 8, six bits each, as Q4_K and Q5_K
// pack them in 12 bytes (get_scale_min_k4).
func scaleMinK4(scales []byte, s int) (scale, min byte) {
	if s < 4 {
		return scales[s] & 63, scales[s+4] & 63
	}
	return scales[s+4]&15 | scales[s-4]>>6<<4, scales[s+4]>>4 | scales[s]>>6<<4
}

// d, dmin, scales[12], qs[128]: d*scale*q - dmin*min in sub-blocks of 32. Each
// 32 bytes of qs hold one sub-block low and the next one high.
func decodeQ4_K(dst []float32, b []byte) {
	d, dmin, scales, qs := half(b), half(b[2:]), b[4:16], b[16:144]
	for s := range 8 {
		sc, m := scaleMinK4(scales, s)
		scale, min := float32(d*float32(sc)), float32(dmin*float32(m))
		q, shift := qs[s/2*32:][:32], s%2*4
		for l := range 32 {
			dst[s*32+l] = float32(scale*float32(q[l]>>shift&15)) - min
		}
	}
}

// d, dmin, scales[12], qh[32], qs[128]: as Q4_K, with bit s of qh[l] the fifth
// bit of element l of sub-block s.
func decodeQ5_K(dst []float32, b []byte) {
	d, dmin, scales, qh, qs := half(b), half(b[2:]), b[4:16], b[16:48], b[48:176]
	for s := range 8 {
		sc, m := scaleMinK4(scales, s)
		scale, min := float32(d*float32(sc)), float32(dmin*float32(m))
		q, shift := qs[s/2*32:][:32], s%2*4
		for l := range 32 {
			v := q[l]>>shift&15 | qh[l]>>s&1<<4
			dst[s*32+l] = float32(scale*float32(v)) - min
		}
	}
}

// ql[128], qh[64], scales[16]int8, d: d*scale*(q-32) in sub-blocks of 16. Each
// half of 128 elements takes 64 bytes of ql and 32 of qh.
func decodeQ6_K(dst []float32, b []byte) {
	ql, qh, scales, d := b[:128], b[128:192], b[192:208], half(b[208:])
	for s := range 16 {
		scale := d * float32(int8(scales[s]))
		quarter, at := s%8/2, s%2*16
		lo := ql[s/8*64+quarter%2*32+at:][:16]
		hi := qh[s/8*32+at:][:16]
		loShift, hiShift := quarter/2*4, quarter*2
		for l := range 16 {
			v := lo[l]>>loShift&15 | hi[l]>>hiShift&3<<4
			dst[s*16+l] = scale * float32(int(v)-32)
		}
	}
}

// valuesIQ4 are the 16 levels of IQ4_NL and IQ4_XS (kvalues_iq4nl).
var valuesIQ4 = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// d, qs[16]: d*level.
func decodeIQ4_NL(dst []float32, b []byte) {
	decodeLevels(dst, half(b), &valuesIQ4, b[2:18])
}

// d, scales_h (uint16), scales_l[4], qs[128]: d*(scale-32)*level in sub-blocks
// of 32.
func decodeIQ4_XS(dst []float32, b []byte) {
	d, high, low, qs := half(b), binary.LittleEndian.Uint16(b[2:]), b[4:8], b[8:136]
	for s := range 8 {
		scale := low[s/2]>>(s%2*4)&15 | byte(high>>(s*2)&3)<<4
		decodeLevels(dst[s*32:][:32], d*float32(int(scale)-32), &valuesIQ4, qs[s*16:][:16])
	}
}

// valuesMXFP4 are the E2M1 values, doubled (kvalues_mxfp4).
var valuesMXFP4 = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// e (E8M0), qs[16]: 2^(e-127)*value; the table holds doubled values.
func decodeMXFP4(dst []float32, b []byte) {
	decodeLevels(dst, halfE8M0(b[0]), &valuesMXFP4, b[1:17])
}

// halfE8M0 returns 2^(e-128), exactly: half of the E8M0 scale e. Like ggml, it
// gives a number for 255, which the OCP specification reserves for NaN.
func halfE8M0(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e) // subnormal
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

// decodeLevels converts 32 elements that index a table of 16 levels.
func decodeLevels(dst []float32, d float32, levels *[16]float32, qs []byte) {
	for j, q := range qs {
		dst[j] = d * levels[q&15]
		dst[j+16] = d * levels[q>>4]
	}
}
