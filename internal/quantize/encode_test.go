package quantize_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/quantize"
)

// searched lists the types that this package encodes itself.
var searched = []dtype.Type{
	dtype.Q2_K, dtype.Q3_K, dtype.Q4_K, dtype.Q5_K, dtype.Q6_K, dtype.IQ4_NL, dtype.IQ4_XS, dtype.MXFP4,
	dtype.NVFP4, dtype.TQ1_0, dtype.TQ2_0,
}

// roundTrip encodes and decodes.
func roundTrip(t *testing.T, typ dtype.Type, x []float32) []float32 {
	t.Helper()
	size, _ := typ.Bytes(uint64(len(x)))
	b, back := make([]byte, size), make([]float32, len(x))
	if err := quantize.Encode(typ, b, x); err != nil {
		t.Fatal(err)
	}
	if err := dtype.Dequantize(typ, back, b); err != nil {
		t.Fatal(err)
	}
	return back
}

// relative returns the root mean square of the error, divided by the root mean square of x.
func relative(x, back []float32) float64 {
	var errs, squares float64
	for i, v := range x {
		d := float64(v) - float64(back[i])
		errs += d * d
		squares += float64(v) * float64(v)
	}
	return math.Sqrt(errs / squares)
}

// TestErrors checks the relative error of normally distributed elements. It must be between half
// the bound and the bound of each type, at any magnitude that weights have. If the quants are
// packed wrongly, the error is much larger.
func TestErrors(t *testing.T) {
	bounds := map[dtype.Type]float64{
		dtype.Q2_K: 0.33, dtype.Q3_K: 0.18, dtype.Q4_K: 0.083, dtype.Q5_K: 0.041, dtype.Q6_K: 0.022,
		dtype.IQ4_NL: 0.082, dtype.IQ4_XS: 0.084, dtype.MXFP4: 0.125,
		dtype.NVFP4: 0.11, dtype.TQ1_0: 0.83, dtype.TQ2_0: 0.83,
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, typ := range searched {
		for _, scale := range []float64{1e-3, 0.02, 1, 100} {
			if typ == dtype.NVFP4 && scale < 0.02 {
				continue // the smallest scale of a block is 2^-9
			}
			x := make([]float32, 256*64)
			for i := range x {
				x[i] = float32(r.NormFloat64() * scale)
			}
			got := relative(x, roundTrip(t, typ, x))
			if got > bounds[typ] || got < bounds[typ]/2 {
				t.Errorf("%s at %g: an error of %.4f, want at most %.4f", typ, scale, got, bounds[typ])
			}
		}
	}
}

// TestExact checks that elements which a block can represent exactly are decoded unchanged.
func TestExact(t *testing.T) {
	for _, typ := range searched {
		for _, x := range [][]float32{make([]float32, 512), exact(typ)} {
			if got := relative(append([]float32{1}, x...), append([]float32{1}, roundTrip(t, typ, x)...)); got > 2e-3 {
				t.Errorf("%s: %v of what is exact is lost", typ, got)
			}
		}
	}
}

// exact returns elements that a type represents exactly. Each sub-block contains the smallest and
// the largest of the type's levels.
func exact(typ dtype.Type) []float32 {
	lo, hi := map[dtype.Type]int{dtype.Q2_K: 0, dtype.Q3_K: -4, dtype.Q4_K: 0, dtype.Q5_K: 0, dtype.Q6_K: -32}[typ], 0
	switch typ {
	case dtype.Q2_K, dtype.Q3_K:
		hi = lo + 3
	case dtype.Q4_K:
		hi = 15
	case dtype.Q5_K, dtype.Q6_K:
		hi = lo + 31
	}
	x := make([]float32, 256)
	for i := range x {
		switch typ {
		case dtype.IQ4_NL, dtype.IQ4_XS:
			x[i] = []float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}[i%16] / 64
		case dtype.TQ1_0, dtype.TQ2_0:
			x[i] = float32(i%3 - 1)
		case dtype.MXFP4, dtype.NVFP4:
			x[i] = []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}[i%16]
		default:
			x[i] = float32(lo+i*7%(hi-lo+1)) / 4
			if i%16 == 0 {
				x[i] = float32(lo) / 4
			}
		}
	}
	return x
}

func TestRefusals(t *testing.T) {
	with := func(v float32) []float32 {
		x := make([]float32, 256)
		x[77] = v
		return x
	}
	encode := func(typ dtype.Type, x []float32) error {
		size, _ := typ.Bytes(256)
		return quantize.Encode(typ, make([]byte, size), x)
	}
	for _, test := range []struct {
		err  error
		text string
	}{
		{encode(dtype.Q4_K, with(float32(math.NaN()))), "quantize: Q4_K: element 77 is NaN"},
		{encode(dtype.IQ4_XS, with(float32(math.Inf(-1)))), "element 77 is -Inf"},
		{encode(dtype.Q6_K, with(1e30)), "element 77 is 1e+30"},
		{encode(dtype.Q5_K, with(9e8)), "elements 0 to 255 have no scale in float16: the largest is 9e+08"},
		{encode(dtype.Q8_0, with(1e9)), "elements 64 to 95 have no scale in float16"},
		{encode(dtype.F16, with(70000)), "elements 77 to 77 have no scale in float16"},
		{encode(dtype.Q4_K, make([]float32, 255)), "255 elements and 144 bytes"},
		{encode(dtype.I8, make([]float32, 256)), "not supported for type I8"},
	} {
		if test.err == nil || !strings.Contains(test.err.Error(), test.text) {
			t.Errorf("got %v, want an error with %q", test.err, test.text)
		}
	}
	if err := encode(dtype.MXFP4, with(1e30)); err != nil {
		t.Errorf("MXFP4 has room for 1e30: %v", err)
	}
	if !quantize.Can(dtype.Q3_K) || !quantize.Can(dtype.Q4_0) || quantize.Can(dtype.I32) {
		t.Error("Can is wrong")
	}
}

// FuzzEncode checks that finite elements give an error, or blocks that decode to finite elements.
func FuzzEncode(f *testing.F) {
	for _, v := range []uint32{0, 1, 0x00800000, 0x3f800000, 0x4e6e6b28, 0x33d6bf95, 0xbf800001, 0x26901d7d} {
		f.Add(binary.LittleEndian.AppendUint32(nil, v))
		f.Add(binary.LittleEndian.AppendUint32([]byte{0, 0, 0x80, 0x3f}, v))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 4 {
			return
		}
		x := make([]float32, 256)
		for i := range x {
			at := 4 * i % (len(data) / 4 * 4)
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[at:]))
		}
		for _, typ := range searched {
			size, _ := typ.Bytes(256)
			b, back := make([]byte, size), make([]float32, 256)
			if quantize.Encode(typ, b, x) != nil {
				continue
			}
			if err := dtype.Dequantize(typ, back, b); err != nil {
				t.Fatal(err)
			}
			for i, v := range back {
				if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
					t.Fatalf("%s: element %d, %v, came back as %v", typ, i, x[i], v)
				}
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, 4096)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for _, typ := range searched {
		size, _ := typ.Bytes(uint64(len(x)))
		dst := make([]byte, size)
		b.Run(typ.String(), func(b *testing.B) {
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				if err := quantize.Encode(typ, dst, x); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
