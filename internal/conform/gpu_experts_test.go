package conform

import (
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/replay/cuda"
)

// TestGPUExperts runs expert_rows and expert_gemm on a GPU, for every type of weights, and compares them with the
// CPU device. Repeated runs must give the same bits.
func TestGPUExperts(t *testing.T) {
	g, err := cuda.FindGPU("", 0)
	if err != nil {
		t.Skipf("no GPU to run on: %v", err)
	}
	if g.Major < 9 {
		t.Skipf("%s has no expert_gemm", g.Name)
	}
	for i, typ := range append(halfTypes(), dtype.MXFP4) {
		t.Run(typ.String(), func(t *testing.T) {
			cache := t.TempDir()
			for seed := range uint64(4) {
				r := rand.New(rand.NewPCG(seed, 90+uint64(i)))
				p := expertTiles{
					t: typ, act: decl.ActF16, rows: pick(r, 1, 40, 200), in: 256 * pick(r, 1, 2, 3, 5), out: 16 * pick(r, 1, 8, 13),
					experts: pick(r, 2, 8, 33, 70), group: 128, rowGroup: 64, bias: r.IntN(2) == 1, nvidia: true, one: seed == 1,
				}
				p.used = 1 + r.IntN(min(p.experts, 8))
				p.share = pick(r, 1, p.used)
				p.checkGPU(t, r, seed, cache)
			}
		})
	}
}

// checkGPU tests one chunk.
func (p *expertTiles) checkGPU(t *testing.T, r *rand.Rand, seed uint64, cache string) {
	t.Helper()
	ids := p.ids(r)
	list := command{
		kernel: kernels.ExpertRows, params: kernels.ExpertRowsParams{Experts: uint32(p.experts), Used: uint32(p.used)},
		second: pianolaSecond{rows: uint32(p.rows)}, input: map[string][]byte{"ids": u32(ids...)},
	}
	tab, slots := list.tableOf(t)
	cpu := list.onCPU(t, tab, slots, list.contents(t, tab, slots, r)).bindings[kernels.ExpertRowsBindList]
	if got := list.onGPU(t, r, cache)[kernels.ExpertRowsBindList]; string(got) != string(cpu) {
		t.Fatalf("seed %d, %+v: the list differs from the CPU device's", seed, *p)
	}
	m := newMatrix(r, p.t, p.experts*p.out, p.in)
	x := halvesOf(normal(r, p.rows*p.used/p.share*p.in, 1), p.in, p.act)
	c := p.command(m, x, cpu, normal(r, p.experts*p.out, 1), p.rows)
	tab, slots = c.tableOf(t)
	k, _ := decl.Lookup(c.kernel)
	want := c.onCPU(t, tab, slots, c.contents(t, tab, slots, r))
	var first []byte
	for run := range 3 {
		got := c.onGPU(t, r, cache)[kernels.ExpertGEMMBindY]
		if first == nil {
			first = got
			one := outcome{bindings: want.bindings}
			one.bindings[kernels.ExpertGEMMBindY] = got
			if err := compare(k, &one, want, map[string]tolerance{"y": {p.out, p.limit(), false}}); err != nil {
				t.Fatalf("seed %d, %+v: beside the CPU device: %v", seed, *p, err)
			}
		} else if n, element := differences(got, first); n > 0 {
			t.Fatalf("seed %d, %+v: run %d has %d other elements than the first: %s", seed, *p, run, n, element)
		}
	}
}

// limit is the tolerance of the products.
func (p *expertTiles) limit() float64 {
	if f := dtype.FormOf(p.t); p.nvidia && f != nil && (f.Minimum || f.Parts() > 0) {
		return 3e-3 // scales and minimums are rounded too
	}
	return halfLimit(p.t)
}

// ids returns random experts, or the second for all products.
func (p *expertTiles) ids(r *rand.Rand) []uint32 {
	ids := make([]uint32, p.rows*p.used)
	for i := range ids {
		if ids[i] = 1; !p.one {
			ids[i] = uint32(r.IntN(p.experts + 1)) // the last one is clamped
		}
	}
	return ids
}
