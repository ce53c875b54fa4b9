package compiler

import (
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/decl"
)

// fuses returns the condition of a pass that joins commands: the chip wants it,
// and the options do not forbid it.
func fuses(wanted func(c *chip.Chip) bool) func(*state) bool {
	return func(s *state) bool { return !s.in.Options.NoFuse && wanted(s.in.Chip) }
}

// match returns the nodes from i on if they have these roles, in order, and are
// no parts of others.
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

// pairs calls f for each two nodes that follow each other and have args of the
// types A and B. Where f returns true, it has made b stand for both, and a goes.
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

// feeds reports whether b's first operand is a's only output, and nothing else
// reads it.
func (p *program) feeds(a, b *node) bool {
	return b.in[0] == a.out[0] && p.uses(a.out[0].v) == 2
}

// splice replaces n nodes from i on.
func (p *program) splice(i, n int, with ...*node) {
	p.nodes = append(p.nodes[:i:i], append(with, p.nodes[i+n:]...)...)
}

// rename makes every operand that is old, or columns of it, the same columns of
// v, which holds old's from column off on.
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

// uses counts the operands of nodes that are v or columns of it.
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

// product returns the args of a node that is a matrix product with its input as
// it is.
func (n *node) product() (productArgs, bool) {
	a, ok := n.args.(productArgs)
	return a, ok && a.input == decl.InputPlain
}
