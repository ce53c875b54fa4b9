package cpu

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/exhaustive"
)

// bigFMA returns a*b + c for finite values, rounded once.
func bigFMA(a, b, c float32) float32 {
	exact := func(x float32) *big.Float { return new(big.Float).SetPrec(1000).SetFloat64(float64(x)) }
	p := new(big.Float).SetPrec(1000).Mul(exact(a), exact(b))
	s := new(big.Float).SetPrec(1000).Add(p, exact(c))
	if s.Sign() == 0 {
		// The sum of zeros of the same sign has that sign; all other zeros are positive.
		if p.Sign() == 0 && c == 0 && p.Signbit() == math.Signbit(float64(c)) {
			return c
		}
		return 0
	}
	f, _ := s.Float32()
	return f
}

func checkFMA(t *testing.T, a, b, c float32) {
	t.Helper()
	want := bigFMA(a, b, c)
	for name, got := range map[string]float32{"fma32": fma32(a, b, c), "fma32Odd": fma32Odd(a, b, c)} {
		if math.Float32bits(got) != math.Float32bits(want) {
			t.Fatalf("%s(%x, %x, %x) = %x, want %x", name, a, b, c, got, want)
		}
	}
}

func TestFMA(t *testing.T) {
	r := rand.New(rand.NewPCG(60, 1))
	sign := func(x float32) float32 { return math.Float32frombits(math.Float32bits(x) ^ r.Uint32()&(1<<31)) }
	any := func() float32 {
		for {
			if x := math.Float32frombits(r.Uint32()); isFinite(x) {
				return x
			}
		}
	}
	special := []float32{0, 1, 3, 0x1p-149, 0x1p-126, 0x1.fffffcp-127, 0x1.fffffep127, 0x1p127, 1 + 0x1p-23, 0x1.fffffep0, 0x1p-24, 0x1p-75, 0x1p-74}
	for _, a := range special {
		for _, b := range special {
			for _, c := range special {
				for signs := range 8 {
					at := func(x float32, bit int) float32 {
						return math.Float32frombits(math.Float32bits(x) ^ uint32(signs>>bit&1)<<31)
					}
					checkFMA(t, at(a, 0), at(b, 1), at(c, 2))
				}
			}
		}
	}
	for range exhaustive.Pick(200_000, 40_000) {
		checkFMA(t, any(), any(), any())
		// Use similar exponents, so that all bits of the sum count.
		scale := float32(math.Ldexp(1, r.IntN(130)-100))
		a, b := sign(1+r.Float32()), sign(scale*(1+r.Float32()))
		checkFMA(t, a, b, sign(scale*float32(math.Ldexp(1+r.Float64(), r.IntN(60)-30))))
		// A sum that cancels the product except for its rounding error.
		checkFMA(t, a, b, -float32(a*b))
		// A sum that differs from the midpoint of two float32 values by less than float64 can
		// represent: the product is slightly more than half a unit in the last place of c, whose
		// last bit is odd or even.
		c := math.Float32frombits(uint32(100+r.IntN(100))<<23 | r.Uint32()&(1<<23-1))
		ulp := math.Nextafter32(c, float32(math.Inf(1))) - c
		for _, by := range []float32{1, 1 - 0x1p-24, 1 + 0x1p-23, 1 - 0x1p-12, 1 + 0x1p-12} {
			checkFMA(t, sign(ulp), sign(by/2), sign(c))
			checkFMA(t, sign(ulp*by), sign(by/2), sign(c))
		}
		// Results below the normal numbers.
		a, b = sign(float32(math.Ldexp(1+r.Float64(), -75))), sign(float32(math.Ldexp(1+r.Float64(), -60-r.IntN(20))))
		checkFMA(t, a, b, sign(math.Float32frombits(r.Uint32()&(1<<24-1))))
	}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct{ a, b, c, want float32 }{
		{inf, 1, 1, inf}, {inf, -1, inf, nan}, {1, 1, -inf, -inf}, {0, inf, 1, nan}, {nan, 1, 1, nan}, {1, 1, nan, nan},
		{0x1p127, 0x1p127, 1, inf}, {-0x1p127, 0x1p127, 0x1p127, -inf}, {0x1p127, 2, -0x1p127, 0x1p127}, {-inf, 1, 1, -inf},
	} {
		if got := fma32(c.a, c.b, c.c); got != c.want && (got == got || c.want == c.want) {
			t.Errorf("fma32(%v, %v, %v) = %v, want %v", c.a, c.b, c.c, got, c.want)
		}
	}
}
