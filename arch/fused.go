package arch

import "fmt"

// fusable are the runs of roles that one tensor may have, its rows those of one
// role after another: their names are then the same.
var fusable = [][]Role{{Q, K, V}, {Gate, Up}}

// fused verifies that tensors with one name are ones that may be one.
func (f *form) fused(where string) error {
	of := map[string]Role{}
	for r := range roleCount {
		stem, ok := f.Tensors[roleName(r)]
		if !ok {
			continue
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

// Rows returns which rows of its tensor r's weight is: count of them from first
// on, of total. Q, K and V may be one tensor, and so may gate and up; others are
// the whole of theirs. A bias has as many elements.
func (c *Config) Rows(r Role) (first, count, total uint64) {
	shape := c.WantShape(r)
	count, total = shape[0], shape[0]
	for _, run := range fusable {
		in := false
		for _, other := range run {
			in = in || other == r
		}
		if !in || c.names[run[0]] == "" || c.names[run[0]] != c.names[run[len(run)-1]] {
			continue
		}
		total = 0
		for _, other := range run {
			if other == r {
				first = total
			}
			total += c.WantShape(other)[0]
		}
	}
	return first, count, total
}

// sourceShape returns the shape of r's tensor.
func (c *Config) sourceShape(r Role) []uint64 {
	shape := c.WantShape(r)
	if len(shape) == 2 {
		_, _, total := c.Rows(r)
		shape[0] = total
	}
	return shape
}
