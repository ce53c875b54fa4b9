#include "textflag.h"

// Attention over a KV cache of int8 with one scale for each block of 32 elements, in the
// arithmetic of doc.go. The functions handle one, two or three rows of activations or
// accumulators. Scales are passed as float32.

// WIDEN converts 8 elements at p to floats in A, multiplied by the scale in Y15.
#define WIDEN(p, A) \
	VPMOVSXBD p, A      \
	VCVTDQ2PS A, A      \
	VMULPS    Y15, A, A

// Products of rows of K with rows of activations. Two registers hold the 16 sums of one row of K
// and one row of activations. The registers are
//
//	SI      K                          Y0-Y5    sums, two for each row of x
//	R9      size of a row in bytes     Y12 Y13  16 elements of K
//	R11     scales                     Y15      scale of the block
//	DX AX   x, and the position in it  CX       elements left in the row
//	BX      stride of x                R13      rows left
//	DI R8   y and its stride
#define ADD1(at) \
	VFMADD231PS at(AX), Y12, Y0      \
	VFMADD231PS (at+32)(AX), Y13, Y1
#define ADD2(at) \
	ADD1(at)                                 \
	VFMADD231PS at(AX)(BX*1), Y12, Y2        \
	VFMADD231PS (at+32)(AX)(BX*1), Y13, Y3
#define ADD3(at) \
	ADD2(at)                                 \
	VFMADD231PS at(AX)(BX*2), Y12, Y4        \
	VFMADD231PS (at+32)(AX)(BX*2), Y13, Y5

#define ZERO(A, B) \
	VXORPS A, A, A \
	VXORPS B, B, B
#define ZERO1 \
	ZERO(Y0, Y1)
#define ZERO2 \
	ZERO1        \
	ZERO(Y2, Y3)
#define ZERO3 \
	ZERO2        \
	ZERO(Y4, Y5)

// STORE adds up the sums in A and B and writes the result. X is the lower half of A.
#define STORE(A, B, X, to) \
	VADDPS       B, A, A      \
	VEXTRACTF128 $1, A, X14   \
	VADDPS       X14, X, X    \
	VMOVHLPS     X, X, X14    \
	VADDPS       X14, X, X    \
	VMOVSHDUP    X, X14       \
	VADDSS       X14, X, X    \
	VMOVSS       X, to
#define STORE1 \
	STORE(Y0, Y1, X0, (DI))
#define STORE2 \
	STORE1                        \
	STORE(Y2, Y3, X2, (DI)(R8*1))
#define STORE3 \
	STORE2                        \
	STORE(Y4, Y5, X4, (DI)(R8*2))

#define DOT(ZERO, ADD, STORE) \
	MOVQ y+0(FP), DI        \
	MOVQ yStride+8(FP), R8  \
	MOVQ w+16(FP), SI       \
	MOVQ scales+24(FP), R11 \
	MOVQ n+32(FP), R13      \
	MOVQ in+40(FP), R9      \
	MOVQ x+48(FP), DX       \
	MOVQ xStride+56(FP), BX \
row: \
	MOVQ DX, AX             \
	MOVQ R9, CX             \
	ZERO                    \
block: \
	VBROADCASTSS (R11), Y15 \
	WIDEN((SI), Y12)        \
	WIDEN(8(SI), Y13)       \
	ADD(0)                  \
	WIDEN(16(SI), Y12)      \
	WIDEN(24(SI), Y13)      \
	ADD(64)                 \
	ADDQ $32, SI            \
	ADDQ $4, R11            \
	ADDQ $128, AX           \
	SUBQ $32, CX            \
	JGT  block              \
	STORE                   \
	ADDQ $4, DI             \
	DECQ R13                \
	JNZ  row                \
	VZEROUPPER              \
	RET

// Weighted sums of rows of V, a block of 32 columns at a time. The registers are
//
//	SI AX    V, and the row in it       Y0-Y11   sums, four for each accumulator
//	R10      size of a row in bytes     Y12 Y13  weights
//	R14 R15  scales, and the row's      Y14      8 elements of V
//	R12      bytes of scales per row    Y15      their scale
//	DX CX    weights, and the next one  R9       columns left
//	BX       stride of the weights      R11      rows left
//	DI R8    acc and its stride

#define GET1(at, A, B, C) \
	VMOVUPS at(DI), A
#define GET2(at, A, B, C) \
	GET1(at, A, B, C)       \
	VMOVUPS at(DI)(R8*1), B
#define GET3(at, A, B, C) \
	GET2(at, A, B, C)       \
	VMOVUPS at(DI)(R8*2), C
#define PUT1(at, A, B, C) \
	VMOVUPS A, at(DI)
#define PUT2(at, A, B, C) \
	PUT1(at, A, B, C)       \
	VMOVUPS B, at(DI)(R8*1)
#define PUT3(at, A, B, C) \
	PUT2(at, A, B, C)       \
	VMOVUPS C, at(DI)(R8*2)

// The MUL macros add 8 elements of V times the weights.
#define MUL1(at, A, B, C) \
	WIDEN(at(AX), Y14)             \
	VBROADCASTSS (CX), Y12         \
	VFMADD231PS  Y14, Y12, A
#define MUL2(at, A, B, C) \
	MUL1(at, A, B, C)              \
	VBROADCASTSS (CX)(BX*1), Y13   \
	VFMADD231PS  Y14, Y13, B
#define MUL3(at, A, B, C) \
	MUL2(at, A, B, C)              \
	VBROADCASTSS (CX)(BX*2), Y12   \
	VFMADD231PS  Y14, Y12, C

#define SCALED(GET, MUL, PUT) \
	MOVQ acc+0(FP), DI      \
	MOVQ n+8(FP), R9        \
	MOVQ v+16(FP), SI       \
	MOVQ scales+24(FP), R14 \
	MOVQ w+40(FP), DX       \
	MOVQ wStride+48(FP), BX \
	MOVQ R9, R10            \
	MOVQ R9, R12            \
	SHRQ $3, R12            \
	LEAQ (R9)(R9*1), R8     \
	ADDQ R8, R8             \
columns: \
	MOVQ SI, AX             \
	MOVQ DX, CX             \
	MOVQ R14, R15           \
	MOVQ m+32(FP), R11      \
	GET(0, Y0, Y4, Y8)      \
	GET(32, Y1, Y5, Y9)     \
	GET(64, Y2, Y6, Y10)    \
	GET(96, Y3, Y7, Y11)    \
row: \
	VBROADCASTSS (R15), Y15 \
	MUL(0, Y0, Y4, Y8)      \
	MUL(8, Y1, Y5, Y9)      \
	MUL(16, Y2, Y6, Y10)    \
	MUL(24, Y3, Y7, Y11)    \
	ADDQ R10, AX            \
	ADDQ R12, R15           \
	ADDQ $4, CX             \
	DECQ R11                \
	JNZ  row                \
	PUT(0, Y0, Y4, Y8)      \
	PUT(32, Y1, Y5, Y9)     \
	PUT(64, Y2, Y6, Y10)    \
	PUT(96, Y3, Y7, Y11)    \
	ADDQ $128, DI           \
	ADDQ $32, SI            \
	ADDQ $4, R14            \
	SUBQ $32, R9            \
	JGT  columns            \
	VZEROUPPER              \
	RET

// func dotQ8x1AVX2(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)
TEXT ·dotQ8x1AVX2(SB), NOSPLIT, $0-64
	DOT(ZERO1, ADD1, STORE1)

// func dotQ8x2AVX2(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)
TEXT ·dotQ8x2AVX2(SB), NOSPLIT, $0-64
	DOT(ZERO2, ADD2, STORE2)

// func dotQ8x3AVX2(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)
TEXT ·dotQ8x3AVX2(SB), NOSPLIT, $0-64
	DOT(ZERO3, ADD3, STORE3)

// func addScaledQ8x1AVX2(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)
TEXT ·addScaledQ8x1AVX2(SB), NOSPLIT, $0-56
	SCALED(GET1, MUL1, PUT1)

// func addScaledQ8x2AVX2(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)
TEXT ·addScaledQ8x2AVX2(SB), NOSPLIT, $0-56
	SCALED(GET2, MUL2, PUT2)

// func addScaledQ8x3AVX2(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)
TEXT ·addScaledQ8x3AVX2(SB), NOSPLIT, $0-56
	SCALED(GET3, MUL3, PUT3)
