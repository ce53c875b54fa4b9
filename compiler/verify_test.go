package compiler

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
)

// verify checks the conditions that hold after every pass: operands are within their values, every
// value is written before it is read, and nodes have as many operands and weights as their kernels
// have bindings. After pass arena, values that are alive at the same time must not overlap.
func verify(s *state, after string) error {
	placed := !slices.ContainsFunc(s.groups()[0][0].nodes, func(n *node) bool {
		return slices.ContainsFunc(n.out, func(o operand) bool { return o.v.place == inArena && o.v.slot == 0 })
	})
	for _, g := range s.groups() {
		written := map[*value]bool{}
		for _, p := range g {
			for i, n := range p.nodes {
				if err := verifyNode(n, written); err != nil {
					return fmt.Errorf("after %s: %s: node %d (%s): %w", after, p.name, i, n.label(), err)
				}
			}
		}
		if placed {
			if err := verifyArena(g); err != nil {
				return fmt.Errorf("after %s: %w", after, err)
			}
		}
	}
	seen := map[any]bool{}
	for _, p := range s.programs {
		clear(seen)
		for _, n := range p.nodes {
			var key any = n.spot
			if after == "barriers" {
				key = n.label() // formatting it after each pass would take most of the time
			}
			if seen[key] {
				return fmt.Errorf("after %s: the label %s %s occurs twice", after, p.name, n.label())
			}
			seen[key] = true
		}
	}
	if len(s.t.Cmds) > 0 {
		want := 0
		for _, p := range s.programs {
			want += len(p.nodes)
		}
		if len(s.t.Cmds) != want {
			return fmt.Errorf("after %s: %d commands for %d nodes", after, len(s.t.Cmds), want)
		}
	}
	if after == "barriers" {
		if faults := s.t.Validate(); len(faults) > 0 {
			return fmt.Errorf("after %s: %w", after, faults[0])
		}
	}
	return nil
}

func verifyNode(n *node, written map[*value]bool) error {
	k, ok := decl.Lookup(n.kernel())
	if !ok {
		return fmt.Errorf("kernel %d is unknown", n.kernel())
	}
	for _, operands := range [][]operand{n.in, n.out} {
		for _, o := range operands {
			if o.off < 0 || o.width < 0 || o.off+o.width > o.v.width {
				return fmt.Errorf("operand %s is past the %d columns of its value", o, o.v.width)
			}
		}
	}
	bound := len(n.in) + len(n.out)
	for _, w := range n.args.weights() {
		if w != nil {
			bound++
			rows, elems := 0, 0
			for _, p := range w.parts {
				if p.data != nil {
					elems += len(p.data) / 4
					continue
				}
				if p.rows > 0 {
					all := 1
					for _, d := range p.tensor.Shape {
						all *= int(d)
					}
					step, from := max(p.step, 1), p.block*p.stack*w.cols
					if p.apart > 0 {
						from = p.block * p.apart
					}
					if last := p.first + (p.rows-1)*step; p.first < 0 || step > 1 && last >= p.stack || from+(last+1)*w.cols > all {
						return fmt.Errorf("weight %s: rows %d to %d of block %d of %s", w.name, p.first, last, p.block, p.tensor.Name)
					}
					elems += p.rows * w.cols
					continue
				}
				n := 1
				for _, d := range p.tensor.Shape[1:] {
					n *= int(d)
				}
				if p.first < 0 || p.first+p.count() > int(p.tensor.Shape[0]) {
					return fmt.Errorf("weight %s: rows %d to %d of %s", w.name, p.first, p.first+p.count(), p.tensor.Name)
				}
				elems += n * p.count()
				rows += p.count()
			}
			if elems != w.rows*w.cols {
				return fmt.Errorf("weight %s: parts have %d elements, want %d x %d", w.name, elems, w.rows, w.cols)
			}
		}
	}
	// Kernels bind each operand once; optional bindings may be absent.
	optional := 0
	for _, b := range k.Bindings {
		if b.If != "" {
			optional++
		}
	}
	if bound > len(k.Bindings) || bound < len(k.Bindings)-optional {
		return fmt.Errorf("%d operands and weights for the %d bindings of %s", bound, len(k.Bindings), k.Name)
	}
	for _, o := range n.in {
		if o.v.place == inArena && !written[o.v] {
			return fmt.Errorf("%s is read before it is written", o)
		}
	}
	product, isProduct := n.args.(productArgs)
	sum, _ := n.args.(expertSumArgs)
	readsOut := product.adds() || sum.add || slices.ContainsFunc(k.Bindings, func(b decl.Binding) bool { return b.Role == decl.ReadWrite })
	for i, o := range n.out {
		if readsOut && i == 0 && o.v.place == inArena && !written[o.v] {
			return fmt.Errorf("%s is updated before it is written", o)
		}
		written[o.v] = true
	}
	if isProduct {
		return verifyProduct(n, product)
	}
	return nil
}

// verifyProduct checks that a product's operands and weights fit its matrix.
func verifyProduct(n *node, a productArgs) error {
	if (a.input == decl.InputNorm) != (a.norm != nil) || a.norm != nil && a.norm.cols != a.w.cols {
		return fmt.Errorf("the norm's weights %v do not fit input %d", a.norm, a.input)
	}
	if (a.output == decl.OutputAddScaled) != (a.next != nil) || a.next != nil && (a.next.cols != a.w.rows || n.out[1].width != a.w.rows) {
		return fmt.Errorf("the weights %v of the norm that follows do not fit output %d", a.next, a.output)
	}
	if sums := (a.sums + 3) / 4 * 4; a.input == decl.InputScaled && n.in[1].width != sums {
		return fmt.Errorf("%d partial sums in %s", a.sums, n.in[1])
	}
	columns := n.in[0].width
	if a.input == decl.InputMerge {
		columns /= a.merge.splits
	}
	rows := n.out[0].width
	if a.output == decl.OutputGated {
		rows *= 2
	}
	if columns != a.w.cols || rows != a.w.rows {
		return fmt.Errorf("[%d] -> [%d] through a matrix [%d, %d]", n.in[0].width, n.out[0].width, a.w.rows, a.w.cols)
	}
	if a.bias != nil && a.bias.cols != a.w.rows && (a.bias.cols < a.biasFrom+a.w.rows || !strings.Contains(n.suffix, ".part")) {
		return fmt.Errorf("a bias of %d for %d rows from %d on", a.bias.cols, a.w.rows, a.biasFrom)
	}
	return nil
}

// verifyArena compares all pairs of values, which the planner does not.
func verifyArena(group []*program) error {
	list := lifetimes(group)
	for i, a := range list {
		for _, b := range list[:i] {
			if a.first > b.last || b.first > a.last {
				continue
			}
			if a.v.offset < b.v.offset+b.v.bytes() && b.v.offset < a.v.offset+a.v.bytes() {
				return fmt.Errorf("%s and %s are alive at the same time and overlap", a.v.name, b.v.name)
			}
		}
	}
	return nil
}
