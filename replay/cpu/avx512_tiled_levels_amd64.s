#include "textflag.h"
#include "funcdata.h"
#include "avx512_tiled_amd64.h"
#include "amx_amd64.h"

// Products of tiles of nibbles that index a table of levels.

// levelsIQ4 holds the levels of IQ4_NL and IQ4_XS plus 128, levelsMXFP4 the levels of MXFP4
// plus 12.
DATA levelsIQ4<>+0(SB)/8, $0x766a5d4f3f2d1801
DATA levelsIQ4<>+8(SB)/8, $0xf1d9c5b5a6998d81
GLOBL levelsIQ4<>(SB), RODATA|NOPTR, $16
DATA levelsMXFP4<>+0(SB)/8, $0x181412100f0e0d0c
DATA levelsMXFP4<>+8(SB)/8, $0x00040608090a0b0c
GLOBL levelsMXFP4<>(SB), RODATA|NOPTR, $16

// LEVELS processes column groups g and g+4, whose nibbles begin at offset at in the tile. Z29
// is the table of levels.
#define LEVELS(at, g, DOT) \
	VMOVDQU64 (at+64*g)(SI), Z16 \
	VPANDD    Z31, Z16, Z17      \
	VPSRLW    $4, Z16, Z16       \
	VPANDD    Z31, Z16, Z16      \
	VPSHUFB   Z17, Z29, Z17      \
	VPSHUFB   Z16, Z29, Z16      \
	DOT(g, Z17)                  \
	DOT(g+4, Z16)

#define ALLLEVELS(LESS, DOT) \
	PREFETCH4(0)      \
	LESS(Z30)         \
	LEVELS(0, 0, DOT) \
	LEVELS(0, 1, DOT) \
	LEVELS(0, 2, DOT) \
	LEVELS(0, 3, DOT)

#define IQ4NLTILE(LESS, DOT, ADD) \
	PREFETCHT0 (AHEAD+256)(SI) \
	ALLLEVELS(LESS, DOT)       \
	VCVTPH2PS  256(SI), Z24    \
	ADD
#define IQ4NLTILE1 IQ4NLTILE(LESS1, DOT1, ADD1)
#define IQ4NLTILE2 IQ4NLTILE(LESS2, DOT2, ADD2)
#define IQ4NLTILE4 IQ4NLTILE(LESS4, DOT4, ADD4)
#define IQ4NLTILE8 IQ4NLTILE(LESS8, DOT8, ADD8)
#define IQ4NLTILEX IQ4NLTILE(NONEOF, KEEP, KEEPD)

// Z30 is -128 in every word.
#define IQ4CONSTANTS \
	FILL32(0x0f0f0f0f, Z31) \
	FILL32(0xff80ff80, Z30) \
	VBROADCASTI32X4 levelsIQ4<>(SB), Z29

// func tiledIQ4_NLx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledIQ4_NLx1AVX512(SB), NOSPLIT, $0-64
	IQ4CONSTANTS
	TILED(0, 1, 288, ZERO1, NOHEAD, IQ4NLTILE1, STORE1)

// func tiledIQ4_NLx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledIQ4_NLx2AVX512(SB), NOSPLIT, $0-64
	IQ4CONSTANTS
	TILED(0, 1, 288, ZERO2, NOHEAD, IQ4NLTILE2, STORE2)

// func tiledIQ4_NLx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledIQ4_NLx4AVX512(SB), NOSPLIT, $0-64
	IQ4CONSTANTS
	TILED(0, 1, 288, ZERO4, NOHEAD, IQ4NLTILE4, STORE4)

// func tiledIQ4_NLx8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledIQ4_NLx8AVX512(SB), NOSPLIT, $0-64
	IQ4CONSTANTS
	TILED8(0, 1, 288, NOHEAD, IQ4NLTILE8)

// func tiledIQ4_NLAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledIQ4_NLAMX(SB), 0, $25728-80
	AMX(0x80808080, 0, 1, 288, IQ4CONSTANTS, NOHEAD, IQ4NLTILEX, NONE, STEP1, POSTD0, POSTD1)

#define IQ4XSTILE(LESS, DOT, ADD) \
	ALLLEVELS(LESS, DOT) \
	VPMOVSXBD (R8), Z26  \
	VCVTDQ2PS Z26, Z26   \
	VMULPS    Z24, Z26, Z26 \
	ADDQ      $16, R8    \
	ADD
#define IQ4XSTILE1 IQ4XSTILE(LESS1, DOT1, ADDK1)
#define IQ4XSTILE2 IQ4XSTILE(LESS2, DOT2, ADDK2)
#define IQ4XSTILE4 IQ4XSTILE(LESS4, DOT4, ADDK4)
#define IQ4XSTILE8 IQ4XSTILE(LESS8, DOT8, ADDK8)
#define IQ4XSTILEX IQ4XSTILE(NONEOF, KEEP, KEEPDS)

// func tiledIQ4_XSx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledIQ4_XSx1AVX512(SB), NOSPLIT, $0-64
	IQ4CONSTANTS
	TILED(160, 8, 256, ZERO1, HEADSCALES, IQ4XSTILE1, STORE1)

// func tiledIQ4_XSx2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledIQ4_XSx2AVX512(SB), NOSPLIT, $0-64
	IQ4CONSTANTS
	TILED(160, 8, 256, ZERO2, HEADSCALES, IQ4XSTILE2, STORE2)

// func tiledIQ4_XSx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledIQ4_XSx4AVX512(SB), NOSPLIT, $0-64
	IQ4CONSTANTS
	TILED(160, 8, 256, ZERO4, HEADSCALES, IQ4XSTILE4, STORE4)

// func tiledIQ4_XSx8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledIQ4_XSx8AVX512(SB), NOSPLIT, $0-64
	IQ4CONSTANTS
	TILED8(160, 8, 256, HEADSCALES, IQ4XSTILE8)

// func tiledIQ4_XSAMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledIQ4_XSAMX(SB), 0, $25728-80
	AMX(0x80808080, 160, 8, 256, IQ4CONSTANTS, HEADSCALES, IQ4XSTILEX, NONE, STEP1, POSTDS0, POSTDS1)

// MXFP4TILE adds the products of a tile of MXFP4. A block's scale is 2^(e-127), where e is its
// exponent byte. The table holds twice the values of E2M1, so the products are multiplied by
// half the scale, 2^(e-128). It is subnormal for e below 2; VSCALEFPS is exact for these, too.
#define MXFP4TILE(LESS, DOT, ADD) \
	PREFETCHT0 (AHEAD+256)(SI) \
	ALLLEVELS(LESS, DOT)       \
	VPMOVZXBD  256(SI), Z24    \
	VCVTDQ2PS  Z24, Z24        \
	VADDPS     Z28, Z24, Z24   \
	VSCALEFPS  Z24, Z27, Z24   \
	ADD
#define MXFP4TILE1 MXFP4TILE(LESS1, DOT1, ADD1)
#define MXFP4TILE2 MXFP4TILE(LESS2, DOT2, ADD2)
#define MXFP4TILE4 MXFP4TILE(LESS4, DOT4, ADD4)
#define MXFP4TILE8 MXFP4TILE(LESS8, DOT8, ADD8)
#define MXFP4TILEX MXFP4TILE(NONEOF, KEEP, KEEPD)

// Z30 is -12 in every word; Z28 and Z27 are -128 and 1 as float32.
#define MXFP4CONSTANTS \
	FILL32(0x0f0f0f0f, Z31)                \
	FILL32(0xfff4fff4, Z30)                \
	VBROADCASTI32X4 levelsMXFP4<>(SB), Z29 \
	FILL32(0xc3000000, Z28)                \
	FILL32(0x3f800000, Z27)

// func tiledMXFP4x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledMXFP4x1AVX512(SB), NOSPLIT, $0-64
	MXFP4CONSTANTS
	TILED(0, 1, 272, ZERO1, NOHEAD, MXFP4TILE1, STORE1)

// func tiledMXFP4x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledMXFP4x2AVX512(SB), NOSPLIT, $0-64
	MXFP4CONSTANTS
	TILED(0, 1, 272, ZERO2, NOHEAD, MXFP4TILE2, STORE2)

// func tiledMXFP4x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledMXFP4x4AVX512(SB), NOSPLIT, $0-64
	MXFP4CONSTANTS
	TILED(0, 1, 272, ZERO4, NOHEAD, MXFP4TILE4, STORE4)

// func tiledMXFP4x8AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledMXFP4x8AVX512(SB), NOSPLIT, $0-64
	MXFP4CONSTANTS
	TILED8(0, 1, 272, NOHEAD, MXFP4TILE8)

// func tiledMXFP4AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledMXFP4AMX(SB), 0, $25728-80
	AMX(0xf4f4f4f4, 0, 1, 272, MXFP4CONSTANTS, NOHEAD, MXFP4TILEX, NONE, STEP1, POSTD0, POSTD1)

// HALVES is LEVELS with separate integers for columns 0 to 15 and 16 to 31.
#define HALVES(g, DOT, DOTHIGH) \
	VMOVDQU64 (64*g)(SI), Z16 \
	VPANDD    Z31, Z16, Z17   \
	VPSRLW    $4, Z16, Z16    \
	VPANDD    Z31, Z16, Z16   \
	VPSHUFB   Z17, Z29, Z17   \
	VPSHUFB   Z16, Z29, Z16   \
	DOT(g, Z17)               \
	DOTHIGH(g+4, Z16)

// UE4M3 converts 16 scales s from UE4M3 bytes to the float32 numbers s * 2^9, which are s/2 in
// units of 2^-10. A byte shifted left by 7 bits is a float16 with the value s * 2^-8, which is
// multiplied by 2^17 (Z25). NaN (0x7f) becomes 0; Y23 is 0x7f in every word.
#define UE4M3(at, SCALES) \
	VPMOVZXBW   at(SI), Y16     \
	VPCMPEQW    Y23, Y16, K1    \
	KNOTW       K1, K1          \
	VPSLLW      $9, Y16, Y16    \
	VPSRLW      $2, Y16, Y16    \
	VCVTPH2PS.Z Y16, K1, SCALES \
	VMULPS      Z25, SCALES, SCALES

#define NVFP4TILE(LESS, LESSHIGH, DOT, DOTHIGH, ADD) \
	PREFETCH4(0)               \
	PREFETCHT0 (AHEAD+256)(SI) \
	LESS(Z30)                  \
	LESSHIGH(Z28)              \
	HALVES(0, DOT, DOTHIGH)    \
	HALVES(1, DOT, DOTHIGH)    \
	HALVES(2, DOT, DOTHIGH)    \
	HALVES(3, DOT, DOTHIGH)    \
	UE4M3(256, Z26)            \
	UE4M3(272, Z27)            \
	ADD
#define NVFP4TILE1 NVFP4TILE(LESS1, LESSHIGH1, DOT1, DOTHIGH1, ADDKK1)
#define NVFP4TILE2 NVFP4TILE(LESS2, LESSHIGH2, DOT2, DOTHIGH2, ADDKK2)
#define NVFP4TILE4 NVFP4TILE(LESS4, LESSHIGH4, DOT4, DOTHIGH4, ADDKK4)
#define NVFP4TILEX NVFP4TILE(NONEOF, NONEOF, KEEP, KEEP, KEEPDST)

// Z30 is -12 in the words of columns 0 to 15, Z28 in the words of columns 16 to 31. Z24 is
// 2^-10 and Z25 is 2^17.
#define NVFP4CONSTANTS \
	FILL32(0x0f0f0f0f, Z31)                \
	FILL32(0x0000fff4, Z30)                \
	FILL32(0xfff40000, Z28)                \
	VBROADCASTI32X4 levelsMXFP4<>(SB), Z29 \
	FILL32(0x3a800000, Z24)                \
	FILL32(0x48000000, Z25)                \
	FILL32(0x007f007f, Z23)

// func tiledNVFP4x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledNVFP4x1AVX512(SB), NOSPLIT, $0-64
	NVFP4CONSTANTS
	TILED(0, 2, 288, ZERO1, NOHEAD, NVFP4TILE1, STORE1)

// func tiledNVFP4x2AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledNVFP4x2AVX512(SB), NOSPLIT, $0-64
	NVFP4CONSTANTS
	TILED(0, 2, 288, ZERO2, NOHEAD, NVFP4TILE2, STORE2)

// func tiledNVFP4x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledNVFP4x4AVX512(SB), NOSPLIT, $0-64
	NVFP4CONSTANTS
	TILED(0, 2, 288, ZERO4, NOHEAD, NVFP4TILE4, STORE4)

// func tiledNVFP4AMX(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape)
TEXT ·tiledNVFP4AMX(SB), 0, $25728-80
	AMX(0xf4f4f4f4, 0, 2, 288, NVFP4CONSTANTS, NOHEAD, NVFP4TILEX, NONE, STEP2, POSTDST0, POSTDST1)
