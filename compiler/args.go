package compiler

import (
	"fmt"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
)

// args are a node's kernel and what it needs beside operands. Each kernel, or
// family of kernels, has a type of its own, in a file kernel_*.go with all that the
// compiler knows of it. Args are plain values: a pass that changes some assigns the
// node new ones.
type args interface {
	// kernel returns the kernel that the node becomes a call of.
	kernel() decl.ID

	// weights returns the weights that the kernel reads, nil for absent ones, in the
	// order in which they get their slots.
	weights() []*weight

	// lower fills the command's bindings, parameters, specialisation constants and
	// patch from the node's operands and arguments.
	lower(l *lowering)
}

// sized are args of a kernel whose threadgroups have another size than the chip's
// NormThreads.
type sized interface {
	threads(l *lowering) int
}

// shrinking is implemented by the args of kernels whose threadgroups may have fewer
// SIMD groups than threads returns. If shrinks returns true, the number of SIMD
// groups is reduced until they fit in threadgroup memory.
type shrinking interface {
	shrinks() bool
}

// described are args that add something to their node's line in a dump.
type described interface {
	describe() string
}

// unweighted are args of a kernel that reads no weights.
type unweighted struct{}

func (unweighted) weights() []*weight { return nil }

// String returns the node as one line: label, kernel, operands, weights.
func (n *node) String() string {
	var b strings.Builder
	k, _ := decl.Lookup(n.kernel())
	fmt.Fprintf(&b, "%-26s %-12s", n.label(), k.Name)
	for _, o := range n.in {
		fmt.Fprintf(&b, " %s", o)
	}
	b.WriteString(" ->")
	for _, o := range n.out {
		fmt.Fprintf(&b, " %s", o)
	}
	for _, w := range n.args.weights() {
		if w != nil {
			fmt.Fprintf(&b, "  %s[%d, %d] %s", w.name, w.rows, w.cols, w.typ)
		}
	}
	if d, ok := n.args.(described); ok {
		b.WriteString(d.describe())
	}
	return b.String()
}

// String returns the operand's name, with its columns unless it is all of them.
func (o operand) String() string {
	name := o.v.name
	if o.v.place == inArena {
		name += fmt.Sprintf("@%d", o.v.offset)
	}
	if o.row > 0 {
		name += fmt.Sprintf(".%d", o.row)
	}
	if o.off == 0 && o.width == o.v.width {
		return name
	}
	return fmt.Sprintf("%s[%d:%d]", name, o.off, o.off+o.width)
}

// describeInput describes what a product does with its input.
func describeInput(input, activation uint32) string {
	name := map[uint32]string{decl.InputSiLUMul: " silu_mul", decl.InputNorm: " norm", decl.InputMerge: " merge"}[input]
	return name + describeActivation(activation)
}

// describeActivation describes an activation, unless it is the usual one.
func describeActivation(activation uint32) string {
	if activation == decl.ActivationSiLU {
		return ""
	}
	return fmt.Sprintf(" activation=%d", activation)
}

// describeAdd describes an output that is added to the previous value.
func describeAdd(add bool) string {
	if add {
		return " add"
	}
	return ""
}

// describeSplits describes parts that are made or read, unless there is one.
func describeSplits(splits int) string {
	if splits > 1 {
		return fmt.Sprintf(" splits=%d", splits)
	}
	return ""
}

// describeWindow describes a window, if there is one, and the splits of attention.
func describeWindow(window, splits int) string {
	s := ""
	if window > 0 {
		s = fmt.Sprintf(" window=%d", window)
	}
	return s + describeSplits(splits)
}
