package cpu

import "math"

// fma32 returns a*b + c, rounded once, as the fused instructions do.
func fma32(a, b, c float32) float32 {
	if s := float64(float64(a)*float64(b)) + float64(c); !twiceRounded(s) {
		return float32(s)
	}
	return fma32Odd(a, b, c)
}

// twiceRounded reports whether the conversion of s to float32, which is the sum
// of a number and the exact product of two, rounded to float64, may differ from
// the sum rounded once. It does only where s is halfway between two float32,
// or where float32 has fewer bits, below the normal numbers.
func twiceRounded(s float64) bool {
	const below, half, minNormal = 64 - 29, 1 << 63, (1023 - 126) << 53
	u := math.Float64bits(s)
	return u<<below == half || u<<1 < minNormal
}

// fma32Odd is fma32 for all values: the sum is rounded to odd, so that the
// second rounding gives what a single one would (Boldo and Melquiond, "Emulation
// of FMA and correctly rounded sums: proved algorithms using rounding to odd").
// Its error is exact, by Knuth's TwoSum.
func fma32Odd(a, b, c float32) float32 {
	p, d := float64(float64(a)*float64(b)), float64(c)
	s := p + d
	t := s - p
	e := (p - (s - t)) + (d - t)
	bits := math.Float64bits(s)
	// An infinite sum has no error that is a number.
	if (e < 0 || e > 0) && bits&1 == 0 {
		if (e > 0) == (s > 0) {
			bits++
		} else {
			bits--
		}
	}
	return float32(math.Float64frombits(bits))
}
