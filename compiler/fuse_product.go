package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// fuseQKV fuses the Q, K and V products if their matrices have the same type and all or none have a
// bias.
func (s *state) fuseQKV() error { return s.joinProducts(roleQKV, roleQ, roleK, roleV) }

// fuseGateUp fuses the gate and up products under the same conditions.
func (s *state) fuseGateUp() error { return s.joinProducts(roleGateUp, roleGate, roleUp) }

// joinProducts fuses consecutive products with the roles in of.
func (s *state) joinProducts(joined role, of ...role) error {
	for _, p := range s.programs {
		for i := range p.nodes {
			if n := p.match(i, of...); n != nil {
				s.join(p, i, n, spot{role: joined, layer: n[0].layer})
			}
		}
	}
	return nil
}

// joinable returns the args of matrix products that can be fused: they have the same input, type and
// number of columns, and all or none have a bias.
func joinable(nodes []*node) (list []productArgs, ok bool) {
	for _, n := range nodes {
		a, ok := n.product()
		if !ok {
			return nil, false
		}
		list = append(list, a)
		if b := list[0]; a.wide != b.wide || n.in[0] != nodes[0].in[0] || a.w.typ != b.w.typ || a.w.cols != b.w.cols || (a.bias == nil) != (b.bias == nil) {
			return nil, false
		}
	}
	return list, true
}

// join replaces the matrix products from index i on, if they can be fused, by one product whose
// output contains the columns of all of them.
func (s *state) join(p *program, i int, nodes []*node, at spot) {
	list, ok := joinable(nodes)
	if !ok {
		return
	}
	var ws, biases []*weight
	width := 0
	for _, a := range list {
		ws, biases = append(ws, a.w), append(biases, a.bias)
		width += a.w.rows
	}
	args := productArgs{wide: list[0].wide, w: s.concat(at.label(), ws...)}
	if list[0].bias != nil {
		args.bias = s.concatVectors(at.label()+".bias", biases...)
	}
	out := p.value(at.label(), width)
	p.splice(i, len(nodes), &node{spot: at, args: args, in: nodes[0].in, out: []operand{out.all()}})
	off := 0
	for j, n := range nodes {
		p.rename(n.out[0].v, out, off)
		off += list[j].w.rows
	}
}

// fuseSiLUDown fuses silu(gate) * up into the product that reads it, if nothing else does. In a
// program of a chunk every threadgroup of gemm computes the activation again, so there the chip's
// data decide.
func (s *state) fuseSiLUDown() error {
	for _, p := range s.programs {
		if p.wide && !s.in.Chip.Fuse.SiLUDownChunk {
			continue
		}
		pairs(p, func(a *node, act siluMulArgs, b *node, product productArgs) bool {
			if !product.plain() || !p.feeds(a, b) || !intoInput(a, act) {
				return false
			}
			product.input, product.activation = decl.InputSiLUMul, act.activation
			b.in, b.args = a.in, product
			return true
		})
	}
	return nil
}

// fuseGated fuses silu(gate) * up into the product that computes gate and up, if nothing else reads
// them, except in programs of a chunk. A threadgroup of the product then computes the same rows of gate
// and up, and the product that follows reads half as much.
func (s *state) fuseGated() error {
	for _, p := range s.programs {
		if p.wide {
			continue
		}
		pairs(p, func(a *node, product productArgs, b *node, act siluMulArgs) bool {
			if a.role != roleGateUp || product.output != decl.OutputStore || !inProducts(act.activation) || s.isSplit(product.w) || !p.feedsHalves(a, b) {
				return false
			}
			product.output, product.activation = decl.OutputGated, act.activation
			b.spot, b.args, b.in = a.spot, product, a.in
			return true
		})
	}
	return nil
}

// fuseGatedSingle does the same for products of one row whose kernels have the form for it, after their layouts are
// known. It removes the activation from the product that reads it.
func (s *state) fuseGatedSingle() error {
	for _, p := range s.programs {
		if p.wide {
			continue
		}
		for i := 0; i+1 < len(p.nodes); i++ {
			s.gateSingle(p, p.nodes[i], p.nodes[i+1])
		}
	}
	return nil
}

// gateSingle fuses the activation of b's input into a, if a computes gates and the factors of these and only b reads
// them. A threadgroup with half a strip of gates would take longer than what is saved.
func (s *state) gateSingle(p *program, a, b *node) {
	product, ok := a.args.(productArgs)
	reader, reads := b.args.(productArgs)
	if !ok || !reads || a.role != roleGateUp || product.output != decl.OutputStore || reader.input != decl.InputSiLUMul || product.w.rows%(2*dtype.TileRows) != 0 {
		return
	}
	if !p.feedsHalves(a, b) {
		return
	}
	product.output, product.activation = decl.OutputGated, reader.activation
	reader.input, reader.activation = decl.InputPlain, 0
	l := &lowering{s: s, p: p, n: a}
	group := product.gatedGroup(l)
	if !product.single(l, group) || product.w.layout == dtype.Tiled16 && group%(2*dtype.TileRows) != 0 {
		return
	}
	y := p.value(b.label()+".input", a.out[0].width/2).all()
	a.args, a.out = product, []operand{y}
	b.args, b.in = reader, []operand{y}
}

// isSplit reports whether pass split-weights divides a matrix.
func (s *state) isSplit(w *weight) bool { return partRows(w, s.in.Chip.LargestSlot()) > 0 }

// intoInput reports whether a product can compute an activation for its input. Both operands must
// have the same stride, because the kernel has one parameter for it.
func intoInput(n *node, a siluMulArgs) bool {
	return inProducts(a.activation) && n.in[0].v.width == n.in[1].v.width
}

// fuseProductAdd fuses x += delta into the product, or the sum of experts, that computes delta,
// except in programs of a chunk.
func (s *state) fuseProductAdd() error {
	for _, p := range s.programs {
		if p.wide {
			continue
		}
		for i := 0; i+1 < len(p.nodes); i++ {
			a, b := p.nodes[i], p.nodes[i+1]
			if add, ok := b.args.(addArgs); !ok || add.delta != 0 || !p.feeds(a, b) {
				continue
			}
			switch args := a.args.(type) {
			case productArgs:
				args.output = decl.OutputAdd
				a.args = args
			case expertSumArgs:
				args.add = true
				a.args = args
			default:
				continue
			}
			a.out = b.out
			p.splice(i+1, 1)
		}
	}
	return nil
}

// fuseNormProduct fuses a norm into the products that read it, if nothing else does, except in
// programs of a chunk. Each product then normalises x again. If the chip's data enable fuse-scaled, a norm
// after a residual addition stays, because fuse-residual-norm fuses it with the addition.
func (s *state) fuseNormProduct() error {
	for _, p := range s.programs {
		if p.wide {
			continue
		}
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			norm, ok := n.args.(normArgs)
			if !ok || norm.mean || norm.fromRow || norm.scale != 0 || s.in.Chip.Fuse.Scaled && p.afterAdd(i) {
				continue
			}
			readers := p.normReaders(i)
			if len(readers) == 0 {
				continue
			}
			for _, r := range readers {
				product, _ := r.product()
				product.input, product.norm, product.eps = decl.InputNorm, norm.w, norm.eps
				r.in, r.args = n.in, product
			}
			p.splice(i, 1)
		}
	}
	return nil
}

// afterAdd reports whether the node before index i is a residual addition to the input of the node
// at index i.
func (p *program) afterAdd(i int) bool {
	if i == 0 {
		return false
	}
	_, ok := p.nodes[i-1].args.(addArgs)
	return ok && p.nodes[i-1].out[0] == p.nodes[i].in[0]
}

// normReaders returns the products that read the norm at index i, or nil if other nodes read it.
func (p *program) normReaders(i int) []*node {
	out := p.nodes[i].out[0]
	var list []*node
	for _, n := range p.nodes[i+1:] {
		if _, ok := n.args.(convArgs); ok && len(list) > 0 && n.in[0] == list[0].out[0] {
			continue // a convolution of the first product, between the products
		}
		a, ok := n.product()
		if !ok || n.in[0] != out {
			break
		}
		list = append(list, n)
		if a.adds() {
			break // the product may be added to x, the input of the norm
		}
	}
	if p.uses(out.v) != 1+len(list) {
		return nil
	}
	return list
}

// fuseMergeProduct fuses the merging of attention splits into the product that reads the result, if
// nothing else does, except in programs of a chunk. Each threadgroup of the product merges the
// splits again, so they must not exceed the chip's MergeLimit.
func (s *state) fuseMergeProduct() error {
	for _, p := range s.programs {
		if p.wide {
			continue
		}
		pairs(p, func(a *node, merge mergeArgs, b *node, product productArgs) bool {
			d := a.layer.headDim
			if d%4 != 0 || !product.plain() || !p.feeds(a, b) || s.mergesTooMuch(product.w, merge) {
				return false
			}
			part, n := a.in[0].v, merge.heads*merge.splits
			b.in = []operand{{v: part, width: n * d}, {v: part, off: n * d, width: 2 * n}}
			product.input, product.merge = decl.InputMerge, merge
			b.args = product
			return true
		})
	}
	return nil
}

// mergesTooMuch reports whether the threadgroups of a product would request more bytes of attention
// splits than the chip's limit.
func (s *state) mergesTooMuch(w *weight, merge mergeArgs) bool {
	limit := s.in.Chip.MergeLimit
	split := 4 * (w.cols + 2*merge.heads) // values, and the states of each head
	return limit > 0 && ceil(w.rows, s.gemvGroup(w, s.in.Chip.Cores))*merge.splits*split > limit
}

// splitInput adds nodes that convert the input of products in programs of a chunk to float16.
// Consecutive products with the same input share one conversion. silu(gate) * up is fused into the
// conversion if nothing else reads it.
func (s *state) splitInput() error {
	for _, p := range s.programs {
		if !p.wide {
			continue
		}
		var made *node // the conversion for the previous products
		var from operand
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			a, ok := n.product()
			if !ok {
				made = nil
				continue
			}
			act, ok := s.halvesAct(a.w)
			if !ok {
				made = nil
				continue
			}
			if made == nil || from != n.in[0] {
				from = n.in[0]
				i, made = s.halves(p, i, act)
			}
			n.args, n.in = halvesProductArgs{w: a.w, bias: a.bias, biasFrom: a.biasFrom, act: act, few: made.few()}, made.out[len(made.out)-1:]
		}
	}
	return nil
}

// halves inserts the node that converts the input of the product at index i to float16. If that
// input is an activation or a norm that can be fused, the node replaces the one that computes it. halves
// returns the new index of the product, and the node, whose last output is the converted input.
func (s *state) halves(p *program, i int, act uint32) (int, *node) {
	n := p.nodes[i]
	a, _ := n.product()
	at := n.with(".halves")
	few := s.few(p, a.w)
	width := halvesWidth(a.w.cols, act)
	if few {
		width = fewWidth(a.w.cols, p.rows)
	}
	args := halvesArgs{act: act, few: few}
	out := p.value(at.label(), width)
	made := &node{spot: at, args: args, in: n.in, out: []operand{out.all()}}
	before := p.nodes[max(i-1, 0)]
	if norm, ok := before.args.(addNormArgs); ok && act == decl.ActF16 && !s.in.Options.NoFuse && s.onlyHalves(p, i, before.out[1]) {
		made.spot, made.args = before.spot, addNormHalvesArgs{addNormArgs: norm, few: few}
		made.in, made.out = before.in, []operand{before.out[0], out.all()}
		p.splice(i-1, 1, made)
		return i, made
	}
	if tile, ok := before.args.(attnTileArgs); ok && act == decl.ActF16 && tile.act == act && a.w.cols%64 == 0 && !s.in.Options.NoFuse && p.feeds(before, n) {
		tile.halves, tile.few = true, few
		before.args, before.out = tile, []operand{out.all()}
		return i, before
	}
	if s.in.Chip.Fuse.SiLUDown && !s.in.Options.NoFuse {
		if silu, ok := before.args.(siluMulArgs); ok && p.feeds(before, n) && intoInput(before, silu) {
			args.input, args.activation = decl.InputSiLUMul, silu.activation
			made.in, made.args = before.in, args
			p.splice(i-1, 1, made)
			return i, made
		}
	}
	p.splice(i, 0, made)
	return i + 1, made
}

// few reports whether a node converts to float16 in the order of gemm_few.
func (n *node) few() bool {
	switch a := n.args.(type) {
	case halvesArgs:
		return a.few
	case addNormHalvesArgs:
		return a.few
	case attnTileArgs:
		return a.few
	}
	return false
}

// onlyHalves reports whether an output of the node before index i is the input of the products from index
// i on that read float16, and of no other node.
func (s *state) onlyHalves(p *program, i int, x operand) bool {
	readers := 0
	for _, n := range p.nodes[i:] {
		a, ok := n.product()
		if !ok || n.in[0] != x {
			break
		}
		if _, ok := s.halvesAct(a.w); !ok {
			break
		}
		readers++
	}
	return x.width%8 == 0 && p.uses(x.v) == 1+readers
}
