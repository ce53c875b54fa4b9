package cpu

import (
	"slices"

	"github.com/pianola-engine/pianola/table"
)

// argmax chooses the next token.
type argmax struct {
	ops      *ops
	maxStops int
	logits   []float32 // [n]
	stops    []uint32  // count, then ids
	tokens   []uint32  // [ring]
	step     *table.Step
}

func newArgmax(b *binder) (kernel, error) {
	p := b.cmd.ArgmaxParams()
	b.need(p.Ring > 0, "the ring is empty")
	return &argmax{
		ops: b.ops, maxStops: int(p.MaxStops), logits: b.f32(table.ArgmaxBindLogits),
		stops: b.u32(table.ArgmaxBindStops), tokens: b.u32(table.ArgmaxBindTokens), step: b.step,
	}, b.err
}

func (k *argmax) units(*worker) int { return 1 }

func (k *argmax) run(w *worker, _, _ int) {
	id := uint32(k.ops.largest(k.logits))
	k.tokens[min(int(w.index), len(k.tokens)-1)] = id
	k.step.Count++
	n := min(int(k.stops[0]), k.maxStops)
	if slices.Contains(k.stops[1:1+n], id) {
		k.step.Stop = 1
	}
}

// largest returns the index of the largest element, the first of equals. NaN
// never wins; if all are NaN, it is 0.
func largest(x []float32) int {
	// Four maxima at a time: each comparison rarely succeeds, so that the
	// loop runs at the speed of the branches that are predicted.
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
	return max(0, slices.Index(x, m)) // not there if all are NaN
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
