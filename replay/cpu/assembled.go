//go:build amd64 || arm64

package cpu

import "github.com/pianola-engine/pianola/internal/dtype"

// blocksFunc computes len(y) dot products of rows of blocks of one type. q, d and s are the
// fields of [input]; s may be nil if the type has no minimum.
type blocksFunc func(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

// rowsAssembled returns the rowsFunc of a type that computes with the assembly function rows.
func rowsAssembled(t dtype.Type, rows blocksFunc) rowsFunc {
	elems, size := t.Block()
	mins := hasMinimum(t)
	return func(y []float32, w []byte, x *input) {
		blocks := len(x.d) * blockElems / elems
		if len(y) == 0 || blocks == 0 {
			clear(y)
			return
		}
		w, q, d := w[:len(y)*blocks*size], x.q[:blocks*elems], x.d[:blocks*elems/blockElems]
		var s *int16
		if mins {
			s = &x.s[:blocks*elems/16][0]
		}
		rows(&y[0], &w[0], len(y), blocks, &q[0], &d[0], s)
	}
}

// tiledRun computes a tiled product whose lengths have been checked: y, w and the memory of x are
// long enough for the assembly, and the numbers of blocks, strips and rows are not 0. A strip has
// strip bytes.
type tiledRun func(y []float32, yStride int, w []byte, strips, strip, blocks int, x *tiledInput)

// tiledChecked returns the tiledFunc of a type that checks the lengths and then calls run.
func tiledChecked(t dtype.Type, run tiledRun) tiledFunc {
	elems, _ := t.Block()
	size, _ := dtype.Tiled16.Bytes(t, dtype.TileRows, uint64(elems))
	return func(y []float32, yStride int, w []byte, strips int, x *tiledInput) {
		if strips <= 0 || x.rows <= 0 {
			return
		}
		blocks := x.in / elems
		if blocks == 0 {
			for j := range x.rows {
				clear(y[j*yStride:][:dtype.TileRows*strips])
			}
			return
		}
		strip := blocks * int(size)
		_ = x.mem[:(x.rows-1)*x.stride+x.in+x.in/4]
		run(y[:(x.rows-1)*yStride+dtype.TileRows*strips], yStride, w[:strips*strip], strips, strip, blocks, x)
	}
}
