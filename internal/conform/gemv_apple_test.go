package conform

import (
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/shaders"
)

// appleProduct describes what only Apple's GPUs do in gemv.
type appleProduct struct {
	sums      int  // the input is scaled, with so many partial sums; 0: it is not
	gated     bool // the output is gated
	addScaled bool // the output is add_scaled; add is set, too
}

// output returns the constant for the output.
func (p *productOf) output() uint32 {
	switch {
	case p.apple.gated:
		return decl.OutputGated
	case p.apple.addScaled:
		return decl.OutputAddScaled
	}
	return one(p.add)
}

// squaresOf returns n partial sums of squares for each row.
func squaresOf(r *rand.Rand, rows, n int, scale float64) []float32 {
	x := normal(r, (rows-1)*((n+3)/4*4)+n, scale)
	for i := range x {
		x[i] *= x[i]
	}
	return x
}

// kindOfApple selects the input and the output at random. In most cases one of them is one that only
// Apple's GPUs have.
func (p *productOf) kindOfApple(r *rand.Rand) {
	p.kindOf(r)
	if r.IntN(4) == 0 {
		return
	}
	if r.IntN(2) == 0 {
		p.silu, p.norm, p.merge, p.apple.sums = false, false, attention{}, pick(r, 1, 5, 40, 64)
	}
	p.apple.gated = !p.silu && r.IntN(2) == 0
	p.apple.addScaled = !p.apple.gated && (p.apple.sums == 0 || r.IntN(2) == 0)
	switch {
	case p.apple.gated:
		p.out, p.group, p.add, p.gelu = 2*p.out, 2*p.group, false, r.IntN(2) == 1
	case p.apple.addScaled:
		p.add = true
	}
}

// TestAppleGEMV compares products of rows in Apple's configuration with those of the CPU device, which
// sums in a different order. NVIDIA's PTX must not accept those that only Apple's GPUs compute.
func TestAppleGEMV(t *testing.T) {
	e := builds.Get(t, appleChecked)
	made, err := shaders.Made()
	if err != nil {
		t.Fatal(err)
	}
	k, ok := made.Kernel("gemv")
	if !ok {
		t.Fatal("the manifest has no gemv")
	}
	for _, typ := range types() {
		if !emu.Sampled(typ) {
			continue
		}
		t.Run(typ.String(), func(t *testing.T) {
			elems, _ := typ.Block()
			for seed := range seeds(typ, 24) + 3 {
				r := rand.New(rand.NewPCG(seed, 4))
				p := productOf{
					kernel: kernels.GEMV, t: typ, act: decl.ActF32, layout: dtype.Rows,
					out: 1 + r.IntN(70), in: elems * pick(r, 1, 2, 3, 9, 5000/elems),
					rows: pick(r, 1, 1, 3), rowGroup: pick(r, 1, 2), group: pick(r, 1, 2, 4, 7, 8, 16, 32, 64),
					scale: pick(r, 1, 1, 1e-3, 1e4),
				}
				if elems == 1 {
					p.in = pick(r, 1, 7, 8, 32, 100, 256, 264, 1016, 2056, 4100, 4352)
				}
				p.kindOfApple(r)
				input := uint32(decl.InputPlain)
				if p.apple.sums > 0 {
					input = decl.InputScaled
				}
				if _, ok := k.Entry([]uint32{uint32(typ), decl.ActF32, input, 0, uint32(dtype.Rows), p.output(), 0, 0}); ok == (p.apple != appleProduct{}) {
					t.Fatalf("%+v: there is PTX for it: %t", p, ok)
				}
				p.check(t, e, seed, pick(r, 32, 64, 96, 128, 192, 256), 2e-5, 2e-5)
			}
		})
	}
}

// TestAppleRows computes rows of the products that only Apple's GPUs compute alone, and among other
// rows. The input is longer than what is staged at a time.
func TestAppleRows(t *testing.T) {
	e := builds.Get(t, appleFast)
	for _, typ := range []dtype.Type{dtype.F16, dtype.Q4_0, dtype.Q4_K} {
		t.Run(typ.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(typ)))
			const rows, out, in, sums = 3, 24, 9 * 256, 5
			m := newMatrix(r, typ, out, in)
			of := func(input, output uint32, x []float32, also map[string][]byte, absent ...string) command {
				c := command{
					kernel: kernels.GEMV, apple: true, threads: 128, absent: absent, input: also,
					specs:  []uint32{uint32(typ), decl.ActF32, input, 0, uint32(dtype.Rows), output, 0},
					params: kernels.GEMVParams{In: in, Out: out, XStride: in, YStride: out, Group: 8, RowGroup: uint32(len(x) / in), Eps: 1e-6, Splits: sums},
					second: pianolaSecond{rows: uint32(len(x) / in)},
				}
				c.input["x"], c.input["w"] = f32(x), m.bytes(dtype.Rows)
				return c
			}
			x, y, squares := normal(r, rows*in, 1), normal(r, rows*out, 1), squaresOf(r, rows, sums, 1)
			gated := func(first, n int) command {
				const row = (sums + 3) / 4 * 4
				return of(decl.InputScaled, decl.OutputGated, x[first*in:][:n*in], map[string][]byte{"x2": f32(squares[first*row:][:(n-1)*row+sums])}, "b", "next", "scaled", "squares")
			}
			sameRow(t, e, rows, gated(0, rows), func(row int) command { return gated(row, 1) }, kernels.GEMVBindY, 4*out, 4*out/2)
			next, norm := f32(normal(r, out, 1)), f32(normal(r, in, 1))
			scaled := func(first, n int) command {
				return of(decl.InputNorm, decl.OutputAddScaled, x[first*in:][:n*in], map[string][]byte{"x2": norm, "y": f32(y[first*out:][:n*out]), "next": next}, "b")
			}
			for _, of := range []struct{ binding, stride, size int }{
				{kernels.GEMVBindY, 4 * out, 4 * out}, {kernels.GEMVBindScaled, 4 * out, 4 * out}, {kernels.GEMVBindSquares, 4 * 4, 4 * out / 8},
			} {
				sameRow(t, e, rows, scaled(0, rows), func(row int) command { return scaled(row, 1) }, of.binding, of.stride, of.size)
			}
		})
	}
}
