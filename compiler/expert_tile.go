package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// expertRowsArgs holds the arguments of expert_rows: out[0] becomes the list of the products of a chunk
// with the experts in[0], or in ids if it is not nil, sorted by expert.
type expertRowsArgs struct {
	of  choice
	ids *weight
}

func (expertRowsArgs) kernel() decl.ID      { return kernels.ExpertRows }
func (a expertRowsArgs) weights() []*weight { return []*weight{a.ids} }

// threads returns the size of one SIMD group, which does the work.
func (expertRowsArgs) threads(l *lowering) int { return l.s.in.Chip.SIMDWidth }

func (a expertRowsArgs) lower(l *lowering) {
	if a.ids != nil {
		l.bindWeight(kernels.ExpertRowsBindIDs, a.ids)
	} else {
		l.bind(kernels.ExpertRowsBindIDs, l.n.in[0])
	}
	l.bind(kernels.ExpertRowsBindList, l.n.out[0])
	kernels.ExpertRowsParams{Experts: uint32(a.of.count), Used: uint32(a.of.used)}.Put(&l.cmd)
}

// expertHalvesArgs holds the arguments of expert_halves: out[0] becomes the inputs of the experts' products
// in float16. They are in[0], or the activation of in[0] times in[1].
type expertHalvesArgs struct {
	unweighted
	used       int    // inputs of a row
	cols       int    // of an input
	act        uint32 // decl.ActF16 or decl.ActF16x2
	input      uint32 // decl.InputPlain or decl.InputSiLUMul
	activation uint32 // for decl.InputSiLUMul: a decl.Activation
}

func (expertHalvesArgs) kernel() decl.ID    { return kernels.ExpertHalves }
func (a expertHalvesArgs) describe() string { return describeInput(a.input, a.activation) }

// threads returns as many as read an input at once on a CUDA device, 16 elements each: inputs are short.
func (a expertHalvesArgs) threads(l *lowering) int {
	c := l.s.in.Chip
	if !l.s.warpgroups() {
		return c.NormThreads
	}
	return min(c.NormThreads, roundUp(ceil(a.cols, 16), c.SIMDWidth))
}

func (a expertHalvesArgs) lower(l *lowering) {
	x := l.n.in[0]
	l.bind(kernels.ExpertHalvesBindX, x)
	if a.input == decl.InputSiLUMul {
		l.bind(kernels.ExpertHalvesBindX2, l.n.in[1])
	}
	l.bind(kernels.ExpertHalvesBindOut, l.n.out[0])
	l.set(kernels.ExpertHalvesSpecInput, a.input)
	l.set(kernels.ExpertHalvesSpecActivation, a.activation)
	l.set(kernels.ExpertHalvesSpecAct, a.act)
	kernels.ExpertHalvesParams{In: uint32(a.cols), XStride: uint32(x.v.width / a.used), Used: uint32(a.used), Limit: l.limit(a.activation)}.Put(&l.cmd)
}

// expertTileArgs holds the arguments of expert_gemm: out[0] becomes the products of the inputs in[0], in
// float16, with the matrices of the experts, in the order of the list in[1].
type expertTileArgs struct {
	w, bias *weight // matrices and biases of all experts, one after another; bias may be nil
	of      choice
	share   int    // number of chosen experts that have the same row of the input
	act     uint32 // decl.ActF16 or decl.ActF16x2
}

func (expertTileArgs) kernel() decl.ID           { return kernels.ExpertGEMM }
func (a expertTileArgs) weights() []*weight      { return []*weight{a.w, a.bias} }
func (a expertTileArgs) threads(l *lowering) int { return a.shape(l).threads }

func (a expertTileArgs) lower(l *lowering) {
	n := l.n
	l.bind(kernels.ExpertGEMMBindX, n.in[0])
	l.bind(kernels.ExpertGEMMBindList, n.in[1])
	l.bindWeight(kernels.ExpertGEMMBindW, a.w)
	l.bindWeight(kernels.ExpertGEMMBindB, a.bias)
	l.bind(kernels.ExpertGEMMBindY, n.out[0])
	l.set(kernels.ExpertGEMMSpecWType, uint32(a.w.typ))
	l.flag(kernels.ExpertGEMMSpecBias, a.bias != nil)
	l.set(kernels.ExpertGEMMSpecAct, a.act)
	l.set(kernels.ExpertGEMMSpecWeights, uint32(a.w.layout))
	shape := a.shape(l)
	kernels.ExpertGEMMParams{
		In: uint32(a.w.cols), Out: uint32(a.w.rows / a.of.count), YStride: uint32(n.out[0].v.width / a.of.used), Group: uint32(shape.group), RowGroup: uint32(shape.rows),
		Experts: uint32(a.of.count), Used: uint32(a.of.used), Share: uint32(a.share),
	}.Put(&l.cmd)
}

// expertTileRows is the largest number of products of an expert that a threadgroup of warpgroups computes. It
// takes less time for fewer.
const expertTileRows = 64

// shape returns the work of a threadgroup. With SIMD-group matrices it is the products for twice as many rows
// as an expert has on average, so that most experts have one tile, and as many rows of W as keep all cores busy.
func (a expertTileArgs) shape(l *lowering) halvesShape {
	if l.s.warpgroups() {
		return halvesShape{threads: warpgroupThreads, group: halvesGroup, rows: expertTileRows}
	}
	c := l.s.in.Chip
	products := l.p.rows * a.of.used
	group, rows := c.GEMMHalves/2, tileLeast
	for rows < min(c.GEMMTileRows, group) && rows < 2*ceil(products, a.of.count) {
		rows *= 2
	}
	for group/2 >= max(tileGroup, rows) && ceil(a.w.rows/a.of.count, group)*min(products, a.of.count) < c.Cores {
		group /= 2
	}
	return halvesShape{threads: 2 * group, group: group, rows: rows}
}

// groupExperts replaces the products of experts in programs of a chunk by products of all rows of an
// expert at once, with float16 activations. The products of a layer share one list of products by expert.
// With warpgroups, the program for short prompts keeps its kernel, because few of its rows have the same expert,
// unless the table is for batching, whose programs all have the same arithmetic.
func (s *state) groupExperts() error {
	for _, p := range s.programs {
		if !p.wide || p.short() && s.warpgroups() && !s.in.Options.Batching {
			continue
		}
		var list *node   // sorts the products
		var made *node   // converts the input of the previous products
		var by expertIDs // of the list
		var from operand // the input of made
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			a, ok := n.args.(expertProductArgs)
			if !ok {
				made = nil
				continue
			}
			act, ok := s.expertAct(a.w)
			if !ok {
				made = nil
				continue
			}
			if ids := n.expertIDs(a); list == nil || by != ids {
				by = ids
				list = s.expertList(p, n, a)
				p.splice(i, 0, list)
				i++
			}
			if made == nil || from != n.in[0] || a.input != decl.InputPlain {
				from = n.in[0]
				made = s.expertInput(p, n, a, act)
				p.splice(i, 0, made)
				i++
			}
			n.args, n.in = expertTileArgs{w: a.w, bias: a.bias, of: a.of, share: a.share, act: act}, []operand{made.out[0], list.out[0]}
		}
	}
	return nil
}

// expertAct returns the type of activations that expert_gemm multiplies by w, and reports whether it supports
// w: as gemm_halves, and MXFP4, in which models store only experts, also on devices with warpgroups.
func (s *state) expertAct(w *weight) (act uint32, ok bool) {
	if act, ok = s.halvesAct(w); s.warpgroups() && w.typ == dtype.MXFP4 && w.layout == dtype.Tiled16 {
		ok = act == decl.ActF16
	}
	return act, ok
}

// expertIDs is the place of the experts of a product: an operand or a weight.
type expertIDs struct {
	chosen operand
	all    *weight
}

// expertIDs returns the place of the experts of a product n.
func (n *node) expertIDs(a expertProductArgs) expertIDs {
	if a.ids != nil {
		return expertIDs{all: a.ids}
	}
	return expertIDs{chosen: n.in[1]}
}

// expertList returns the node that sorts the products of the experts that n reads.
func (s *state) expertList(p *program, n *node, a expertProductArgs) *node {
	at := n.with(".rows")
	out := p.value(at.label(), roundUp(a.of.used+ceil(a.of.count+1, p.rows), 4))
	list := &node{spot: at, args: expertRowsArgs{of: a.of, ids: a.ids}, out: []operand{out.all()}}
	if a.ids == nil {
		list.in = []operand{n.in[1]}
	}
	return list
}

// expertInput returns the node that converts the input of the products n.
func (s *state) expertInput(p *program, n *node, a expertProductArgs, act uint32) *node {
	at, width, in := n.with(".halves"), halvesWidth(a.w.cols, act), []operand{n.in[0]}
	if a.share > 1 {
		out := p.value(at.label(), width)
		return &node{spot: at, args: halvesArgs{act: act}, in: in, out: []operand{out.all()}}
	}
	if a.input == decl.InputSiLUMul {
		in = append(in, n.in[2])
	}
	out := p.value(at.label(), width*a.of.used)
	return &node{spot: at, args: expertHalvesArgs{used: a.of.used, cols: a.w.cols, act: act, input: a.input, activation: a.activation}, in: in, out: []operand{out.all()}}
}

// groupsExperts reports whether products of experts, or of heads, are grouped: with SIMD-group matrices, and
// with warpgroups unless the table is exact, for which there is no form with two float16 terms.
func (s *state) groupsExperts() bool {
	if o := s.in.Options; s.in.Chip.GEMMHalves == 0 || s.warpgroups() && o.Exact {
		return false
	}
	return s.cfg.Experts.Count > 0 || s.cfg.Latent.KVRank > 0
}
