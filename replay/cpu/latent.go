package cpu

import "github.com/pianola-engine/pianola/internal/kernels"

// latentKV implements latent_kv. Of each row it writes the cache row of its position, and the rotated
// parts of the heads of Q.
type latentKV struct {
	sequences
	ops                              *ops
	heads, headDim, rotated, nope    int
	qStride, kvStride                int
	eps                              float32
	layout                           uint32
	q, kv, angles, weights, rotatedQ []float32
	cache                            kvCache
}

func newLatentKV(b *binder) (kernel, error) {
	p := kernels.LatentKVParamsOf(b.cmd)
	d := b.spec(kernels.LatentKVSpecHeadDim)
	k := &latentKV{
		sequences: b.sequences(kernels.LatentKVSpecSequences, p.Pool), ops: b.ops,
		heads: int(p.Heads), headDim: int(d), rotated: 2 * int(p.Half), nope: int(p.Nope), qStride: int(p.QStride), kvStride: int(p.KVStride),
		eps: p.Eps, layout: b.spec(kernels.LatentKVSpecLayout),
		q: b.f32(kernels.LatentKVBindQ), kv: b.f32(kernels.LatentKVBindKV), angles: b.f32(kernels.LatentKVBindAngles),
		weights: b.f32(kernels.LatentKVBindW), rotatedQ: b.f32(kernels.LatentKVBindQOut),
		cache: b.kvCache(kernels.LatentKVBindKCache, p.KVHeads, p.Cap, p.First, d, b.spec(kernels.LatentKVSpecKV)),
	}
	k.cache.paged(b, &k.sequences, p.Tables, p.Table, p.Pool)
	return k, b.err
}

func (k *latentKV) units(w *worker) int { return w.rows }

func (k *latentKV) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		if k.stopped(r) {
			continue
		}
		angles := k.angles[r*k.rotated:][:k.rotated]
		for h := range k.heads {
			to := k.rotatedQ[(r*k.heads+h)*k.headDim:][:k.rotated]
			copy(to, k.q[r*k.qStride+h*(k.nope+k.rotated)+k.nope:])
			k.ops.rotate(to, angles, k.layout)
		}
		mem := float32s(w.scratch)
		row, mem := mem[:k.headDim], mem[k.headDim:]
		rank := k.headDim - k.rotated
		from := k.kv[r*k.kvStride:][:k.headDim]
		copy(row, from[rank:])
		k.ops.rotate(row[:k.rotated], angles, k.layout)
		k.ops.rmsNorm(row[k.rotated:], from[:rank], k.weights, k.eps)
		k.cache.put(k.ops, k.cache.rows(k.cache.at(0, k.of(w, r), k.position(w, r)), 1), row, mem)
	}
}
