package arch

import (
	"fmt"
	"slices"
)

// fusable lists the sequences of roles that one tensor may contain, one role's rows after
// another. These roles then have the same tensor name.
var fusable = [][]Role{{Q, K, V}, {Gate, Up}, {SharedGate, SharedUp}}

// shared are the roles of the shared expert by those of the feed-forward block of other layers. A
// tensor may have both roles, as a layer has only one of them.
var shared = map[Role]Role{Gate: SharedGate, Up: SharedUp, Down: SharedDown}

// twin reports whether the layer has a tensor with the name of r in another role.
func (c *Config) twin(r Role, layer int) bool {
	for dense, expert := range shared {
		if r != dense && r != expert || c.names[dense] != c.names[expert] {
			continue
		}
		return c.Has(dense, layer) || c.Has(expert, layer)
	}
	return false
}

// fused checks that roles with the same tensor name may share a tensor.
func (f *form) fused(where string) error {
	all, expert := map[string]Role{}, map[string]Role{}
	for r := range roleCount {
		stem, ok := f.Tensors[roleName(r)]
		if !ok {
			continue
		}
		of := all
		if r == SharedGate || r == SharedUp || r == SharedDown {
			of = expert
		}
		first, taken := of[stem]
		if !taken {
			of[stem] = r
			continue
		}
		together := false
		for _, run := range fusable {
			together = together || first == run[0] && r == run[len(run)-1] ||
				len(run) > 2 && first == run[0] && r == run[1] && f.Tensors[roleName(run[2])] == stem
		}
		if !together {
			return fmt.Errorf("%s.tensors.%v: %q is %v's too", where, r, stem, first)
		}
	}
	return nil
}

// The names of Q's tensor in GGUF files, and of a tensor with Q, K and V, which llama.cpp accepts
// in its place.
const (
	ggufQ   = "blk.%d.attn_q"
	ggufQKV = "blk.%d.attn_qkv"
)

// joinQKV selects the tensor with Q, K and V if a GGUF file has it instead of three.
func (c *Config) joinQKV(src Source) {
	joined := tensorNames{Q: ggufQKV}
	if c.names[Q] == ggufQ && c.names[DeltaIn] == "" && !has(src, c.names.weight(Q, 0)) && has(src, joined.weight(Q, 0)) {
		c.names[Q], c.names[K], c.names[V] = ggufQKV, ggufQKV, ggufQKV
	}
}

// Rows returns the rows of its tensor that r's weight occupies: count rows beginning with first,
// of total. Q, K and V may share one tensor, and so may gate and up; other weights are whole
// tensors. The same holds for the elements of a bias.
func (c *Config) Rows(r Role, layer int) (first, count, total uint64) {
	shape := c.WantShape(r, layer)
	count, total = shape[0], shape[0]
	if !c.names.fuse(r) {
		return first, count, total
	}
	for _, run := range fusable {
		if !slices.Contains(run, r) {
			continue
		}
		total = 0
		for _, other := range run {
			if other == r {
				first = total
			}
			total += c.WantShape(other, layer)[0]
		}
	}
	return first, count, total
}

// fuse reports whether r has the same tensor name as other roles of its run.
func (t *tensorNames) fuse(r Role) bool {
	for _, run := range fusable {
		if slices.Contains(run, r) && t[run[0]] != "" && t[run[0]] == t[run[len(run)-1]] {
			return true
		}
	}
	return false
}

// sourceShape returns the shape of the tensor that contains r.
func (c *Config) sourceShape(r Role, layer int) []uint64 {
	shape := c.WantShape(r, layer)
	if r == Conv && c.convMatrix {
		return []uint64{shape[0], 1, shape[1]}
	}
	if len(shape) == 1 && !c.convMatrix {
		if column := c.columnShape(r, shape[0]); column != nil {
			return column
		}
	}
	if len(shape) == 2 {
		_, _, total := c.Rows(r, layer)
		shape[0] = total
	}
	return shape
}
