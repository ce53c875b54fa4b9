#include "textflag.h"

// Loops of layers with recurrent state. Products and sums are rounded separately, except in the sums of
// dot products.

// REDUCE adds up the 16 sums in A and B: lanes l and l+8, then l and l+4, l and l+2, l and l+1. T and U are
// the X registers of A and B.
#define REDUCE(A, B, T, U) \
	VADDPS       B, A, A      \
	VEXTRACTF128 $1, A, U     \
	VADDPS       U, T, T      \
	VMOVHLPS     T, T, U      \
	VADDPS       U, T, T      \
	VMOVSHDUP    T, U         \
	VADDSS       U, T, T

// HALF computes 8 elements of the new rows of the state, which it stores, and adds their products with q
// and the next k to the sums of the two rows: QA and QB, KA and KB.
#define HALF(at, QA, QB, KA, KB) \
	VMOVUPS     at(CX), Y8           \
	VMULPS      at(SI), Y12, Y9      \
	VMULPS      at(SI)(R8*1), Y12, Y10 \
	VMULPS      Y8, Y13, Y11         \
	VMULPS      Y8, Y14, Y8          \
	VADDPS      Y11, Y9, Y9          \
	VADDPS      Y8, Y10, Y10         \
	VMOVUPS     Y9, at(DI)           \
	VMOVUPS     Y10, at(DI)(R8*1)    \
	VMOVUPS     at(CX)(R8*1), Y8     \
	VMOVUPS     at(R9), Y11          \
	VFMADD231PS Y8, Y9, QA           \
	VFMADD231PS Y8, Y10, QB          \
	VFMADD231PS Y11, Y9, KA          \
	VFMADD231PS Y11, Y10, KB

// func deltaAVX2(to, from, kq, gates, values, out *float32, shape *int)
//
// Two rows of a state at a time. Y0 to Y3 are the sums of q and the state, Y4 to Y7 those of the next k
// and the state; Y12 is keep, Y13 and Y14 are the deltas.
TEXT ·deltaAVX2(SB), NOSPLIT, $24-56
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ values+32(FP), R10
	MOVQ out+40(FP), R11
	MOVQ shape+48(FP), AX
	MOVQ 0(AX), CX
	MOVQ CX, rows-8(SP)
	MOVQ 8(AX), R8
	SHLQ $2, R8
	MOVQ 24(AX), R12
	SHLQ $2, R12
	MOVQ 32(AX), R13
	SHLQ $2, R13

group:
	SUBQ $2, rows-8(SP)
	JLT  done
	MOVQ SI, next-16(SP)
	MOVQ kq+16(FP), DX
	MOVQ gates+24(FP), BX
	MOVQ shape+48(FP), AX
	MOVQ 16(AX), R15

	// The sums of the first k and the state.
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	MOVQ   DX, CX
	MOVQ   R8, AX

first:
	VMOVUPS     (CX), Y8
	VMOVUPS     32(CX), Y9
	VFMADD231PS (SI), Y8, Y4
	VFMADD231PS 32(SI), Y9, Y5
	VFMADD231PS (SI)(R8*1), Y8, Y6
	VFMADD231PS 32(SI)(R8*1), Y9, Y7
	ADDQ        $64, CX
	ADDQ        $64, SI
	SUBQ        $64, AX
	JGT         first
	SUBQ        R8, SI

row:
	REDUCE(Y4, Y5, X4, X5)
	REDUCE(Y6, Y7, X6, X7)
	VBROADCASTSS (BX), Y12
	VMULSS       X12, X4, X4
	VMULSS       X12, X6, X6
	VMOVSS       (R10), X8
	VMOVSS       4(R10), X9
	VSUBSS       X4, X8, X8
	VSUBSS       X6, X9, X9
	VMULSS       4(BX), X8, X8
	VMULSS       4(BX), X9, X9
	VBROADCASTSS X8, Y13
	VBROADCASTSS X9, Y14
	VXORPS       Y0, Y0, Y0
	VXORPS       Y1, Y1, Y1
	VXORPS       Y2, Y2, Y2
	VXORPS       Y3, Y3, Y3
	VXORPS       Y4, Y4, Y4
	VXORPS       Y5, Y5, Y5
	VXORPS       Y6, Y6, Y6
	VXORPS       Y7, Y7, Y7
	MOVQ         DX, CX
	MOVQ         R8, AX
	MOVQ         DX, R9                 // the sums of the last row are not used
	CMPQ         R15, $1
	JLE          columns
	LEAQ         (DX)(R8*2), R9

columns:
	HALF(0, Y0, Y2, Y4, Y6)
	HALF(32, Y1, Y3, Y5, Y7)
	ADDQ $64, CX
	ADDQ $64, R9
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $64, AX
	JGT  columns
	SUBQ R8, DI
	MOVQ DI, SI
	REDUCE(Y0, Y1, X0, X1)
	REDUCE(Y2, Y3, X2, X3)
	VMOVSS X0, (R11)
	VMOVSS X2, 4(R11)
	LEAQ (DX)(R8*2), DX
	ADDQ $8, BX
	ADDQ R12, R10
	ADDQ R13, R11
	DECQ R15
	JG   row

	// The next two rows.
	LEAQ (DI)(R8*2), DI
	MOVQ next-16(SP), SI
	LEAQ (SI)(R8*2), SI
	MOVQ values+32(FP), R10
	ADDQ $8, R10
	MOVQ R10, values+32(FP)
	MOVQ out+40(FP), R11
	ADDQ $8, R11
	MOVQ R11, out+40(FP)
	JMP  group

done:
	VZEROUPPER
	RET

// TAPS sets Y4 to Y6 and Y11 to the first to fourth taps of 8 channels. The taps of a channel are at
// multiples of DX, which R12 is three times.
#define TAPS \
	LEAQ        (SI)(DX*4), BX                \
	VMOVUPS     (SI), X0                      \
	VMOVUPS     (SI)(DX*1), X1                \
	VMOVUPS     (SI)(DX*2), X2                \
	VMOVUPS     (SI)(R12*1), X3               \
	VINSERTF128 $1, (BX), Y0, Y0              \
	VINSERTF128 $1, (BX)(DX*1), Y1, Y1        \
	VINSERTF128 $1, (BX)(DX*2), Y2, Y2        \
	VINSERTF128 $1, (BX)(R12*1), Y3, Y3       \
	VUNPCKLPS   Y1, Y0, Y7                    \
	VUNPCKLPS   Y3, Y2, Y8                    \
	VUNPCKHPS   Y1, Y0, Y9                    \
	VUNPCKHPS   Y3, Y2, Y10                   \
	VUNPCKLPD   Y8, Y7, Y4                    \
	VUNPCKHPD   Y8, Y7, Y5                    \
	VUNPCKLPD   Y10, Y9, Y6                   \
	VUNPCKHPD   Y10, Y9, Y11

// TAP adds the products of a tap of 8 channels and their inputs.
#define TAP(x, T) \
	VMULPS (x)(AX*1), T, T \
	VADDPS T, Y12, Y12

// func convolveAVX2(out, w *float32, steps, taps int, x *[4]*float32)
//
// A step is 8 channels. With three taps, 4 bytes after those of the last channel are read.
TEXT ·convolveAVX2(SB), NOSPLIT, $0-40
	MOVQ out+0(FP), DI
	MOVQ w+8(FP), SI
	MOVQ steps+16(FP), CX
	MOVQ taps+24(FP), DX
	MOVQ x+32(FP), AX
	MOVQ 0(AX), R8
	MOVQ 8(AX), R9
	MOVQ 16(AX), R10
	MOVQ 24(AX), R11
	SHLQ $2, DX
	LEAQ (DX)(DX*2), R12
	XORQ AX, AX
	CMPQ DX, $16
	JEQ  four

three:
	VMOVUPS (DI)(AX*1), Y12
	TAPS
	TAP(R8, Y4)
	TAP(R9, Y5)
	TAP(R10, Y6)
	VMOVUPS Y12, (DI)(AX*1)
	ADDQ    $32, AX
	LEAQ    (SI)(DX*8), SI
	DECQ    CX
	JG      three
	VZEROUPPER
	RET

four:
	VMOVUPS (DI)(AX*1), Y12
	TAPS
	TAP(R8, Y4)
	TAP(R9, Y5)
	TAP(R10, Y6)
	TAP(R11, Y11)
	VMOVUPS Y12, (DI)(AX*1)
	ADDQ    $32, AX
	LEAQ    (SI)(DX*8), SI
	DECQ    CX
	JG      four
	VZEROUPPER
	RET
