package convert

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// read reads the stored bytes of a chunk in the order of its rows.
func (m *Model) read(t *Tensor, c *chunk) error {
	p := &t.parts[c.part]
	size, ok := t.Type.Bytes(c.elems)
	if !ok {
		return fmt.Errorf("%d elements are not a whole number of %s blocks", c.elems, t.Type)
	}
	c.buffers.raw = grow(c.buffers.raw, size)
	r := &p.rows
	if r.Tensor == "" { // every type's zeros are bytes of 0
		clear(c.buffers.raw)
		return nil
	}
	if p.inOrder() {
		at, ok := t.Type.Bytes(r.First*r.Columns + c.first)
		if !ok {
			return fmt.Errorf("element %d is not at the beginning of a %s block", c.first, t.Type)
		}
		return m.readAt(p, c.buffers.raw, at)
	}
	row, ok := t.Type.Bytes(r.Columns)
	switch first, n := c.first/r.Columns, c.elems/r.Columns; {
	case !ok:
		return fmt.Errorf("rows of %d elements are not a whole number of %s blocks", r.Columns, t.Type)
	case r.Stack > 0:
		return m.readColumns(t.Type, p, c.buffers, first, n)
	case r.Columns == 1: // columns are contiguous bytes; reading element by element would be slow
		return m.readVector(p, c.buffers.raw, first, n, row)
	default:
		for i := range n {
			if err := m.readAt(p, c.buffers.raw[i*row:][:row], r.Row(first+i)*row); err != nil {
				return err
			}
		}
		return nil
	}
}

// readVector reads n elements of a vector, by reading the whole vector.
func (m *Model) readVector(p *part, raw []byte, first, n, size uint64) error {
	all := make([]byte, p.size)
	if err := m.readAt(p, all, 0); err != nil {
		return err
	}
	for i := range n {
		at := p.rows.Row(first+i) * size
		if at+size > p.size {
			return fmt.Errorf("element %d is outside a vector of %d elements", at/size, p.size/size)
		}
		copy(raw[i*size:][:size], all[at:])
	}
	return nil
}

// readColumns reads n rows of a transposed matrix, column by column.
func (m *Model) readColumns(typ dtype.Type, p *part, b *buffers, first, n uint64) error {
	elems, size := typ.Block()
	if elems != 1 {
		return fmt.Errorf("a transposed matrix of %s is not supported", typ)
	}
	r, width := &p.rows, uint64(size)
	from, to := r.Row(first), r.Row(first+n-1)+1
	b.out = grow(b.out, (to-from)*width)
	for j := range r.Columns {
		if err := m.readAt(p, b.out, ((r.Matrix*r.Columns+r.Skip+j)*r.Stack+from)*width); err != nil {
			return err
		}
		for i := range n {
			copy(b.raw[(i*r.Columns+j)*width:][:width], b.out[(r.Row(first+i)-from)*width:])
		}
	}
	return nil
}
