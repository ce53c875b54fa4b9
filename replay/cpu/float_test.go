package cpu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// untouched marks the gaps between rows of y, which products must not write.
const untouched = 12345.5

var floatTypes = []dtype.Type{dtype.F32, dtype.F16, dtype.BF16}

// guardedFloats returns values in memory that ends at an inaccessible page.
func guardedFloats(tb testing.TB, values []float32) []float32 {
	x := float32s(guarded(tb, uint64(4*len(values))))
	copy(x, values)
	return x
}

// TestFloatAgrees compares the products of several rows of activations with the dot products of
// each pair of rows, with various strides and tails. Rows of two-byte elements begin at any
// address.
func TestFloatAgrees(t *testing.T) {
	r := rand.New(rand.NewPCG(61, 1))
	for name, o := range implementations() {
		for _, typ := range floatTypes {
			t.Run(fmt.Sprintf("%s/%v", name, typ), func(t *testing.T) {
				for i := range 300 {
					n, in, rows := r.IntN(12), r.IntN(100), r.IntN(15)
					switch r.IntN(5) {
					case 0, 1:
						in = in &^ 15
					case 2: // long rows, and one row of activations
						in, rows = 64*(1+r.IntN(9)), 1
					case 3: // rows of K, several of which are multiplied together
						n, in, rows = r.IntN(40), 64*(1+r.IntN(3)), 1+r.IntN(3)
					}
					if i%30 == 0 { // rows that are computed in slices of their columns, with more activations than sums fit
						n, in, rows = r.IntN(36), 1025+r.IntN(1200), 6+r.IntN(64)
					}
					x := &floatInput{in: in, stride: in + r.IntN(3), rows: rows}
					x.x = guardedFloats(t, random(r, max(0, (rows-1)*x.stride+in), extremes[r.IntN(len(extremes))]))
					w := hostileWeights(t, r, typ, n*in)
					decoded := make([]float32, n*in)
					if err := dtype.Dequantize(typ, decoded, w); err != nil {
						t.Fatal(err)
					}
					yStride := n + r.IntN(3)
					y := guardedFloats(t, make([]float32, max(0, (rows-1)*yStride+n)))
					for i := range y {
						y[i] = untouched
					}
					o.float[typ](y, yStride, w, n, x)
					what := fmt.Sprintf("%d rows of %d, %d of x", n, in, rows)
					for j := range rows {
						want := make([]float32, n)
						for i := range want {
							want[i] = dot(decoded[i*in:][:in], x.row(j))
						}
						same(t, what, y[j*yStride:][:n], want)
						for _, v := range y[j*yStride+n : min(len(y), (j+1)*yStride)] {
							if v != untouched {
								t.Fatalf("%s: wrote %v between rows", what, v)
							}
						}
					}
				}
			})
		}
	}
}

// TestFloatChunks uses more weights than are processed at a time, in rows that are computed in slices, also after FP8
// has become float32.
func TestFloatChunks(t *testing.T) {
	r := rand.New(rand.NewPCG(62, 1))
	const n, in, rows = 301, 1152, 9
	for _, typ := range append([]dtype.Type{dtype.FP8, dtype.FP8 + 8}, floatTypes...) {
		w := randomBytes(t, r, typ, n*in, 1)
		x := &floatInput{x: random(r, rows*in, 1), in: in, stride: in, rows: rows}
		want := make([]float32, rows*n)
		portable().float[typ](want, n, w, n, x)
		for name, o := range implementations() {
			got := make([]float32, rows*n)
			o.float[typ](got, n, w, n, x)
			same(t, fmt.Sprintf("%s/%v", name, typ), got, want)
		}
	}
}

// TestDot compares dot with the order of sums in doc.go, written out, and with float64.
func TestDot(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	for n := range 200 {
		a, b := guardedFloats(t, random(r, n, 1)), guardedFloats(t, random(r, n, 1e3))
		var sums [16]float32
		var exact, size float64
		for i := range a {
			sums[i%16] = fma32(a[i], b[i], sums[i%16])
			exact += float64(a[i]) * float64(b[i])
			size += math.Abs(float64(a[i]) * float64(b[i]))
		}
		for half := 8; half > 0; half /= 2 {
			for l := range half {
				sums[l] += sums[l+half]
			}
		}
		for name, o := range implementations() {
			got := o.dot(a, b)
			same(t, fmt.Sprintf("%s: %d", name, n), []float32{got}, sums[:1])
			if math.Abs(float64(got)-exact) > 1e-6*size {
				t.Errorf("%s: %d: %v, want %v", name, n, got, exact)
			}
		}
	}
}

func TestAddScaled(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 1))
	for name, o := range implementations() {
		t.Run(name, func(t *testing.T) {
			for range 500 {
				n, m, rows := r.IntN(170), r.IntN(66), r.IntN(10)
				if r.IntN(2) == 0 {
					n = n &^ 7
				}
				v := hostileWeights(t, r, dtype.F16, n*m)
				f := make([]float32, n*m)
				f16ToF32(f, v)
				wStride := m + r.IntN(3)
				w := guardedFloats(t, random(r, max(0, (rows-1)*wStride+m), extremes[r.IntN(len(extremes))]))
				got := guardedFloats(t, random(r, rows*n, 1))
				want := bytesF(got)
				for i := range want {
					for j := range m {
						want[i] = fma32(w[i/n*wStride+j], f[j*n+i%n], want[i])
					}
				}
				o.addScaledF16(got, n, v, m, w, wStride)
				same(t, fmt.Sprintf("%d rows of %d to %d", m, n, rows), got, want)
			}
		})
	}
}

// TestQ8Agrees compares the loops over int8 caches with dot products and fused sums of the
// converted cache.
func TestQ8Agrees(t *testing.T) {
	r := rand.New(rand.NewPCG(66, 1))
	for name, o := range implementations() {
		t.Run(name, func(t *testing.T) {
			for range 300 {
				d, m, rows := 32*(1+r.IntN(9)), 1+r.IntN(66), 1+r.IntN(10)
				q, scales := guarded(t, uint64(d*m)), guardedFloats(t, random(r, d*m/32, extremes[r.IntN(5)]))
				for i := range q {
					q[i] = byte(r.Uint32())
				}
				for i := range scales { // exact in float16
					scales[i] = math.Float32frombits(math.Float32bits(scales[i]) &^ 0x1fff)
				}
				f := make([]float32, d*m)
				for i := range f {
					f[i] = float32(int8(q[i])) * scales[i/32]
				}
				what := fmt.Sprintf("%d rows of %d, %d of x", m, d, rows)

				x := &floatInput{in: d, stride: d + r.IntN(3), rows: rows}
				x.x = guardedFloats(t, random(r, (rows-1)*x.stride+d, 1))
				stride := m + r.IntN(3)
				y := guardedFloats(t, random(r, (rows-1)*stride+m, 1))
				o.dotQ8(y, stride, q, scales, m, x)
				for j := range rows {
					want := make([]float32, m)
					for i := range want {
						want[i] = dot(f[i*d:][:d], x.row(j))
					}
					same(t, "products of "+what, y[j*stride:][:m], want)
				}

				w, got := guardedFloats(t, random(r, (rows-1)*stride+m, 1)), guardedFloats(t, random(r, rows*d, 1))
				want := bytesF(got)
				for i := range want {
					for j := range m {
						want[i] = fma32(w[i/d*stride+j], f[j*d+i%d], want[i])
					}
				}
				o.addScaledQ8(got, d, q, scales, m, w, stride)
				same(t, "sums of "+what, got, want)
			}
		})
	}
}

func TestScaleMax(t *testing.T) {
	r := rand.New(rand.NewPCG(63, 1))
	zero, nan := float32(math.Copysign(0, -1)), float32(math.NaN())
	for name, o := range implementations() {
		for n := range 70 {
			for _, special := range []float32{1, zero, nan, minusInf} {
				x := guardedFloats(t, random(r, n, 10))
				for i := range x {
					if r.IntN(3) == 0 || special == zero {
						x[i] = special
					}
				}
				want, top := bytesF(x), minusInf
				for i := range want {
					want[i] *= 0.125
					if want[i] >= top {
						top = want[i] + 0
					}
				}
				got := o.scaleMax(x, 0.125)
				same(t, fmt.Sprintf("%s: maximum of %d", name, n), []float32{got}, []float32{top})
				for i, v := range x {
					if v == v || want[i] == want[i] {
						same(t, name, x[i:i+1], want[i:i+1])
					}
				}
			}
		}
	}
}

// TestHalves converts all float16 values, and converts to float16 all of them, the midpoints
// between them, and the float32 values next to those.
func TestHalves(t *testing.T) {
	var src []byte
	var near []float32
	for h := range 1 << 16 {
		if h&0x7c00 == 0x7c00 && h&0x3ff != 0 {
			continue // the bits of a NaN are not specified
		}
		src = append(src, byte(h), byte(h>>8))
		v := dtype.F16ToF32(uint16(h))
		mid := (v + dtype.F16ToF32(uint16(h+1))) / 2 // not a number after the largest
		if !isFinite(mid) {
			mid = float32(math.Copysign(65520, float64(v)))
		}
		for _, x := range []float32{v, mid} {
			inf := float32(math.Inf(1))
			near = append(near, x, math.Nextafter32(x, inf), math.Nextafter32(x, -inf))
		}
	}
	for name, o := range implementations() {
		got := make([]float32, len(src)/2)
		o.f16ToF32(got, src)
		for i, v := range got {
			h := uint16(src[2*i]) | uint16(src[2*i+1])<<8
			want := math.Ldexp(float64(h&0x3ff), -24)
			switch e := int(h >> 10 & 31); {
			case e == 31:
				want = math.Inf(1)
			case e > 0:
				want = math.Ldexp(float64(h&0x3ff|0x400), e-25)
			}
			if h>>15 != 0 {
				want = -want
			}
			if float64(v) != want || math.Signbit(float64(v)) != (h>>15 != 0) {
				t.Fatalf("%s: %#x is %v, want %v", name, h, v, want)
			}
		}
		back := make([]byte, len(src))
		o.f32ToF16(back, got)
		if !bytes.Equal(back, src) {
			t.Errorf("%s: float16 to float32 and back differs", name)
		}
		a, b := make([]byte, 2*len(near)), make([]byte, 2*len(near))
		f32ToF16(a, near)
		o.f32ToF16(b, near)
		for i, x := range near {
			if !bytes.Equal(a[2*i:2*i+2], b[2*i:2*i+2]) {
				t.Fatalf("%s: %v is %x, portable %x", name, x, b[2*i:2*i+2], a[2*i:2*i+2])
			}
		}
	}
}

// TestFP8 compares the conversion of every byte, NaN included, with the reference.
func TestFP8(t *testing.T) {
	typ, _ := dtype.FP8Type(128)
	for _, scale := range []float32{1, -0.0371, 1e-40, 3e38} {
		for half := range 2 {
			block := binary.LittleEndian.AppendUint32(nil, math.Float32bits(scale))
			for i := range 128 {
				block = append(block, byte(128*half+i))
			}
			for i := range 128 {
				one := make([]float32, 128)
				one[i] = 1
				x := &floatInput{x: one, in: 128, stride: 128, rows: 1}
				want, got := make([]float32, 1), make([]float32, 1)
				clean := bytes.Clone(block)
				for k := range clean[4:] {
					if k != i {
						clean[4+k] = 0
					}
				}
				portable().float[typ](want, 1, clean, 1, x)
				fastest().float[typ](got, 1, clean, 1, x)
				if math.Float32bits(got[0]) != math.Float32bits(want[0]) && !(got[0] != got[0] && want[0] != want[0]) {
					t.Fatalf("byte %#x times %v is %v, want %v", 128*half+i, scale, got[0], want[0])
				}
			}
		}
	}
}
