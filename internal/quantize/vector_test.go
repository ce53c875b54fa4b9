package quantize

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// samples returns blocks of all kinds: usual weights of many magnitudes, blocks with outliers, with
// equal elements, zeros of both signs, subnormal numbers, and the largest that are accepted.
func samples(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for at := 0; at < n; {
		sub := x[at:min(n, at+16<<r.IntN(3))]
		at += len(sub)
		std := math.Exp2(float64(r.IntN(24) - 16))
		switch r.IntN(12) {
		case 0: // zeros
		case 1: // one value
			v := float32(r.NormFloat64() * std)
			for i := range sub {
				sub[i] = v
			}
		case 2: // a difference that is far below the magnitude
			for i := range sub {
				sub[i] = float32(-1 - float64(r.IntN(3))*0x1p-23)
			}
		case 3: // subnormal and tiny
			for i := range sub {
				sub[i] = math.Float32frombits(r.Uint32() & 0x80ffffff >> r.IntN(9))
			}
		case 4: // any magnitude
			for i := range sub {
				sub[i] = float32(r.NormFloat64() * math.Exp2(float64(r.IntN(60)-50)))
			}
		case 5: // near the smallest that a search accepts
			for i := range sub {
				sub[i] = float32(r.NormFloat64() * 1e-15)
			}
		case 6: // only zeros of both signs and one value
			for i := range sub {
				sub[i] = []float32{0, float32(math.Copysign(0, -1)), float32(std)}[r.IntN(3)]
			}
		case 7: // large; their scales overflow float16 in some types
			for i := range sub {
				sub[i] = float32(r.NormFloat64() * 1e6)
			}
		case 8: // positive
			for i := range sub {
				sub[i] = float32((1 + r.Float64()) * std)
			}
		default:
			for i := range sub {
				sub[i] = float32(r.NormFloat64() * std)
			}
			if r.IntN(3) == 0 {
				sub[r.IntN(len(sub))] *= 30
			}
		}
	}
	return x
}

// TestColumns checks the offsets that search_amd64.h and neon/search.h define.
func TestColumns(t *testing.T) {
	var c columns
	for i, got := range []uintptr{
		unsafe.Offsetof(c.x), unsafe.Offsetof(c.weights), unsafe.Offsetof(c.scaled), unsafe.Offsetof(c.quants),
		unsafe.Offsetof(c.spread), unsafe.Offsetof(c.scale), unsafe.Offsetof(c.minimum), unsafe.Offsetof(c.narrowest),
	} {
		if want := []uintptr{0, 2048, 4096, 6144, 8192, 8256, 8320, 8384}[i]; got != want {
			t.Errorf("field %d is at offset %d, want %d", i, got, want)
		}
	}
}

// TestLoops compares the loops of each instruction set with portable Go, for every type, all kinds
// of blocks, and numbers of blocks that do not fill the lanes.
func TestLoops(t *testing.T) {
	all := available()
	if len(all) == 1 {
		t.Skip("this processor runs the portable loops only")
	}
	r := rand.New(rand.NewPCG(7, 8))
	encode := func(l *loops, typ dtype.Type, x []float32) []byte {
		size, _ := typ.Bytes(uint64(len(x)))
		b := bytes.Repeat([]byte{0xa5}, int(size)) // encoders must not rely on zeros
		if err := encode(l, typ, b, x); err != nil {
			t.Fatal(err)
		}
		return b
	}
	rounds := 400
	if testing.Short() {
		rounds = 40
	}
	for typ := range encodings {
		elems, size := typ.Block()
		for range rounds {
			x := samples(r, elems*(1+r.IntN(40)*256/elems/8))
			want := encode(&portable, typ, x)
			for _, l := range all[1:] {
				got := encode(l, typ, x)
				for i := 0; i < len(want); i += size {
					if !bytes.Equal(got[i:i+size], want[i:i+size]) {
						t.Fatalf("%s, %s, block %d:\n%x, want\n%x\nof %v", typ, l.name, i/size, got[i:i+size], want[i:i+size], x[i/size*elems:][:elems])
					}
				}
			}
		}
	}
}

// TestLevelHalves compares the choice of a level around every half between two levels, where vector
// loops compare with the half and portable Go compares distances.
func TestLevelHalves(t *testing.T) {
	all := available()
	if len(all) == 1 {
		t.Skip("this processor runs the portable loops only")
	}
	var x []float32
	for i := range 15 {
		middle := (levels.values[i] + levels.values[i+1]) / 2
		for d := -40; d <= 40; d++ {
			x = append(x, math.Float32frombits(uint32(int(math.Float32bits(middle))+d)))
		}
	}
	nan := float32(math.NaN())
	x = append(x, nan, -nan, float32(math.Inf(1)), float32(math.Inf(-1)), 0, float32(math.Copysign(0, -1)), 1e-45, 1e38, -1e38)
	for len(x)%32 != 0 {
		x = append(x, float32(len(x)%300-150))
	}
	inverse := make([]float32, len(x)/32)
	for i := range inverse {
		inverse[i] = 1
	}
	want, got := make([]uint8, len(x)), make([]uint8, len(x))
	levelQuants(want, x, inverse)
	for _, l := range all[1:] {
		l.levelQuants(got, x, inverse)
		for i, v := range x {
			if got[i] != want[i] {
				t.Errorf("%s: the level of %v is %d, want %d", l.name, v, got[i], want[i])
			}
		}
	}
}

func BenchmarkLoops(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, 1<<16)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for _, typ := range dtype.All() {
		if !Can(typ) {
			continue
		}
		size, _ := typ.Bytes(uint64(len(x)))
		dst := make([]byte, size)
		for _, l := range available() {
			b.Run(typ.String()+"/"+l.name, func(b *testing.B) {
				b.SetBytes(int64(2 * len(x))) // of float16
				for b.Loop() {
					if err := encodeWith(l, typ, dst, x); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
