#include "textflag.h"
#include "avx2_amd64.h"

// Products of a strip of 16 rows in layout Tiled16 with four rows of quantised
// activations, so that weights are decoded once for four. A strip is done in
// two passes of 8 rows. A lane is a row of weights; the arithmetic is that of
// tiledFunc. The registers are
//
//	DI   y                        AX   quants of x
//	SI   the tile's quants        R10  scales of x
//	R8   its float16 numbers      R11  sums of x
//	R9   its integer scales       BX   bytes from one row of x to the next
//	CX   tiles or blocks left     DX   three times BX
//	R12  tiles of a block left    R13  passes left

// spread makes each of eight bytes, which both halves have, the two words of
// its lane.
DATA spread<>+0(SB)/8, $0x8001800180008000
DATA spread<>+8(SB)/8, $0x8003800380028002
DATA spread<>+16(SB)/8, $0x8005800580048004
DATA spread<>+24(SB)/8, $0x8007800780068006
GLOBL spread<>(SB), RODATA|NOPTR, $32

// both repeats the lower word of each lane in the upper.
DATA both<>+0(SB)/8, $0x0504050401000100
DATA both<>+8(SB)/8, $0x0d0c0d0c09080908
DATA both<>+16(SB)/8, $0x0504050401000100
DATA both<>+24(SB)/8, $0x0d0c0d0c09080908
GLOBL both<>(SB), RODATA|NOPTR, $32

// low and high are the bits of a quant that come from the low and high bits of
// Q6_K.
DATA low<>+0(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA low<>+8(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA low<>+16(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA low<>+24(SB)/8, $0x0f0f0f0f0f0f0f0f
GLOBL low<>(SB), RODATA|NOPTR, $32

DATA high<>+0(SB)/8, $0x3030303030303030
DATA high<>+8(SB)/8, $0x3030303030303030
DATA high<>+16(SB)/8, $0x3030303030303030
DATA high<>+24(SB)/8, $0x3030303030303030
GLOBL high<>(SB), RODATA|NOPTR, $32

// START begins a function, PASS a pass: S0 to S3 are the sums.
#define START \
	MOVQ y+0(FP), DI       \
	MOVQ w+16(FP), SI      \
	MOVQ SI, R8            \
	MOVQ SI, R9            \
	MOVQ stride+56(FP), BX \
	LEAQ (BX)(BX*2), DX    \
	MOVL $2, R13

#define PASS(S0, S1, S2, S3) \
	MOVQ   blocks+24(FP), CX \
	MOVQ   q+32(FP), AX      \
	MOVQ   d+40(FP), R10     \
	MOVQ   s+48(FP), R11     \
	VXORPS S0, S0, S0        \
	VXORPS S1, S1, S1        \
	VXORPS S2, S2, S2        \
	VXORPS S3, S3, S3

// NEXT moves on by a tile of size bytes.
#define NEXT(size) \
	ADDQ $size, SI \
	ADDQ $size, R8 \
	ADDQ $size, R9 \
	ADDQ $32, AX   \
	ADDQ $4, R10   \
	ADDQ $4, R11

// STORE completes a pass and makes ready for the next.
#define STORE(S0, S1, S2, S3) \
	MOVQ    yStride+8(FP), CX  \
	SHLQ    $2, CX             \
	LEAQ    (CX)(CX*2), R12    \
	VMOVUPS S0, (DI)           \
	VMOVUPS S1, (DI)(CX*1)     \
	VMOVUPS S2, (DI)(CX*2)     \
	VMOVUPS S3, (DI)(R12*1)    \
	ADDQ    $32, DI            \
	MOVQ    w+16(FP), SI       \
	LEAQ    16(SI), R8         \
	LEAQ    8(SI), R9          \
	ADDQ    $32, SI

// The four rows' places of a kind.
#define Q0 (AX)
#define Q1 (AX)(BX*1)
#define Q2 (AX)(BX*2)
#define Q3 (AX)(DX*1)
#define D0 (R10)
#define D1 (R10)(BX*1)
#define D2 (R10)(BX*2)
#define D3 (R10)(DX*1)
#define SUM0 (R11)
#define SUM1 (R11)(BX*1)
#define SUM2 (R11)(BX*2)
#define SUM3 (R11)(DX*1)

// ZERO clears the integers of Q8_0 and those with nibbles.
#define ZERO \
	VPXOR Y4, Y4, Y4 \
	VPXOR Y5, Y5, Y5 \
	VPXOR Y6, Y6, Y6 \
	VPXOR Y7, Y7, Y7

// Q8ROW multiplies the weights in Y0, absolute values in Y1, with a group of a
// row of x, to which their sign moves. It is within 127, so that -128 is exact
// and sums of two products fit in 16 bits.
#define Q8ROW(g, Q, INT) \
	VPBROADCASTD (4*g)Q, Y2  \
	VPSIGNB      Y0, Y2, Y2  \
	VPMADDUBSW   Y2, Y1, Y2  \
	VPMADDWD     Y15, Y2, Y2 \
	VPADDD       Y2, INT, INT

#define Q8GROUP(g) \
	VMOVDQU (64*g)(SI), Y0 \
	VPABSB  Y0, Y1         \
	Q8ROW(g, Q0, Y4)       \
	Q8ROW(g, Q1, Y5)       \
	Q8ROW(g, Q2, Y6)       \
	Q8ROW(g, Q3, Y7)

// ADD adds the integers of a row, times its scale and those of the weights in
// WD.
#define ADD(D, WD, INT, SUM) \
	VBROADCASTSS D, Y2         \
	VMULPS       WD, Y2, Y2    \
	VCVTDQ2PS    INT, INT      \
	VMULPS       Y2, INT, INT  \
	VADDPS       INT, SUM, SUM

// func tiledFourQ8_0AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride int)
TEXT ·tiledFourQ8_0AVX2(SB), NOSPLIT, $0-64
	START
	VPCMPEQW Y15, Y15, Y15
	VPSRLW   $15, Y15, Y15 // 1 in words

pass:
	PASS(Y8, Y9, Y10, Y11)

block:
	ZERO
	Q8GROUP(0)
	Q8GROUP(1)
	Q8GROUP(2)
	Q8GROUP(3)
	Q8GROUP(4)
	Q8GROUP(5)
	Q8GROUP(6)
	Q8GROUP(7)
	VCVTPH2PS 512(R8), Y0
	ADD(D0, Y0, Y4, Y8)
	ADD(D1, Y0, Y5, Y9)
	ADD(D2, Y0, Y6, Y10)
	ADD(D3, Y0, Y7, Y11)
	NEXT(544)
	DECQ CX
	JNZ  block
	STORE(Y8, Y9, Y10, Y11)
	DECL R13
	JNZ  pass
	VZEROUPPER
	RET

// Q4ROW multiplies low nibbles in Y0 and high ones in Y1 with two groups of a
// row of x. A whole block's sums of two products, 8 * 2 * 15 * 127 at most, fit
// in 16 bits.
#define Q4ROW(g, Q, INT) \
	VPBROADCASTD (4*g)Q, Y2    \
	VPBROADCASTD (4*g+16)Q, Y3 \
	VPMADDUBSW   Y2, Y0, Y2    \
	VPMADDUBSW   Y3, Y1, Y3    \
	VPADDW       Y2, INT, INT  \
	VPADDW       Y3, INT, INT

// Q4GROUPS is groups g and g+4. Y14 is 0x0f in bytes.
#define Q4GROUPS(g, at) \
	VMOVDQU (64*g+at)(SI), Y0 \
	VPSRLW  $4, Y0, Y1        \
	VPAND   Y14, Y0, Y0       \
	VPAND   Y14, Y1, Y1       \
	Q4ROW(g, Q0, Y4)          \
	Q4ROW(g, Q1, Y5)          \
	Q4ROW(g, Q2, Y6)          \
	Q4ROW(g, Q3, Y7)

#define Q4BLOCK(at) \
	ZERO            \
	Q4GROUPS(0, at) \
	Q4GROUPS(1, at) \
	Q4GROUPS(2, at) \
	Q4GROUPS(3, at)

// LESS8 makes the pairs of words integers and takes off 8 times the sum of x.
// Y15 is 1 and Y13 8 in words.
#define LESS8(SUM, INT) \
	VPBROADCASTD SUM, Y2       \
	VPMADDWD     Y13, Y2, Y2   \
	VPMADDWD     Y15, INT, INT \
	VPSUBD       Y2, INT, INT

// func tiledFourQ4_0AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride int)
TEXT ·tiledFourQ4_0AVX2(SB), NOSPLIT, $0-64
	START
	FILL(0x0f0f0f0f0f0f0f0f, X14, Y14)
	FILL(0x0001000100010001, X15, Y15)
	FILL(0x0008000800080008, X13, Y13)

pass:
	PASS(Y8, Y9, Y10, Y11)

block:
	Q4BLOCK(0)
	LESS8(SUM0, Y4)
	LESS8(SUM1, Y5)
	LESS8(SUM2, Y6)
	LESS8(SUM3, Y7)
	VCVTPH2PS 256(R8), Y0
	ADD(D0, Y0, Y4, Y8)
	ADD(D1, Y0, Y5, Y9)
	ADD(D2, Y0, Y6, Y10)
	ADD(D3, Y0, Y7, Y11)
	NEXT(288)
	DECQ CX
	JNZ  block
	STORE(Y8, Y9, Y10, Y11)
	DECL R13
	JNZ  pass
	VZEROUPPER
	RET

// Q4KROW adds the pairs of words of a row, times the integer scales in Y0 and
// the scales, and subtracts the minimums in Y1, times the sum of x and the
// scales, from those on the stack.
#define Q4KROW(D, SUMX, INT, SUM, at) \
	VBROADCASTSS D, Y2             \
	VPBROADCASTD SUMX, Y3          \
	VPMADDWD     Y0, INT, INT      \
	VPMADDWD     Y1, Y3, Y3        \
	VMULPS       Y12, Y2, Y15      \
	VMULPS       Y13, Y2, Y2       \
	VCVTDQ2PS    INT, INT          \
	VCVTDQ2PS    Y3, Y3            \
	VMULPS       Y15, INT, INT     \
	VMULPS       Y2, Y3, Y3        \
	VADDPS       INT, SUM, SUM     \
	VMOVUPS      at(SP), Y2        \
	VSUBPS       Y3, Y2, Y2        \
	VMOVUPS      Y2, at(SP)

// func tiledFourQ4_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride int)
TEXT ·tiledFourQ4_KAVX2(SB), NOSPLIT, $128-64
	START
	FILL(0x0f0f0f0f0f0f0f0f, X14, Y14)

pass:
	PASS(Y8, Y9, Y10, Y11)
	VMOVUPS Y8, (SP)
	VMOVUPS Y8, 32(SP)
	VMOVUPS Y8, 64(SP)
	VMOVUPS Y8, 96(SP)

block:
	VCVTPH2PS (R8), Y12
	VCVTPH2PS 32(R8), Y13
	ADDQ      $64, SI
	ADDQ      $64, R8
	ADDQ      $64, R9
	MOVL      $8, R12

tile:
	Q4BLOCK(32)
	VPBROADCASTQ (R9), Y0
	VPBROADCASTQ 16(R9), Y1
	VPSHUFB      spread<>(SB), Y0, Y0
	VPSHUFB      spread<>(SB), Y1, Y1
	Q4KROW(D0, SUM0, Y4, Y8, 0)
	Q4KROW(D1, SUM1, Y5, Y9, 32)
	Q4KROW(D2, SUM2, Y6, Y10, 64)
	Q4KROW(D3, SUM3, Y7, Y11, 96)
	NEXT(288)
	DECL   R12
	JNZ    tile
	DECQ   CX
	JNZ    block
	VADDPS (SP), Y8, Y8
	VADDPS 32(SP), Y9, Y9
	VADDPS 64(SP), Y10, Y10
	VADDPS 96(SP), Y11, Y11
	STORE(Y8, Y9, Y10, Y11)
	DECL   R13
	JNZ    pass
	VZEROUPPER
	RET

// Q6ROW multiplies the quants in Y0 to Y3 with groups 2k, 2k+4, 2k+1 and 2k+5
// of a row of x. Sums of two products of two groups, 2 * 2 * 63 * 127 at most,
// fit in 16 bits.
#define Q6ROW(k, Q, INT) \
	VPBROADCASTD (8*k)Q, Y4    \
	VPBROADCASTD (8*k+4)Q, Y5  \
	VPMADDUBSW   Y4, Y0, Y4    \
	VPMADDUBSW   Y5, Y2, Y5    \
	VPADDW       Y5, Y4, Y4    \
	VPMADDWD     Y6, Y4, Y4    \
	VPADDD       Y4, INT, INT  \
	VPBROADCASTD (8*k+16)Q, Y4 \
	VPBROADCASTD (8*k+20)Q, Y5 \
	VPMADDUBSW   Y4, Y1, Y4    \
	VPMADDUBSW   Y5, Y3, Y5    \
	VPADDW       Y5, Y4, Y4    \
	VPMADDWD     Y7, Y4, Y4    \
	VPADDD       Y4, INT, INT

#define Q6GROUPS(k) \
	VMOVDQU (288+64*k)(SI), Y4   \
	VMOVDQU (32+128*k)(SI), Y0   \
	VMOVDQU (96+128*k)(SI), Y2   \
	VPSRLW  $4, Y0, Y1           \
	VPSRLW  $4, Y2, Y3           \
	VPAND   low<>(SB), Y0, Y0    \
	VPAND   low<>(SB), Y1, Y1    \
	VPAND   low<>(SB), Y2, Y2    \
	VPAND   low<>(SB), Y3, Y3    \
	VPSLLW  $4, Y4, Y5           \
	VPAND   high<>(SB), Y5, Y5   \
	VPOR    Y5, Y0, Y0           \
	VPSLLW  $2, Y4, Y5           \
	VPAND   high<>(SB), Y5, Y5   \
	VPOR    Y5, Y1, Y1           \
	VPAND   high<>(SB), Y4, Y5   \
	VPOR    Y5, Y2, Y2           \
	VPSRLW  $2, Y4, Y4           \
	VPAND   high<>(SB), Y4, Y4   \
	VPOR    Y4, Y3, Y3           \
	Q6ROW(k, Q0, Y8)             \
	Q6ROW(k, Q1, Y9)             \
	Q6ROW(k, Q2, Y10)            \
	Q6ROW(k, Q3, Y11)

// OFFSET sets a row's integers to -32 times the sums of x times the scales of
// the columns' halves, which are the words of Y0. Y1 is zero.
#define OFFSET(SUM, INT) \
	VPBROADCASTD SUM, Y2       \
	VPMADDWD     Y0, Y2, Y2    \
	VPSLLD       $5, Y2, Y2    \
	VPSUBD       Y2, Y1, INT

// func tiledFourQ6_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride int)
TEXT ·tiledFourQ6_KAVX2(SB), NOSPLIT, $32-64
	START

pass:
	PASS(Y12, Y13, Y14, Y15)

block:
	VCVTPH2PS (R8), Y0
	VMOVUPS   Y0, (SP)
	ADDQ      $32, SI
	ADDQ      $32, R8
	ADDQ      $32, R9
	MOVL      $8, R12

tile:
	VPMOVSXBD (R9), Y6
	VPMOVSXBD 16(R9), Y7
	VPSHUFB   both<>(SB), Y6, Y6
	VPSHUFB   both<>(SB), Y7, Y7
	VPBLENDW  $0xaa, Y7, Y6, Y0
	VPXOR     Y1, Y1, Y1
	OFFSET(SUM0, Y8)
	OFFSET(SUM1, Y9)
	OFFSET(SUM2, Y10)
	OFFSET(SUM3, Y11)
	Q6GROUPS(0)
	Q6GROUPS(1)
	VMOVUPS   (SP), Y0
	ADD(D0, Y0, Y8, Y12)
	ADD(D1, Y0, Y9, Y13)
	ADD(D2, Y0, Y10, Y14)
	ADD(D3, Y0, Y11, Y15)
	NEXT(416)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	STORE(Y12, Y13, Y14, Y15)
	DECL R13
	JNZ  pass
	VZEROUPPER
	RET
