package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/exhaustive"
)

// tiledTypes are the types that can be tiled, and the offsets of the half-precision numbers in
// the tiles of one block of a strip.
var tiledTypes = func() (list []tiledType) {
	for _, f := range dtype.Forms() {
		if f.Type.Quantized() {
			// The minimums follow the scales.
			list = append(list, tiledType{f.Type, f.Tile().D, dtype.TileRows * len(f.Offsets())})
		}
	}
	return append(list, mlxTypes()...)
}()

type tiledType struct {
	t          dtype.Type
	at, halves int
}

// mlxTypes returns two MLX types for each number of bits; all group sizes and scale types use the
// same code.
func mlxTypes() (list []tiledType) {
	groups, scales := []int{32, 64, 128}, []dtype.Type{dtype.F16, dtype.BF16}
	for i, bits := range []int{2, 3, 4, 5, 6, 8} {
		for k, scale := range scales {
			t, _ := dtype.MLXType(bits, groups[(i+k)%3], scale)
			list = append(list, tiledType{t, 0, 32})
		}
	}
	return list
}

// quantFunc returns a quant of x.
type quantFunc func(r *rand.Rand) int8

// activations are random quants, and the largest quants in patterns that bring sums of products
// to their limits.
var activations = []struct {
	name string
	f    quantFunc
}{
	{"any", func(r *rand.Rand) int8 { return int8(r.IntN(255) - 127) }},
	{"127", func(*rand.Rand) int8 { return 127 }},
	{"-127", func(*rand.Rand) int8 { return -127 }},
	{"signs", func(r *rand.Rand) int8 { return int8(254*r.IntN(2) - 127) }},
	{"0", func(*rand.Rand) int8 { return 0 }},
}

// newTiledInput returns rows of activations of a given magnitude for weights of a type, gap bytes apart, that end at an
// inaccessible page.
func newTiledInput(tb testing.TB, typ dtype.Type, r *rand.Rand, in, rows, gap int, scale float64, f quantFunc) *tiledInput {
	tb.Helper()
	o := portable()
	x := &tiledInput{stride: in + in/4 + gap, in: in, rows: rows}
	x.mem = guarded(tb, uint64((rows-1)*x.stride+in+in/4))
	for j := range rows {
		q, d, s := x.row(j)
		for i := range q {
			q[i] = f(r)
		}
		for i := range d {
			d[i] = float32(math.Abs(r.NormFloat64()) * scale / 127)
		}
		o.sum(s, q, d, wholeSums(typ))
	}
	return x
}

// hostileTiles returns strips of random bytes, many at the ends of their range, with finite
// scales. They end at an inaccessible page.
func hostileTiles(tb testing.TB, r *rand.Rand, t dtype.Type, strips, in int) []byte {
	tb.Helper()
	size, ok := dtype.Tiled16.Bytes(t, uint64(strips*dtype.TileRows), uint64(in))
	if !ok {
		tb.Fatalf("%v [%d, %d] has no tiles", t, strips*dtype.TileRows, in)
	}
	b := guarded(tb, size)
	ends := []byte{0x80, 0x7f, 0, 0xff}
	common, often := ends[r.IntN(len(ends))], r.IntN(3)
	for i := range b {
		b[i] = byte(r.Uint32())
		if r.IntN(3) < often {
			b[i] = common
		}
	}
	elems, _ := t.Block()
	block, _ := dtype.Tiled16.Bytes(t, dtype.TileRows, uint64(elems))
	for _, tt := range tiledTypes {
		if tt.t != t {
			continue
		}
		for at := 0; at < len(b); at += int(block) {
			for h := range tt.halves {
				b[at+tt.at+2*h+1] &= 0xfb // an exponent below the largest
			}
		}
	}
	return b
}

// canary marks memory that products must not write.
const canary = 12345.5

// multiply returns the output of f, in rows yStride apart that end at an inaccessible page. It
// fails the test if f writes between the rows.
func (f tiledFunc) multiply(tb testing.TB, w []byte, strips, gap int, x *tiledInput) []float32 {
	tb.Helper()
	n := dtype.TileRows * strips
	yStride := n + gap
	y := float32s(guarded(tb, uint64(4*((x.rows-1)*yStride+n))))
	for i := range y {
		y[i] = canary
	}
	f(y, yStride, w, strips, x)
	for i, v := range y {
		if i%max(yStride, 1) >= n && v != canary {
			tb.Fatalf("%d strips, %d rows: wrote %v between rows, at %d of %d", strips, x.rows, v, i, yStride)
		}
	}
	return y
}

func TestTiled(t *testing.T) {
	for set, fast := range tiledSets(t) {
		for _, tt := range tiledTypes {
			t.Run(set+"/"+tt.t.String(), func(t *testing.T) {
				if fast[tt.t] == nil {
					t.Skip("this processor only has the portable product")
				}
				r := rand.New(rand.NewPCG(40, uint64(tt.t)))
				elems, _ := tt.t.Block()
				want := tiledPortable(tt.t)
				for rows := 1; rows <= 9; rows++ {
					for strips := range 4 {
						for _, blocks := range []int{0, 1, 2, 3, 9} {
							act := activations[r.IntN(len(activations))]
							scale := extremes[r.IntN(len(extremes))]
							x := newTiledInput(t, tt.t, r, blocks*elems, rows, 4*r.IntN(3), scale, act.f)
							w := hostileTiles(t, r, tt.t, strips, blocks*elems)
							gap := r.IntN(3)
							same(t, fmt.Sprintf("%d rows, %d strips of %d blocks, x %s of %g", rows, strips, blocks, act.name, scale),
								fast[tt.t].multiply(t, w, strips, gap, x), want.multiply(t, w, strips, gap, x))
						}
					}
				}
			})
		}
	}
}

// TestTiledEveryByte gives every byte of a block every value, including scales except infinite
// ones, also with the largest activations. Unless the tests are exhaustive, it uses every fifth
// value.
func TestTiledEveryByte(t *testing.T) {
	for set, fast := range tiledSets(t) {
		for _, tt := range tiledTypes {
			t.Run(set+"/"+tt.t.String(), func(t *testing.T) {
				if fast[tt.t] == nil {
					t.Skip("this processor only has the portable product")
				}
				r := rand.New(rand.NewPCG(41, uint64(tt.t)))
				elems, _ := tt.t.Block()
				want := tiledPortable(tt.t)
				w := hostileTiles(t, r, tt.t, 1, elems)
				for _, act := range activations {
					// Five rows are processed as four and one.
					x := newTiledInput(t, tt.t, r, elems, 5, 0, 1, act.f)
					for v := 0; v < 256; v += exhaustive.Pick(1, 5) { // 255 is among them
						for i := range w {
							w[i] = byte(v)
							if h := i - tt.at; h >= 0 && h < 2*tt.halves && h%2 == 1 {
								w[i] &= 0xfb
							}
						}
						same(t, fmt.Sprintf("all bytes %#x, x %s", v, act.name),
							fast[tt.t].multiply(t, w, 1, 0, x), want.multiply(t, w, 1, 0, x))
					}
				}
			})
		}
	}
}

// TestTiledReference compares the portable products with float products of the weights, which
// UntileRow returns.
func TestTiledReference(t *testing.T) {
	for _, tt := range tiledTypes {
		t.Run(tt.t.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(42, uint64(tt.t)))
			elems, size := tt.t.Block()
			for _, strips := range []int{1, 3} {
				for _, blocks := range []int{1, 5} {
					const rows = 3
					in, out := blocks*elems, strips*dtype.TileRows
					matrix := randomBytes(t, r, tt.t, in*out, 1)
					n, _ := dtype.Tiled16.Bytes(tt.t, uint64(out), uint64(in))
					tiles := make([]byte, n)
					if err := dtype.Tile(tt.t, tiles, matrix, out, in); err != nil {
						t.Fatal(err)
					}
					x := newTiledInput(t, tt.t, r, in, rows, 0, 1, activations[0].f)
					got := tiledPortable(tt.t).multiply(t, tiles, strips, 0, x)
					want := make([]float64, rows*out)
					row := make([]byte, blocks*size)
					for o := range out {
						if err := dtype.UntileRow(tt.t, row, tiles, o, in); err != nil {
							t.Fatal(err)
						}
						w := dequantized(t, tt.t, row)
						for j := range rows {
							q, d, _ := x.row(j)
							for c, v := range w {
								want[j*out+o] += v * float64(q[c]) * float64(d[c/blockElems])
							}
						}
					}
					near(t, got, want, 1e-5)
				}
			}
		})
	}
}
