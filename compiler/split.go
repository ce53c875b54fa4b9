package compiler

import (
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/table"
)

// SlotError reports that a slot is larger than the chip allows.
type SlotError struct {
	Slot        string
	Size, Limit uint64 // bytes
	Chip        string
	Hint        string // advice for the user, or ""
}

// Error implements error.
func (e *SlotError) Error() string {
	text := fmt.Sprintf("compiler: slot %s: %d bytes are more than the limit of %d of chip %s", e.Slot, e.Size, e.Limit, e.Chip)
	if e.Hint != "" {
		text += ": " + e.Hint
	}
	return text
}

// splitUnit is the unit of the number of rows in each part of a matrix except the last, so that no
// strip of tiles and no SIMD group's rows cross a part.
const splitUnit = 64

// splitWeights splits products whose matrix is larger than the largest slot. Each part is a product
// with some rows of the matrix and writes the corresponding columns of the output. The results do
// not change.
func (s *state) splitWeights() error {
	limit := s.in.Chip.LargestSlot()
	for _, p := range s.programs {
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			a, ok := n.args.(productArgs)
			if !ok || s.sharesEmbedding(a.w) {
				continue
			}
			rows := partRows(a.w, limit)
			// A part must not overwrite the input of the next part.
			if rows == 0 || slices.ContainsFunc(n.in, func(o operand) bool { return o.v == n.out[0].v }) {
				continue
			}
			parts := s.parts(n, a, rows)
			p.splice(i, 1, parts...)
			i += len(parts) - 1
		}
	}
	return nil
}

// partRows returns the number of rows per part if a matrix must be split to fit slots of limit
// bytes; the parts have about equal sizes. It returns 0 if the matrix fits in one slot, or if it
// cannot be split, which pass limits reports.
func partRows(w *weight, limit uint64) int {
	size, ok := w.layout.Bytes(w.typ, uint64(w.rows), uint64(w.cols))
	if !ok || size <= limit {
		return 0
	}
	unit := size / uint64(w.rows) * splitUnit // size includes the padding of strips
	rows := int(limit/max(unit, 1)) * splitUnit
	if rows == 0 {
		return 0
	}
	return roundUp(ceil(w.rows, ceil(w.rows, rows)), splitUnit)
}

// sharesEmbedding reports whether the embedding look-up reads w too. Such a matrix cannot be split,
// because the look-up reads a single matrix.
func (s *state) sharesEmbedding(w *weight) bool {
	for _, p := range s.programs {
		for _, n := range p.nodes {
			if a, ok := n.args.(embedArgs); ok && a.w == w {
				return true
			}
		}
	}
	return false
}

// parts splits a product into products with the given number of rows each.
func (s *state) parts(n *node, whole productArgs, rows int) (list []*node) {
	for first := 0; first < whole.w.rows; first += rows {
		suffix := fmt.Sprintf(".part%d", len(list))
		a := whole
		a.w = s.share(whole.w.slice(whole.w.name+suffix, first, min(rows, whole.w.rows-first)))
		a.biasFrom += first
		part := *n
		part.spot, part.args = n.with(suffix), a
		o := n.out[0]
		part.in, part.out = slices.Clone(n.in), []operand{{v: o.v, off: o.off + first, width: a.w.rows}}
		list = append(list, &part)
	}
	return list
}

// slice returns the weight with rows [first, first+rows) of a matrix.
func (w *weight) slice(name string, first, rows int) *weight {
	out := &weight{name: name, rows: rows, cols: w.cols, typ: w.typ, layout: w.layout}
	for _, p := range w.parts {
		n := p.count()
		from, to := max(first, 0), min(first+rows, n)
		if from < to {
			q := p
			q.first, q.rows = p.first+from, to-from
			out.parts = append(out.parts, q)
		}
		first -= n
		if first+rows <= 0 {
			break
		}
	}
	return out
}

// count returns the number of rows in a part.
func (p *part) count() int {
	if p.rows > 0 {
		return p.rows
	}
	return int(p.tensor.Shape[0])
}

// source returns the byte range of the tensor that a part of weight w covers.
func (p *part) source(w *weight) (offset, size uint64) {
	if p.rows == 0 {
		return 0, p.tensor.Size
	}
	cols := uint64(w.cols)
	if len(p.tensor.Shape) == 1 {
		cols = 1 // elements of a vector
	}
	row, _ := dtype.Type.Bytes(p.tensor.Type, cols) // matrix has checked that rows are whole blocks
	return uint64(p.first) * row, uint64(p.rows) * row
}

// checkSlots returns an error for the first slot that is larger than the chip
// allows.
func (s *state) checkSlots() error {
	limit := s.in.Chip.LargestSlot()
	for i := range s.t.Slots {
		sl := &s.t.Slots[i]
		if sl.Size <= limit {
			continue
		}
		e := &SlotError{Slot: sl.Name, Size: sl.Size, Limit: limit, Chip: s.in.Chip.Name}
		switch {
		case sl.Kind == table.SlotKV:
			e.Hint = "use a shorter context"
		case sl.Kind == table.SlotWeight && (sl.Name == "embed" || sl.Name == "inputs.embed"):
			e.Hint = "the embedding cannot be split; use a type with fewer bits"
		}
		return e
	}
	return nil
}
