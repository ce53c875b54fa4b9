package cpu

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// route selects the experts of each row.
type route struct {
	ops           *ops
	experts, used int
	overAll       bool
	logits        []float32 // [rows, experts]
	ids           []uint32  // [rows, used]
	weights       []float32 // [rows, used]
}

func newRoute(b *binder) (kernel, error) {
	p := kernels.RouteParamsOf(b.cmd)
	return &route{
		ops: b.ops, experts: int(p.Experts), used: int(p.Used), overAll: b.spec(kernels.RouteSpecOver) == decl.OverAll,
		logits: b.f32(kernels.RouteBindLogits), ids: b.u32(kernels.RouteBindIDs), weights: b.f32(kernels.RouteBindWeights),
	}, b.err
}

func (k *route) units(w *worker) int { return w.rows }

func (k *route) run(_ *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		k.row(k.logits[r*k.experts:][:k.experts], k.ids[r*k.used:][:k.used], k.weights[r*k.used:][:k.used])
	}
}

// row selects by insertion sort, since few experts are used.
func (k *route) row(logits []float32, ids []uint32, weights []float32) {
	n := 0
	for e, v := range logits {
		n = insert(ids, weights, n, uint32(e), v)
	}
	top := weights[0]
	var sum float32
	if k.overAll {
		for _, v := range logits {
			sum += exp(v - top)
		}
	}
	for i, v := range weights {
		weights[i] = exp(v - top)
		if !k.overAll {
			sum += weights[i]
		}
	}
	for i := range weights {
		weights[i] /= sum
	}
}

// beats reports whether expert logit a is sorted before b, which belongs to an earlier expert.
// NaN comes last.
func beats(a, b float32) bool { return a > b || math.IsNaN(float64(b)) && !math.IsNaN(float64(a)) }

// expertSum adds the weighted outputs of each row's experts.
type expertSum struct {
	n, used    int
	add        bool
	x, weights []float32 // [rows, used, n], [rows, used]
	out        []float32 // [rows, n]
}

func newExpertSum(b *binder) (kernel, error) {
	p := kernels.ExpertSumParamsOf(b.cmd)
	return &expertSum{
		n: int(p.N), used: int(p.Used), add: b.spec(kernels.ExpertSumSpecOutput) == decl.OutputAdd,
		x: b.f32(kernels.ExpertSumBindX), weights: b.f32(kernels.ExpertSumBindWeights), out: b.f32(kernels.ExpertSumBindOut),
	}, b.err
}

func (k *expertSum) units(w *worker) int { return w.rows * sumParts }

// sumParts is the largest number of workers that share a row.
const sumParts = 4

func (k *expertSum) run(_ *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		r, part := u/sumParts, u%sumParts
		from, to := k.n*part/sumParts, k.n*(part+1)/sumParts
		out := k.out[r*k.n+from : r*k.n+to]
		weights := k.weights[r*k.used:][:k.used]
		for i := range out {
			var sum float32
			for j, weight := range weights {
				sum += float32(weight * k.x[(r*k.used+j)*k.n+from+i])
			}
			if k.add {
				sum += out[i]
			}
			out[i] = sum
		}
	}
}

// expertGEMV multiplies each row by the matrices of its selected experts. It gathers the rows
// that selected the same expert, so that an expert's weights are read once per chunk. The result
// of a row does not depend on the others.
type expertGEMV struct {
	m           *matmul // without operands; not embedded, because the pool of units would not have the ids
	gate        func(dst, gate, up []float32)
	count, used int
	share       int      // number of products with the same input
	matrixBytes int      // size of one expert's matrix
	ids         []uint32 // [rows, used]
	x, x2       []float32
	w           []byte
	bias        []float32 // [experts, out], or nil
	y           []float32 // [rows, used, out]; rows are yStride apart
}

func newExpertGEMV(b *binder) (kernel, error) {
	p := kernels.ExpertGEMVParamsOf(b.cmd)
	m, err := newProduct(b, productShape{
		in: p.In, out: p.Out, group: p.Group, xStride: p.XStride, yStride: p.YStride,
		wtype: dtype.Type(b.spec(kernels.ExpertGEMVSpecWType)), act: b.spec(kernels.ExpertGEMVSpecAct), layout: dtype.Layout(b.spec(kernels.ExpertGEMVSpecWeights)),
	})
	if err != nil {
		return nil, err
	}
	b.need(p.Used > 0 && p.Share > 0 && p.Experts > 0, "there are no experts, or none is used")
	k := &expertGEMV{
		m: m, count: int(p.Experts), used: int(p.Used), share: int(p.Share),
		ids: b.u32(kernels.ExpertGEMVBindIDs), x: b.f32(kernels.ExpertGEMVBindX), w: b.weights(kernels.ExpertGEMVBindW, kernels.ExpertGEMVSpecWType), y: b.f32(kernels.ExpertGEMVBindY),
	}
	if b.spec(kernels.ExpertGEMVSpecInput) != decl.InputPlain {
		k.x2 = b.f32(kernels.ExpertGEMVBindX2)
	}
	if b.spec(kernels.ExpertGEMVSpecBias) != 0 {
		k.bias = b.f32(kernels.ExpertGEMVBindB)
	}
	k.gate = b.gatedWithin(kernels.ExpertGEMVSpecActivation, p.Limit)
	k.matrixBytes = int(p.Out) * k.m.rowBytes
	return k, b.err
}

func (k *expertGEMV) units(*worker) int { return (k.m.out + k.m.group - 1) / k.m.group }

func (k *expertGEMV) run(w *worker, lo, hi int) {
	first, last := lo*k.m.group, min(hi*k.m.group, k.m.out)
	if w.rows == 1 {
		k.runRow(w, first, last)
		return
	}
	// The worker's private memory holds the inputs that several products share, then the inputs
	// of the rows that selected an expert, and their products.
	scratch, size, inputs := w.scratch, k.m.inputBytes(), 0
	if k.share > 1 {
		inputs = w.rows * k.used / k.share
		for i := range inputs {
			k.makeInput(w, i, i)
		}
	}
	for e := range k.count {
		for s := 0; s >= 0; {
			s = k.gathered(w, scratch, inputs*size, e, s, first, last)
		}
	}
}

// gathered computes the products of expert e with the next rows that selected it, beginning with
// slot s, until the memory is full. It returns the first slot that is left, or -1 if none is left.
func (k *expertGEMV) gathered(w *worker, scratch []byte, at, e, s, first, last int) (next int) {
	rows, size, from, n := w.rows, k.m.inputBytes(), s, 0
	slots := k.ids[:rows*k.used]
	w.scratch = scratch[at:]
	for ; s < len(slots) && n < rows; s++ {
		if k.expert(slots[s]) != e {
			continue
		}
		if k.share > 1 {
			copy(w.scratch[n*size:][:size], scratch[s/k.share*size:][:size])
		} else {
			k.makeInput(w, s, n)
		}
		n++
	}
	if n > 0 {
		w.rows = n
		y := float32s(scratch[at+rows*size:][:4*n*addPiece])
		for o := first; o < last; o += addPiece {
			end := min(o+addPiece, last)
			k.m.product(w, k.matrixOf(e), k.biasOf(e), o, end, y, addPiece)
			i := 0
			for s, id := range slots[from:s] {
				if k.expert(id) == e {
					copy(k.y[(from+s)*k.m.yStride+o:][:end-o], y[i*addPiece:])
					i++
				}
			}
		}
	}
	w.rows, w.scratch = rows, scratch
	if s == len(slots) {
		return -1
	}
	return s
}

// runRow computes the products of one row, each at its place in y.
func (k *expertGEMV) runRow(w *worker, first, last int) {
	for s, id := range k.ids[:k.used] {
		if s%k.share == 0 {
			k.makeInput(w, s/k.share, 0)
		}
		e := k.expert(id)
		k.m.product(w, k.matrixOf(e), k.biasOf(e), first, last, k.y[s*k.m.yStride+first:], k.m.yStride)
	}
}

// expert returns an id limited to the existing experts.
func (k *expertGEMV) expert(id uint32) int { return min(int(id), k.count-1) }

func (k *expertGEMV) matrixOf(e int) []byte { return k.w[e*k.matrixBytes:][:k.matrixBytes] }

func (k *expertGEMV) biasOf(e int) []float32 {
	if k.bias == nil {
		return nil
	}
	return k.bias[e*k.m.out:][:k.m.out]
}

// makeInput prepares input i in the worker's private memory, as its row to.
func (k *expertGEMV) makeInput(w *worker, i, to int) {
	x := k.x[i*k.m.xStride:][:k.m.in]
	if !k.m.quant {
		dst := float32s(w.scratch[to*k.m.inputBytes():][:4*k.m.in])
		if k.x2 == nil {
			copy(dst, x)
		} else {
			k.gate(dst, x, k.x2[i*k.m.xStride:][:k.m.in])
		}
		return
	}
	sums := k.m.input(w, to)
	if k.x2 == nil {
		k.m.ops.quantize(w.input.q, w.input.d, x)
	}
	for at := 0; at < k.m.in && k.x2 != nil; at += inputChunk {
		end := min(at+inputChunk, k.m.in)
		buf := w.chunk[:end-at]
		k.gate(buf, x[at:end], k.x2[i*k.m.xStride+at:][:end-at])
		k.m.ops.quantize(w.input.q[at:end], w.input.d[at/blockElems:end/blockElems], buf)
	}
	if k.m.sums {
		k.m.ops.sum(sums, w.input.q, w.input.d, k.m.whole)
	}
}

// swigluAlpha is the factor inside the sigmoid of the clamped activation.
const swigluAlpha = 1.702

// gatedWithin is gated for kernels that also support the clamped activation.
func (b *binder) gatedWithin(i int, limit float32) func(dst, gate, up []float32) {
	if b.spec(i) != decl.ActivationClampedSwiGLU {
		return b.gated(i)
	}
	return func(dst, gate, up []float32) {
		up = up[:len(gate)]
		for i, v := range gate {
			v = min(v, limit)
			u := min(max(up[i], -limit), limit)
			dst[i] = float32(v/(1+exp(-float32(swigluAlpha*v)))) * (u + 1)
		}
	}
}
