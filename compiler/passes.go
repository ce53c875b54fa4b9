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
	// on reports whether the chip and the options enable the pass. nil means always.
	on func(*state) bool
}

// passes lists all passes in the order in which they run.
var passes = []pass{
	{name: "graph", doc: "creates one node per operation of the model", run: (*state).graph},
	{name: "fuse-qkv", doc: "fuses the Q, K and V products if their matrices have one type", run: (*state).fuseQKV,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.QKV })},
	{name: "fuse-gate-up", doc: "fuses the gate and up products if their matrices have one type", run: (*state).fuseGateUp,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.GateUp })},
	{name: "fuse-rope-kv", doc: "fuses QK norm, RoPE and KV write", run: (*state).fuseRopeKV,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.RopeKV })},
	{name: "fuse-rope-attn", doc: "fuses the result of fuse-rope-kv with attention, except in programs of a chunk", run: (*state).fuseRopeAttn,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.RopeAttn })},
	{name: "fuse-gated", doc: "fuses silu(gate) * up into the gate_up product, except in programs of a chunk", run: (*state).fuseGated,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.Gated && !c.ActQ8 })},
	{name: "fuse-silu-down", doc: "fuses silu(gate) * up into the down product", run: (*state).fuseSiLUDown,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.SiLUDown })},
	{name: "fuse-experts", doc: "fuses the gate and up products of experts, and silu(gate) * up into their down product", run: (*state).fuseExperts,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.GateUp && c.Fuse.SiLUDown })},
	{name: "fuse-product-add", doc: "fuses a residual addition into the product before it, except in programs of a chunk", run: (*state).fuseProductAdd,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.ProductAdd })},
	{name: "fuse-scaled", doc: "divides a norm between the product before it and the products after it, except in programs of a chunk", run: (*state).fuseScaled,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.Scaled && !c.ActQ8 })},
	{name: "fuse-norm-product", doc: "fuses a norm into the products after it, except in programs of a chunk", run: (*state).fuseNormProduct,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.NormProduct })},
	{name: "fuse-residual-norm", doc: "fuses a residual addition with the norm before or after it", run: (*state).fuseResidualNorm,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.ResidualNorm })},
	{name: "split-attention", doc: "splits attention over a long cache among threadgroups, and merges the results", run: (*state).splitAttention},
	{name: "fuse-merge-product", doc: "fuses the merging of splits into the product after it, except in programs of a chunk", run: (*state).fuseMergeProduct,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.MergeProduct })},
	{name: "split-rows", doc: "replaces nodes whose kernels compute one row by one node per row, in the program verify", run: (*state).splitRows,
		on: func(s *state) bool { return s.in.Options.Draft > 0 }},
	{name: "split-argmax", doc: "finds the largest logit of each part of the vocabulary before the largest of all", run: (*state).splitArgmax,
		on: fuses(func(c *chip.Chip) bool { return c.ArgmaxPart > 0 })},
	{name: "tile-weights", doc: "selects the layout of matrices", run: (*state).tileWeights,
		on: func(s *state) bool { return s.in.Chip.TileWeights && !s.in.Options.NoRepack }},
	{name: "split-weights", doc: "splits products whose matrix is larger than a slot may be, by rows of the matrix", run: (*state).splitWeights},
	{name: "fuse-gated-single", doc: "moves silu(gate) * up from the product that reads it to the one before, if both compute one row in the form for it", run: (*state).fuseGatedSingle,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.Gated && c.GEMVSingle > 0 })},
	{name: "split-input", doc: "converts the input of products to float16 before them, in programs of a chunk", run: (*state).splitInput,
		on: func(s *state) bool { return s.in.Chip.GEMMHalves > 0 }},
	{name: "fuse-rope-tile", doc: "fuses the result of fuse-rope-kv with attention whose result becomes float16, in programs of one row or of rows of different sequences", run: (*state).fuseRopeTile,
		on: fuses(func(c *chip.Chip) bool { return c.Fuse.RopeAttn && c.GEMMHalves > 0 })},
	{name: "fuse-few", doc: "fuses norms and silu(gate) * up between products into the products, in programs of up to 8 rows", run: (*state).fuseFew,
		on: (*state).forms},
	{name: "split-columns", doc: "divides the columns of products among threadgroups whose sums the norm after them adds", run: (*state).splitColumns, on: (*state).segments},
	{name: "group-experts", doc: "multiplies all rows of an expert at once, in programs of a chunk", run: (*state).groupExperts, on: (*state).groupsExperts},
	{name: "weights", doc: "plans the weight slots and the upload section", run: (*state).planWeights},
	{name: "arena", doc: "places activations in the scratch arena by liveness", run: (*state).planArena},
	{name: "limits", doc: "checks that no slot is larger than the chip allows", run: (*state).checkSlots},
	{name: "lower", doc: "converts nodes to commands", run: (*state).lower},
	{name: "barriers", doc: "sets a barrier before each command that has a hazard, and marks what commands may read before their barriers", run: (*state).placeBarriers},
}

// order lists pairs of passes, with the reason why the first of a pair must run before the second.
var order = [][2]string{
	{"graph", "fuse-qkv"},
	{"graph", "fuse-gate-up"},
	{"graph", "fuse-experts"},
	{"fuse-experts", "tile-weights"},        // a strip of tiles must lie in one matrix
	{"fuse-experts", "arena"},               // fuse-experts removes values
	{"fuse-qkv", "fuse-rope-kv"},            // the strides follow from the fused matrix
	{"fuse-gate-up", "fuse-silu-down"},      // the strides follow from the fused matrix
	{"fuse-gate-up", "fuse-gated"},          // fuse-gated changes the product that fuse-gate-up makes
	{"fuse-gated", "fuse-silu-down"},        // fuse-silu-down handles the remaining activations
	{"fuse-gated", "arena"},                 // fuse-gated removes values
	{"fuse-silu-down", "fuse-gated-single"}, // fuse-gated-single changes what fuse-silu-down makes
	{"split-weights", "fuse-gated-single"},  // parts of a product have no gates of their own
	{"tile-weights", "fuse-gated-single"},   // the form depends on the layout
	{"fuse-gated-single", "arena"},          // fuse-gated-single adds and removes values
	{"fuse-qkv", "fuse-scaled"},             // a norm may have one reader that adds
	{"fuse-product-add", "fuse-scaled"},     // fuse-scaled changes products that add
	{"fuse-scaled", "fuse-norm-product"},    // fuse-norm-product handles the remaining norms
	{"fuse-scaled", "split-weights"},        // parts of a product copy its args
	{"fuse-scaled", "split-rows"},           // all rows of a program have partial sums
	{"fuse-scaled", "arena"},                // fuse-scaled adds and removes values
	{"fuse-qkv", "fuse-norm-product"},       // fewer products repeat the norm
	{"fuse-gate-up", "fuse-norm-product"},
	{"fuse-product-add", "fuse-residual-norm"},  // fuse-residual-norm handles the remaining additions
	{"fuse-norm-product", "fuse-residual-norm"}, // fuse-residual-norm handles the remaining norms
	{"fuse-silu-down", "arena"},                 // fuse-silu-down removes values
	{"fuse-residual-norm", "arena"},             // fuse-residual-norm removes values
	{"split-argmax", "arena"},                   // split-argmax adds a value
	{"split-attention", "arena"},                // split-attention adds values
	{"split-attention", "fuse-merge-product"},   // fuse-merge-product fuses the node that split-attention adds
	{"fuse-merge-product", "arena"},             // fuse-merge-product removes values
	{"fuse-merge-product", "split-rows"},        // products that merge splits compute one row
	{"fuse-rope-attn", "split-rows"},            // attention fused with RoPE computes one row
	{"split-rows", "split-weights"},             // parts of a product copy its args
	{"split-rows", "arena"},                     // all nodes of a value's rows count for its lifetime
	{"fuse-qkv", "split-input"},                 // fewer products read the converted input
	{"fuse-gate-up", "split-input"},             // fewer products read the converted input
	{"fuse-silu-down", "split-input"},           // split-input handles the remaining activations
	{"tile-weights", "split-input"},             // the kernel depends on the layout
	{"split-weights", "split-input"},            // split-weights splits only products of float32 activations
	{"fuse-experts", "group-experts"},           // fuse-experts changes expert_gemv
	{"tile-weights", "group-experts"},           // the kernel depends on the layout
	{"group-experts", "arena"},                  // group-experts adds values
	{"split-input", "arena"},                    // split-input adds and removes values
	{"fuse-rope-kv", "fuse-rope-attn"},          // fuse-rope-attn fuses the node that fuse-rope-kv adds
	{"fuse-rope-kv", "fuse-rope-tile"},          // fuse-rope-tile fuses the node that fuse-rope-kv adds
	{"split-input", "fuse-rope-tile"},           // split-input lets attention convert its result
	{"split-input", "fuse-few"},                 // fuse-few fuses the conversions that split-input adds
	{"fuse-few", "split-columns"},               // fuse-few fuses norms that split-columns would change
	{"split-columns", "arena"},                  // split-columns replaces values
	{"fuse-few", "arena"},                       // fuse-few adds and removes values
	{"fuse-few", "weights"},                     // fuse-few changes which node reads the weights of a norm
	{"fuse-rope-tile", "weights"},               // fuse-rope-tile joins weights of heads
	{"fuse-rope-tile", "arena"},                 // fuse-rope-tile removes values
	{"fuse-rope-attn", "split-attention"},       // split-attention replaces the output of attention
	{"fuse-rope-kv", "split-attention"},         // fuse-rope-kv renames the Q operand of attention
	{"fuse-rope-kv", "weights"},                 // fuse-rope-kv joins the norm weights of Q and K
	{"fuse-qkv", "tile-weights"},                // a strip of tiles must lie in one matrix
	{"fuse-gate-up", "tile-weights"},            // a strip of tiles must lie in one matrix
	{"tile-weights", "split-weights"},           // the size of a matrix depends on its layout
	{"fuse-norm-product", "split-weights"},      // parts of a product copy its args
	{"fuse-merge-product", "split-weights"},     // parts of a product copy its args
	{"split-weights", "weights"},                // each part gets its own slot
	{"weights", "limits"},                       // limits checks the slots that weights adds
	{"arena", "limits"},                         // limits checks the slot that arena adds
	{"weights", "lower"},                        // commands contain the slots of weights
	{"arena", "lower"},                          // commands contain the offsets of activations
	{"lower", "barriers"},                       // hazards follow from the commands' bindings
}

// apply runs the pass if it is enabled.
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

// checkOrder returns an error if the list of passes violates a constraint in order, or if a
// constraint contains an unknown name.
func checkOrder(list []pass) error {
	at := map[string]int{}
	for i, p := range list {
		at[p.name] = i
	}
	for _, o := range order {
		a, okA := at[o[0]]
		b, okB := at[o[1]]
		if !okA || !okB {
			return fmt.Errorf("compiler: order %v: unknown pass", o)
		}
		if a >= b {
			return fmt.Errorf("compiler: pass %s must come before %s", o[0], o[1])
		}
	}
	return nil
}
