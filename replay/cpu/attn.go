package cpu

import (
	"math"
	"math/bits"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// attnBlock is the number of positions whose scores are computed together. Blocks begin at
// absolute positions that are multiples of it.
const attnBlock = 64

var minusInf = float32(math.Inf(-1))

// attnRows is the number of rows of Q that are computed together because they share a K and V
// head: heads of one row, and heads of the neighbouring rows.
const attnRows = 32

// ones are weights that turn a dot product into a sum.
var ones = func() (x [attnBlock]float32) {
	for i := range x {
		x[i] = 1
	}
	return x
}()

// attn computes softmax attention for each row and head, over all visible positions or over the
// positions of one split.
type attn struct {
	sequences
	ops   *ops
	float floatFunc // product of rows of K and Q, for a float16 cache

	heads, headDim, qStride int
	perKV                   int  // Q heads per K and V head
	window                  int  // number of last positions that are visible; 0 means all
	chunked                 bool // only those of them are visible that follow a multiple of window
	span, splits            int
	split                   bool
	scale                   float32
	softCap                 float32 // 0 means none

	q              []float32 // [rows, heads, headDim]
	sinks          *sinks    // the attention sinks; nil if there are none
	learned        []float32 // [heads], learned sink logits, or nil
	newest         *newest   // set by rope_attn; if it is nil, Q is already rotated and all K and V are in the cache
	kCache, vCache kvCache
	out            []float32   // [rows, heads, headDim], or the parts of splits (see splitRow)
	halves         *attnHalves // where the results go instead of out, or nil
}

// attnHalves are the results of attention as rows of float16 with the unit 1.
type attnHalves struct {
	layout halvesLayout
	rows   []byte
}

// halves returns the results of a command whose binding i is rows of float16 of columns columns.
func (b *binder) halves(i int, columns int, few uint32) *attnHalves {
	return &attnHalves{layout: halvesLayout{columns, 1, few != 0}, rows: b.words(i)}
}

func newAttn(b *binder) (kernel, error) {
	p := kernels.AttnParamsOf(b.cmd)
	d, kind := b.spec(kernels.AttnSpecHeadDim), b.spec(kernels.AttnSpecKV)
	b.need(p.KVHeads > 0 && p.Heads%max(p.KVHeads, 1) == 0, "%d heads cannot share %d K and V heads", p.Heads, p.KVHeads)
	b.need(p.Splits > 0, "there are no splits")
	k := &attn{
		ops: b.ops, float: b.ops.float[dtype.F16],
		heads: int(p.Heads), headDim: int(d), qStride: int(p.QStride), perKV: int(p.Heads / max(p.KVHeads, 1)),
		span: int(p.Span), splits: int(p.Splits), split: b.spec(kernels.AttnSpecSplit) != 0, scale: p.Scale, softCap: p.SoftCap,
		q:      b.f32(kernels.AttnBindQ),
		kCache: b.kvCache(kernels.AttnBindKCache, p.KVHeads, p.Cap, p.First, d, kind),
		vCache: b.kvCache(kernels.AttnBindVCache, p.KVHeads, p.Cap, p.First, d, kind),
		out:    b.f32(kernels.AttnBindOut),
	}
	k.paged(b, kernels.AttnSpecSequences, p.Tables, p.Table, p.Pool)
	k.window = b.window(kernels.AttnSpecWindowed, p.Window)
	if b.spec(kernels.AttnSpecSinks) != 0 {
		b.need(!k.split, "positions at the start are not split")
		k.sinks = &sinks{first: int(p.First), half: int(p.Half), layout: b.spec(kernels.AttnSpecLayout), turn: b.f32(kernels.AttnBindTurn)}
	}
	if b.spec(kernels.AttnSpecLearned) != 0 {
		k.learned = b.f32(kernels.AttnBindLogits)
	}
	return k, b.err
}

// paged sets the sequences of the rows, and makes the caches pages if the command belongs to a pooled table.
func (k *attn) paged(b *binder, spec int, tables, table, pool uint32) {
	k.sequences = b.sequences(spec, pool)
	k.kCache.paged(b, &k.sequences, tables, table, pool)
	k.vCache.paged(b, &k.sequences, tables, table, pool)
}

// window returns the window of a command whose constant spec is set, and 0 for other commands.
func (b *binder) window(spec int, n uint32) int {
	if b.spec(spec) == 0 {
		return 0
	}
	b.need(n > 0, "the window is 0")
	return int(n)
}

// newAttnTile returns attn_tile as attn. It computes in float32, which is more precise.
func newAttnTile(b *binder) (kernel, error) {
	p := kernels.AttnTileParamsOf(b.cmd)
	d, kind := b.spec(kernels.AttnTileSpecHeadDim), b.spec(kernels.AttnTileSpecKV)
	b.need(p.KVHeads > 0 && p.Heads%max(p.KVHeads, 1) == 0, "%d heads cannot share %d K and V heads", p.Heads, p.KVHeads)
	k := &attn{
		ops: b.ops, float: b.ops.float[dtype.F16],
		heads: int(p.Heads), headDim: int(d), qStride: int(p.QStride), perKV: int(p.Heads / max(p.KVHeads, 1)),
		splits: 1, scale: p.Scale, softCap: p.SoftCap,
		q:      b.f32(kernels.AttnTileBindQ),
		kCache: b.kvCache(kernels.AttnTileBindKCache, p.KVHeads, p.Cap, 0, d, kind),
		vCache: b.kvCache(kernels.AttnTileBindVCache, p.KVHeads, p.Cap, 0, d, kind),
		out:    b.f32(kernels.AttnTileBindOut),
	}
	if b.spec(kernels.AttnTileSpecHalves) != 0 {
		k.halves = b.halves(kernels.AttnTileBindHalves, k.heads*k.headDim, p.Few)
	}
	k.paged(b, kernels.AttnTileSpecSequences, p.Tables, p.Table, p.Pool)
	k.part = partOf(p.Joined)
	k.window = b.window(kernels.AttnTileSpecWindowed, p.Window)
	if b.spec(kernels.AttnTileSpecLearned) != 0 {
		k.learned = b.f32(kernels.AttnTileBindLogits)
	}
	return k, b.err
}

// newAttnChunk returns attn_chunk as attn.
func newAttnChunk(b *binder) (kernel, error) {
	p := kernels.AttnChunkParamsOf(b.cmd)
	d, kind := b.spec(kernels.AttnChunkSpecHeadDim), b.spec(kernels.AttnChunkSpecKV)
	b.need(p.KVHeads > 0 && p.Heads%max(p.KVHeads, 1) == 0, "%d heads cannot share %d K and V heads", p.Heads, p.KVHeads)
	b.need(p.Window > 0, "the chunks have no positions")
	k := &attn{
		ops: b.ops, float: b.ops.float[dtype.F16],
		heads: int(p.Heads), headDim: int(d), qStride: int(p.QStride), perKV: int(p.Heads / max(p.KVHeads, 1)),
		window: int(p.Window), chunked: true, splits: 1, scale: p.Scale, softCap: p.SoftCap,
		q:      b.f32(kernels.AttnChunkBindQ),
		kCache: b.kvCache(kernels.AttnChunkBindKCache, p.KVHeads, p.Cap, 0, d, kind),
		vCache: b.kvCache(kernels.AttnChunkBindVCache, p.KVHeads, p.Cap, 0, d, kind),
		out:    b.f32(kernels.AttnChunkBindOut),
	}
	k.paged(b, kernels.AttnChunkSpecSequences, p.Tables, p.Table, p.Pool)
	if b.spec(kernels.AttnChunkSpecLearned) != 0 {
		k.learned = b.f32(kernels.AttnChunkBindLogits)
	}
	return k, b.err
}

// sinks are the first positions, which every row sees. turn rotates Q to their distance.
type sinks struct {
	first, half int
	layout      uint32
	turn        []float32 // [rows, half, 2]
}

// together returns the number of rows of a chunk that are computed together. The number leaves each
// worker several pieces of work, if there are enough rows.
func (k *attn) together(w *worker) int {
	if k.kind == decl.SequencesMany && !k.follows(w.rows-1) {
		return 1 // rows of different sequences share no K and V
	}
	n := min(w.rows, max(1, attnRows/k.perKV))
	if groups, team := k.splits*k.heads/k.perKV, len(w.team.workers); w.rows == n && groups%team == 0 {
		return n // the heads alone divide evenly, and each row of K and V is read once
	}
	for n > 1 && k.pieces(w, n) < 4*len(w.team.workers) {
		n /= 2
	}
	return n
}

// pieces returns the number of pieces when n rows are computed together.
func (k *attn) pieces(w *worker, n int) int { return (w.rows + n - 1) / n * k.splits * k.heads }

func (k *attn) units(w *worker) int {
	if v, ok := k.divided(w); ok {
		return v.units(k)
	}
	return k.pieces(w, k.together(w))
}

// pool returns half of the units of several rows, which take different times.
func (k *attn) pool(w *worker) int {
	if w.rows <= 1 { // always so in rope_attn, whose units are others
		return 0
	}
	if units := k.units(w); units >= 4*len(w.team.workers) {
		return units / 2
	}
	return 0
}

func (k *attn) more(w *worker, lo, hi int) { k.run(w, lo, hi) }

func (k *attn) run(w *worker, lo, hi int) {
	if v, ok := k.divided(w); ok {
		k.runParts(w, &v, lo, hi)
		return
	}
	together := k.together(w)
	blocks := (w.rows + together - 1) / together
	for u := lo; u < hi; {
		// The rows of a K and V head come one after another, so that it stays in the cache.
		of := u / k.perKV
		h := of/blocks/k.splits*k.perKV + u%k.perKV
		s := of / blocks % k.splits
		n := min(hi-u, k.perKV-h%k.perKV, attnRows/together)
		r := fairRow(of%blocks, blocks) * together
		for end := min(r+together, w.rows); r < end; {
			rows := 1
			for r+rows < end && (k.kind != decl.SequencesMany || k.follows(r+rows)) {
				rows++
			}
			k.group(w, r, rows, s, h, n)
			r += rows
		}
		u += n
	}
}

// fairRow returns the row of piece i of a chunk. It takes rows from both ends alternately: later
// rows see more positions and each worker gets contiguous pieces, so this balances the work.
func fairRow(i, rows int) int {
	if i%2 == 0 {
		return i / 2
	}
	return rows - 1 - i/2
}

// attnGroup is a group of heads and rows that are computed together. Its memory is the worker's
// private memory.
type attnGroup struct {
	row, rows   int // the first row, and the number of rows
	sequence    int // that the rows belong to
	head, heads int
	q, acc      []float32 // [rows, heads, headDim]
	scores      []float32 // [rows, heads, attnBlock]
	scales      []float32 // [attnBlock, headDim/32], scales of the rows of an int8 cache
	top, sum    []float32 // [rows, heads]: the maximum so far, and the sum of weights
	atStart     bool      // the positions are the attention sinks
	wide        wideGroup

	// The position whose K and V are not yet in the cache, or a position after all others if
	// there is none; and its K and V.
	fresh      int
	newK, newV kvRows // one row each
}

// group computes heads h to h+n-1, which share K and V, of rows r to r+rows-1 and split s. The
// result of a row and head does not depend on the others in the group.
func (k *attn) group(w *worker, r, rows, s, h, n int) {
	var g attnGroup
	if !k.begin(w, &g, r, rows, s, h, n, true) {
		return
	}
	k.blocks(w, &g, s)
	for i := range rows * n {
		k.finish(w, &g, s, i)
	}
}

// begin makes g the group before its first positions; if first, with the sinks. It reports whether there is
// anything to compute.
func (k *attn) begin(w *worker, g *attnGroup, r, rows, s, h, n int, first bool) bool {
	if k.skips(r) {
		return false
	}
	mem, size := float32s(w.scratch), rows*n*k.headDim
	*g = attnGroup{row: r, rows: rows, head: h, heads: n, q: mem[:size], acc: mem[size:][:size], scores: mem[2*size:][:rows*n*attnBlock], fresh: math.MaxInt, sequence: k.of(w, r)}
	g.top, g.sum = w.top[:rows*n], w.sum[:rows*n]
	clear(g.sum)
	if k.kCache.scaleSize > 0 {
		g.scales = float32s(w.scratch[4*attnRows*(2*k.headDim+attnBlock):])[:attnBlock*k.headDim/decl.KVBlock]
	}
	clear(g.acc)
	if k.newest != nil {
		k.makeHeads(w, g, s)
	} else {
		for i := range rows {
			copy(g.q[i*n*k.headDim:][:n*k.headDim], k.q[(r+i)*k.qStride+h*k.headDim:])
		}
	}
	k.widens(w, g)
	for i := range rows * n {
		g.top[i] = minusInf
		if k.learned != nil && s == 0 && first {
			g.top[i], g.sum[i] = k.learned[h+i%n], 1
		}
	}
	if k.sinks != nil && first {
		plain := g.q
		g.q, g.atStart = k.turned(w, g), true
		k.positions(w, g, s, 0, math.MaxInt)
		g.q, g.atStart = plain, false
	}
	return true
}

// blocks processes the positions that the rows see, part by part (see attnPart).
func (k *attn) blocks(w *worker, g *attnGroup, s int) {
	begin, _ := k.sees(w, g, g.row, s)
	_, end := k.sees(w, g, g.row+g.rows-1, s)
	if begin-begin%attnPart+attnPart >= end {
		k.positions(w, g, s, begin, end)
		return
	}
	t := k.total(w, g)
	for at := begin; at < end; {
		next := min(at-at%attnPart+attnPart, end)
		k.positions(w, g, s, at, next)
		k.closePart(w, g, &t, s, at, next)
		at = next
	}
	k.takeTotal(g, &t)
}

// positions processes the positions in [at, next) that the rows see, block by block.
func (k *attn) positions(w *worker, g *attnGroup, s, at, next int) {
	begin, _ := k.sees(w, g, g.row, s)
	_, end := k.sees(w, g, g.row+g.rows-1, s)
	at, end = max(at, begin), min(next, end)
	for at < end {
		next := min(at-at%attnBlock+attnBlock, end)
		k.block(w, g, s, at, next)
		at = next
	}
}

// turned returns the group's Q, rotated to the distance of the sinks.
func (k *attn) turned(w *worker, g *attnGroup) []float32 {
	d, t := k.headDim, k.sinks
	q := float32s(w.scratch[4*(attnRows*(2*d+attnBlock)+len(g.scales)):])[:len(g.q)]
	copy(q, g.q)
	for i := range g.rows * g.heads {
		k.ops.rotate(q[i*d:][:d], t.turn[2*(g.row+i/g.heads)*t.half:][:2*t.half], t.layout)
	}
	return q
}

// sees returns the range of visible positions of row r, among the sinks or the others, whichever
// the group is processing.
func (k *attn) sees(w *worker, g *attnGroup, r, s int) (begin, end int) {
	begin, end = k.seen(w, r, s)
	switch {
	case k.sinks == nil:
	case g.atStart:
		begin, end = 0, min(k.sinks.first, end)
	default:
		begin = min(max(begin, k.sinks.first), end)
	}
	return begin, end
}

// seen returns the positions [begin, end) that row r sees in split s.
func (k *attn) seen(w *worker, r, s int) (begin, end int) {
	end = k.visible(w, r)
	switch {
	case k.chunked:
		begin = (end - 1) / k.window * k.window
	case k.window > 0:
		begin = max(0, end-k.window)
	}
	if k.split {
		each := splitEach(end-begin, k.splits, k.span)
		begin += s * each
		end = min(end, begin+each)
	}
	return begin, end
}

// splitEach returns the number of positions per split of a row that sees visible positions:
// visible divided by the largest power of two that is at most splits, rounded up to a multiple of
// 16, and at least span. The last split in use may have fewer positions; splits after it have
// none.
func splitEach(visible, splits, span int) int {
	shift := bits.Len(uint(splits)) - 1
	even := (visible + 1<<shift - 1) >> shift
	return max(span, (even+15)&^15)
}

// seenOf returns the part of positions [at, next) that row r of the group sees.
func (k *attn) seenOf(w *worker, g *attnGroup, r, s, at, next int) (begin, end int) {
	begin, end = k.sees(w, g, g.row+r, s)
	begin = min(max(begin, at), next)
	return begin, max(begin, min(end, next))
}

// block processes positions [at, next), which belong to one block.
func (k *attn) block(w *worker, g *attnGroup, s, at, next int) {
	if k.wideBlock(w, g, s, at, next) {
		return
	}
	k.score(w, g, at, next)
	// All rows see positions [first, last).
	first, last := at, next
	for i := range g.rows {
		begin, end := k.seenOf(w, g, i, s, at, next)
		first, last = max(first, begin), min(last, end)
		if begin < end {
			j, n := i*g.heads, g.heads
			scores, scale := g.scores[j*attnBlock+begin-at:], k.scale
			if k.softCap > 0 {
				k.bound(scores, n, end-begin)
				scale = 1
			}
			k.ops.soften(scores, end-begin, scale, g.top[j:][:n], g.sum[j:][:n], g.acc[j*k.headDim:], k.headDim)
		}
	}
	last = max(first, last)
	if g.rows == 1 {
		k.weigh(g, 0, 1, at, first, last)
		return
	}
	// Each row must process its positions in order: those before the common ones, the common
	// ones, those after.
	for i := range g.rows {
		begin, end := k.seenOf(w, g, i, s, at, next)
		k.weigh(g, i, 1, at, begin, min(first, end))
	}
	k.weigh(g, 0, g.rows, at, first, last)
	for i := range g.rows {
		begin, end := k.seenOf(w, g, i, s, at, next)
		k.weigh(g, i, 1, at, max(last, begin), end)
	}
}

// score sets the scores to the products of Q and the K rows of positions [at, next).
func (k *attn) score(w *worker, g *attnGroup, at, next int) {
	x := &w.float
	x.x, x.in, x.stride, x.rows = g.q, k.headDim, k.headDim, g.rows*g.heads
	for p := at; p < next; {
		n, rows := g.run(&k.kCache, &g.newK, g.head/k.perKV, p, next-p)
		if len(rows.scales) == 0 {
			k.float(g.scores[p-at:], attnBlock, rows.values, n, x)
		} else {
			k.ops.dotQ8(g.scores[p-at:], attnBlock, rows.values, k.scalesOf(g, rows), n, x)
		}
		p += n
	}
}

// bound scales n scores of each of heads and applies the soft cap.
func (k *attn) bound(scores []float32, heads, n int) {
	for j := range heads {
		of := scores[j*attnBlock:][:n]
		k.ops.scaleMax(of, k.scale)
		k.ops.softCap(of, k.softCap)
	}
}

// softenFunc turns scores into softmax weights, for n scores of each of len(top) heads, stored
// attnBlock apart: exp(scale*score - top). It raises top to the new maximum and rescales sum and
// the accumulated values acc, [heads, d], to it; then it adds the weights to sum.
type softenFunc func(scores []float32, n int, scale float32, top, sum, acc []float32, d int)

// softenAny returns a softenFunc that uses the other loops of o.
func (o *ops) softenAny() softenFunc {
	return func(scores []float32, n int, scale float32, top, sum, acc []float32, d int) {
		for j := range top {
			scores, acc := scores[j*attnBlock:][:n], acc[j*d:][:d]
			if t := o.scaleMax(scores, scale); t > top[j] {
				shrink := exp(top[j] - t)
				for i := range acc {
					acc[i] = float32(acc[i] * shrink)
				}
				sum[j] = float32(sum[j] * shrink)
				top[j] = t
			}
			o.expSub(scores, top[j])
			sum[j] += o.dot(scores, ones[:n])
		}
	}
}

// weigh adds the V rows of positions [begin, end), times their weights, to the heads of rows i to
// i+n-1. The scores begin with position at.
func (k *attn) weigh(g *attnGroup, i, n, at, begin, end int) {
	i, n = i*g.heads, n*g.heads
	acc := g.acc[i*k.headDim:][:n*k.headDim]
	for p := begin; p < end; {
		m, rows := g.run(&k.vCache, &g.newV, g.head/k.perKV, p, end-p)
		weights := g.scores[i*attnBlock+p-at:]
		if len(rows.scales) == 0 {
			k.ops.addScaledF16(acc, k.headDim, rows.values, m, weights, attnBlock)
		} else {
			k.ops.addScaledQ8(acc, k.headDim, rows.values, k.scalesOf(g, rows), m, weights, attnBlock)
		}
		p += m
	}
}

// scalesOf returns the scales of rows as float32.
func (k *attn) scalesOf(g *attnGroup, rows kvRows) []float32 {
	scales := g.scales[:len(rows.scales)/2]
	k.ops.f16ToF32(scales, rows.scales)
	return scales
}

// finish writes the result of row and head j.
func (k *attn) finish(w *worker, g *attnGroup, s, j int) {
	head := g.head + j%g.heads
	acc := g.acc[j*k.headDim:][:k.headDim]
	r := g.row + j/g.heads
	begin, end := k.seen(w, r, s)
	if k.split {
		if begin < end {
			values, states := splitRow(k.out, r, k.heads, k.splits, k.headDim)
			copy(values[(head*k.splits+s)*k.headDim:], acc)
			state := states[2*(head*k.splits+s):]
			state[0], state[1] = g.top[j], g.sum[j]
		}
		return
	}
	out := acc
	if k.halves == nil {
		out = k.out[(r*k.heads+head)*k.headDim:][:k.headDim]
	}
	if begin >= end {
		clear(out)
	} else {
		k.ops.divide(out, acc, g.sum[j])
	}
	if k.halves != nil {
		k.halves.layout.row(k.halves.rows, w.rows, r).putPart(head*k.headDim, out)
	}
}

// splitRow returns the two arrays that the splits of row r leave: the values, [heads, splits, d],
// and the states, [heads, splits, 2], each a maximum and a sum of weights.
func splitRow(parts []float32, r, heads, splits, d int) (values, states []float32) {
	row := parts[r*heads*splits*(d+2):][:heads*splits*(d+2)]
	return row[:heads*splits*d], row[heads*splits*d:]
}

// scaleMax multiplies s by scale and returns its maximum, ignoring NaN.
func scaleMax(s []float32, scale float32) float32 {
	m := minusInf
	for i, v := range s {
		v = float32(v * scale)
		s[i] = v
		if v > m {
			m = v
		}
	}
	return m + 0 // + 0 turns -0 into 0; otherwise the sign would depend on the order
}

// splitMerge merges the splits of attention.
type splitMerge struct {
	heads, headDim, splits, span int
	window                       int // 0: all positions
}

// active returns the number of splits of row r that have a visible position.
func (m *splitMerge) active(w *worker, r int) int {
	visible := max(int(w.kvLen), 1) + r
	if m.window > 0 {
		visible = min(visible, m.window)
	}
	each := splitEach(visible, m.splits, m.span)
	return min(m.splits, (visible+each-1)/each)
}

// merge sets out to elements of a head, beginning with element from, merged from the first n of
// the head's splits. values is [splits, headDim], states is [splits, 2].
func (m *splitMerge) merge(out, values, states []float32, from, n int) {
	clear(out)
	top := minusInf
	for s := range n {
		if t := states[2*s]; t > top {
			top = t
		}
	}
	var sum float32
	for s := range n {
		factor := exp(states[2*s] - top)
		sum += float32(states[2*s+1] * factor)
		for i, v := range values[s*m.headDim+from:][:len(out)] {
			out[i] += float32(v * factor)
		}
	}
	if sum == 0 {
		return
	}
	for i := range out {
		out[i] /= sum
	}
}

// head returns the values and states of the splits of head h.
func (m *splitMerge) head(values, states []float32, h int) (v, s []float32) {
	return values[h*m.splits*m.headDim:][:m.splits*m.headDim], states[2*h*m.splits:][:2*m.splits]
}

// row sets dst to elements of a row of heads, beginning with element at.
func (m *splitMerge) row(w *worker, dst, values, states []float32, at int) {
	for n := m.active(w, 0); len(dst) > 0; {
		from := at % m.headDim
		some := dst[:min(len(dst), m.headDim-from)]
		v, s := m.head(values, states, at/m.headDim)
		m.merge(some, v, s, from, n)
		dst, at = dst[len(some):], at+len(some)
	}
}

// attnMerge implements attn_merge: it merges the splits of attention.
type attnMerge struct {
	splitMerge
	part []float32 // [rows], see splitRow
	out  []float32 // [rows, heads, headDim]
}

func newAttnMerge(b *binder) (kernel, error) {
	p := kernels.AttnMergeParamsOf(b.cmd)
	b.need(p.Splits > 0, "there are no splits")
	return &attnMerge{
		splitMerge: splitMerge{heads: int(p.Heads), headDim: int(b.spec(kernels.AttnMergeSpecHeadDim)), splits: int(p.Splits), span: int(p.Span), window: int(p.Window)},
		part:       b.f32(kernels.AttnMergeBindPart), out: b.f32(kernels.AttnMergeBindOut),
	}, b.err
}

func (k *attnMerge) units(w *worker) int { return w.rows * k.heads }

func (k *attnMerge) run(w *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		r, h := u/k.heads, u%k.heads
		values, states := splitRow(k.part, r, k.heads, k.splits, k.headDim)
		values, states = k.head(values, states, h)
		k.merge(k.out[u*k.headDim:][:k.headDim], values, states, 0, k.active(w, r))
	}
}
