package dtype_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// TestMLX compares every type with a reading of the published layout bit by bit.
func TestMLX(t *testing.T) {
	for _, bits := range []int{2, 3, 4, 5, 6, 8} {
		for _, group := range []int{32, 64, 128} {
			for _, scale := range []dtype.Type{dtype.F16, dtype.BF16, dtype.F32} {
				typ, ok := dtype.MLXType(bits, group, scale)
				if b, g, s, is := typ.MLX(); !ok || !is || b != bits || g != group || s != scale || !typ.Valid() || !typ.Integers() || typ.Family() != typ&^15 {
					t.Fatalf("%d bits, %d, %s: %s", bits, group, scale, typ)
				}
				_, size := scale.Block()
				r := rand.New(rand.NewPCG(uint64(bits), uint64(group)))
				n := 3 * group
				length, _ := typ.Bytes(uint64(n))
				b := make([]byte, length)
				if err := dtype.RandomBlocks(typ, b, r.Uint64(), 1); err != nil {
					t.Fatal(err)
				}
				got := make([]float32, n)
				if err := dtype.Dequantize(typ, got, b); err != nil {
					t.Fatal(err)
				}
				for i, v := range got {
					block := b[i/group*len(b)/3:][:len(b)/3]
					var both [2]float32
					for k := range both {
						one := make([]float32, 1)
						if err := dtype.Dequantize(scale, one, block[k*size:][:size]); err != nil {
							t.Fatal(err)
						}
						both[k] = one[0]
					}
					q := 0
					for k := range bits {
						at := i%group*bits + k
						q |= int(block[2*size+at/8]) >> (at % 8) & 1 << k
					}
					if want := float32(both[0]*float32(q)) + both[1]; v != want {
						t.Fatalf("%s: element %d is %v, want %v", typ, i, v, want)
					}
				}
			}
		}
	}
	for _, bad := range [][2]int{{7, 64}, {4, 16}, {1, 32}} {
		if typ, ok := dtype.MLXType(bad[0], bad[1], dtype.F16); ok {
			t.Errorf("%v is %s", bad, typ)
		}
	}
	if _, ok := dtype.MLXType(4, 64, dtype.F64); ok {
		t.Error("scales of F64 are taken")
	}
	for _, typ := range []dtype.Type{dtype.F32, dtype.Q4_0, dtype.MLX2 + 3, dtype.MLX8 + 12, dtype.FP8, 0x3f, 0xff} {
		if _, _, _, ok := typ.MLX(); ok {
			t.Errorf("%s is MLX's", typ)
		}
	}
}

// TestFP8 compares E4M3's bytes with values of the OCP specification.
func TestFP8(t *testing.T) {
	for b, want := range map[byte]float32{
		0x00: 0, 0x01: 0x1p-9, 0x07: 7 * 0x1p-9, 0x08: 0x1p-6, 0x38: 1, 0x39: 1.125, 0x40: 2, 0x7e: 448, 0x77: 240, 0xfe: -448, 0xb8: -1,
	} {
		if got := dtype.E4M3(b); got != want {
			t.Errorf("%#x is %v, want %v", b, got, want)
		}
	}
	if v := dtype.E4M3(0x80); v != 0 || !math.Signbit(float64(v)) {
		t.Errorf("0x80 is %v", v)
	}
	for _, b := range []byte{0x7f, 0xff} {
		if v := dtype.E4M3(b); v == v {
			t.Errorf("%#x is %v", b, v)
		}
	}
	for _, group := range []int{32, 64, 128} {
		typ, ok := dtype.FP8Type(group)
		if elems, size := typ.Block(); !ok || elems != group || size != group+4 || typ.Integers() || !typ.Quantized() || typ.Family() != dtype.FP8 {
			t.Fatalf("%d: %s", group, typ)
		}
		b := binary.LittleEndian.AppendUint32(nil, math.Float32bits(0.75))
		for i := range group {
			b = append(b, byte(i))
		}
		got := make([]float32, group)
		if err := dtype.Dequantize(typ, got, b); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if want := 0.75 * dtype.E4M3(byte(i)); v != want && want == want {
				t.Fatalf("%s: element %d is %v", typ, i, v)
			}
		}
	}
	if typ, ok := dtype.FP8Type(16); ok {
		t.Errorf("blocks of 16 are %s", typ)
	}
}
