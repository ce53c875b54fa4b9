package compiler

import (
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/decl"
)

// fuses returns the condition of a fusion pass: the chip's data enable the fusion, and the options
// do not disable fusions.
func fuses(wanted func(c *chip.Chip) bool) func(*state) bool {
	return func(s *state) bool { return !s.in.Options.NoFuse && wanted(s.in.Chip) }
}

// match returns the nodes from index i on if they have these roles, in this order, and no node is a
// part of a split one.
func (p *program) match(i int, roles ...role) []*node {
	if i+len(roles) > len(p.nodes) {
		return nil
	}
	nodes := p.nodes[i : i+len(roles)]
	for j, r := range roles {
		if nodes[j].role != r || nodes[j].suffix != "" {
			return nil
		}
	}
	return nodes
}

// pairs calls f for each two consecutive nodes a and b with args of the types A and B. If f returns
// true, it has changed b to compute both, and pairs removes a.
func pairs[A, B args](p *program, f func(a *node, aa A, b *node, ba B) bool) {
	for i := 0; i+1 < len(p.nodes); i++ {
		a, b := p.nodes[i], p.nodes[i+1]
		aa, okA := a.args.(A)
		ba, okB := b.args.(B)
		if okA && okB && f(a, aa, b, ba) {
			p.splice(i, 1)
		}
	}
}

// feeds reports whether a's first output is b's first input and no other node uses its value.
func (p *program) feeds(a, b *node) bool {
	return b.in[0] == a.out[0] && p.uses(a.out[0].v) == 2
}

// feedsHalves reports whether b's inputs are the two halves of a's first output, and no other node uses its value.
func (p *program) feedsHalves(a, b *node) bool {
	x, n := a.out[0], a.out[0].width/2
	return b.in[0] == (operand{v: x.v, width: n}) && b.in[1] == (operand{v: x.v, off: n, width: n}) && p.uses(x.v) == 3
}

// splice replaces the n nodes from index i on by others.
func (p *program) splice(i, n int, with ...*node) {
	p.nodes = append(p.nodes[:i:i], append(with, p.nodes[i+n:]...)...)
}

// rename replaces operands of old by operands of v, in which the columns of old begin at column off.
func (p *program) rename(old, v *value, off int) {
	for _, n := range p.nodes {
		for _, list := range [][]operand{n.in, n.out} {
			for i, o := range list {
				if o.v == old {
					list[i] = operand{v: v, off: o.off + off, width: o.width}
				}
			}
		}
	}
}

// uses returns the number of operands in the program that refer to v or to columns of it.
func (p *program) uses(v *value) int {
	count := 0
	for _, n := range p.nodes {
		for _, list := range [][]operand{n.in, n.out} {
			for _, o := range list {
				if o.v == v {
					count++
				}
			}
		}
	}
	return count
}

// product returns the args of a node that is a matrix product without an operation fused into its
// input.
func (n *node) product() (productArgs, bool) {
	a, ok := n.args.(productArgs)
	return a, ok && a.input == decl.InputPlain
}
