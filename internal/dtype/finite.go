package dtype

import (
	"encoding/binary"
	"math"
)

// NotFinite counts the NaN and infinite numbers of b, whole blocks of a type. A block with
// such a scale counts once. NotFinite also returns the index of the first element that such
// a number affects. Integers are always finite.
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
	case FormOf(t) != nil && elems > 1:
		bad = FormOf(t).notFinite
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

// notFinite reports whether a scale of a block is NaN or infinite.
func (f *Form) notFinite(b []byte) bool {
	for _, at := range f.Offsets() {
		if binary.LittleEndian.Uint16(b[at:])&0x7c00 == 0x7c00 {
			return true
		}
	}
	if f.D == HalfE8M0 && b[f.DAt] == 0xff {
		return true
	}
	if f.ScaleType == HalfUE4M3 {
		for _, at := range f.scales[0].at {
			if b[at]&0x7f == 0x7f {
				return true
			}
		}
	}
	return false
}
