package dtype

import (
	"encoding/binary"
	"math"
)

// scaleHalves are where the blocks of a type have numbers in half precision.
var scaleHalves = [count][]int{
	Q8_0: {0}, Q4_0: {0}, Q4_1: {0, 2}, Q5_0: {0}, Q5_1: {0, 2}, Q2_K: {80, 82}, Q3_K: {108}, Q4_K: {0, 2}, Q5_K: {0, 2}, Q6_K: {208},
	IQ4_NL: {0}, IQ4_XS: {0},
}

// NotFinite counts the numbers of b, whole blocks of a type, that are NaN or
// infinite: elements, or scales of blocks, which stand for all of their elements. It
// returns the first element too. Integers are finite.
func NotFinite(t Type, b []byte) (n, first int) {
	elems, size := t.Block()
	if size == 0 {
		return 0, 0
	}
	var bad func(b []byte) bool
	word16 := func(exponent uint16) func(b []byte) bool {
		return func(b []byte) bool { return binary.LittleEndian.Uint16(b)&exponent == exponent }
	}
	f16 := word16(0x7c00)
	float := func(b []byte) bool { return binary.LittleEndian.Uint32(b)&0x7f800000 == 0x7f800000 }
	switch {
	case t == F32:
		bad = float
	case t == F16:
		bad = f16
	case t == BF16:
		bad = word16(0x7f80)
	case t == F64:
		bad = func(b []byte) bool {
			v := math.Float64frombits(binary.LittleEndian.Uint64(b))
			return math.IsInf(v, 0) || v != v
		}
	case t == MXFP4:
		bad = func(b []byte) bool { return b[0] == 0xff }
	case len(scaleHalves[t]) > 0:
		at := scaleHalves[t]
		bad = func(b []byte) bool { return f16(b[at[0]:]) || len(at) > 1 && f16(b[at[1]:]) }
	default:
		return 0, 0
	}
	for i := 0; i+size <= len(b); i += size {
		if bad(b[i:]) {
			if n == 0 {
				first = i / size * elems
			}
			n++
		}
	}
	return n, first
}
