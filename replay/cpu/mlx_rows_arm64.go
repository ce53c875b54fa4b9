package cpu

import (
	"encoding/binary"

	"github.com/pianola-engine/pianola/internal/dtype"
)

//go:noescape
func mlxRowsNEON(y *float32, w *byte, n *[5]int, orders *byte, q *int8, d *float32, s *int16)

// mlxOrders returns the tables with which mlxRowsNEON unpacks quants: 16 bytes for 8 quants at a
// time, and then 8 int16 each.
func mlxOrders(bits int) *[128]byte {
	t := &[128]byte{}
	for c := range blockElems {
		at, first, last := c*bits/8, 0, 15
		switch {
		case bits >= 4 && c >= 16:
			first = 4*bits - 16 // the upper half has the last 16 bytes
		case bits < 4 && at >= 8:
			first = 4*bits - 16 // the last 8 bytes follow the first 8
		}
		t[2*c], t[2*c+1] = uint8(at-first), uint8(min(at-first+1, last))
		if bits < 4 && at == 7 { // the next byte is the first one that only the last 8 bytes have
			t[2*c+1] = uint8(8 - (4*bits - 16))
		}
		binary.LittleEndian.PutUint16(t[64+2*c:], uint16(-(c * bits % 8)))
	}
	return t
}

// mlxRowsOf sets the products of rows of MLX's types. They need the dot product extension.
func mlxRowsOf(o *ops) {
	for _, t := range dtype.All() {
		bits, group, scale, ok := t.MLX()
		if !ok {
			continue
		}
		kind := map[dtype.Type]int{dtype.F16: 0, dtype.BF16: 1, dtype.F32: 2}[scale]
		orders := mlxOrders(bits)
		o.rows[t] = rowsAssembled(t, func(y *float32, w *byte, rows, groups int, q *int8, d *float32, s *int16) {
			mlxRowsNEON(y, w, &[5]int{rows, groups, bits, group / blockElems, kind}, &orders[0], q, d, s)
		})
	}
}
