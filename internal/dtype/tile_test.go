package dtype

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestTileShapes compares the tiles and blocks of fields of the supported shapes with those that are
// made one item at a time, and tiles fields of other shapes and back.
func TestTileShapes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 9))
	check := func(q Field, p places, size, tiles int) {
		t.Helper()
		block := make([]byte, size)
		for i := range block {
			block[i] = byte(r.Uint32())
		}
		step, row := 64*q.Bits+32, r.IntN(TileRows)
		one := make([]byte, tiles*step)
		p.tile(one, step, row, q.Bits, block, tiles)
		back := make([]byte, size)
		p.untile(back, one, step, row, q.Bits, tiles)
		n, m := make([]uint8, 32*tiles), make([]uint8, 32*tiles)
		readFields(n, []places{p}, block)
		readFields(m, []places{p}, back)
		if !bytes.Equal(n, m) {
			t.Errorf("%+v: another field after tile and untile", q)
		}
		if !q.swizzled(tiles) {
			return
		}
		all := make([]byte, tiles*step)
		q.tile(all, step, row, block[q.At:], tiles)
		if !bytes.Equal(all, one) {
			t.Errorf("%+v: tile differs from the layout", q)
		}
		fields := make([]byte, size)
		q.untile(fields[q.At:], all, step, row, tiles)
		readFields(m, []places{p}, fields)
		if !bytes.Equal(n, m) {
			t.Errorf("%+v: untile differs from the layout", q)
		}
	}
	for _, f := range Forms() {
		for i, q := range f.Quants {
			if q.Bits > 0 {
				check(q, f.quants[i], f.Bytes, f.Elems/32)
			}
		}
	}
	for _, q := range []Field{{Bits: 2, At: 2, Run: 8}, {Bits: 1, At: 10, Run: 4}, {Bits: 4, At: 1, Run: 4}, {Bits: 2, At: 0, Run: 16}} {
		if q.swizzled(1) {
			t.Errorf("%+v has a method of its own", q)
		}
		check(q, q.places(32), 24, 1)
	}
}
