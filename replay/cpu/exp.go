package cpu

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
)

// Bounds of exp. Below expMin the result would not be a normal number and is 0; above expMax it
// is infinite.
const (
	expMin = -87.33654
	expMax = 88.72283
)

// Constants of exp, from Cephes' expf: ln 2 in two parts, the first short enough that its product
// with n is exact, and the coefficients of the polynomial.
const (
	log2e = 1.44269504088896341
	ln2Hi = 0.693359375
	ln2Lo = -2.12194440e-4

	expP0 = 1.9875691500e-4
	expP1 = 1.3981999507e-3
	expP2 = 8.3334519073e-3
	expP3 = 4.1665795894e-2
	expP4 = 1.6666665459e-1
	expP5 = 5.0000001201e-1
)

// exp returns e^x, within 2 units in the last place.
func exp(x float32) float32 {
	if x < expMin {
		return 0
	}
	if x > expMax {
		return float32(math.Inf(1))
	}
	t := float32(x*log2e) + roundMagic
	n := t - roundMagic
	r := x - float32(n*ln2Hi)
	r -= float32(n * ln2Lo)
	y := float32(r*expP0) + expP1
	y = float32(y*r) + expP2
	y = float32(y*r) + expP3
	y = float32(y*r) + expP4
	y = float32(y*r) + expP5
	y = float32(y*float32(r*r)) + r
	y += 1
	// Multiply by 2^n, with n from -126 to 128, in two factors, since 2^128 is not a float32.
	i := int32(math.Float32bits(t)) - int32(math.Float32bits(roundMagic))
	half := i >> 1
	y *= math.Float32frombits(uint32(half+127) << 23)
	return float32(y * math.Float32frombits(uint32(i-half+127)<<23))
}

// expSub sets s to exp(s - m).
func expSub(s []float32, m float32) {
	for i, v := range s {
		s[i] = exp(v - m)
	}
}

// siluMul sets dst to silu(gate) * up.
func siluMul(dst, gate, up []float32) {
	up, dst = up[:len(gate)], dst[:len(gate)]
	for i, g := range gate {
		dst[i] = float32(g / (1 + exp(-g)) * up[i])
	}
}

// Constants of the tanh approximation of GELU: g / (1 + exp(-z)) with z = g * (geluLinear +
// geluCubic*g^2).
const (
	geluLinear = 1.5957691216057308 // 2 sqrt(2/pi)
	geluCubic  = 0.044715 * geluLinear
)

// geluMul sets dst to gelu(gate) * up, with the tanh approximation of GELU.
func geluMul(dst, gate, up []float32) {
	up, dst = up[:len(gate)], dst[:len(gate)]
	for i, g := range gate {
		z := float32(float32(g*g)*geluCubic) + geluLinear
		z = float32(g * z)
		dst[i] = float32(g / (1 + exp(-z)) * up[i])
	}
}

// Constants of the normal distribution: a polynomial in 1/(1 + erfP*x/sqrt 2) (Abramowitz and
// Stegun, 7.1.26) with an error of at most 1.5e-7.
const (
	erfP = 0.3275911 / math.Sqrt2
	erf1 = 0.254829592
	erf2 = -0.284496736
	erf3 = 1.421413741
	erf4 = -1.453152027
	erf5 = 1.061405429
)

// geluErfMul sets dst to gelu(gate) * up, with GELU defined by the normal distribution.
func geluErfMul(dst, gate, up []float32) {
	up, dst = up[:len(gate)], dst[:len(gate)]
	for i, g := range gate {
		t := 1 / (1 + float32(max(g, -g)*erfP))
		y := float32(t*erf5) + erf4
		y = float32(y*t) + erf3
		y = float32(y*t) + erf2
		y = float32(y*t) + erf1
		phi := float32(float32(y*t)*exp(float32(float32(g*g)*-0.5))) * 0.5
		if g > 0 {
			phi = 1 - phi
		}
		dst[i] = float32(float32(g*phi) * up[i])
	}
}

// reluSquaredMul sets dst to max(gate, 0)^2 * up.
func reluSquaredMul(dst, gate, up []float32) {
	up, dst = up[:len(gate)], dst[:len(gate)]
	for i, g := range gate {
		g = max(g, 0)
		dst[i] = float32(g*g) * up[i]
	}
}

// gated returns the function that sets dst to a(gate) * up for the given activation a.
func (o *ops) gated(activation uint32) (f func(dst, gate, up []float32), ok bool) {
	f = map[uint32]func(dst, gate, up []float32){
		decl.ActivationSiLU: o.siluMul, decl.ActivationGELUTanh: o.geluMul, decl.ActivationGELU: geluErfMul, decl.ActivationReLUSquared: reluSquaredMul,
	}[activation]
	return f, f != nil
}

// softCap sets x to limit * tanh(x/limit), which is limit - 2*limit / (1 + exp(2x/limit)).
func (o *ops) softCap(x []float32, limit float32) {
	o.scaleMax(x, 2/limit)
	o.expSub(x, 0)
	for i, e := range x {
		x[i] = limit - 2*limit/(1+e)
	}
}
