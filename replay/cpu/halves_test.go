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

// halvesBytes converts rows to split rows with several teams and sets of loops, which must give
// the same bytes.
func halvesBytes(t *testing.T, x, x2 []float32, in, stride, rows int) []byte {
	t.Helper()
	specs, missing := []uint32{decl.InputPlain}, []string{"x2"}
	if x2 != nil {
		specs, missing = []uint32{decl.InputSiLUMul}, nil
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

// TestRowsOfHalves checks that a split row equals the input to 2^-22 of its largest element, that
// its padding is zero, and that its unit is as declared.
func TestRowsOfHalves(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 1))
	for _, scale := range []float64{1, 3e-20, 1e25} {
		for _, silu := range []bool{false, true} {
			const rows, in, stride = 3, 72, 75
			n := (rows-1)*stride + in
			x, x2 := random(r, n, scale), []float32(nil)
			if silu {
				x, x2 = random(r, n, 4), random(r, n, scale)
			}
			b := halvesBytes(t, x, x2, in, stride, rows)
			for row := range rows {
				want := append([]float32{}, x[row*stride:][:in]...)
				if silu {
					siluMul(want, want, x2[row*stride:][:in])
				}
				var most float64
				for _, v := range want {
					most = max(most, math.Abs(float64(v)))
				}
				h := halvesOf(b, in, row)
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
					if d := math.Abs(float64(g) - w); !(d <= most*0x1p-22) {
						t.Fatalf("column %d: %g, want %g", i, g, w)
					}
				}
			}
		}
	}
	zero := halvesBytes(t, make([]float32, 8), nil, 8, 8, 1)
	x := make([]float32, 8)
	for i := range x {
		x[i] = 1
	}
	if halvesOf(zero, 8, 0).get(x); x[0] != 0 || x[7] != 0 {
		t.Errorf("of zeros: %v", x)
	}
}

// TestGEMMHalves compares products of split rows with those of the original input.
func TestGEMMHalves(t *testing.T) {
	r := rand.New(rand.NewPCG(32, 1))
	for _, typ := range []dtype.Type{dtype.F16, dtype.BF16} {
		for _, bias := range []uint32{0, 1} {
			const rows, in, out = 3, 136, 21
			x, b, w := random(r, rows*in, 2), random(r, out, 1), randomBytes(t, r, typ, out*in, 1)
			missing := []string{"b"}[:1-bias]
			s := newSolo(t, kernels.GEMMHalves, []uint32{uint32(typ), bias},
				kernels.GEMMHalvesParams{In: in, Out: out, YStride: out, Group: 8, RowGroup: 64}, second(0, 0, rows), missing...)
			copy(s.bytes("x"), halvesBytes(t, x, nil, in, in, rows))
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
	s := newSolo(t, kernels.GEMMHalves, []uint32{uint32(dtype.F16), 0}, kernels.GEMMHalvesParams{In: 8, Out: 1, YStride: 1, Group: 1, RowGroup: 64}, second(0, 0, 1), "b")
	s.b.t.Specs[0].Values[kernels.GEMMHalvesSpecWType] = uint32(dtype.F32)
	if _, err := bind(portable(), s.b.t, s.mem, &table.Step{}, 1); err == nil {
		t.Error("float32 weights are accepted")
	}
}
