package cpu

import (
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// ropeAttn combines qk_rope_kv and attn for a single row.
type ropeAttn struct{ attn }

// newest holds the inputs from which attention computes Q, and K and V of the newest position,
// itself.
type newest struct {
	headTurn
	k, v             []float32 // [rows, kvHeads, headDim]
	kStride, vStride int       // elements from one row to the next
}

func newRoPEAttn(b *binder) (kernel, error) {
	p := kernels.RoPEAttnParamsOf(b.cmd)
	d, kind := b.spec(kernels.RoPEAttnSpecHeadDim), b.spec(kernels.RoPEAttnSpecKV)
	b.need(p.KVHeads > 0 && p.Heads%max(p.KVHeads, 1) == 0, "%d heads cannot share %d K and V heads", p.Heads, p.KVHeads)
	b.need(p.Splits > 0, "there are no splits")
	k := &ropeAttn{attn{
		ops: b.ops, float: b.ops.float[dtype.F16],
		heads: int(p.Heads), headDim: int(d), perKV: int(p.Heads / max(p.KVHeads, 1)),
		span: int(p.Span), splits: int(p.Splits), split: b.spec(kernels.RoPEAttnSpecSplit) != 0, scale: p.Scale, softCap: p.SoftCap,
		q: b.f32(kernels.RoPEAttnBindQ),
		newest: &newest{
			headTurn: newHeadTurn(b, int(d), int(p.Half), p.Eps, b.spec(kernels.RoPEAttnSpecLayout), kernels.RoPEAttnBindAngles, kernels.RoPEAttnBindNorm, kernels.RoPEAttnSpecQKNorm),
			k:        b.f32(kernels.RoPEAttnBindK), v: b.f32(kernels.RoPEAttnBindV),
		},
		kCache: b.kvCache(kernels.RoPEAttnBindKCache, p.KVHeads, p.Cap, 0, d, kind),
		vCache: b.kvCache(kernels.RoPEAttnBindVCache, p.KVHeads, p.Cap, 0, d, kind),
		out:    b.f32(kernels.RoPEAttnBindOut),
	}}
	k.window = b.window(kernels.RoPEAttnSpecWindowed, p.Window)
	if b.spec(kernels.RoPEAttnSpecLearned) != 0 {
		k.learned = lastOf(b.f32(kernels.RoPEAttnBindNorm), int(p.Heads))
	}
	return k, b.err
}

func (k *ropeAttn) units(*worker) int { return k.splits * k.heads }

func (k *ropeAttn) run(w *worker, lo, hi int) {
	for u := lo; u < hi; {
		h, s := u%k.heads, u/k.heads
		n := min(hi-u, k.perKV-h%k.perKV, attnRows)
		k.group(w, 0, 1, s, h, n)
		u += n
	}
}

// ropeAttnTile combines qk_rope_kv and attn_tile for rows of different sequences.
type ropeAttnTile struct{ attn }

func newRoPEAttnTile(b *binder) (kernel, error) {
	p := kernels.RoPEAttnTileParamsOf(b.cmd)
	d, kind := b.spec(kernels.RoPEAttnTileSpecHeadDim), b.spec(kernels.RoPEAttnTileSpecKV)
	b.need(p.KVHeads > 0 && p.Heads%max(p.KVHeads, 1) == 0, "%d heads cannot share %d K and V heads", p.Heads, p.KVHeads)
	k := &ropeAttnTile{attn{
		ops: b.ops, float: b.ops.float[dtype.F16],
		heads: int(p.Heads), headDim: int(d), qStride: int(p.QStride), perKV: int(p.Heads / max(p.KVHeads, 1)),
		splits: 1, scale: p.Scale, softCap: p.SoftCap,
		q: b.f32(kernels.RoPEAttnTileBindQ),
		newest: &newest{
			headTurn: newHeadTurn(b, int(d), int(p.Half), p.Eps, b.spec(kernels.RoPEAttnTileSpecLayout), kernels.RoPEAttnTileBindAngles, kernels.RoPEAttnTileBindNorm, kernels.RoPEAttnTileSpecQKNorm),
			k:        b.f32(kernels.RoPEAttnTileBindK), v: b.f32(kernels.RoPEAttnTileBindV), kStride: int(p.KVStride), vStride: int(p.KVStride),
		},
		kCache: b.kvCache(kernels.RoPEAttnTileBindKCache, p.KVHeads, p.Cap, 0, d, kind),
		vCache: b.kvCache(kernels.RoPEAttnTileBindVCache, p.KVHeads, p.Cap, 0, d, kind),
		halves: b.halves(kernels.RoPEAttnTileBindHalves, int(p.Heads*d), p.Few),
	}}
	k.paged(b, kernels.RoPEAttnTileSpecSequences, p.Tables, p.Table, p.Pool)
	k.part = aloneRows
	k.window = b.window(kernels.RoPEAttnTileSpecWindowed, p.Window)
	if b.spec(kernels.RoPEAttnTileSpecLearned) != 0 {
		k.learned = lastOf(b.f32(kernels.RoPEAttnTileBindNorm), int(p.Heads))
	}
	return k, b.err
}

// lastOf returns the last n elements of x, or nil if it has fewer.
func lastOf(x []float32, n int) []float32 {
	if len(x) < n {
		return nil
	}
	return x[len(x)-n:]
}

func (k *ropeAttnTile) units(w *worker) int { return w.rows * k.heads }

// pool returns 0: a unit is a row and a head, of rows that take about the same time.
func (k *ropeAttnTile) pool(*worker) int { return 0 }

func (k *ropeAttnTile) run(w *worker, lo, hi int) {
	for u := lo; u < hi; {
		h := u % k.heads
		n := min(hi-u, k.perKV-h%k.perKV, attnRows)
		k.group(w, u/k.heads, 1, 0, h, n)
		u += n
	}
}

// makeHeads computes the group's Q and, if split s contains the newest position, its K and V. Of
// the groups that compute them, the first one of each K and V head writes them to the cache. No
// other group reads them there before the command has ended.
func (k *attn) makeHeads(w *worker, g *attnGroup, s int) {
	d, from := k.headDim, k.newest
	for i := range g.heads {
		from.turn(g.q[i*d:][:d], k.q[g.row*k.qStride+(g.head+i)*d:][:d], from.qNorm, g.row)
	}
	begin, end := k.seen(w, g.row, s)
	last := k.visible(w, g.row) - 1
	if last < begin || last >= end {
		return
	}
	mem := w.scratch[4*(attnRows*(2*d+attnBlock)+len(g.scales)):][:8*d]
	g.fresh, g.newK, g.newV = last, k.kCache.own(mem[4*d:]), k.vCache.own(mem[6*d:])
	kv := g.head / k.perKV
	head := float32s(mem[:4*d])
	from.turn(head, from.k[g.row*from.kStride+kv*d:][:d], from.kNorm, g.row)
	k.kCache.put(k.ops, g.newK, head, g.scales)
	k.vCache.put(k.ops, g.newV, from.v[g.row*from.vStride+kv*d:][:d], g.scales)
	if g.head%k.perKV == 0 {
		at := k.kCache.at(kv, g.sequence, last)
		k.kCache.rows(at, 1).copy(g.newK)
		k.vCache.rows(at, 1).copy(g.newV)
	}
}

// run returns consecutive rows that hold positions p, p+1, ..., at most n, and their number:
// either the newest position's own row or rows of the cache.
func (g *attnGroup) run(c *kvCache, own *kvRows, head, p, n int) (int, kvRows) {
	if p == g.fresh {
		return 1, *own
	}
	if p < g.fresh {
		n = min(n, g.fresh-p)
	}
	return c.run(head, g.sequence, p, n)
}
