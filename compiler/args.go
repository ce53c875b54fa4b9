package compiler

import (
	"fmt"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
)

// args is a node's kernel with the kernel's arguments except operands, such as weights. Each kernel
// or family of kernels has its own type in a file kernel_*.go, which contains everything that the
// compiler knows about it. Args are plain values: a pass that changes them assigns a new value to
// the node.
type args interface {
	// kernel returns the kernel that the node calls.
	kernel() decl.ID

	// weights returns the weights that the kernel reads, nil for absent ones, in the
	// order in which they get their slots.
	weights() []*weight

	// lower fills the command's bindings, parameters, specialisation constants and
	// patch from the node's operands and arguments.
	lower(l *lowering)
}

// sized is implemented by the args of kernels whose threadgroup size is not the chip's NormThreads.
type sized interface {
	threads(l *lowering) int
}

// shrinking is implemented by the args of kernels whose threadgroups may have fewer
// SIMD groups than threads returns. If shrinks returns true, the number of SIMD
// groups is reduced until they fit in threadgroup memory.
type shrinking interface {
	shrinks() bool
}

// described is implemented by args that add a text to their node's line in a dump.
type described interface {
	describe() string
}

// unweighted is embedded in the args of kernels that read no weights.
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

// String returns the operand's name. It adds the columns if they are not all columns of the value.
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

// describeInput describes the operation that a product applies to its input.
func describeInput(input, activation uint32) string {
	name := map[uint32]string{decl.InputSiLUMul: " silu_mul", decl.InputNorm: " norm", decl.InputMerge: " merge", decl.InputScaled: " scaled"}[input]
	return name + describeActivation(activation)
}

// describeActivation describes an activation. It returns "" for SiLU.
func describeActivation(activation uint32) string {
	if activation == decl.ActivationSiLU {
		return ""
	}
	return fmt.Sprintf(" activation=%d", activation)
}

// describeOutput describes what a product does with its result. It returns "" if the product is stored.
func describeOutput(output uint32) string {
	return map[uint32]string{decl.OutputAdd: " add", decl.OutputGated: " gated", decl.OutputAddScaled: " add_scaled"}[output]
}

// describeAdd describes an output that is added to the previous value.
func describeAdd(add bool) string {
	if add {
		return " add"
	}
	return ""
}

// describeSplits describes the number of attention splits. It returns "" for one split.
func describeSplits(splits int) string {
	if splits > 1 {
		return fmt.Sprintf(" splits=%d", splits)
	}
	return ""
}

// describeWindow describes the attention window, if it is not 0, and the attention splits.
func describeWindow(window, splits int) string {
	s := ""
	if window > 0 {
		s = fmt.Sprintf(" window=%d", window)
	}
	return s + describeSplits(splits)
}
