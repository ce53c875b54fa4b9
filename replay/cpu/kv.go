package cpu

import "github.com/pianola-engine/pianola/table"

// kvCache is one layer's K or V: [kvHeads, cap, headDim] float16.
type kvCache struct {
	data         []byte
	cap, headDim int
}

// row returns the bytes of a head's row.
func (c *kvCache) row(head, row int) []byte {
	return c.data[2*(head*c.cap+row)*c.headDim:][:2*c.headDim]
}

// run returns the rows of positions p, p+1, ... of a head that lie one after
// another, at most n of them, and how many they are.
func (c *kvCache) run(head, p, n int) (int, []byte) {
	first := p % c.cap
	n = min(n, c.cap-first)
	return n, c.data[2*(head*c.cap+first)*c.headDim:][:2*n*c.headDim]
}

// cacheRow returns the cache row of row r of a chunk whose first row sees
// kvLen positions.
func (w *worker) cacheRow(r, capacity int) int {
	return (max(int(w.kvLen), 1) - 1 + r) % capacity
}

// kvWrite writes K and V rows to the cache.
type kvWrite struct {
	ops                                *ops
	kvHeads, headDim, kStride, vStride int
	k, v                               []float32 // [rows, kvHeads, headDim]
	kCache, vCache                     kvCache
}

func newKVWrite(b *binder) (kernel, error) {
	p := b.cmd.KVWriteParams()
	d := int(b.spec(table.KVWriteSpecHeadDim))
	b.need(p.Cap > 0, "the cache has no rows")
	return &kvWrite{
		ops: b.ops, kvHeads: int(p.KVHeads), headDim: d, kStride: int(p.KStride), vStride: int(p.VStride),
		k: b.f32(table.KVWriteBindK), v: b.f32(table.KVWriteBindV),
		kCache: kvCache{b.bytes(table.KVWriteBindKCache), int(p.Cap), d},
		vCache: kvCache{b.bytes(table.KVWriteBindVCache), int(p.Cap), d},
	}, b.err
}

func (k *kvWrite) units(w *worker) int { return w.rows * k.kvHeads }

func (k *kvWrite) run(w *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		r, h := u/k.kvHeads, u%k.kvHeads
		at := w.cacheRow(r, k.kCache.cap)
		k.ops.f32ToF16(k.kCache.row(h, at), k.k[r*k.kStride+h*k.headDim:][:k.headDim])
		k.ops.f32ToF16(k.vCache.row(h, at), k.v[r*k.vStride+h*k.headDim:][:k.headDim])
	}
}

// qkRoPEKV is head_norm, rope and kv_write in one. A unit is one head of Q,
// or of K and V.
type qkRoPEKV struct {
	headTurn
	heads, kvHeads            int
	qStride, kStride, vStride int

	q, k, v        []float32 // [rows, heads or kvHeads, headDim]
	qOut           []float32 // [rows, heads, headDim]
	kCache, vCache kvCache
}

func newQKRoPEKV(b *binder) (kernel, error) {
	p := b.cmd.QKRoPEKVParams()
	d := int(b.spec(table.QKRoPEKVSpecHeadDim))
	b.need(p.Cap > 0, "the cache has no rows")
	return &qkRoPEKV{
		headTurn: newHeadTurn(b, d, int(p.Half), p.Eps, b.spec(table.QKRoPEKVSpecLayout), table.QKRoPEKVBindAngles, table.QKRoPEKVBindNorm),
		heads:    int(p.Heads), kvHeads: int(p.KVHeads),
		qStride: int(p.QStride), kStride: int(p.KStride), vStride: int(p.VStride),
		q: b.f32(table.QKRoPEKVBindQ), k: b.f32(table.QKRoPEKVBindK), v: b.f32(table.QKRoPEKVBindV),
		qOut:   b.f32(table.QKRoPEKVBindQOut),
		kCache: kvCache{b.bytes(table.QKRoPEKVBindKCache), int(p.Cap), d},
		vCache: kvCache{b.bytes(table.QKRoPEKVBindVCache), int(p.Cap), d},
	}, b.err
}

func (k *qkRoPEKV) units(w *worker) int { return w.rows * (k.heads + k.kvHeads) }

func (k *qkRoPEKV) run(w *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		r, h := u/(k.heads+k.kvHeads), u%(k.heads+k.kvHeads)
		if h < k.heads {
			out := k.qOut[(r*k.heads+h)*k.headDim:][:k.headDim]
			k.turn(out, k.q[r*k.qStride+h*k.headDim:][:k.headDim], k.qNorm, r)
			continue
		}
		h -= k.heads
		at := w.cacheRow(r, k.kCache.cap)
		head := float32s(w.scratch[:4*k.headDim])
		k.turn(head, k.k[r*k.kStride+h*k.headDim:][:k.headDim], k.kNorm, r)
		k.ops.f32ToF16(k.kCache.row(h, at), head)
		k.ops.f32ToF16(k.vCache.row(h, at), k.v[r*k.vStride+h*k.headDim:][:k.headDim])
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

// newHeadTurn takes angles and the norms' weights from two bindings, of which
// the latter may not be there.
func newHeadTurn(b *binder, headDim, half int, eps float32, layout uint32, angles, norm int) headTurn {
	t := headTurn{ops: b.ops, headDim: headDim, half: half, eps: eps, layout: layout, angles: b.f32(angles)}
	if n := b.f32(norm); len(n) == 2*headDim {
		t.qNorm, t.kNorm = n[:headDim], n[headDim:]
	}
	return t
}

// turn sets out to head x of row r, normalised and rotated.
func (k *headTurn) turn(out, x, norm []float32, r int) {
	if norm != nil {
		k.ops.rmsNorm(out, x, norm, k.eps)
	} else {
		copy(out, x)
	}
	k.ops.rotate(out, k.angles[2*r*k.half:][:2*k.half], k.layout)
}
