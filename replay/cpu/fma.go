package cpu

import "math"

// fma32 returns a*b + c, rounded once, like the fused instructions.
func fma32(a, b, c float32) float32 {
	if s := float64(float64(a)*float64(b)) + float64(c); !twiceRounded(s) {
		return float32(s)
	}
	return fma32Odd(a, b, c)
}

// twiceRounded reports whether converting s to float32 may differ from rounding the exact sum
// once. s is the float64 sum of a number and an exact product. It may differ only if s is halfway
// between two float32 values, or below the normal numbers, where float32 has fewer bits.
func twiceRounded(s float64) bool {
	const below, half, minNormal = 64 - 29, 1 << 63, (1023 - 126) << 53
	u := math.Float64bits(s)
	return u<<below == half || u<<1 < minNormal
}

// fma32Odd is fma32 for all values. It rounds the sum to odd, so that the second rounding gives
// the result of a single one (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums:
// proved algorithms using rounding to odd"). The rounding error of the sum is computed exactly,
// by Knuth's TwoSum.
func fma32Odd(a, b, c float32) float32 {
	p, d := float64(float64(a)*float64(b)), float64(c)
	s := p + d
	t := s - p
	e := (p - (s - t)) + (d - t)
	bits := math.Float64bits(s)
	// The error of an infinite sum is not a number.
	if (e < 0 || e > 0) && bits&1 == 0 {
		if (e > 0) == (s > 0) {
			bits++
		} else {
			bits--
		}
	}
	return float32(math.Float64frombits(bits))
}
