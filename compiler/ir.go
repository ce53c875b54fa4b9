package compiler

import (
	"fmt"
	"io"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/recurrent"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// place is the kind of memory that holds a value.
type place uint8

const (
	inArena place = iota // in the scratch arena, planned by liveness
	inSlot               // in its own slot: tokens, logits, stops, KV
)

// value is a matrix of activations, [rows, width] float32, or a whole slot.
type value struct {
	name  string
	width int // elements of a row
	rows  int // largest number of rows
	place place
	slot  uint32 // for inSlot values

	offset uint64 // in the arena, set by pass arena
}

// bytes returns the value's size in the arena.
func (v *value) bytes() uint64 { return uint64(v.rows) * uint64(v.width) * 4 }

// operand is columns [off, off+width) of a value's rows.
type operand struct {
	v     *value
	off   int
	width int
	row   int // the row, in a node for one row of a program of several
}

// all returns the operand with all columns of the value.
func (v *value) all() operand { return operand{v: v, width: v.width} }

// part is one source of a weight's bytes: a tensor, rows of a tensor, or constants.
type part struct {
	tensor weights.Tensor
	data   []byte // constants instead of a tensor

	first, rows int // range of the tensor's rows; if rows is 0, all rows

	plusOne bool // 1 is added to each element

	// If step is not 0, the part's rows are not consecutive. The tensor then consists of
	// blocks of stack rows (columns if it is transposed), and the part is every step-th row
	// of one block, starting with row first.
	step, stack, block int
	apart              int // elements from one block to the next, if there are others between
	transposed         bool
}

// weight is a matrix or vector in a slot. The upload section fills it with the rows of its parts,
// one part after another.
type weight struct {
	name       string
	rows, cols int
	typ        dtype.Type // of the elements in the slot
	layout     dtype.Layout
	parts      []part
	slot       uint32 // set by pass weights
}

// node is one kernel call whose operands are values. Pass lower replaces the values by slots and
// offsets.
type node struct {
	spot
	args args

	in  []operand // read
	out []operand // written, and also read if the kernel's declaration says so

	// In a program of several rows, pass split-rows replaces nodes whose kernels compute a
	// single row by one node per row.
	single bool // the node computes one row
	behind int  // index of that row
}

// kernel returns the node's kernel.
func (n *node) kernel() decl.ID { return n.args.kernel() }

// program is a list of nodes that become a range of commands. A wide program has the kernels that
// compute a chunk of the prompt. Other programs compute one row, or the few rows of a draft.
type program struct {
	name  string
	flags table.Flags
	rows  int
	nodes []*node
	wide  bool
}

// short reports whether the program prefills a short chunk.
func (p *program) short() bool {
	return p.name == table.ProgramPrefillFew || p.name == table.ProgramPrefillFewest
}

// layerPlan holds the plan of one layer.
type layerPlan struct {
	index            int
	cap              int    // rows of the KV cache
	window           int    // number of last positions that a row sees; 0 means all
	sinks            int    // number of attention sinks
	headDim, kvHeads int    // elements of a head, and heads of K and V
	tables           uint32 // offset of the layer's page tables in the step block of a pooled table
	stateTables      uint32 // offset of those of its states
	k, v             *value
	state            *value // of the convolution of a layer with recurrent state, which has no K and V
	matrix           *value // of the gated delta rule or the selective state space
	config           arch.Layer
}

// state is the state of a compilation, on which the passes work.
type state struct {
	in     Input
	cfg    *arch.Config
	kv     uint32 // element type of the KV cache, a constant of package decl
	layers []*layerPlan

	programs []*program
	weights  []*weight          // in order of first use
	byName   map[string]*weight // by name, so that tied matrices share a slot

	pool  *sequence.Layout // of a pooled table, or nil
	kinds []poolKind       // kinds of layers of a pooled table

	ring recurrent.Ring // entries of slots with recurrent state; zero without such layers

	tokens, logits, stops *value

	stages  []uint32 // the sampler's stages after the penalties, each a decl.Stage; empty without a sampler
	sampler *value
	ranks   *value // nil without Options.LogProbs
	hidden  *value // nil without Options.Hidden

	t *table.Table // passes add slots; pass lower adds the commands
}

// dump writes the programs as text, one node per line.
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
