package compiler

import "github.com/pianola-engine/pianola/internal/decl"

// fuseQKV joins Q, K and V where they are of one type and all or none have a
// bias.
func (s *state) fuseQKV() error { return s.joinProducts(roleQKV, roleQ, roleK, roleV) }

// fuseGateUp joins the gate and up projections likewise.
func (s *state) fuseGateUp() error { return s.joinProducts(roleGateUp, roleGate, roleUp) }

// joinProducts joins the products of some roles, which follow each other.
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

// joinable returns the args of matrix products that can be one: they have the same
// input, type and columns, and all or none have a bias.
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

// join replaces the matrix products from i on, where they can be one, by one whose
// output holds theirs side by side.
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

// fuseSiLUDown moves silu(gate) * up into the product that alone reads it. In a
// program of a chunk it does so only where the chip wants that: every threadgroup
// of gemm computes the activation again.
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

// intoInput reports whether a product can compute an activation for its input: it
// has one stride for both operands.
func intoInput(n *node, a siluMulArgs) bool {
	return inProducts(a.activation) && n.in[0].v.width == n.in[1].v.width
}

// fuseProductAdd makes x += delta a part of the product, or the sum of experts,
// that delta is, in programs of a few rows.
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
				args.add = true
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

// fuseNormProduct makes a norm a part of the products that alone read it, in
// programs of a few rows: each normalises x for itself.
func (s *state) fuseNormProduct() error {
	for _, p := range s.programs {
		if p.wide {
			continue
		}
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			norm, ok := n.args.(normArgs)
			if !ok || norm.mean || norm.fromRow || norm.scale != 0 {
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

// normReaders returns the products that follow the norm at i if nothing else
// reads it.
func (p *program) normReaders(i int) []*node {
	out := p.nodes[i].out[0]
	var list []*node
	for _, n := range p.nodes[i+1:] {
		a, ok := n.product()
		if !ok || n.in[0] != out {
			break
		}
		list = append(list, n)
		if a.add {
			break // it may be x that it is added to
		}
	}
	if p.uses(out.v) != 1+len(list) {
		return nil
	}
	return list
}

// fuseMergeProduct moves the merging of attention's splits into the product that
// alone reads it, in programs of a few rows: each of its threadgroups merges them.
func (s *state) fuseMergeProduct() error {
	d := s.cfg.HeadDim
	for _, p := range s.programs {
		if p.wide || d%4 != 0 {
			continue
		}
		pairs(p, func(a *node, merge mergeArgs, b *node, product productArgs) bool {
			if !product.plain() || !p.feeds(a, b) {
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

// splitInput makes float16 of the input of products of a chunk, once for those
// that follow each other and read the same. silu(gate) * up becomes a part of
// it if nothing else reads that.
func (s *state) splitInput() error {
	for _, p := range s.programs {
		if !p.wide {
			continue
		}
		var made *node // of the products before, if they have the same input
		var from operand
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			a, ok := n.product()
			if !ok || !splittable(a.w) {
				made = nil
				continue
			}
			if made == nil || from != n.in[0] {
				from = n.in[0]
				i, made = s.halves(p, i)
			}
			n.args, n.in = halvesProductArgs{w: a.w, bias: a.bias}, made.out
		}
	}
	return nil
}

// halves inserts the node that makes float16 of the input of the product at i, or
// replaces the activation before it. It returns where the product then is, and the
// node.
func (s *state) halves(p *program, i int) (int, *node) {
	n := p.nodes[i]
	a, _ := n.product()
	at := n.with(".halves")
	out := p.value(at.label(), halvesWidth(a.w.cols))
	made := &node{spot: at, args: halvesArgs{}, in: n.in, out: []operand{out.all()}}
	if before := p.nodes[max(i-1, 0)]; s.in.Chip.Fuse.SiLUDown && !s.in.Options.NoFuse {
		if act, ok := before.args.(siluMulArgs); ok && p.feeds(before, n) && intoInput(before, act) {
			made.in, made.args = before.in, halvesArgs{input: decl.InputSiLUMul, activation: act.activation}
			p.splice(i-1, 1, made)
			return i, made
		}
	}
	p.splice(i, 0, made)
	return i + 1, made
}
