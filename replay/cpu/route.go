package cpu

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// routeScored implements route_scored: it selects the experts of each row by scores.
type routeScored struct {
	experts, used           int
	sigmoid, overAll        bool
	groups, topGroups, best int
	scale                   float32
	logits                  []float32 // [rows, experts]
	bias                    []float32 // [experts], or nil
	factors                 []float32 // [experts], or nil
	ids                     []uint32  // [rows, used]
	weights                 []float32 // [rows, used]
}

func newRouteScored(b *binder) (kernel, error) {
	p := kernels.RouteScoredParamsOf(b.cmd)
	b.need(p.Groups > 0 && p.Groups <= 32, "the experts have no groups, or more than 32")
	k := &routeScored{
		experts: int(p.Experts), used: int(p.Used), sigmoid: p.Sigmoid != 0, overAll: b.spec(kernels.RouteScoredSpecOver) == decl.OverAll,
		groups: int(p.Groups), topGroups: int(p.TopGroups), best: int(p.Best), scale: p.Scale,
		logits: b.f32(kernels.RouteScoredBindLogits), ids: b.u32(kernels.RouteScoredBindIDs), weights: b.f32(kernels.RouteScoredBindWeights),
	}
	if b.spec(kernels.RouteScoredSpecBias) != 0 {
		k.bias = b.f32(kernels.RouteScoredBindB)
	}
	if b.spec(kernels.RouteScoredSpecFactors) != 0 {
		k.factors = b.f32(kernels.RouteScoredBindFactors)
	}
	return k, b.err
}

func (k *routeScored) units(w *worker) int { return w.rows }

func (k *routeScored) run(w *worker, lo, hi int) {
	scores := float32s(w.scratch)[:k.experts]
	for r := lo; r < hi; r++ {
		k.score(scores, k.logits[r*k.experts:][:k.experts])
		k.choose(scores, k.ids[r*k.used:][:k.used], k.weights[r*k.used:][:k.used])
	}
}

// score computes the scores of logits.
func (k *routeScored) score(scores, logits []float32) {
	if k.sigmoid {
		for e, x := range logits {
			scores[e] = 1 / (1 + exp(-x))
		}
		return
	}
	top := float32(-math.MaxFloat32)
	for _, x := range logits {
		if x > top {
			top = x
		}
	}
	var sum float32
	for e, x := range logits {
		scores[e] = exp(x - top)
		sum += scores[e]
	}
	for e := range scores {
		scores[e] *= 1 / sum
	}
}

// rank returns the number by which an expert is compared.
func (k *routeScored) rank(scores []float32, e int) float32 {
	if k.bias == nil {
		return scores[e]
	}
	return scores[e] + k.bias[e]
}

// choose selects the experts with the best ranks. weights holds ranks until all are selected.
func (k *routeScored) choose(scores []float32, ids []uint32, weights []float32) {
	candidates := ^uint32(0)
	if k.groups > 1 {
		candidates = k.bestGroups(scores)
	}
	size, n := k.experts/k.groups, 0
	for e := range scores {
		if candidates>>(e/size)&1 != 0 {
			n = insert(ids, weights, n, uint32(e), k.rank(scores, e))
		}
	}
	var sum float32
	for i, e := range ids {
		weights[i] = scores[e]
		sum += scores[e]
	}
	scale := k.scale
	if !k.overAll {
		scale /= sum
	}
	for i := range weights {
		if weights[i] *= scale; k.factors != nil {
			weights[i] *= k.factors[ids[i]]
		}
	}
}

// bestGroups returns a bit for each of the groups whose experts are candidates.
func (k *routeScored) bestGroups(scores []float32) (groups uint32) {
	size := k.experts / k.groups
	var ids [32]uint32
	var values [32]float32
	n := 0
	for g := range k.groups {
		first, second := float32(math.Inf(-1)), float32(math.Inf(-1))
		for e := g * size; e < (g+1)*size; e++ {
			switch v := k.rank(scores, e); {
			case beats(v, first):
				first, second = v, first
			case beats(v, second):
				second = v
			}
		}
		if k.best == 2 {
			first += second
		}
		n = insert(ids[:k.topGroups], values[:k.topGroups], n, uint32(g), first)
	}
	for _, g := range ids[:n] {
		groups |= 1 << g
	}
	return groups
}

// insert inserts an element into the n largest so far, which are sorted. Of equal elements the first
// wins. It returns their new number, at most len(ids).
func insert(ids []uint32, values []float32, n int, id uint32, v float32) int {
	at := n
	for at > 0 && beats(v, values[at-1]) {
		at--
	}
	if at == len(ids) {
		return n
	}
	n = min(n+1, len(ids))
	copy(ids[at+1:n], ids[at:])
	copy(values[at+1:n], values[at:])
	ids[at], values[at] = id, v
	return n
}

// scaleRows implements scale_rows.
type scaleRows struct {
	sequences
	n, stride    int
	span, offset uint32
	x            []float32 // [rows, n], rows stride apart
	factors      []float32
}

func newScaleRows(b *binder) (kernel, error) {
	p := kernels.ScaleRowsParamsOf(b.cmd)
	b.need(p.Span > 0 && p.Count > 0, "there are no factors, or they span no positions")
	return &scaleRows{
		sequences: b.sequences(kernels.ScaleRowsSpecSequences, 0), n: int(p.N), stride: int(p.Stride), span: p.Span, offset: p.Offset,
		x: b.f32(kernels.ScaleRowsBindX), factors: b.f32(kernels.ScaleRowsBindFactors),
	}, b.err
}

func (k *scaleRows) units(w *worker) int { return w.rows }

func (k *scaleRows) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		at := min((uint64(k.place(w, r))+uint64(k.offset))/uint64(k.span), uint64(len(k.factors)-1))
		row := k.x[r*k.stride:][:k.n]
		for i := range row {
			row[i] *= k.factors[at]
		}
	}
}
