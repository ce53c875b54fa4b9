package dtype_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

func floats(b []byte) []float32 {
	f := make([]float32, len(b)/4)
	for i := range f {
		f[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return f
}

// TestKnownAnswers compares Quantize and Dequantize with results that ggml computed
// (testdata/ggml.txt), and for other types with results that follow from the types' definitions
// (testdata/definitions.txt).
func TestKnownAnswers(t *testing.T) {
	var text []byte
	for _, name := range []string{"testdata/ggml.txt", "testdata/definitions.txt"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b...)
	}
	decoded, encoded := map[dtype.Type]bool{}, map[dtype.Type]bool{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var op, name, inHex, outHex string
		if _, err := fmt.Sscan(line, &op, &name, &inHex, &outHex); err != nil {
			t.Fatal(err)
		}
		typ, err := dtype.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		in, err1 := hex.DecodeString(inHex)
		out, err2 := hex.DecodeString(outHex)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		switch op {
		case "dequantize":
			decoded[typ] = true
			want := floats(out)
			got := make([]float32, len(want))
			if err := dtype.Dequantize(typ, got, in); err != nil {
				t.Fatal(err)
			}
			for i := range want {
				if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
					t.Errorf("dequantize %s: element %d: got %v, want %v", typ, i, got[i], want[i])
				}
			}
		case "quantize":
			encoded[typ] = true
			got := make([]byte, len(out))
			if err := dtype.Quantize(typ, got, floats(in)); err != nil {
				t.Fatal(err)
			}
			_, size := typ.Block()
			for i := 0; i < len(out); i += size {
				if !bytes.Equal(got[i:i+size], out[i:i+size]) {
					t.Errorf("quantize %s: block %d: got %x, want %x", typ, i/size, got[i:i+size], out[i:i+size])
				}
			}
		default:
			t.Fatalf("unknown case %q", op)
		}
	}
	for _, typ := range dtype.All() {
		// Types of families have separate tests.
		if typ.Quantized() && typ < dtype.MLX2 && !decoded[typ] {
			t.Errorf("%s has no known answer for Dequantize", typ)
		}
		if typ.Quantized() && typ.CanQuantize() && !encoded[typ] {
			t.Errorf("%s has no known answer for Quantize", typ)
		}
	}
}

// TestErrorBounds checks the largest error of an element. It is half a step of the block, plus the
// error of rounding the scale and the minimum to float16. In Q4_0 and Q5_0 it is a whole step,
// because their levels do not reach one end of the range.
func TestErrorBounds(t *testing.T) {
	tests := []struct {
		typ   dtype.Type
		bound func(lo, hi, magnitude float64) float64
	}{
		{dtype.F32, func(_, _, _ float64) float64 { return 0 }},
		{dtype.F16, func(_, _, m float64) float64 { return m * 0x1p-11 }},
		{dtype.BF16, func(_, _, m float64) float64 { return m * 0x1p-8 }},
		{dtype.Q8_0, func(_, _, m float64) float64 { return m/127/2 + m*0x1p-11 }},
		{dtype.Q4_0, func(_, _, m float64) float64 { return m/8 + m*0x1p-11 }},
		{dtype.Q5_0, func(_, _, m float64) float64 { return m/16 + m*0x1p-11 }},
		{dtype.Q4_1, func(lo, hi, m float64) float64 { return (hi-lo)/15/2 + (hi-lo+m)*0x1p-11 }},
		{dtype.Q5_1, func(lo, hi, m float64) float64 { return (hi-lo)/31/2 + (hi-lo+m)*0x1p-11 }},
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, test := range tests {
		for trial := range 2000 {
			src := make([]float32, 32)
			std, mean := math.Exp2(r.Float64()*12-8), r.NormFloat64()*float64(trial%2)
			lo, hi := math.Inf(1), math.Inf(-1)
			for i := range src {
				src[i] = float32(r.NormFloat64()*std + mean)
				lo, hi = min(lo, float64(src[i])), max(hi, float64(src[i]))
			}
			_, size := test.typ.Block()
			if !test.typ.Quantized() {
				size *= len(src)
			}
			block, back := make([]byte, size), make([]float32, len(src))
			if err := dtype.Quantize(test.typ, block, src); err != nil {
				t.Fatal(err)
			}
			if err := dtype.Dequantize(test.typ, back, block); err != nil {
				t.Fatal(err)
			}
			magnitude := max(-lo, hi)
			bound := test.bound(lo, hi, magnitude) + magnitude*1e-6
			for i := range src {
				if diff := math.Abs(float64(src[i]) - float64(back[i])); diff > bound {
					t.Fatalf("%s: %v came back as %v: off by %v, more than %v", test.typ, src[i], back[i], diff, bound)
				}
			}
		}
	}
}

func TestF64(t *testing.T) {
	b := binary.LittleEndian.AppendUint64(nil, math.Float64bits(0.1))
	var got [1]float32
	if err := dtype.Dequantize(dtype.F64, got[:], b); err != nil || got[0] != float32(0.1) {
		t.Errorf("got %v, %v", got[0], err)
	}
}

func TestConversionErrors(t *testing.T) {
	var unsupported *dtype.UnsupportedError
	var size *dtype.SizeError
	inf := make([]float32, 32)
	inf[5] = float32(math.Inf(-1))
	nan := make([]float32, 32)
	nan[31] = float32(math.NaN())
	tests := []struct {
		name   string
		err    error
		target any // nil: any error will do
		text   string
	}{
		{"dequantize integers", dtype.Dequantize(dtype.I32, make([]float32, 1), make([]byte, 4)), &unsupported, "dequantize: not supported for type I32"},
		{"dequantize invalid", dtype.Dequantize(dtype.Invalid, nil, nil), &unsupported, "invalid"},
		{"dequantize unknown", dtype.Dequantize(200, nil, nil), &unsupported, "type(200)"},
		{"quantize K", dtype.Quantize(dtype.Q4_K, make([]byte, 144), make([]float32, 256)), &unsupported, "quantize: not supported for type Q4_K"},
		{"random floats", dtype.RandomBlocks(dtype.F16, make([]byte, 2), 1, 1), &unsupported, "F16"},
		{"short source", dtype.Dequantize(dtype.Q8_0, make([]float32, 32), make([]byte, 33)), &size, "32 elements and 33 bytes"},
		{"short target", dtype.Dequantize(dtype.Q8_0, make([]float32, 31), make([]byte, 34)), &size, "31 elements"},
		{"two blocks for one", dtype.Quantize(dtype.Q8_0, make([]byte, 68), make([]float32, 32)), &size, "68 bytes"},
		{"part of a block", dtype.RandomBlocks(dtype.Q6_K, make([]byte, 211), 1, 1), &size, "211 bytes"},
		{"infinity", dtype.Quantize(dtype.Q4_0, make([]byte, 18), inf), nil, "element 5 is -Inf"},
		{"NaN", dtype.Quantize(dtype.Q5_1, make([]byte, 24), nan), nil, "element 31 is NaN"},
		{"deviation", dtype.RandomBlocks(dtype.Q6_K, make([]byte, 210), 1, float32(math.NaN())), nil, "standard deviation NaN"},
	}
	for _, test := range tests {
		if test.err == nil || !strings.Contains(test.err.Error(), test.text) {
			t.Errorf("%s: got %v, want an error with %q", test.name, test.err, test.text)
		} else if test.target != nil && !errors.As(test.err, test.target) {
			t.Errorf("%s: got a %T", test.name, test.err)
		}
	}
}

func TestRandomBlocks(t *testing.T) {
	const elements, std = 256 * 512, 0.02
	for _, typ := range dtype.All() {
		if !typ.Quantized() {
			continue
		}
		size, _ := typ.Bytes(elements)
		b, again, other := make([]byte, size), make([]byte, size), make([]byte, size)
		err := errors.Join(
			dtype.RandomBlocks(typ, b, 7, std),
			dtype.RandomBlocks(typ, again, 7, std),
			dtype.RandomBlocks(typ, other, 8, std))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, again) {
			t.Errorf("%s: one seed gave different bytes", typ)
		}
		if bytes.Equal(b, other) {
			t.Errorf("%s: two seeds gave the same bytes", typ)
		}
		values := make([]float32, elements)
		if err := dtype.Dequantize(typ, values, b); err != nil {
			t.Fatal(err)
		}
		var sum, squares float64
		for i, v := range values {
			sum += float64(v)
			squares += float64(v) * float64(v)
			if math.Abs(float64(v)) > 10*std {
				t.Fatalf("%s: element %d is %v", typ, i, v)
			}
		}
		mean, deviation := sum/elements, math.Sqrt(squares/elements)
		if math.Abs(mean) > std/20 || math.Abs(deviation/std-1) > 0.08 {
			t.Errorf("%s: mean %v and deviation %v, want 0 and %v", typ, mean, deviation, std)
		}
		elems, blockSize := typ.Block()
		seen := map[string]bool{}
		for i := 0; i < len(b); i += blockSize {
			seen[string(b[i:i+blockSize])] = true
		}
		if len(seen) != elements/elems {
			t.Errorf("%s: %d different blocks of %d", typ, len(seen), elements/elems)
		}
	}
}

// FuzzDequantize checks that Dequantize does not panic, whatever the bytes are. Quantize must
// accept the elements of a quantised type if and only if they are finite.
func FuzzDequantize(f *testing.F) {
	for _, typ := range dtype.All() {
		_, size := typ.Block()
		f.Add(uint8(typ), bytes.Repeat([]byte{0x35}, size))
	}
	f.Add(uint8(dtype.Q4_0), bytes.Repeat([]byte{0xff}, 18))
	f.Fuzz(func(t *testing.T, id uint8, b []byte) {
		typ := dtype.Type(id)
		elems, size := typ.Block()
		if size == 0 {
			return
		}
		values := make([]float32, len(b)/size*elems)
		if dtype.Dequantize(typ, values, b) != nil || !typ.CanQuantize() {
			return
		}
		finite := true
		for _, v := range values {
			finite = finite && !math.IsInf(float64(v), 0) && v == v
		}
		err := dtype.Quantize(typ, make([]byte, len(b)), values)
		if finite != (err == nil) && typ.Quantized() {
			t.Errorf("%s: finite %v, error %v", typ, finite, err)
		}
	})
}

func BenchmarkQuantize(b *testing.B) {
	src := make([]float32, 4096)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range src {
		src[i] = float32(r.NormFloat64())
	}
	for _, typ := range []dtype.Type{dtype.F16, dtype.Q8_0, dtype.Q4_0, dtype.Q5_1} {
		size, _ := typ.Bytes(uint64(len(src)))
		dst := make([]byte, size)
		b.Run(typ.String(), func(b *testing.B) {
			b.SetBytes(int64(4 * len(src)))
			for b.Loop() {
				if err := dtype.Quantize(typ, dst, src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func ExampleQuantize() {
	src := make([]float32, 32)
	for i := range src {
		src[i] = float32(i) / 10
	}
	block, back := make([]byte, 34), make([]float32, 32)
	if err := dtype.Quantize(dtype.Q8_0, block, src); err != nil {
		fmt.Println(err)
	}
	if err := dtype.Dequantize(dtype.Q8_0, back, block); err != nil {
		fmt.Println(err)
	}
	fmt.Printf("%.2f %.2f %.2f\n", back[0], back[1], back[31])
	// Output: 0.00 0.10 3.10
}
