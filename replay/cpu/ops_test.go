package cpu

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// extremes are scales that reach subnormal numbers and large ones, without
// overflowing to infinity.
var extremes = []float64{1e-44, 1e-39, 1e-30, 1e-3, 1, 1e4, 1e15}

// weightTypes are the types of untiled weights, and the offsets of the half-precision numbers in
// their blocks.
var weightTypes = func() []weightType {
	list := []weightType{{dtype.FP8, nil}, {dtype.FP8 + 8, nil}} // groups of 32 and 128
	for _, f := range dtype.Forms() {
		if f.Type.Quantized() || f.Type == dtype.F32 || f.Type == dtype.F16 || f.Type == dtype.BF16 {
			list = append(list, weightType{f.Type, f.Offsets()})
		}
	}
	return append(list, mlxRows()...)
}()

type weightType struct {
	t      dtype.Type
	halves []int
}

// mlxRows returns one MLX type for each number of bits.
func mlxRows() (list []weightType) {
	for i, tt := range mlxTypes() {
		if i%2 == i/2%2 {
			list = append(list, weightType{tt.t, []int{0, 2}})
		}
	}
	return list
}

// product names a product of rows of weights.
type product struct {
	weight dtype.Type
	act    uint32 // decl.ActF32 or decl.ActQ8
}

// products lists the implemented products in order.
var products = func() []product {
	var all []product
	for _, w := range weightTypes {
		all = append(all, product{w.t, decl.ActF32})
		if w.t.Integers() {
			all = append(all, product{w.t, decl.ActQ8})
		}
	}
	return all
}()

func (p product) String() string { return fmt.Sprintf("%v/act%d", p.weight, p.act) }

// vector is one row of activations in both forms.
type vector struct {
	input
	floatInput
}

// newInput returns activations in both forms.
func newInput(x []float32) *vector {
	in := &vector{floatInput: floatInput{x: x, in: len(x), rows: 1}}
	if len(x)%blockElems == 0 {
		in.q, in.d = make([]int8, len(x)), make([]float32, len(x)/blockElems)
		quantize(in.q, in.d, x)
		in.s = make([]int16, len(x)/16)
		sumHalves(in.s, in.q)
	}
	return in
}

// run sets y to the product of len(y) rows of w and x.
func (p product) run(o *ops, y []float32, w []byte, x *vector) {
	if p.act == decl.ActQ8 {
		o.rows[p.weight](y, w, &x.input)
	} else {
		o.float[p.weight](y, len(y), w, len(y), &x.floatInput)
	}
}

// hostileWeights returns rows of valid bytes that a quantiser would not write: -128 in Q8_0, all
// patterns of quants and small scales, extremely large scales. They end at an inaccessible page.
func hostileWeights(tb testing.TB, r *rand.Rand, t dtype.Type, n int) []byte {
	size, _ := t.Bytes(uint64(n))
	b := guarded(tb, size)
	for i := range b {
		b[i] = byte(r.Uint32())
		if r.IntN(4) == 0 {
			b[i] = []byte{0x80, 0, 0xff}[r.IntN(3)]
		}
	}
	return finite(t, b)
}

// finite limits the scales of b to less than 2, so that products stay finite.
func finite(t dtype.Type, b []byte) []byte {
	_, block := t.Block()
	for at := 0; at < len(b); at += block {
		switch t.Family() {
		case dtype.FP8:
			b[at+3] &= 0xbf
			for i := at + 4; i < at+block; i++ {
				if b[i]&0x7f == 0x7f {
					b[i] &= 0xf0
				}
			}
		case dtype.F32, dtype.BF16:
			b[at+block-1] &= 0xbf // below 2: no infinity, no NaN
		case dtype.MXFP4:
			b[at] %= 160
		}
		for _, w := range weightTypes {
			if w.t != t {
				continue
			}
			for _, h := range w.halves {
				b[at+h+1] &= 0xbb // half precision, the same; subnormals included
			}
		}
	}
	return b
}

func TestProductsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	sets := implementations()
	for _, p := range products {
		t.Run(p.String(), func(t *testing.T) {
			for range 200 {
				elems, _ := p.weight.Block()
				blocks, rows := r.IntN(9), r.IntN(10)
				n := blocks * elems
				if !p.weight.Quantized() {
					n = r.IntN(140)
				}
				w := hostileWeights(t, r, p.weight, n*rows)
				x := newInput(random(r, n, extremes[r.IntN(len(extremes))]))
				if n%blockElems != 0 && p.act == decl.ActQ8 {
					t.Fatal("a row that is no whole number of blocks")
				}
				want, got := make([]float32, rows), make([]float32, rows)
				p.run(portable(), want, w, x)
				for name, o := range sets {
					p.run(o, got, w, x)
					same(t, fmt.Sprintf("%s: %d rows of %d", name, rows, n), got, want)
				}
			}
		})
	}
}

// TestProductsEveryByte gives every byte of a block every value, which covers all quants and
// small scales in all places, also with the largest activations.
func TestProductsEveryByte(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 1))
	reference, fast := portable(), fastest()
	for _, p := range products {
		if p.act != decl.ActQ8 {
			continue
		}
		elems, size := p.weight.Block()
		most := make([]float32, elems)
		for i := range most {
			most[i] = 127 // same sign, so that sums of pairs are the largest
		}
		for _, x := range [][]float32{random(r, elems, 1), most} {
			in := newInput(x)
			rows := guarded(t, uint64(256*size))
			want, got := make([]float32, 256), make([]float32, 256)
			for _, fill := range []byte{0, 0xff} {
				for at := range size {
					for v := range 256 {
						row := rows[v*size:][:size]
						for i := range row {
							row[i] = fill
						}
						row[at] = byte(v)
					}
					finite(p.weight, rows)
					p.run(reference, want, rows, in)
					p.run(fast, got, rows, in)
					same(t, fmt.Sprintf("%v: byte %d, others %#x", p, at, fill), got, want)
				}
			}
		}
	}
}

// TestSumHalves compares sumHalves with plain sums, including the largest ones.
func TestSumHalves(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 1))
	for n := range 9 {
		q := int8s(guarded(t, uint64(n*16)))
		want := make([]int16, n)
		for i := range q {
			q[i] = int8(r.IntN(255) - 127)
			if i/16%3 == 1 {
				q[i] = int8(127 - 254*(i/16%2))
			}
			want[i/16] += int16(q[i])
		}
		for name, o := range implementations() {
			got := make([]int16, n)
			o.sumHalves(got, q)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	}
}

// TestSumBlocks compares sumBlocks with plain sums times the scales, including the largest ones.
func TestSumBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 2))
	for n := range 14 {
		q, d := int8s(guarded(t, uint64(n*blockElems))), float32s(guarded(t, uint64(4*n)))
		want := make([]float32, n)
		for i := range d {
			sum := 0
			for j := range blockElems {
				v := r.IntN(255) - 127
				if i%3 == 1 {
					v = 127 - 254*(i/3%2)
				}
				q[i*blockElems+j] = int8(v)
				sum += v
			}
			d[i] = float32(r.NormFloat64())
			want[i] = d[i] * float32(sum)
		}
		for name, o := range implementations() {
			got := make([]float32, n)
			o.sumBlocks(got, q, d)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	}
}

// TestProducts compares the integer products with float64 products of the integers and float16 values.
func TestProducts(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	for name, o := range implementations() {
		for _, p := range products {
			t.Run(name+"/"+p.String(), func(t *testing.T) {
				const rows = 7
				elems, _ := p.weight.Block()
				n := 288
				if elems > blockElems {
					n = 3 * elems
				}
				w := randomBytes(t, r, p.weight, rows*n, 1)
				f := dequantized(t, p.weight, w)
				x := newInput(random(r, n, 1))
				v := widen(x.x)
				if p.act == decl.ActQ8 {
					for i, q := range x.q {
						v[i] = float64(x.d[i/blockElems]) * float64(q)
					}
				}
				want := make([]float64, rows)
				for i := range want {
					for j := range n {
						want[i] += f[i*n+j] * v[j]
					}
				}
				got := make([]float32, rows)
				p.run(o, got, w, x)
				near(t, got, want, 2e-6)
			})
		}
	}
}

func TestQuantize(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for _, scale := range append(extremes, 1e38, 0) {
		for range 20 {
			x := random(r, 8*blockElems, scale)
			if scale == 0 {
				x[3] = float32(math.Copysign(0, -1))
			}
			q, d := make([]int8, len(x)), make([]float32, 8)
			quantize(q, d, x)
			for i, v := range x {
				if !isFinite(v) {
					continue // the test's own 1e38 sometimes overflows
				}
				block := d[i/blockElems]
				if err := math.Abs(float64(block)*float64(q[i]) - float64(v)); isFinite(block) && err > 0.501*float64(block)+127*minScale {
					t.Fatalf("scale %g: %v became %d * %v", scale, v, q[i], block)
				}
			}
			q2, d2 := make([]int8, len(x)), make([]float32, 8)
			fastest().quantize(q2, d2, x)
			same(t, "scales", d2, d)
			if fmt.Sprint(q) != fmt.Sprint(q2) {
				t.Fatalf("scale %g: %v and %v", scale, q, q2)
			}
		}
	}
	// Halves round to even.
	x := make([]float32, blockElems)
	x[0], x[1], x[2], x[3], x[4] = 127, 0.5, 1.5, 2.5, -2.5
	for name, o := range implementations() {
		q, d := make([]int8, blockElems), make([]float32, 1)
		o.quantize(q, d, x)
		if fmt.Sprint(q[:5]) != "[127 0 2 2 -2]" || d[0] != 1 {
			t.Errorf("%s: %v * %v", name, q[:5], d[0])
		}
	}
}

// TestQuantizeNotFinite requires only that all implementations give the same result within range:
// the products of a block with an infinite element are not numbers.
func TestQuantizeNotFinite(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		x := make([]float32, blockElems)
		x[5], x[6] = bad, 3
		want, wantD := make([]int8, blockElems), make([]float32, 1)
		quantize(want, wantD, x)
		q, d := make([]int8, blockElems), make([]float32, 1)
		fastest().quantize(q, d, x)
		same(t, "scale", d, wantD)
		for i := range q {
			if q[i] != want[i] || q[i] == -128 {
				t.Errorf("%v: element %d: %d, portable %d", bad, i, q[i], want[i])
			}
		}
	}
}

func TestExp(t *testing.T) {
	worst := 0.0
	check := func(x float32) {
		got, want := exp(x), math.Exp(float64(x))
		switch {
		case x < expMin:
			if got != 0 {
				t.Fatalf("exp(%v) = %v", x, got)
			}
		case x > expMax:
			if !math.IsInf(float64(got), 1) {
				t.Fatalf("exp(%v) = %v", x, got)
			}
		default:
			ulp := float64(math.Nextafter32(float32(want), float32(math.Inf(1)))) - float64(float32(want))
			worst = max(worst, math.Abs(float64(got)-want)/ulp)
		}
	}
	for x := float32(-104); x < 90; x += 1.0 / 1024 {
		check(x)
	}
	r := rand.New(rand.NewPCG(4, 1))
	for range 200000 {
		check(float32(r.NormFloat64()))
		check(float32(r.NormFloat64() * 1e-6))
	}
	for _, x := range []float32{expMin, expMax, 0, float32(math.Inf(1)), minusInf, math.Nextafter32(expMin, -100), math.Nextafter32(expMax, 100)} {
		check(x)
	}
	if worst > 2 {
		t.Errorf("exp is off by %.2f units in the last place", worst)
	}
	if exp(0) != 1 {
		t.Errorf("exp(0) = %v", exp(0))
	}
	if v := exp(float32(math.NaN())); v == v {
		t.Errorf("exp(NaN) = %v", v)
	}
}

func TestExpAgrees(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	for name, fast := range implementations() {
		t.Run(name, func(t *testing.T) { testExpAgrees(t, r, fast) })
	}
}

func testExpAgrees(t *testing.T, r *rand.Rand, fast *ops) {
	above := math.Nextafter32(expMax, 100) // exp is infinite, although a float32 could hold it
	edges := []float32{above, -above, math.Nextafter32(expMin, -100), -math.Nextafter32(expMin, -100), -expMax, -expMin, 1e30, -1e30, 0, 128, -128}
	for range 2000 {
		x := random(r, r.IntN(200), 60)
		if len(x) > 4 {
			for range 3 {
				x[r.IntN(len(x))] = edges[r.IntN(len(edges))]
			}
			x[0], x[1], x[2], x[3] = expMin, expMax, minusInf, float32(math.Inf(1))
		}
		m := float32(r.NormFloat64()) * float32(r.IntN(2))
		want, got := bytesF(x), guardedFloats(t, x)
		expSub(want, m)
		fast.expSub(got, m)
		same(t, "exp", got, want)
		up := random(r, len(x), 1)
		if len(x) > 4 {
			x[2], x[3] = -200, 200
		}
		siluMul(want, x, up)
		fast.siluMul(got, x, up)
		same(t, "silu", got, want)
		geluMul(want, x, up)
		fast.geluMul(got, x, up)
		same(t, "gelu", got, want)
	}
}

func bytesF(x []float32) []float32 { return append([]float32(nil), x...) }

func TestSiLU(t *testing.T) {
	for x := float32(-100); x < 100; x += 1.0 / 64 {
		var got [1]float32
		siluMul(got[:], []float32{x}, []float32{2})
		want := 2 * float64(x) / (1 + math.Exp(-float64(x)))
		if math.Abs(float64(got[0])-want) > 4e-7*math.Abs(want)+1e-36 {
			t.Fatalf("silu(%v)*2 = %v, want %v", x, got[0], want)
		}
	}
}

// TestGELU compares both forms with float64: the tanh approximation with its formula, the other
// with the normal distribution.
func TestGELU(t *testing.T) {
	for x := float32(-100); x < 100; x += 1.0 / 64 {
		v := float64(x)
		for _, c := range []struct {
			name  string
			f     func(dst, gate, up []float32)
			want  float64
			error float64 // relative to the larger of 1 and |x|
		}{
			{"tanh", geluMul, v * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v))), 4e-7},
			{"erf", geluErfMul, v * math.Erfc(-v/math.Sqrt2), 4e-7},
		} {
			var got [1]float32
			c.f(got[:], []float32{x}, []float32{2})
			if !(math.Abs(float64(got[0])-c.want) <= c.error*max(1, math.Abs(v))) {
				t.Fatalf("%s: gelu(%v)*2 = %v, want %v", c.name, x, got[0], c.want)
			}
		}
	}
}

// TestSoftCap compares softCap with float64, also far beyond the cap.
func TestSoftCap(t *testing.T) {
	for name, o := range map[string]*ops{"portable": portable(), "fastest": fastest()} {
		for _, limit := range []float32{0.5, 30, 50} {
			var x, want []float32
			for v := -20 * limit; v <= 20*limit; v += limit / 64 {
				x = append(x, v)
				want = append(want, float32(float64(limit)*math.Tanh(float64(v)/float64(limit))))
			}
			o.softCap(x, limit)
			for i, v := range x {
				if !(math.Abs(float64(v-want[i])) <= 3e-7*float64(limit)) {
					t.Fatalf("%s: %v of bound %v, want %v", name, v, limit, want[i])
				}
			}
		}
	}
}

func TestHalvesAgree(t *testing.T) {
	fast := fastest()
	// All numbers and infinities; the bits of a NaN are not specified.
	var src []byte
	for h := range 1 << 16 {
		if h&0x7c00 != 0x7c00 || h&0x3ff == 0 {
			src = append(src, byte(h), byte(h>>8))
		}
	}
	want, got := make([]float32, len(src)/2), make([]float32, len(src)/2)
	f16ToF32(want, src)
	fast.f16ToF32(got, src)
	same(t, "float32", got, want)
	r := rand.New(rand.NewPCG(6, 1))
	for range 500 {
		x := random(r, r.IntN(70), []float64{1e-9, 1e-7, 1e-5, 1, 1e3, 4e4, 1e6}[r.IntN(7)])
		for i := range x { // halfway cases
			if r.IntN(2) == 0 {
				x[i] = math.Float32frombits(math.Float32bits(x[i])&^0x1fff | 0x1000)
			}
		}
		a, b := make([]byte, 2*len(x)), make([]byte, 2*len(x))
		f32ToF16(a, x)
		fast.f32ToF16(b, x)
		if !bytes.Equal(a, b) {
			t.Fatalf("%v: %x and %x", x, a, b)
		}
	}
}

// isFinite reports whether x is neither infinite nor NaN.
func isFinite(x float32) bool { return math.Float32bits(x)&0x7f800000 != 0x7f800000 }
