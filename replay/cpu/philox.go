package cpu

import (
	"math"
	"math/bits"
)

// philox4x32 is Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy
// as 1, 2, 3", SC11) of a counter and a key.
func philox4x32(c0, c1, c2, c3, k0, k1 uint32) (x0, x1, x2, x3 uint32) {
	const m0, m1, w0, w1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
	for range 10 {
		hi0, lo0 := bits.Mul32(m0, c0)
		hi1, lo1 := bits.Mul32(m1, c2)
		c0, c1, c2, c3 = hi1^c1^k0, lo1, hi0^c3^k1, lo0
		k0, k1 = k0+w0, k1+w1
	}
	return c0, c1, c2, c3
}

// philox returns the 64 random bits of a token at a place in the context: word 0, the high one,
// and word 1 of Philox with counter (id, place, 0, 0) and the seed as key.
func philox(seed uint64, id, place uint32) uint64 {
	hi, lo, _, _ := philox4x32(id, place, 0, 0, uint32(seed), uint32(seed>>32))
	return uint64(hi)<<32 | uint64(lo)
}

// philoxPair returns philox of two tokens. A processor computes them in parallel.
func philoxPair(seed uint64, id, other, place uint32) (r, s uint64) {
	const m0, m1, w0, w1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
	a0, a1, a2, a3 := id, place, uint32(0), uint32(0)
	b0, b1, b2, b3 := other, place, uint32(0), uint32(0)
	k0, k1 := uint32(seed), uint32(seed>>32)
	for range 10 {
		p, q := uint64(a0)*m0, uint64(a2)*m1
		u, v := uint64(b0)*m0, uint64(b2)*m1
		a0, a1, a2, a3 = uint32(q>>32)^a1^k0, uint32(q), uint32(p>>32)^a3^k1, uint32(p)
		b0, b1, b2, b3 = uint32(v>>32)^b1^k0, uint32(v), uint32(u>>32)^b3^k1, uint32(u)
		k0, k1 = k0+w0, k1+w1
	}
	return uint64(a0)<<32 | uint64(a1), uint64(b0)<<32 | uint64(b1)
}

// Constants of the logarithm, from Cephes' logf: the polynomial for (ln(1+f) - f + f²/2)/f³ with
// f from sqrt(1/2)-1 to sqrt(2)-1, and ln 2 in two parts.
const (
	logP0 = 7.0376836292e-2
	logP1 = -1.1514610310e-1
	logP2 = 1.1676998740e-1
	logP3 = -1.2420140846e-1
	logP4 = 1.4249322787e-1
	logP5 = -1.6668057665e-1
	logP6 = 2.0000714765e-1
	logP7 = -2.4999993993e-1
	logP8 = 3.3333331174e-1
)

// logNear returns ln(1 + f) for f from sqrt(1/2)-1 to sqrt(2)-1, with a relative error of about
// 2^-23, even for small f. GPUs compute the same bits: each product is either fused with a sum or
// separate.
func logNear(f float32) float32 {
	p := fma32(f, logP0, logP1)
	p = fma32(p, f, logP2)
	p = fma32(p, f, logP3)
	p = fma32(p, f, logP4)
	p = fma32(p, f, logP5)
	p = fma32(p, f, logP6)
	p = fma32(p, f, logP7)
	p = fma32(p, f, logP8)
	p = fma32(p, f, -0.5)
	z := float32(f * f)
	return fma32(p, z, f)
}

// log returns ln(x) of a normal x > 0.
func log(x float32) float32 {
	u := math.Float32bits(x)
	e := int32(u>>23) - 127
	m := math.Float32frombits(u&0x7fffff | 0x3f800000)
	if m > 1.41421356 {
		m *= 0.5
		e++
	}
	y := logNear(m - 1)
	n := float32(e)
	return fma32(n, ln2Hi, fma32(n, ln2Lo, y))
}

// fraction returns r / 2^64 rounded down to a float32 with 24 significant bits, however small it
// is. For r = 0 it returns 2^-65.
func fraction(r uint64) float32 {
	z := bits.LeadingZeros64(r | 1)
	top := uint32(r << z >> 40) // 24 bits, the first of them 1 unless r is 0
	if r == 0 {
		return math.Float32frombits((127 - 65) << 23)
	}
	return math.Float32frombits(top&0x7fffff | uint32(126-z)<<23)
}

// nearHalf is the high word of the value of v from which ln(1 - v) is computed from 1 - v. Below
// it, v itself is within logNear's range.
const nearHalf = 0x4b000000 // 0.293

// gumbel returns -ln(-ln(1 - v)) for v = fraction(r), a value from -3.8 to 45.1. A small v has 24
// significant bits, and so has a small 1 - v.
func gumbel(r uint64) float32 {
	var e float32
	if uint32(r>>32) < nearHalf {
		e = -logNear(-fraction(r))
	} else {
		e = -log(fraction(^r))
	}
	return -log(e)
}

// gumbelBound returns an upper bound of gumbel(r).
func gumbelBound(r uint64) float32 {
	// -ln(1 - v) > v >= 2^-(z + 1)
	return float32(bits.LeadingZeros64(r)+1)*0.69314724 + 1e-3
}

// weightTerms are (ln 2)^k / k! in units of 2^-32, for k from 8 down to 1.
var weightTerms = [...]uint32{5676, 65510, 661577, 5726720, 41309550, 238388332, 1031764991, 2977044472}

// weight returns 2^31 * 2^-(d * scale) as an integer, with a relative error of 2^-22 for large
// results. d and scale are not negative and their product is finite. All operations after the
// product are on integers, so GPUs compute the same.
func weight(d, scale float32) uint32 {
	y := float32(d * scale)
	if y >= 32 {
		return 0
	}
	q := uint32(y * (1 << 27))
	f := uint64(q << 5) // in units of 2^-32
	p := uint64(weightTerms[0])
	for _, c := range weightTerms[1:] {
		p = uint64(c) - p*f>>32
	}
	return (1<<31 - uint32(p*f>>33)) >> (q >> 27)
}
