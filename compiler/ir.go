package compiler

import (
	"fmt"
	"io"
	"strings"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// place says where a value lives.
type place uint8

const (
	inArena place = iota // scratch, planned by liveness
	inSlot               // a slot of its own: tokens, logits, stops, KV
)

// value is a matrix of activations, [rows, width] float32, or a whole slot.
type value struct {
	name  string
	width int // elements of a row
	rows  int // rows it is compiled for
	place place
	slot  uint32 // of inSlot values

	offset uint64 // in the arena, set by pass arena
}

// bytes returns the value's size in the arena.
func (v *value) bytes() uint64 { return uint64(v.rows) * uint64(v.width) * 4 }

// operand is columns [off, off+width) of a value's rows.
type operand struct {
	v     *value
	off   int
	width int
	row   int // where a command has one row of several
}

// all returns the operand that is a whole value.
func (v *value) all() operand { return operand{v: v, width: v.width} }

// part is one source of a weight's bytes: a tensor, rows of one, or constants.
type part struct {
	tensor weights.Tensor
	data   []byte // constants; tensor is then unused

	first, rows int // of the tensor; rows 0: all of it

	plusOne bool // 1 is added to each element

	// Of a part whose rows do not follow each other: they are row first and every
	// step-th after it of the stack rows of block, or columns, if transposed. Step
	// is 0 for all others.
	step, stack, block int
	transposed         bool
}

// weight is a matrix or vector that the upload section fills: the rows of its
// parts one after another.
type weight struct {
	name       string
	rows, cols int
	typ        dtype.Type // of the elements in the slot
	layout     dtype.Layout
	parts      []part
	slot       uint32 // set by pass weights
}

// node is one kernel call before it has numbers. Which fields count depends on
// the kernel; see the functions of graph.go that make them.
type node struct {
	kernel decl.ID
	label  string
	region string // activation that the first output is, for dumps

	in    []operand // read
	out   []operand // written, and read where the kernel says so
	w     *weight   // matrix, or norm weights
	bias  *weight
	extra *weight // divisors of RoPE's frequencies, or weights of the norm of a product's input, or of the norm after another

	activation uint32 // of a product of silu_mul; see decl
	softCap    float32

	input    uint32 // what a product's input is: silu(in[0]) * in[1], in[0] normalised, or merged of in; see decl
	add      bool   // the product is added to out[0]
	heads    int
	kvHeads  int
	half     int // rotated pairs
	layer    *layerPlan
	eps      float32
	scale    float32
	delta    float32 // factor of what is added to the residual stream, 0 is as 1
	still    int     // positions that angles do not turn back
	window   int
	splits   int  // of attention, parts of argmax; 0 is as 1
	part     int  // logits of a part of argmax
	rowPatch bool // reads rows from step.Row on
	biasFrom int  // of a part of a product, the first of bias
	single   bool // one row of a program of several
	behind   int  // which, from the first on
	norm     bool // rope_attn normalises heads: w has that first
	learned  bool // and the heads' logits behind it
	share    int  // products of experts with the same row of input
}

// program is a list of nodes that becomes a range of commands.
type program struct {
	name  string
	flags table.Flags
	rows  int
	nodes []*node
	wide  bool // compiled for a chunk: matrix products are gemm
}

// layerPlan is what the passes know of one layer.
type layerPlan struct {
	index  int
	cap    int // rows of the KV cache
	window int // positions that are seen, 0: all
	sinks  int // and of those at the start
	k, v   *value
	config arch.Layer
}

// state is what passes work on.
type state struct {
	in     Input
	cfg    *arch.Config
	kv     uint32 // kind of the KV cache
	layers []*layerPlan

	programs []*program
	weights  []*weight          // in order of first use
	byName   map[string]*weight // so that tied matrices share a slot

	tokens, logits, stops *value

	stages  []uint32 // of the sampler after the penalties, decl.Stage; none without one
	sampler *value
	ranks   *value // nil unless log-probabilities are asked for
	hidden  *value // nil where nothing asks for it

	t *table.Table // grows slots early, commands at pass lower
}

// dump writes the programs as text, one node a line.
func (s *state) dump(w io.Writer) error {
	for _, p := range s.programs {
		if _, err := fmt.Fprintf(w, "program %s: %d nodes, rows %d\n", p.name, len(p.nodes), p.rows); err != nil {
			return err
		}
		for i, n := range p.nodes {
			if _, err := fmt.Fprintf(w, "%4d  %s\n", i, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// String returns the node as one line: label, kernel, operands, weights.
func (n *node) String() string {
	var b strings.Builder
	k, _ := decl.Lookup(n.kernel)
	fmt.Fprintf(&b, "%-26s %-12s", n.label, k.Name)
	for _, o := range n.in {
		fmt.Fprintf(&b, " %s", o)
	}
	b.WriteString(" ->")
	for _, o := range n.out {
		fmt.Fprintf(&b, " %s", o)
	}
	for _, w := range []*weight{n.w, n.bias, n.extra} {
		if w != nil {
			fmt.Fprintf(&b, "  %s[%d, %d] %s", w.name, w.rows, w.cols, w.typ)
		}
	}
	switch n.input {
	case decl.InputSiLUMul:
		b.WriteString(" silu_mul")
	case decl.InputNorm:
		b.WriteString(" norm")
	case decl.InputMerge:
		b.WriteString(" merge")
	}
	if n.activation != decl.ActivationSiLU {
		fmt.Fprintf(&b, " activation=%d", n.activation)
	}
	if n.add {
		b.WriteString(" add")
	}
	if n.window > 0 {
		fmt.Fprintf(&b, " window=%d", n.window)
	}
	if n.splits > 1 {
		fmt.Fprintf(&b, " splits=%d", n.splits)
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
