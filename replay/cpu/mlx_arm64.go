package cpu

import "github.com/pianola-engine/pianola/internal/dtype"

// mlxStrip is [stripFunc] for MLX's affine types. how holds the number of tiles in a block, whether
// scales are bfloat16 (0 or 1), and the number of bits.
type mlxStrip func(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx2x1NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx2x4NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx2x8NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx3x1NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx3x4NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx3x8NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx4x1NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx4x4NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx4x8NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx5x1NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx5x4NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx5x8NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx6x1NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx6x4NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx6x8NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx8x1NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx8x4NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

//go:noescape
func mlx8x8NEON(y *float32, yStride int, w, x *byte, xStride, in int, how *[2]int)

// mlxNEON adds the tiled products of MLX's types. matrix selects those with SMMLA for eight rows of
// activations.
func mlxNEON(products map[dtype.Type]tiledFunc, matrix bool) {
	loops := map[int][3]mlxStrip{
		2: {mlx2x1NEON, mlx2x4NEON, mlx2x8NEON}, 3: {mlx3x1NEON, mlx3x4NEON, mlx3x8NEON}, 4: {mlx4x1NEON, mlx4x4NEON, mlx4x8NEON},
		5: {mlx5x1NEON, mlx5x4NEON, mlx5x8NEON}, 6: {mlx6x1NEON, mlx6x4NEON, mlx6x8NEON}, 8: {mlx8x1NEON, mlx8x4NEON, mlx8x8NEON},
	}
	for _, t := range dtype.All() {
		bits, group, scale, ok := t.MLX()
		if !ok || scale == dtype.F32 {
			continue
		}
		how := &[2]int{group / blockElems, 0}
		if scale == dtype.BF16 {
			how[1] = 1
		}
		of := func(f mlxStrip) stripFunc {
			return func(y *float32, yStride int, w, x *byte, xStride, in int) { f(y, yStride, w, x, xStride, in, how) }
		}
		l := loops[bits]
		eight := of(l[2])
		if !matrix {
			eight = nil
		}
		products[t] = tiledAssembled(t, of(l[0]), of(l[1]), eight)
	}
}
