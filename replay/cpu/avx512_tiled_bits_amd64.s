#include "textflag.h"
#include "funcdata.h"
#include "avx512_tiled_amd64.h"
#include "amx_amd64.h"

// Products of tiles with quants of 5 bits (nibbles and single bits), 2 bits (pairs) and 3 bits
// (pairs and single bits).

// BIT adds the single bit of a column group to the quants in W. OP by n moves the bit from its
// place in Z21 to the place selected by the mask Z30. n is 0 if the bit is in place already.
#define BIT(OP, n, W) \
	OP         $n, Z21, Z20 \
	VPTERNLOGD $0xf8, Z30, Z20, W

// FIVES processes column groups g and g+4, whose nibbles begin at offset at in the tile.
#define FIVES(at, g, DOT) \
	VMOVDQU64 (at+64*g)(SI), Z16 \
	VPANDD    Z31, Z16, Z17      \
	VPSRLW    $4, Z16, Z16       \
	VPANDD    Z31, Z16, Z16      \
	BIT(VPSLLW, (4-g), Z17)      \
	BIT(VPSRLW, g, Z16)          \
	DOT(g, Z17)                  \
	DOT(g+4, Z16)

#define ALLFIVES(DOT) \
	PREFETCH4(0)               \
	PREFETCHT0 (AHEAD+256)(SI) \
	VMOVDQU64  256(SI), Z21    \
	FIVES(0, 0, DOT)           \
	FIVES(0, 1, DOT)           \
	FIVES(0, 2, DOT)           \
	FIVES(0, 3, DOT)

#define Q50TILE(LESS, DOT, ADD) \
	PREFETCHT0 (AHEAD+320)(SI) \
	LESS(Z29)                  \
	ALLFIVES(DOT)              \
	VCVTPH2PS  320(SI), Z24    \
	ADD
#define Q50TILE1 Q50TILE(LESS1, DOT1, ADD1)
#define Q50TILE2 Q50TILE(LESS2, DOT2, ADD2)
#define Q50TILE4 Q50TILE(LESS4, DOT4, ADD4)
#define Q50TILE8 Q50TILE(LESS8, DOT8, ADD8)
#define Q50TILEX Q50TILE(NONEOF, KEEP, KEEPD)

#define FIVECONSTANTS \
	FILL32(0x0f0f0f0f, Z31) \
	FILL32(0x10101010, Z30)

// Z29 is -16 in every word.
#define Q50CONSTANTS \
	FIVECONSTANTS \
	FILL32(0xfff0fff0, Z29)

// func tiledQ5_0x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ5_0x1AVX512(SB), NOSPLIT, $0-64
	Q50CONSTANTS
	TILED(0, 1, 352, ZERO1, NOHEAD, Q50TILE1, STORE1)

// func tiledQ5_0x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ5_0x2AVX512(SB), NOSPLIT, $0-64
	Q50CONSTANTS
	TILED(0, 1, 352, ZERO2, NOHEAD, Q50TILE2, STORE2)

// func tiledQ5_0x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ5_0x4AVX512(SB), NOSPLIT, $0-64
	Q50CONSTANTS
	TILED(0, 1, 352, ZERO4, NOHEAD, Q50TILE4, STORE4)

// func tiledQ5_0x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ5_0x8AVX512(SB), NOSPLIT, $0-64
	Q50CONSTANTS
	TILED8(0, 1, 352, NOHEAD, Q50TILE8)

// func tiledQ5_0AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledQ5_0AMX(SB), 0, $25728-80
	AMX(0xf0f0f0f0, 0, 1, 352, Q50CONSTANTS, NOHEAD, Q50TILEX, NONE, STEP1, POSTD0, POSTD1)

// Q51TILE multiplies a tile of Q5_1. MIN multiplies minimums by integers; for Q5_1 these are 1.
#define Q51TILE(LESS, DOT, ADD, MIN) \
	PREFETCHT0 (AHEAD+320)(SI) \
	LESS                       \
	ALLFIVES(DOT)              \
	VCVTPH2PS  320(SI), Z24    \
	VCVTPH2PS  352(SI), Z25    \
	ADD                        \
	MIN(VFMADD231PS, Z25)
#define Q51TILE1 Q51TILE(NOLESS1, DOT1, ADD1, MIN1)
#define Q51TILE2 Q51TILE(NOLESS2, DOT2, ADD2, MIN2)
#define Q51TILE4 Q51TILE(NOLESS4, DOT4, ADD4, MIN4)
#define Q51TILE8 Q51TILE(NOLESS8, DOT8, ADD8, MIN8)
#define Q51TILEX Q51TILE(NONE, KEEP, KEEPD, KEEPMIN)

// func tiledQ5_1x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ5_1x1AVX512(SB), NOSPLIT, $0-64
	FIVECONSTANTS
	TILED(0, 1, 384, ZERO1, NOHEAD, Q51TILE1, STORE1)

// func tiledQ5_1x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ5_1x2AVX512(SB), NOSPLIT, $0-64
	FIVECONSTANTS
	TILED(0, 1, 384, ZERO2, NOHEAD, Q51TILE2, STORE2)

// func tiledQ5_1x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ5_1x4AVX512(SB), NOSPLIT, $0-64
	FIVECONSTANTS
	TILED(0, 1, 384, ZERO4, NOHEAD, Q51TILE4, STORE4)

// func tiledQ5_1x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ5_1x8AVX512(SB), NOSPLIT, $0-64
	FIVECONSTANTS
	TILED8(0, 1, 384, NOHEAD, Q51TILE8)

// func tiledQ5_1AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledQ5_1AMX(SB), 0, $25728-80
	AMX(0, 0, 1, 384, FIVECONSTANTS, NOHEAD, Q51TILEX, SUMS1, STEP1, POSTDM0, POSTDM1)

#define Q5KTILE(LESS, DOT, ADD, MIN) \
	LESS                          \
	ALLFIVES(DOT)                 \
	VPMOVZXBD       (R8), Z26     \
	VCVTDQ2PS       Z26, Z26      \
	VMULPS          Z24, Z26, Z26 \
	VPMOVZXBD       16(R8), Z27   \
	VCVTDQ2PS       Z27, Z27      \
	VMULPS          Z25, Z27, Z27 \
	ADDQ            $32, R8       \
	ADD                           \
	MIN(VFNMADD231PS, Z27)
#define Q5KTILE1 Q5KTILE(NOLESS1, DOT1, ADDK1, MIN1)
#define Q5KTILE2 Q5KTILE(NOLESS2, DOT2, ADDK2, MIN2)
#define Q5KTILE4 Q5KTILE(NOLESS4, DOT4, ADDK4, MIN4)
#define Q5KTILE8 Q5KTILE(NOLESS8, DOT8, ADDK8, MIN8)
#define Q5KTILEX Q5KTILE(NONE, KEEP, KEEPDS, KEEPMIN)

// func tiledQ5_Kx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ5_Kx1AVX512(SB), NOSPLIT, $0-64
	FIVECONSTANTS
	TILED(320, 8, 320, ZERO1, HEADMINSCALES, Q5KTILE1, STORE1)

// func tiledQ5_Kx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ5_Kx2AVX512(SB), NOSPLIT, $0-64
	FIVECONSTANTS
	TILED(320, 8, 320, ZERO2, HEADMINSCALES, Q5KTILE2, STORE2)

// func tiledQ5_Kx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ5_Kx4AVX512(SB), NOSPLIT, $0-64
	FIVECONSTANTS
	TILED(320, 8, 320, ZERO4, HEADMINSCALES, Q5KTILE4, STORE4)

// func tiledQ5_Kx8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ5_Kx8AVX512(SB), NOSPLIT, $0-64
	FIVECONSTANTS
	TILED8(320, 8, 320, HEADMINSCALES, Q5KTILE8)

// func tiledQ5_KAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledQ5_KAMX(SB), 0, $25728-80
	AMX(0, 320, 8, 320, FIVECONSTANTS, HEADMINSCALES, Q5KTILEX, SUMS1, STEP1, POSTDSM0, POSTDSM1)

// TWOS processes column groups 2k, 2k+1, 2k+4 and 2k+5. Z31 is 0x03 in every byte.
#define TWOS(k, DOT, DOTHIGH) \
	VMOVDQU64 (64*k)(SI), Z16 \
	VPANDD    Z31, Z16, Z17   \
	DOT(2*k, Z17)             \
	VPSRLW    $2, Z16, Z18    \
	VPANDD    Z31, Z18, Z18   \
	DOTHIGH(2*k+4, Z18)       \
	VPSRLW    $4, Z16, Z17    \
	VPANDD    Z31, Z17, Z17   \
	DOT(2*k+1, Z17)           \
	VPSRLW    $6, Z16, Z18    \
	VPANDD    Z31, Z18, Z18   \
	DOTHIGH(2*k+5, Z18)

// Q2KTILE has scales and minimums of 4 bits. It stores the minimums of both halves of the
// columns in Z22 as words.
#define Q2KTILE(LESS, LESSHIGH, DOT, DOTHIGH, ADD, MIN) \
	PREFETCHT0 AHEAD(SI)            \
	PREFETCHT0 (AHEAD+64)(SI)       \
	LESS                            \
	LESSHIGH                        \
	TWOS(0, DOT, DOTHIGH)           \
	TWOS(1, DOT, DOTHIGH)           \
	VPMOVZXBD  (R8), Z26            \
	VPMOVZXBD  16(R8), Z27          \
	VPSRLD     $4, Z26, Z22         \
	VPSLLD     $12, Z27, Z23        \
	VPTERNLOGD $0xa8, Z30, Z23, Z22 \
	VPANDD     Z30, Z26, Z26        \
	VPANDD     Z30, Z27, Z27        \
	VCVTDQ2PS  Z26, Z26             \
	VCVTDQ2PS  Z27, Z27             \
	ADDQ       $32, R8              \
	ADD                             \
	MIN(VFNMADD231PS, Z22)
#define Q2KTILE1 Q2KTILE(NOLESS1, NOLESSHIGH1, DOT1, DOTHIGH1, ADDKK1, MINS1)
#define Q2KTILE2 Q2KTILE(NOLESS2, NOLESSHIGH2, DOT2, DOTHIGH2, ADDKK2, MINS2)
#define Q2KTILE4 Q2KTILE(NOLESS4, NOLESSHIGH4, DOT4, DOTHIGH4, ADDKK4, MINS4)
#define Q2KTILEX Q2KTILE(NONE, NONE, KEEP, KEEP, KEEPDST, KEEPMINS)

// Z30 is 15 in every word.
#define Q2KCONSTANTS \
	FILL32(0x03030303, Z31) \
	FILL32(0x000f000f, Z30)

// func tiledQ2_Kx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ2_Kx1AVX512(SB), NOSPLIT, $0-64
	Q2KCONSTANTS
	TILED(320, 8, 128, ZERO1, HEADMINSCALES, Q2KTILE1, STORE1)

// func tiledQ2_Kx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ2_Kx2AVX512(SB), NOSPLIT, $0-64
	Q2KCONSTANTS
	TILED(320, 8, 128, ZERO2, HEADMINSCALES, Q2KTILE2, STORE2)

// func tiledQ2_Kx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ2_Kx4AVX512(SB), NOSPLIT, $0-64
	Q2KCONSTANTS
	TILED(320, 8, 128, ZERO4, HEADMINSCALES, Q2KTILE4, STORE4)

// func tiledQ2_KAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledQ2_KAMX(SB), 0, $25728-80
	AMX(0, 320, 8, 128, Q2KCONSTANTS, HEADMINSCALES, Q2KTILEX, SUMS2, STEP2, POSTDSTM0, POSTDSTM1)

// TQ20TILE multiplies a tile of TQ2_0, which has quants of 2 bits and no integer scales.
#define TQ20TILE(LESS, DOT, ADD) \
	PREFETCHT0 AHEAD(SI)      \
	PREFETCHT0 (AHEAD+64)(SI) \
	LESS(Z29)                 \
	TWOS(0, DOT, DOT)         \
	TWOS(1, DOT, DOT)         \
	ADD
#define TQ20TILE1 TQ20TILE(LESS1, DOT1, ADD1)
#define TQ20TILE2 TQ20TILE(LESS2, DOT2, ADD2)
#define TQ20TILE4 TQ20TILE(LESS4, DOT4, ADD4)
#define TQ20TILE8 TQ20TILE(LESS8, DOT8, ADD8)
#define TQ20TILEX TQ20TILE(NONEOF, KEEP, KEEPD)

// Z29 is -1 in every word.
#define TQ20CONSTANTS \
	FILL32(0x03030303, Z31) \
	FILL32(0xffffffff, Z29)

// func tiledTQ2_0x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledTQ2_0x1AVX512(SB), NOSPLIT, $0-64
	TQ20CONSTANTS
	TILED(32, 8, 128, ZERO1, HEAD, TQ20TILE1, STORE1)

// func tiledTQ2_0x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledTQ2_0x2AVX512(SB), NOSPLIT, $0-64
	TQ20CONSTANTS
	TILED(32, 8, 128, ZERO2, HEAD, TQ20TILE2, STORE2)

// func tiledTQ2_0x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledTQ2_0x4AVX512(SB), NOSPLIT, $0-64
	TQ20CONSTANTS
	TILED(32, 8, 128, ZERO4, HEAD, TQ20TILE4, STORE4)

// func tiledTQ2_0x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledTQ2_0x8AVX512(SB), NOSPLIT, $0-64
	TQ20CONSTANTS
	TILED8(32, 8, 128, HEAD, TQ20TILE8)

// func tiledTQ2_0AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledTQ2_0AMX(SB), 0, $25728-80
	AMX(0xffffffff, 32, 8, 128, TQ20CONSTANTS, HEAD, TQ20TILEX, NONE, STEP1, POSTD0, POSTD1)

// THREES processes column groups 2k, 2k+1, 2k+4 and 2k+5. The shifts move the single bits of
// groups 2k and 2k+1 to bit 2.
#define THREES(k, OP0, n0, OP1, n1, DOT, DOTHIGH) \
	VMOVDQU64 (64*k)(SI), Z16 \
	VPANDD    Z31, Z16, Z17   \
	BIT(OP0, n0, Z17)         \
	DOT(2*k, Z17)             \
	VPSRLW    $2, Z16, Z18    \
	VPANDD    Z31, Z18, Z18   \
	BIT(VPSRLW, (2*k+2), Z18) \
	DOTHIGH(2*k+4, Z18)       \
	VPSRLW    $4, Z16, Z17    \
	VPANDD    Z31, Z17, Z17   \
	BIT(OP1, n1, Z17)         \
	DOT(2*k+1, Z17)           \
	VPSRLW    $6, Z16, Z18    \
	VPANDD    Z31, Z18, Z18   \
	BIT(VPSRLW, (2*k+3), Z18) \
	DOTHIGH(2*k+5, Z18)

#define Q3KTILE(LESS, LESSHIGH, DOT, DOTHIGH, ADD) \
	PREFETCHT0 AHEAD(SI)                          \
	PREFETCHT0 (AHEAD+64)(SI)                     \
	PREFETCHT0 (AHEAD+128)(SI)                    \
	VMOVDQU64  128(SI), Z21                       \
	LESS(Z29)                                     \
	LESSHIGH(Z28)                                 \
	THREES(0, VPSLLW, 2, VPSLLW, 1, DOT, DOTHIGH) \
	THREES(1, VPSRLW, 0, VPSRLW, 1, DOT, DOTHIGH) \
	VPMOVSXBD  (R8), Z26                          \
	VCVTDQ2PS  Z26, Z26                           \
	VPMOVSXBD  16(R8), Z27                        \
	VCVTDQ2PS  Z27, Z27                           \
	ADDQ       $32, R8                            \
	ADD
#define Q3KTILE1 Q3KTILE(LESS1, LESSHIGH1, DOT1, DOTHIGH1, ADDKK1)
#define Q3KTILE2 Q3KTILE(LESS2, LESSHIGH2, DOT2, DOTHIGH2, ADDKK2)
#define Q3KTILE4 Q3KTILE(LESS4, LESSHIGH4, DOT4, DOTHIGH4, ADDKK4)
#define Q3KTILEX Q3KTILE(NONEOF, NONEOF, KEEP, KEEP, KEEPDST)

// Z29 is -4 in the words of columns 0 to 15, Z28 in the words of columns 16 to 31.
#define Q3KCONSTANTS \
	FILL32(0x03030303, Z31) \
	FILL32(0x04040404, Z30) \
	FILL32(0x0000fffc, Z29) \
	FILL32(0xfffc0000, Z28)

// func tiledQ3_Kx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ3_Kx1AVX512(SB), NOSPLIT, $0-64
	Q3KCONSTANTS
	TILED(288, 8, 192, ZERO1, HEADSCALES, Q3KTILE1, STORE1)

// func tiledQ3_Kx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ3_Kx2AVX512(SB), NOSPLIT, $0-64
	Q3KCONSTANTS
	TILED(288, 8, 192, ZERO2, HEADSCALES, Q3KTILE2, STORE2)

// func tiledQ3_Kx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ3_Kx4AVX512(SB), NOSPLIT, $0-64
	Q3KCONSTANTS
	TILED(288, 8, 192, ZERO4, HEADSCALES, Q3KTILE4, STORE4)

// func tiledQ3_KAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledQ3_KAMX(SB), 0, $25728-80
	AMX(0xfcfcfcfc, 288, 8, 192, Q3KCONSTANTS, HEADSCALES, Q3KTILEX, NONE, STEP2, POSTDST0, POSTDST1)

// The products of MLX's affine types. Quants are unsigned; a bias is a minimum whose integer is
// 1. Z29 is 1 in every word.

#define MLX2TILE(LESS, DOT, ADD, BIAS) \
	PREFETCHT0 AHEAD(SI)      \
	PREFETCHT0 (AHEAD+64)(SI) \
	LESS                      \
	TWOS(0, DOT, DOT)         \
	TWOS(1, DOT, DOT)         \
	ADD                       \
	BIAS(Z29)
#define MLX2TILE1 MLX2TILE(NOLESS1, DOT1, ADD1, BIAS1)
#define MLX2TILE4 MLX2TILE(NOLESS4, DOT4, ADD4, BIAS4)

#define MLX2CONSTANTS \
	FILL32(0x03030303, Z31) \
	FILL32(0x00010001, Z29)

#define MLX3TILE(LESS, DOT, ADD, BIAS) \
	PREFETCHT0 AHEAD(SI)                      \
	PREFETCHT0 (AHEAD+64)(SI)                 \
	PREFETCHT0 (AHEAD+128)(SI)                \
	VMOVDQU64  128(SI), Z21                   \
	LESS                                      \
	THREES(0, VPSLLW, 2, VPSLLW, 1, DOT, DOT) \
	THREES(1, VPSRLW, 0, VPSRLW, 1, DOT, DOT) \
	ADD                                       \
	BIAS(Z29)
#define MLX3TILE1 MLX3TILE(NOLESS1, DOT1, ADD1, BIAS1)
#define MLX3TILE4 MLX3TILE(NOLESS4, DOT4, ADD4, BIAS4)

#define MLX3CONSTANTS \
	MLX2CONSTANTS \
	FILL32(0x04040404, Z30)

#define MLX5TILE(LESS, DOT, ADD, BIAS) \
	LESS             \
	ALLFIVES(DOT)    \
	ADD              \
	BIAS(Z29)
#define MLX5TILE1 MLX5TILE(NOLESS1, DOT1, ADD1, BIAS1)
#define MLX5TILE4 MLX5TILE(NOLESS4, DOT4, ADD4, BIAS4)

#define MLX5CONSTANTS \
	FIVECONSTANTS \
	FILL32(0x00010001, Z29)

// func mlx2x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)
TEXT ·mlx2x1AVX512(SB), NOSPLIT, $0-80
	MLX2CONSTANTS
	MLX(0, 128, ZERO1, MLX2TILE1, STORE1)

// func mlx2x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)
TEXT ·mlx2x4AVX512(SB), NOSPLIT, $0-80
	MLX2CONSTANTS
	MLX(0, 128, ZERO4, MLX2TILE4, STORE4)

// func mlx3x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)
TEXT ·mlx3x1AVX512(SB), NOSPLIT, $0-80
	MLX3CONSTANTS
	MLX(0, 192, ZERO1, MLX3TILE1, STORE1)

// func mlx3x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)
TEXT ·mlx3x4AVX512(SB), NOSPLIT, $0-80
	MLX3CONSTANTS
	MLX(0, 192, ZERO4, MLX3TILE4, STORE4)

// func mlx5x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)
TEXT ·mlx5x1AVX512(SB), NOSPLIT, $0-80
	MLX5CONSTANTS
	MLX(0, 320, ZERO1, MLX5TILE1, STORE1)

// func mlx5x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)
TEXT ·mlx5x4AVX512(SB), NOSPLIT, $0-80
	MLX5CONSTANTS
	MLX(0, 320, ZERO4, MLX5TILE4, STORE4)
