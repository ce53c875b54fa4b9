// Package kvrows reads the rows of KV caches as float32, whatever their element type, and finds the
// row of a position. It knows the layout of a cache from package table, and must know neither
// sessions nor devices.
package kvrows

import (
	"encoding/binary"
	"fmt"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/table"
)

// Row returns the row of a position in every head of a cache.
func Row(c *table.KVCache, position int) int {
	first, rows := int(c.First), int(c.Rows)
	if position < first {
		return position
	}
	return first + (position-first)%(rows-first)
}

// Holds reports whether a cache in which the given number of positions has been written still has
// the row of a position. Later positions overwrite the rows of a ring.
func Holds(c *table.KVCache, position, written int) bool {
	switch {
	case position < 0 || position >= written:
		return false
	case position < int(c.First):
		return true
	}
	return position >= written-int(c.Rows-c.First)
}

// Dim returns the number of elements of a row.
func Dim(c *table.KVCache) int {
	if c.Planes[1] == 0 {
		return int(c.Planes[0] / 2)
	}
	return int(c.Planes[0])
}

// Head returns the first rows of a head of a cache, [rows, Dim]. read copies bytes of the cache's
// slot.
func Head(c *table.KVCache, head, rows int, read func(offset uint64, p []byte) error) ([]float32, error) {
	if head < 0 || head >= int(c.Heads) || rows < 0 || rows > int(c.Rows) {
		return nil, fmt.Errorf("%d rows of head %d: the cache has %d rows of %d heads", rows, head, c.Rows, c.Heads)
	}
	dim := Dim(c)
	if c.Planes[1] != 0 && uint64(dim/decl.KVBlock*2) != c.Planes[1] || c.Planes[1] == 0 && c.Planes[0]%2 != 0 {
		return nil, fmt.Errorf("rows of %d bytes with %d bytes of scales have no known element type", c.Planes[0], c.Planes[1])
	}
	out := make([]float32, rows*dim)
	if rows == 0 {
		return out, nil
	}
	part := func(i uint32) ([]byte, error) {
		offset, size := c.Span(i, 0, uint32(rows))
		b := make([]byte, size)
		return b, read(offset, b)
	}
	elements, err := part(uint32(head))
	if err != nil {
		return nil, err
	}
	if c.Planes[1] == 0 {
		for i := range out {
			out[i] = dtype.F16ToF32(binary.LittleEndian.Uint16(elements[2*i:]))
		}
		return out, nil
	}
	scales, err := part(c.Heads + uint32(head))
	if err != nil {
		return nil, err
	}
	for i := range out {
		out[i] = float32(int8(elements[i])) * dtype.F16ToF32(binary.LittleEndian.Uint16(scales[i/decl.KVBlock*2:]))
	}
	return out, nil
}
