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
	k, v []float32 // [kvHeads, headDim]
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
		if all := b.f32(kernels.RoPEAttnBindNorm); len(all) >= int(p.Heads) {
			k.learned = all[len(all)-int(p.Heads):]
		}
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

// makeHeads computes the group's Q and, if split s contains the newest position, its K and V. Of
// the groups that compute them, the first one of each K and V head writes them to the cache. No
// other group reads them there before the command has ended.
func (k *attn) makeHeads(w *worker, g *attnGroup, s int) {
	d, from := k.headDim, k.newest
	for i := range g.heads {
		from.turn(g.q[i*d:][:d], k.q[(g.head+i)*d:][:d], from.qNorm, 0)
	}
	begin, end := k.seen(w, 0, s)
	last := int(w.kvLen) - 1
	if last < begin || last >= end {
		return
	}
	mem := w.scratch[4*(attnRows*(2*d+attnBlock)+len(g.scales)):][:8*d]
	g.fresh, g.newK, g.newV = last, k.kCache.own(mem[4*d:]), k.vCache.own(mem[6*d:])
	kv := g.head / k.perKV
	head := float32s(mem[:4*d])
	from.turn(head, from.k[kv*d:][:d], from.kNorm, 0)
	k.kCache.put(k.ops, g.newK, head, g.scales)
	k.vCache.put(k.ops, g.newV, from.v[kv*d:][:d], g.scales)
	if g.head%k.perKV == 0 {
		at := k.kCache.at(kv, 0, last)
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
