package cpu

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// panelBytes is the number of bytes of W that are multiplied with every row of activations before
// the next rows of W are read, so that they stay in the first-level cache.
const panelBytes = 8 << 10

// inputChunk is the number of activations prepared at a time, a multiple of the block.
const inputChunk = 256

// matmul implements gemv and gemm. GPUs use different shapes for them; on the CPU both read each
// weight once.
type matmul struct {
	ops   *ops
	float floatFunc // for activations in float32
	rows  rowsFunc  // for quantised activations
	tiled tiledFunc // for quantised activations and tiled weights; rows is then nil
	quant bool      // activations are quantised
	sums  bool      // the sums of the activations are needed,
	whole bool      // of whole blocks
	norm  bool      // the input is rmsnorm(x) * x2 instead of gated(x, x2)
	add   bool      // add the product to y instead of storing it
	eps   float32   // of the norm
	end   productEnd
	merge *splitMerge // the input is merged from attention splits with values x and states x2; else nil
	gated func(dst, gate, up []float32)

	in, out, group   int
	xStride, yStride int
	rowBytes         int // bytes per row of W
	panel            int // number of rows of W processed at a time with several rows of x

	x, x2 []float32 // [rows, in], or the values and states of splits; x2 is nil if the input is x, and [in] for a norm; x is nil if the input is already in private memory
	w     []byte    // [out, in]
	b     []float32 // [out], or nil
	y     []float32 // [rows, out]
}

func newGEMV(b *binder) (kernel, error) {
	return newMatmul(b, kernels.GEMVParams(kernels.GEMVParamsOf(b.cmd)))
}
func newGEMM(b *binder) (kernel, error) {
	return newMatmul(b, kernels.GEMVParams(kernels.GEMMParamsOf(b.cmd)))
}

func newMatmul(b *binder, p kernels.GEMVParams) (kernel, error) {
	k, err := newProduct(b, productShape{
		in: p.In, out: p.Out, group: p.Group, xStride: p.XStride, yStride: p.YStride,
		wtype: dtype.Type(b.spec(kernels.GEMVSpecWType)), act: b.spec(kernels.GEMVSpecAct), layout: dtype.Layout(b.spec(kernels.GEMVSpecWeights)),
	})
	if err != nil {
		return nil, err
	}
	k.eps = p.Eps
	k.x, k.w, k.y = b.f32(kernels.GEMVBindX), b.weights(kernels.GEMVBindW, kernels.GEMVSpecWType), b.f32(kernels.GEMVBindY)
	k.bindEnd(b, int(p.Splits))
	if input := b.spec(kernels.GEMVSpecInput); input != decl.InputPlain && input != decl.InputScaled {
		k.x2, k.norm, k.gated = b.f32(kernels.GEMVBindX2), input == decl.InputNorm, b.gated(kernels.GEMVSpecActivation)
		if input == decl.InputMerge {
			b.need(p.HeadDim > 0 && uint64(p.Heads)*uint64(p.HeadDim) == uint64(p.In), "%d columns are not %d heads of %d", p.In, p.Heads, p.HeadDim)
			b.need(p.Splits > 0, "there are no splits")
			k.merge = &splitMerge{heads: int(p.Heads), headDim: int(p.HeadDim), splits: int(p.Splits), span: int(p.Span), window: int(p.Window)}
		}
	}
	if b.spec(kernels.GEMVSpecBias) != 0 {
		k.b = b.f32(kernels.GEMVBindB)
	}
	return k, b.err
}

// weights returns binding i as a matrix of the type that constant wtype selects.
func (b *binder) weights(i, wtype int) []byte {
	if dtype.Type(b.spec(wtype)) == dtype.F32 {
		return b.words(i)
	}
	return b.bytes(i)
}

// productShape holds the parameters that all product kernels have.
type productShape struct {
	in, out, group, xStride, yStride uint32

	wtype  dtype.Type
	act    uint32
	layout dtype.Layout
}

// newProduct returns the product with a matrix, without its operands.
func newProduct(b *binder, p productShape) (*matmul, error) {
	t, act := p.wtype, p.act
	float, known := b.ops.float[t]
	rows, ok := b.ops.rows[t]
	if act != decl.ActQ8 {
		rows, ok = nil, known
	}
	var tiled tiledFunc
	if p.layout == dtype.Tiled16 {
		rows, tiled = nil, b.ops.tiled[t]
		ok = tiled != nil && act == decl.ActQ8
	}
	if !ok {
		err := &WeightTypeError{Kernel: declOf(b.env).Name, Type: t}
		if known {
			err.Act = "q8"
		}
		return nil, err
	}
	size, ok := t.Bytes(uint64(p.in))
	b.need(ok && size > 0, "%d columns are not a whole number of blocks of %v", p.in, t)
	b.need(act != decl.ActQ8 || p.in%blockElems == 0, "%d columns are not a whole number of blocks of quantised activations", p.in)
	b.need(p.group > 0, "the group is 0")
	group := int(p.group)
	if tiled != nil {
		strip, ok := dtype.Tiled16.Bytes(t, dtype.TileRows, uint64(p.in))
		b.need(ok && p.out%dtype.TileRows == 0, "[%d, %d] has no tiles", p.out, p.in)
		size = strip / dtype.TileRows
		// Tables for GPUs may group by half strips; the CPU processes whole strips.
		group = (group + dtype.TileRows - 1) / dtype.TileRows * dtype.TileRows
	}
	k := &matmul{
		ops: b.ops, float: float, rows: rows, tiled: tiled, quant: act == decl.ActQ8, sums: tiled != nil || act == decl.ActQ8 && hasMinimum(t), whole: tiled != nil && wholeSums(t),
		in: int(p.in), out: int(p.out), group: group, xStride: int(p.xStride), yStride: int(p.yStride), rowBytes: int(size),
	}
	if b.err == nil {
		k.panel = max(4, panelBytes/k.rowBytes&^3)
	}
	return k, b.err
}

// rowBlock is the number of rows of a unit when there are many. A multiple of tiledRows, so that
// blocks cost nothing.
const rowBlock = 64

// blocks returns the number of blocks of rows.
func (k *matmul) blocks(w *worker) int { return (w.rows + rowBlock - 1) / rowBlock }

// units returns the number of groups of rows of W times the number of blocks of rows of x.
func (k *matmul) units(w *worker) int { return (k.out + k.group - 1) / k.group * k.blocks(w) }

// poolBytes is the size of weights in bytes above which a pool is worthwhile. With smaller
// matrices all workers finish at about the same time.
const poolBytes = 512 << 10

// pool returns all units if the workers have prepared the input together and each unit takes long.
// Otherwise it returns a quarter of the units, for large weights.
func (k *matmul) pool(w *worker) int {
	units := k.units(w)
	switch {
	case w.shared != nil && w.rows > 1:
		return units
	case k.out*k.rowBytes < poolBytes || units < 8*len(w.team.workers):
		return 0
	}
	return units / 4
}

// pieces returns the number of pieces of the input, which are inputPiece columns of a row, if a
// barrier takes less time than preparing all of them. Activations take longer to prepare.
func (k *matmul) pieces(w *worker, homes int) int {
	n := w.rows * k.in
	if k.gated != nil && k.x2 != nil && !k.norm {
		n *= 2
	}
	if homes == 1 || !k.quant && k.x2 == nil || n < sharedInput {
		return 0
	}
	return w.rows * k.rowPieces()
}

const (
	inputPiece  = 4 * inputChunk // columns of a piece of the input
	sharedInput = 8192           // smallest number of elements that the workers prepare together
)

func (k *matmul) rowPieces() int { return (k.in + inputPiece - 1) / inputPiece }

func (k *matmul) prepare(w *worker, lo, hi int) {
	for i := lo; i < hi; i++ {
		at := i % k.rowPieces() * inputPiece
		k.prepareRow(w, i/k.rowPieces(), at, min(at+inputPiece, k.in))
	}
}

func (k *matmul) run(w *worker, lo, hi int) {
	if w.shared == nil {
		for r := range w.rows {
			k.prepareRow(w, r, 0, k.in)
		}
	}
	k.more(w, lo, hi)
}

// more multiplies units. The units of a part of the weights follow one another: those of its groups with the first
// block of rows of x, then with the second, and so on. So a block, which fits in the second-level cache, is multiplied
// with many groups, and the weights of a part are read from memory once.
func (k *matmul) more(w *worker, lo, hi int) {
	blocks, rows := k.blocks(w), w.rows
	if blocks == 1 {
		k.block(w, rows, lo, hi)
		return
	}
	groups, part := (k.out+k.group-1)/k.group, max(1, partBytes/(k.group*k.rowBytes), partRows/k.group)
	for lo < hi {
		first := lo / (part * blocks) * part // of the part's groups
		count, at := min(part, groups-first), lo-first*blocks
		block, from := at/count, at%count
		n := min(count-from, hi-lo)
		w.from = block * rowBlock
		w.rows = min(rowBlock, rows-w.from)
		k.block(w, rows, first+from, first+from+n)
		lo += n
	}
	w.from, w.rows = 0, rows
}

// A part of the weights has partBytes bytes, or partRows rows if that is more: reading a block of rows of x from beyond
// the second-level cache takes as long as multiplying it with about a hundred rows of W.
const (
	partBytes = 256 << 10
	partRows  = 512
)

// block multiplies groups lo to hi-1 with w.rows rows of x from w.from. all is the number of rows of
// the whole input.
func (k *matmul) block(w *worker, all, lo, hi int) {
	first, last := lo*k.group, min(hi*k.group, k.out)
	to := k.y[w.from*k.yStride:]
	if k.end.gated != nil {
		k.gate(w, all, first/2, last/2)
		return
	}
	if !k.add {
		k.product(w, k.w, k.b, first, last, to[first:], k.yStride)
		return
	}
	// Process pieces whose products fit in private memory.
	for o := first; o < last; o += addPiece {
		end := min(o+addPiece, last)
		y := float32s(w.scratch[all*k.inputBytes():][:4*w.rows*addPiece])
		k.product(w, k.w, k.b, o, end, y, addPiece)
		for r := range w.rows {
			k.ops.addTo(to[r*k.yStride+o:][:end-o], y[r*addPiece:][:end-o])
		}
	}
	if k.end.next != nil {
		k.scale(w, lo, hi)
	}
}

// addPiece is the number of rows of W that are multiplied before the products are added to y:
// whole strips.
const addPiece = 256

// product sets y to rows [first, last) of a matrix times the input, plus the bias, if there is
// one. Rows of y are stride elements apart.
func (k *matmul) product(w *worker, matrix []byte, bias []float32, first, last int, y []float32, stride int) {
	switch {
	case !k.quant:
		k.runFloat(w, matrix, first, last, y, stride)
	case k.tiled != nil:
		k.runTiled(w, matrix, first, last, y, stride)
	default:
		k.runRows(w, matrix, first, last, y, stride)
	}
	if k.end.sums != nil {
		for r := range w.rows {
			factor := k.end.factor(w.from+r, k.in, k.eps)
			y := y[r*stride:][:last-first]
			for i := range y {
				y[i] *= factor
			}
		}
	}
	if bias == nil {
		return
	}
	for r := range w.rows {
		y := y[r*stride:][:last-first]
		for i, b := range bias[first:last] {
			y[i] += b
		}
	}
}

// runTiled computes rows [first, last) of a matrix, whole strips. Products multiply a strip with
// every row of activations while the strip is in the cache.
func (k *matmul) runTiled(w *worker, matrix []byte, first, last int, y []float32, stride int) {
	x := &w.tiles
	*x = tiledInput{mem: w.prepared()[w.from*k.inputBytes():], stride: k.inputBytes(), in: k.in, rows: w.rows}
	strip := k.rowBytes * dtype.TileRows
	k.tiled(y, stride, matrix[first/dtype.TileRows*strip:], (last-first)/dtype.TileRows, x)
}

// runFloat computes rows [first, last) of a matrix with float activations.
func (k *matmul) runFloat(w *worker, matrix []byte, first, last int, y []float32, stride int) {
	x := &w.float
	x.x, x.stride, x.in, x.rows = k.x, k.xStride, k.in, w.rows
	if k.x2 != nil || k.x == nil {
		x.x, x.stride = float32s(w.prepared()), roundUp(4*k.in)/4
	}
	x.x = x.x[w.from*x.stride:]
	k.float(y, stride, matrix[first*k.rowBytes:][:(last-first)*k.rowBytes], last-first, x)
}

// runRows computes rows [first, last) of an untiled matrix with quantised activations.
func (k *matmul) runRows(w *worker, matrix []byte, first, last int, y []float32, stride int) {
	panel := k.panel
	if w.rows == 1 {
		panel = last - first
	}
	for o := first; o < last; o += panel {
		n := min(panel, last-o)
		weights := matrix[o*k.rowBytes:][:n*k.rowBytes]
		for r := range w.rows {
			k.input(w, w.from+r)
			k.rows(y[r*stride+o-first:][:n], weights, &w.input)
		}
	}
}

// prepareRow writes columns [lo, hi) of row r of the input to memory, unless the input is used in
// place. The columns are whole chunks, or up to the end of the row.
func (k *matmul) prepareRow(w *worker, r, lo, hi int) {
	if !k.quant && k.x2 == nil {
		return
	}
	x := k.x[r*k.xStride:][:k.in]
	scale := float32(0)
	if k.norm {
		scale = k.ops.normScale(x, k.eps)
	}
	if !k.quant {
		k.combine(w, float32s(w.prepared()[r*roundUp(4*k.in):][:4*k.in])[lo:hi], x[lo:hi], r, lo, scale)
		return
	}
	sums := k.input(w, r)
	if k.x2 == nil {
		k.ops.quantize(w.input.q[lo:hi], w.input.d[lo/blockElems:hi/blockElems], x[lo:hi])
	} else {
		for at := lo; at < hi; at += inputChunk {
			end := min(at+inputChunk, hi)
			buf := w.chunk[:end-at]
			k.combine(w, buf, x[at:end], r, at, scale)
			k.ops.quantize(w.input.q[at:end], w.input.d[at/blockElems:end/blockElems], buf)
		}
	}
	if k.sums {
		k.ops.sum(sums[lo/8:hi/8], w.input.q[lo:hi], w.input.d[lo/blockElems:hi/blockElems], k.whole)
	}
}

// combine sets dst to the elements of row r, beginning with element at, of an input that x2 is
// part of. x holds the same elements of k.x. scale is the norm's.
func (k *matmul) combine(w *worker, dst, x []float32, r, at int, scale float32) {
	if k.merge != nil {
		k.merge.row(w, dst, k.x, k.x2, at)
		return
	}
	if k.norm {
		k.ops.scaleMul(dst, x, k.x2[at:][:len(x)], scale)
		return
	}
	k.gated(dst, x, k.x2[r*k.xStride+at:][:len(x)])
}

// input points the worker's input at row r of the quantised input in memory, a row of [tiledInput] padded to a
// cache line, and returns its sums.
func (k *matmul) input(w *worker, r int) (sums []byte) {
	x := tiledInput{mem: w.prepared()[r*k.inputBytes():], in: k.in}
	w.input.q, w.input.d, sums = x.row(0)
	w.input.s = int16s(sums)
	return sums
}

// inputBytes returns the distance in bytes between rows of the input in memory.
func (k *matmul) inputBytes() int {
	if !k.quant {
		return roundUp(4 * k.in)
	}
	return roundUp(k.in + k.in/blockElems*4 + k.in/16*2)
}

// roundUp returns n rounded up to a cache line.
func roundUp(n int) int { return (n + align - 1) &^ (align - 1) }
