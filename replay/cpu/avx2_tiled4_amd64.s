#include "textflag.h"
#include "avx2_tiled_amd64.h"

// Products of tiles of bytes, nibbles and Q6_K quants with four rows of quantised activations,
// so that weights are decoded once for four rows. Y0 to Y3 hold decoded weights of all 16 rows
// of the strip.

// Q8ROW multiplies a column group of a row of x by the weights in Y0 and Y2, whose absolute
// values are in Y1 and Y3. VPMADDUBSW needs one unsigned factor, so the absolute values are
// multiplied by x with the signs of the weights. x is within ±127, so products with a weight of
// -128 are exact, and the sum of two products fits in 16 bits. Y7 is 1 in every word.
#define Q8ROW(g, Q, INT0, INT1) \
	VPBROADCASTD (4*g)Q, Y4     \
	VPSIGNB      Y0, Y4, Y5     \
	VPSIGNB      Y2, Y4, Y4     \
	VPMADDUBSW   Y5, Y1, Y5     \
	VPMADDUBSW   Y4, Y3, Y4     \
	VPMADDWD     Y7, Y5, Y5     \
	VPMADDWD     Y7, Y4, Y4     \
	VPADDD       Y5, INT0, INT0 \
	VPADDD       Y4, INT1, INT1

#define Q8GROUP(g) \
	VMOVDQU (64*g)(SI), Y0    \
	VMOVDQU (64*g+32)(SI), Y2 \
	VPABSB  Y0, Y1            \
	VPABSB  Y2, Y3            \
	Q8ROW(g, Q0, Y8, Y9)      \
	Q8ROW(g, Q1, Y10, Y11)    \
	Q8ROW(g, Q2, Y12, Y13)    \
	Q8ROW(g, Q3, Y14, Y15)

// func tiledFourQ8_0AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
TEXT ·tiledFourQ8_0AVX2(SB), NOSPLIT, $256-64
	START4
	WORDS1(Y7)

block:
	ZERO4
	Q8GROUP(0)
	Q8GROUP(1)
	Q8GROUP(2)
	Q8GROUP(3)
	Q8GROUP(4)
	Q8GROUP(5)
	Q8GROUP(6)
	Q8GROUP(7)
	VCVTPH2PS 512(SI), Y0
	VCVTPH2PS 528(SI), Y1
	ADDROWS4
	NEXT(544)
	DECQ CX
	JNZ  block
	END4

// Q4ROW multiplies two column groups of a row of x by the low nibbles in Y0 and Y2 and the high
// nibbles in Y1 and Y3. Sums over a whole block, at most 8 * 2 * 15 * 127, fit in 16 bits.
#define Q4ROW(g, Q, INT0, INT1) \
	VPBROADCASTD (4*g)Q, Y4     \
	VPMADDUBSW   Y4, Y0, Y5     \
	VPMADDUBSW   Y4, Y2, Y4     \
	VPADDW       Y5, INT0, INT0 \
	VPADDW       Y4, INT1, INT1 \
	VPBROADCASTD (4*g+16)Q, Y4  \
	VPMADDUBSW   Y4, Y1, Y5     \
	VPMADDUBSW   Y4, Y3, Y4     \
	VPADDW       Y5, INT0, INT0 \
	VPADDW       Y4, INT1, INT1

// Q4GROUPS processes column groups g and g+4. Y7 is 0x0f in every byte.
#define Q4GROUPS(g, at) \
	VMOVDQU (64*g+at)(SI), Y0    \
	VMOVDQU (64*g+at+32)(SI), Y2 \
	VPSRLW  $4, Y0, Y1           \
	VPSRLW  $4, Y2, Y3           \
	VPAND   Y7, Y0, Y0           \
	VPAND   Y7, Y1, Y1           \
	VPAND   Y7, Y2, Y2           \
	VPAND   Y7, Y3, Y3           \
	Q4ROW(g, Q0, Y8, Y9)         \
	Q4ROW(g, Q1, Y10, Y11)       \
	Q4ROW(g, Q2, Y12, Y13)       \
	Q4ROW(g, Q3, Y14, Y15)

#define Q4BLOCK(at) \
	ZERO4           \
	Q4GROUPS(0, at) \
	Q4GROUPS(1, at) \
	Q4GROUPS(2, at) \
	Q4GROUPS(3, at)

// LESS8 adds pairs of words of a row to 32-bit integers and subtracts 8 times the sum of x. Y2
// is 8 and Y6 is 1 in every word.
#define LESS8(SUM, INT0, INT1) \
	VPBROADCASTD SUM, Y4        \
	VPMADDWD     Y2, Y4, Y4     \
	VPMADDWD     Y6, INT0, INT0 \
	VPMADDWD     Y6, INT1, INT1 \
	VPSUBD       Y4, INT0, INT0 \
	VPSUBD       Y4, INT1, INT1

// func tiledFourQ4_0AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
TEXT ·tiledFourQ4_0AVX2(SB), NOSPLIT, $256-64
	START4
	WORDS1(Y6)
	VMOVDQU ·tiledLow(SB), Y7

block:
	Q4BLOCK(0)
	VPSLLW $3, Y6, Y2
	LESS8(SUM0, Y8, Y9)
	LESS8(SUM1, Y10, Y11)
	LESS8(SUM2, Y12, Y13)
	LESS8(SUM3, Y14, Y15)
	VCVTPH2PS 256(SI), Y0
	VCVTPH2PS 272(SI), Y1
	ADDROWS4
	NEXT(288)
	DECQ CX
	JNZ  block
	END4

// WORDSUMS adds the pairs of words of all rows to 32-bit integers. Y6 is 1 in every word.
#define WORDSUMS \
	VPMADDWD Y6, Y8, Y8   \
	VPMADDWD Y6, Y9, Y9   \
	VPMADDWD Y6, Y10, Y10 \
	VPMADDWD Y6, Y11, Y11 \
	VPMADDWD Y6, Y12, Y12 \
	VPMADDWD Y6, Y13, Y13 \
	VPMADDWD Y6, Y14, Y14 \
	VPMADDWD Y6, Y15, Y15

// func tiledFourQ4_1AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
TEXT ·tiledFourQ4_1AVX2(SB), NOSPLIT, $256-64
	START4
	WORDS1(Y6)
	VMOVDQU ·tiledLow(SB), Y7

block:
	Q4BLOCK(0)
	WORDSUMS
	VCVTPH2PS 256(SI), Y0
	VCVTPH2PS 272(SI), Y1
	ADDROWS4
	VCVTPH2PS 288(SI), Y2
	VCVTPH2PS 304(SI), Y3
	MINROWS4(VFMADD231PS)
	NEXT(320)
	DECQ CX
	JNZ  block
	END4

// func tiledFourQ4_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
TEXT ·tiledFourQ4_KAVX2(SB), NOSPLIT, $256-64
	START4
	WORDS1(Y6)
	VMOVDQU ·tiledLow(SB), Y7

block:
	MOVQ SI, R13
	ADDQ $64, SI
	MOVL $8, R12

tile:
	Q4BLOCK(32)
	WORDSUMS
	SCALED(VPMOVZXBD, (SI), (R13), Y0, Y4)
	SCALED(VPMOVZXBD, 8(SI), 16(R13), Y1, Y4)
	ADDKROWS4
	SCALED(VPMOVZXBD, 16(SI), 32(R13), Y2, Y4)
	SCALED(VPMOVZXBD, 24(SI), 48(R13), Y3, Y4)
	MINROWS4(VFNMADD231PS)
	NEXT(288)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END4

// Q6ROW multiplies the column group of a row of x at q by the quants in Y0 and Y2, and the next
// group by the quants in Y1 and Y3. Sums of two products of two groups, at most 2 * 2 * 63 *
// 127, fit in 16 bits. at is the offset of their integer scales.
#define Q6ROW(q, at, Q, INT0, INT1) \
	VPBROADCASTD (q)Q, Y4            \
	VPBROADCASTD (q+4)Q, Y5          \
	VPMADDUBSW   Y4, Y0, Y6          \
	VPMADDUBSW   Y5, Y1, Y7          \
	VPMADDUBSW   Y4, Y2, Y4          \
	VPMADDUBSW   Y5, Y3, Y5          \
	VPADDW       Y7, Y6, Y6          \
	VPADDW       Y5, Y4, Y4          \
	VPMADDWD     at(SP), Y6, Y6      \
	VPMADDWD     (at+32)(SP), Y4, Y4 \
	VPADDD       Y6, INT0, INT0      \
	VPADDD       Y4, INT1, INT1

#define Q6ROWS(q, at) \
	Q6ROW(q, at, Q0, Y8, Y9)   \
	Q6ROW(q, at, Q1, Y10, Y11) \
	Q6ROW(q, at, Q2, Y12, Y13) \
	Q6ROW(q, at, Q3, Y14, Y15)

// Q6HIGH adds the high bits in HIGH0 and HIGH1 to QUANT0 and QUANT1. The bits must be in place,
// by Q6SHIFT or by the layout.
#define Q6HIGH(HIGH0, HIGH1, QUANT0, QUANT1) \
	VPAND ·tiledHigh(SB), HIGH0, Y6 \
	VPAND ·tiledHigh(SB), HIGH1, Y7 \
	VPOR  Y6, QUANT0, QUANT0        \
	VPOR  Y7, QUANT1, QUANT1

#define Q6SHIFT(OP, n) \
	OP $n, Y4, Y6 \
	OP $n, Y5, Y7

// Q6LOAD loads the nibbles and high bits of column groups 2k and 2k+1.
#define Q6LOAD(k) \
	VMOVDQU (128*k+32)(SI), Y0  \
	VMOVDQU (128*k+96)(SI), Y1  \
	VMOVDQU (128*k+64)(SI), Y2  \
	VMOVDQU (128*k+128)(SI), Y3 \
	VMOVDQU (64*k+288)(SI), Y4  \
	VMOVDQU (64*k+320)(SI), Y5

#define Q6MASK \
	VMOVDQU ·tiledLow(SB), Y6 \
	VPAND   Y6, Y0, Y0        \
	VPAND   Y6, Y1, Y1        \
	VPAND   Y6, Y2, Y2        \
	VPAND   Y6, Y3, Y3

// Q6LOW processes column groups 2k and 2k+1, Q6TOP groups 2k+4 and 2k+5.
#define Q6LOW(k) \
	Q6LOAD(k)              \
	Q6MASK                 \
	Q6SHIFT(VPSLLW, 4)     \
	Q6HIGH(Y6, Y7, Y0, Y2) \
	Q6HIGH(Y4, Y5, Y1, Y3) \
	Q6ROWS(8*k, 256)

#define Q6TOP(k) \
	Q6LOAD(k)              \
	VPSRLW $4, Y0, Y0      \
	VPSRLW $4, Y1, Y1      \
	VPSRLW $4, Y2, Y2      \
	VPSRLW $4, Y3, Y3      \
	Q6MASK                 \
	Q6SHIFT(VPSLLW, 2)     \
	Q6HIGH(Y6, Y7, Y0, Y2) \
	Q6SHIFT(VPSRLW, 2)     \
	Q6HIGH(Y6, Y7, Y1, Y3) \
	Q6ROWS(8*k+16, 320)

// Q6SCALES stores the scales of 8 rows for both halves of the columns, as the two words of a
// lane, and sets Y to -32 times these words.
#define Q6SCALES(h, Y) \
	VPMOVSXBD (8*h)(SI), Y0          \
	VPMOVSXBD (8*h+16)(SI), Y1       \
	VPSHUFB   ·tiledBoth(SB), Y0, Y0 \
	VPSHUFB   ·tiledBoth(SB), Y1, Y1 \
	VMOVDQU   Y0, (32*h+256)(SP)     \
	VMOVDQU   Y1, (32*h+320)(SP)     \
	VPBLENDW  $0xaa, Y1, Y0, Y       \
	VPSLLW    $5, Y, Y               \
	VPSUBW    Y, Y2, Y

// func tiledFourQ6_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
TEXT ·tiledFourQ6_KAVX2(SB), NOSPLIT, $384-64
	START4

block:
	MOVQ SI, R13
	ADDQ $32, SI
	MOVL $8, R12

tile:
	VPXOR Y2, Y2, Y2
	Q6SCALES(0, Y6)
	Q6SCALES(1, Y7)
	OFFSETS4
	Q6LOW(0)
	Q6LOW(1)
	Q6TOP(0)
	Q6TOP(1)
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS4
	NEXT(416)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END4
