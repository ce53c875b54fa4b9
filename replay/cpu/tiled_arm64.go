package cpu

import (
	"github.com/pianola-engine/pianola/internal/dtype"
)

// tiledNEON returns the products for layout dtype.Tiled16. They need the dot product extension.
func tiledNEON() map[dtype.Type]tiledFunc {
	products := map[dtype.Type]tiledFunc{
		dtype.Q8_0:   tiledAssembled(dtype.Q8_0, tiledQ8_0x1NEON, tiledQ8_0x4NEON, nil),
		dtype.Q4_0:   tiledAssembled(dtype.Q4_0, tiledQ4_0x1NEON, tiledQ4_0x4NEON, nil),
		dtype.Q4_1:   tiledAssembled(dtype.Q4_1, tiledQ4_1x1NEON, tiledQ4_1x4NEON, nil),
		dtype.Q5_0:   tiledAssembled(dtype.Q5_0, tiledQ5_0x1NEON, tiledQ5_0x4NEON, nil),
		dtype.Q5_1:   tiledAssembled(dtype.Q5_1, tiledQ5_1x1NEON, tiledQ5_1x4NEON, nil),
		dtype.Q2_K:   tiledAssembled(dtype.Q2_K, tiledQ2_Kx1NEON, tiledQ2_Kx4NEON, nil),
		dtype.Q3_K:   tiledAssembled(dtype.Q3_K, tiledQ3_Kx1NEON, tiledQ3_Kx4NEON, nil),
		dtype.Q4_K:   tiledAssembled(dtype.Q4_K, tiledQ4_Kx1NEON, tiledQ4_Kx4NEON, nil),
		dtype.Q5_K:   tiledAssembled(dtype.Q5_K, tiledQ5_Kx1NEON, tiledQ5_Kx4NEON, nil),
		dtype.Q6_K:   tiledAssembled(dtype.Q6_K, tiledQ6_Kx1NEON, tiledQ6_Kx4NEON, nil),
		dtype.IQ4_NL: tiledAssembled(dtype.IQ4_NL, tiledIQ4_NLx1NEON, tiledIQ4_NLx4NEON, nil),
		dtype.IQ4_XS: tiledAssembled(dtype.IQ4_XS, tiledIQ4_XSx1NEON, tiledIQ4_XSx4NEON, nil),
		dtype.MXFP4:  tiledAssembled(dtype.MXFP4, tiledMXFP4x1NEON, tiledMXFP4x4NEON, nil),
		dtype.TQ2_0:  tiledAssembled(dtype.TQ2_0, tiledTQ2_0x1NEON, tiledTQ2_0x4NEON, nil),
	}
	shareTiles(products)
	mlxNEON(products, false)
	return products
}

// stripFunc multiplies a strip of 16 rows with one row of activations or four. yStride is in
// floats, and 16 elements of each row are written. x points to a row of [tiledInput] with in
// columns, whole blocks of the type and at least one; xStride is in bytes.
type stripFunc func(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ8_0x1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ8_0x4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ4_0x1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ4_0x4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ4_1x1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ4_1x4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ5_0x1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ5_0x4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ5_1x1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ5_1x4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ2_Kx1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ2_Kx4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ3_Kx1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ3_Kx4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ4_Kx1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ4_Kx4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ5_Kx1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ5_Kx4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ6_Kx1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ6_Kx4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_NLx1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_NLx4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_XSx1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_XSx4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledMXFP4x1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledMXFP4x4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledTQ2_0x1NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledTQ2_0x4NEON(y *float32, yStride int, w, x *byte, xStride, in int)

// tiledAssembled returns the product of a type. It multiplies a strip with all rows of
// activations before the next strip, so that weights are read from memory once. eight, which takes eight
// rows, may be nil.
func tiledAssembled(t dtype.Type, one, four, eight stripFunc) tiledFunc {
	return tiledChecked(t, func(y []float32, yStride int, w []byte, strips, strip, blocks int, x *tiledInput) {
		for s := range strips {
			w, y := &w[s*strip], y[dtype.TileRows*s:]
			for j := 0; j < x.rows; {
				run, rows := one, 1
				if left := x.rows - j; left >= 8 && eight != nil {
					run, rows = eight, 8
				} else if left >= 4 {
					run, rows = four, 4
				}
				run(&y[j*yStride], yStride, w, &x.mem[j*x.stride], x.stride, x.in)
				j += rows
			}
		}
	})
}
