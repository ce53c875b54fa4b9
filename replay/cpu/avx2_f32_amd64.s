#include "textflag.h"

// Products of rows of float weights with one, two or three rows of activations, in the arithmetic
// of doc.go. Two registers hold the 16 sums of one row of weights and one row of activations. The
// registers are
//
//	SI R10      two rows of weights        Y0-Y11   sums, four for each row of x:
//	R9          size of a row in bytes              two for each row of weights
//	DX AX       x, and the position in it  Y12 Y13  8 weights of each row
//	BX          stride of x                Y14      8 activations
//	CX R12      column, and the end
//	DI R8       y and its stride
//	R14 R15     prefetch distance and address
//	R13         rows of weights left (R11 is 0)
//
// If one row of weights is left, it is used as both rows.

// LOADF32, LOADF16 and LOADBF16 load 8 weights of each row, beginning with column at.
#define LOADF32(at) \
	VMOVUPS (4*at)(SI)(CX*4), Y12  \
	VMOVUPS (4*at)(R10)(CX*4), Y13

#define LOADF16(at) \
	VCVTPH2PS (2*at)(SI)(CX*2), Y12  \
	VCVTPH2PS (2*at)(R10)(CX*2), Y13

#define LOADBF16(at) \
	VPMOVZXWD (2*at)(SI)(CX*2), Y12  \
	VPMOVZXWD (2*at)(R10)(CX*2), Y13 \
	VPSLLD    $16, Y12, Y12          \
	VPSLLD    $16, Y13, Y13

// MULADD adds the products of the weights and 8 activations.
#define MULADD(x, A, B) \
	VMOVUPS     x, Y14      \
	VFMADD231PS Y14, Y12, A \
	VFMADD231PS Y14, Y13, B

// STORE adds up the sums of one row of activations and writes the results to y at DI. A and B
// are the lower 8 sums of the two rows of weights, C and D the upper 8. It uses Y12 to Y15, AX
// and CX.
#define STORE(A, B, C, D) \
	VADDPS       C, A, Y12           \
	VADDPS       D, B, Y13           \
	VPERM2F128   $0x20, Y13, Y12, Y14 \
	VPERM2F128   $0x31, Y13, Y12, Y15 \
	VADDPS       Y15, Y14, Y12       \
	VPERMILPS    $0xee, Y12, Y13     \
	VADDPS       Y13, Y12, Y12       \
	VMOVSHDUP    Y12, Y13            \
	VADDPS       Y13, Y12, Y12       \
	VEXTRACTF128 $1, Y12, X13        \
	VMOVSS       X13, (AX)(CX*1)     \
	VMOVSS       X12, (AX)

#define ZERO4(A, B, C, D) \
	VXORPS A, A, A \
	VXORPS B, B, B \
	VXORPS C, C, C \
	VXORPS D, D, D

// Macros ending in 1, 2 or 3 handle that many rows of activations.
#define ZERO1 \
	ZERO4(Y0, Y1, Y2, Y3)
#define ZERO2 \
	ZERO1                 \
	ZERO4(Y4, Y5, Y6, Y7)
#define ZERO3 \
	ZERO2                   \
	ZERO4(Y8, Y9, Y10, Y11)

#define ROWS1(LOAD) \
	LOAD(0)                  \
	MULADD((AX), Y0, Y1)     \
	LOAD(8)                  \
	MULADD(32(AX), Y2, Y3)
#define ROWS2(LOAD) \
	LOAD(0)                        \
	MULADD((AX), Y0, Y1)           \
	MULADD((AX)(BX*1), Y4, Y5)     \
	LOAD(8)                        \
	MULADD(32(AX), Y2, Y3)         \
	MULADD(32(AX)(BX*1), Y6, Y7)
#define ROWS3(LOAD) \
	LOAD(0)                        \
	MULADD((AX), Y0, Y1)           \
	MULADD((AX)(BX*1), Y4, Y5)     \
	MULADD((AX)(BX*2), Y8, Y9)     \
	LOAD(8)                        \
	MULADD(32(AX), Y2, Y3)         \
	MULADD(32(AX)(BX*1), Y6, Y7)   \
	MULADD(32(AX)(BX*2), Y10, Y11)

#define STORE1 \
	MOVQ DI, AX             \
	STORE(Y0, Y1, Y2, Y3)
#define STORE2 \
	STORE1                  \
	ADDQ R8, AX             \
	STORE(Y4, Y5, Y6, Y7)
#define STORE3 \
	STORE2                  \
	ADDQ R8, AX             \
	STORE(Y8, Y9, Y10, Y11)

// FAR16 and FAR32 prefetch rows of weights after the current two, in the order of their
// addresses. The hardware prefetcher does not look beyond a row.
#define FAR16 \
	LEAQ       (SI)(CX*4), R15 \
	PREFETCHT1 (R15)(R14*1)
#define FAR32 \
	LEAQ       (SI)(CX*8), R15   \
	PREFETCHT1 (R15)(R14*1)      \
	PREFETCHT1 64(R15)(R14*1)

#define NEAR

// PRODUCT is the body of a function for weights of 1<<shift bytes. The number of columns, in,
// is a multiple of 16.
#define PRODUCT(shift, LOAD, ZERO, ROWS, STORE, FETCH) \
	MOVQ y+0(FP), DI       \
	MOVQ yStride+8(FP), R8 \
	MOVQ w+16(FP), SI      \
	MOVQ n+24(FP), R13     \
	MOVQ in+32(FP), R12    \
	MOVQ x+40(FP), DX      \
	MOVQ xStride+48(FP), BX \
	MOVQ R12, R9           \
	SHLQ $shift, R9        \
	LEAQ 8192(R9*2), R14   \
block: \
	LEAQ    (SI)(R9*1), R10 \
	CMPQ    R13, $2        \
	CMOVQLT SI, R10        \
	MOVQ    DX, AX         \
	XORL    CX, CX         \
	ZERO                   \
step: \
	FETCH                  \
	ROWS(LOAD)             \
	ADDQ $64, AX           \
	ADDQ $16, CX           \
	CMPQ CX, R12           \
	JLT  step              \
	MOVQ DI, AX            \
	MOVL $4, CX            \
	XORL R11, R11          \
	CMPQ R13, $2           \
	CMOVQLT R11, CX        \
	STORE                  \
	ADDQ $8, DI            \
	LEAQ (SI)(R9*2), SI    \
	SUBQ $2, R13           \
	JGT  block             \
	VZEROUPPER             \
	RET

// func floatF32x1AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF32x1AVX2(SB), NOSPLIT, $0-56
	PRODUCT(2, LOADF32, ZERO1, ROWS1, STORE1, FAR32)

// func floatF32x2AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF32x2AVX2(SB), NOSPLIT, $0-56
	PRODUCT(2, LOADF32, ZERO2, ROWS2, STORE2, FAR32)

// func floatF32x3AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF32x3AVX2(SB), NOSPLIT, $0-56
	PRODUCT(2, LOADF32, ZERO3, ROWS3, STORE3, NEAR)

// func floatF16x1AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF16x1AVX2(SB), NOSPLIT, $0-56
	PRODUCT(1, LOADF16, ZERO1, ROWS1, STORE1, FAR16)

// func floatF16x2AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF16x2AVX2(SB), NOSPLIT, $0-56
	PRODUCT(1, LOADF16, ZERO2, ROWS2, STORE2, FAR16)

// func floatF16x3AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF16x3AVX2(SB), NOSPLIT, $0-56
	PRODUCT(1, LOADF16, ZERO3, ROWS3, STORE3, NEAR)

// func floatBF16x1AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatBF16x1AVX2(SB), NOSPLIT, $0-56
	PRODUCT(1, LOADBF16, ZERO1, ROWS1, STORE1, FAR16)

// func floatBF16x2AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatBF16x2AVX2(SB), NOSPLIT, $0-56
	PRODUCT(1, LOADBF16, ZERO2, ROWS2, STORE2, FAR16)

// func floatBF16x3AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatBF16x3AVX2(SB), NOSPLIT, $0-56
	PRODUCT(1, LOADBF16, ZERO3, ROWS3, STORE3, NEAR)

// func accumulateAVX2(acc *[16]float32, a, b *float32, steps int)
//
// A step is 16 elements.
TEXT ·accumulateAVX2(SB), NOSPLIT, $0-32
	MOVQ acc+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ steps+24(FP), CX
	VMOVUPS (DI), Y0
	VMOVUPS 32(DI), Y1

more:
	TESTQ CX, CX
	JLE  accumulated
	VMOVUPS (SI), Y2
	VMOVUPS 32(SI), Y3
	VFMADD231PS (DX), Y2, Y0
	VFMADD231PS 32(DX), Y3, Y1
	ADDQ $64, SI
	ADDQ $64, DX
	DECQ CX
	JMP  more

accumulated:
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VZEROUPPER
	RET

// func f16ToF32AVX2(dst *float32, src *byte, steps int)
//
// A step is 8 elements.
TEXT ·f16ToF32AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ steps+16(FP), CX

widen:
	TESTQ CX, CX
	JLE  widendone
	VCVTPH2PS (SI), Y0
	VMOVUPS Y0, (DI)
	ADDQ $16, SI
	ADDQ $32, DI
	DECQ CX
	JMP  widen

widendone:
	VZEROUPPER
	RET

// func f32ToF16AVX2(dst *byte, src *float32, steps int)
//
// A step is 8 elements, rounded to nearest even.
TEXT ·f32ToF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ steps+16(FP), CX

narrow:
	TESTQ CX, CX
	JLE  narrowdone
	VMOVUPS (SI), Y0
	VCVTPS2PH $0, Y0, (DI)
	ADDQ $32, SI
	ADDQ $16, DI
	DECQ CX
	JMP  narrow

narrowdone:
	VZEROUPPER
	RET
