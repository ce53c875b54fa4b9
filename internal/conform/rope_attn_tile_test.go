package conform

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// attnHalves returns the results of attention that a command has written as rows of float16, and checks their
// units.
func attnHalves(t *testing.T, b []byte, columns, rows int, few bool) (rowsOf []byte, values []float32) {
	t.Helper()
	if few {
		b = rowsOfFew(b, columns, rows)
	}
	size := halvesSize(columns, decl.ActF16)
	for r := range rows {
		row := b[r*size:][:size]
		if unit := math.Float32frombits(binary.LittleEndian.Uint32(row[2*columns:])); unit != 1 {
			t.Fatalf("row %d has unit %v, want 1", r, unit)
		}
		rowsOf = append(rowsOf, row[:2*columns]...)
		for i := range columns {
			values = append(values, dtype.F16ToF32(binary.LittleEndian.Uint16(row[2*i:])))
		}
	}
	return rowsOf, values
}

// ownWork is the shape of the threadgroups of rope_attn_tile. ways is that of attn_tile with the same bits.
type ownWork struct {
	slots, threads, cluster, ways int
}

// ownShape returns a shape of rope_attn_tile. The numbers of positions are at the borders of tiles, of steps of two
// tiles and of segments, and between them.
func ownShape(r *rand.Rand, seed uint64) (a ropeAttention, w ownWork) {
	a = ropeAttention{attention: randomAttention(r, 300).withoutSinks(), interleaved: r.IntN(2) == 0, norm: r.IntN(2) == 0}
	a.rows, a.gap, a.splits, a.span, a.headGroup = 1, 0, 0, 0, 1
	a.headDim, a.shared = []int{64, 128, 64, 256, 128, 192}[seed%6], pick(r, 1, 2, 4, 7, 16)
	a.kvLen = pick(r, 1, 2, 63, 64, 65, 127, 128, 129, 192, 193, 256, 257, 1+r.IntN(400), 512, 513, 577, 1024, 1025, 500+r.IntN(700))
	a.context = a.kvLen + r.IntN(100)
	if a.window > 0 {
		a.window = 1 + r.IntN(a.kvLen+70)
	}
	a.half, a.tile.halves = pick(r, a.headDim/2, a.headDim/4), true
	w = ownWork{slots: 1 + r.IntN(2), threads: pick(r, 128, 256), cluster: pick(r, 1, 1, 2, 4, 8), ways: 2}
	if w.threads == 128 {
		w.slots += r.IntN(2)
	}
	if a.headDim > 128 {
		// For more threads, attn_tile needs more threadgroup memory than NVIDIA's GPUs have.
		w.threads, w.cluster, w.ways = 128, 1, 1
	}
	if w.cluster == 8 {
		w.threads = 128
	}
	return a, w
}

// own returns the command rope_attn_tile for one of rope_attn.
func (a ropeAttention) own(c command, w ownWork, few bool) command {
	p := c.params.(kernels.RoPEAttnParams)
	d := uint32(a.headDim)
	c.kernel, c.threads = kernels.RoPEAttnTile, uint32(w.threads)
	c.specs = []uint32{d, one(a.window > 0), one(a.interleaved), one(a.norm), one(a.q8), one(a.learned), uint32(w.cluster)}
	c.params = kernels.RoPEAttnTileParams{
		Heads: p.Heads, KVHeads: p.KVHeads, QStride: p.Heads * d, KVStride: p.KVHeads * d, Half: p.Half, Cap: p.Cap,
		Window: p.Window, Scale: p.Scale, SoftCap: p.SoftCap, Eps: p.Eps, Slots: uint32(w.slots), Few: one(few),
	}
	return c
}

// parted returns the commands qk_rope_kv and attn_tile whose results those of rope_attn_tile must be. The second
// lacks Q and the caches.
func (a ropeAttention) parted(c command, w ownWork) (rope, attn command) {
	p := c.params.(kernels.RoPEAttnParams)
	d := uint32(a.headDim)
	rope, attn = c, c
	rope.kernel, rope.absent = kernels.QKRoPEKV, nil
	rope.specs = []uint32{d, one(a.interleaved), one(a.norm), one(a.q8)}
	rope.params = kernels.QKRoPEKVParams{
		Heads: p.Heads, KVHeads: p.KVHeads, QStride: p.Heads * d, KStride: p.KVHeads * d, VStride: p.KVHeads * d, Half: p.Half, Cap: p.Cap, Eps: p.Eps, HeadGroup: 4,
	}
	rope.input = map[string][]byte{}
	for _, name := range []string{"q", "k", "v", "angles", "k_cache", "v_cache"} {
		rope.input[name] = c.input[name]
	}
	attn.kernel, attn.threads, attn.absent = kernels.AttnTile, uint32(128*w.ways), []string{"out"}
	attn.specs = []uint32{d, one(a.window > 0), one(a.q8), one(a.learned), decl.ActF16, 0, 1, 1}
	attn.params = kernels.AttnTileParams{
		Heads: p.Heads, KVHeads: p.KVHeads, QStride: p.Heads * d, Cap: p.Cap, Window: p.Window, Scale: p.Scale, SoftCap: p.SoftCap, Units: 1, Slots: 2,
	}
	attn.input = map[string][]byte{}
	norm := c.input["norm"]
	if a.norm {
		rope.input["norm"], norm = norm[:8*a.headDim], norm[8*a.headDim:]
	} else {
		rope.absent = []string{"norm"}
	}
	if a.learned {
		attn.input["logits"] = norm
	} else {
		attn.absent = append(attn.absent, "logits")
	}
	return rope, attn
}

// emulatedOn runs a command with random contents where it has no input.
func (c command) emulatedOn(t *testing.T, e *emu.Program, r *rand.Rand, l launch) *outcome {
	t.Helper()
	tab, slots := c.tableOf(t)
	return c.emulated(t, e, tab, c.contents(t, tab, slots, r), l)
}

// testOwn compares rope_attn_tile with the commands that it fuses, bit for bit, and with the CPU device.
func testOwn(t *testing.T, e *emu.Program, first, end uint64) {
	for seed := first; seed < end; seed++ {
		r := rand.New(rand.NewPCG(seed, 41))
		a, w := ownShape(r, seed)
		heads := a.kvHeads * a.shared
		base := a.command(r)
		rope, attn := a.parted(base, w)
		made := rope.emulatedOn(t, e, r, launch{threads: 128, seed: seed})
		attn.input["q"] = made.bindings[kernels.QKRoPEKVBindQOut]
		attn.input["k_cache"], attn.input["v_cache"] = made.bindings[kernels.QKRoPEKVBindKCache], made.bindings[kernels.QKRoPEKVBindVCache]
		want, _ := attnHalves(t, attn.emulatedOn(t, e, r, launch{threads: 128 * w.ways, seed: seed}).bindings[kernels.AttnTileBindHalves], heads*a.headDim, 1, false)
		for i, o := range []emu.Order{emu.Forward, emu.Reverse, emu.Random} {
			few := i == int(seed%3)
			c := a.own(base, w, few)
			where := fmt.Sprintf("seed %d: %v, half %d, norm %t, %+v, few %t, order %d", seed, a.attention, a.half, a.norm, w, few, o)
			tab, memory := c.tableOf(t)
			contents := c.contents(t, tab, memory, r)
			got := c.emulated(t, e, tab, contents, launch{threads: w.threads, order: o, seed: seed})
			rows, _ := attnHalves(t, got.bindings[kernels.RoPEAttnTileBindHalves], heads*a.headDim, 1, few)
			if !bytes.Equal(rows, want) {
				t.Fatalf("%s: the results differ from those of two commands", where)
			}
			if !bytes.Equal(got.bindings[kernels.RoPEAttnTileBindKCache], attn.input["k_cache"]) || !bytes.Equal(got.bindings[kernels.RoPEAttnTileBindVCache], attn.input["v_cache"]) {
				t.Fatalf("%s: the caches differ from those of two commands", where)
			}
			if i > 0 {
				continue
			}
			cpu := c.onCPU(t, tab, memory, contents)
			_, values := attnHalves(t, cpu.bindings[kernels.RoPEAttnTileBindHalves], heads*a.headDim, 1, few)
			plain := *cpu
			plain.bindings[kernels.RoPEAttnBindOut] = f32(values)
			if err := a.check(base, &plain, 6e-4); err != nil {
				t.Fatalf("%s: the CPU device: %v", where, err)
			}
			_, values = attnHalves(t, got.bindings[kernels.RoPEAttnTileBindHalves], heads*a.headDim, 1, few)
			plain = *got
			plain.bindings[kernels.RoPEAttnBindOut] = f32(values)
			tol := 3e-3
			if a.q8 {
				tol = 5e-3
			}
			if err := a.check(base, &plain, tol); err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			stopped := c.emulated(t, e, tab, contents, launch{threads: w.threads, stop: 1})
			if err := compare(mustLookup(c.kernel), stopped, &outcome{bindings: contents, stopped: true}, nil); err != nil {
				t.Fatalf("%s: it writes with the stop flag set: %v", where, err)
			}
		}
	}
}

// TestOwn tests rope_attn_tile: some shapes with the sanitizers, and more without.
func TestOwn(t *testing.T) {
	t.Run("sanitized", func(t *testing.T) { testOwn(t, inBoth(t).shared, 0, exhaustive.Pick(uint64(6), 2)) })
	t.Run("fast", func(t *testing.T) { testOwn(t, builds.Get(t, fast), 6, exhaustive.Pick(uint64(60), 18)) })
}

// TestOwnPooled compares rope_attn_tile for a session with its forms in a pooled table.
func TestOwnPooled(t *testing.T) {
	p := builds.Get(t, fast)
	for seed := range 6 * rounds {
		r := rand.New(rand.NewPCG(seed, 42))
		a, w := ownShape(r, seed)
		checkPooled(t, p, a.own(a.command(r), w, false), r, seed, w.threads)
	}
}
