package cpu

import (
	"math"

	"github.com/pianola-engine/pianola/dtype"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/table/decl"
)

// attnBlock is the number of absolute positions whose scores are taken
// together; splits are whole blocks.
const attnBlock = 64

var minusInf = float32(math.Inf(-1))

// attn is softmax attention of one row and head over its positions, or over
// those of one split.
type attn struct {
	ops     *ops
	rowsF16 rowsFunc

	heads, headDim, qStride int
	perKV                   int // Q heads that share a K and V head
	window                  int // 0: all positions
	span, splits            int
	split                   bool
	scale                   float32

	q              []float32 // [rows, heads, headDim]
	kCache, vCache kvCache
	out            []float32 // [rows, heads, splits, headDim], or headDim + 2
}

func newAttn(b *binder) (kernel, error) {
	p := b.cmd.AttnParams()
	d := int(b.spec(table.AttnSpecHeadDim))
	b.need(p.KVHeads > 0 && p.Heads%max(p.KVHeads, 1) == 0, "%d heads cannot share %d K and V heads", p.Heads, p.KVHeads)
	b.need(p.Cap > 0, "the cache has no rows")
	b.need(p.Splits > 0, "there are no splits")
	k := &attn{
		ops: b.ops, rowsF16: b.ops.rows[product{dtype.F16, decl.ActF32}],
		heads: int(p.Heads), headDim: d, qStride: int(p.QStride), perKV: int(p.Heads / max(p.KVHeads, 1)),
		span: int(p.Span), splits: int(p.Splits), split: b.spec(table.AttnSpecSplit) != 0, scale: p.Scale,
		q:      b.f32(table.AttnBindQ),
		kCache: kvCache{b.bytes(table.AttnBindKCache), int(p.Cap), d},
		vCache: kvCache{b.bytes(table.AttnBindVCache), int(p.Cap), d},
		out:    b.f32(table.AttnBindOut),
	}
	if b.spec(table.AttnSpecWindowed) != 0 {
		b.need(p.Window > 0, "the window is 0")
		k.window = int(p.Window)
	}
	return k, b.err
}

func (k *attn) units(w *worker) int { return w.rows * k.splits * k.heads }

func (k *attn) run(w *worker, lo, hi int) {
	for u := lo; u < hi; {
		h, s := u%k.heads, u/k.heads%k.splits
		n := min(hi-u, k.perKV-h%k.perKV, attnHeads)
		k.group(w, fairRow(u/(k.heads*k.splits), w.rows), s, h, n)
		u += n
	}
}

// attnHeads is how many heads that share K and V are taken together.
const attnHeads = 8

// group computes heads h to h+n-1 of row r and split s, which share K and V: a
// block of them is in the cache for all after the first. What a head computes
// does not depend on the others.
func (k *attn) group(w *worker, r, s, h, n int) {
	end := int(w.kvLen) + r
	begin := 0
	if k.window > 0 {
		begin = max(0, end-k.window)
	}
	size := k.headDim
	if k.split {
		begin, end = max(begin, s*k.span), min(end, (s+1)*k.span)
		size += 2
	}
	out := func(i int) []float32 { return k.out[((r*k.heads+h+i)*k.splits+s)*size:][:size] }
	var m, sum [attnHeads]float32
	for i := range n {
		clear(out(i)[:k.headDim])
		m[i] = minusInf
	}
	for at := begin; at < end; {
		next := min(at-at%attnBlock+attnBlock, end)
		for i := range n {
			w.input.f = k.q[r*k.qStride+(h+i)*k.headDim:][:k.headDim]
			m[i], sum[i] = k.block(w, out(i)[:k.headDim], h/k.perKV, at, next, m[i], sum[i])
		}
		at = next
	}
	for i := range n {
		out := out(i)
		switch {
		case k.split:
			out[k.headDim], out[k.headDim+1] = m[i], sum[i]
		case end > begin:
			for j := range out {
				out[j] /= sum[i]
			}
		}
	}
}

// fairRow returns the row of piece i of a chunk: rows from both ends in turn,
// because later rows see more positions and workers get contiguous pieces.
func fairRow(i, rows int) int {
	if i%2 == 0 {
		return i / 2
	}
	return rows - 1 - i/2
}

// block adds the V rows of positions at to next-1, weighted by the products of
// the worker's input, a row of Q, with their K rows, to acc. m is the largest
// score so far and sum the sum of weights; it returns the new ones.
func (k *attn) block(w *worker, acc []float32, head, at, next int, m, sum float32) (float32, float32) {
	scores := w.scores[:next-at]
	k.score(w, scores, head, at, next)
	if top := maxOf(scores); top > m {
		shrink := exp(m - top)
		for i := range acc {
			acc[i] = float32(acc[i] * shrink)
		}
		sum = float32(sum * shrink)
		m = top
	}
	k.ops.expSub(scores, m)
	for _, v := range scores {
		sum += v
	}
	k.weigh(acc, scores, head, at, next)
	return m, sum
}

// score sets scores to the scaled products of the worker's input, a row of Q,
// with the K rows of positions at to next-1.
func (k *attn) score(w *worker, scores []float32, head, at, next int) {
	for p := at; p < next; {
		n, rows := k.kCache.run(head, p, next-p)
		k.rowsF16(scores[p-at:][:n], rows, &w.input)
		p += n
	}
	for i, v := range scores {
		scores[i] = float32(v * k.scale)
	}
}

// weigh adds the V rows of positions at to next-1, times their weights.
func (k *attn) weigh(acc, weights []float32, head, at, next int) {
	for p := at; p < next; {
		n, rows := k.vCache.run(head, p, next-p)
		k.ops.addScaledF16(acc, rows, weights[p-at:][:n])
		p += n
	}
}

// maxOf returns the largest element, ignoring NaN.
func maxOf(x []float32) float32 {
	m := minusInf
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

// attnMerge merges the splits of attn.
type attnMerge struct {
	heads, headDim, splits int
	part                   []float32 // [rows, heads, splits, headDim + 2]
	out                    []float32 // [rows, heads, headDim]
}

func newAttnMerge(b *binder) (kernel, error) {
	p := b.cmd.AttnMergeParams()
	return &attnMerge{
		heads: int(p.Heads), headDim: int(b.spec(table.AttnMergeSpecHeadDim)), splits: int(p.Splits),
		part: b.f32(table.AttnMergeBindPart), out: b.f32(table.AttnMergeBindOut),
	}, b.err
}

func (k *attnMerge) units(w *worker) int { return w.rows * k.heads }

func (k *attnMerge) run(_ *worker, lo, hi int) {
	size := k.headDim + 2
	for u := lo; u < hi; u++ {
		out := k.out[u*k.headDim:][:k.headDim]
		parts := k.part[u*k.splits*size:][:k.splits*size]
		clear(out)
		m := minusInf
		for p := parts; len(p) > 0; p = p[size:] {
			if p[k.headDim+1] != 0 && p[k.headDim] > m {
				m = p[k.headDim]
			}
		}
		var sum float32
		for p := parts; len(p) > 0; p = p[size:] {
			weight := p[k.headDim+1]
			if weight == 0 {
				continue // it saw no position
			}
			factor := exp(p[k.headDim] - m)
			sum += float32(weight * factor)
			for i := range out {
				out[i] += float32(p[i] * factor)
			}
		}
		if sum == 0 {
			continue
		}
		for i := range out {
			out[i] /= sum
		}
	}
}
