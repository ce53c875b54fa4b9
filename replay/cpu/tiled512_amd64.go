package cpu

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// hasAVX512 reports whether the processor has the AVX-512 instructions that the tiled products
// use and the system saves their registers.
func hasAVX512() bool {
	x := &cpu.X86
	return x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512VNNI
}

// tiledLoops are the loops of a type.
type tiledLoops struct {
	one, two, four tiledLoop
	eight          tiledLoop // or nil
	amx            amxLoop   // for a processor that hasAMX
}

// loops512 returns the loops of the types that have any. Types with the same tiles share them.
func loops512() map[dtype.Type]tiledLoops {
	return map[dtype.Type]tiledLoops{
		dtype.Q8_0:   {tiledQ8_0x1AVX512, tiledQ8_0x2AVX512, tiledQ8_0x4AVX512, tiledQ8_0x8AVX512, tiledQ8_0AMX},
		dtype.Q4_0:   {tiledQ4_0x1AVX512, tiledQ4_0x2AVX512, tiledQ4_0x4AVX512, tiledQ4_0x8AVX512, tiledQ4_0AMX},
		dtype.Q4_1:   {tiledQ4_1x1AVX512, tiledQ4_1x2AVX512, tiledQ4_1x4AVX512, tiledQ4_1x8AVX512, tiledQ4_1AMX},
		dtype.Q5_0:   {tiledQ5_0x1AVX512, tiledQ5_0x2AVX512, tiledQ5_0x4AVX512, tiledQ5_0x8AVX512, tiledQ5_0AMX},
		dtype.Q5_1:   {tiledQ5_1x1AVX512, tiledQ5_1x2AVX512, tiledQ5_1x4AVX512, tiledQ5_1x8AVX512, tiledQ5_1AMX},
		dtype.Q2_K:   {tiledQ2_Kx1AVX512, tiledQ2_Kx2AVX512, tiledQ2_Kx4AVX512, nil, tiledQ2_KAMX},
		dtype.Q3_K:   {tiledQ3_Kx1AVX512, tiledQ3_Kx2AVX512, tiledQ3_Kx4AVX512, nil, tiledQ3_KAMX},
		dtype.Q4_K:   {tiledQ4_Kx1AVX512, tiledQ4_Kx2AVX512, tiledQ4_Kx4AVX512, tiledQ4_Kx8AVX512, tiledQ4_KAMX},
		dtype.Q5_K:   {tiledQ5_Kx1AVX512, tiledQ5_Kx2AVX512, tiledQ5_Kx4AVX512, tiledQ5_Kx8AVX512, tiledQ5_KAMX},
		dtype.Q6_K:   {tiledQ6_Kx1AVX512, tiledQ6_Kx2AVX512, tiledQ6_Kx4AVX512, nil, tiledQ6_KAMX},
		dtype.IQ4_NL: {tiledIQ4_NLx1AVX512, tiledIQ4_NLx2AVX512, tiledIQ4_NLx4AVX512, tiledIQ4_NLx8AVX512, tiledIQ4_NLAMX},
		dtype.IQ4_XS: {tiledIQ4_XSx1AVX512, tiledIQ4_XSx2AVX512, tiledIQ4_XSx4AVX512, tiledIQ4_XSx8AVX512, tiledIQ4_XSAMX},
		dtype.MXFP4:  {tiledMXFP4x1AVX512, tiledMXFP4x2AVX512, tiledMXFP4x4AVX512, tiledMXFP4x8AVX512, tiledMXFP4AMX},
		dtype.NVFP4:  {tiledNVFP4x1AVX512, tiledNVFP4x2AVX512, tiledNVFP4x4AVX512, nil, tiledNVFP4AMX},
		dtype.TQ2_0:  {tiledTQ2_0x1AVX512, tiledTQ2_0x2AVX512, tiledTQ2_0x4AVX512, tiledTQ2_0x8AVX512, tiledTQ2_0AMX},
	}
}

// tiledAVX512 returns the tiled products for a processor that hasAVX512.
func tiledAVX512() map[dtype.Type]tiledFunc {
	products := map[dtype.Type]tiledFunc{}
	for t, loops := range loops512() {
		products[t] = tiledAssembled512(t, loops)
	}
	shareTiles(products)
	mlxAVX512(products)
	return products
}

// tiledLoop computes strips of 16 outputs for one, two, four or eight rows of activations. Strides are in
// bytes. x points to a row of [tiledInput] with in columns. blocks is the number of blocks of the
// type in a row, at least one.
type tiledLoop func(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ8_0x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ8_0x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ8_0x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ8_0x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ4_0x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ4_0x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ4_0x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ4_0x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ4_1x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ4_1x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ4_1x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ4_1x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ5_0x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ5_0x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ5_0x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ5_0x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ5_1x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ5_1x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ5_1x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ5_1x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ2_Kx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ2_Kx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ2_Kx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ3_Kx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ3_Kx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ3_Kx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ4_Kx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ4_Kx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ4_Kx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ4_Kx8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ5_Kx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ5_Kx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ5_Kx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ5_Kx8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ6_Kx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ6_Kx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledQ6_Kx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_NLx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_NLx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_NLx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_NLx8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_XSx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_XSx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_XSx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_XSx8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledMXFP4x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledMXFP4x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledMXFP4x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledMXFP4x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledNVFP4x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledNVFP4x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledNVFP4x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledTQ2_0x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledTQ2_0x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledTQ2_0x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

//go:noescape
func tiledTQ2_0x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)

// tiledChunk is the size in bytes of a group of strips. If the rows of activations take several
// loops, a group is multiplied with all of them before the next group, so that it remains in the
// first-level cache.
const tiledChunk = 16 << 10

// chunkOf returns the number of strips of a group.
func chunkOf(strips, strip, rows int, eight bool) int {
	if rows == 1 || rows == 2 || rows == 4 || rows == 8 && eight {
		return strips
	}
	return max(1, tiledChunk/strip)
}

// tiledAssembled512 returns the product of a type.
func tiledAssembled512(t dtype.Type, loops tiledLoops) tiledFunc {
	return tiledChecked(t, func(y []float32, yStride int, w []byte, strips, strip, blocks int, x *tiledInput) {
		loops.multiply(y, yStride, w, strips, strip, blocks, x, 0)
	})
}

// multiply multiplies strips with the rows of x from the given row on, at most eight at a time. The
// other parameters are those of [tiledRun].
func (l tiledLoops) multiply(y []float32, yStride int, w []byte, strips, strip, blocks int, x *tiledInput, from int) {
	chunk := chunkOf(strips, strip, x.rows-from, l.eight != nil)
	for s := 0; s < strips && from < x.rows; s += chunk {
		for j := from; j < x.rows; {
			loop, rows := l.one, 1
			switch left := x.rows - j; {
			case left >= 8 && l.eight != nil:
				loop, rows = l.eight, 8
			case left >= 4:
				loop, rows = l.four, 4
			case left >= 2:
				loop, rows = l.two, 2
			}
			loop(&y[j*yStride+dtype.TileRows*s], int(unsafe.Sizeof(y[0]))*yStride, &w[s*strip], min(chunk, strips-s), blocks, &x.mem[j*x.stride], x.stride, x.in)
			j += rows
		}
	}
}
