package conform

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// attention is the shape of an attn command.
type attention struct {
	headDim, kvHeads, shared int // shared is the number of Q heads per K and V head
	rows, kvLen              int // kvLen is the KV length of the first row
	context                  int
	window                   int // 0: none
	splits, span             int // splits is 0 without splitting
	headGroup                int
	tile                     tile
	gap                      int // elements between rows of q
	scale                    float64
	q8                       bool    // int8 cache
	first                    int     // number of attention sinks, visible in addition to the window
	half                     int     // pairs of Q that are rotated for the sinks
	softCap                  float64 // 0: none
	interleaved              bool
	learned                  bool // heads have a learned sink logit
	chunked                  bool // a row sees the positions of its chunk of window positions
}

func (a attention) String() string {
	type fields attention
	return fmt.Sprintf("%+v", fields(a))
}

// capacity is the number of rows of the cache, the smallest allowed.
func (a attention) capacity() int {
	if a.window > 0 {
		return min(a.context, a.first+a.window+a.rows-1)
	}
	return a.context
}

// row returns a position's row in the cache.
func (a attention) row(p int) int {
	if p < a.first {
		return p
	}
	return a.first + (p-a.first)%(a.capacity()-a.first)
}

// seen returns the positions visible to row r.
func (a attention) seen(r int) []int {
	var list []int
	for p := range a.kvLen + r {
		if a.chunked && p < (a.kvLen+r-1)/a.window*a.window {
			continue
		}
		if a.window == 0 || p < a.first || p >= a.kvLen+r-a.window {
			list = append(list, p)
		}
	}
	return list
}

// turnedHead returns a head of row r of Q, rotated for the attention sinks.
func (a attention) turnedHead(q, turn []float64, r int) []float64 {
	q = slices.Clone(q)
	for i := range a.half {
		x, y := i, i+a.half
		if a.interleaved {
			x, y = 2*i, 2*i+1
		}
		cos, sin := turn[2*(r*a.half+i)], turn[2*(r*a.half+i)+1]
		q[x], q[y] = q[x]*cos-q[y]*sin, q[y]*cos+q[x]*sin
	}
	return q
}

// size is the number of elements of one output; a split's output is its values, maximum and
// weight.
func (a attention) size() int {
	if a.splits > 0 {
		return a.headDim + 2
	}
	return a.headDim
}

// parts returns an output with each part's values, maximum and weight together.
func (a attention) parts(out []byte) []float64 {
	x := floats(out)
	if a.splits == 0 {
		return x
	}
	units := a.kvHeads * a.shared * a.splits
	var all []float64
	for row := range slices.Chunk(x, units*a.size()) {
		for u := range units {
			all = append(all, row[u*a.headDim:][:a.headDim]...)
			all = append(all, row[units*a.headDim+2*u:][:2]...)
		}
	}
	return all
}

// split returns the positions of split s among those from begin to end-1.
func (a attention) split(s, begin, end int) (int, int) {
	n := 1
	for 2*n <= a.splits {
		n *= 2
	}
	each := max(a.span, (max(0, end-begin+n-1)/n+15)/16*16)
	return begin + s*each, min(end, begin+(s+1)*each)
}

// halfs returns n random float16 values.
func halfs(r *rand.Rand, n int, scale float64) []byte {
	b := make([]byte, 2*n)
	if err := dtype.Quantize(dtype.F16, b, normal(r, n, scale)); err != nil {
		panic(err)
	}
	return b
}

// cacheRow returns the parts of a cache that hold a row: elements, and scales if there are
// any.
func (a attention) cacheRow(cache []byte, head, row int) [][]byte {
	d, at, all := a.headDim, head*a.capacity()+row, a.kvHeads*a.capacity()*a.headDim
	if !a.q8 {
		return [][]byte{cache[2*at*d:][:2*d]}
	}
	return [][]byte{cache[at*d:][:d], cache[all+at*d/16:][:d/16]}
}

// setRow sets a row of a cache to random values.
func (a attention) setRow(cache []byte, head, row int, r *rand.Rand, scale float64) {
	to := a.cacheRow(cache, head, row)
	if !a.q8 {
		copy(to[0], halfs(r, a.headDim, scale))
		return
	}
	for i := range to[0] {
		to[0][i] = byte(r.Uint32())
		if to[0][i] == 0x80 {
			to[0][i] = 0x81 // 127 is the largest quant
		}
	}
	copy(to[1], halfs(r, a.headDim/32, scale/64))
}

// values returns the values that a cache represents.
func (a attention) values(cache []byte) []float64 {
	if !a.q8 {
		return halves(cache)
	}
	n := a.kvHeads * a.capacity() * a.headDim
	x, scales := make([]float64, n), halves(cache[n:])
	for i := range x {
		x[i] = float64(int8(cache[i])) * scales[i/32]
	}
	return x
}

// command returns the command with random contents. Cache rows that are visible to no row
// of q are NaN.
func (a attention) command(r *rand.Rand) command {
	d, heads, capacity := a.headDim, a.kvHeads*a.shared, a.capacity()
	stride := heads*d + a.gap
	cache := func(scale float64) []byte {
		size := 2 * d
		if a.q8 {
			size = d + d/16 // the scales, not the values, are NaN
		}
		b := bytes.Repeat([]byte{0xff}, a.kvHeads*capacity*size)
		for h := range a.kvHeads {
			for row := range a.rows {
				for _, p := range a.seen(row) {
					a.setRow(b, h, a.row(p), r, scale)
				}
			}
		}
		return b
	}
	turn := make([]float32, 2*a.rows*a.half)
	for i := range a.rows * a.half {
		sin, cos := math.Sincos(r.Float64() * 100)
		turn[2*i], turn[2*i+1] = float32(cos), float32(sin)
	}
	c := command{
		kernel: kernels.Attn, context: uint32(a.context),
		specs: []uint32{uint32(d), one(a.window > 0), one(a.splits > 0), one(a.q8), one(a.first > 0), one(a.interleaved), one(a.learned)},
		params: kernels.AttnParams{
			Heads: uint32(heads), KVHeads: uint32(a.kvHeads), QStride: uint32(stride), Cap: uint32(capacity), Window: uint32(a.window),
			Span: uint32(max(a.span, 0)), Splits: uint32(max(a.splits, 1)), Scale: float32(1 / math.Sqrt(float64(d))),
			HeadGroup: uint32(a.headGroup), First: uint32(a.first), Half: uint32(a.half), SoftCap: float32(a.softCap),
		},
		second: pianolaSecond{kvLen: uint32(a.kvLen), rows: uint32(a.rows)},
		input: map[string][]byte{
			"q": f32(normal(r, (a.rows-1)*stride+heads*d, a.scale)), "k_cache": cache(1), "v_cache": cache(1), "turn": f32(turn),
		},
	}
	if a.first == 0 {
		c.absent = []string{"turn"}
		delete(c.input, "turn")
	}
	if a.learned {
		c.input["logits"] = f32(normal(r, heads, 3))
	} else {
		c.absent = append(c.absent, "logits")
	}
	return c
}

// exact returns the output in float64. A split without positions is NaN except for its
// weight.
func (a attention) exact(c command) []float64 {
	d, heads, capacity := a.headDim, a.kvHeads*a.shared, a.capacity()
	q, k, v := floats(c.input["q"]), a.values(c.input["k_cache"]), a.values(c.input["v_cache"])
	var out []float64
	for r := range a.rows {
		for h := range heads {
			for s := range max(a.splits, 1) {
				list := a.seen(r)
				if a.splits > 0 {
					begin, end := a.split(s, list[0], a.kvLen+r)
					list = list[min(begin-list[0], len(list)) : max(min(begin, a.kvLen+r), end)-list[0]]
				}
				one := make([]float64, a.size())
				top, sum := math.Inf(-1), 0.0
				scores := make([]float64, len(list))
				head := q[r*(heads*d+a.gap)+h*d:][:d]
				turned := head
				if a.first > 0 {
					turned = a.turnedHead(head, floats(c.input["turn"]), r)
				}
				for i, p := range list {
					x, row := head, (h/a.shared*capacity+a.row(p))*d
					if p < a.first {
						x = turned
					}
					for j := range d {
						scores[i] += x[j] * k[row+j]
					}
					scores[i] *= float64(float32(1 / math.Sqrt(float64(d))))
					if a.softCap > 0 {
						scores[i] = a.softCap * math.Tanh(scores[i]/a.softCap)
					}
					top = max(top, scores[i])
				}
				if a.learned && s == 0 {
					logit := floats(c.input["logits"])[h]
					top = max(top, logit)
					sum = math.Exp(logit - top)
				}
				for i, score := range scores {
					w := math.Exp(score - top)
					sum += w
					for j := range d {
						one[j] += w * v[(h/a.shared*capacity+a.row(list[i]))*d+j]
					}
				}
				for j := range d {
					switch {
					case a.splits == 0:
						one[j] /= sum
					case len(scores) == 0:
						one[j] = math.NaN()
					}
				}
				if a.splits > 0 {
					one[d], one[d+1] = top, sum
				}
				out = append(out, one...)
			}
		}
	}
	return out
}

// compare compares an output with the exact one.
func (a attention) compare(got []byte, want []float64, tol float64) error {
	x, size := a.parts(got), a.size()
	for at := 0; at < len(want); at += size {
		g, w := x[at:at+size], want[at:at+size]
		if a.splits > 0 && w[size-1] == 0 {
			continue // a split without positions
		}
		for i := range g {
			if a.tile.halves && math.Abs(g[i]-w[i]) <= 1.0/(1<<24) {
				g[i] = w[i] // half of the distance between small float16
			}
		}
		if err := near(g[:a.headDim], w[:a.headDim], a.headDim, tol); err != nil {
			return fmt.Errorf("values at %d: %w", at, err)
		}
		for i := a.headDim; i < size; i++ {
			if d := math.Abs(g[i] - w[i]); !(d <= 2*tol*max(1, math.Abs(w[i]))) {
				return fmt.Errorf("maximum or weight at %d: %v, want %v", at+i, g[i], w[i])
			}
		}
	}
	return nil
}

// randomAttention returns a shape with fewer than limit positions.
func randomAttention(r *rand.Rand, limit int) attention {
	a := attention{
		headDim: pick(r, 8, 20, 36, 48, 64, 64, 80, 96, 128, 128, 192, 256, 300), kvHeads: 1 + r.IntN(2), shared: pick(r, 1, 2, 3, 4, 6, 7),
		rows: pick(r, 1, 1, 1, 2, 5), kvLen: 1 + r.IntN(pick(r, 3, 70, limit)), gap: r.IntN(9), scale: pick(r, 1, 1, 1e-3, 20),
	}
	a.headGroup, a.learned = 1+r.IntN(a.shared), r.IntN(4) == 0
	a.context = a.kvLen + a.rows - 1 + r.IntN(300)
	if r.IntN(3) == 0 {
		a.window = 1 + r.IntN(2*a.kvLen)
	}
	if r.IntN(4) > 0 {
		a.span, a.splits = pick(r, 1, 8, 16, 32, 48, 64, 100), 1+r.IntN(9)
		// Use lengths at the borders of splits.
		if a.window == 0 && r.IntN(2) == 0 {
			a.kvLen = max(1, pick(r, 1, a.span, a.splits*a.span, 16*a.splits)+r.IntN(3)-1)
			a.context = a.kvLen + a.rows - 1 + r.IntN(300)
		}
	}
	if r.IntN(2) == 0 {
		a.quantise(r)
	}
	if a.window > 0 && a.splits == 0 && r.IntN(3) > 0 {
		a.first, a.half, a.interleaved = 1+r.IntN(9), pick(r, 1, a.headDim/4, a.headDim/2), r.IntN(2) == 0
		a.context = max(a.context, a.first+1)
	}
	a.softCap = pick(r, 0, 0.5, 3, 50)
	return a
}

// withoutSinks returns the shape without attention sinks.
func (a attention) withoutSinks() attention {
	a.first, a.half = 0, 0
	return a
}

// quantise changes the cache to int8.
func (a *attention) quantise(r *rand.Rand) {
	a.q8 = true
	if a.headDim%32 != 0 {
		a.headDim = pick(r, 32, 64, 128, 288)
	}
}

// TestAttention runs the tests of memory accesses, with the sanitizers.
func TestAttention(t *testing.T) {
	p := inBoth(t)
	for _, tt := range []struct {
		name string
		run  func(*testing.T, configurations)
	}{{"attn", testAttn}, {"tile", func(t *testing.T, p configurations) { testAttnTile(t, p.shared, 0, exhaustive.Pick(uint64(4), 1)) }}, {"matrices", func(t *testing.T, p configurations) { testAttnTile(t, p.apple, 0, exhaustive.Pick(uint64(24), 4)) }}, {"chunk", testAttnChunk}, {"merge", testAttnMerge}, {"rope", func(t *testing.T, p configurations) {
		testRopeAttn(t, p, 0, exhaustive.Pick(uint64(24), 4), exhaustive.Pick(600, 150))
	}}, {"patch", func(t *testing.T, p configurations) { testPatch(t, p.apple) }}} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, p) })
	}
}

// TestAttentionFast runs the tests that take too long with the sanitizers.
func TestAttentionFast(t *testing.T) {
	p := builds.Get(t, fast)
	for _, tt := range []struct {
		name string
		run  func(*testing.T, *emu.Program)
	}{{"tile", func(t *testing.T, p *emu.Program) { testAttnTile(t, p, 4, exhaustive.Pick(uint64(36), 16)) }}, {"rows", testAttnRows}, {"long", testAttnLong}, {"shared", testRopeAttnShared}, {"rope", func(t *testing.T, p *emu.Program) {
		testRopeAttn(t, configurations{p, p}, 60, exhaustive.Pick(uint64(68), 61), 5000)
	}}} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, p) })
	}
}

// testAttn compares decode attention of random shapes with the CPU device and
// with float64, in three orders.
func testAttn(t *testing.T, p configurations) {
	for seed := range exhaustive.Pick(uint64(16), 5) {
		r := rand.New(rand.NewPCG(seed, 1))
		checkAttn(t, p.at(seed), randomAttention(r, exhaustive.Pick(600, 150)), r, seed, 2e-5)
	}
}

// checkAttn runs one shape. tol is relative to a head's values.
func checkAttn(t *testing.T, p *emu.Program, a attention, r *rand.Rand, seed uint64, tol float64) {
	t.Helper()
	c := a.command(r)
	threads := pick(r, 32, 64, 128, 256, 512)
	switch {
	case a.tile.units > 0:
		c, threads = a.tiled(c), a.tile.threads
	case a.chunked:
		c = a.inChunks(c)
	}
	tab, slots := c.tableOf(t)
	contents := c.contents(t, tab, slots, r)
	want := a.exact(c)
	results := func(o *outcome) []byte {
		if !a.tile.halves {
			return o.bindings[kernels.AttnBindOut]
		}
		_, values := attnHalves(t, o.bindings[kernels.AttnTileBindHalves], a.kvHeads*a.shared*a.headDim, a.rows, a.tile.few)
		return f32(values)
	}
	exact := 2e-5
	if a.tile.halves {
		exact = 6e-4
	}
	if err := a.compare(results(c.onCPU(t, tab, slots, contents)), want, exact*max(1, a.scale)); err != nil {
		t.Fatalf("seed %d: %v: the CPU device: %v", seed, a, err)
	}
	k, _ := decl.Lookup(c.kernel)
	var first *outcome
	for _, o := range []emu.Order{emu.Forward, emu.Reverse, emu.Random} {
		got := c.emulated(t, p, tab, contents, launch{threads: threads, extra: uint32(r.IntN(2)), order: o, seed: seed})
		if err := a.compare(results(got), want, tol*max(1, a.scale)); err != nil {
			t.Fatalf("seed %d: %v, %d threads: %v", seed, a, threads, err)
		}
		if first == nil {
			first = got
		} else if err := compare(k, got, first, nil); err != nil {
			t.Fatalf("seed %d: %v: order %d gives another result: %v", seed, a, o, err)
		}
	}
	got := c.emulated(t, p, tab, contents, launch{threads: threads, stop: 1})
	if err := compare(k, got, &outcome{bindings: contents, stopped: true}, nil); err != nil {
		t.Fatalf("seed %d: it writes with the stop flag set: %v", seed, err)
	}
}

// inChunks returns a command of attn, which must have a window and neither splits nor sinks, as one of
// attn_chunk.
func (a attention) inChunks(c command) command {
	p := c.params.(kernels.AttnParams)
	c.kernel, c.specs, c.absent = kernels.AttnChunk, []uint32{c.specs[0], 1, c.specs[3], c.specs[6]}, slices.DeleteFunc(slices.Clone(c.absent), func(name string) bool { return name == "turn" })
	c.params = kernels.AttnChunkParams{
		Heads: p.Heads, KVHeads: p.KVHeads, QStride: p.QStride, Cap: p.Cap, Window: p.Window, Scale: p.Scale, HeadGroup: p.HeadGroup, SoftCap: p.SoftCap,
	}
	return c
}

// testAttnChunk compares attention in chunks with the CPU device and with float64.
func testAttnChunk(t *testing.T, p configurations) {
	for seed := range exhaustive.Pick(uint64(24), 8) {
		r := rand.New(rand.NewPCG(seed, 11))
		a := randomAttention(r, exhaustive.Pick(600, 150)).withoutSinks()
		a.splits, a.span, a.chunked = 0, 0, true
		// Also use rows at both sides of a border.
		a.window = pick(r, 1, max(1, a.kvLen-1), a.kvLen, a.kvLen+1, 1+r.IntN(2*a.kvLen))
		checkAttn(t, p.at(seed), a, r, seed, 2e-5)
	}
}

// testAttnRows checks that the bits of a row's output do not depend on the other rows.
func testAttnRows(t *testing.T, p *emu.Program) {
	for seed := range exhaustive.Pick(uint64(6), 2) {
		r := rand.New(rand.NewPCG(seed, 2))
		a := randomAttention(r, 300)
		a.rows, a.gap = 4, 0
		c := a.command(r)
		tab, slots := c.tableOf(t)
		all := c.emulated(t, p, tab, c.contents(t, tab, slots, r), launch{threads: 128}).bindings[kernels.AttnBindOut]
		alone := a
		alone.rows = 1
		for row := range a.rows {
			alone.kvLen = a.kvLen + row
			d := c
			d.second.kvLen, d.second.rows = uint32(alone.kvLen), 1
			width := 4 * a.kvHeads * a.shared * a.headDim
			d.input = map[string][]byte{"q": c.input["q"][row*width:][:width], "k_cache": c.input["k_cache"], "v_cache": c.input["v_cache"]}
			if a.first > 0 {
				d.input["turn"] = c.input["turn"][row*a.half*8:][:a.half*8]
			}
			if a.learned {
				d.input["logits"] = c.input["logits"]
			}
			tab, slots := d.tableOf(t)
			one := d.emulated(t, p, tab, d.contents(t, tab, slots, r), launch{threads: 128}).bindings[kernels.AttnBindOut]
			// Compare only splits with positions, because the others are not written.
			x, y, want := alone.parts(all[row*len(one):][:len(one)]), alone.parts(one), alone.exact(d)
			for at := 0; at < len(y); at += a.size() {
				if a.splits > 0 && want[at+a.size()-1] == 0 {
					continue
				}
				if !slices.Equal(x[at:][:a.size()], y[at:][:a.size()]) {
					t.Fatalf("seed %d: %v: row %d is another one alone, output %d", seed, a, row, at/a.size())
				}
			}
		}
	}
}

// testAttnLong splits contexts of thousands of positions and merges them.
func testAttnLong(t *testing.T, p *emu.Program) {
	for seed, a := range []attention{
		{headDim: 128, kvHeads: 1, shared: 4, rows: 1, kvLen: 5000, context: 6000, splits: 8, span: 32, headGroup: 4, scale: 1},
		{headDim: 64, kvHeads: 2, shared: 3, rows: 2, kvLen: 3001, context: 3002, splits: 3, span: 64, headGroup: 2, scale: 8},
		{headDim: 80, kvHeads: 1, shared: 2, rows: 1, kvLen: 4097, window: 2500, context: 9000, splits: 18, span: 16, headGroup: 2, scale: 1},
		{headDim: 128, kvHeads: 1, shared: 1, rows: 1, kvLen: 3000, context: 3000, headGroup: 1, scale: 60},
		{headDim: 128, kvHeads: 1, shared: 4, rows: 1, kvLen: 4100, context: 5000, splits: 8, span: 32, headGroup: 4, scale: 1, q8: true},
	} {
		if !exhaustive.On && seed > 0 {
			break // the first part has splits and shared heads
		}
		r := rand.New(rand.NewPCG(uint64(seed), 3))
		c := a.command(r)
		tab, slots := c.tableOf(t)
		part := c.emulated(t, p, tab, c.contents(t, tab, slots, r), launch{threads: 256}).bindings[kernels.AttnBindOut]
		whole := a
		whole.splits = 0
		want := whole.exact(c)
		got := part
		if a.splits > 0 {
			m := command{
				kernel: kernels.AttnMerge, specs: []uint32{uint32(a.headDim)}, second: pianolaSecond{kvLen: uint32(a.kvLen), rows: uint32(a.rows)},
				params: kernels.AttnMergeParams{Heads: uint32(a.kvHeads * a.shared), Splits: uint32(a.splits), Span: uint32(a.span), Window: uint32(a.window)},
				input:  map[string][]byte{"part": part},
			}
			tab, slots := m.tableOf(t)
			got = m.emulated(t, p, tab, m.contents(t, tab, slots, r), launch{threads: 256}).bindings[kernels.AttnMergeBindOut]
		}
		if err := whole.compare(got, want, 2e-5*a.scale); err != nil {
			t.Errorf("%v: %v", a, err)
		}
	}
}

// randomParts returns random results of splits; those without positions are NaN.
func (a attention) randomParts(r *rand.Rand) []float32 {
	var out []float32
	for row := range a.rows {
		var values, states []float32
		begin, end := 0, a.kvLen+row
		if a.window > 0 {
			begin = max(0, end-a.window)
		}
		for u := range a.kvHeads * a.shared * a.splits {
			part, state := normal(r, a.headDim, 1), []float32{float32(r.NormFloat64() * pick(r, 1.0, 30)), float32(math.Exp(r.NormFloat64()))}
			if from, to := a.split(u%a.splits, begin, end); from >= to {
				for i := range part {
					part[i] = float32(math.NaN())
				}
				state[0], state[1] = part[0], part[0]
			}
			values, states = append(values, part...), append(states, state...)
		}
		out = append(append(out, values...), states...)
	}
	return out
}

// testAttnMerge merges random splits, some of them without positions.
func testAttnMerge(t *testing.T, p configurations) {
	for seed := range exhaustive.Pick(uint64(10), 4) {
		r := rand.New(rand.NewPCG(seed, 4))
		d, heads, splits, rows := pick(r, 1, 8, 20, 64, 80, 128, 256, 300), 1+r.IntN(3), pick(r, 1, 2, 7, 40, 300), 1+r.IntN(3)
		a := attention{
			headDim: d, kvHeads: heads, shared: 1, rows: rows, splits: splits, span: pick(r, 1, 16, 40), kvLen: 1 + r.IntN(pick(r, 3, 100, 3000)),
			window: pick(r, 0, 0, 1+r.IntN(500)),
		}
		c := command{
			kernel: kernels.AttnMerge, specs: []uint32{uint32(d)}, second: pianolaSecond{kvLen: uint32(a.kvLen), rows: uint32(rows)},
			params: kernels.AttnMergeParams{Heads: uint32(heads), Splits: uint32(splits), Span: uint32(a.span), Window: uint32(a.window)},
			input:  map[string][]byte{"part": f32(a.randomParts(r))},
		}
		tab, slots := c.tableOf(t)
		contents := c.contents(t, tab, slots, r)
		want := c.onCPU(t, tab, slots, contents)
		k, _ := decl.Lookup(c.kernel)
		threads := pick(r, 32, 96, 128, 256, 1024)
		for _, o := range []emu.Order{emu.Forward, emu.Reverse, emu.Random} {
			got := c.emulated(t, p.at(seed), tab, contents, launch{threads: threads, extra: uint32(r.IntN(2)), order: o, seed: seed})
			if err := compare(k, got, want, map[string]tolerance{"out": {d, 1e-5, false}}); err != nil {
				t.Fatalf("seed %d: head_dim %d, %d splits, %d threads: %v", seed, d, splits, threads, err)
			}
		}
	}
}

// testPatch compares the kernel patch with Apply of the table's commands.
func testPatch(t *testing.T, p *emu.Program) {
	for seed := range exhaustive.Pick(uint64(10), 4) {
		r := rand.New(rand.NewPCG(seed, 5))
		records := 1 + r.IntN(600)
		cmds := make([]table.Cmd, records)
		step := table.Step{
			RNG: r.Uint64(), Position: r.Uint32(), KVRow: r.Uint32(), KVLen: r.Uint32(), TokenIndex: r.Uint32(), Row: r.Uint32(), Rows: r.Uint32(),
			Count: r.Uint32(),
		}
		var patches, seconds, want []byte
		for i := range cmds {
			c := &cmds[i]
			for j := range c.Second {
				c.Second[j] = byte(r.Uint32())
			}
			c.Patch = table.Patch(r.IntN(int(table.PatchRow) + 1))
			c.PatchOffset = [2]uint8{table.NoPatch, table.NoPatch}
			if c.Patch != table.PatchNone {
				c.PatchOffset[0] = pick(r, uint8(decl.SecondIndex), uint8(decl.SecondKVLen))
			}
			rows := byte(r.IntN(2))
			if rows == 1 {
				c.Patch |= table.PatchRows
			}
			patches = binary.LittleEndian.AppendUint32(patches, uint32(i))
			patches = append(patches, byte(c.Patch.Kind()), rows, c.PatchOffset[0], c.PatchOffset[1])
			seconds = append(seconds, c.Second[:]...)
			second := c.Second
			c.Apply(&step, &second)
			want = append(want, second[:]...)
		}
		// Add a patch of a record past the end.
		patches = append(patches, 0xff, 0xff, 0xff, 0xff, 1, 1, 0, 0)
		patches = binary.LittleEndian.AppendUint32(patches, uint32(records))
		patches = append(patches, 1, 1, 0, 0)
		for _, was := range []struct{ stop, cancel uint32 }{{0, 0}, {1, 0}, {0, 1}, {1, 1}} {
			step.Stop, step.Cancel = was.stop, was.cancel
			d := &emu.Dispatch{Kernel: "patch", Grid: [3]uint32{1, 1, 1}, Threads: pick(r, uint32(32), 256, 1024), TGMem: 4, Order: emu.Random, Seed: seed}
			d.Buffers[0], d.Buffers[1] = patches, bytes.Clone(seconds)
			binary.LittleEndian.PutUint32(d.Params[:], uint32(len(patches)/8))
			binary.LittleEndian.PutUint32(d.Params[4:], uint32(records))
			if _, err := binary.Encode(d.Step[:], binary.LittleEndian, stepOf(step)); err != nil {
				t.Fatal(err)
			}
			if err := p.Run(d); err != nil {
				t.Fatal(err)
			}
			after, left := step, want
			switch {
			case was.stop != 0:
				left = seconds
			case was.cancel != 0:
				left, after.Stop = seconds, 256
			default:
				after.Position += step.Rows
				after.KVRow += step.Rows
				after.KVLen += step.Rows
				after.TokenIndex += step.Rows
			}
			var wantStep [table.StepSize]byte
			if _, err := binary.Encode(wantStep[:], binary.LittleEndian, stepOf(after)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(d.Buffers[1], left) || d.Step != wantStep {
				t.Fatalf("seed %d, %+v: seconds or step differ", seed, was)
			}
		}
	}
}

// stepOf returns the fields of a step in the order of its layout.
func stepOf(s table.Step) any {
	return struct {
		RNG   uint64
		Words [9]uint32
	}{s.RNG, [9]uint32{s.Position, s.KVRow, s.KVLen, s.TokenIndex, s.Row, s.Rows, s.Stop, s.Count, s.Cancel}}
}
