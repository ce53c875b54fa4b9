package cpu

// wideLoops are loops of attention for up to attnRows rows of Q that are computed together. They take the rows of
// K and V of a block as float32, so that these are converted once for all rows of Q, and a lane of a vector is a
// row of Q in the scores, so that no lanes are added. The results have the same bits as those of the loops for few
// rows.
type wideLoops struct {
	// widenF16 and widenQ8 convert len(dst) elements, a multiple of 32, of a cache. widenQ8 multiplies blocks
	// of 32 by their scales.
	widenF16 func(dst []float32, src []byte)
	widenQ8  func(dst []float32, src []byte, scales []float32)
	// transpose sets dst, [d, wideLanes], to src, [wideLanes, d], with rows and columns exchanged.
	transpose func(dst, src []float32, d int)
	// scores sets n rows of each part of out, [2, attnBlock, wideLanes], to the dot products of k, [n, d], and of
	// q, [2, d, wideLanes]. n is rounded up to a multiple of 4, and d is a multiple of 32. sums, [16, wideLanes],
	// is working memory.
	scores func(out, k []float32, n, d int, q, sums []float32)
	// soften is softenFunc for the first rows lanes of scores, [attnBlock, wideLanes], of n positions. Lane i sees
	// the first seen[i] of them, and all lanes the first least. The weights of the others become 0.
	soften func(scores []float32, n, least int, seen []int32, scale float32, rows int, top, sum, acc []float32, d int)
	// addScaled adds m rows of v, [m, n], to the rows of acc, [rows, n], in order. Row j is multiplied by
	// w[j*wideLanes+i] for row i of acc.
	addScaled func(acc []float32, n int, v []float32, m int, w []float32)
}

// wideLanes is the number of rows of Q in a vector.
const wideLanes = 16

// wideLeast is the least number of rows of Q for which wideLoops are used. They compute the scores of attnRows rows
// however few there are, so the loops for few rows are used below it.
const wideLeast = 20

// wideKV is the size in elements of the rows of K or V that are converted at once. They stay in the first-level
// cache, with Q.
const wideKV = 2048

// wideGroup is the memory of a group whose blocks are computed by wideLoops. kv is nil in other groups.
type wideGroup struct {
	kv     []float32 // [wideStep, headDim], rows of K or V from position at
	at     int
	q      []float32 // [attnRows/wideLanes, headDim, wideLanes]
	scores []float32 // [attnRows/wideLanes, attnBlock, wideLanes]
	sums   []float32 // [16, wideLanes]
}

// wideStep returns the number of rows of K or V that are converted at once.
func wideStep(d int) int { return min(attnBlock, max(16, wideKV/d&^15)) }

// wideBytes returns the memory of a wideGroup for heads of d elements and of its rows of Q, before the last
// foldBytes of the private memory.
func wideBytes(d int) int {
	return 4 * (wideStep(d)*d + 2*attnRows*d + attnBlock*attnRows + 16*wideLanes)
}

// widens makes the group one whose blocks are computed by wideLoops, if there are any and its rows are enough.
func (k *attn) widens(w *worker, g *attnGroup) {
	d := k.headDim
	if k.ops.wide == nil || g.rows*g.heads < wideLeast || d%32 != 0 {
		return
	}
	mem := float32s(w.scratch[len(w.scratch)-foldBytes(d)-wideBytes(d):])
	take := func(n int) (part []float32) {
		part, mem = mem[:n:n], mem[n:]
		return part
	}
	g.wide = wideGroup{kv: take(wideStep(d) * d), q: take(attnRows * d), scores: take(attnBlock * attnRows), sums: take(16 * wideLanes)}
	q := take(attnRows * d)
	clear(q[copy(q, g.q):])
	for i := 0; i < len(q); i += wideLanes * d {
		k.ops.wide.transpose(g.wide.q[i:], q[i:], d)
	}
}

// wideBlock is block with wideLoops. It returns false if it has done nothing, because the group is another one or
// a row sees positions of the block only from a later one than the first.
func (k *attn) wideBlock(w *worker, g *attnGroup, s, at, next int) bool {
	if g.wide.kv == nil || g.atStart {
		return false
	}
	seen := w.laneSees[:]
	least := next - at // positions that all rows see
	for i := range g.rows {
		begin, end := k.seenOf(w, g, i, s, at, next)
		if begin >= end {
			end = at
		} else if begin > at {
			return false
		}
		least = min(least, end-at)
		for j := i * g.heads; j < (i+1)*g.heads; j++ {
			seen[j] = int32(end - at)
		}
	}
	k.wideScores(g, at, next)
	k.wideSoften(g, next-at, least, seen)
	for from, step := at, wideStep(k.headDim); from < next; from += step {
		to := min(from+step, next)
		k.widen(g, &k.vCache, &g.newV, from, to)
		k.wideWeigh(g, 0, g.rows, at, from, min(to, at+least))
		if at+least < to {
			for i := range g.rows {
				k.wideWeigh(g, i, 1, at, max(from, at+least), min(to, at+int(seen[i*g.heads])))
			}
		}
	}
	return true
}

// widen converts the rows of K or V of positions [at, next) to float32.
func (k *attn) widen(g *attnGroup, c *kvCache, own *kvRows, at, next int) {
	g.wide.at = at
	for p := at; p < next; {
		n, rows := g.run(c, own, g.head/k.perKV, p, next-p)
		to := g.wide.kv[(p-at)*k.headDim:][:n*k.headDim]
		if len(rows.scales) == 0 {
			k.ops.wide.widenF16(to, rows.values)
		} else {
			k.ops.wide.widenQ8(to, rows.values, k.scalesOf(g, rows))
		}
		p += n
	}
}

// wideScores sets the scores of positions [at, next).
func (k *attn) wideScores(g *attnGroup, at, next int) {
	for from, step := at, wideStep(k.headDim); from < next; from += step {
		to := min(from+step, next)
		k.widen(g, &k.kCache, &g.newK, from, to)
		k.ops.wide.scores(g.wide.scores[(from-at)*wideLanes:], g.wide.kv, to-from, k.headDim, g.wide.q, g.wide.sums)
	}
}

// wideSoften turns the scores of n positions into weights.
func (k *attn) wideSoften(g *attnGroup, n, least int, seen []int32) {
	const part = attnBlock * wideLanes
	rows := g.rows * g.heads
	for i := 0; i < rows; i += wideLanes {
		scores, scale := g.wide.scores[i*attnBlock:][:part], k.scale
		if k.softCap > 0 {
			k.ops.scaleMax(scores[:n*wideLanes], scale)
			k.ops.softCap(scores[:n*wideLanes], k.softCap)
			scale = 1
		}
		some := min(rows-i, wideLanes)
		for j := some; j < wideLanes; j++ {
			seen[i+j] = int32(n)
		}
		k.ops.wide.soften(scores, n, least, seen[i:], scale, some, g.top[i:attnRows], g.sum[i:attnRows], g.acc[i*k.headDim:], k.headDim)
	}
}

// wideWeigh adds the V rows of positions [begin, end), times their weights, to the heads of rows i to i+n-1. The
// block begins with position at.
func (k *attn) wideWeigh(g *attnGroup, i, n, at, begin, end int) {
	if begin >= end {
		return
	}
	v := g.wide.kv[(begin-g.wide.at)*k.headDim:]
	for j, last := i*g.heads, (i+n)*g.heads; j < last; {
		lane := j % wideLanes
		some := min(last-j, wideLanes-lane)
		w := g.wide.scores[(j-lane)*attnBlock+(begin-at)*wideLanes+lane:]
		k.ops.wide.addScaled(g.acc[j*k.headDim:][:some*k.headDim], k.headDim, v, end-begin, w)
		j += some
	}
}
