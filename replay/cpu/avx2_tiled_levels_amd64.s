#include "textflag.h"
#include "avx2_tiled_amd64.h"

// Products of tiles whose nibbles index a table of levels. Y0 and Y1 hold the levels of column
// groups g and g+4 of 8 rows of weights, Y2 and Y3 their absolute values. Y6 is 0x0f in every
// byte, and Y7 is the table in both halves.

// levelsIQ4 holds the levels of IQ4_NL and IQ4_XS, levelsMXFP4 the levels of MXFP4.
DATA levelsIQ4<>+0(SB)/8, $0xf6eaddcfbfad9881
DATA levelsIQ4<>+8(SB)/8, $0x7159453526190d01
GLOBL levelsIQ4<>(SB), RODATA|NOPTR, $16
DATA levelsMXFP4<>+0(SB)/8, $0x0c08060403020100
DATA levelsMXFP4<>+8(SB)/8, $0xf4f8fafcfdfeff00
GLOBL levelsMXFP4<>(SB), RODATA|NOPTR, $16

#define TABLE(levels) \
	VMOVDQU        ·tiledLow(SB), Y6 \
	VBROADCASTI128 levels(SB), Y7

#define LEVELS(at) \
	VMOVDQU at(SI), Y0 \
	VPSRLW  $4, Y0, Y1 \
	VPAND   Y6, Y0, Y0 \
	VPAND   Y6, Y1, Y1 \
	VPSHUFB Y0, Y7, Y0 \
	VPSHUFB Y1, Y7, Y1 \
	VPABSB  Y0, Y2     \
	VPABSB  Y1, Y3

// SIGNED multiplies column groups g and g+4 of a row of x by the levels. VPMADDUBSW needs one
// unsigned factor, so the absolute values of the levels are multiplied by x with the signs of the
// levels. Both factors are within ±127, so the sum of two products fits in 16 bits.
#define SIGNED(g, Q) \
	VPBROADCASTD (4*g)Q, Y4    \
	VPBROADCASTD (4*g+16)Q, Y5 \
	VPSIGNB      Y0, Y4, Y4    \
	VPSIGNB      Y1, Y5, Y5    \
	VPMADDUBSW   Y4, Y2, Y4    \
	VPMADDUBSW   Y5, Y3, Y5

// LARGE multiplies column groups g and g+4 and adds the sums of two products, times integer
// scales, to the 32-bit integer sums INT.
#define LARGE(g, SCALES, Q, INT) \
	SIGNED(g, Q)            \
	VPMADDWD SCALES, Y4, Y4 \
	VPMADDWD SCALES, Y5, Y5 \
	VPADDD   Y5, Y4, Y4     \
	VPADDD   Y4, INT, INT

// SMALL does the same for levels within ±12, without integer scales. INT holds 16-bit sums: the
// sum of a whole block is at most 8 * 2 * 12 * 127 and fits. SMALL does not use SCALES.
#define SMALL(g, SCALES, Q, INT) \
	SIGNED(g, Q)      \
	VPADDW Y5, Y4, Y4 \
	VPADDW Y4, INT, INT

// GROUP1 and GROUP4 process column groups g and g+4 of all 16 rows of weights, for one and for four
// rows of x. PRODUCT is LARGE or SMALL.
#define GROUP1(g, PRODUCT, SCALES0, SCALES1) \
	LEVELS((64*g))              \
	PRODUCT(g, SCALES0, Q0, Y8) \
	LEVELS((64*g+32))           \
	PRODUCT(g, SCALES1, Q0, Y9)
#define GROUP4(g, PRODUCT, SCALES0, SCALES1) \
	LEVELS((64*g))               \
	PRODUCT(g, SCALES0, Q0, Y8)  \
	PRODUCT(g, SCALES0, Q1, Y10) \
	PRODUCT(g, SCALES0, Q2, Y12) \
	PRODUCT(g, SCALES0, Q3, Y14) \
	LEVELS((64*g+32))            \
	PRODUCT(g, SCALES1, Q0, Y9)  \
	PRODUCT(g, SCALES1, Q1, Y11) \
	PRODUCT(g, SCALES1, Q2, Y13) \
	PRODUCT(g, SCALES1, Q3, Y15)

// TILE multiplies all column groups of a tile.
#define TILE(AHEAD, ZERO, GROUP, PRODUCT, SCALES0, SCALES1) \
	AHEAD(0)                            \
	AHEAD(64)                           \
	AHEAD(128)                          \
	AHEAD(192)                          \
	AHEAD(256)                          \
	ZERO                                \
	GROUP(0, PRODUCT, SCALES0, SCALES1) \
	GROUP(1, PRODUCT, SCALES0, SCALES1) \
	GROUP(2, PRODUCT, SCALES0, SCALES1) \
	GROUP(3, PRODUCT, SCALES0, SCALES1)

// func tiledIQ4_NLAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
TEXT ·tiledIQ4_NLAVX2(SB), NOSPLIT, $288-48
	START1
	TABLE(levelsIQ4<>)
	WORDS1(Y0)
	VMOVDQU Y0, 256(SP)

block:
	TILE(AHEAD1, ZERO1, GROUP1, LARGE, 256(SP), 256(SP))
	VCVTPH2PS 256(SI), Y0
	VCVTPH2PS 272(SI), Y1
	ADDROWS1
	NEXT(288)
	DECQ CX
	JNZ  block
	END1

// func tiledFourIQ4_NLAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
TEXT ·tiledFourIQ4_NLAVX2(SB), NOSPLIT, $288-64
	START4
	TABLE(levelsIQ4<>)
	WORDS1(Y0)
	VMOVDQU Y0, 256(SP)

block:
	TILE(AHEAD4, ZERO4, GROUP4, LARGE, 256(SP), 256(SP))
	VCVTPH2PS 256(SI), Y0
	VCVTPH2PS 272(SI), Y1
	ADDROWS4
	NEXT(288)
	DECQ CX
	JNZ  block
	END4

// func tiledIQ4_XSAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
TEXT ·tiledIQ4_XSAVX2(SB), NOSPLIT, $288-48
	START1
	TABLE(levelsIQ4<>)
	WORDS1(Y0)
	VMOVDQU Y0, 256(SP)

block:
	HEAD(AHEAD1, 32, 160)

tile:
	TILE(AHEAD1, ZERO1, GROUP1, LARGE, 256(SP), 256(SP))
	SCALED(VPMOVSXBD, (R8), (R13), Y0, Y4)
	SCALED(VPMOVSXBD, 8(R8), 16(R13), Y1, Y4)
	ADDKROWS1
	ADDQ      $16, R8
	NEXT(256)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END1

// func tiledFourIQ4_XSAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
TEXT ·tiledFourIQ4_XSAVX2(SB), NOSPLIT, $288-64
	START4
	TABLE(levelsIQ4<>)
	WORDS1(Y0)
	VMOVDQU Y0, 256(SP)

block:
	HEAD(AHEAD4, 32, 160)

tile:
	TILE(AHEAD4, ZERO4, GROUP4, LARGE, 256(SP), 256(SP))
	SCALED(VPMOVSXBD, (R8), (R13), Y0, Y4)
	SCALED(VPMOVSXBD, 8(R8), 16(R13), Y1, Y4)
	ADDKROWS4
	ADDQ      $16, R8
	NEXT(256)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END4

// SUMS adds the pairs of words of a row of x to 32-bit integers. Y2 is 1 in every word.
#define SUMS(INT0, INT1) \
	VPMADDWD Y2, INT0, INT0 \
	VPMADDWD Y2, INT1, INT1
#define SUMS1 \
	SUMS(Y8, Y9)
#define SUMS4 \
	SUMS(Y8, Y9)   \
	SUMS(Y10, Y11) \
	SUMS(Y12, Y13) \
	SUMS(Y14, Y15)

// POWERS loads eight exponent bytes e (E8M0) from the given address and converts them to the
// float32 numbers 2^(e-128). These are half of the scales 2^(e-127), because the levels are twice
// the values of E2M1. The bits of a result are (e-1)<<23. For e = 0 and e = 1 the result is
// subnormal, and its bits are (e+1)<<21.
#define POWERS(at, Y) \
	VPMOVZXBD at(SI), Y   \
	VPCMPEQD  Y3, Y3, Y3  \
	VPSUBD    Y3, Y, Y4   \
	VPADDD    Y3, Y, Y5   \
	VPXOR     Y3, Y3, Y3  \
	VPSRLD    $1, Y, Y    \
	VPCMPEQD  Y3, Y, Y3   \
	VPSLLD    $21, Y4, Y4 \
	VPSLLD    $23, Y5, Y5 \
	VPBLENDVB Y3, Y4, Y5, Y

// func tiledMXFP4AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
TEXT ·tiledMXFP4AVX2(SB), NOSPLIT, $256-48
	START1
	TABLE(levelsMXFP4<>)

block:
	TILE(AHEAD1, ZERO1, GROUP1, SMALL, , )
	WORDS1(Y2)
	SUMS1
	POWERS(256, Y0)
	POWERS(264, Y1)
	ADDROWS1
	NEXT(272)
	DECQ CX
	JNZ  block
	END1

// func tiledFourMXFP4AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
TEXT ·tiledFourMXFP4AVX2(SB), NOSPLIT, $256-64
	START4
	TABLE(levelsMXFP4<>)

block:
	TILE(AHEAD4, ZERO4, GROUP4, SMALL, , )
	WORDS1(Y2)
	SUMS4
	POWERS(256, Y0)
	POWERS(264, Y1)
	ADDROWS4
	NEXT(272)
	DECQ CX
	JNZ  block
	END4
