package dtype

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Quantize encodes src in blocks, byte for byte as ggml's quantize_row_*_ref functions do.
// len(src) must be a multiple of the block size, and dst must have exactly the size of the
// result. Quantize supports F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1. It returns an
// [UnsupportedError] for other types, a [SizeError] for wrong lengths, and an error for an
// infinite element or NaN if the type is quantised.
func Quantize(t Type, dst []byte, src []float32) error {
	if !t.Valid() || encoders[t] == nil {
		return &UnsupportedError{Op: "quantize", Type: t}
	}
	if err := checkLengths("quantize", t, len(src), len(dst)); err != nil {
		return err
	}
	if t.Quantized() {
		for i, v := range src {
			if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
				return fmt.Errorf("dtype: quantize %s: element %d is %v", t, i, v)
			}
		}
	}
	elems, size := t.Block()
	encode := encoders[t]
	for len(src) > 0 {
		encode(dst[:size:size], src[:elems:elems])
		dst, src = dst[size:], src[elems:]
	}
	return nil
}

// CanQuantize reports whether [Quantize] supports the type.
func (t Type) CanQuantize() bool { return t.Valid() && encoders[t] != nil }

// encoders encode one block each, in the layouts of the decoders.
var encoders = [count]func(b []byte, src []float32){
	F32:  func(b []byte, src []float32) { binary.LittleEndian.PutUint32(b, math.Float32bits(src[0])) },
	F16:  func(b []byte, src []float32) { putHalf(b, src[0]) },
	BF16: func(b []byte, src []float32) { binary.LittleEndian.PutUint16(b, F32ToBF16(src[0])) },
	Q8_0: encodeQ8_0,
	Q4_0: encodeQ4_0,
	Q4_1: encodeQ4_1,
	Q5_0: encodeQ5_0,
	Q5_1: encodeQ5_1,
}

// putHalf writes f as float16 at the start of b.
func putHalf(b []byte, f float32) { binary.LittleEndian.PutUint16(b, F32ToF16(f)) }

// inverse returns 1/d, or zero for a block of zeros.
func inverse(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// abs clears the sign. math.Abs would require a conversion to float64 and back.
func abs(f float32) float32 { return math.Float32frombits(math.Float32bits(f) &^ (1 << 31)) }

// extreme returns the element of the largest magnitude, the first of equals,
// with its sign.
func extreme(src []float32) float32 {
	var most, magnitude float32
	for _, v := range src {
		if a := abs(v); a > magnitude {
			most, magnitude = v, a
		}
	}
	return most
}

// bounds returns the smallest and the largest element.
func bounds(src []float32) (lo, hi float32) {
	lo, hi = math.MaxFloat32, -math.MaxFloat32
	for _, v := range src {
		if v < lo {
			lo = v
		}
		if v > hi {
			hi = v
		}
	}
	return lo, hi
}

// The encoders divide by the float32 scale, not by its stored float16 value, as ggml does.

func encodeQ8_0(b []byte, src []float32) {
	d := abs(extreme(src)) / 127
	id := inverse(d)
	putHalf(b, d)
	qs := b[2:34]
	for i, v := range src {
		qs[i] = byte(roundHalfAway(float32(v * id)))
	}
}

// roundHalfAway is C's roundf for magnitudes below 2^22. It has no branches, because a processor
// could not predict them.
func roundHalfAway(f float32) int8 {
	n := int32(f) // towards zero; the rest is exact
	return int8(n + int32(2*(f-float32(n))))
}

func encodeQ4_0(b []byte, src []float32) {
	d := extreme(src) / -8
	id := inverse(d)
	putHalf(b, d)
	qs := b[2:18]
	for j := range qs {
		lo := level(src[j]*id, 8.5, 15)
		hi := level(src[j+16]*id, 8.5, 15)
		qs[j] = lo | hi<<4
	}
}

func encodeQ4_1(b []byte, src []float32) {
	least, most := bounds(src)
	d := (most - least) / 15
	id := inverse(d)
	putHalf(b, d)
	putHalf(b[2:], least)
	qs := b[4:20]
	for j := range qs {
		lo := level((src[j]-least)*id, 0.5, 15)
		hi := level((src[j+16]-least)*id, 0.5, 15)
		qs[j] = lo | hi<<4
	}
}

func encodeQ5_0(b []byte, src []float32) {
	d := extreme(src) / -16
	id := inverse(d)
	putHalf(b, d)
	var qh uint32
	qs := b[6:22]
	for j := range qs {
		lo := level(src[j]*id, 16.5, 31)
		hi := level(src[j+16]*id, 16.5, 31)
		qs[j] = lo&15 | hi<<4
		qh |= uint32(lo>>4)<<j | uint32(hi>>4)<<(j+16)
	}
	binary.LittleEndian.PutUint32(b[2:], qh)
}

func encodeQ5_1(b []byte, src []float32) {
	least, most := bounds(src)
	d := (most - least) / 31
	id := inverse(d)
	putHalf(b, d)
	putHalf(b[2:], least)
	var qh uint32
	qs := b[8:24]
	for j := range qs {
		lo := level((src[j]-least)*id, 0.5, 31)
		hi := level((src[j+16]-least)*id, 0.5, 31)
		qs[j] = lo&15 | hi<<4
		qh |= uint32(lo>>4)<<j | uint32(hi>>4)<<(j+16)
	}
	binary.LittleEndian.PutUint32(b[4:], qh)
}

// level returns the quant of a scaled element: element + offset, truncated to an integer, at most
// top. The sum is rounded separately; a fused multiply-add would give other results.
func level(scaled, offset float32, top int32) byte {
	return byte(min(top, int32(float32(scaled)+offset)))
}
