package cpu

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// halvesBytes converts rows to float16 with several teams and sets of loops, which must give the
// same bytes.
func halvesBytes(t *testing.T, act uint32, x, x2 []float32, in, stride, rows int) []byte {
	t.Helper()
	specs, missing := []uint32{decl.InputPlain, 0, act}, []string{"x2"}
	if x2 != nil {
		specs, missing = []uint32{decl.InputSiLUMul, 0, act}, nil
	}
	var first []byte
	for name, o := range implementations() {
		s := newSolo(t, kernels.Halves, specs, kernels.HalvesParams{In: uint32(in), XStride: uint32(stride)}, second(0, 0, rows), missing...)
		s.fill("x", x)
		if x2 != nil {
			s.fill("x2", x2)
		}
		for parts := 1; parts <= 3; parts++ {
			clear(s.bytes("out"))
			s.run(o, parts)
			if first == nil {
				first = bytes.Clone(s.bytes("out"))
			} else if !bytes.Equal(s.bytes("out"), first) {
				t.Fatalf("%s, %d workers: other bytes", name, parts)
			}
		}
	}
	return first
}

// TestRowsOfHalves checks that a row of one or two terms equals the input to 2^-11 or 2^-22 of its
// largest element, that its padding is zero, and that its unit is as declared.
func TestRowsOfHalves(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 1))
	for _, scale := range []float64{1, 3e-20, 1e25} {
		for i := range 4 {
			silu, terms := i%2 == 1, 1+i/2
			act := decl.ActF16 + uint32(i/2)
			const rows, in, stride = 3, 72, 75
			n := (rows-1)*stride + in
			x, x2 := random(r, n, scale), []float32(nil)
			if silu {
				x, x2 = random(r, n, 4), random(r, n, scale)
			}
			b := halvesBytes(t, act, x, x2, in, stride, rows)
			for row := range rows {
				want := append([]float32{}, x[row*stride:][:in]...)
				if silu {
					siluMul(want, want, x2[row*stride:][:in])
				}
				var most float64
				for _, v := range want {
					most = max(most, math.Abs(float64(v)))
				}
				h := halvesLayout{in, terms, false}.row(b, rows, row)
				if f, _ := math.Frexp(float64(h.unit())); f != 0.5 || most < 1024*float64(h.unit()) || most >= 2048*float64(h.unit()) {
					t.Fatalf("a unit of %g for a largest element of %g", h.unit(), most)
				}
				got := make([]float32, h.n)
				h.get(got)
				for i, g := range got {
					var w float64
					if i < in {
						w = float64(want[i])
					}
					if d := math.Abs(float64(g) - w); !(d <= math.Ldexp(most, -11*terms)) {
						t.Fatalf("column %d: %g, want %g", i, g, w)
					}
				}
			}
		}
	}
	zero := halvesBytes(t, decl.ActF16x2, make([]float32, 8), nil, 8, 8, 1)
	x := make([]float32, 8)
	for i := range x {
		x[i] = 1
	}
	if (halvesLayout{8, 2, false}).row(zero, 1, 0).get(x); x[0] != 0 || x[7] != 0 {
		t.Errorf("of zeros: %v", x)
	}
}

// TestGEMMHalves compares products of rows of two terms with those of the original input.
func TestGEMMHalves(t *testing.T) {
	r := rand.New(rand.NewPCG(32, 1))
	for _, typ := range []dtype.Type{dtype.F16, dtype.BF16} {
		for _, bias := range []uint32{0, 1} {
			const rows, in, out = 3, 136, 21
			x, b, w := random(r, rows*in, 2), random(r, out, 1), randomBytes(t, r, typ, out*in, 1)
			missing := []string{"b"}[:1-bias]
			s := newSolo(t, kernels.GEMMHalves, []uint32{uint32(typ), bias, decl.ActF16x2, 0},
				kernels.GEMMHalvesParams{In: in, Out: out, YStride: out, Group: 8, RowGroup: 64}, second(0, 0, rows), missing...)
			copy(s.bytes("x"), halvesBytes(t, decl.ActF16x2, x, nil, in, in, rows))
			plain := newSolo(t, kernels.GEMM, []uint32{uint32(typ), decl.ActF32, decl.InputPlain, bias},
				kernels.GEMMParams{In: in, Out: out, XStride: in, YStride: out, Group: 8, RowGroup: 64}, second(0, 0, rows), append(missing, "x2")...)
			plain.fill("x", x)
			for _, s := range []*solo{s, plain} {
				copy(s.bytes("w"), w)
				if bias != 0 {
					s.fill("b", b)
				}
			}
			got, want := s.everywhere("y", nil), plain.everywhere("y", nil)
			for i := range want {
				if d := math.Abs(float64(got[i] - want[i])); !(d <= 1e-5*max(1, math.Abs(float64(want[i])))) {
					t.Fatalf("%v, bias %d: element %d: %v, want %v", typ, bias, i, got[i], want[i])
				}
			}
		}
	}
	s := newSolo(t, kernels.GEMMHalves, []uint32{uint32(dtype.F16), 0, decl.ActF16x2, 0}, kernels.GEMMHalvesParams{In: 8, Out: 1, YStride: 1, Group: 1, RowGroup: 64}, second(0, 0, 1), "b")
	s.b.t.Specs[0].Values[kernels.GEMMHalvesSpecWType] = uint32(dtype.F32)
	if _, err := bind(portable(), s.b.t, s.mem, &table.Step{}); err == nil {
		t.Error("float32 weights are accepted")
	}
}

// TestGEMMHalvesTiles compares products of one float16 term and weights in tiles with float64.
func TestGEMMHalvesTiles(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 1))
	for _, f := range dtype.Forms() {
		if !f.HalfRange() {
			continue
		}
		const rows, in, out = 3, 512, 32
		x, w := random(r, rows*in, 2), randomBytes(t, r, f.Type, out*in, 1)
		s := newSolo(t, kernels.GEMMHalves, []uint32{uint32(f.Type), 0, decl.ActF16, uint32(dtype.Tiled16)},
			kernels.GEMMHalvesParams{In: in, Out: out, YStride: out, Group: 16, RowGroup: 64}, second(0, 0, rows), "b")
		copy(s.bytes("x"), halvesBytes(t, decl.ActF16, x, nil, in, in, rows))
		if err := dtype.Tile(f.Type, s.bytes("w"), w, out, in); err != nil {
			t.Fatal(err)
		}
		elements := make([]float32, out*in)
		if err := dtype.Dequantize(f.Type, elements, w); err != nil {
			t.Fatal(err)
		}
		for i, got := range s.everywhere("y", nil) {
			var want, norm float64
			for k, e := range elements[i%out*in:][:in] {
				p := float64(e) * float64(x[i/out*in+k])
				want += p
				norm += p * p
			}
			if d := math.Abs(float64(got) - want); !(d <= 2e-3*math.Sqrt(norm)) {
				t.Fatalf("%s: element %d: %v, want %v", f.Name, i, got, want)
			}
		}
	}
	s := newSolo(t, kernels.GEMMHalves, []uint32{uint32(dtype.Q4_0), 0, decl.ActF16, uint32(dtype.Tiled16)}, kernels.GEMMHalvesParams{In: 64, Out: 16, YStride: 16, Group: 16, RowGroup: 64}, second(0, 0, 1), "b")
	s.b.t.Specs[0].Values[kernels.GEMMHalvesSpecWType] = uint32(dtype.MXFP4)
	if _, err := bind(portable(), s.b.t, s.mem, &table.Step{}); err == nil {
		t.Error("weights beyond the range of float16 are accepted")
	}
}
