#include "textflag.h"

// Products of a strip of 16 rows in layout Tiled16 with one row of quantised activations x. Each
// lane holds a row of weights, so nothing is added across lanes. The arithmetic is the same as in
// tiledFunc. The registers are
//
//	SI  the tile                Y0, Y1   float sums of rows 0 to 7 and 8 to 15
//	AX  quants of x, [32]       Y2, Y3   integer sums of rows 0 to 7 and 8 to 15
//	BX  scale of x              Y4-Y7    temporary
//	DX  sums of x, [2]          Y8-Y15   used by the type
//	CX  tiles or blocks left
//	R8  tiles left in the block

// tiledBoth is a shuffle that copies the lower word of each lane to the upper word.
DATA ·tiledBoth+0(SB)/8, $0x0504050401000100
DATA ·tiledBoth+8(SB)/8, $0x0d0c0d0c09080908
DATA ·tiledBoth+16(SB)/8, $0x0504050401000100
DATA ·tiledBoth+24(SB)/8, $0x0d0c0d0c09080908
GLOBL ·tiledBoth(SB), RODATA|NOPTR, $32

// tiledLow and tiledHigh mask the bits of a quant that come from a nibble and from the high
// bits of Q6_K.
DATA ·tiledLow+0(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA ·tiledLow+8(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA ·tiledLow+16(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA ·tiledLow+24(SB)/8, $0x0f0f0f0f0f0f0f0f
GLOBL ·tiledLow(SB), RODATA|NOPTR, $32

DATA ·tiledHigh+0(SB)/8, $0x3030303030303030
DATA ·tiledHigh+8(SB)/8, $0x3030303030303030
DATA ·tiledHigh+16(SB)/8, $0x3030303030303030
DATA ·tiledHigh+24(SB)/8, $0x3030303030303030
GLOBL ·tiledHigh(SB), RODATA|NOPTR, $32

// WORDS1 sets every word of Y to 1.
#define WORDS1(Y) \
	VPCMPEQW Y, Y, Y \
	VPSRLW   $15, Y, Y

// START and END are the beginning and the end of all functions.
#define START \
	MOVQ   y+0(FP), DI       \
	MOVQ   w+8(FP), SI       \
	MOVQ   blocks+16(FP), CX \
	MOVQ   q+24(FP), AX      \
	MOVQ   d+32(FP), BX      \
	MOVQ   s+40(FP), DX      \
	VXORPS Y0, Y0, Y0        \
	VXORPS Y1, Y1, Y1

#define END \
	VMOVUPS    Y0, (DI)   \
	VMOVUPS    Y1, 32(DI) \
	VZEROUPPER            \
	RET

// NEXT advances to the next tile; size is the size of a tile in bytes.
#define NEXT(size) \
	ADDQ $size, SI \
	ADDQ $32, AX   \
	ADDQ $4, BX    \
	ADDQ $4, DX

// AHEAD prefetches 256 bytes of weights that are 2 KiB after the current ones. A prefetch beyond
// the end of the weights has no effect.
#define AHEAD(at) \
	PREFETCHT0 (at+2048)(SI) \
	PREFETCHT0 (at+2112)(SI) \
	PREFETCHT0 (at+2176)(SI) \
	PREFETCHT0 (at+2240)(SI)

// Q8ROWS multiplies 32 bytes of weights by the column group of x in Y4. VPMADDUBSW needs one
// unsigned factor, so the absolute values of the weights are multiplied by x with the signs of the
// weights. x is within ±127, so products with a weight of -128 are exact, and the sum of two
// products fits in 16 bits.
#define Q8ROWS(at, INT) \
	VMOVDQU    at(SI), Y5  \
	VPABSB     Y5, Y6      \
	VPSIGNB    Y5, Y4, Y5  \
	VPMADDUBSW Y5, Y6, Y5  \
	VPMADDWD   Y15, Y5, Y5 \
	VPADDD     Y5, INT, INT

#define Q8GROUP(g) \
	VPBROADCASTD (4*g)(AX), Y4 \
	Q8ROWS((64*g), Y2)         \
	Q8ROWS((64*g+32), Y3)

// ADD adds the integers, times the scale of x in Y4 and the rows' float16 scales at the given
// address, to SUM.
#define ADD(at, INT, SUM) \
	VCVTPH2PS at(SI), Y5   \
	VMULPS    Y4, Y5, Y5   \
	VCVTDQ2PS INT, INT     \
	VFMADD231PS Y5, INT, SUM

// func tiledQ8_0AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
TEXT ·tiledQ8_0AVX2(SB), NOSPLIT, $0-48
	START
	WORDS1(Y15)

block:
	AHEAD(0)
	AHEAD(256)
	VPXOR Y2, Y2, Y2
	VPXOR Y3, Y3, Y3
	Q8GROUP(0)
	Q8GROUP(1)
	Q8GROUP(2)
	Q8GROUP(3)
	Q8GROUP(4)
	Q8GROUP(5)
	Q8GROUP(6)
	Q8GROUP(7)
	VBROADCASTSS (BX), Y4
	ADD(512, Y2, Y0)
	ADD(528, Y3, Y1)
	NEXT(544)
	DECQ CX
	JNZ  block
	END

// NIBBLES multiplies 32 bytes of nibbles by two column groups of x: low nibbles by Y4, high
// nibbles by Y5. Sums over a whole block, at most 8 * 2 * 15 * 127, fit in 16 bits. Y14 is 0x0f
// in every byte.
#define NIBBLES(at, INT) \
	VMOVDQU    at(SI), Y6   \
	VPSRLW     $4, Y6, Y7   \
	VPAND      Y14, Y6, Y6  \
	VPAND      Y14, Y7, Y7  \
	VPMADDUBSW Y4, Y6, Y6   \
	VPMADDUBSW Y5, Y7, Y7   \
	VPADDW     Y6, INT, INT \
	VPADDW     Y7, INT, INT

#define Q4GROUPS(g, at) \
	VPBROADCASTD (4*g)(AX), Y4    \
	VPBROADCASTD (4*g+16)(AX), Y5 \
	NIBBLES((at+64*g), Y2)        \
	NIBBLES((at+64*g+32), Y3)

// Q4BLOCK sets Y2 and Y3 to the sums of products of 256 bytes of nibbles, as pairs of words.
#define Q4BLOCK(at) \
	VPXOR Y2, Y2, Y2 \
	VPXOR Y3, Y3, Y3 \
	Q4GROUPS(0, at)  \
	Q4GROUPS(1, at)  \
	Q4GROUPS(2, at)  \
	Q4GROUPS(3, at)

// func tiledQ4_0AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
TEXT ·tiledQ4_0AVX2(SB), NOSPLIT, $0-48
	START
	VMOVDQU ·tiledLow(SB), Y14
	WORDS1(Y15)
	VPSLLW $3, Y15, Y13

block:
	AHEAD(0)
	Q4BLOCK(0)
	VPBROADCASTD (DX), Y4
	VPMADDWD     Y13, Y4, Y4 // 8 times the sum of x
	VPMADDWD     Y15, Y2, Y2
	VPMADDWD     Y15, Y3, Y3
	VPSUBD       Y4, Y2, Y2
	VPSUBD       Y4, Y3, Y3
	VBROADCASTSS (BX), Y4
	ADD(256, Y2, Y0)
	ADD(272, Y3, Y1)
	NEXT(288)
	DECQ CX
	JNZ  block
	END

// ADDMIN adds the float16 minimums at the given address, times the sum of x in Y10, to SUM.
#define ADDMIN(at, SUM) \
	VCVTPH2PS   at(SI), Y5   \
	VFMADD231PS Y10, Y5, SUM

// func tiledQ4_1AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
TEXT ·tiledQ4_1AVX2(SB), NOSPLIT, $0-48
	START
	VMOVDQU ·tiledLow(SB), Y14
	WORDS1(Y15)

block:
	AHEAD(0)
	PREFETCHT0 2304(SI)
	Q4BLOCK(0)
	VBROADCASTSS (DX), Y10
	VPMADDWD     Y15, Y2, Y2
	VPMADDWD     Y15, Y3, Y3
	VBROADCASTSS (BX), Y4
	ADD(256, Y2, Y0)
	ADD(272, Y3, Y1)
	ADDMIN(288, Y0)
	ADDMIN(304, Y1)
	NEXT(320)
	DECQ   CX
	JNZ    block
	END

// ADDK adds the integers INT, times the scale of x in Y4, times the scales of the rows in D and the integer
// scales at the given address, to SUM.
#define ADDK(at, D, INT, SUM) \
	VPMOVZXBD   at(SI), Y6   \
	VCVTDQ2PS   Y6, Y6       \
	VMULPS      D, Y6, Y6    \
	VCVTDQ2PS   INT, INT     \
	VMULPS      Y4, INT, INT \
	VFMADD231PS Y6, INT, SUM

// SUBMIN subtracts the minimums at the given address times their scales in D, times the sum of x in Y5, from
// SUM.
#define SUBMIN(at, D, SUM) \
	VPMOVZXBD    at(SI), Y6  \
	VCVTDQ2PS    Y6, Y6      \
	VMULPS       D, Y6, Y6   \
	VFNMADD231PS Y5, Y6, SUM

// func tiledQ4_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
TEXT ·tiledQ4_KAVX2(SB), NOSPLIT, $0-48
	START
	VMOVDQU ·tiledLow(SB), Y14
	WORDS1(Y15)

block:
	VCVTPH2PS (SI), Y12
	VCVTPH2PS 16(SI), Y13
	VCVTPH2PS 32(SI), Y10
	VCVTPH2PS 48(SI), Y11
	ADDQ      $64, SI
	MOVL      $8, R8

tile:
	AHEAD(0)
	Q4BLOCK(32)
	VPMADDWD     Y15, Y2, Y2
	VPMADDWD     Y15, Y3, Y3
	VBROADCASTSS (BX), Y4
	VBROADCASTSS (DX), Y5
	ADDK(0, Y12, Y2, Y0)
	ADDK(8, Y13, Y3, Y1)
	SUBMIN(16, Y10, Y0)
	SUBMIN(24, Y11, Y1)
	NEXT(288)
	DECL   R8
	JNZ    tile
	DECQ   CX
	JNZ    block
	END

// Q6GROUPS processes column groups 2k, 2k+1, 2k+4 and 2k+5 of 8 rows, whose low and high bits
// are at low and high. Y8 and Y9 hold the integer scales, Y14 is 0x0f and Y15 0x30 in every
// byte. Sums of two products of two groups, at most 2 * 2 * 63 * 127, fit in 16 bits.
#define Q6GROUPS(k, low, high) \
	VMOVDQU      high(SI), Y3      \
	VMOVDQU      low(SI), Y4       \
	VPSRLW       $4, Y4, Y5        \
	VPAND        Y14, Y4, Y4       \
	VPAND        Y14, Y5, Y5       \
	VPSLLW       $4, Y3, Y6        \
	VPSLLW       $2, Y3, Y7        \
	VPAND        Y15, Y6, Y6       \
	VPAND        Y15, Y7, Y7       \
	VPOR         Y6, Y4, Y4        \
	VPOR         Y7, Y5, Y5        \
	VPBROADCASTD (8*k)(AX), Y6     \
	VPBROADCASTD (8*k+16)(AX), Y7  \
	VPMADDUBSW   Y6, Y4, Y4        \
	VPMADDUBSW   Y7, Y5, Y5        \
	VMOVDQU      (low+64)(SI), Y6  \
	VPSRLW       $4, Y6, Y7        \
	VPAND        Y14, Y6, Y6       \
	VPAND        Y14, Y7, Y7       \
	VPAND        Y15, Y3, Y10      \
	VPOR         Y10, Y6, Y6       \
	VPSRLW       $2, Y3, Y3        \
	VPAND        Y15, Y3, Y3       \
	VPOR         Y3, Y7, Y7        \
	VPBROADCASTD (8*k+4)(AX), Y3   \
	VPBROADCASTD (8*k+20)(AX), Y10 \
	VPMADDUBSW   Y3, Y6, Y6        \
	VPMADDUBSW   Y10, Y7, Y7       \
	VPADDW       Y6, Y4, Y4        \
	VPADDW       Y7, Y5, Y5        \
	VPMADDWD     Y8, Y4, Y4        \
	VPMADDWD     Y9, Y5, Y5        \
	VPADDD       Y4, Y2, Y2        \
	VPADDD       Y5, Y2, Y2

// Q6ROWS adds the products of 8 rows; h is 0 for rows 0 to 7 and 1 for rows 8 to 15. To
// compensate for the quants' offset it subtracts 32 times the sums of x times the scales.
#define Q6ROWS(h, D, SUM) \
	VPMOVSXBD    (8*h)(SI), Y8          \
	VPMOVSXBD    (8*h+16)(SI), Y9       \
	VPSHUFB      ·tiledBoth(SB), Y8, Y8 \
	VPSHUFB      ·tiledBoth(SB), Y9, Y9 \
	VPBROADCASTD (DX), Y4               \
	VPBLENDW     $0xaa, Y9, Y8, Y2      \
	VPMADDWD     Y4, Y2, Y2             \
	VPSLLD       $5, Y2, Y2             \
	VPSUBD       Y2, Y11, Y2            \
	Q6GROUPS(0, (32*h+32), (32*h+288))  \
	Q6GROUPS(1, (32*h+160), (32*h+352)) \
	VBROADCASTSS (BX), Y4               \
	VMULPS       Y4, D, Y4              \
	VCVTDQ2PS    Y2, Y2                 \
	VFMADD231PS  Y4, Y2, SUM

// func tiledQ6_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
TEXT ·tiledQ6_KAVX2(SB), NOSPLIT, $0-48
	START
	VMOVDQU ·tiledLow(SB), Y14
	VMOVDQU ·tiledHigh(SB), Y15
	VPXOR   Y11, Y11, Y11

block:
	VCVTPH2PS (SI), Y12
	VCVTPH2PS 16(SI), Y13
	ADDQ      $32, SI
	MOVL      $8, R8

tile:
	AHEAD(0)
	AHEAD(256)
	Q6ROWS(0, Y12, Y0)
	Q6ROWS(1, Y13, Y1)
	NEXT(416)
	DECL R8
	JNZ  tile
	DECQ CX
	JNZ  block
	END
