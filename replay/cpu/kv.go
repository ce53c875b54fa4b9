package cpu

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// kvCache is one layer's K or V: [kvHeads, cap, headDim] float16, or [kvHeads, cap, headDim] int8
// and [kvHeads, cap, headDim/32] float16 scales. The cache of a pooled table has pages: it is
// [cap/64, kvHeads, 64, headDim].
type kvCache struct {
	values, scales []byte
	cap, headDim   int
	first          int // rows reserved for the first positions
	size           int // bytes of a row's values
	scaleSize      int // bytes of a row's scales; 0 without scales
	heads          int
	pages          tables // of a pooled table
}

// kvRows are consecutive rows of a head.
type kvRows struct{ values, scales []byte }

// kvCache returns the cache that is bound to binding i.
func (b *binder) kvCache(i int, kvHeads, capacity, first, headDim, kind uint32) kvCache {
	c := kvCache{values: b.bytes(i), cap: int(capacity), first: int(first), headDim: int(headDim), size: 2 * int(headDim), heads: int(kvHeads)}
	b.need(capacity > first, "the cache has no rows for the positions after the first %d", first)
	if kind == decl.KVQ8 {
		b.need(headDim%decl.KVBlock == 0, "heads of %d elements are no whole blocks", headDim)
		c.size, c.scaleSize = int(headDim), 2*int(headDim)/decl.KVBlock
		if c.values != nil && b.err == nil {
			all := int(kvHeads) * c.cap * c.size
			c.values, c.scales = c.values[:all], c.values[all:]
		}
	}
	return c
}

// paged makes the cache one of pages, if the command belongs to a pooled table.
func (c *kvCache) paged(b *binder, of *sequences, at, each, pool uint32) {
	if of.kind != decl.SequencesOwn {
		c.pages = b.tables(at, each, pool, c.cap/pagePositions)
	}
}

// at returns the index of the row that holds a position of a head.
func (c *kvCache) at(head, sequence, p int) int {
	if c.pages.entries == nil {
		return head*c.cap + c.row(p)
	}
	return (c.pages.page(sequence, p)*c.heads+head)*pagePositions + p%pagePositions
}

// rows returns n rows, beginning with the row with index at.
func (c *kvCache) rows(at, n int) kvRows {
	r := kvRows{values: c.values[at*c.size:][:n*c.size]}
	if c.scaleSize > 0 {
		r.scales = c.scales[at*c.scaleSize:][:n*c.scaleSize]
	}
	return r
}

// own returns a row in memory outside the cache.
func (c *kvCache) own(mem []byte) kvRows {
	return kvRows{mem[:c.size], mem[c.size:][:c.scaleSize]}
}

// copy copies rows.
func (r kvRows) copy(from kvRows) {
	copy(r.values, from.values)
	copy(r.scales, from.scales)
}

// put writes x to a row, converted to the cache's type. mem is buffer space for the row's scales.
func (c *kvCache) put(o *ops, to kvRows, x, mem []float32) {
	if c.scaleSize == 0 {
		o.f32ToF16(to.values, x)
		return
	}
	d := mem[:c.scaleSize/2]
	o.quantize(int8s(to.values), d, x)
	o.f32ToF16(to.scales, d)
}

// run returns consecutive rows of a head that hold positions p, p+1, ... of a sequence, at most n, and
// their number.
func (c *kvCache) run(head, sequence, p, n int) (int, kvRows) {
	if c.pages.entries != nil {
		n = min(n, pagePositions-p%pagePositions)
		return n, c.rows(c.at(head, sequence, p), n)
	}
	row := c.row(p)
	if row < c.first {
		n = min(n, c.first-row)
	}
	n = min(n, c.cap-row)
	return n, c.rows(head*c.cap+row, n)
}

// row returns the row of a position.
func (c *kvCache) row(p int) int {
	if p < c.first {
		return p
	}
	return c.first + (p-c.first)%(c.cap-c.first)
}

// position returns the position of row r of a chunk; kvLen is the KV length of its first row.
func (w *worker) position(r int) int { return max(int(w.kvLen), 1) - 1 + r }

// kvWrite writes K and V rows to the cache.
type kvWrite struct {
	sequences
	ops                                *ops
	kvHeads, headDim, kStride, vStride int
	k, v                               []float32 // [rows, kvHeads, headDim]
	kCache, vCache                     kvCache
}

func newKVWrite(b *binder) (kernel, error) {
	p := kernels.KVWriteParamsOf(b.cmd)
	d, kind := b.spec(kernels.KVWriteSpecHeadDim), b.spec(kernels.KVWriteSpecKV)
	k := &kvWrite{
		sequences: b.sequences(kernels.KVWriteSpecSequences, p.Pool), ops: b.ops, kvHeads: int(p.KVHeads), headDim: int(d), kStride: int(p.KStride), vStride: int(p.VStride),
		k: b.f32(kernels.KVWriteBindK), v: b.f32(kernels.KVWriteBindV),
		kCache: b.kvCache(kernels.KVWriteBindKCache, p.KVHeads, p.Cap, p.First, d, kind),
		vCache: b.kvCache(kernels.KVWriteBindVCache, p.KVHeads, p.Cap, p.First, d, kind),
	}
	k.kCache.paged(b, &k.sequences, p.Tables, p.Table, p.Pool)
	k.vCache.paged(b, &k.sequences, p.Tables, p.Table, p.Pool)
	return k, b.err
}

func (k *kvWrite) units(w *worker) int { return w.rows * k.kvHeads }

func (k *kvWrite) run(w *worker, lo, hi int) {
	mem := float32s(w.scratch)
	for u := lo; u < hi; u++ {
		r, h := u/k.kvHeads, u%k.kvHeads
		if k.stopped(r) {
			continue
		}
		at := k.kCache.at(h, k.of(w, r), k.position(w, r))
		k.kCache.put(k.ops, k.kCache.rows(at, 1), k.k[r*k.kStride+h*k.headDim:][:k.headDim], mem)
		k.vCache.put(k.ops, k.vCache.rows(at, 1), k.v[r*k.vStride+h*k.headDim:][:k.headDim], mem)
	}
}

// qkRoPEKV combines head_norm, rope and kv_write. A unit is one head of Q, or one head of K and
// V.
type qkRoPEKV struct {
	headTurn
	sequences
	heads, kvHeads            int
	qStride, kStride, vStride int

	q, k, v        []float32 // [rows, heads or kvHeads, headDim]
	qOut           []float32 // [rows, heads, headDim]
	kCache, vCache kvCache
}

func newQKRoPEKV(b *binder) (kernel, error) {
	p := kernels.QKRoPEKVParamsOf(b.cmd)
	d, kind := b.spec(kernels.QKRoPEKVSpecHeadDim), b.spec(kernels.QKRoPEKVSpecKV)
	k := &qkRoPEKV{
		sequences: b.sequences(kernels.QKRoPEKVSpecSequences, p.Pool),
		headTurn:  newHeadTurn(b, int(d), int(p.Half), p.Eps, b.spec(kernels.QKRoPEKVSpecLayout), kernels.QKRoPEKVBindAngles, kernels.QKRoPEKVBindNorm, kernels.QKRoPEKVSpecQKNorm),
		heads:     int(p.Heads), kvHeads: int(p.KVHeads),
		qStride: int(p.QStride), kStride: int(p.KStride), vStride: int(p.VStride),
		q: b.f32(kernels.QKRoPEKVBindQ), k: b.f32(kernels.QKRoPEKVBindK), v: b.f32(kernels.QKRoPEKVBindV),
		qOut:   b.f32(kernels.QKRoPEKVBindQOut),
		kCache: b.kvCache(kernels.QKRoPEKVBindKCache, p.KVHeads, p.Cap, p.First, d, kind),
		vCache: b.kvCache(kernels.QKRoPEKVBindVCache, p.KVHeads, p.Cap, p.First, d, kind),
	}
	k.kCache.paged(b, &k.sequences, p.Tables, p.Table, p.Pool)
	k.vCache.paged(b, &k.sequences, p.Tables, p.Table, p.Pool)
	k.part = partOf(p.Joined)
	return k, b.err
}

func (k *qkRoPEKV) units(w *worker) int { return w.rows * (k.heads + k.kvHeads) }

func (k *qkRoPEKV) run(w *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		r, h := u/(k.heads+k.kvHeads), u%(k.heads+k.kvHeads)
		if k.skips(r) {
			continue
		}
		if h < k.heads {
			out := k.qOut[(r*k.heads+h)*k.headDim:][:k.headDim]
			k.turn(out, k.q[r*k.qStride+h*k.headDim:][:k.headDim], k.qNorm, r)
			continue
		}
		h -= k.heads
		at := k.kCache.at(h, k.of(w, r), k.position(w, r))
		mem := float32s(w.scratch)
		head, mem := mem[:k.headDim], mem[k.headDim:]
		k.turn(head, k.k[r*k.kStride+h*k.headDim:][:k.headDim], k.kNorm, r)
		k.kCache.put(k.ops, k.kCache.rows(at, 1), head, mem)
		k.vCache.put(k.ops, k.vCache.rows(at, 1), k.v[r*k.vStride+h*k.headDim:][:k.headDim], mem)
	}
}

// headTurn normalises and rotates heads.
type headTurn struct {
	ops           *ops
	headDim, half int
	eps           float32
	layout        uint32

	angles       []float32 // [rows, half, 2]
	qNorm, kNorm []float32 // [headDim], or nil
}

// newHeadTurn takes the angles from binding angles, and the norms' weights from bindings norm and
// qkNorm, which may be absent.
func newHeadTurn(b *binder, headDim, half int, eps float32, layout uint32, angles, norm, qkNorm int) headTurn {
	t := headTurn{ops: b.ops, headDim: headDim, half: half, eps: eps, layout: layout, angles: b.f32(angles)}
	if n := b.f32(norm); b.spec(qkNorm) != 0 && len(n) >= 2*headDim {
		t.qNorm, t.kNorm = n[:headDim], n[headDim:2*headDim]
	}
	return t
}

// turn sets out to head x of row r, normalised and rotated.
func (k *headTurn) turn(out, x, norm []float32, r int) {
	angles := k.angles[2*r*k.half:][:2*k.half]
	switch {
	case norm == nil:
		copy(out, x)
	case k.ops.turnHead != nil && k.layout == decl.LayoutHalf && len(x) == 2*k.half && len(x)%32 == 0:
		k.ops.turnHead(out, x, norm, angles, k.eps)
		return
	default:
		k.ops.rmsNorm(out, x, norm, k.eps)
	}
	k.ops.rotate(out, angles, k.layout)
}
