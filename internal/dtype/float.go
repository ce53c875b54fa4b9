package dtype

import "math"

// F16ToF32 converts IEEE 754 half precision to float32. The conversion is exact, also for
// subnormals, infinities and the payloads of NaN.
func F16ToF32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h>>10) & 0x1f
	man := uint32(h & 0x3ff)
	switch {
	case exp == 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	case exp != 0:
		return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
	default:
		// A subnormal is man * 2^-24; both factors and the product are exact.
		f := float32(man) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(f) | sign)
	}
}

// F32ToF16 converts to IEEE 754 half precision, rounding to nearest even.
// Values outside the range become infinities; NaN remains NaN.
func F32ToF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 | uint16(b>>13)&0x3ff
	case b >= 0x47800000: // 2^16 and up, and infinity
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: a subnormal or zero
		// Adding 0.5 aligns the value so that float32 rounding, to nearest
		// even, leaves man*2^-24 in the low bits.
		r := math.Float32bits(math.Float32frombits(b)+0.5) - 0x3f000000
		return sign | uint16(r)
	}
	b += 0xfff + b>>13&1
	return sign | uint16((b-0x38000000)>>13)
}

// BF16ToF32 converts bfloat16, exactly.
func BF16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32ToBF16 converts to bfloat16, rounding to nearest even; NaN remains NaN.
func F32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// F32ToUE4M3 returns the unsigned E4M3 number nearest to f, rounded as ggml does: ties are rounded
// up, numbers above 448 become 448, and zero, negative numbers and NaN become 0.
func F32ToUE4M3(f float32) byte {
	if !(f > 0) {
		return 0
	}
	bits := math.Float32bits(min(f, 448))
	e, m := int(bits>>23)-127+7, byte(bits>>20&7)
	if e <= 0 {
		return byte(min(int(float32(f*512)+0.5), 7))
	}
	if m += byte(bits >> 19 & 1); m > 7 {
		m, e = 0, e+1
	}
	if e >= 15 {
		return 0x7e
	}
	return byte(e)<<3 | m
}
