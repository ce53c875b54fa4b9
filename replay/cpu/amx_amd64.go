package cpu

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// hasAMX reports whether the processor has the AMX instructions for int8 and the system lets the
// process use them. The answer of a system that does is the same for the life of the process.
func hasAMX() bool {
	x := &cpu.X86
	return hasAVX512() && x.HasAMXTile && x.HasAMXInt8 && allowTiles()
}

// tiledAMX returns the tiled products for a processor that hasAMX.
func tiledAMX() map[dtype.Type]tiledFunc {
	products := map[dtype.Type]tiledFunc{}
	for t, loops := range loops512() {
		products[t] = tiledTiles(t, loops)
	}
	shareTiles(products)
	return products
}

// amxLoop computes strips of 16 outputs for 1 to [amxRows] rows of activations. shape is the
// shape of the tiles for that many rows. The other parameters are those of [tiledLoop].
//
// The function configures the tiles when it begins and releases them when it ends, so tiles are
// never in use while Go code runs. The Go runtime does not preempt assembly functions, and the
// system saves the tiles of a thread that it interrupts.
type amxLoop func(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

const (
	amxRows  = 64 // largest number of rows of activations of an amxLoop
	tileRows = 16 // number of rows of activations in a tile
	amxLeast = 8  // fewer rows of activations are faster with VNNI
)

// tileShape is the operand of LDTILECFG.
type tileShape struct {
	palette, startRow uint8
	_                 [14]byte
	rowBytes          [16]uint16
	rows              [16]uint8
}

// amxShape returns the shape of the tiles for a group of rows of activations: tiles 0 to 3 are
// integer sums, 4 and 5 activations, 6 and 7 weights. A tile of weights has 32 columns, or 16 if
// halves is set.
func amxShape(rows int, halves bool) tileShape {
	columns := blockElems
	if halves {
		columns /= 2
	}
	s := tileShape{palette: 1}
	for i := range 8 {
		s.rowBytes[i], s.rows[i] = 4*dtype.TileRows, uint8(rows)
		switch {
		case i >= 6:
			s.rows[i] = uint8(columns / 4)
		case i >= 4:
			s.rowBytes[i] = uint16(columns)
		}
	}
	return s
}

// tiledTiles returns the product of a type. It multiplies groups of rows of activations with AMX
// and what is left with VNNI.
func tiledTiles(t dtype.Type, loops tiledLoops) tiledFunc {
	halves := dtype.FormOf(t).Sub == blockElems/2
	return tiledChecked(t, func(y []float32, yStride int, w []byte, strips, strip, blocks int, x *tiledInput) {
		chunk := max(1, tiledChunk/strip)
		for s := 0; s < strips; s += chunk {
			n, w, y, j := min(chunk, strips-s), &w[s*strip], y[dtype.TileRows*s:], 0
			for x.rows-j >= amxLeast {
				rows := min(x.rows-j, amxRows)
				if tail := rows % tileRows; rows > tileRows && tail < amxLeast {
					rows -= tail
				}
				shape := amxShape(min(rows, tileRows), halves)
				loops.amx(&y[j*yStride], int(unsafe.Sizeof(y[0]))*yStride, w, n, blocks, &x.mem[j*x.stride], x.stride, x.in, rows, &shape)
				j += rows
			}
			loops.multiply(y, yStride, w, n, blocks, x, j)
		}
	})
}

//go:noescape
func tiledQ8_0AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledQ4_0AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledQ4_1AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledQ5_0AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledQ5_1AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledQ2_KAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledQ3_KAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledQ4_KAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledQ5_KAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledQ6_KAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledIQ4_NLAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledIQ4_XSAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledMXFP4AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledNVFP4AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

//go:noescape
func tiledTQ2_0AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
