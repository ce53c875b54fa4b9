package cpu

import (
	"encoding/binary"
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// halvesChunk is the number of columns in a chunk. Split rows consist of whole chunks.
const halvesChunk = 64

// largestHalf is the largest float16. Weights out of range become it.
const largestHalf = 65504

// halvesRow is a row of activations in float16. An element is unit * (high + low), or unit * high
// if there is one term; the unit is a power of two. The row holds n high halves, n low halves if
// there are two terms, the unit and 124 unused bytes; n is the number of columns rounded up to whole
// chunks. For gemm_few, rows are interleaved.
type halvesRow struct {
	b      []byte // the row, or all rows if they are interleaved
	n      int
	terms  int
	r      int // index of an interleaved row
	places int // number of places of interleaved rows, or 0
}

// halvesTerms returns the number of float16 of an element.
func halvesTerms(act uint32) int {
	if act == decl.ActF16 {
		return 1
	}
	return 2
}

// halvesLayout is how rows of activations in float16 lie in memory.
type halvesLayout struct {
	in    int  // columns
	terms int  // float16 of an element
	few   bool // interleave the rows, for gemm_few
}

// row returns row r of rows rows.
func (l halvesLayout) row(b []byte, rows, r int) halvesRow {
	h := halvesRow{n: (l.in + halvesChunk - 1) / halvesChunk * halvesChunk, terms: l.terms}
	size := 2*l.terms*h.n + 128
	if l.few {
		h.r, h.places = r, decl.FewRows(rows)
		h.b = b[:h.places*size]
		return h
	}
	h.b = b[r*size:][:size]
	return h
}

// at returns element i of a term.
func (h halvesRow) at(term, i int) []byte {
	if h.places > 0 {
		tile, c := i/32, i%32
		return h.b[(tile*h.places+h.r)*64+c%16/4*16+c/16*8+c%4*2:]
	}
	return h.b[2*(term*h.n+i):]
}

// last returns the unit and, if rows are not interleaved, the unused bytes.
func (h halvesRow) last() []byte {
	if h.places > 0 {
		return h.b[2*h.places*h.n+4*h.r:]
	}
	return h.b[2*h.terms*h.n:]
}

func (h halvesRow) unit() float32 { return math.Float32frombits(binary.LittleEndian.Uint32(h.last())) }

// halvesUnit returns the power of two in whose units most is 1024 to 2048. Tiny values all have the same one.
func halvesUnit(most float32) float32 {
	return math.Float32frombits(max(math.Float32bits(most)&0x7f800000, 0x10000000) - 10<<23)
}

// put stores x in the row and pads it with 0.
func (h halvesRow) put(x []float32) {
	unit := halvesUnit(largestOf(x))
	binary.LittleEndian.PutUint32(h.last(), math.Float32bits(unit))
	inverse := 1 / unit
	for i := range h.n {
		var v float32
		if i < len(x) {
			v = x[i] * inverse
		}
		m := dtype.F32ToF16(v)
		binary.LittleEndian.PutUint16(h.at(0, i), m)
		if h.terms == 2 {
			binary.LittleEndian.PutUint16(h.at(1, i), dtype.F32ToF16(v-dtype.F16ToF32(m)))
		}
	}
}

// putPart stores x with the unit 1, beginning with element i. The part that begins with element 0 stores the
// unit. The number of elements of the row is a multiple of a chunk.
func (h halvesRow) putPart(i int, x []float32) {
	if i == 0 {
		binary.LittleEndian.PutUint32(h.last(), math.Float32bits(1))
	}
	for j, v := range x {
		binary.LittleEndian.PutUint16(h.at(0, i+j), dtype.F32ToF16(v))
	}
}

// get sets x to the row.
func (h halvesRow) get(x []float32) {
	unit := h.unit()
	for i := range x {
		v := dtype.F16ToF32(binary.LittleEndian.Uint16(h.at(0, i)))
		if h.terms == 2 {
			v += dtype.F16ToF32(binary.LittleEndian.Uint16(h.at(1, i)))
		}
		x[i] = v * unit
	}
}

// halves implements halves: it converts activations to float16.
type halves struct {
	gated       func(dst, gate, up []float32)
	layout      halvesLayout
	in, xStride int
	x, x2       []float32 // [rows, in]; x2 is nil if the input is x
	out         []byte    // rows of float16
}

func newHalves(b *binder) (kernel, error) {
	p := kernels.HalvesParamsOf(b.cmd)
	k := &halves{
		layout: halvesLayout{int(p.In), halvesTerms(b.spec(kernels.HalvesSpecAct)), p.Few != 0},
		in:     int(p.In), xStride: int(p.XStride), x: b.f32(kernels.HalvesBindX), out: b.words(kernels.HalvesBindOut),
	}
	if b.spec(kernels.HalvesSpecInput) == decl.InputSiLUMul {
		k.x2, k.gated = b.f32(kernels.HalvesBindX2), b.gated(kernels.HalvesSpecActivation)
	}
	return k, b.err
}

func (k *halves) units(w *worker) int { return w.rows }

func (k *halves) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		x := k.x[r*k.xStride:][:k.in]
		if k.x2 != nil {
			y := float32s(w.scratch[:4*k.in])
			k.gated(y, x, k.x2[r*k.xStride:][:k.in])
			x = y
		}
		k.layout.row(k.out, w.rows, r).put(x)
	}
}

// addRMSNormHalves implements add_rmsnorm_halves: add_rmsnorm whose result becomes float16.
type addRMSNormHalves struct {
	addRMSNorm
	layout   halvesLayout
	halves   []byte // rows of float16
	segments int    // rows whose sum is a row of delta, or 0
}

func newAddRMSNormHalves(b *binder) (kernel, error) {
	p := kernels.AddRMSNormHalvesParamsOf(b.cmd)
	return &addRMSNormHalves{
		addRMSNorm: addRMSNorm{
			ops: b.ops, n: int(p.N), eps: p.Eps, scale: orOne(p.Scale), deltaScale: orOne(p.DeltaScale),
			x: b.f32(kernels.AddRMSNormHalvesBindX), delta: b.f32(kernels.AddRMSNormHalvesBindDelta), w: b.f32(kernels.AddRMSNormHalvesBindW),
		},
		layout: halvesLayout{int(p.N), 1, p.Few != 0}, halves: b.words(kernels.AddRMSNormHalvesBindOut), segments: int(p.Segments),
	}, b.err
}

func (k *addRMSNormHalves) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		row := float32s(w.scratch[:4*k.n])
		k.row(row, r, k.deltaOf(row, r))
		k.layout.row(k.halves, w.rows, r).put(row)
	}
}

// deltaOf returns row r of delta, which may be the sum of segments in sum.
func (k *addRMSNormHalves) deltaOf(sum []float32, r int) []float32 {
	if k.segments == 0 {
		return k.delta[r*k.n:][:k.n]
	}
	clear(sum)
	for i := range k.segments {
		k.ops.addTo(sum, k.delta[(r*k.segments+i)*k.n:][:k.n])
	}
	return sum
}

// gemmHalves multiplies rows of float16 activations, which it converts back to float32.
type gemmHalves struct {
	matmul
	layout halvesLayout
	halves []byte     // rows of float16
	blocks dtype.Type // type of quantised weights, which become float16; dtype.Invalid for others
	tiled  bool       // the quantised weights are in tiles
	rest   int        // segments of y besides the first, which has the whole sums here; the others are 0
}

func newGEMMHalves(b *binder) (kernel, error) {
	return newHalvesProduct(b, kernels.GEMMHalvesParamsOf(b.cmd), false)
}

func newHalvesProduct(b *binder, p kernels.GEMMHalvesParams, few bool) (*gemmHalves, error) {
	t := dtype.Type(b.spec(kernels.GEMMHalvesSpecWType))
	tiled := dtype.Layout(b.spec(kernels.GEMMHalvesSpecWeights)) == dtype.Tiled16
	if t == dtype.F32 || tiled && !dtype.FormOf(t).HalfRange() {
		return nil, &WeightTypeError{Kernel: declOf(b.env).Name, Type: t}
	}
	size, _ := t.Bytes(uint64(p.In))
	k := &gemmHalves{
		matmul: matmul{
			ops: b.ops, float: b.ops.float[t], in: int(p.In), out: int(p.Out), group: int(p.Group), yStride: int(p.YStride),
			rowBytes: int(size), w: b.bytes(kernels.GEMMHalvesBindW), y: b.f32(kernels.GEMMHalvesBindY),
		},
		layout: halvesLayout{int(p.In), halvesTerms(b.spec(kernels.GEMMHalvesSpecAct)), few}, halves: b.words(kernels.GEMMHalvesBindX),
	}
	if t.Quantized() {
		k.blocks, k.tiled = t, tiled
	}
	if p.Splits > 0 {
		k.rest = decl.Segments - 1
	}
	b.need(p.Group > 0, "the group is 0")
	if b.spec(kernels.GEMMHalvesSpecBias) != 0 {
		k.b = b.f32(kernels.GEMMHalvesBindB)
	}
	return k, b.err
}

// units returns the number of groups of rows of W if they are quantised: expand computes all rows of
// the input.
func (k *gemmHalves) units(w *worker) int {
	if k.blocks != dtype.Invalid {
		return (k.out + k.group - 1) / k.group
	}
	return k.matmul.units(w)
}

func (k *gemmHalves) pieces(w *worker, homes int) int {
	if homes == 1 || w.rows*k.in < sharedInput {
		return 0
	}
	return w.rows
}

func (k *gemmHalves) prepare(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		k.layout.row(k.halves, w.rows, r).get(float32s(w.prepared()[r*roundUp(4*k.in):][:4*k.in]))
	}
}

func (k *gemmHalves) run(w *worker, lo, hi int) {
	if w.shared == nil {
		k.prepare(w, 0, w.rows)
	}
	k.more(w, lo, hi)
}

func (k *gemmHalves) more(w *worker, lo, hi int) {
	if k.rest > 0 {
		per := k.units(w) / ((k.out + k.group - 1) / k.group) // units of a group
		for o := lo / per * k.group; o < min((hi+per-1)/per*k.group, k.out); o++ {
			k.clearRest(w, o)
		}
	}
	if k.blocks != dtype.Invalid {
		k.expand(w, lo, hi)
		return
	}
	k.matmul.more(w, lo, hi)
}

// expand computes the rows of W of groups lo to hi-1, each of which it converts to float16 first.
func (k *gemmHalves) expand(w *worker, lo, hi int) {
	size := roundUp(4 * k.in)
	block := w.scratch[w.rows*size:][:k.rowBytes]
	row := float32s(w.scratch[(w.rows+1)*size:][:4*k.in])
	for o := lo * k.group; o < min(hi*k.group, k.out); o++ {
		if !k.weightsOf(row, block, o) {
			return
		}
		for r := range w.rows {
			x := float32s(w.prepared()[r*size:][:4*k.in])
			sum := k.ops.dot(row, x)
			if k.b != nil {
				sum += k.b[o]
			}
			k.y[r*k.yStride+o] = sum
		}
	}
}

// clearRest sets the sums of row o of W in all segments but the first to 0.
func (k *gemmHalves) clearRest(w *worker, o int) {
	for r := range w.rows {
		for i := 1; i <= k.rest; i++ {
			k.y[r*k.yStride+i*k.out+o] = 0
		}
	}
}

// weightsOf sets row to row o of W, rounded to float16. block has room for the row in layout Rows. It reports
// whether W has whole blocks and the row, as it always does.
func (k *gemmHalves) weightsOf(row []float32, block []byte, o int) bool {
	if !k.tiled {
		return roundedToHalf(k.blocks, row, k.w[o*k.rowBytes:][:k.rowBytes])
	}
	return dtype.UntileRow(k.blocks, block, k.w, o, k.in) == nil && roundedToHalf(k.blocks, row, block)
}

// roundedToHalf sets row to the weights in b, rounded to float16. It reports whether b has whole blocks.
func roundedToHalf(t dtype.Type, row []float32, b []byte) bool {
	if dtype.Dequantize(t, row, b) != nil {
		return false
	}
	for i, v := range row {
		row[i] = dtype.F16ToF32(dtype.F32ToF16(max(-largestHalf, min(v, largestHalf))))
	}
	return true
}
