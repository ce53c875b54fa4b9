package conform

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// ropeAttention is the shape of a rope_attn command.
type ropeAttention struct {
	attention
	half        int
	interleaved bool
	norm        bool
	ahead       int // bytes per SIMD group for prefetched K and V
}

// newest returns the parts of the newest position's row in a cache.
func (a ropeAttention) newest(cache []byte, head int) [][]byte {
	return a.cacheRow(cache, head, (a.kvLen-1)%a.capacity())
}

// sameCache compares a cache with the CPU device's. Quants may differ by one if K is halfway
// between two integers.
func (a ropeAttention) sameCache(got, want []byte) error {
	if !a.q8 {
		return near(halves(got), halves(want), a.headDim, 1e-3)
	}
	n := a.kvHeads * a.capacity() * a.headDim
	if err := near(halves(got[n:]), halves(want[n:]), a.headDim/32, 1e-3); err != nil {
		return err
	}
	differ := 0
	for i := range n {
		switch d := int(int8(got[i])) - int(int8(want[i])); {
		case d > 1 || d < -1:
			return fmt.Errorf("element %d: %d, want %d", i, int8(got[i]), int8(want[i]))
		case d != 0:
			differ++
		}
	}
	if differ > 2+a.kvHeads*a.headDim/50 {
		return fmt.Errorf("%d of %d elements differ", differ, a.kvHeads*a.headDim)
	}
	return nil
}

// command returns the command with random contents. The newest position's rows of the caches
// are NaN, so that reading them has a visible effect.
func (a ropeAttention) command(r *rand.Rand) command {
	d, heads := a.headDim, a.kvHeads*a.shared
	c := a.attention.command(r)
	for h := range a.kvHeads {
		for _, name := range []string{"k_cache", "v_cache"} {
			for _, part := range a.newest(c.input[name], h) {
				copy(part, bytes.Repeat([]byte{0xff}, len(part)))
			}
		}
	}
	p := c.params.(kernels.AttnParams)
	c.kernel = kernels.RoPEAttn
	c.specs = []uint32{uint32(d), one(a.window > 0), one(a.splits > 0), one(a.interleaved), one(a.norm), one(a.q8), one(a.learned)}
	c.params = kernels.RoPEAttnParams{
		Heads: p.Heads, KVHeads: p.KVHeads, Half: uint32(a.half), Cap: p.Cap, Window: p.Window, Span: p.Span, Splits: p.Splits, Scale: p.Scale,
		HeadGroup: p.HeadGroup, Eps: 1e-6, Shared: uint32(a.shared), SoftCap: p.SoftCap,
		Ahead: uint32(a.ahead),
	}
	angles := make([]float32, 2*a.half)
	for i := range a.half {
		sin, cos := math.Sincos(r.Float64() * 100)
		angles[2*i], angles[2*i+1] = float32(cos), float32(sin)
	}
	c.input["q"], c.input["k"], c.input["v"] = f32(normal(r, heads*d, a.scale)), f32(normal(r, a.kvHeads*d, 1)), f32(normal(r, a.kvHeads*d, 1))
	c.absent = nil
	c.input["angles"], c.input["norm"] = f32(angles), f32(normal(r, 2*d, 1))
	switch {
	case !a.norm && !a.learned:
		c.absent = []string{"norm"}
		delete(c.input, "norm")
	case !a.norm:
		c.input["norm"] = c.input["logits"]
	default:
		c.input["norm"] = append(c.input["norm"], c.input["logits"]...)
	}
	return c
}

// turned returns Q normalised and rotated.
func (a ropeAttention) turned(c command) []float32 {
	q, angles := floats(c.input["q"]), floats(c.input["angles"])
	var out []float32
	for head := range slices.Chunk(q, a.headDim) {
		if a.norm {
			var squares float64
			for _, v := range head {
				squares += v * v
			}
			w := floats(c.input["norm"])
			for i := range head {
				head[i] *= w[i] / math.Sqrt(squares/float64(a.headDim)+1e-6)
			}
		}
		for i := range a.half {
			x, y := i, i+a.half
			if a.interleaved {
				x, y = 2*i, 2*i+1
			}
			cos, sin := angles[2*i], angles[2*i+1]
			head[x], head[y] = head[x]*cos-head[y]*sin, head[y]*cos+head[x]*sin
		}
		for _, v := range head {
			out = append(out, float32(v))
		}
	}
	return out
}

// check compares an outcome with attention in float64 over the resulting caches. The newest
// rows are compared separately.
func (a ropeAttention) check(c command, got *outcome, tol float64) error {
	after := c
	after.input = map[string][]byte{
		"q":       f32(a.turned(c)),
		"k_cache": got.bindings[kernels.RoPEAttnBindKCache],
		"v_cache": got.bindings[kernels.RoPEAttnBindVCache],
		"logits":  c.input["logits"],
	}
	plain := a.attention
	plain.gap = 0
	return plain.compare(got.bindings[kernels.RoPEAttnBindOut], plain.exact(after), tol*max(1, a.scale))
}

// testRopeAttn compares random shapes with fewer than limit positions with the CPU device and
// with float64, in three orders.
func testRopeAttn(t *testing.T, p configurations, first, end uint64, limit int) {
	for seed := first; seed < end; seed++ {
		r := rand.New(rand.NewPCG(seed, 7))
		a := ropeAttention{attention: randomAttention(r, limit).withoutSinks(), interleaved: r.IntN(2) == 0, norm: r.IntN(2) == 0}
		a.ahead = pick(r, 0, 4096, 8192, 20480)
		checkRopeAttn(t, p.at(seed), a, r, seed)
	}
}

// testRopeAttnShared is like testRopeAttn, for shapes that the kernel computes by matrix products.
func testRopeAttnShared(t *testing.T, p *emu.Program) {
	for i, a := range []attention{
		{headDim: 128, kvHeads: 2, shared: 4, kvLen: 701, splits: 2, span: 32},
		{headDim: 128, kvHeads: 1, shared: 8, kvLen: 301, window: 200, learned: true, q8: true},
		{headDim: 64, kvHeads: 1, shared: 11, kvLen: 533, window: 300, splits: 3, span: 16, softCap: 3},
		{headDim: 64, kvHeads: 2, shared: 2, kvLen: 260, splits: 4, span: 32, q8: true, softCap: 50},
		{headDim: 80, kvHeads: 1, shared: 3, kvLen: 150, learned: true},
		{headDim: 96, kvHeads: 2, shared: 1, kvLen: 17},
		{headDim: 24, kvHeads: 1, shared: 5, kvLen: 90, window: 33},
		{headDim: 128, kvHeads: 1, shared: 2, kvLen: 1, q8: true},
	} {
		if !exhaustive.On && i > 3 {
			break // the first four have long caches, windows, splits and both types
		}
		r := rand.New(rand.NewPCG(uint64(i), 8))
		a.rows, a.context, a.scale, a.headGroup = 1, a.kvLen+r.IntN(100), pick(r, 1.0, 20), min(a.shared, 9)
		both := ropeAttention{attention: a, interleaved: i%2 == 0, norm: i%3 == 0, ahead: 8192 + 4096*(i%4)}
		checkRopeAttn(t, p, both, r, uint64(i))
	}
}

// checkRopeAttn compares one shape.
func checkRopeAttn(t *testing.T, p *emu.Program, a ropeAttention, r *rand.Rand, seed uint64) {
	t.Helper()
	k, _ := decl.Lookup(kernels.RoPEAttn)
	a.rows, a.gap, a.half = 1, 0, pick(r, a.headDim/2, a.headDim/4)
	c := a.command(r)
	c.second.behind = uint32(r.IntN(min(a.kvLen, 8)))
	c.second.kvLen -= c.second.behind
	tab, slots := c.tableOf(t)
	contents := c.contents(t, tab, slots, r)
	cpu := c.onCPU(t, tab, slots, contents)
	where := fmt.Sprintf("seed %d: %v, half %d, interleaved %t, norm %t, ahead %d", seed, a.attention, a.half, a.interleaved, a.norm, a.ahead)
	if err := a.check(c, cpu, 2e-5); err != nil {
		t.Fatalf("%s: the CPU device: %v", where, err)
	}
	for i, name := range map[int]string{kernels.RoPEAttnBindKCache: "k_cache", kernels.RoPEAttnBindVCache: "v_cache"} {
		left := slices.Clone(cpu.bindings[i])
		for h := range a.kvHeads {
			for i, part := range a.newest(left, h) {
				copy(part, a.newest(c.input[name], h)[i])
			}
		}
		if !bytes.Equal(left, c.input[name]) {
			t.Fatalf("%s: the CPU device writes more of %s than the newest position", where, name)
		}
	}
	var first *outcome
	threads := pick(r, 32, 64, 128, 256, 256)
	for _, o := range []emu.Order{emu.Forward, emu.Reverse, emu.Random} {
		got := c.emulated(t, p, tab, contents, launch{threads: threads, order: o, seed: seed})
		if err := a.check(c, got, 2e-5); err != nil {
			t.Fatalf("%s, %d threads: %v", where, threads, err)
		}
		if first == nil {
			first = got
			same := *got
			same.bindings[kernels.RoPEAttnBindOut] = cpu.bindings[kernels.RoPEAttnBindOut]
			same.bindings[kernels.RoPEAttnBindKCache] = cpu.bindings[kernels.RoPEAttnBindKCache]
			err := a.sameCache(got.bindings[kernels.RoPEAttnBindKCache], cpu.bindings[kernels.RoPEAttnBindKCache])
			if err := cmp.Or(err, compare(k, &same, cpu, nil)); err != nil {
				t.Fatalf("%s, %d threads: %v", where, threads, err)
			}
		} else if err := compare(k, got, first, nil); err != nil {
			t.Fatalf("%s: order %d gives another result: %v", where, o, err)
		}
	}
	got := c.emulated(t, p, tab, contents, launch{threads: threads, stop: 1})
	if err := compare(k, got, &outcome{bindings: contents, stopped: true}, nil); err != nil {
		t.Fatalf("%s: it writes with the stop flag set: %v", where, err)
	}
}
