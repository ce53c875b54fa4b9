#include "textflag.h"
#include "avx2_amd64.h"

// Products of rows of weights in blocks of 32 with quantised activations x: four rows at a time,
// then the remaining rows one by one. doc.go describes the arithmetic of the lanes. The registers
// are
//
//	SI AX BX DX  current blocks of four   Y0-Y3    sums
//	             rows                     Y4-Y6    temporary
//	CX           index of the block       Y9       shift counts of SHIFTS
//	R14          temporary, or CX mod 8   Y10      0x0f in every byte
//	R13          temporary                Y12      quants of x
//	n(SP)        sums of the minimums'    Y13      scale of x
//	             part, 32 bytes per row   Y15      0x0001 in every word

// ROWS is the body of a function for blocks of size bytes. START runs before the rows, PRE
// before each block; BLOCK processes one row's block, and END completes a row's sums.
#define ROWS(size, START, PRE, BLOCK, END) \
	MOVQ     y+0(FP), DI       \
	MOVQ     w+8(FP), SI       \
	MOVQ     rows+16(FP), R8   \
	MOVQ     blocks+24(FP), R9 \
	MOVQ     q+32(FP), R10     \
	MOVQ     d+40(FP), R11     \
	IMUL3Q   $size, R9, R12    \
	VPCMPEQW Y15, Y15, Y15     \
	VPSRLW   $15, Y15, Y15     \
four: \
	CMPQ     R8, $4          \
	JLT      one             \
	LEAQ     (SI)(R12*1), AX \
	LEAQ     (SI)(R12*2), BX \
	LEAQ     (AX)(R12*2), DX \
	VXORPS   Y0, Y0, Y0      \
	VXORPS   Y1, Y1, Y1      \
	VXORPS   Y2, Y2, Y2      \
	VXORPS   Y3, Y3, Y3      \
	START                    \
	XORQ     CX, CX          \
fourblock: \
	PREFETCHT0 (SI)(R12*4) \
	PREFETCHT0 (AX)(R12*4) \
	PREFETCHT0 (BX)(R12*4) \
	PREFETCHT0 (DX)(R12*4) \
	X32                    \
	PRE                    \
	BLOCK(SI, Y0, 0)       \
	BLOCK(AX, Y1, 32)      \
	BLOCK(BX, Y2, 64)      \
	BLOCK(DX, Y3, 96)      \
	ADDQ     $size, SI     \
	ADDQ     $size, AX     \
	ADDQ     $size, BX     \
	ADDQ     $size, DX     \
	INCQ     CX            \
	CMPQ     CX, R9        \
	JLT      fourblock     \
	END(Y0, 0)             \
	END(Y1, 32)            \
	END(Y2, 64)            \
	END(Y3, 96)            \
	REDUCE8(Y0, X0, X4)    \
	REDUCE8(Y1, X1, X4)    \
	REDUCE8(Y2, X2, X4)    \
	REDUCE8(Y3, X3, X4)    \
	VMOVSS   X0, (DI)      \
	VMOVSS   X1, 4(DI)     \
	VMOVSS   X2, 8(DI)     \
	VMOVSS   X3, 12(DI)    \
	ADDQ     $16, DI       \
	MOVQ     DX, SI        \
	SUBQ     $4, R8        \
	JMP      four          \
one: \
	TESTQ    R8, R8     \
	JLE      done       \
	VXORPS   Y0, Y0, Y0 \
	START               \
	XORQ     CX, CX     \
oneblock: \
	X32                 \
	PRE                 \
	BLOCK(SI, Y0, 0)    \
	ADDQ     $size, SI  \
	INCQ     CX         \
	CMPQ     CX, R9     \
	JLT      oneblock   \
	END(Y0, 0)          \
	REDUCE8(Y0, X0, X4) \
	VMOVSS   X0, (DI)   \
	ADDQ     $4, DI     \
	DECQ     R8         \
	JMP      one        \
done: \
	VZEROUPPER \
	RET

// X32 loads the quants and the scale of the current block of x.
#define X32 \
	MOVQ         CX, R13           \
	SHLQ         $5, R13           \
	VMOVDQU      (R10)(R13*1), Y12 \
	VBROADCASTSS (R11)(CX*4), Y13

#define NOSTART
#define NOPRE
#define NOEND(ACC, lane)

// ADD adds the pairs of products in Y5 to ACC, multiplied by Y6, the product of the scales of
// the row and of x.
#define ADD(ACC) \
	VPMADDWD  Y15, Y5, Y5 \
	VCVTDQ2PS Y5, Y5      \
	VMULPS    Y6, Y5, Y5  \
	VADDPS    Y5, ACC, ACC

// SCALE sets Y6 to the float16 scale at w times the scale of x.
#define SCALE(w) \
	VPBROADCASTW (w), X6 \
	VCVTPH2PS    X6, Y6  \
	VMULPS       Y13, Y6, Y6

// SIGNED multiplies x by the signed weights in Y4. VPMADDUBSW needs one unsigned factor, so the
// absolute values of the weights are multiplied by x with the signs of the weights. x is within
// ±127, so products with a weight of -128 are exact, and the sum of two products fits in 16 bits.
#define SIGNED \
	VPSIGNB    Y4, Y12, Y5 \
	VPABSB     Y4, Y4      \
	VPMADDUBSW Y5, Y4, Y5

// UNSIGNED multiplies x by the unsigned weights in Y4. LESS also subtracts Y11, the products of
// x and the weights' offset.
#define UNSIGNED \
	VPMADDUBSW Y12, Y4, Y5
#define LESS \
	VPMADDUBSW Y12, Y4, Y5 \
	VPSUBW     Y11, Y5, Y5

// OFFSET sets Y11 to the products of x and the offset in Y14.
#define OFFSET \
	VPMADDUBSW Y12, Y14, Y11

// NIBBLES expands 16 bytes to 32: the low nibbles go to the lower half of Y4, the high nibbles
// to the upper half.
#define NIBBLES(at) \
	VBROADCASTI128 at, Y4     \
	VPSRLVQ        Y9, Y4, Y4 \
	VPAND          Y10, Y4, Y4

// ZEROSUMS clears the sums of the minimums' part.
#define ZEROSUMS \
	VMOVUPS Y0, (SP)   \
	VMOVUPS Y0, 32(SP) \
	VMOVUPS Y0, 64(SP) \
	VMOVUPS Y0, 96(SP)

// SUM sets X14 to the sum of the quants of x in the block.
#define SUM \
	MOVQ      s+48(FP), R14    \
	VMOVD     (R14)(CX*4), X14 \
	VPMADDWD  X15, X14, X14    \
	VCVTDQ2PS X14, X14         \
	MOVQ      CX, R14          \
	ANDQ      $7, R14

// SCALEMIN sets Y6 as SCALE does. It also adds the minimum, which follows the scale in memory,
// times the sum of x to the minimums' part.
#define SCALEMIN(w, lane) \
	VPBROADCASTD (w), X6                 \
	VCVTPH2PS    X6, Y6                  \
	VMULPS       Y13, Y6, Y6             \
	VMOVSHDUP    X6, X4                  \
	VMULSS       X14, X4, X4             \
	VADDSS       lane(SP)(R14*4), X4, X4 \
	VMOVSS       X4, lane(SP)(R14*4)     \
	VMOVSLDUP    Y6, Y6

#define ADDSUMS(ACC, lane) \
	VADDPS lane(SP), ACC, ACC

#define Q8BLOCK(w, ACC, lane) \
	VMOVDQU 2(w), Y4 \
	SIGNED           \
	SCALE(w)         \
	ADD(ACC)

// func rowsQ8_0AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsQ8_0AVX2(SB), NOSPLIT, $0-56
	ROWS(34, NOSTART, NOPRE, Q8BLOCK, NOEND)

#define Q40BLOCK(w, ACC, lane) \
	NIBBLES(2(w)) \
	LESS          \
	SCALE(w)      \
	ADD(ACC)

// func rowsQ4_0AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsQ4_0AVX2(SB), NOSPLIT, $0-56
	SHIFTS(X9, Y9)
	FILL(0x0f0f0f0f0f0f0f0f, X10, Y10)
	FILL(0x0808080808080808, X14, Y14)
	ROWS(18, NOSTART, OFFSET, Q40BLOCK, NOEND)

// FIFTH adds the fifth bits to the quants in Y4. Y8 is the shuffle that spreads the four bytes
// of bits, Y7 selects each element's bit, and BIT is the value of the bit in a quant.
#define FIFTH(at, BIT) \
	VPBROADCASTD at, Y5      \
	VPSHUFB      Y8, Y5, Y5  \
	VPAND        Y7, Y5, Y5  \
	VPCMPEQB     Y7, Y5, Y5  \
	VPAND        BIT, Y5, Y5 \
	VPOR         Y5, Y4, Y4

DATA fifth<>+0(SB)/8, $0x0000000000000000
DATA fifth<>+8(SB)/8, $0x0101010101010101
DATA fifth<>+16(SB)/8, $0x0202020202020202
DATA fifth<>+24(SB)/8, $0x0303030303030303
GLOBL fifth<>(SB), RODATA|NOPTR, $32

#define Q50BLOCK(w, ACC, lane) \
	NIBBLES(6(w))    \
	FIFTH(2(w), Y14) \
	LESS             \
	SCALE(w)         \
	ADD(ACC)

// func rowsQ5_0AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsQ5_0AVX2(SB), NOSPLIT, $0-56
	SHIFTS(X9, Y9)
	FILL(0x0f0f0f0f0f0f0f0f, X10, Y10)
	FILL(0x1010101010101010, X14, Y14)
	FILL(0x8040201008040201, X7, Y7)
	VMOVDQU fifth<>(SB), Y8
	ROWS(22, NOSTART, OFFSET, Q50BLOCK, NOEND)

#define Q41BLOCK(w, ACC, lane) \
	NIBBLES(4(w))     \
	UNSIGNED          \
	SCALEMIN(w, lane) \
	ADD(ACC)

// func rowsQ4_1AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsQ4_1AVX2(SB), NOSPLIT, $128-56
	SHIFTS(X9, Y9)
	FILL(0x0f0f0f0f0f0f0f0f, X10, Y10)
	ROWS(20, ZEROSUMS, SUM, Q41BLOCK, ADDSUMS)

#define Q51BLOCK(w, ACC, lane) \
	NIBBLES(8(w))     \
	FIFTH(4(w), Y11)  \
	UNSIGNED          \
	SCALEMIN(w, lane) \
	ADD(ACC)

// func rowsQ5_1AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsQ5_1AVX2(SB), NOSPLIT, $128-56
	SHIFTS(X9, Y9)
	FILL(0x0f0f0f0f0f0f0f0f, X10, Y10)
	FILL(0x1010101010101010, X11, Y11)
	FILL(0x8040201008040201, X7, Y7)
	VMOVDQU fifth<>(SB), Y8
	ROWS(24, ZEROSUMS, SUM, Q51BLOCK, ADDSUMS)

#define IQ4BLOCK(w, ACC, lane) \
	NIBBLES(2(w))       \
	VPSHUFB Y4, Y14, Y4 \
	SIGNED              \
	SCALE(w)            \
	ADD(ACC)

// func rowsIQ4_NLAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsIQ4_NLAVX2(SB), NOSPLIT, $0-56
	SHIFTS(X9, Y9)
	FILL(0x0f0f0f0f0f0f0f0f, X10, Y10)
	LEVELSIQ4(X14, Y14)
	ROWS(18, NOSTART, NOPRE, IQ4BLOCK, NOEND)

// levelsMXFP4 holds the doubled levels of MXFP4 plus 12.
DATA levelsMXFP4<>+0(SB)/8, $0x181412100f0e0d0c
DATA levelsMXFP4<>+8(SB)/8, $0x00040608090a0b0c
GLOBL levelsMXFP4<>(SB), RODATA|NOPTR, $16

// SCALEE8M0 is SCALE for an E8M0 scale e. It uses 2^(e-128), half of the scale 2^(e-127), because
// the levels are doubled. The bits of this float32 number are (e-1)<<23. For e below 2 it is
// subnormal, and its bits are (e+1)<<21.
#define SCALEE8M0(w) \
	MOVBLZX      (w), R13     \
	LEAL         -1(R13), R14 \
	SHLL         $23, R14     \
	CMPL         R13, $2      \
	LEAL         1(R13), R13  \
	JHS          3(PC)        \
	SHLL         $21, R13     \
	MOVL         R13, R14     \
	VMOVD        R14, X6      \
	VBROADCASTSS X6, Y6       \
	VMULPS       Y13, Y6, Y6

#define MXBLOCK(w, ACC, lane) \
	NIBBLES(1(w))      \
	VPSHUFB Y4, Y8, Y4 \
	LESS               \
	SCALEE8M0(w)       \
	ADD(ACC)

// func rowsMXFP4AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsMXFP4AVX2(SB), NOSPLIT, $0-56
	SHIFTS(X9, Y9)
	FILL(0x0f0f0f0f0f0f0f0f, X10, Y10)
	FILL(0x0c0c0c0c0c0c0c0c, X14, Y14)
	VBROADCASTI128 levelsMXFP4<>(SB), Y8
	ROWS(17, NOSTART, OFFSET, MXBLOCK, NOEND)
