#include "textflag.h"

// Products of quantised rows with quantised activations. The lane arithmetic
// is that of doc.go.

// REDUCE8 adds up the lanes of Y0, whose lower half is X0, into the lowest.
#define REDUCE8(Y0, X0, X1) \
	VEXTRACTF128 $1, Y0, X1   \
	VADDPS       X1, X0, X0   \
	VMOVHLPS     X0, X0, X1   \
	VADDPS       X1, X0, X0   \
	VMOVSHDUP    X0, X1       \
	VADDSS       X1, X0, X0

// SCALE multiplies the integer parts in Y5 by the row's scale at (w), in half
// precision, times the activations' in Y13, and adds them to ACC.
#define SCALE(w, ACC) \
	VPBROADCASTW (w), X6     \
	VCVTPH2PS    X6, Y6      \
	VMULPS       Y13, Y6, Y6 \
	VCVTDQ2PS    Y5, Y5      \
	VMULPS       Y6, Y5, Y5  \
	VADDPS       Y5, ACC, ACC

// Q8BLOCK is one block of a Q8_0 row at w with the activations in Y12. The
// weights' sign moves to the activations, which are within 127, so that -128
// is exact and sums of two products fit in 16 bits.
#define Q8BLOCK(w, ACC) \
	VMOVDQU    2(w), Y4     \
	VPSIGNB    Y4, Y12, Y5  \
	VPABSB     Y4, Y4       \
	VPMADDUBSW Y5, Y4, Y5   \
	VPMADDWD   Y15, Y5, Y5  \
	SCALE(w, ACC)           \
	ADDQ       $34, w

// func rowsQ8_0AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32)
TEXT ·rowsQ8_0AVX2(SB), NOSPLIT, $0-48
	MOVQ y+0(FP), DI
	MOVQ w+8(FP), SI
	MOVQ rows+16(FP), R8
	MOVQ blocks+24(FP), R9
	MOVQ q+32(FP), R10
	MOVQ d+40(FP), R11
	IMUL3Q $34, R9, R12        // bytes of a row
	VPCMPEQW Y15, Y15, Y15
	VPSRLW   $15, Y15, Y15     // ones

q8four:
	CMPQ R8, $4
	JLT  q8one
	LEAQ (SI)(R12*1), AX
	LEAQ (SI)(R12*2), BX
	LEAQ (AX)(R12*2), DX
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	XORQ CX, CX

q8fourblock:
	MOVQ CX, R13
	SHLQ $5, R13
	VMOVDQU (R10)(R13*1), Y12
	VBROADCASTSS (R11)(CX*4), Y13
	Q8BLOCK(SI, Y0)
	Q8BLOCK(AX, Y1)
	Q8BLOCK(BX, Y2)
	Q8BLOCK(DX, Y3)
	INCQ CX
	CMPQ CX, R9
	JLT  q8fourblock
	REDUCE8(Y0, X0, X4)
	REDUCE8(Y1, X1, X4)
	REDUCE8(Y2, X2, X4)
	REDUCE8(Y3, X3, X4)
	VMOVSS X0, (DI)
	VMOVSS X1, 4(DI)
	VMOVSS X2, 8(DI)
	VMOVSS X3, 12(DI)
	ADDQ $16, DI
	MOVQ DX, SI                // the row after the fourth
	SUBQ $4, R8
	JMP  q8four

q8one:
	TESTQ R8, R8
	JLE  q8done
	VXORPS Y0, Y0, Y0
	XORQ CX, CX

q8oneblock:
	MOVQ CX, R13
	SHLQ $5, R13
	VMOVDQU (R10)(R13*1), Y12
	VBROADCASTSS (R11)(CX*4), Y13
	Q8BLOCK(SI, Y0)
	INCQ CX
	CMPQ CX, R9
	JLT  q8oneblock
	REDUCE8(Y0, X0, X4)
	VMOVSS X0, (DI)
	ADDQ $4, DI
	DECQ R8
	JMP  q8one

q8done:
	VZEROUPPER
	RET

// Q4BLOCK is one block of a Q4_0 row at w with the activations in Y12: low
// nibbles go to the lower half, high ones to the upper. Y11 has 8 times the
// sums of two activations, for the nibbles' offset.
#define Q4BLOCK(w, ACC) \
	VBROADCASTI128 2(w), Y4    \
	VPSRLVQ        Y9, Y4, Y4  \
	VPAND          Y10, Y4, Y4 \
	VPMADDUBSW     Y12, Y4, Y5 \
	VPSUBW         Y11, Y5, Y5 \
	VPMADDWD       Y15, Y5, Y5 \
	SCALE(w, ACC)              \
	ADDQ           $18, w

// func rowsQ4_0AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32)
TEXT ·rowsQ4_0AVX2(SB), NOSPLIT, $0-48
	MOVQ y+0(FP), DI
	MOVQ w+8(FP), SI
	MOVQ rows+16(FP), R8
	MOVQ blocks+24(FP), R9
	MOVQ q+32(FP), R10
	MOVQ d+40(FP), R11
	LEAQ (R9)(R9*8), R12
	SHLQ $1, R12               // bytes of a row
	VPCMPEQW Y15, Y15, Y15
	VPSRLW   $15, Y15, Y15     // ones
	MOVQ $0x0f0f0f0f0f0f0f0f, AX
	MOVQ AX, X10
	VPBROADCASTQ X10, Y10      // low nibbles
	MOVQ $0x0808080808080808, AX
	MOVQ AX, X14
	VPBROADCASTQ X14, Y14      // eights
	MOVQ $4, AX
	MOVQ AX, X8
	VPBROADCASTQ X8, X8
	VPXOR X7, X7, X7
	VINSERTI128 $1, X8, Y7, Y9 // shifts: 0 below, 4 above

q4four:
	CMPQ R8, $4
	JLT  q4one
	LEAQ (SI)(R12*1), AX
	LEAQ (SI)(R12*2), BX
	LEAQ (AX)(R12*2), DX
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	XORQ CX, CX

q4fourblock:
	MOVQ CX, R13
	SHLQ $5, R13
	VMOVDQU (R10)(R13*1), Y12
	VPMADDUBSW Y12, Y14, Y11
	VBROADCASTSS (R11)(CX*4), Y13
	Q4BLOCK(SI, Y0)
	Q4BLOCK(AX, Y1)
	Q4BLOCK(BX, Y2)
	Q4BLOCK(DX, Y3)
	INCQ CX
	CMPQ CX, R9
	JLT  q4fourblock
	REDUCE8(Y0, X0, X4)
	REDUCE8(Y1, X1, X4)
	REDUCE8(Y2, X2, X4)
	REDUCE8(Y3, X3, X4)
	VMOVSS X0, (DI)
	VMOVSS X1, 4(DI)
	VMOVSS X2, 8(DI)
	VMOVSS X3, 12(DI)
	ADDQ $16, DI
	MOVQ DX, SI                // the row after the fourth
	SUBQ $4, R8
	JMP  q4four

q4one:
	TESTQ R8, R8
	JLE  q4done
	VXORPS Y0, Y0, Y0
	XORQ CX, CX

q4oneblock:
	MOVQ CX, R13
	SHLQ $5, R13
	VMOVDQU (R10)(R13*1), Y12
	VPMADDUBSW Y12, Y14, Y11
	VBROADCASTSS (R11)(CX*4), Y13
	Q4BLOCK(SI, Y0)
	INCQ CX
	CMPQ CX, R9
	JLT  q4oneblock
	REDUCE8(Y0, X0, X4)
	VMOVSS X0, (DI)
	ADDQ $4, DI
	DECQ R8
	JMP  q4one

q4done:
	VZEROUPPER
	RET

// func quantizeAVX2(q *int8, d, x *float32, blocks int, c *[4]float32)
//
// c is 127, -127, the smallest scale and 1.
TEXT ·quantizeAVX2(SB), NOSPLIT, $0-40
	MOVQ q+0(FP), DI
	MOVQ d+8(FP), DX
	MOVQ x+16(FP), SI
	MOVQ blocks+24(FP), CX
	MOVQ c+32(FP), AX
	VBROADCASTSS (AX), Y15
	VBROADCASTSS 4(AX), Y14
	VMOVSS 8(AX), X13
	VMOVSS 12(AX), X12
	VPCMPEQD Y11, Y11, Y11
	VPSRLD   $1, Y11, Y11     // all but the sign
	MOVQ $0x0000000400000000, AX
	MOVQ AX, X9
	MOVQ $0x0000000500000001, AX
	MOVQ AX, X8
	VPUNPCKLQDQ X8, X9, X9    // 0 4 1 5
	VPCMPEQD X8, X8, X8
	VPSRLD   $31, X8, X8
	VPADDD   X8, X8, X8
	VPADDD   X8, X9, X8       // 2 6 3 7
	VINSERTI128 $1, X8, Y9, Y9 // 4-byte groups after packing in halves

quantblock:
	TESTQ CX, CX
	JLE  quantdone
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VMOVUPS 64(SI), Y2
	VMOVUPS 96(SI), Y3
	VXORPS Y8, Y8, Y8
	VANDPS Y11, Y0, Y4
	VANDPS Y11, Y1, Y5
	VANDPS Y11, Y2, Y6
	VANDPS Y11, Y3, Y7
	VMAXPS Y8, Y4, Y8         // the second operand wins over NaN
	VMAXPS Y8, Y5, Y8
	VMAXPS Y8, Y6, Y8
	VMAXPS Y8, Y7, Y8
	VEXTRACTF128 $1, Y8, X4
	VMAXPS X4, X8, X8
	VMOVHLPS X8, X8, X4
	VMAXPS X4, X8, X8
	VMOVSHDUP X8, X4
	VMAXSS X4, X8, X8
	VDIVSS X15, X8, X8        // the scale
	VDIVSS X8, X12, X4        // its inverse
	VUCOMISS X13, X8
	JAE  quantscale
	VXORPS X8, X8, X8
	VXORPS X4, X4, X4

quantscale:
	VMOVSS X8, (DX)
	VBROADCASTSS X4, Y4
	VMULPS Y4, Y0, Y0
	VMULPS Y4, Y1, Y1
	VMULPS Y4, Y2, Y2
	VMULPS Y4, Y3, Y3
	VMINPS Y15, Y0, Y0
	VMINPS Y15, Y1, Y1
	VMINPS Y15, Y2, Y2
	VMINPS Y15, Y3, Y3
	VMAXPS Y14, Y0, Y0
	VMAXPS Y14, Y1, Y1
	VMAXPS Y14, Y2, Y2
	VMAXPS Y14, Y3, Y3
	VCVTPS2DQ Y0, Y0
	VCVTPS2DQ Y1, Y1
	VCVTPS2DQ Y2, Y2
	VCVTPS2DQ Y3, Y3
	VPACKSSDW Y1, Y0, Y0
	VPACKSSDW Y3, Y2, Y2
	VPACKSSWB Y2, Y0, Y0
	VPERMD Y0, Y9, Y0
	VMOVDQU Y0, (DI)
	ADDQ $32, DI
	ADDQ $4, DX
	ADDQ $128, SI
	DECQ CX
	JMP  quantblock

quantdone:
	VZEROUPPER
	RET
