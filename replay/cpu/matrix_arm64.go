package cpu

import "github.com/pianola-engine/pianola/internal/dtype"

// tiledMatrixNEON returns the products of tiledNEON, with SMMLA for eight rows of activations at a
// time. They need the extensions dotprod and i8mm.
func tiledMatrixNEON() map[dtype.Type]tiledFunc {
	products := map[dtype.Type]tiledFunc{
		dtype.Q8_0:   tiledAssembled(dtype.Q8_0, tiledQ8_0x1NEON, tiledQ8_0x4NEON, tiledQ8_0x8NEON),
		dtype.Q4_0:   tiledAssembled(dtype.Q4_0, tiledQ4_0x1NEON, tiledQ4_0x4NEON, tiledQ4_0x8NEON),
		dtype.Q4_1:   tiledAssembled(dtype.Q4_1, tiledQ4_1x1NEON, tiledQ4_1x4NEON, tiledQ4_1x8NEON),
		dtype.Q5_0:   tiledAssembled(dtype.Q5_0, tiledQ5_0x1NEON, tiledQ5_0x4NEON, tiledQ5_0x8NEON),
		dtype.Q5_1:   tiledAssembled(dtype.Q5_1, tiledQ5_1x1NEON, tiledQ5_1x4NEON, tiledQ5_1x8NEON),
		dtype.Q2_K:   tiledAssembled(dtype.Q2_K, tiledQ2_Kx1NEON, tiledQ2_Kx4NEON, tiledQ2_Kx8NEON),
		dtype.Q3_K:   tiledAssembled(dtype.Q3_K, tiledQ3_Kx1NEON, tiledQ3_Kx4NEON, tiledQ3_Kx8NEON),
		dtype.Q4_K:   tiledAssembled(dtype.Q4_K, tiledQ4_Kx1NEON, tiledQ4_Kx4NEON, tiledQ4_Kx8NEON),
		dtype.Q5_K:   tiledAssembled(dtype.Q5_K, tiledQ5_Kx1NEON, tiledQ5_Kx4NEON, tiledQ5_Kx8NEON),
		dtype.Q6_K:   tiledAssembled(dtype.Q6_K, tiledQ6_Kx1NEON, tiledQ6_Kx4NEON, tiledQ6_Kx8NEON),
		dtype.IQ4_NL: tiledAssembled(dtype.IQ4_NL, tiledIQ4_NLx1NEON, tiledIQ4_NLx4NEON, tiledIQ4_NLx8NEON),
		dtype.IQ4_XS: tiledAssembled(dtype.IQ4_XS, tiledIQ4_XSx1NEON, tiledIQ4_XSx4NEON, tiledIQ4_XSx8NEON),
		dtype.MXFP4:  tiledAssembled(dtype.MXFP4, tiledMXFP4x1NEON, tiledMXFP4x4NEON, tiledMXFP4x8NEON),
		dtype.TQ2_0:  tiledAssembled(dtype.TQ2_0, tiledTQ2_0x1NEON, tiledTQ2_0x4NEON, tiledTQ2_0x8NEON),
	}
	shareTiles(products)
	mlxNEON(products, true)
	return products
}

//go:noescape
func tiledQ8_0x8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ4_0x8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ4_1x8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ5_0x8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ5_1x8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ2_Kx8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ3_Kx8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ4_Kx8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ5_Kx8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledQ6_Kx8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_NLx8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledIQ4_XSx8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledMXFP4x8NEON(y *float32, yStride int, w, x *byte, xStride, in int)

//go:noescape
func tiledTQ2_0x8NEON(y *float32, yStride int, w, x *byte, xStride, in int)
