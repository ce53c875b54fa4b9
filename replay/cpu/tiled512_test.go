//go:build amd64

package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/exhaustive"
)

func needAVX512(tb testing.TB) {
	tb.Helper()
	if !hasAVX512() {
		tb.Skip("the processor has no AVX-512 with BW, VL and VNNI")
	}
}

// blockSize512 returns the size in bytes of a strip's block.
func blockSize512(tb testing.TB, t dtype.Type) int {
	tb.Helper()
	elems, _ := t.Block()
	size, ok := dtype.Tiled16.Bytes(t, dtype.TileRows, uint64(elems))
	if !ok {
		tb.Fatalf("%v has no tiled layout", t)
	}
	return int(size)
}

// finite512 makes the scales of b finite, and less than 2 if small is set.
func finite512(tb testing.TB, t dtype.Type, b []byte, small bool) {
	tb.Helper()
	size := blockSize512(tb, t)
	for _, tt := range tiledTypes {
		if tt.t != t {
			continue
		}
		for at := tt.at; at < len(b); at += size {
			for h := at; h < at+2*tt.halves; h += 2 {
				if small || b[h+1]&0x7c == 0x7c {
					b[h+1] &= 0xbf // the highest bit of the exponent
				}
			}
		}
	}
	if small && t == dtype.MXFP4 {
		for at := 256; at < len(b); at += size {
			for i := range b[at:][:dtype.TileRows] {
				b[at+i] = 96 | b[at+i]&31
			}
		}
	}
}

// input512 returns rows of quantised activations for weights of a type in the workers' layout, with pad bytes between
// rows and none after the last, which ends at a guard page.
func input512(tb testing.TB, typ dtype.Type, rows, in, pad int, x func(j int) []float32) *tiledInput {
	tb.Helper()
	size, o := in+in/4, portable()
	t := &tiledInput{stride: size + pad, in: in, rows: rows}
	t.mem = guarded(tb, uint64((rows-1)*t.stride+size))
	for j := range rows {
		q, d, s := t.row(j)
		quantize(q, d, x(j))
		o.sum(s, q, d, wholeSums(typ))
	}
	return t
}

// check512 checks the AVX-512 product of a type.
func check512(t *testing.T, typ dtype.Type, w []byte, strips int, x *tiledInput) {
	t.Helper()
	checkProduct(t, tiledAVX512()[typ], typ, w, strips, x)
}

// checkProduct compares a product with the portable one, and checks that it writes nothing between
// its rows. The weights end at a guard page.
func checkProduct(t *testing.T, product tiledFunc, typ dtype.Type, w []byte, strips int, x *tiledInput) {
	t.Helper()
	if product == nil {
		t.Skip("this type has no such loop")
	}
	const gap = 3 // float32 elements between the rows of y
	width := dtype.TileRows * strips
	stride := width + gap
	untouched := math.Float32frombits(0x7fc0dead)
	output := func() []float32 {
		y := float32s(guarded(t, uint64(4*((x.rows-1)*stride+width))))
		for i := range y {
			y[i] = untouched
		}
		return y
	}
	want, got := output(), output()
	tiledPortable(typ)(want, stride, w, strips, x)
	product(got, stride, w, strips, x)
	var diff []string
	for i, v := range want {
		if math.Float32bits(v) == math.Float32bits(got[i]) {
			continue
		}
		if len(diff) == 8 {
			diff = append(diff, "...")
			break
		}
		j, at := i/stride, i%stride
		where := fmt.Sprintf("x row %d strip %d lane %d", j, at/dtype.TileRows, at%dtype.TileRows)
		if at >= width {
			where = fmt.Sprintf("between x rows %d and %d", j, j+1)
		}
		diff = append(diff, fmt.Sprintf("%s: %v (%#08x), want %v (%#08x)", where, got[i], math.Float32bits(got[i]), v, math.Float32bits(v)))
	}
	if diff != nil {
		t.Fatalf("%v: x.rows %d, in %d, strips %d:\n\t%s", typ, x.rows, x.in, strips, strings.Join(diff, "\n\t"))
	}
}

// TestTiled512 compares the AVX-512 products with the portable ones on random and hostile bytes.
func TestTiled512(t *testing.T) {
	needAVX512(t)
	r := rand.New(rand.NewPCG(40, 1))
	for _, tt := range tiledTypes {
		typ := tt.t
		t.Run(typ.String(), func(t *testing.T) {
			elems, _ := typ.Block()
			size := blockSize512(t, typ)
			for rows := 1; rows <= 9; rows++ {
				for strips := range 4 {
					for _, blocks := range []int{1, 2, 3, 7} {
						w := guarded(t, uint64(strips*blocks*size))
						hostile := r.IntN(2) == 0
						for i := range w {
							w[i] = byte(r.Uint32())
							if hostile && r.IntN(4) == 0 {
								w[i] = []byte{0x80, 0, 0xff, 0x7f}[r.IntN(4)]
							}
						}
						finite512(t, typ, w, r.IntN(2) == 0)
						scale := extremes[r.IntN(len(extremes))]
						x := input512(t, typ, rows, blocks*elems, 8*r.IntN(9), func(int) []float32 { return random(r, blocks*elems, scale) })
						check512(t, typ, w, strips, x)
					}
				}
			}
		})
	}
}

// TestTiled512Chunks uses more strips than are multiplied at a time.
func TestTiled512Chunks(t *testing.T) {
	needAVX512(t)
	r := rand.New(rand.NewPCG(41, 1))
	for _, tt := range tiledTypes {
		typ := tt.t
		elems, _ := typ.Block()
		size := blockSize512(t, typ)
		blocks := 2048 / elems
		strips := 2*tiledChunk/(blocks*size) + 3
		w := guarded(t, uint64(strips*blocks*size))
		for i := range w {
			w[i] = byte(r.Uint32())
		}
		finite512(t, typ, w, true)
		check512(t, typ, w, strips, input512(t, typ, 15, blocks*elems, 64, func(int) []float32 { return random(r, blocks*elems, 1) }))
	}
}

// TestTiled512EveryByte gives every byte of a block every value, next to bytes of one value, with
// the largest activations of both signs, which give the largest sums.
func TestTiled512EveryByte(t *testing.T) {
	needAVX512(t)
	for _, tt := range tiledTypes {
		typ := tt.t
		t.Run(typ.String(), func(t *testing.T) {
			elems, _ := typ.Block()
			size := blockSize512(t, typ)
			most := input512(t, typ, 13, elems, 0, func(j int) []float32 { // 8, 4 and 1 rows at a time
				x := make([]float32, elems)
				for i := range x {
					x[i] = 127 // same sign; both signs by half blocks; alternating signs
					if j %= 5; j == 1 || j == 2 && i/16%2 == 1 || j == 3 && i%2 == 1 || j == 4 && i%4 == 3 {
						x[i] = -127
					}
				}
				return x
			})
			w := guarded(t, uint64(size))
			for _, fill := range []byte{0, 0x7f, 0x80, 0xff} {
				for v := 0; v < 256; v += exhaustive.Pick(1, 5) { // 255 is among them
					for i := range w {
						w[i] = fill
						if i%7 == v%7 {
							w[i] = byte(i/7 + v)
						}
					}
					finite512(t, typ, w, false)
					check512(t, typ, w, 1, most)
				}
			}
		})
	}
}

// TestTiled512Nothing multiplies with no columns, no strips or no rows.
func TestTiled512Nothing(t *testing.T) {
	needAVX512(t)
	for typ, run := range tiledAVX512() {
		y := slices.Repeat([]float32{1}, 35)
		run(y, 18, nil, 1, &tiledInput{rows: 2})
		for i, v := range y {
			if written := i < 16 || 18 <= i && i < 34; written != (v == 0) {
				t.Errorf("%v: no columns: y[%d] = %v", typ, i, v)
			}
		}
		run(nil, 0, nil, 0, input512(t, typ, 1, 256, 0, func(int) []float32 { return make([]float32, 256) }))
		run(nil, 0, nil, 4, &tiledInput{in: 256})
	}
}

// BenchmarkTiled512 multiplies a matrix of 64 MiB, larger than any cache, on one core.
func BenchmarkTiled512(b *testing.B) {
	needAVX512(b)
	const columns, bytes = 4096, 64 << 20
	r := rand.New(rand.NewPCG(42, 1))
	for _, tt := range tiledTypes {
		typ := tt.t
		elems, _ := typ.Block()
		strip := columns / elems * blockSize512(b, typ)
		strips := bytes / strip
		w, err := allocate(uint64(strips * strip))
		if err != nil {
			b.Fatal(err)
		}
		for i := range w {
			w[i] = byte(i * 2654435761 >> 16)
		}
		finite512(b, typ, w, true)
		y := make([]float32, 64*strips*dtype.TileRows)
		for _, rows := range []int{1, 2, 4, 8, 64} {
			b.Run(fmt.Sprintf("%v/%d", typ, rows), func(b *testing.B) {
				x := input512(b, typ, rows, columns, 64, func(int) []float32 { return random(r, columns, 1) })
				run := tiledAVX512()[typ]
				b.SetBytes(int64(len(w)))
				for b.Loop() {
					run(y, strips*dtype.TileRows, w, strips, x)
				}
				macs := float64(rows) * float64(strips*dtype.TileRows*columns) * float64(b.N)
				b.ReportMetric(macs/b.Elapsed().Seconds()/1e9, "GMAC/s")
			})
		}
	}
}
