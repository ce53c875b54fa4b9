#include "textflag.h"
#include "avx2_tiled_amd64.h"
#include "avx2_tiled_bits_amd64.h"

// The products of MLX's affine types. A block is 16 scales, 16 biases and the number of tiles
// given by the argument. Quants are unsigned; a bias is a minimum whose integer is 1. Scales
// and biases of a block are stored as float32 from 256(SP) on.

// mlxLess is 128 in every word. mlxSign is the sign bit in every byte.
FILL(mlxLess<>, 0x0080008000800080)
FILL(mlxSign<>, 0x8080808080808080)

#define ONES ·tiledOne(SB)

#define MLX2TILE(LEFT, RIGHT) \
	TWOSLOW(0)      \
	LEFT(0, ONES)   \
	TWOSHIGH(0)     \
	LEFT(16, ONES)  \
	TWOSLOW(32)     \
	RIGHT(0, ONES)  \
	TWOSHIGH(32)    \
	RIGHT(16, ONES)

#define MLX3TILE(LEFT, RIGHT) \
	THREESLOW(0, 128)   \
	LEFT(0, ONES)       \
	THREESHIGH(0, 128)  \
	LEFT(16, ONES)      \
	THREESLOW(32, 160)  \
	RIGHT(0, ONES)      \
	THREESHIGH(32, 160) \
	RIGHT(16, ONES)

#define FOURSLOW(at) \
	VMOVDQU ·tiledLow(SB), Y6    \
	VPAND   at(SI), Y6, Y0       \
	VPAND   (at+64)(SI), Y6, Y1  \
	VPAND   (at+128)(SI), Y6, Y2 \
	VPAND   (at+192)(SI), Y6, Y3

#define FOURSHIGH(at) \
	VMOVDQU ·tiledLow(SB), Y6 \
	HIGHNIBBLES(at, Y0)       \
	HIGHNIBBLES((at+64), Y1)  \
	HIGHNIBBLES((at+128), Y2) \
	HIGHNIBBLES((at+192), Y3)

#define MLX4TILE(LEFT, RIGHT) \
	FOURSLOW(0)     \
	LEFT(0, ONES)   \
	FOURSHIGH(0)    \
	LEFT(16, ONES)  \
	FOURSLOW(32)    \
	RIGHT(0, ONES)  \
	FOURSHIGH(32)   \
	RIGHT(16, ONES)

#define MLX5TILE(LEFT, RIGHT) \
	FIVES(ONES, ONES, LEFT, RIGHT)

// SIXESLOW and SIXESHIGH load quants of 6 bits: they load nibbles as FOURSLOW and FOURSHIGH do, and
// add the two high bits of each quant.
#define SIXESLOW(at, pairs) \
	FOURSLOW(at)                   \
	VMOVDQU ·tiledHigh(SB), Y7     \
	VMOVDQU pairs(SI), Y4          \
	BIT(VPSLLW, 4, Y0)             \
	BITINPLACE(Y1)                 \
	VMOVDQU (pairs+64)(SI), Y4     \
	BIT(VPSLLW, 4, Y2)             \
	BITINPLACE(Y3)

#define SIXESHIGH(at, pairs) \
	FOURSHIGH(at)                  \
	VMOVDQU ·tiledHigh(SB), Y7     \
	VMOVDQU pairs(SI), Y4          \
	BIT(VPSLLW, 2, Y0)             \
	BIT(VPSRLW, 2, Y1)             \
	VMOVDQU (pairs+64)(SI), Y4     \
	BIT(VPSLLW, 2, Y2)             \
	BIT(VPSRLW, 2, Y3)

// QUADSIX is QUAD for quants of 6 bits, where sums of two groups fit in 16 bits.
#define QUADSIX(at, Q, INT) \
	VPBROADCASTD at Q, Y4       \
	VPBROADCASTD (at+4)Q, Y5    \
	VPBROADCASTD (at+8)Q, Y6    \
	VPBROADCASTD (at+12)Q, Y7   \
	VPMADDUBSW   Y4, Y0, Y4     \
	VPMADDUBSW   Y5, Y1, Y5     \
	VPMADDUBSW   Y6, Y2, Y6     \
	VPMADDUBSW   Y7, Y3, Y7     \
	VPADDW       Y5, Y4, Y4     \
	VPADDW       Y7, Y6, Y6     \
	VPMADDWD     ONES, Y4, Y4   \
	VPMADDWD     ONES, Y6, Y6   \
	VPADDD       Y4, INT, INT   \
	VPADDD       Y6, INT, INT

// EIGHT multiplies one column group of x by the signed bytes in W, which are the quants minus 128.
// The absolute values of W are multiplied by x with the signs of W, so that the sum of two products
// fits in 16 bits.
#define EIGHT(at, Q, W, INT) \
	VPBROADCASTD at Q, Y4     \
	VPSIGNB      W, Y4, Y4    \
	VPABSB       W, Y5        \
	VPMADDUBSW   Y4, Y5, Y4   \
	VPMADDWD     ONES, Y4, Y4 \
	VPADDD       Y4, INT, INT
#define QUADEIGHT(at, Q, INT) \
	EIGHT(at, Q, Y0, INT)      \
	EIGHT((at+4), Q, Y1, INT)  \
	EIGHT((at+8), Q, Y2, INT)  \
	EIGHT((at+12), Q, Y3, INT)

#define MLX6LEFT1(at) \
	QUADSIX(at, Q0, Y8)
#define MLX6LEFT4(at) \
	QUADSIX(at, Q0, Y8)  \
	QUADSIX(at, Q1, Y10) \
	QUADSIX(at, Q2, Y12) \
	QUADSIX(at, Q3, Y14)
#define MLX6RIGHT1(at) \
	QUADSIX(at, Q0, Y9)
#define MLX6RIGHT4(at) \
	QUADSIX(at, Q0, Y9)  \
	QUADSIX(at, Q1, Y11) \
	QUADSIX(at, Q2, Y13) \
	QUADSIX(at, Q3, Y15)

#define MLX6TILE(LEFT, RIGHT) \
	SIXESLOW(0, 256)   \
	LEFT(0)            \
	SIXESHIGH(0, 256)  \
	LEFT(16)           \
	SIXESLOW(32, 288)  \
	RIGHT(0)           \
	SIXESHIGH(32, 288) \
	RIGHT(16)

#define MLX8LEFT1(at) \
	QUADEIGHT(at, Q0, Y8)
#define MLX8LEFT4(at) \
	QUADEIGHT(at, Q0, Y8)  \
	QUADEIGHT(at, Q1, Y10) \
	QUADEIGHT(at, Q2, Y12) \
	QUADEIGHT(at, Q3, Y14)
#define MLX8RIGHT1(at) \
	QUADEIGHT(at, Q0, Y9)
#define MLX8RIGHT4(at) \
	QUADEIGHT(at, Q0, Y9)  \
	QUADEIGHT(at, Q1, Y11) \
	QUADEIGHT(at, Q2, Y13) \
	QUADEIGHT(at, Q3, Y15)

#define BYTES(at) \
	VMOVDQU mlxSign<>(SB), Y6    \
	VPXOR   at(SI), Y6, Y0       \
	VPXOR   (at+64)(SI), Y6, Y1  \
	VPXOR   (at+128)(SI), Y6, Y2 \
	VPXOR   (at+192)(SI), Y6, Y3

#define MLX8TILE(LEFT, RIGHT) \
	BYTES(0)   \
	LEFT(0)    \
	BYTES(256) \
	LEFT(16)   \
	BYTES(32)  \
	RIGHT(0)   \
	BYTES(288) \
	RIGHT(16)

// MLX8OFFSETS initialises the integers with 128 times the sums of x.
#define MLX8OFFSETS1 \
	VMOVDQU mlxLess<>(SB), Y6 \
	VMOVDQU Y6, Y7            \
	OFFSETS1
#define MLX8OFFSETS4 \
	VMOVDQU mlxLess<>(SB), Y6 \
	VMOVDQU Y6, Y7            \
	OFFSETS4

#define FETCH2 \
	AHEAD1(0) \
	AHEAD1(64)
#define FETCH3 \
	FETCH2 \
	AHEAD1(128)
#define FETCH4 \
	FETCH3 \
	AHEAD1(192)
#define FETCH5 \
	FETCH4 \
	AHEAD1(256)
#define FETCH6 \
	FETCH5 \
	AHEAD1(320)
#define FETCH8 \
	FETCH6      \
	AHEAD1(384) \
	AHEAD1(448)

#define MLX2ONE \
	FETCH2 \
	MLX2TILE(LEFT1, RIGHT1)

// func mlx2AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)
TEXT ·mlx2AVX2(SB), NOSPLIT, $384-64
	START1
	MLX(128, tiles+48(FP), bf16+56(FP), ZERO1, MLX2ONE, ADDROWS1, BIASROWS1, END1)

#define MLX2FOUR MLX2TILE(LEFT4, RIGHT4)

// func mlx2FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)
TEXT ·mlx2FourAVX2(SB), NOSPLIT, $384-80
	START4
	MLX(128, tiles+64(FP), bf16+72(FP), ZERO4, MLX2FOUR, ADDROWS4, BIASROWS4, END4)

#define MLX3ONE \
	FETCH3 \
	MLX3TILE(LEFT1, RIGHT1)

// func mlx3AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)
TEXT ·mlx3AVX2(SB), NOSPLIT, $384-64
	START1
	MLX(192, tiles+48(FP), bf16+56(FP), ZERO1, MLX3ONE, ADDROWS1, BIASROWS1, END1)

#define MLX3FOUR MLX3TILE(LEFT4, RIGHT4)

// func mlx3FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)
TEXT ·mlx3FourAVX2(SB), NOSPLIT, $384-80
	START4
	MLX(192, tiles+64(FP), bf16+72(FP), ZERO4, MLX3FOUR, ADDROWS4, BIASROWS4, END4)

#define MLX4ONE \
	FETCH4 \
	MLX4TILE(LEFT1, RIGHT1)

// func mlx4AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)
TEXT ·mlx4AVX2(SB), NOSPLIT, $384-64
	START1
	MLX(256, tiles+48(FP), bf16+56(FP), ZERO1, MLX4ONE, ADDROWS1, BIASROWS1, END1)

#define MLX4FOUR MLX4TILE(LEFT4, RIGHT4)

// func mlx4FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)
TEXT ·mlx4FourAVX2(SB), NOSPLIT, $384-80
	START4
	MLX(256, tiles+64(FP), bf16+72(FP), ZERO4, MLX4FOUR, ADDROWS4, BIASROWS4, END4)

#define MLX5ONE \
	FETCH5 \
	MLX5TILE(LEFT1, RIGHT1)

// func mlx5AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)
TEXT ·mlx5AVX2(SB), NOSPLIT, $384-64
	START1
	MLX(320, tiles+48(FP), bf16+56(FP), ZERO1, MLX5ONE, ADDROWS1, BIASROWS1, END1)

#define MLX5FOUR MLX5TILE(LEFT4, RIGHT4)

// func mlx5FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)
TEXT ·mlx5FourAVX2(SB), NOSPLIT, $384-80
	START4
	MLX(320, tiles+64(FP), bf16+72(FP), ZERO4, MLX5FOUR, ADDROWS4, BIASROWS4, END4)

#define MLX6ONE \
	FETCH6 \
	MLX6TILE(MLX6LEFT1, MLX6RIGHT1)

// func mlx6AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)
TEXT ·mlx6AVX2(SB), NOSPLIT, $384-64
	START1
	MLX(384, tiles+48(FP), bf16+56(FP), ZERO1, MLX6ONE, ADDROWS1, BIASROWS1, END1)

#define MLX6FOUR MLX6TILE(MLX6LEFT4, MLX6RIGHT4)

// func mlx6FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)
TEXT ·mlx6FourAVX2(SB), NOSPLIT, $384-80
	START4
	MLX(384, tiles+64(FP), bf16+72(FP), ZERO4, MLX6FOUR, ADDROWS4, BIASROWS4, END4)

#define MLX8ONE \
	FETCH8 \
	MLX8TILE(MLX8LEFT1, MLX8RIGHT1)

// func mlx8AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte, tiles, bf16 int)
TEXT ·mlx8AVX2(SB), NOSPLIT, $384-64
	START1
	MLX(512, tiles+48(FP), bf16+56(FP), MLX8OFFSETS1, MLX8ONE, ADDROWS1, BIASROWS1, END1)

#define MLX8FOUR MLX8TILE(MLX8LEFT4, MLX8RIGHT4)

// func mlx8FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride, tiles, bf16 int)
TEXT ·mlx8FourAVX2(SB), NOSPLIT, $384-80
	START4
	MLX(512, tiles+64(FP), bf16+72(FP), MLX8OFFSETS4, MLX8FOUR, ADDROWS4, BIASROWS4, END4)
