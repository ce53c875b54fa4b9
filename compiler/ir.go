package compiler

import (
	"fmt"
	"io"

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

// part is one source of a weight's bytes: a tensor, rows of a tensor, or constants.
type part struct {
	tensor weights.Tensor
	data   []byte // constants; tensor is then unused

	first, rows int // range of the tensor's rows; if rows is 0, all rows

	plusOne bool // 1 is added to each element

	// Step is not 0 if the part's rows do not follow each other. The tensor then has
	// blocks of stack rows, or of columns if it is transposed, and the part is every
	// step-th of them in one block, beginning with row first.
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

// node is one kernel call before it has offsets and slots: what it computes for
// the model, with which kernel, of what.
type node struct {
	spot
	args args

	in  []operand // read
	out []operand // written, and read where the kernel says so

	// A program of several rows has a node for each row of what takes one alone.
	single bool // this one computes one row
	behind int  // the number of that row
}

// kernel returns the node's kernel.
func (n *node) kernel() decl.ID { return n.args.kernel() }

// program is a list of nodes that becomes a range of commands. A wide program is
// compiled for a chunk of the prompt, others for a few rows.
type program struct {
	name  string
	flags table.Flags
	rows  int
	nodes []*node
	wide  bool
}

// layerPlan holds the plan of one layer.
type layerPlan struct {
	index  int
	cap    int // rows of the KV cache
	window int // number of last positions that a row sees; 0 means all
	sinks  int // number of attention sinks
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
