package compiler

import (
	"fmt"

	"github.com/pianola-engine/pianola/chip"
)

// pass is one step from the configuration to the table.
type pass struct {
	name string
	doc  string
	run  func(*state) error
	// on says whether the chip and the options want it; nil for passes that
	// always run.
	on func(*state) bool
}

// passes in the order in which they run.
var passes = []pass{
	{name: "graph", doc: "walks the configuration and makes a node for each operation", run: (*state).graph},
	{name: "fuse-qkv", doc: "Q, K and V of one type become one matrix", run: (*state).fuseQKV,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.QKV })},
	{name: "fuse-gate-up", doc: "gate and up of one type become one matrix", run: (*state).fuseGateUp,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.GateUp })},
	{name: "fuse-rope-kv", doc: "QK norm, RoPE and KV write become one command", run: (*state).fuseRopeKV,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.RopeKV })},
	{name: "fuse-rope-attn", doc: "that command and attention become one, in programs of a few rows", run: (*state).fuseRopeAttn,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.RopeAttn })},
	{name: "fuse-silu-down", doc: "silu(gate) * up becomes the input of the down projection", run: (*state).fuseSiLUDown,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.SiLUDown })},
	{name: "fuse-experts", doc: "gate and up of each expert become one matrix, silu(gate) * up the input of the down projection", run: (*state).fuseExperts,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.GateUp && c.Fuse.SiLUDown })},
	{name: "fuse-product-add", doc: "a residual addition becomes a part of the product before it, in programs of a few rows", run: (*state).fuseProductAdd,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.ProductAdd })},
	{name: "fuse-norm-product", doc: "a norm becomes the input of the products after it, in programs of a few rows", run: (*state).fuseNormProduct,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.NormProduct })},
	{name: "fuse-residual-norm", doc: "a residual addition and the norms before and after it become one command", run: (*state).fuseResidualNorm,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.ResidualNorm })},
	{name: "split-attention", doc: "attention over a long cache is split over threadgroups and merged", run: (*state).splitAttention},
	{name: "fuse-merge-product", doc: "merging the splits becomes the input of the product after it, in programs of a few rows", run: (*state).fuseMergeProduct,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.MergeProduct })},
	{name: "split-rows", doc: "what takes one row alone becomes a command for each, in programs of a few", run: (*state).splitRows,
		on: func(s *state) bool { return s.in.Options.Draft > 0 }},
	{name: "split-argmax", doc: "the largest logit is found among those of parts of the vocabulary", run: (*state).splitArgmax,
		on: fuses(func(c *chip.Chip) bool { return c.ArgmaxPart > 0 })},
	{name: "split-input", doc: "the input of products of a chunk becomes float16 once, before them", run: (*state).splitInput,
		on: func(s *state) bool { return s.in.Chip.GEMMHalves }},
	{name: "tile-weights", doc: "chooses the layout of matrices", run: (*state).tileWeights,
		on: func(s *state) bool { return s.in.Chip.TileWeights && !s.in.Options.NoRepack }},
	{name: "split-weights", doc: "products of matrices that are larger than a slot may be are divided by rows", run: (*state).splitWeights},
	{name: "weights", doc: "plans the weight slots and the upload section", run: (*state).planWeights},
	{name: "arena", doc: "places activations in the scratch arena by liveness", run: (*state).planArena},
	{name: "limits", doc: "no slot is larger than the chip allows", run: (*state).checkSlots},
	{name: "lower", doc: "turns nodes into commands", run: (*state).lower},
	{name: "barriers", doc: "sets barriers where hazards are", run: func(s *state) error { return s.t.PlaceBarriers() }},
}

// order lists which pass must come before which, and why a pass is where it is.
var order = [][2]string{
	{"graph", "fuse-qkv"},
	{"graph", "fuse-gate-up"},
	{"graph", "fuse-experts"},
	{"fuse-experts", "tile-weights"},   // a strip of rows lies in one matrix
	{"fuse-experts", "arena"},          // removes values
	{"fuse-qkv", "fuse-rope-kv"},       // strides follow from the fused matrix
	{"fuse-gate-up", "fuse-silu-down"}, // likewise
	{"fuse-qkv", "fuse-norm-product"},  // fewer products that normalise
	{"fuse-gate-up", "fuse-norm-product"},
	{"fuse-product-add", "fuse-residual-norm"},  // which takes what is left
	{"fuse-norm-product", "fuse-residual-norm"}, // likewise
	{"fuse-silu-down", "arena"},                 // fusions remove values
	{"fuse-residual-norm", "arena"},             // likewise
	{"split-argmax", "arena"},                   // adds a value
	{"split-attention", "arena"},                // adds values
	{"split-attention", "fuse-merge-product"},   // takes its command
	{"fuse-merge-product", "arena"},             // removes values
	{"fuse-merge-product", "split-rows"},        // its products take one row
	{"fuse-rope-attn", "split-rows"},            // so does this
	{"split-rows", "split-weights"},             // parts are as what they are of
	{"split-rows", "arena"},                     // values are alive as long as their rows
	{"fuse-qkv", "split-input"},                 // its output is the input of fewer products
	{"fuse-gate-up", "split-input"},             // likewise
	{"fuse-silu-down", "split-input"},           // takes what is left
	{"split-input", "arena"},                    // adds and removes values
	{"fuse-rope-kv", "fuse-rope-attn"},          // takes its command
	{"fuse-rope-attn", "split-attention"},       // which replaces attention's output
	{"fuse-rope-kv", "split-attention"},         // attention's Q is renamed first
	{"fuse-rope-kv", "weights"},                 // joins the norm weights of Q and K
	{"fuse-qkv", "tile-weights"},                // a strip of rows lies in one matrix
	{"fuse-gate-up", "tile-weights"},            // likewise
	{"tile-weights", "split-weights"},           // which depends on the layout's size
	{"fuse-norm-product", "split-weights"},      // parts are as what they are of
	{"fuse-merge-product", "split-weights"},     // likewise
	{"split-weights", "weights"},                // slots have the parts' sizes
	{"weights", "limits"},                       // which looks at all slots
	{"arena", "limits"},                         // likewise
	{"weights", "lower"},                        // commands name slots
	{"arena", "lower"},                          // and offsets
	{"lower", "barriers"},                       // hazards are ranges of bindings
}

// apply runs the pass if it is on.
func (p *pass) apply(s *state) error {
	if p.on != nil && !p.on(s) {
		return nil
	}
	return p.run(s)
}

// PassNames returns the passes' names in order.
func PassNames() []string {
	names := make([]string, len(passes))
	for i, p := range passes {
		names[i] = p.name
	}
	return names
}

// checkOrder returns an error if the list of passes breaks a constraint, or if
// a constraint names no pass.
func checkOrder(list []pass) error {
	at := map[string]int{}
	for i, p := range list {
		at[p.name] = i
	}
	for _, o := range order {
		a, okA := at[o[0]]
		b, okB := at[o[1]]
		if !okA || !okB {
			return fmt.Errorf("compiler: order %v names no pass", o)
		}
		if a >= b {
			return fmt.Errorf("compiler: pass %s must come before %s", o[0], o[1])
		}
	}
	return nil
}
