package cpu

import (
	"unsafe"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// mlxLoop is [tiledLoop] for MLX's affine types. tiles is the number of tiles in a block. Scales
// are bfloat16 if bf16 is not 0.
type mlxLoop func(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

// mlxStrip and mlxStripFour are [stripFunc] and [stripFourFunc] with the same extra parameters.
type (
	mlxStrip     func(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)
	mlxStripFour func(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)
)

//go:noescape
func mlx2x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

//go:noescape
func mlx2x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

//go:noescape
func mlx2AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)

//go:noescape
func mlx2FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)

//go:noescape
func mlx3x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

//go:noescape
func mlx3x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

//go:noescape
func mlx3AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)

//go:noescape
func mlx3FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)

//go:noescape
func mlx4x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

//go:noescape
func mlx4x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

//go:noescape
func mlx4AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)

//go:noescape
func mlx4FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)

//go:noescape
func mlx5x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

//go:noescape
func mlx5x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

//go:noescape
func mlx5AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)

//go:noescape
func mlx5FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)

//go:noescape
func mlx6x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

//go:noescape
func mlx6x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

//go:noescape
func mlx6AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)

//go:noescape
func mlx6FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)

//go:noescape
func mlx8x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

//go:noescape
func mlx8x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)

//go:noescape
func mlx8AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)

//go:noescape
func mlx8FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)

// mlxOf sets the product of every MLX type that has a tiled layout to the result of of.
func mlxOf(products map[dtype.Type]tiledFunc, of func(t dtype.Type, bits, tiles, bf16 int) tiledFunc) {
	for _, t := range dtype.All() {
		bits, group, scale, ok := t.MLX()
		if !ok || scale == dtype.F32 {
			continue
		}
		bf16 := 0
		if scale == dtype.BF16 {
			bf16 = 1
		}
		products[t] = of(t, bits, group/blockElems, bf16)
	}
}

// mlxAVX2 adds the products of MLX's types.
func mlxAVX2(products map[dtype.Type]tiledFunc) {
	ones := map[int]mlxStrip{2: mlx2AVX2, 3: mlx3AVX2, 4: mlx4AVX2, 5: mlx5AVX2, 6: mlx6AVX2, 8: mlx8AVX2}
	fours := map[int]mlxStripFour{2: mlx2FourAVX2, 3: mlx3FourAVX2, 4: mlx4FourAVX2, 5: mlx5FourAVX2, 6: mlx6FourAVX2, 8: mlx8FourAVX2}
	mlxOf(products, func(t dtype.Type, bits, tiles, bf16 int) tiledFunc {
		one, four := ones[bits], fours[bits]
		return tiledChecked(t, func(y []float32, yStride int, w []byte, strips, strip, blocks int, x *tiledInput) {
			for s := range strips {
				w, y := &w[s*strip], y[dtype.TileRows*s:]
				j := 0
				for ; j+4 <= x.rows; j += 4 {
					q, d, sums := x.row(j)
					four(&y[j*yStride], yStride, w, blocks, &q[0], &d[0], &sums[0], x.stride, tiles, bf16)
				}
				for ; j < x.rows; j++ {
					q, d, sums := x.row(j)
					one(&y[j*yStride], w, blocks, &q[0], &d[0], &sums[0], tiles, bf16)
				}
			}
		})
	})
}

// mlxAVX512 adds the products of MLX's types for a processor that hasAVX512.
func mlxAVX512(products map[dtype.Type]tiledFunc) {
	ones := map[int]mlxLoop{2: mlx2x1AVX512, 3: mlx3x1AVX512, 4: mlx4x1AVX512, 5: mlx5x1AVX512, 6: mlx6x1AVX512, 8: mlx8x1AVX512}
	fours := map[int]mlxLoop{2: mlx2x4AVX512, 3: mlx3x4AVX512, 4: mlx4x4AVX512, 5: mlx5x4AVX512, 6: mlx6x4AVX512, 8: mlx8x4AVX512}
	mlxOf(products, func(t dtype.Type, bits, tiles, bf16 int) tiledFunc {
		one, four := ones[bits], fours[bits]
		return tiledChecked(t, func(y []float32, yStride int, w []byte, strips, strip, blocks int, x *tiledInput) {
			chunk := max(1, tiledChunk/strip)
			for s := 0; s < strips; s += chunk {
				n, w := min(chunk, strips-s), &w[s*strip]
				for j := 0; j < x.rows; {
					loop, rows := one, 1
					if x.rows-j >= 4 {
						loop, rows = four, 4
					}
					loop(&y[j*yStride+dtype.TileRows*s], int(unsafe.Sizeof(y[0]))*yStride, w, n, blocks, &x.mem[j*x.stride], x.stride, x.in, tiles, bf16)
					j += rows
				}
			}
		})
	})
}
