package cpu

import (
	"math"
	"slices"

	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
)

// argmax chooses the next token: the one with the largest logit.
type argmax struct {
	sequences
	ops      *ops
	maxStops int
	logits   []float32 // [n], or nil
	parts    []uint32  // [n, 2]: the largest logit of each part as float32 bits, and its index; or nil
	stops    []uint32  // [sequences, 1+maxStops]: count, then ids
	tokens   []uint32  // [sequences, ring]
	step     *table.Step
}

func newArgmax(b *binder) (kernel, error) {
	p := kernels.ArgmaxParamsOf(b.cmd)
	b.need(p.Ring > 0, "the ring is empty")
	k := &argmax{
		sequences: b.sequences(kernels.ArgmaxSpecSequences, p.Pool), ops: b.ops, maxStops: int(p.MaxStops),
		stops: b.u32(kernels.ArgmaxBindStops), tokens: b.u32(kernels.ArgmaxBindTokens), step: b.step,
	}
	if b.spec(kernels.ArgmaxSpecParts) != 0 {
		k.parts = b.u32(kernels.ArgmaxBindLogits)
	} else {
		k.logits = b.f32(kernels.ArgmaxBindLogits)
	}
	return k, b.err
}

func (k *argmax) units(*worker) int { return 1 }

func (k *argmax) run(w *worker, _, _ int) {
	id := uint32(0)
	if k.parts != nil {
		id = largestPart(k.parts)
	} else {
		id = uint32(k.ops.largest(k.logits))
	}
	ring := part(&k.sequences, w, 0, k.tokens)
	ring[min(int(w.index), len(ring)-1)] = id
	k.step.Count++
	if stops := part(&k.sequences, w, 0, k.stops); isStop(stops, k.maxStops, id) {
		k.step.Stop = 1
	}
}

// isStop reports whether a token is one of stops, a count and then the ids.
func isStop(stops []uint32, most int, id uint32) bool {
	return slices.Contains(stops[1:1+min(int(stops[0]), most)], id)
}

// choose chooses a token for each row of a batch and advances the row records.
type choose struct {
	sequences
	parts, maxStops int
	best            []uint32 // [rows, parts, 2]
	stops           []uint32 // [sequences, 1+maxStops]
	tokens          []uint32 // [sequences, ring]
	step            *table.Step
}

func newChoose(b *binder) (kernel, error) {
	p := kernels.ChooseRowsParamsOf(b.cmd)
	b.need(p.Ring > 0 && p.Parts > 0, "the ring or the parts are empty")
	return &choose{
		sequences: b.sequences(kernels.ChooseRowsSpecSequences, p.Pool), parts: int(p.Parts), maxStops: int(p.MaxStops),
		best: b.u32(kernels.ChooseRowsBindBest), stops: b.u32(kernels.ChooseRowsBindStops), tokens: b.u32(kernels.ChooseRowsBindTokens), step: b.step,
	}, b.err
}

func (k *choose) units(*worker) int { return 1 }

func (k *choose) run(w *worker, _, _ int) {
	going := false
	for r := range k.active(w) {
		if row := &k.rows[r]; row.Stop == 0 {
			k.row(w, r, row)
			going = going || row.Stop == 0
		}
	}
	if !going {
		k.step.Stop = sequence.StopBatch
	}
}

// row chooses the token of row r.
func (k *choose) row(w *worker, r int, row *sequence.Row) {
	id := largestPart(k.best[2*r*k.parts:][:2*k.parts])
	ring := part(&k.sequences, w, r, k.tokens)
	ring[min(k.token(w, r)+1, len(ring)-1)] = id
	k.step.Count++
	row.Count++
	row.Position++
	row.KVLen++
	row.TokenIndex++
	switch {
	case isStop(part(&k.sequences, w, r, k.stops), k.maxStops, id):
		row.Stop = sequence.StopID
	case row.TokenIndex >= row.Until:
		row.Stop = sequence.StopUntil
	}
}

// largestPart returns the index of the largest logit of all parts; it gives the same result as
// largest on all logits.
func largestPart(parts []uint32) uint32 {
	id, best, found := uint32(0), float32(0), false
	for ; len(parts) >= 2; parts = parts[2:] {
		v := math.Float32frombits(parts[0])
		if v == v && (!found || v > best) {
			id, best, found = parts[1], v, true
		}
	}
	return id
}

// argmaxPart finds the largest logit of each part of each row.
type argmaxPart struct {
	ops    *ops
	part   int
	n      int       // logits per row
	logits []float32 // [rows, n]
	out    []uint32  // [rows, parts, 2]
}

func newArgmaxPart(b *binder) (kernel, error) {
	p := kernels.ArgmaxPartParamsOf(b.cmd)
	b.need(p.Part > 0, "the part is 0")
	return &argmaxPart{ops: b.ops, part: int(p.Part), n: int(p.N), logits: b.f32(kernels.ArgmaxPartBindLogits), out: b.u32(kernels.ArgmaxPartBindOut)}, b.err
}

func (k *argmaxPart) units(w *worker) int { return w.rows * k.parts() }

func (k *argmaxPart) parts() int { return (k.n + k.part - 1) / k.part }

func (k *argmaxPart) run(_ *worker, lo, hi int) {
	for i := lo; i < hi; i++ {
		row := k.logits[i/k.parts()*k.n:][:k.n]
		first := i % k.parts() * k.part
		at := first + k.ops.largest(row[first:min(first+k.part, k.n)])
		k.out[2*i], k.out[2*i+1] = math.Float32bits(row[at]), uint32(at)
	}
}

// largest returns the index of the largest element, or the first of them if there are several.
// NaN never wins; if all elements are NaN it returns 0.
func largest(x []float32) int {
	// Keep four maxima at a time. A comparison rarely succeeds, so the branches are well
	// predicted and the loop runs at their speed.
	m0, m1, m2, m3 := minusInf, minusInf, minusInf, minusInf
	rest := x
	for len(rest) >= 4 {
		v := rest[:4:4]
		if v[0] > m0 {
			m0 = v[0]
		}
		if v[1] > m1 {
			m1 = v[1]
		}
		if v[2] > m2 {
			m2 = v[2]
		}
		if v[3] > m3 {
			m3 = v[3]
		}
		rest = rest[4:]
	}
	m := max(m0, m1, m2, m3, maxOf(rest))
	return max(0, slices.Index(x, m)) // -1 if all are NaN
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
