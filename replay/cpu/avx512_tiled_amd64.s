#include "textflag.h"

// Products of strips of 16 rows in layout Tiled16 with one or four rows of
// quantised activations, in the arithmetic of tiledFunc. A lane is a row of the
// strip. The registers are
//
//	SI       the tile                 Z0-Z3    sums, for each row of x
//	AX       quants of x              Z4-Z7    sums of the minimums' part
//	DX       scales of x              Z8-Z11   integers
//	BX       sums of x                Z12-Z15  those of columns 16 to 31 (Q6_K)
//	R12 R13  stride of x, and thrice  Z16-Z20  temporary
//	CX R14   blocks and tiles left    Z24 Z25  d and dmin
//	DI R8    y and its stride         Z26 Z27  scales and minimums of the tile
//	R9       strips left              Z28-Z31  constants
//	R10 R11  blocks, rows of x
//
// VPDPBUSD adds four products of an unsigned and a signed byte to 32 bits and
// does not saturate. The weights are the unsigned ones, so what they are above
// their values (128, 8 or 32) times the sum of x is subtracted: that is what
// the integers begin with.

// AHEAD is how far before its use a tile is asked for.
#define AHEAD 2048

#define PREFETCH4(at) \
	PREFETCHT0 (AHEAD+at)(SI)     \
	PREFETCHT0 (AHEAD+at+64)(SI)  \
	PREFETCHT0 (AHEAD+at+128)(SI) \
	PREFETCHT0 (AHEAD+at+192)(SI)

// FILL32 sets every 4 bytes of Z to a constant. It uses AX.
#define FILL32(value, Z) \
	MOVL         $value, AX \
	VPBROADCASTD AX, Z

// TILED is a whole function for blocks of head bytes, which HEAD reads, and a
// number of tiles of size bytes, which TILE does. ZERO comes before a strip and
// STORE after it.
#define TILED(head, tiles, size, ZERO, HEAD, TILE, STORE) \
	MOVQ y+0(FP), DI         \
	MOVQ yStride+8(FP), R8   \
	MOVQ w+16(FP), SI        \
	MOVQ strips+24(FP), R9   \
	MOVQ blocks+32(FP), R10  \
	MOVQ x+40(FP), R11       \
	MOVQ xStride+48(FP), R12 \
	LEAQ (R12)(R12*2), R13   \
strip: \
	TESTQ R9, R9            \
	JLE   done              \
	MOVQ  in+56(FP), R14    \
	SHRQ  $3, R14           \
	MOVQ  R11, AX           \
	LEAQ  (R11)(R14*8), DX  \
	LEAQ  (DX)(R14*1), BX   \
	MOVQ  R10, CX           \
	ZERO                    \
block: \
	HEAD                    \
	ADDQ  $head, SI         \
	MOVL  $tiles, R14       \
tile: \
	TILE                    \
	ADDQ  $size, SI         \
	ADDQ  $32, AX           \
	ADDQ  $4, DX            \
	ADDQ  $4, BX            \
	DECL  R14               \
	JNZ   tile              \
	DECQ  CX                \
	JNZ   block             \
	STORE                   \
	ADDQ  $64, DI           \
	DECQ  R9                \
	JMP   strip             \
done: \
	VZEROUPPER \
	RET

// What ends in 1 is for one row of x and what ends in 4 for four.

#define ZERO1 \
	VPXORD Z0, Z0, Z0 \
	VPXORD Z4, Z4, Z4
#define ZERO4 \
	ZERO1             \
	VPXORD Z1, Z1, Z1 \
	VPXORD Z2, Z2, Z2 \
	VPXORD Z3, Z3, Z3 \
	VPXORD Z5, Z5, Z5 \
	VPXORD Z6, Z6, Z6 \
	VPXORD Z7, Z7, Z7

#define STORE1 \
	VMOVUPS Z0, (DI)
#define STORE4 \
	LEAQ    (DI)(R8*2), AX \
	VMOVUPS Z0, (DI)       \
	VMOVUPS Z1, (DI)(R8*1) \
	VMOVUPS Z2, (AX)       \
	VMOVUPS Z3, (AX)(R8*1)

// LESS begins integers with the sums of x, as pairs of 16 bits, times the
// words of C.
#define LESS(at, C, I) \
	VPXORD        I, I, I  \
	VPDPWSSD.BCST at, C, I
#define LESS1(C) \
	LESS((BX), C, Z8)
#define LESS4(C) \
	LESS((BX), C, Z8)         \
	LESS((BX)(R12*1), C, Z9)  \
	LESS((BX)(R12*2), C, Z10) \
	LESS((BX)(R13*1), C, Z11)
#define LESSHIGH1(C) \
	LESS((BX), C, Z12)
#define LESSHIGH4(C) \
	LESS((BX), C, Z12)        \
	LESS((BX)(R12*1), C, Z13) \
	LESS((BX)(R12*2), C, Z14) \
	LESS((BX)(R13*1), C, Z15)

// DOT adds the products of W, group g of the weights, with x.
#define DOT1(g, W) \
	VPDPBUSD.BCST (4*(g))(AX), W, Z8
#define DOT4(g, W) \
	VPDPBUSD.BCST (4*(g))(AX), W, Z8         \
	VPDPBUSD.BCST (4*(g))(AX)(R12*1), W, Z9  \
	VPDPBUSD.BCST (4*(g))(AX)(R12*2), W, Z10 \
	VPDPBUSD.BCST (4*(g))(AX)(R13*1), W, Z11
#define DOTHIGH1(g, W) \
	VPDPBUSD.BCST (4*(g))(AX), W, Z12
#define DOTHIGH4(g, W) \
	VPDPBUSD.BCST (4*(g))(AX), W, Z12        \
	VPDPBUSD.BCST (4*(g))(AX)(R12*1), W, Z13 \
	VPDPBUSD.BCST (4*(g))(AX)(R12*2), W, Z14 \
	VPDPBUSD.BCST (4*(g))(AX)(R13*1), W, Z15

// ADD adds the integers I times d and the scale of x, which is at dx.
#define ADD(dx, I, ACC) \
	VMULPS.BCST dx, Z24, Z16 \
	VCVTDQ2PS   I, I         \
	VMULPS      Z16, I, I    \
	VADDPS      I, ACC, ACC
#define ADD1 \
	ADD((DX), Z8, Z0)
#define ADD4 \
	ADD((DX), Z8, Z0)         \
	ADD((DX)(R12*1), Z9, Z1)  \
	ADD((DX)(R12*2), Z10, Z2) \
	ADD((DX)(R13*1), Z11, Z3)

#define NOHEAD

// Q80TILE has signed weights, which plus 128 are unsigned.
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
	VCVTPH2PS 512(SI), Z24     \
	ADD
#define Q80TILE1 Q80TILE(LESS1, DOT1, ADD1)
#define Q80TILE4 Q80TILE(LESS4, DOT4, ADD4)

// Z31 is the sign bits, Z30 words of -128.
#define Q80CONSTANTS \
	FILL32(0x80808080, Z31) \
	FILL32(0xff80ff80, Z30)

// func tiledQ8_0x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ8_0x1AVX512(SB), NOSPLIT, $0-64
	Q80CONSTANTS
	TILED(0, 1, 544, ZERO1, NOHEAD, Q80TILE1, STORE1)

// func tiledQ8_0x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ8_0x4AVX512(SB), NOSPLIT, $0-64
	Q80CONSTANTS
	TILED(0, 1, 544, ZERO4, NOHEAD, Q80TILE4, STORE4)

// NIBBLES does groups g and g+4, whose nibbles begin at a place in the tile.
// Z31 is 0x0f bytes.
#define NIBBLES(at, g, DOT) \
	VMOVDQU64 (at+64*g)(SI), Z16 \
	VPANDD    Z31, Z16, Z17      \
	VPSRLW    $4, Z16, Z16       \
	VPANDD    Z31, Z16, Z16      \
	DOT(g, Z17)                  \
	DOT(g+4, Z16)

#define Q40TILE(LESS, DOT, ADD) \
	PREFETCH4(0)               \
	PREFETCHT0 (AHEAD+256)(SI) \
	LESS(Z30)                  \
	NIBBLES(0, 0, DOT)         \
	NIBBLES(0, 1, DOT)         \
	NIBBLES(0, 2, DOT)         \
	NIBBLES(0, 3, DOT)         \
	VCVTPH2PS 256(SI), Z24     \
	ADD
#define Q40TILE1 Q40TILE(LESS1, DOT1, ADD1)
#define Q40TILE4 Q40TILE(LESS4, DOT4, ADD4)

// Z30 is words of -8.
#define Q40CONSTANTS \
	FILL32(0x0f0f0f0f, Z31) \
	FILL32(0xfff8fff8, Z30)

// func tiledQ4_0x1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_0x1AVX512(SB), NOSPLIT, $0-64
	Q40CONSTANTS
	TILED(0, 1, 288, ZERO1, NOHEAD, Q40TILE1, STORE1)

// func tiledQ4_0x4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_0x4AVX512(SB), NOSPLIT, $0-64
	Q40CONSTANTS
	TILED(0, 1, 288, ZERO4, NOHEAD, Q40TILE4, STORE4)

// The K types' integers times scales are below 2^24, and so is their sum: as
// float32 they are exact, and cost less than as 32-bit integers.

// wordPairs makes each byte of 16, repeated in all quarters, two words.
DATA wordPairs<>+0(SB)/8, $0x8001800180008000
DATA wordPairs<>+8(SB)/8, $0x8003800380028002
DATA wordPairs<>+16(SB)/8, $0x8005800580048004
DATA wordPairs<>+24(SB)/8, $0x8007800780068006
DATA wordPairs<>+32(SB)/8, $0x8009800980088008
DATA wordPairs<>+40(SB)/8, $0x800b800b800a800a
DATA wordPairs<>+48(SB)/8, $0x800d800d800c800c
DATA wordPairs<>+56(SB)/8, $0x800f800f800e800e
GLOBL wordPairs<>(SB), RODATA|NOPTR, $64

#define Q4KHEAD \
	VCVTPH2PS (SI), Z24 \
	VCVTPH2PS 32(SI), Z25

#define NOLESS1 \
	VPXORD Z8, Z8, Z8
#define NOLESS4 \
	VPXORD Z8, Z8, Z8    \
	VPXORD Z9, Z9, Z9    \
	VPXORD Z10, Z10, Z10 \
	VPXORD Z11, Z11, Z11

// Q4KADD adds the integers times their scale, and the minimum times the sum of
// x, which is at s.
#define Q4KADD(dx, s, I, ACC, MIN) \
	VCVTDQ2PS     I, I          \
	VMULPS        Z26, I, I     \
	VMULPS.BCST   dx, Z24, Z16  \
	VMULPS        Z16, I, I     \
	VADDPS        I, ACC, ACC   \
	VPXORD        Z17, Z17, Z17 \
	VPDPWSSD.BCST s, Z27, Z17   \
	VCVTDQ2PS     Z17, Z17      \
	VMULPS.BCST   dx, Z25, Z16  \
	VMULPS        Z16, Z17, Z17 \
	VSUBPS        Z17, MIN, MIN
#define Q4KADD1 \
	Q4KADD((DX), (BX), Z8, Z0, Z4)
#define Q4KADD4 \
	Q4KADD((DX), (BX), Z8, Z0, Z4)                \
	Q4KADD((DX)(R12*1), (BX)(R12*1), Z9, Z1, Z5)  \
	Q4KADD((DX)(R12*2), (BX)(R12*2), Z10, Z2, Z6) \
	Q4KADD((DX)(R13*1), (BX)(R13*1), Z11, Z3, Z7)

#define Q4KTILE(LESS, DOT, ADD) \
	PREFETCH4(0)                  \
	PREFETCHT0 (AHEAD+256)(SI)    \
	LESS                          \
	NIBBLES(32, 0, DOT)           \
	NIBBLES(32, 1, DOT)           \
	NIBBLES(32, 2, DOT)           \
	NIBBLES(32, 3, DOT)           \
	VPMOVZXBD       (SI), Z26     \
	VCVTDQ2PS       Z26, Z26      \
	VBROADCASTI32X4 16(SI), Z27   \
	VPSHUFB         Z30, Z27, Z27 \
	ADD
#define Q4KTILE1 Q4KTILE(NOLESS1, DOT1, Q4KADD1)
#define Q4KTILE4 Q4KTILE(NOLESS4, DOT4, Q4KADD4)

#define Q4KSTORE1 \
	VADDPS Z4, Z0, Z0 \
	STORE1
#define Q4KSTORE4 \
	VADDPS Z4, Z0, Z0 \
	VADDPS Z5, Z1, Z1 \
	VADDPS Z6, Z2, Z2 \
	VADDPS Z7, Z3, Z3 \
	STORE4

#define Q4KCONSTANTS \
	FILL32(0x0f0f0f0f, Z31) \
	VMOVDQU64 wordPairs<>(SB), Z30

// func tiledQ4_Kx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_Kx1AVX512(SB), NOSPLIT, $0-64
	Q4KCONSTANTS
	TILED(64, 8, 288, ZERO1, Q4KHEAD, Q4KTILE1, Q4KSTORE1)

// func tiledQ4_Kx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ4_Kx4AVX512(SB), NOSPLIT, $0-64
	Q4KCONSTANTS
	TILED(64, 8, 288, ZERO4, Q4KHEAD, Q4KTILE4, Q4KSTORE4)

#define Q6KHEAD \
	VCVTPH2PS (SI), Z24

// SIX adds to the nibbles in LOW the bits of HIGH at 4 and 5. Z30 is 0x30
// bytes.
#define SIX(HIGH, LOW) \
	VPTERNLOGD $0xf8, Z30, HIGH, LOW

// Q6KGROUPS does groups 2k, 2k+1, 2k+4 and 2k+5.
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

// Q6KADD adds the integers I of columns 0 to 15 and J of columns 16 to 31. The
// fused product and sum are exact.
#define Q6KADD(dx, I, J, ACC) \
	VCVTDQ2PS   I, I         \
	VCVTDQ2PS   J, J         \
	VMULPS      Z26, I, I    \
	VFMADD231PS Z27, J, I    \
	VMULPS.BCST dx, Z24, Z16 \
	VMULPS      Z16, I, I    \
	VADDPS      I, ACC, ACC
#define Q6KADD1 \
	Q6KADD((DX), Z8, Z12, Z0)
#define Q6KADD4 \
	Q6KADD((DX), Z8, Z12, Z0)         \
	Q6KADD((DX)(R12*1), Z9, Z13, Z1)  \
	Q6KADD((DX)(R12*2), Z10, Z14, Z2) \
	Q6KADD((DX)(R13*1), Z11, Z15, Z3)

#define Q6KTILE(LESS, LESSHIGH, DOT, DOTHIGH, ADD) \
	PREFETCH4(0)               \
	PREFETCHT0 (AHEAD+256)(SI) \
	PREFETCHT0 (AHEAD+320)(SI) \
	PREFETCHT0 (AHEAD+384)(SI) \
	LESS(Z29)                  \
	LESSHIGH(Z28)              \
	Q6KGROUPS(0, DOT, DOTHIGH) \
	Q6KGROUPS(1, DOT, DOTHIGH) \
	VPMOVSXBD (SI), Z26        \
	VCVTDQ2PS Z26, Z26         \
	VPMOVSXBD 16(SI), Z27      \
	VCVTDQ2PS Z27, Z27         \
	ADD
#define Q6KTILE1 Q6KTILE(LESS1, LESSHIGH1, DOT1, DOTHIGH1, Q6KADD1)
#define Q6KTILE4 Q6KTILE(LESS4, LESSHIGH4, DOT4, DOTHIGH4, Q6KADD4)

// Z29 and Z28 are -32 in the words of one half of the columns.
#define Q6KCONSTANTS \
	FILL32(0x0f0f0f0f, Z31) \
	FILL32(0x30303030, Z30) \
	FILL32(0x0000ffe0, Z29) \
	FILL32(0xffe00000, Z28)

// func tiledQ6_Kx1AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ6_Kx1AVX512(SB), NOSPLIT, $0-64
	Q6KCONSTANTS
	TILED(32, 8, 416, ZERO1, Q6KHEAD, Q6KTILE1, STORE1)

// func tiledQ6_Kx4AVX512(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in int)
TEXT ·tiledQ6_Kx4AVX512(SB), NOSPLIT, $0-64
	Q6KCONSTANTS
	TILED(32, 8, 416, ZERO4, Q6KHEAD, Q6KTILE4, STORE4)
