#include "textflag.h"
#include "avx512_fold_amd64.h"

// Attention over a KV cache of int8 with one scale for each block of 32 elements, in the
// arithmetic of doc.go. Scales are passed as float32. Rows are read sequentially and prefetched 4 KiB
// ahead, because the hardware prefetcher does not read beyond a page.

// WIDEN converts the 32 elements of block number at, counted from P, to floats in A and B,
// multiplied by the scale.
#define WIDEN(at, P, S, A, B) \
	VPMOVSXBD   (32*at)(P), A      \
	VPMOVSXBD   (32*at+16)(P), B   \
	VCVTDQ2PS   A, A               \
	VCVTDQ2PS   B, B               \
	VMULPS.BCST (4*at)(S), A, A    \
	VMULPS.BCST (4*at)(S), B, B

// Products of rows of K with one, two or four rows of activations. The 16 sums of 16, 8 or 4 rows
// of K are reduced together. The registers are
//
//	SI      K                          Z0-Z15   sums
//	R9      size of a row in bytes     Z24 Z25  32 elements of K
//	R11     scales                     Z31      permutation for TURN
//	DX AX   x, and the position in it  K1       mask of valid rows of K
//	BX R10  stride of x, times 3       CX       elements left in the row
//	DI R8   y and its stride           R12 R13  rows left of the group, of all

// ROW processes one row of K.
#define ROW(label, ADD) \
	MOVQ DX, AX              \
	MOVQ R9, CX              \
label: \
	PREFETCHT0 4096(SI)      \
	WIDEN(0, SI, R11, Z24, Z25) \
	ADD                      \
	ADDQ $32, SI             \
	ADDQ $4, R11             \
	ADDQ $128, AX            \
	SUBQ $32, CX             \
	JGT  label               \
	DECQ R12                 \
	JEQ  sums
#define ADD1(A) \
	VFMADD231PS (AX), Z24, A   \
	VFMADD231PS 64(AX), Z25, A
#define ADD2(A, B) \
	ADD1(A)                          \
	VFMADD231PS (AX)(BX*1), Z24, B   \
	VFMADD231PS 64(AX)(BX*1), Z25, B
#define ADD4(A, B, C, D) \
	ADD2(A, B)                        \
	VFMADD231PS (AX)(BX*2), Z24, C    \
	VFMADD231PS 64(AX)(BX*2), Z25, C  \
	VFMADD231PS (AX)(R10*1), Z24, D   \
	VFMADD231PS 64(AX)(R10*1), Z25, D

#define ROWS1 \
	ROW(r0, ADD1(Z0))   \
	ROW(r1, ADD1(Z1))   \
	ROW(r2, ADD1(Z2))   \
	ROW(r3, ADD1(Z3))   \
	ROW(r4, ADD1(Z4))   \
	ROW(r5, ADD1(Z5))   \
	ROW(r6, ADD1(Z6))   \
	ROW(r7, ADD1(Z7))   \
	ROW(r8, ADD1(Z8))   \
	ROW(r9, ADD1(Z9))   \
	ROW(r10, ADD1(Z10)) \
	ROW(r11, ADD1(Z11)) \
	ROW(r12, ADD1(Z12)) \
	ROW(r13, ADD1(Z13)) \
	ROW(r14, ADD1(Z14)) \
	ROW(r15, ADD1(Z15))
#define ROWS2 \
	ROW(r0, ADD2(Z0, Z8))  \
	ROW(r1, ADD2(Z1, Z9))  \
	ROW(r2, ADD2(Z2, Z10)) \
	ROW(r3, ADD2(Z3, Z11)) \
	ROW(r4, ADD2(Z4, Z12)) \
	ROW(r5, ADD2(Z5, Z13)) \
	ROW(r6, ADD2(Z6, Z14)) \
	ROW(r7, ADD2(Z7, Z15))
#define ROWS4 \
	ROW(r0, ADD4(Z0, Z4, Z8, Z12))  \
	ROW(r1, ADD4(Z1, Z5, Z9, Z13))  \
	ROW(r2, ADD4(Z2, Z6, Z10, Z14)) \
	ROW(r3, ADD4(Z3, Z7, Z11, Z15))

#define STORE1 \
	VMOVUPS Z0, K1, (DI)
#define STORE2 \
	VEXTRACTF64X4 $1, Z0, Y1         \
	VMOVUPS       Y0, K1, (DI)       \
	VMOVUPS       Y1, K1, (DI)(R8*1)
#define STORE4 \
	LEAQ          (DI)(R8*2), AX     \
	VEXTRACTF32X4 $1, Z0, X1         \
	VEXTRACTF32X4 $2, Z0, X2         \
	VEXTRACTF32X4 $3, Z0, X3         \
	VMOVUPS       X0, K1, (DI)       \
	VMOVUPS       X1, K1, (DI)(R8*1) \
	VMOVUPS       X2, K1, (AX)       \
	VMOVUPS       X3, K1, (AX)(R8*1)

// DOT is the body of a function that processes the given number of rows of K at a time.
#define DOT(rows, ROWS, STORE) \
	MOVQ y+0(FP), DI        \
	MOVQ yStride+8(FP), R8  \
	MOVQ w+16(FP), SI       \
	MOVQ scales+24(FP), R11 \
	MOVQ n+32(FP), R13      \
	MOVQ in+40(FP), R9      \
	MOVQ x+48(FP), DX       \
	MOVQ xStride+56(FP), BX \
	LEAQ (BX)(BX*2), R10    \
	VMOVUPS transposed<>(SB), Z31 \
block: \
	MOVL    $rows, R12      \
	CMPQ    R13, R12        \
	CMOVQLT R13, R12        \
	MOVQ    R12, CX         \
	MOVL    $1, AX          \
	SHLL    CX, AX          \
	DECL    AX              \
	KMOVW   AX, K1          \
	ZERO4(Z0, Z1, Z2, Z3)   \
	ZERO4(Z4, Z5, Z6, Z7)   \
	ZERO4(Z8, Z9, Z10, Z11) \
	ZERO4(Z12, Z13, Z14, Z15) \
	ROWS                    \
sums: \
	STORE16                 \
	STORE                   \
	ADDQ $(4*rows), DI      \
	SUBQ $rows, R13         \
	JGT  block              \
	VZEROUPPER              \
	RET

// Weighted sums of rows of V for one, two or four accumulators, 128, 64 or 32 columns at a time.
// The registers are
//
//	SI AX    V, and the row in it        Z0-Z15   sums
//	R10      size of a row in bytes      Z16-Z23  elements of V
//	R14 R15  scales, and the row's       Z28      a weight
//	R12      bytes of scales per row;    R9       columns left
//	         address of an accumulator   R11      rows left
//	DX CX    weights, and the next one
//	BX R13   stride of the weights,
//	         times 3
//	DI R8    acc and its stride

// GET and PUT load and store the sums of an accumulator, whose address is R12. ADD adds V times
// a weight. Macros ending in 2, 4 or 8 use that many registers.
#define GET2(A, B) \
	VMOVUPS (R12), A   \
	VMOVUPS 64(R12), B
#define GET4(A, B, C, D) \
	GET2(A, B)          \
	VMOVUPS 128(R12), C \
	VMOVUPS 192(R12), D
#define GET8(A, B, C, D, E, F, G, H) \
	GET4(A, B, C, D)    \
	VMOVUPS 256(R12), E \
	VMOVUPS 320(R12), F \
	VMOVUPS 384(R12), G \
	VMOVUPS 448(R12), H
#define PUT2(A, B) \
	VMOVUPS A, (R12)   \
	VMOVUPS B, 64(R12)
#define PUT4(A, B, C, D) \
	PUT2(A, B)          \
	VMOVUPS C, 128(R12) \
	VMOVUPS D, 192(R12)
#define PUT8(A, B, C, D, E, F, G, H) \
	PUT4(A, B, C, D)    \
	VMOVUPS E, 256(R12) \
	VMOVUPS F, 320(R12) \
	VMOVUPS G, 384(R12) \
	VMOVUPS H, 448(R12)
#define MUL2(w, A, B) \
	VBROADCASTSS w, Z28      \
	VFMADD231PS  Z28, Z16, A \
	VFMADD231PS  Z28, Z17, B
#define MUL4(w, A, B, C, D) \
	MUL2(w, A, B)            \
	VFMADD231PS  Z28, Z18, C \
	VFMADD231PS  Z28, Z19, D
#define MUL8(w, A, B, C, D, E, F, G, H) \
	MUL4(w, A, B, C, D)      \
	VFMADD231PS  Z28, Z20, E \
	VFMADD231PS  Z28, Z21, F \
	VFMADD231PS  Z28, Z22, G \
	VFMADD231PS  Z28, Z23, H

// The V macros load that many registers with elements of V.
#define V2 \
	PREFETCHT0 4096(AX)         \
	WIDEN(0, AX, R15, Z16, Z17)
#define V4 \
	V2                          \
	WIDEN(1, AX, R15, Z18, Z19)
#define V8 \
	V4                          \
	PREFETCHT0 4160(AX)         \
	WIDEN(2, AX, R15, Z20, Z21) \
	WIDEN(3, AX, R15, Z22, Z23)

// Macros ending in x1, x2 or x4 handle that many accumulators.
#define GET2x1(MOVE) \
	MOVQ DI, R12 \
	MOVE(Z0, Z1)
#define GET2x2(MOVE) \
	GET2x1(MOVE) \
	ADDQ R8, R12 \
	MOVE(Z2, Z3)
#define GET2x4(MOVE) \
	GET2x2(MOVE) \
	ADDQ R8, R12 \
	MOVE(Z4, Z5) \
	ADDQ R8, R12 \
	MOVE(Z6, Z7)
#define GET4x1(MOVE) \
	MOVQ DI, R12         \
	MOVE(Z0, Z1, Z2, Z3)
#define GET4x2(MOVE) \
	GET4x1(MOVE)         \
	ADDQ R8, R12         \
	MOVE(Z4, Z5, Z6, Z7)
#define GET4x4(MOVE) \
	GET4x2(MOVE)             \
	ADDQ R8, R12             \
	MOVE(Z8, Z9, Z10, Z11)   \
	ADDQ R8, R12             \
	MOVE(Z12, Z13, Z14, Z15)
#define GET8x1(MOVE) \
	MOVQ DI, R12                         \
	MOVE(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)
#define GET8x2(MOVE) \
	GET8x1(MOVE)                               \
	ADDQ R8, R12                               \
	MOVE(Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15)
#define ADD2x1 \
	MUL2((CX), Z0, Z1)
#define ADD2x2 \
	ADD2x1                     \
	MUL2((CX)(BX*1), Z2, Z3)
#define ADD2x4 \
	ADD2x2                     \
	MUL2((CX)(BX*2), Z4, Z5)   \
	MUL2((CX)(R13*1), Z6, Z7)
#define ADD4x1 \
	MUL4((CX), Z0, Z1, Z2, Z3)
#define ADD4x2 \
	ADD4x1                           \
	MUL4((CX)(BX*1), Z4, Z5, Z6, Z7)
#define ADD4x4 \
	ADD4x2                                \
	MUL4((CX)(BX*2), Z8, Z9, Z10, Z11)    \
	MUL4((CX)(R13*1), Z12, Z13, Z14, Z15)
#define ADD8x1 \
	MUL8((CX), Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)
#define ADD8x2 \
	ADD8x1                                                 \
	MUL8((CX)(BX*1), Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15)

// COLUMNS processes all rows of the given number of columns at a time, until fewer
// columns than that are left.
#define COLUMNS(columns, again, row, next, EACH, GET, PUT, V, ADD) \
again: \
	CMPQ R9, $columns      \
	JLT  next              \
	EACH(GET)              \
	MOVQ DX, CX            \
	MOVQ SI, AX            \
	MOVQ R14, R15          \
	MOVQ m+32(FP), R11     \
	MOVQ R10, R12          \
	SHRQ $3, R12           \
row: \
	V                      \
	ADD                    \
	ADDQ R10, AX           \
	ADDQ R12, R15          \
	ADDQ $4, CX            \
	DECQ R11               \
	JNZ  row               \
	EACH(PUT)              \
	ADDQ $(4*columns), DI  \
	ADDQ $columns, SI      \
	ADDQ $(columns/8), R14 \
	SUBQ $columns, R9      \
	JMP  again             \
next:

#define BEGIN \
	MOVQ acc+0(FP), DI      \
	MOVQ n+8(FP), R9        \
	MOVQ v+16(FP), SI       \
	MOVQ scales+24(FP), R14 \
	MOVQ w+40(FP), DX       \
	MOVQ wStride+48(FP), BX \
	LEAQ (BX)(BX*2), R13    \
	MOVQ R9, R10            \
	LEAQ (R9)(R9*1), R8     \
	LEAQ (R8)(R8*1), R8

// func dotQ8x1AVX512(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)
TEXT ·dotQ8x1AVX512(SB), NOSPLIT, $0-64
	DOT(16, ROWS1, STORE1)

// func dotQ8x2AVX512(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)
TEXT ·dotQ8x2AVX512(SB), NOSPLIT, $0-64
	DOT(8, ROWS2, STORE2)

// func dotQ8x4AVX512(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)
TEXT ·dotQ8x4AVX512(SB), NOSPLIT, $0-64
	DOT(4, ROWS4, STORE4)

// func addScaledQ8x1AVX512(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)
TEXT ·addScaledQ8x1AVX512(SB), NOSPLIT, $0-56
	BEGIN
	COLUMNS(128, again128, row128, next128, GET8x1, GET8, PUT8, V8, ADD8x1)
	COLUMNS(64, again64, row64, next64, GET4x1, GET4, PUT4, V4, ADD4x1)
	COLUMNS(32, again32, row32, next32, GET2x1, GET2, PUT2, V2, ADD2x1)
	VZEROUPPER
	RET

// func addScaledQ8x2AVX512(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)
TEXT ·addScaledQ8x2AVX512(SB), NOSPLIT, $0-56
	BEGIN
	COLUMNS(128, again128, row128, next128, GET8x2, GET8, PUT8, V8, ADD8x2)
	COLUMNS(64, again64, row64, next64, GET4x2, GET4, PUT4, V4, ADD4x2)
	COLUMNS(32, again32, row32, next32, GET2x2, GET2, PUT2, V2, ADD2x2)
	VZEROUPPER
	RET

// func addScaledQ8x4AVX512(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)
TEXT ·addScaledQ8x4AVX512(SB), NOSPLIT, $0-56
	BEGIN
	COLUMNS(64, again64, row64, next64, GET4x4, GET4, PUT4, V4, ADD4x4)
	COLUMNS(32, again32, row32, next32, GET2x4, GET2, PUT2, V2, ADD2x4)
	VZEROUPPER
	RET
