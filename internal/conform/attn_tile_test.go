package conform

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// tile holds the arguments that attn_tile has in place of those of attn. units is 0 for attn.
type tile struct {
	units, slots, threads int
	act                   uint32 // 0, float32, in Apple's configuration
	halves, few           bool   // the results are rows of float16
	segments              bool   // the positions are divided into segments
}

// tiled returns the command for attn_tile that computes the same as one for attn.
func (a attention) tiled(c command) command {
	p := c.params.(kernels.AttnParams)
	c.kernel, c.threads = kernels.AttnTile, uint32(a.tile.threads)
	c.specs = []uint32{uint32(a.headDim), one(a.window > 0), one(a.q8), one(a.learned), a.tile.act, 0, one(a.tile.halves), one(a.tile.segments)}
	c.params = kernels.AttnTileParams{
		Heads: p.Heads, KVHeads: p.KVHeads, QStride: p.QStride, Cap: p.Cap, Window: p.Window, Scale: p.Scale, SoftCap: p.SoftCap,
		Units: uint32(a.tile.units), Slots: uint32(a.tile.slots),
		Few: one(a.tile.few),
	}
	c.absent = slices.DeleteFunc(c.absent, func(name string) bool { return name == "turn" })
	if a.tile.halves {
		c.absent = append(c.absent, "out")
	} else {
		c.absent = append(c.absent, "halves")
	}
	return c
}

// matrices returns the arguments for SIMD-group matrices.
func (a attention) matrices() tile {
	switch {
	case a.headDim <= 64:
		return tile{units: 4, threads: 128}
	case a.headDim <= 128:
		return tile{units: 2, threads: 128}
	}
	return tile{units: 1, threads: 64}
}

// randomTile returns a shape of attn_tile. Only some have many rows and positions, which take long.
func randomTile(r *rand.Rand, seed uint64) (a attention, tol float64) {
	a = randomAttention(r, 300).withoutSinks()
	a.span, a.splits = 0, 0
	// The head sizes for which the kernel has separate code, and sizes between them.
	sizes := []int{64, 128, 256, 80, 96, 160, 192, 16, 48, 112, 144, 224}
	a.headDim = sizes[seed%uint64(len(sizes))]
	a.q8 = a.q8 && a.headDim%32 == 0
	a.rows = pick(r, 1, 3, 17, 40, 70)
	a.context = a.kvLen + a.rows - 1 + r.IntN(100)
	a.softCap = pick(r, 0, 0, 3, 50.0)
	a.tile = tile{units: 1 + r.IntN(2), slots: 2 + r.IntN(3), threads: 256, act: decl.ActF16}
	if a.tile.units == 1 && r.IntN(3) == 0 {
		a.tile.threads = 128
	}
	tol = 2e-3
	if r.IntN(2) == 0 {
		a.tile.act, tol = decl.ActF16x2, 1e-5
	}
	if a.tile.act == decl.ActF16 && a.kvHeads*a.shared*a.headDim%64 == 0 && r.IntN(2) == 0 {
		a.tile.halves, a.tile.few, tol = true, a.rows <= 64 && r.IntN(2) == 0, 3e-3
	}
	if a.tile.act == decl.ActF16 && r.IntN(2) == 0 {
		a.tile.segments = true
		if a.rows < 40 && seed%3 == 0 {
			a.kvLen = 400 + r.IntN(900)
			a.context = a.kvLen + a.rows - 1 + r.IntN(100)
		}
	}
	if a.softCap > 0 { // the cap has an error of 3e-7 of its largest score
		tol = max(tol, 1e-4)
	}
	if a.q8 { // the values of the cache are rounded to float16
		tol = 5e-3
	}
	return a, tol
}

// testAttnTile compares prefill attention of random shapes with the CPU device and with float64, in
// three orders. In Apple's configuration Q and the weights are float32.
func testAttnTile(t *testing.T, p *emu.Program, first, end uint64) {
	for seed := first; seed < end; seed++ {
		r := rand.New(rand.NewPCG(seed, 6))
		a, tol := randomTile(r, seed)
		if p.Apple() {
			a.tile = a.matrices()
			if !a.q8 && a.softCap == 0 {
				tol = 2e-5
			}
		}
		checkAttn(t, p, a, r, seed, tol)
	}
}
