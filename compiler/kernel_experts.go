package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// routeArgs holds the arguments of route, which chooses experts from the router's logits in[0]. out[0]
// becomes the ids of the chosen experts, out[1] their weights.
type routeArgs struct{ unweighted }

func (routeArgs) kernel() decl.ID { return kernels.Route }

// threads returns the size of two SIMD groups. One does the work, but a persistent kernel requires
// two.
func (routeArgs) threads(l *lowering) int {
	return min(l.s.in.Chip.NormThreads, 2*l.s.in.Chip.SIMDWidth)
}

func (routeArgs) lower(l *lowering) {
	e := &l.s.cfg.Experts
	l.bind(kernels.RouteBindLogits, l.n.in[0])
	l.bind(kernels.RouteBindIDs, l.n.out[0])
	l.bind(kernels.RouteBindWeights, l.n.out[1])
	over := uint32(decl.OverChosen)
	if e.OverAll {
		over = decl.OverAll
	}
	l.set(kernels.RouteSpecOver, over)
	kernels.RouteParams{Experts: uint32(e.Count), Used: uint32(e.Used)}.Put(&l.cmd)
}

// routeScoredArgs holds the arguments of route_scored, which chooses experts by scores of the logits
// in[0]. out is as for route.
type routeScoredArgs struct {
	bias                    *weight // added to scores for the choice, or nil
	factors                 *weight // of each expert, which multiply the weights, or nil
	experts, used           int
	sigmoid, overAll        bool
	groups, topGroups, best int
	scale                   float32
}

func (routeScoredArgs) kernel() decl.ID      { return kernels.RouteScored }
func (a routeScoredArgs) weights() []*weight { return []*weight{a.bias, a.factors} }

func (routeScoredArgs) threads(l *lowering) int { return routeArgs{}.threads(l) }

func (a routeScoredArgs) lower(l *lowering) {
	l.bind(kernels.RouteScoredBindLogits, l.n.in[0])
	l.bindWeight(kernels.RouteScoredBindB, a.bias)
	l.bind(kernels.RouteScoredBindIDs, l.n.out[0])
	l.bind(kernels.RouteScoredBindWeights, l.n.out[1])
	l.flag(kernels.RouteScoredSpecBias, a.bias != nil)
	l.bindWeight(kernels.RouteScoredBindFactors, a.factors)
	l.flag(kernels.RouteScoredSpecFactors, a.factors != nil)
	over := uint32(decl.OverChosen)
	if a.overAll {
		over = decl.OverAll
	}
	l.set(kernels.RouteScoredSpecOver, over)
	sigmoid := uint32(0)
	if a.sigmoid {
		sigmoid = 1
	}
	kernels.RouteScoredParams{
		Experts: uint32(a.experts), Used: uint32(a.used), Sigmoid: sigmoid, Groups: uint32(a.groups), TopGroups: uint32(a.topGroups), Best: uint32(a.best), Scale: a.scale,
	}.Put(&l.cmd)
}

// expertProductArgs holds the arguments of expert_gemv: out[0] becomes the products of the
// matrices of the experts in[1] with the input, which is in[0], or
// silu(in[0]) * in[2]. If ids is not nil, all rows have the experts in ids, and in[1] is missing.
type expertProductArgs struct {
	w, bias    *weight // matrices and biases of all experts, one after another; bias may be nil
	ids        *weight // experts of each row, or nil
	of         choice
	share      int    // number of chosen experts that have the same row of the input
	input      uint32 // decl.InputPlain or decl.InputSiLUMul
	activation uint32 // for decl.InputSiLUMul: a decl.Activation
}

func (expertProductArgs) kernel() decl.ID      { return kernels.ExpertGEMV }
func (a expertProductArgs) weights() []*weight { return []*weight{a.w, a.bias, a.ids} }
func (a expertProductArgs) describe() string   { return describeInput(a.input, a.activation) }

func (expertProductArgs) threads(l *lowering) int { return l.s.in.Chip.GEMVThreads }

func (a expertProductArgs) lower(l *lowering) {
	n := l.n
	l.bind(kernels.ExpertGEMVBindX, n.in[0])
	if a.ids != nil {
		l.bindWeight(kernels.ExpertGEMVBindIDs, a.ids)
	} else {
		l.bind(kernels.ExpertGEMVBindIDs, n.in[1])
	}
	if a.input == decl.InputSiLUMul {
		l.bind(kernels.ExpertGEMVBindX2, n.in[2])
	}
	l.bindWeight(kernels.ExpertGEMVBindW, a.w)
	l.bindWeight(kernels.ExpertGEMVBindB, a.bias)
	l.bind(kernels.ExpertGEMVBindY, n.out[0])
	l.set(kernels.ExpertGEMVSpecWType, uint32(a.w.typ))
	l.set(kernels.ExpertGEMVSpecWeights, uint32(a.w.layout))
	l.set(kernels.ExpertGEMVSpecInput, a.input)
	l.set(kernels.ExpertGEMVSpecActivation, a.activation)
	l.flag(kernels.ExpertGEMVSpecBias, a.bias != nil)
	l.set(kernels.ExpertGEMVSpecAct, l.act(a.w))
	out := a.w.rows / a.of.count
	kernels.ExpertGEMVParams{
		In: uint32(a.w.cols), Out: uint32(out), XStride: uint32(n.in[0].v.width / (a.of.used / a.share)), YStride: uint32(n.out[0].v.width / a.of.used),
		Group: uint32(l.expertGroup(a, out)), Ahead: l.ahead(a.w), Stage: l.stage(), Experts: uint32(a.of.count), Used: uint32(a.of.used), Share: uint32(a.share),
		Limit: l.limit(a.activation),
	}.Put(&l.cmd)
}

// expertRows is the largest number of rows of an expert's matrix that a threadgroup computes if the
// chip has a GEMVWave.
const expertRows = 64

// expertGroup returns the number of the out rows of each expert that a threadgroup computes.
func (l *lowering) expertGroup(a expertProductArgs, out int) int {
	c := l.s.in.Chip
	if c.GEMVWave == 0 {
		return c.GEMVRows
	}
	if c.GEMVLimit > 0 {
		// Independent of the number of rows, as tables for batching need.
		return l.s.groupOf(a.w, out, a.of.used)
	}
	if l.s.in.Options.Batching {
		// The SIMD groups of a threadgroup divide the columns of its rows, so the number of rows
		// determines the order of sums.
		return max(c.GEMVRows, expertRows)
	}
	// One wave of threadgroups, unless each would compute more than expertRows.
	wave := ceil(out*a.of.used*l.p.rows, c.GEMVWave*max(c.Cores, 1))
	return max(c.GEMVRows, min(roundUp(wave, gemvUnit), expertRows))
}

// expertSumArgs holds the arguments of expert_sum: out[0] becomes the sum of the experts' results
// in[0], weighted by in[1].
type expertSumArgs struct {
	unweighted
	used int  // results of a row
	add  bool // the sum is added to out[0]
}

func (expertSumArgs) kernel() decl.ID    { return kernels.ExpertSum }
func (a expertSumArgs) describe() string { return describeAdd(a.add) }

func (a expertSumArgs) lower(l *lowering) {
	l.bind(kernels.ExpertSumBindX, l.n.in[0])
	l.bind(kernels.ExpertSumBindWeights, l.n.in[1])
	l.bind(kernels.ExpertSumBindOut, l.n.out[0])
	l.set(kernels.ExpertSumSpecOutput, output(a.add))
	kernels.ExpertSumParams{N: uint32(l.n.out[0].width), Used: uint32(a.used)}.Put(&l.cmd)
}
