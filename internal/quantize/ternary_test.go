package quantize_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/quantize"
)

// TestTernaryBytes compares encoded blocks with blocks that were worked out by hand. The digits of
// base 3 of the elements 2, 0 and -2 are 2, 1 and 0, because the scale is the largest magnitude, 2.
// Half of the scale, such as 1, is rounded away from 0.
func TestTernaryBytes(t *testing.T) {
	x := make([]float32, 256)
	x[0], x[1], x[2], x[32], x[128], x[240], x[255] = 2, -2, -0.999, 1, -1, 2, -2
	// Five digits of 1 are the number 121. A byte stores it as ceil(121*256/243) = 128.
	tq1 := bytes.Repeat([]byte{128}, 48)
	tq1[0] = ceil(2*81 + 2*27 + 9 + 3*1 + 0) // elements 0, 32, 64, 96, 128
	tq1[1] = ceil(0*81 + 27 + 9 + 3 + 1)
	tq1 = append(tq1, ceil(3*(2*27+9+3+1)), ceil(3*40), ceil(3*40), ceil(3*(27+9+3+0)), 0, 0x40)
	tq2 := bytes.Repeat([]byte{0b01010101}, 64)
	tq2[0], tq2[1], tq2[32], tq2[32+16], tq2[63] = 0b01011010, 0b01010100, 0b01010100, 0b10010101, 0b00010101
	tq2 = append(tq2, 0, 0x40)
	for typ, want := range map[dtype.Type][]byte{dtype.TQ1_0: tq1, dtype.TQ2_0: tq2} {
		got := make([]byte, len(want))
		if err := quantize.Encode(typ, got, x); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v\n%x, want\n%x", typ, err, got, want)
		}
	}
}

func ceil(n int) byte { return byte((n*256 + 242) / 243) }

// TestNVFP4Bytes compares an encoded block with a block that was worked out by hand. The scale of
// its first part is 1. The scale of the second part is the smallest one, the scale of the third
// part rounds to 0, and the scale of the last part is the largest one.
func TestNVFP4Bytes(t *testing.T) {
	x := make([]float32, 64)
	copy(x, []float32{6, -6, 0.25, 0.26, 0.75, -0.76, 5, 5.1, 3, -1.5, 0, 1, 2, 4, -0.1, 0.5})
	x[16], x[24] = 6.0/512, -3.0/512
	x[32] = 6.0 / 1100
	x[48] = 1e6
	want := []byte{0x38, 0x01, 0x00, 0x7e}
	want = append(want, encodeBySearch(x, want)...)
	got := make([]byte, 36)
	if err := quantize.Encode(dtype.NVFP4, got, x); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v\n%x, want\n%x", err, got, want)
	}
	if first := []byte{0x57, 0xbf}; !bytes.Equal(got[4:6], first) {
		t.Errorf("6 and 3, -6 and -1.5 are %x, want %x", got[4:6], first)
	}
}

// encodeBySearch returns the quants of a block of NVFP4 with the given scales. It tries all values
// for each element.
func encodeBySearch(x []float32, scales []byte) []byte {
	values := [...]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}
	qs := make([]byte, 32)
	for i, v := range x {
		c := scales[i/16]
		unit := math.Ldexp(float64(c&7), -9)
		if c>>3 > 0 {
			unit = math.Ldexp(1+float64(c&7)/8, int(c>>3)-7)
		}
		best := 0
		for q, value := range values {
			if math.Abs(value*unit-float64(v)) < math.Abs(values[best]*unit-float64(v)) {
				best = q
			}
		}
		qs[i/16*8+i%8] |= byte(best << (i % 16 / 8 * 4))
	}
	return qs
}

// TestNVFP4Search compares encoded blocks of random elements of many magnitudes with the result of
// a search that tries all scales and all values.
func TestNVFP4Search(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		x := make([]float32, 64)
		std := math.Exp2(r.Float64()*20 - 10)
		for i := range x {
			x[i] = float32(r.NormFloat64() * std)
		}
		b := make([]byte, 36)
		if err := quantize.Encode(dtype.NVFP4, b, x); err != nil {
			t.Fatal(err)
		}
		for s := range 4 {
			var top float32
			for _, v := range x[16*s:][:16] {
				top = max(top, float32(math.Abs(float64(v))))
			}
			nearest, distance := byte(0), math.Inf(1)
			for c := range byte(0x7f) {
				v := math.Ldexp(float64(c&7), -9)
				if c>>3 > 0 {
					v = math.Ldexp(1+float64(c&7)/8, int(c>>3)-7)
				}
				// ggml never chooses the numbers between 240 and 448, which is the largest (0x7e).
				if d := math.Abs(v - float64(top/6)); d <= distance && (c < 0x78 || c == 0x7e) {
					nearest, distance = c, d
				}
			}
			// A number between 7/512, the largest subnormal number, and 8/512 becomes 7/512.
			if top/6 > 7.0/512 && top/6 < 8.0/512 {
				nearest = 7
			}
			if b[s] != nearest && top/6 < 240 {
				t.Fatalf("the scale of %v is %#x, want %#x", top, b[s], nearest)
			}
		}
		if want := encodeBySearch(x, b[:4]); !bytes.Equal(b[4:], want) {
			t.Fatalf("%x, want %x", b[4:], want)
		}
	}
}
