package conform

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// TestSingleGEMV compares gemv's form for one row with its general form and with half as many paired SIMD groups, which
// give the same bits, and with the CPU device.
func TestSingleGEMV(t *testing.T) {
	for _, typ := range types() {
		e := typed(t, typ, false)
		elems, _ := typ.Block()
		p := productOf{kernel: kernels.GEMV, t: typ, act: decl.ActQ8, layout: dtype.Tiled16, rows: 1, rowGroup: 1, ahead: 13056, single: true}
		switch {
		case typ == dtype.F16 || typ == dtype.BF16:
			p.act, p.layout, p.stage, p.ahead = decl.ActF32, dtype.Rows, 4352, 8192
		case !slices.Contains([]dtype.Type{dtype.Q4_0, dtype.Q8_0, dtype.Q4_K, dtype.Q5_K, dtype.Q6_K}, typ):
			continue // no entry of gemv has this form
		}
		t.Run(typ.String(), func(t *testing.T) {
			for seed := range seeds(typ, 24) + 8 {
				r := rand.New(rand.NewPCG(seed, 7))
				p.merge = attention{}
				p.out, p.in, p.group = 16*(1+r.IntN(5)), elems*pick(r, 1, 2, 3, 5, 16/(elems/32+1)+1, 1024/elems, 4096/elems), pick(r, 8, 16, 24, 32, 48)
				p.scale = pick(r, 1, 1, 1e-3, 1e4)
				device, exact := 2e-6, 3e-2
				if p.layout == dtype.Rows {
					p.out, p.in, device, exact = 1+r.IntN(70), pick(r, 8, 32, 256, 264, 1016, 2056, 4352), 2e-5, 2e-5
				}
				p.kindOf(r)
				if p.layout != dtype.Rows && (p.silu || p.norm || p.merge.splits > 0) {
					device, exact = 1e-2, 8e-2
				}
				if p.gatedSingle(r); p.apple.gated {
					exact *= 2 // both factors are of rounded inputs
				}
				threads := pick(r, 32, 96, 256, 256, 512, 512)
				p.threads = threads
				p.check(t, e, seed, threads, device, exact)
				p.sameAsGeneral(t, e, seed, threads)
			}
		})
	}
}

// gatedSingle sometimes makes the output of a product in the form for one row gated.
func (p *productOf) gatedSingle(r *rand.Rand) {
	p.apple.gated = (p.norm || p.layout == dtype.Rows && !p.silu && p.merge.splits == 0) && r.IntN(2) == 0
	if p.apple.gated {
		p.out, p.group, p.add, p.gelu = 32*((p.out+31)/32), 16*((p.group+15)/16), false, r.IntN(2) == 1
	}
}

// sameAsGeneral compares the bits of a product with those of gemv's general form, and with those of half as many
// paired SIMD groups if there are 8 or 16. The general form has at most 256, and no gated outputs.
func (p *productOf) sameAsGeneral(t *testing.T, e *emu.Program, seed uint64, threads int) {
	t.Helper()
	k, _ := decl.Lookup(p.kernel)
	run := func(q productOf, threads int) *outcome {
		r := rand.New(rand.NewPCG(seed, uint64(p.t)))
		q.threads = threads
		c, _ := q.command(r)
		tab, slots := c.tableOf(t)
		return c.emulated(t, e, tab, c.contents(t, tab, slots, r), launch{threads: threads, order: emu.Random, seed: seed})
	}
	want := run(*p, threads)
	if threads == 256 || threads == 512 {
		paired := *p
		paired.paired = true
		if err := compare(k, run(paired, threads/2), want, nil); err != nil {
			t.Fatalf("seed %d, %d paired threads, %+v: %v", seed, threads/2, *p, err)
		}
	}
	if threads <= 256 && !p.apple.gated {
		general := *p
		general.single = false
		if err := compare(k, run(general, threads), want, nil); err != nil {
			t.Fatalf("seed %d, %d threads, %+v: beside the general form: %v", seed, threads, *p, err)
		}
	}
}
