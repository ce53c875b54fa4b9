package cpu

import "github.com/pianola-engine/pianola/internal/dtype"

// tiledAVX2 returns the assembly products for layout dtype.Tiled16. They need AVX2 and F16C.
func tiledAVX2() map[dtype.Type]tiledFunc {
	products := map[dtype.Type]tiledFunc{
		dtype.Q8_0:   tiledAssembled(dtype.Q8_0, tiledQ8_0AVX2, tiledFourQ8_0AVX2),
		dtype.Q4_0:   tiledAssembled(dtype.Q4_0, tiledQ4_0AVX2, tiledFourQ4_0AVX2),
		dtype.Q4_1:   tiledAssembled(dtype.Q4_1, tiledQ4_1AVX2, tiledFourQ4_1AVX2),
		dtype.Q5_0:   tiledAssembled(dtype.Q5_0, tiledQ5_0AVX2, tiledFourQ5_0AVX2),
		dtype.Q5_1:   tiledAssembled(dtype.Q5_1, tiledQ5_1AVX2, tiledFourQ5_1AVX2),
		dtype.Q2_K:   tiledAssembled(dtype.Q2_K, tiledQ2_KAVX2, tiledFourQ2_KAVX2),
		dtype.Q3_K:   tiledAssembled(dtype.Q3_K, tiledQ3_KAVX2, tiledFourQ3_KAVX2),
		dtype.Q4_K:   tiledAssembled(dtype.Q4_K, tiledQ4_KAVX2, tiledFourQ4_KAVX2),
		dtype.Q5_K:   tiledAssembled(dtype.Q5_K, tiledQ5_KAVX2, tiledFourQ5_KAVX2),
		dtype.Q6_K:   tiledAssembled(dtype.Q6_K, tiledQ6_KAVX2, tiledFourQ6_KAVX2),
		dtype.IQ4_NL: tiledAssembled(dtype.IQ4_NL, tiledIQ4_NLAVX2, tiledFourIQ4_NLAVX2),
		dtype.IQ4_XS: tiledAssembled(dtype.IQ4_XS, tiledIQ4_XSAVX2, tiledFourIQ4_XSAVX2),
		dtype.MXFP4:  tiledAssembled(dtype.MXFP4, tiledMXFP4AVX2, tiledFourMXFP4AVX2),
		dtype.TQ2_0:  tiledAssembled(dtype.TQ2_0, tiledTQ2_0AVX2, tiledFourTQ2_0AVX2),
	}
	shareTiles(products)
	mlxAVX2(products)
	return products
}

// stripFunc multiplies one strip with one row of activations, whose quants, scales and sums are
// q, d and s. y is [16].
type stripFunc func(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

// stripFourFunc multiplies one strip with four rows of activations, stride bytes apart. y is [4,
// yStride] float32; 16 elements of each row are written.
type stripFourFunc func(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledQ8_0AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledQ4_0AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledQ4_1AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledQ5_0AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledQ5_1AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledQ2_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledQ3_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledQ4_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledQ5_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledQ6_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledIQ4_NLAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledIQ4_XSAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledMXFP4AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledFourQ8_0AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledFourQ4_0AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledFourQ4_1AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledFourQ5_0AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledFourQ5_1AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledFourQ2_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledFourQ3_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledFourQ4_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledFourQ5_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledFourQ6_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledFourIQ4_NLAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledFourIQ4_XSAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledFourMXFP4AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

//go:noescape
func tiledTQ2_0AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)

//go:noescape
func tiledFourTQ2_0AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)

// tiledAssembled returns the product of a type. It multiplies a strip with all rows of
// activations before the next strip, so that weights are read from memory once.
func tiledAssembled(t dtype.Type, one stripFunc, four stripFourFunc) tiledFunc {
	return tiledChecked(t, func(y []float32, yStride int, w []byte, strips, strip, blocks int, x *tiledInput) {
		for s := range strips {
			w, y := &w[s*strip], y[dtype.TileRows*s:]
			j := 0
			for ; j+4 <= x.rows; j += 4 {
				q, d, sums := x.row(j)
				four(&y[j*yStride], yStride, w, blocks, &q[0], &d[0], &sums[0], x.stride)
			}
			for ; j < x.rows; j++ {
				q, d, sums := x.row(j)
				one(&y[j*yStride], w, blocks, &q[0], &d[0], &sums[0])
			}
		}
	})
}
