package cpu

import (
	"math"
	"math/rand/v2"
	"sync"
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// hasAMX reports whether the processor has the AMX instructions for int8, the system lets the
// process use them, and they give the results of the other loops.
func hasAMX() bool { return amxWorks() }

// amxWorks is hasAMX. The answer is the same for the life of the process.
var amxWorks = sync.OnceValue(func() bool { return offersAMX() && sameProducts(loops512()) })

// offersAMX reports whether the processor has the AMX instructions for int8 and the system lets the process use them.
func offersAMX() bool {
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

// amxLoop computes strips of 16 outputs for groups of [tileRows] rows of activations, at most
// [amxRows] rows. The other parameters are those of [tiledLoop].
//
// The function configures the tiles when it begins and releases them when it ends, so tiles are
// never in use while Go code runs, except in signal handlers. The Go runtime does not preempt
// assembly functions, and the system saves the tiles of a thread that it interrupts.
type amxLoop func(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)

const (
	tileRows = 16 // number of rows of activations in a tile
	amxRows  = 64 // largest number of rows of activations of an amxLoop

	// amxChunk is the size in bytes of a group of strips that is multiplied with all rows of
	// activations before the next group, so that it remains in the second-level cache.
	amxChunk = 128 << 10
)

// tileShape is the operand of LDTILECFG.
type tileShape struct {
	palette  uint8
	_        [15]byte // the row to begin with, 0, and reserved bytes
	rowBytes [16]uint16
	rows     [16]uint8
}

// tileShapeOf returns the shape of the tiles for a type: tiles 0 to 3 are integer sums, 4 and 5
// activations, 6 and 7 weights. A tile of weights has as many columns as share an integer scale.
func tileShapeOf(t dtype.Type) tileShape {
	columns := blockElems
	if _, two := scaledTiles(t); two {
		columns /= 2
	}
	s := tileShape{palette: 1}
	for i := range 8 {
		s.rowBytes[i], s.rows[i] = 4*dtype.TileRows, tileRows
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
// and the remaining rows with VNNI.
func tiledTiles(t dtype.Type, loops tiledLoops) tiledFunc {
	shape := tileShapeOf(t)
	return tiledChecked(t, func(y []float32, yStride int, w []byte, strips, strip, blocks int, x *tiledInput) {
		chunk := strips
		if x.rows > amxRows || x.rows%tileRows != 0 {
			chunk = max(1, amxChunk/strip)
		}
		for s := 0; s < strips; s += chunk {
			n, w, y, j := min(chunk, strips-s), w[s*strip:], y[dtype.TileRows*s:], 0
			for x.rows-j >= tileRows {
				rows := min(x.rows-j, amxRows) / tileRows * tileRows
				loops.amx(&y[j*yStride], int(unsafe.Sizeof(y[0]))*yStride, &w[0], n, blocks, &x.mem[j*x.stride], x.stride, x.in, rows, &shape)
				j += rows
			}
			loops.multiply(y, yStride, w, n, strip, blocks, x, j)
		}
	})
}

// sameProducts reports whether the AMX loops give the same bits as the VNNI loops for random
// weights and activations. A loop that computes something else, on a processor or an emulator that
// nobody has tested, is then not used.
func sameProducts(types map[dtype.Type]tiledLoops) bool {
	const columns, rows, strips = 1280, 32, 2 // a whole number of blocks of every type; two chunks and a part of one
	x := &tiledInput{mem: make([]byte, rows*(columns+columns/4)), stride: columns + columns/4, in: columns, rows: rows}
	values := make([]float32, columns)
	r := rand.New(rand.NewPCG(1, 2))
	for j := range rows {
		for i := range values {
			values[i] = float32(r.NormFloat64())
		}
		q, d, _ := x.row(j)
		quantize(q, d, values)
	}
	o := &ops{sumHalves: sumHalves, sumBlocks: sumBlocks}
	const outputs = strips * dtype.TileRows
	want, got := make([]float32, rows*outputs), make([]float32, rows*outputs)
	for t, loops := range types {
		for j := range rows {
			q, d, s := x.row(j)
			o.sum(s, q, d, wholeSums(t))
		}
		blocks, _ := t.Bytes(outputs * columns)
		size, _ := dtype.Tiled16.Bytes(t, outputs, columns)
		matrix, tiles := make([]byte, blocks), make([]byte, size)
		if dtype.RandomBlocks(t, matrix, uint64(t), 1) != nil || dtype.Tile(t, tiles, matrix, outputs, columns) != nil {
			return false
		}
		tiledAssembled512(t, loops)(want, outputs, tiles, strips, x)
		tiledTiles(t, loops)(got, outputs, tiles, strips, x)
		for i, v := range want {
			if math.Float32bits(v) != math.Float32bits(got[i]) {
				return false
			}
		}
	}
	return true
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
