#include "textflag.h"

// Sums of float16 rows of V weighted by attention, for one, two or three accumulators: 32 columns
// at a time, then 8. The registers are
//
//	SI AX   V, and the row in it     Y0-Y11   sums, four for each accumulator
//	R10     size of a row in bytes   Y12-Y14  a weight for each accumulator
//	DX CX   weights, and the next    Y15      8 elements of V
//	        one
//	BX      stride of the weights    R9       columns left
//	R11     rows left

// GET and PUT load and store 8 sums of each accumulator. ADD adds 8 elements of V times the
// weights. Macros ending in 1, 2 or 3 handle that many accumulators.
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

#define WEIGHT1 \
	VBROADCASTSS (CX), Y12
#define WEIGHT2 \
	WEIGHT1                      \
	VBROADCASTSS (CX)(BX*1), Y13
#define WEIGHT3 \
	WEIGHT2                      \
	VBROADCASTSS (CX)(BX*2), Y14

#define ADD1(at, A, B, C) \
	VCVTPH2PS   at(AX), Y15 \
	VFMADD231PS Y15, Y12, A
#define ADD2(at, A, B, C) \
	ADD1(at, A, B, C)       \
	VFMADD231PS Y15, Y13, B
#define ADD3(at, A, B, C) \
	ADD2(at, A, B, C)       \
	VFMADD231PS Y15, Y14, C

// SCALED is the body of a function. The number of columns n is a multiple of 8. V is prefetched 4 KiB ahead,
// as in avx512_attn_amd64.s.
#define SCALED(GET, WEIGHT, ADD, PUT) \
	MOVQ acc+0(FP), DI      \
	MOVQ n+8(FP), R9        \
	MOVQ v+16(FP), SI       \
	MOVQ w+32(FP), DX       \
	MOVQ wStride+40(FP), BX \
	LEAQ (R9)(R9*1), R10    \
	LEAQ (R10)(R10*1), R8   \
columns32: \
	CMPQ R9, $32            \
	JLT  columns8           \
	MOVQ SI, AX             \
	MOVQ DX, CX             \
	MOVQ m+24(FP), R11      \
	GET(0, Y0, Y4, Y8)      \
	GET(32, Y1, Y5, Y9)     \
	GET(64, Y2, Y6, Y10)    \
	GET(96, Y3, Y7, Y11)    \
row32: \
	PREFETCHT0 4096(AX)     \
	WEIGHT                  \
	ADD(0, Y0, Y4, Y8)      \
	ADD(16, Y1, Y5, Y9)     \
	ADD(32, Y2, Y6, Y10)    \
	ADD(48, Y3, Y7, Y11)    \
	ADDQ R10, AX            \
	ADDQ $4, CX             \
	DECQ R11                \
	JNZ  row32              \
	PUT(0, Y0, Y4, Y8)      \
	PUT(32, Y1, Y5, Y9)     \
	PUT(64, Y2, Y6, Y10)    \
	PUT(96, Y3, Y7, Y11)    \
	ADDQ $128, DI           \
	ADDQ $64, SI            \
	SUBQ $32, R9            \
	JMP  columns32          \
columns8: \
	TESTQ R9, R9            \
	JLE  done               \
	MOVQ SI, AX             \
	MOVQ DX, CX             \
	MOVQ m+24(FP), R11      \
	GET(0, Y0, Y4, Y8)      \
row8: \
	WEIGHT                  \
	ADD(0, Y0, Y4, Y8)      \
	ADDQ R10, AX            \
	ADDQ $4, CX             \
	DECQ R11                \
	JNZ  row8               \
	PUT(0, Y0, Y4, Y8)      \
	ADDQ $32, DI            \
	ADDQ $16, SI            \
	SUBQ $8, R9             \
	JMP  columns8           \
done: \
	VZEROUPPER              \
	RET

// func addScaledF16x1AVX2(acc *float32, n int, v *byte, m int, w *float32, wStride int)
TEXT ·addScaledF16x1AVX2(SB), NOSPLIT, $0-48
	SCALED(GET1, WEIGHT1, ADD1, PUT1)

// func addScaledF16x2AVX2(acc *float32, n int, v *byte, m int, w *float32, wStride int)
TEXT ·addScaledF16x2AVX2(SB), NOSPLIT, $0-48
	SCALED(GET2, WEIGHT2, ADD2, PUT2)

// func addScaledF16x3AVX2(acc *float32, n int, v *byte, m int, w *float32, wStride int)
TEXT ·addScaledF16x3AVX2(SB), NOSPLIT, $0-48
	SCALED(GET3, WEIGHT3, ADD3, PUT3)

// func scaleMaxAVX2(s *float32, scale float32, steps int) float32
//
// A step is 8 elements. VMAXPS returns its first operand here, the maximum so far, if an
// element is NaN.
TEXT ·scaleMaxAVX2(SB), NOSPLIT, $0-28
	MOVQ s+0(FP), DI
	VBROADCASTSS scale+8(FP), Y0
	MOVQ steps+16(FP), CX
	MOVL $0xff800000, AX
	VMOVD AX, X1
	VPBROADCASTD X1, Y1

scale:
	VMULPS (DI), Y0, Y2
	VMOVUPS Y2, (DI)
	VMAXPS Y1, Y2, Y1
	ADDQ $32, DI
	DECQ CX
	JNZ  scale
	VEXTRACTF128 $1, Y1, X2
	VMAXPS X2, X1, X1
	VMOVHLPS X1, X1, X2
	VMAXPS X2, X1, X1
	VMOVSHDUP X1, X2
	VMAXPS X2, X1, X1
	VMOVSS X1, ret+24(FP)
	VZEROUPPER
	RET
