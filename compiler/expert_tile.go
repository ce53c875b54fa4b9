package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// expertRowsArgs holds the arguments of expert_rows: out[0] becomes the list of the products of a chunk
// with the experts in[0], sorted by expert.
type expertRowsArgs struct{ unweighted }

func (expertRowsArgs) kernel() decl.ID { return kernels.ExpertRows }

// threads returns the size of one SIMD group, which does the work.
func (expertRowsArgs) threads(l *lowering) int { return l.s.in.Chip.SIMDWidth }

func (expertRowsArgs) lower(l *lowering) {
	e := &l.s.cfg.Experts
	l.bind(kernels.ExpertRowsBindIDs, l.n.in[0])
	l.bind(kernels.ExpertRowsBindList, l.n.out[0])
	kernels.ExpertRowsParams{Experts: uint32(e.Count), Used: uint32(e.Used)}.Put(&l.cmd)
}

// expertHalvesArgs holds the arguments of expert_halves: out[0] becomes the inputs of the experts' products
// in float16. They are in[0], or the activation of in[0] times in[1].
type expertHalvesArgs struct {
	unweighted
	cols       int    // of an input
	act        uint32 // decl.ActF16 or decl.ActF16x2
	input      uint32 // decl.InputPlain or decl.InputSiLUMul
	activation uint32 // for decl.InputSiLUMul: a decl.Activation
}

func (expertHalvesArgs) kernel() decl.ID    { return kernels.ExpertHalves }
func (a expertHalvesArgs) describe() string { return describeInput(a.input, a.activation) }

func (a expertHalvesArgs) lower(l *lowering) {
	used, x := l.s.cfg.Experts.Used, l.n.in[0]
	l.bind(kernels.ExpertHalvesBindX, x)
	if a.input == decl.InputSiLUMul {
		l.bind(kernels.ExpertHalvesBindX2, l.n.in[1])
	}
	l.bind(kernels.ExpertHalvesBindOut, l.n.out[0])
	l.set(kernels.ExpertHalvesSpecInput, a.input)
	l.set(kernels.ExpertHalvesSpecActivation, a.activation)
	l.set(kernels.ExpertHalvesSpecAct, a.act)
	kernels.ExpertHalvesParams{In: uint32(a.cols), XStride: uint32(x.v.width / used), Used: uint32(used), Limit: l.limit(a.activation)}.Put(&l.cmd)
}

// expertTileArgs holds the arguments of expert_gemm: out[0] becomes the products of the inputs in[0], in
// float16, with the matrices of the experts, in the order of the list in[1].
type expertTileArgs struct {
	w, bias *weight // matrices and biases of all experts, one after another; bias may be nil
	share   int     // number of chosen experts that have the same row of the input
	act     uint32  // decl.ActF16 or decl.ActF16x2
}

func (expertTileArgs) kernel() decl.ID           { return kernels.ExpertGEMM }
func (a expertTileArgs) weights() []*weight      { return []*weight{a.w, a.bias} }
func (a expertTileArgs) threads(l *lowering) int { return a.shape(l).threads }

func (a expertTileArgs) lower(l *lowering) {
	n, e := l.n, &l.s.cfg.Experts
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
		In: uint32(a.w.cols), Out: uint32(a.w.rows / e.Count), YStride: uint32(n.out[0].v.width / e.Used), Group: uint32(shape.group), RowGroup: uint32(shape.rows),
		Experts: uint32(e.Count), Used: uint32(e.Used), Share: uint32(a.share),
	}.Put(&l.cmd)
}

// shape returns the work of a threadgroup: products for twice as many rows as an expert has on average, so
// that most experts have one tile, and as many rows of W as keep all cores busy.
func (a expertTileArgs) shape(l *lowering) halvesShape {
	c, e := l.s.in.Chip, &l.s.cfg.Experts
	products := l.p.rows * e.Used
	group, rows := c.GEMMHalves/2, tileLeast
	for rows < min(c.GEMMTileRows, group) && rows < 2*ceil(products, e.Count) {
		rows *= 2
	}
	for group/2 >= max(tileGroup, rows) && ceil(a.w.rows/e.Count, group)*min(products, e.Count) < c.Cores {
		group /= 2
	}
	return halvesShape{threads: 2 * group, group: group, rows: rows}
}

// groupExperts replaces the products of experts in programs of a chunk by products of all rows of an
// expert at once, with float16 activations. The products of a layer share one list of products by expert.
func (s *state) groupExperts() error {
	for _, p := range s.programs {
		if !p.wide {
			continue
		}
		var list *node        // sorts the products
		var made *node        // converts the input of the previous products
		var ids, from operand // the inputs of these nodes
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			a, ok := n.args.(expertProductArgs)
			if !ok {
				made = nil
				continue
			}
			act, ok := s.halvesAct(a.w)
			if !ok {
				made = nil
				continue
			}
			if list == nil || ids != n.in[1] {
				ids = n.in[1]
				list = s.expertList(p, n)
				p.splice(i, 0, list)
				i++
			}
			if made == nil || from != n.in[0] || a.input != decl.InputPlain {
				from = n.in[0]
				made = s.expertInput(p, n, a, act)
				p.splice(i, 0, made)
				i++
			}
			n.args, n.in = expertTileArgs{w: a.w, bias: a.bias, share: a.share, act: act}, []operand{made.out[0], list.out[0]}
		}
	}
	return nil
}

// expertList returns the node that sorts the products of the experts that n reads.
func (s *state) expertList(p *program, n *node) *node {
	e := &s.cfg.Experts
	at := n.with(".rows")
	out := p.value(at.label(), roundUp(e.Used+ceil(e.Count+1, p.rows), 4))
	return &node{spot: at, args: expertRowsArgs{}, in: []operand{n.in[1]}, out: []operand{out.all()}}
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
	out := p.value(at.label(), width*s.cfg.Experts.Used)
	return &node{spot: at, args: expertHalvesArgs{cols: a.w.cols, act: act, input: a.input, activation: a.activation}, in: in, out: []operand{out.all()}}
}

// groupsExperts reports whether products of experts are grouped: with SIMD-group matrices.
func (s *state) groupsExperts() bool {
	return s.in.Chip.GEMMHalves > 0 && !s.warpgroups() && s.cfg.Experts.Count > 0
}
