package dtype

import (
	"encoding/binary"
	"fmt"
	"math"
)

// RandomBlocks fills dst with valid random blocks of a quantised type, for test weights of types
// that [Quantize] does not support. Quants are uniformly distributed. Scales are finite, and the
// largest is about three times the smallest. The mean of the elements is about zero, and their
// standard deviation about std. The same seed gives the same bytes on every machine.
//
// If len(dst) is not a multiple of the block size, the error is a [SizeError]; for a type without
// blocks it is an [UnsupportedError]. std must be positive and at most 1000, so that float16 scales
// are finite.
func RandomBlocks(t Type, dst []byte, seed uint64, std float32) error {
	if !t.Valid() || randomizers[t].scale == nil {
		return &UnsupportedError{Op: "random blocks", Type: t}
	}
	_, size := t.Block()
	if len(dst)%size != 0 {
		return &SizeError{Op: "random blocks", Type: t, Elems: -1, Bytes: len(dst)}
	}
	if !(std > 0 && std <= 1000) {
		return fmt.Errorf("dtype: random blocks %s: standard deviation %v is not within (0, 1000]", t, std)
	}
	r := splitMix{state: seed}
	fill := randomizers[t]
	unit := std / (fill.deviation * jitterDeviation)
	for len(dst) > 0 {
		b := dst[:size:size]
		r.bytes(b)
		// The scale is written last. It overwrites random bytes, which could be an infinite scale.
		fill.scale(b, unit*r.jitter(), &r)
		dst = dst[size:]
	}
	return nil
}

// randomizer completes a block of random bytes. scale writes the block's scale, and its minimum and
// integer scales if it has them. deviation is the standard deviation of the block's elements if the
// scale is 1 and the quants are uniformly distributed.
type randomizer struct {
	deviation float32
	scale     func(b []byte, d float32, r *splitMix)
}

// randomizers holds the randomizer of each type, derived from its declaration.
var randomizers = func() (of [count]randomizer) {
	for _, f := range formOf {
		if f != nil && f.Elems > 1 {
			of[f.Type] = randomizer{f.Deviation, f.random}
		}
	}
	return of
}()

// random writes the scales and minimums of a block of random bytes.
func (f *Form) random(b []byte, d float32, r *splitMix) {
	bits := 0
	for _, q := range f.Quants {
		bits += q.Bits
	}
	middle := float32(int(1)<<bits-1) / 2
	if f.Codes == 3 {
		f.randomTrits(b)
	}
	switch {
	case f.ScaleType == HalfUE4M3:
		for i := range f.Parts() {
			b[f.scales[0].at[i]] = max(F32ToUE4M3(2*d), 1)
		}
	case f.D == HalfE8M0:
		b[f.DAt] = randomE8M0(d, r)
	case f.Minimum && f.PackedTile:
		f.randomScales(b, d, middle)
	case f.Minimum && f.Sub > 0:
		randomK4(b, d, middle)
	case f.Minimum:
		putHalf(b[f.DAt:], d)
		putHalf(b[f.MAt:], -middle*d)
	case f.Signed || f.Sub > 0:
		putHalf(b[f.DAt:], d)
	default:
		putHalf(b[f.DAt:], r.sign(d))
	}
}

// randomTrits replaces random bytes of ternary quants by bytes that an encoder can write.
func (f *Form) randomTrits(b []byte) {
	if f.Quants[0].Bits > 0 {
		for i, n := range b[:f.Elems/4] {
			n %= 81
			b[i] = n%3 | n/3%3<<2 | n/9%3<<4 | n/27<<6
		}
		return
	}
	var v [256]uint8
	readFields(v[:], f.quants, b)
	PutTrits(b, &v)
}

// randomScales gives each part a scale of 8 to 15 and the same minimum, and the block
// the ratio that centres the quants.
func (f *Form) randomScales(b []byte, d, middle float32) {
	parts := f.Parts()
	for i, s := range b[:parts] {
		s = s&7 | 8
		b[i] = s | s<<4
	}
	putHalf(b[f.DAt:], d)
	putHalf(b[f.MAt:], middle*d)
}

// randomK4 is like randomScales for the packing packedK4. Scales and minimums are 32 to 63, and
// each scale equals its minimum.
func randomK4(b []byte, d, middle float32) {
	putHalf(b, d)
	putHalf(b[2:], middle*d)
	scales := b[4:16]
	for s := range 4 {
		first := scales[s]&31 | 32
		second := scales[s+4]&31 | 32
		scales[s] = first | second>>4<<6
		scales[s+4] = first | second>>4<<6
		scales[s+8] = second&15 | second<<4
	}
}

// randomE8M0 picks one of the two powers of two around d, so that the mean of the
// squares is d squared.
func randomE8M0(d float32, r *splitMix) byte {
	frac, exp := math.Frexp(float64(d)) // d = frac * 2^exp, frac in [0.5, 1)
	if upper := (float64(4*frac*frac) - 1) / 3; r.unit() >= float32(upper) {
		exp--
	}
	return byte(min(max(exp+128, 0), 254))
}

// jitterDeviation is the root mean square of splitMix.jitter, which is uniform
// in [0.5, 1.5).
const jitterDeviation = 1.0408

// splitMix is the generator SplitMix64. It is fast, its state is one word, and every seed is
// suitable.
type splitMix struct{ state uint64 }

func (r *splitMix) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// unit returns a uniform multiple of 2^-24 in [0, 1).
func (r *splitMix) unit() float32 { return float32(r.next()>>40) * (1.0 / (1 << 24)) }

// jitter returns a uniform factor in [0.5, 1.5).
func (r *splitMix) jitter() float32 { return 0.5 + r.unit() }

// sign returns d or -d.
func (r *splitMix) sign(d float32) float32 {
	return math.Float32frombits(math.Float32bits(d) ^ uint32(r.next()>>63)<<31)
}

// bytes fills b.
func (r *splitMix) bytes(b []byte) {
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.next())
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], r.next())
		copy(b, last[:])
	}
}
