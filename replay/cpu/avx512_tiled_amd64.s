#include "textflag.h"
#include "funcdata.h"
#include "avx512_tiled_amd64.h"
#include "amx_amd64.h"

// Products of tiles of bytes, nibbles and Q6_K quants.

// Q80TILE adds 128 to the signed weights to make them unsigned.
#define Q80GROUP(g, DOT) \
	VPXORD (64*g)(SI), Z31, Z16 \
	DOT(g, Z16)
#define Q80TILE(LESS, DOT, ADD) \
	PREFETCH4(0)               \
	PREFETCH4(256)             \
	PREFETCHT0 (AHEAD+512)(SI) \
	LESS(Z30)                  \
	Q80GROUP(0, DOT)           \
	Q80GROUP(1, DOT)           \
	Q80GROUP(2, DOT)           \
	Q80GROUP(3, DOT)           \
	Q80GROUP(4, DOT)           \
	Q80GROUP(5, DOT)           \
	Q80GROUP(6, DOT)           \
	Q80GROUP(7, DOT)           \
	VCVTPH2PS  512(SI), Z24    \
	ADD
#define Q80TILE1 Q80TILE(LESS1, DOT1, ADD1)
#define Q80TILE2 Q80TILE(LESS2, DOT2, ADD2)
#define Q80TILE4 Q80TILE(LESS4, DOT4, ADD4)
#define Q80TILE8 Q80TILE(LESS8, DOT8, ADD8)
#define Q80TILEX Q80TILE(NONEOF, KEEP, KEEPD)

// Z31 is 0x80 in every byte, Z30 is -128 in every word.
#define Q80CONSTANTS \
	FILL32(0x80808080, Z31) \
	FILL32(0xff80ff80, Z30)

// func tiledQ8_0x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ8_0x1AVX512(SB), NOSPLIT, $0-64
	Q80CONSTANTS
	TILED(0, 1, 544, ZERO1, NOHEAD, Q80TILE1, STORE1)

// func tiledQ8_0x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ8_0x2AVX512(SB), NOSPLIT, $0-64
	Q80CONSTANTS
	TILED(0, 1, 544, ZERO2, NOHEAD, Q80TILE2, STORE2)

// func tiledQ8_0x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ8_0x4AVX512(SB), NOSPLIT, $0-64
	Q80CONSTANTS
	TILED(0, 1, 544, ZERO4, NOHEAD, Q80TILE4, STORE4)

// func tiledQ8_0x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ8_0x8AVX512(SB), NOSPLIT, $0-64
	Q80CONSTANTS
	TILED8(0, 1, 544, NOHEAD, Q80TILE8)

// func tiledQ8_0AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledQ8_0AMX(SB), 0, $25728-80
	AMX(0x80808080, 0, 1, 544, Q80CONSTANTS, NOHEAD, Q80TILEX, NONE, STEP1, POSTD0, POSTD1)

#define Q40TILE(LESS, DOT, ADD) \
	PREFETCH4(0)               \
	PREFETCHT0 (AHEAD+256)(SI) \
	LESS(Z30)                  \
	NIBBLES(0, 0, DOT)         \
	NIBBLES(0, 1, DOT)         \
	NIBBLES(0, 2, DOT)         \
	NIBBLES(0, 3, DOT)         \
	VCVTPH2PS  256(SI), Z24    \
	ADD
#define Q40TILE1 Q40TILE(LESS1, DOT1, ADD1)
#define Q40TILE2 Q40TILE(LESS2, DOT2, ADD2)
#define Q40TILE4 Q40TILE(LESS4, DOT4, ADD4)
#define Q40TILE8 Q40TILE(LESS8, DOT8, ADD8)
#define Q40TILEX Q40TILE(NONEOF, KEEP, KEEPD)

// Z30 is -8 in every word.
#define Q40CONSTANTS \
	FILL32(0x0f0f0f0f, Z31) \
	FILL32(0xfff8fff8, Z30)

// func tiledQ4_0x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_0x1AVX512(SB), NOSPLIT, $0-64
	Q40CONSTANTS
	TILED(0, 1, 288, ZERO1, NOHEAD, Q40TILE1, STORE1)

// func tiledQ4_0x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_0x2AVX512(SB), NOSPLIT, $0-64
	Q40CONSTANTS
	TILED(0, 1, 288, ZERO2, NOHEAD, Q40TILE2, STORE2)

// func tiledQ4_0x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_0x4AVX512(SB), NOSPLIT, $0-64
	Q40CONSTANTS
	TILED(0, 1, 288, ZERO4, NOHEAD, Q40TILE4, STORE4)

// func tiledQ4_0x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_0x8AVX512(SB), NOSPLIT, $0-64
	Q40CONSTANTS
	TILED8(0, 1, 288, NOHEAD, Q40TILE8)

// func tiledQ4_0AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledQ4_0AMX(SB), 0, $25728-80
	AMX(0xf8f8f8f8, 0, 1, 288, Q40CONSTANTS, NOHEAD, Q40TILEX, NONE, STEP1, POSTD0, POSTD1)

#define Q41TILE(LESS, DOT, ADD, MIN) \
	PREFETCH4(0)               \
	PREFETCHT0 (AHEAD+256)(SI) \
	LESS                       \
	NIBBLES(0, 0, DOT)         \
	NIBBLES(0, 1, DOT)         \
	NIBBLES(0, 2, DOT)         \
	NIBBLES(0, 3, DOT)         \
	VCVTPH2PS  256(SI), Z24    \
	VCVTPH2PS  288(SI), Z25    \
	ADD                        \
	MIN(VFMADD231PS, Z25)
#define Q41TILE1 Q41TILE(NOLESS1, DOT1, ADD1, MIN1)
#define Q41TILE2 Q41TILE(NOLESS2, DOT2, ADD2, MIN2)
#define Q41TILE4 Q41TILE(NOLESS4, DOT4, ADD4, MIN4)
#define Q41TILE8 Q41TILE(NOLESS8, DOT8, ADD8, MIN8)
#define Q41TILEX Q41TILE(NONE, KEEP, KEEPD, KEEPMIN)

#define NIBBLECONSTANTS \
	FILL32(0x0f0f0f0f, Z31)

// func tiledQ4_1x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_1x1AVX512(SB), NOSPLIT, $0-64
	NIBBLECONSTANTS
	TILED(0, 1, 320, ZERO1, NOHEAD, Q41TILE1, STORE1)

// func tiledQ4_1x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_1x2AVX512(SB), NOSPLIT, $0-64
	NIBBLECONSTANTS
	TILED(0, 1, 320, ZERO2, NOHEAD, Q41TILE2, STORE2)

// func tiledQ4_1x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_1x4AVX512(SB), NOSPLIT, $0-64
	NIBBLECONSTANTS
	TILED(0, 1, 320, ZERO4, NOHEAD, Q41TILE4, STORE4)

// func tiledQ4_1x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_1x8AVX512(SB), NOSPLIT, $0-64
	NIBBLECONSTANTS
	TILED8(0, 1, 320, NOHEAD, Q41TILE8)

// func tiledQ4_1AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledQ4_1AMX(SB), 0, $25728-80
	AMX(0, 0, 1, 320, NIBBLECONSTANTS, NOHEAD, Q41TILEX, SUMS1, STEP1, POSTDM0, POSTDM1)

#define Q4KTILE(LESS, DOT, ADD, MIN) \
	PREFETCH4(0)                    \
	PREFETCHT0      (AHEAD+256)(SI) \
	LESS                            \
	NIBBLES(32, 0, DOT)             \
	NIBBLES(32, 1, DOT)             \
	NIBBLES(32, 2, DOT)             \
	NIBBLES(32, 3, DOT)             \
	VPMOVZXBD       (SI), Z26       \
	VCVTDQ2PS       Z26, Z26        \
	VMULPS          Z24, Z26, Z26   \
	VPMOVZXBD       16(SI), Z27     \
	VCVTDQ2PS       Z27, Z27        \
	VMULPS          Z25, Z27, Z27   \
	ADD                             \
	MIN(VFNMADD231PS, Z27)
#define Q4KTILE1 Q4KTILE(NOLESS1, DOT1, ADDK1, MIN1)
#define Q4KTILE2 Q4KTILE(NOLESS2, DOT2, ADDK2, MIN2)
#define Q4KTILE4 Q4KTILE(NOLESS4, DOT4, ADDK4, MIN4)
#define Q4KTILE8 Q4KTILE(NOLESS8, DOT8, ADDK8, MIN8)
#define Q4KTILEX Q4KTILE(NONE, KEEP, KEEPDS, KEEPMIN)

// func tiledQ4_Kx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_Kx1AVX512(SB), NOSPLIT, $0-64
	NIBBLECONSTANTS
	TILED(64, 8, 288, ZERO1, HEADMIN, Q4KTILE1, STORE1)

// func tiledQ4_Kx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_Kx2AVX512(SB), NOSPLIT, $0-64
	NIBBLECONSTANTS
	TILED(64, 8, 288, ZERO2, HEADMIN, Q4KTILE2, STORE2)

// func tiledQ4_Kx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_Kx4AVX512(SB), NOSPLIT, $0-64
	NIBBLECONSTANTS
	TILED(64, 8, 288, ZERO4, HEADMIN, Q4KTILE4, STORE4)

// func tiledQ4_Kx8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_Kx8AVX512(SB), NOSPLIT, $0-64
	NIBBLECONSTANTS
	TILED8(64, 8, 288, HEADMIN, Q4KTILE8)

// func tiledQ4_KAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledQ4_KAMX(SB), 0, $25728-80
	AMX(0, 64, 8, 288, NIBBLECONSTANTS, HEADMIN, Q4KTILEX, SUMS1, STEP1, POSTDSM0, POSTDSM1)

// SIX adds bits 4 and 5 of HIGH to the nibbles in LOW. Z30 is 0x30 in every byte.
#define SIX(HIGH, LOW) \
	VPTERNLOGD $0xf8, Z30, HIGH, LOW

// Q6KGROUPS processes column groups 2k, 2k+1, 2k+4 and 2k+5.
#define Q6KGROUPS(k, DOT, DOTHIGH) \
	VMOVDQU64 (288+64*k)(SI), Z16 \
	VMOVDQU64 (32+128*k)(SI), Z17 \
	VMOVDQU64 (96+128*k)(SI), Z18 \
	VPANDD    Z31, Z17, Z19       \
	VPSLLW    $4, Z16, Z20        \
	SIX(Z20, Z19)                 \
	DOT(2*k, Z19)                 \
	VPSRLW    $4, Z17, Z17        \
	VPANDD    Z31, Z17, Z17       \
	VPSLLW    $2, Z16, Z20        \
	SIX(Z20, Z17)                 \
	DOTHIGH(2*k+4, Z17)           \
	VPANDD    Z31, Z18, Z19       \
	SIX(Z16, Z19)                 \
	DOT(2*k+1, Z19)               \
	VPSRLW    $4, Z18, Z18        \
	VPANDD    Z31, Z18, Z18       \
	VPSRLW    $2, Z16, Z20        \
	SIX(Z20, Z18)                 \
	DOTHIGH(2*k+5, Z18)

#define Q6KTILE(LESS, LESSHIGH, DOT, DOTHIGH, ADD) \
	PREFETCH4(0)               \
	PREFETCHT0 (AHEAD+256)(SI) \
	PREFETCHT0 (AHEAD+320)(SI) \
	PREFETCHT0 (AHEAD+384)(SI) \
	LESS(Z29)                  \
	LESSHIGH(Z28)              \
	Q6KGROUPS(0, DOT, DOTHIGH) \
	Q6KGROUPS(1, DOT, DOTHIGH) \
	VPMOVSXBD  (SI), Z26       \
	VCVTDQ2PS  Z26, Z26        \
	VPMOVSXBD  16(SI), Z27     \
	VCVTDQ2PS  Z27, Z27        \
	ADD
#define Q6KTILE1 Q6KTILE(LESS1, LESSHIGH1, DOT1, DOTHIGH1, ADDKK1)
#define Q6KTILE2 Q6KTILE(LESS2, LESSHIGH2, DOT2, DOTHIGH2, ADDKK2)
#define Q6KTILE4 Q6KTILE(LESS4, LESSHIGH4, DOT4, DOTHIGH4, ADDKK4)
#define Q6KTILEX Q6KTILE(NONEOF, NONEOF, KEEP, KEEP, KEEPDST)

// Z29 is -32 in the words of columns 0 to 15, Z28 in the words of columns 16 to 31.
#define Q6KCONSTANTS \
	FILL32(0x0f0f0f0f, Z31) \
	FILL32(0x30303030, Z30) \
	FILL32(0x0000ffe0, Z29) \
	FILL32(0xffe00000, Z28)

// func tiledQ6_Kx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ6_Kx1AVX512(SB), NOSPLIT, $0-64
	Q6KCONSTANTS
	TILED(32, 8, 416, ZERO1, HEAD, Q6KTILE1, STORE1)

// func tiledQ6_Kx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ6_Kx2AVX512(SB), NOSPLIT, $0-64
	Q6KCONSTANTS
	TILED(32, 8, 416, ZERO2, HEAD, Q6KTILE2, STORE2)

// func tiledQ6_Kx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ6_Kx4AVX512(SB), NOSPLIT, $0-64
	Q6KCONSTANTS
	TILED(32, 8, 416, ZERO4, HEAD, Q6KTILE4, STORE4)

// func tiledQ6_KAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledQ6_KAMX(SB), 0, $25728-80
	AMX(0xe0e0e0e0, 32, 8, 416, Q6KCONSTANTS, HEAD, Q6KTILEX, NONE, STEP2, POSTDST0, POSTDST1)

// The products of MLX's affine types. Quants are unsigned; a bias is a minimum whose integer is
// 1. Z29 is 1 in every word.

#define MLX4TILE(LESS, DOT, ADD, BIAS) \
	PREFETCH4(0)       \
	LESS               \
	NIBBLES(0, 0, DOT) \
	NIBBLES(0, 1, DOT) \
	NIBBLES(0, 2, DOT) \
	NIBBLES(0, 3, DOT) \
	ADD                \
	BIAS(Z29)
#define MLX4TILE1 MLX4TILE(NOLESS1, DOT1, ADD1, BIAS1)
#define MLX4TILE4 MLX4TILE(NOLESS4, DOT4, ADD4, BIAS4)

#define MLX4CONSTANTS \
	FILL32(0x0f0f0f0f, Z31) \
	FILL32(0x00010001, Z29)

// MLX6TILE multiplies a tile of 6-bit MLX quants. The quants are stored as in Q6_K, but without the
// 32 bytes of scales before them. Q6KGROUPS expects these bytes, so SI is 32 bytes before the tile.
#define MLX6TILE(LESS, DOT, ADD, BIAS) \
	PREFETCH4(0)               \
	PREFETCHT0 (AHEAD+256)(SI) \
	PREFETCHT0 (AHEAD+320)(SI) \
	LESS                       \
	Q6KGROUPS(0, DOT, DOT)     \
	Q6KGROUPS(1, DOT, DOT)     \
	ADD                        \
	BIAS(Z29)
#define MLX6TILE1 MLX6TILE(NOLESS1, DOT1, ADD1, BIAS1)
#define MLX6TILE4 MLX6TILE(NOLESS4, DOT4, ADD4, BIAS4)

#define MLX6CONSTANTS \
	MLX4CONSTANTS \
	FILL32(0x30303030, Z30)

#define BYTES(g, DOT) \
	VMOVDQU64 (64*g)(SI), Z16 \
	DOT(g, Z16)
#define MLX8TILE(LESS, DOT, ADD, BIAS) \
	PREFETCH4(0)     \
	PREFETCH4(256)   \
	LESS             \
	BYTES(0, DOT)    \
	BYTES(1, DOT)    \
	BYTES(2, DOT)    \
	BYTES(3, DOT)    \
	BYTES(4, DOT)    \
	BYTES(5, DOT)    \
	BYTES(6, DOT)    \
	BYTES(7, DOT)    \
	ADD              \
	BIAS(Z29)
#define MLX8TILE1 MLX8TILE(NOLESS1, DOT1, ADD1, BIAS1)
#define MLX8TILE4 MLX8TILE(NOLESS4, DOT4, ADD4, BIAS4)

#define MLX8CONSTANTS \
	FILL32(0x00010001, Z29)

// func mlx4x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)
TEXT ·mlx4x1AVX512(SB), NOSPLIT, $0-80
	MLX4CONSTANTS
	MLX(0, 256, ZERO1, MLX4TILE1, STORE1)

// func mlx4x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)
TEXT ·mlx4x4AVX512(SB), NOSPLIT, $0-80
	MLX4CONSTANTS
	MLX(0, 256, ZERO4, MLX4TILE4, STORE4)

// func mlx6x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)
TEXT ·mlx6x1AVX512(SB), NOSPLIT, $0-80
	MLX6CONSTANTS
	MLX(32, 384, ZERO1, MLX6TILE1, STORE1)

// func mlx6x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)
TEXT ·mlx6x4AVX512(SB), NOSPLIT, $0-80
	MLX6CONSTANTS
	MLX(32, 384, ZERO4, MLX6TILE4, STORE4)

// func mlx8x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)
TEXT ·mlx8x1AVX512(SB), NOSPLIT, $0-80
	MLX8CONSTANTS
	MLX(0, 512, ZERO1, MLX8TILE1, STORE1)

// func mlx8x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, tiles, bf16 int)
TEXT ·mlx8x4AVX512(SB), NOSPLIT, $0-80
	MLX8CONSTANTS
	MLX(0, 512, ZERO4, MLX8TILE4, STORE4)
