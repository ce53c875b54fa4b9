package dtype

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/exhaustive"
)

// halfValue is the value of a finite float16, by the format's definition.
func halfValue(h uint16) float64 {
	exp, man := int(h>>10&0x1f), float64(h&0x3ff)
	v := math.Ldexp(1+man/1024, exp-15)
	if exp == 0 {
		v = math.Ldexp(man, -24)
	}
	return math.Copysign(v, 1-2*float64(h>>15))
}

// TestF16All converts every float16 to float32 and back.
func TestF16All(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := F16ToF32(h)
		switch exp, man := h>>10&0x1f, h&0x3ff; {
		case exp == 0x1f && man != 0:
			if f == f || math.Float32bits(f)>>13&0x3ff != uint32(man) {
				t.Fatalf("%#04x: got %v (%#x), want NaN with its payload", h, f, math.Float32bits(f))
			}
			if want := h | 0x200; F32ToF16(f) != want { // quiet
				t.Fatalf("%#04x came back as %#04x, want %#04x", h, F32ToF16(f), want)
			}
			continue
		case exp == 0x1f:
			if sign := 1 - 2*int(h>>15); !math.IsInf(float64(f), sign) {
				t.Fatalf("%#04x: got %v", h, f)
			}
		default:
			want := halfValue(h)
			if float64(f) != want || math.Signbit(float64(f)) != math.Signbit(want) {
				t.Fatalf("%#04x: got %v, want %v", h, f, want)
			}
		}
		if back := F32ToF16(f); back != h {
			t.Fatalf("%#04x came back as %#04x", h, back)
		}
	}
}

// nearestHalf rounds to nearest even in float64, where every step is exact.
func nearestHalf(f float32) uint16 {
	v := math.Abs(float64(f))
	sign := uint16(math.Float32bits(f) >> 16 & 0x8000)
	if math.IsInf(v, 1) || v >= 65520 { // half a step past the largest
		return sign | 0x7c00
	}
	_, exp := math.Frexp(v) // v < 2^exp
	step := math.Ldexp(1, max(exp-11, -24))
	v = math.RoundToEven(v/step) * step
	if v < 0x1p-14 {
		return sign | uint16(v*0x1p24)
	}
	frac, exp := math.Frexp(v)
	return sign | uint16(exp+14)<<10 | uint16((frac*2-1)*1024)
}

func TestF32ToF16(t *testing.T) {
	check := func(f float32) {
		t.Helper()
		for _, f := range []float32{f, -f} {
			if got, want := F32ToF16(f), nearestHalf(f); got != want {
				t.Fatalf("F32ToF16(%v, %#x): got %#04x, want %#04x", f, math.Float32bits(f), got, want)
			}
		}
	}
	// Each float16, the point half-way to the next one, and the float32 numbers next to these points.
	for h := range uint16(0x7c00) {
		v := halfValue(h)
		next := 65536.0
		if h+1 < 0x7c00 {
			next = halfValue(h + 1)
		}
		for _, f := range []float32{float32(v), float32((v + next) / 2)} {
			check(f)
			check(math.Nextafter32(f, 0))
			check(math.Nextafter32(f, math.MaxFloat32))
		}
	}
	check(float32(math.Inf(1)))
	check(math.MaxFloat32)
	check(math.SmallestNonzeroFloat32)
	r := rand.New(rand.NewPCG(1, 2))
	for range exhaustive.Pick(1<<20, 1<<17) {
		if f := math.Float32frombits(r.Uint32()); f == f {
			check(f)
		}
		check(float32(r.NormFloat64() * math.Exp2(r.Float64()*40-28)))
	}
}

func TestBF16(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := BF16ToF32(h)
		if math.Float32bits(f) != uint32(h)<<16 {
			t.Fatalf("%#04x: got %#x", h, math.Float32bits(f))
		}
		want := h
		if f != f {
			want |= 0x40 // quiet
		}
		if back := F32ToBF16(f); back != want {
			t.Fatalf("%#04x came back as %#04x, want %#04x", h, back, want)
		}
	}
	// The neighbour whose bits are even wins a tie; otherwise the nearer one.
	for _, test := range []struct{ bits, want uint32 }{
		{0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82}, {0x3f817fff, 0x3f81},
		{0x00008000, 0x0000}, {0x00008001, 0x0001}, {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80},
		{0x80018000, 0x8002}, {0x7f800001, 0x7fc0},
	} {
		if got := F32ToBF16(math.Float32frombits(test.bits)); got != uint16(test.want) {
			t.Errorf("%#08x: got %#04x, want %#04x", test.bits, got, test.want)
		}
	}
}

func TestRoundHalfAway(t *testing.T) {
	for f := float32(-127); f <= 127; f += 0.125 {
		for _, f := range []float32{f, math.Nextafter32(f, 1000), math.Nextafter32(f, -1000)} {
			if got, want := roundHalfAway(f), int8(math.Round(float64(f))); got != want {
				t.Errorf("%v: got %d, want %d", f, got, want)
			}
		}
	}
}
