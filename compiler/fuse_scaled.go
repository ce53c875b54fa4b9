package compiler

import "github.com/pianola-engine/pianola/internal/decl"

// fuseScaled divides a norm of the residual stream between the product that adds to the stream and
// the products that read the norm, except in programs of a chunk. The first stores the stream times
// the norm's weights, and partial sums of the stream's squares. The others multiply their sums by the
// norm's factor, so that they read the stream once and need not wait for its squares.
func (s *state) fuseScaled() error {
	for _, p := range s.programs {
		if p.wide {
			continue
		}
		for i := 1; i < len(p.nodes); i++ {
			before, n := p.nodes[i-1], p.nodes[i]
			product, isProduct := before.args.(productArgs)
			norm, isNorm := n.args.(normArgs)
			if !isProduct || product.output != decl.OutputAdd || s.isSplit(product.w) ||
				!isNorm || norm.mean || norm.fromRow || norm.scale != 0 || n.in[0] != before.out[0] {
				continue
			}
			readers := p.normReaders(i)
			if len(readers) == 0 {
				continue
			}
			sums := ceil(product.w.rows, s.gemvGroup(product.w, s.in.Chip.Cores))
			squares := p.value(n.label()+".squares", roundUp(sums, sumsUnit))
			product.output, product.next = decl.OutputAddScaled, norm.w
			before.args, before.out = product, []operand{before.out[0], n.out[0], squares.all()}
			for _, r := range readers {
				a, _ := r.product()
				a.input, a.eps, a.sums = decl.InputScaled, norm.eps, sums
				r.args, r.in = a, []operand{n.out[0], squares.all()}
			}
			p.splice(i, 1)
			i--
		}
	}
	return nil
}

// sumsUnit is the unit of the partial sums of a row, so that rows are aligned as bindings must be.
const sumsUnit = 4
