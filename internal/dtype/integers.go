package dtype

import (
	"encoding/binary"
	"math"
)

// Integers is one block of a quantised type, unpacked: element i is
// D*Scale[i/16]*Q[i] + M*Min[i/16].
type Integers struct {
	D, M       float32
	Scale, Min [256 / 16]int32
	Q          [256]int8
}

// Split unpacks a block to v. If the type has no integer scales or minimums, they become 1.
func (f *Form) Split(v *Integers, block []byte) {
	var n [256]uint8
	q := v.Q[:f.Elems]
	readFields(n[:f.Elems], f.quants, block)
	switch zero := int8(f.Zero); {
	case f.Levels != nil:
		for i := range q {
			q[i] = f.Levels[n[i]&15]
		}
	default:
		for i := range q {
			q[i] = int8(n[i]) - zero
		}
	}
	v.D, v.M = f.floats(block)
	f.splitScales(v, block)
}

// floats returns D and M of a block.
func (f *Form) floats(block []byte) (d, m float32) {
	switch f.D {
	case Half:
		d = half(block[f.DAt:])
	case HalfE8M0:
		d = E8M0Half(block[f.DAt])
	case Constant:
		d = ConstantScale
	}
	if f.Minimum {
		if m = half(block[f.MAt:]); len(f.Scales) > 0 {
			m = -m
		}
	}
	return d, m
}

// splitScales sets the scales and minimums of v.
func (f *Form) splitScales(v *Integers, block []byte) {
	parts := f.Parts()
	if parts == 0 {
		for i := range f.Elems / 16 {
			v.Scale[i], v.Min[i] = 1, 1
		}
		return
	}
	var n [32]uint8
	items := len(f.scales[0].at)
	readFields(n[:items], f.scales, block)
	per := f.Sub / 16
	for i := range parts * per {
		v.Scale[i], v.Min[i] = f.scale(n[i/per]), 1
		if f.Minimum {
			v.Min[i] = int32(n[parts+i/per])
		}
	}
}

// scale returns the value of an integer scale.
func (f *Form) scale(n uint8) int32 {
	switch f.ScaleType {
	case Signed:
		return int32(int8(n))
	case HalfUE4M3:
		return UE4M3Half(n)
	}
	return int32(n) - int32(f.ScaleZero)
}

// decode converts a block to float32. Each product and each sum is rounded.
func (f *Form) decode(dst []float32, block []byte) {
	var v Integers
	f.Split(&v, block)
	for s := range f.Elems / 16 {
		d := float32(v.D * float32(v.Scale[s]))
		q, dst := v.Q[16*s:][:16], dst[16*s:][:16]
		if !f.Minimum {
			for i := range dst {
				dst[i] = d * float32(q[i])
			}
			continue
		}
		m := float32(v.M * float32(v.Min[s]))
		for i := range dst {
			dst[i] = float32(d*float32(q[i])) + m
		}
	}
}

// E8M0Half returns 2^(e-128), half of the E8M0 scale e, exactly. Like ggml, it returns a
// number for 255, the code that the OCP specification reserves for NaN.
func E8M0Half(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e) // subnormal
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

// UE4M3Half returns half of an unsigned E4M3 number in units of 2^-10. Like ggml, it
// ignores the sign bit and returns 0 for the code of NaN.
func UE4M3Half(b byte) int32 {
	e, m := b>>3&15, int32(b&7)
	switch {
	case b == 0x7f:
		return 0
	case e == 0:
		return m
	}
	return (8 + m) << (e - 1)
}

// half reads the float16 at the start of b.
func half(b []byte) float32 { return F16ToF32(binary.LittleEndian.Uint16(b)) }
