package conform

import (
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
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

// kindOfApple selects the input and the output at random, so that the output or the input is one that
// only Apple's GPUs have.
func (p *productOf) kindOfApple(r *rand.Rand) {
	p.kindOf(r)
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

// TestAppleGEMV compares the products that only Apple's GPUs compute with those of the CPU device, which
// sums in a different order, in Apple's configuration if its emulator has the type. NVIDIA's PTX must
// not accept them.
func TestAppleGEMV(t *testing.T) {
	e := inBoth(t)
	made, err := shaders.Made()
	if err != nil {
		t.Fatal(err)
	}
	k, ok := made.Kernel("gemv")
	if !ok {
		t.Fatal("the manifest has no gemv")
	}
	for _, typ := range types() {
		t.Run(typ.String(), func(t *testing.T) {
			elems, _ := typ.Block()
			for seed := range seeds(typ, 24) + 2 {
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
				if _, ok := k.Entry([]uint32{uint32(typ), decl.ActF32, input, 0, uint32(dtype.Rows), p.output(), 0}); ok {
					t.Fatalf("%+v: there is PTX for it", p)
				}
				p.check(t, e.of(typ, 1), seed, pick(r, 32, 64, 96, 128, 192, 256), 2e-5, 2e-5)
			}
		})
	}
}
