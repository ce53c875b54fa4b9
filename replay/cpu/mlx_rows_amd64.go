package cpu

import "github.com/pianola-engine/pianola/internal/dtype"

// mlxPacking describes the packing of an MLX type for mlxRowsAVX2, which relies on the offsets of the
// fields. A vector unpacks columns 0 to 7 and 16 to 23 of a block of 32, and another one the
// remaining columns.
type mlxPacking struct {
	orders  [2][32]uint8  // byte that each byte of a vector of words takes from its half's 16 bytes
	factors [2][16]uint16 // power of two that moves a quant to the upper end of its word
	shift   uint64        // from there to the lower end
	blocks  uint64        // blocks of 32 in a group
	bytes   uint64        // of a block's quants
	kind    uint64        // of scales and biases: 0 float16, 1 bfloat16, 2 float32
}

func newMLXPacking(bits, group int, scale dtype.Type) *mlxPacking {
	m := &mlxPacking{
		shift: uint64(16 - bits), blocks: uint64(group / blockElems), bytes: uint64(4 * bits),
		kind: map[dtype.Type]uint64{dtype.F16: 0, dtype.BF16: 1, dtype.F32: 2}[scale],
	}
	for c := range blockElems {
		// The upper half has columns 16 to 31. From four bits on it loads the last 16 bytes.
		half, first := c/16, 0
		if half == 1 && bits >= 4 {
			first = 4*bits - 16
		}
		vector, word := c%16/8, c/16*8+c%8
		m.orders[vector][2*word] = uint8(c*bits/8 - first)
		m.orders[vector][2*word+1] = uint8(min(c*bits/8-first+1, 15))
		m.factors[vector][word] = 1 << (16 - bits - c*bits%8)
	}
	return m
}

//go:noescape
func mlxRowsAVX2(y *float32, w *byte, rows, groups int, q *int8, d *float32, s *int16, how *mlxPacking)

// mlxRowsOf sets the products of rows of MLX's types.
func mlxRowsOf(o *ops) {
	for _, t := range dtype.All() {
		if bits, group, scale, ok := t.MLX(); ok {
			how := newMLXPacking(bits, group, scale)
			o.rows[t] = rowsAssembled(t, func(y *float32, w *byte, rows, groups int, q *int8, d *float32, s *int16) {
				mlxRowsAVX2(y, w, rows, groups, q, d, s, how)
			})
		}
	}
}
