#include "textflag.h"
#include "avx512_fold_amd64.h"

// Products of rows of float weights with one, two, four or six rows of activations, in the
// arithmetic of doc.go. A register holds the 16 sums of one row of weights and one row of
// activations. The registers are
//
//	SI R10-R12  four rows of weights       Z0-Z23   sums, four for each row of x
//	R9          size of a row in bytes     Z24-Z27  16 weights of each row
//	DX AX       x, and the position in it  Z28      16 activations
//	BX R13 R14  stride of x, times 3,      Z31      permutation for TURN
//	            times 5                    K1       columns after the last whole step
//	CX R15      column, and the end        K2       valid rows of weights
//	DI R8       y and its stride
//
// With one or two rows of x, R13 and R14 hold prefetch addresses instead.
//
// If fewer than four rows of weights are left, the last row is repeated.

// GETF32, GETF16 and GETBF16 load 16 weights. The TAIL variants load only the columns in K1.
#define GETF32(p, R) \
	VMOVUPS p, R
#define GETF32TAIL(p, R) \
	VMOVUPS.Z p, K1, R

#define GETF16(p, R) \
	VCVTPH2PS p, R
#define GETF16TAIL(p, R) \
	VCVTPH2PS.Z p, K1, R

#define GETBF16(p, R) \
	VPMOVZXWD p, R      \
	VPSLLD    $16, R, R
#define GETBF16TAIL(p, R) \
	VPMOVZXWD.Z p, K1, R    \
	VPSLLD      $16, R, R

// LOAD loads 16 weights of each of four rows.
#define LOAD(GET) \
	GET((SI)(CX*1), Z24)  \
	GET((R10)(CX*1), Z25) \
	GET((R11)(CX*1), Z26) \
	GET((R12)(CX*1), Z27)

// WHOLE adds the products of the weights and 16 activations to the sums. TAIL does so only for
// the columns in K1.
#define WHOLE(x, A, B, C, D) \
	VMOVUPS     x, Z28      \
	VFMADD231PS Z28, Z24, A \
	VFMADD231PS Z28, Z25, B \
	VFMADD231PS Z28, Z26, C \
	VFMADD231PS Z28, Z27, D

#define TAIL(x, A, B, C, D) \
	VMOVUPS.Z   x, K1, Z28      \
	VFMADD231PS Z28, Z24, K1, A \
	VFMADD231PS Z28, Z25, K1, B \
	VFMADD231PS Z28, Z26, K1, C \
	VFMADD231PS Z28, Z27, K1, D

// Macros ending in 1, 2, 4 or 6 handle that many rows of activations.
#define ZERO1 \
	ZERO4(Z0, Z1, Z2, Z3)
#define ZERO2 \
	ZERO1                 \
	ZERO4(Z4, Z5, Z6, Z7)
#define ZERO4X \
	ZERO2                     \
	ZERO4(Z8, Z9, Z10, Z11)   \
	ZERO4(Z12, Z13, Z14, Z15)
#define ZERO6 \
	ZERO4X                    \
	ZERO4(Z16, Z17, Z18, Z19) \
	ZERO4(Z20, Z21, Z22, Z23)

#define ROWS1(MULADD) \
	MULADD((AX), Z0, Z1, Z2, Z3)
#define ROWS2(MULADD) \
	ROWS1(MULADD)                      \
	MULADD((AX)(BX*1), Z4, Z5, Z6, Z7)
#define ROWS4(MULADD) \
	ROWS2(MULADD)                           \
	MULADD((AX)(BX*2), Z8, Z9, Z10, Z11)    \
	MULADD((AX)(R13*1), Z12, Z13, Z14, Z15)
#define ROWS6(MULADD) \
	ROWS4(MULADD)                           \
	MULADD((AX)(BX*4), Z16, Z17, Z18, Z19)  \
	MULADD((AX)(R14*1), Z20, Z21, Z22, Z23)

// STORE writes the products of the rows of x to y. It uses AX. It extracts to a register and
// then makes a masked move, because VEXTRACTF32X4 with a mask would fault even where it writes
// nothing.
#define STORE1 \
	FOLD(Z0, Z1, Z2, Z3) \
	TURN(Z0, Z0, Z0, Z0) \
	VMOVUPS X0, K2, (DI)
#define STORE2 \
	FOLD(Z0, Z1, Z2, Z3)                  \
	FOLD(Z4, Z5, Z6, Z7)                  \
	TURN(Z0, Z4, Z0, Z4)                  \
	VMOVUPS       X0, K2, (DI)            \
	VEXTRACTF32X4 $1, Z0, X24          \
	VMOVUPS       X24, K2, (DI)(R8*1)
#define STORE4 \
	FOLD(Z0, Z1, Z2, Z3)                  \
	FOLD(Z4, Z5, Z6, Z7)                  \
	FOLD(Z8, Z9, Z10, Z11)                \
	FOLD(Z12, Z13, Z14, Z15)              \
	TURN(Z0, Z4, Z8, Z12)                 \
	LEAQ          (DI)(R8*2), AX          \
	VMOVUPS       X0, K2, (DI)            \
	VEXTRACTF32X4 $1, Z0, X24          \
	VMOVUPS       X24, K2, (DI)(R8*1)   \
	VEXTRACTF32X4 $2, Z0, X24          \
	VMOVUPS       X24, K2, (AX)         \
	VEXTRACTF32X4 $3, Z0, X24          \
	VMOVUPS       X24, K2, (AX)(R8*1)
#define STORE6 \
	STORE4                                \
	FOLD(Z16, Z17, Z18, Z19)              \
	FOLD(Z20, Z21, Z22, Z23)              \
	TURN(Z16, Z20, Z16, Z20)              \
	VMOVUPS       X16, K2, (AX)(R8*2)     \
	LEAQ          (AX)(R8*2), AX          \
	VEXTRACTF32X4 $1, Z16, X24         \
	VMOVUPS       X24, K2, (AX)(R8*1)

// With one or two rows of activations, first 16 or 8 rows of weights are multiplied at a time,
// so that 16 sums are reduced together. In attention, whose rows are short, the reductions take
// much of the time. The rows are read one after another, which suits the hardware prefetcher;
// R13 is the address.
#define WROW1(shift, GET, label, A) \
	MOVQ DX, AX              \
	MOVQ R15, CX             \
label: \
	GET((R13), Z24)          \
	VFMADD231PS (AX), Z24, A \
	ADDQ $(16<<shift), R13   \
	ADDQ $64, AX             \
	SUBQ $(16<<shift), CX    \
	JGT  label

#define WROW2(shift, GET, label, A, B) \
	MOVQ DX, AX                    \
	MOVQ R15, CX                   \
label: \
	GET((R13), Z24)                \
	VFMADD231PS (AX), Z24, A       \
	VFMADD231PS (AX)(BX*1), Z24, B \
	ADDQ $(16<<shift), R13         \
	ADDQ $64, AX                   \
	SUBQ $(16<<shift), CX          \
	JGT  label

#define WIDE1(shift, GET) \
	WROW1(shift, GET, w0, Z0) \
	WROW1(shift, GET, w1, Z1) \
	WROW1(shift, GET, w2, Z2) \
	WROW1(shift, GET, w3, Z3) \
	WROW1(shift, GET, w4, Z4) \
	WROW1(shift, GET, w5, Z5) \
	WROW1(shift, GET, w6, Z6) \
	WROW1(shift, GET, w7, Z7) \
	WROW1(shift, GET, w8, Z8) \
	WROW1(shift, GET, w9, Z9) \
	WROW1(shift, GET, w10, Z10) \
	WROW1(shift, GET, w11, Z11) \
	WROW1(shift, GET, w12, Z12) \
	WROW1(shift, GET, w13, Z13) \
	WROW1(shift, GET, w14, Z14) \
	WROW1(shift, GET, w15, Z15)

#define WIDE2(shift, GET) \
	WROW2(shift, GET, w0, Z0, Z8) \
	WROW2(shift, GET, w1, Z1, Z9) \
	WROW2(shift, GET, w2, Z2, Z10) \
	WROW2(shift, GET, w3, Z3, Z11) \
	WROW2(shift, GET, w4, Z4, Z12) \
	WROW2(shift, GET, w5, Z5, Z13) \
	WROW2(shift, GET, w6, Z6, Z14) \
	WROW2(shift, GET, w7, Z7, Z15)

#define STOREWIDE1 \
	STORE16                   \
	VMOVUPS Z0, (DI)
#define STOREWIDE2 \
	STORE16                         \
	VEXTRACTF64X4 $1, Z0, Y1        \
	VMOVUPS       Y0, (DI)          \
	VMOVUPS       Y1, (DI)(R8*1)

// SHORT is the largest size in bytes of rows that WIDE processes. Longer rows come from memory
// and are faster with fewer rows at a time.
#define SHORT 512

// WIDE processes groups of the given number of rows of weights, as long as a whole group is left.
// It jumps to block, which processes fewer rows at a time, if rows are longer than SHORT, or if the
// number of columns is not a multiple of the step.
#define WIDE(rows, EACH, STORE) \
	KORTESTW K1, K1              \
	JNE  block                   \
	CMPQ R9, $SHORT              \
	JGT  block                   \
	TESTQ R15, R15               \
	JLE  block                   \
wide: \
	CMPQ n+24(FP), $rows         \
	JLT  block                   \
	MOVQ SI, R13                 \
	ZERO4X                       \
	EACH                         \
	MOVQ R13, SI                 \
	STORE                        \
	ADDQ $(4*rows), DI           \
	SUBQ $rows, n+24(FP)         \
	JGT  wide                    \
	VZEROUPPER                   \
	RET

// HEADS1 and HEADS2 are WIDE for rows of 64 or 128 float16, the rows of K of most models, without
// loops over the columns. Z16 to Z23 hold the first row of activations, or with 64 columns and two
// rows Z16 to Z19 the first and Z20 to Z23 the second. With 128 columns the second is at R14.
//
// K is prefetched 4 KiB ahead: the hardware prefetcher does not read beyond a page, and a block of
// attention has only a few pages of K before it turns to V.
#define HALF(at, A, Q0, Q1, Q2, Q3) \
	PREFETCHT0  (at+4096)(SI)    \
	PREFETCHT0  (at+4160)(SI)    \
	VCVTPH2PS   (at)(SI), Z24    \
	VCVTPH2PS   (at+32)(SI), Z25 \
	VCVTPH2PS   (at+64)(SI), Z26 \
	VCVTPH2PS   (at+96)(SI), Z27 \
	VFMADD231PS Q0, Z24, A       \
	VFMADD231PS Q1, Z25, A       \
	VFMADD231PS Q2, Z26, A       \
	VFMADD231PS Q3, Z27, A
#define HALF2(at, A, B, Q0, Q1, Q2, Q3, R0, R1, R2, R3) \
	HALF(at, A, Q0, Q1, Q2, Q3) \
	VFMADD231PS R0, Z24, B      \
	VFMADD231PS R1, Z25, B      \
	VFMADD231PS R2, Z26, B      \
	VFMADD231PS R3, Z27, B

#define ROW64X1(r, A) \
	HALF(128*r, A, Z16, Z17, Z18, Z19)
#define ROW128X1(r, A) \
	HALF(256*r, A, Z16, Z17, Z18, Z19)     \
	HALF(256*r+128, A, Z20, Z21, Z22, Z23)
#define ROW64X2(r, A, B) \
	HALF2(128*r, A, B, Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23)
#define ROW128X2(r, A, B) \
	HALF2(256*r, A, B, Z16, Z17, Z18, Z19, (R14), 64(R14), 128(R14), 192(R14))         \
	HALF2(256*r+128, A, B, Z20, Z21, Z22, Z23, 256(R14), 320(R14), 384(R14), 448(R14))

#define EACHROW1(ROW) \
	ROW(0, Z0)   \
	ROW(1, Z1)   \
	ROW(2, Z2)   \
	ROW(3, Z3)   \
	ROW(4, Z4)   \
	ROW(5, Z5)   \
	ROW(6, Z6)   \
	ROW(7, Z7)   \
	ROW(8, Z8)   \
	ROW(9, Z9)   \
	ROW(10, Z10) \
	ROW(11, Z11) \
	ROW(12, Z12) \
	ROW(13, Z13) \
	ROW(14, Z14) \
	ROW(15, Z15)
#define EACHROW2(ROW) \
	ROW(0, Z0, Z8)  \
	ROW(1, Z1, Z9)  \
	ROW(2, Z2, Z10) \
	ROW(3, Z3, Z11) \
	ROW(4, Z4, Z12) \
	ROW(5, Z5, Z13) \
	ROW(6, Z6, Z14) \
	ROW(7, Z7, Z15)

#define QUARTERS(p, A, B, C, D) \
	VMOVUPS (p), A    \
	VMOVUPS 64(p), B  \
	VMOVUPS 128(p), C \
	VMOVUPS 192(p), D

// HEADS processes groups of the given number of rows of the given size, as long as a whole group is
// left, and then jumps to block. It jumps to next if rows have another size.
#define HEADS(rows, size, again, next, LOADQ, EACH, ROW, STORE) \
	CMPQ    R9, $size      \
	JNE     next           \
	LOADQ                  \
again: \
	CMPQ n+24(FP), $rows   \
	JLT  block             \
	ZERO4X                 \
	EACH(ROW)              \
	ADDQ $(rows*size), SI  \
	STORE                  \
	ADDQ $(4*rows), DI     \
	SUBQ $rows, n+24(FP)   \
	JGT  again             \
	VZEROUPPER             \
	RET                    \
next:

#define Q64X1 \
	QUARTERS(DX, Z16, Z17, Z18, Z19)
#define Q64X2 \
	Q64X1                             \
	LEAQ (DX)(BX*1), R14              \
	QUARTERS(R14, Z20, Z21, Z22, Z23)
#define Q128X1 \
	Q64X1                             \
	LEAQ 256(DX), R14                 \
	QUARTERS(R14, Z20, Z21, Z22, Z23)
#define Q128X2 \
	Q128X1               \
	LEAQ (DX)(BX*1), R14

#define HEADS1 \
	HEADS(16, 128, again64, not64, Q64X1, EACHROW1, ROW64X1, STOREWIDE1)      \
	HEADS(16, 256, again128, not128, Q128X1, EACHROW1, ROW128X1, STOREWIDE1)  \
	WIDE(16, WIDE1(1, GETF16), STOREWIDE1)
#define HEADS2 \
	HEADS(8, 128, again64, not64, Q64X2, EACHROW2, ROW64X2, STOREWIDE2)      \
	HEADS(8, 256, again128, not128, Q128X2, EACHROW2, ROW128X2, STOREWIDE2)  \
	WIDE(8, WIDE2(1, GETF16), STOREWIDE2)

#define NARROW

// FAR16 and FAR32 prefetch rows of weights after the current four, in the order of their
// addresses. The hardware prefetcher does not look beyond a row. They are used with one or two
// rows of activations, where R13 and R14 are free.
#define FAR16 \
	LEAQ       (SI)(CX*4), R13   \
	PREFETCHT1 (R13)(R14*1)      \
	PREFETCHT1 64(R13)(R14*1)
#define FAR32 \
	FAR16                        \
	PREFETCHT1 128(R13)(R14*1)   \
	PREFETCHT1 192(R13)(R14*1)


// AHEAD sets the prefetch distance. STRIDES sets R13 and R14 for more rows of activations.
#define AHEAD \
	LEAQ 8192(R9*4), R14
#define STRIDES \
	LEAQ (BX)(BX*2), R13 \
	LEAQ (BX)(BX*4), R14

// BEYOND16 and BEYOND32 are FAR16 and FAR32 for more rows of activations, which leave no register
// free. They prefetch 16 KiB after the fourth row.
#define BEYOND16 \
	PREFETCHT1 16384(R12)(CX*4)  \
	PREFETCHT1 16448(R12)(CX*4)
#define BEYOND32 \
	BEYOND16                     \
	PREFETCHT1 16512(R12)(CX*4)  \
	PREFETCHT1 16576(R12)(CX*4)

// WHOLEROWS sets R9 for rows of weights that follow one another.
#define WHOLEROWS(shift) \
	MOVQ R15, R9             \
	SHLQ $shift, R9

// A function of slices computes some columns. Its rows of weights are wStride bytes apart. The sums begin with those at
// sums, 24 vectors for four rows of weights, if bit 0 of flags is set, and are stored there instead of becoming
// products if bit 1 is set.
#define SLICEROWS(shift) \
	MOVQ wStride+56(FP), R9

#define EACH24(OP) \
	OP(0, Z0)   \
	OP(1, Z1)   \
	OP(2, Z2)   \
	OP(3, Z3)   \
	OP(4, Z4)   \
	OP(5, Z5)   \
	OP(6, Z6)   \
	OP(7, Z7)   \
	OP(8, Z8)   \
	OP(9, Z9)   \
	OP(10, Z10) \
	OP(11, Z11) \
	OP(12, Z12) \
	OP(13, Z13) \
	OP(14, Z14) \
	OP(15, Z15) \
	OP(16, Z16) \
	OP(17, Z17) \
	OP(18, Z18) \
	OP(19, Z19) \
	OP(20, Z20) \
	OP(21, Z21) \
	OP(22, Z22) \
	OP(23, Z23)
#define LOADSUM(i, Z) \
	VMOVUPS (64*i)(AX), Z
#define KEEPSUM(i, Z) \
	VMOVUPS Z, (64*i)(AX)

#define BEGINSLICE \
	TESTB $1, flags+72(FP)   \
	JEQ   zero               \
	MOVQ  sums+64(FP), AX   \
	EACH24(LOADSUM)         \
	JMP   begin              \
zero: \
	ZERO6                    \
begin:
#define ENDSLICE \
	TESTB $2, flags+72(FP)   \
	JEQ   fold               \
	MOVQ  sums+64(FP), AX   \
	EACH24(KEEPSUM)         \
	JMP   kept               \
fold: \
	STORE6                   \
kept: \
	ADDQ  $(24*64), sums+64(FP)

// PRODUCT is the body of a function for weights of 1<<shift bytes. FIRST runs before the blocks
// of four rows of weights.
#define PRODUCT(shift, STRIDE, GET, GETTAIL, ZERO, ROWS, STORE, FIRST, SETUP, FETCH) \
	MOVQ y+0(FP), DI             \
	MOVQ yStride+8(FP), R8       \
	MOVQ w+16(FP), SI            \
	MOVQ in+32(FP), R15          \
	MOVQ x+40(FP), DX            \
	MOVQ xStride+48(FP), BX      \
	STRIDE(shift)                \
	MOVQ R15, CX                 \
	ANDQ $~15, R15               \
	SHLQ $shift, R15             \
	ANDQ $15, CX                 \
	MOVL $1, AX                  \
	SHLL CX, AX                  \
	DECL AX                      \
	KMOVW AX, K1                 \
	VMOVUPS transposed<>(SB), Z31 \
	FIRST                        \
block: \
	SETUP                        \
	MOVQ    n+24(FP), CX         \
	MOVL    $4, AX               \
	LEAQ    (SI)(R9*1), R10      \
	CMPQ    CX, $2               \
	CMOVQLT SI, R10              \
	LEAQ    (R10)(R9*1), R11     \
	CMPQ    CX, $3               \
	CMOVQLT R10, R11             \
	LEAQ    (R11)(R9*1), R12     \
	CMPQ    CX, $4               \
	CMOVQLT R11, R12             \
	CMOVQGT AX, CX               \
	MOVL    $1, AX               \
	SHLL    CX, AX               \
	DECL    AX                   \
	KMOVW   AX, K2               \
	ZERO                         \
	MOVQ    DX, AX               \
	XORL    CX, CX               \
	TESTQ   R15, R15             \
	JLE     tail                 \
step: \
	FETCH                        \
	LOAD(GET)                    \
	ROWS(WHOLE)                  \
	ADDQ $64, AX                 \
	ADDQ $(16<<shift), CX        \
	CMPQ CX, R15                 \
	JLT  step                    \
tail: \
	KORTESTW K1, K1              \
	JEQ    store                 \
	LOAD(GETTAIL)                \
	ROWS(TAIL)                   \
store: \
	STORE                        \
	ADDQ $16, DI                 \
	LEAQ (SI)(R9*4), SI          \
	SUBQ $4, n+24(FP)            \
	JGT  block                   \
	VZEROUPPER                   \
	RET

// func floatF32x1AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF32x1AVX512(SB), NOSPLIT, $0-56
	PRODUCT(2, WHOLEROWS, GETF32, GETF32TAIL, ZERO1, ROWS1, STORE1, WIDE(16, WIDE1(2, GETF32), STOREWIDE1), AHEAD, FAR32)

// func floatF32x2AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF32x2AVX512(SB), NOSPLIT, $0-56
	PRODUCT(2, WHOLEROWS, GETF32, GETF32TAIL, ZERO2, ROWS2, STORE2, WIDE(8, WIDE2(2, GETF32), STOREWIDE2), AHEAD, FAR32)

// func floatF32x4AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF32x4AVX512(SB), NOSPLIT, $0-56
	PRODUCT(2, WHOLEROWS, GETF32, GETF32TAIL, ZERO4X, ROWS4, STORE4, NARROW, STRIDES, BEYOND32)

// func floatF32x6AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF32x6AVX512(SB), NOSPLIT, $0-56
	PRODUCT(2, WHOLEROWS, GETF32, GETF32TAIL, ZERO6, ROWS6, STORE6, NARROW, STRIDES, BEYOND32)

// func sliceF32x6AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride, wStride int, sums *float32, flags int)
TEXT ·sliceF32x6AVX512(SB), NOSPLIT, $0-80
	PRODUCT(2, SLICEROWS, GETF32, GETF32TAIL, BEGINSLICE, ROWS6, ENDSLICE, NARROW, STRIDES, NARROW)

// func floatF16x1AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF16x1AVX512(SB), NOSPLIT, $0-56
	PRODUCT(1, WHOLEROWS, GETF16, GETF16TAIL, ZERO1, ROWS1, STORE1, HEADS1, AHEAD, FAR16)

// func floatF16x2AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF16x2AVX512(SB), NOSPLIT, $0-56
	PRODUCT(1, WHOLEROWS, GETF16, GETF16TAIL, ZERO2, ROWS2, STORE2, HEADS2, AHEAD, FAR16)

// func floatF16x4AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF16x4AVX512(SB), NOSPLIT, $0-56
	PRODUCT(1, WHOLEROWS, GETF16, GETF16TAIL, ZERO4X, ROWS4, STORE4, NARROW, STRIDES, BEYOND16)

// func floatF16x6AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatF16x6AVX512(SB), NOSPLIT, $0-56
	PRODUCT(1, WHOLEROWS, GETF16, GETF16TAIL, ZERO6, ROWS6, STORE6, NARROW, STRIDES, BEYOND16)

// func sliceF16x6AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride, wStride int, sums *float32, flags int)
TEXT ·sliceF16x6AVX512(SB), NOSPLIT, $0-80
	PRODUCT(1, SLICEROWS, GETF16, GETF16TAIL, BEGINSLICE, ROWS6, ENDSLICE, NARROW, STRIDES, NARROW)

// func floatBF16x1AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatBF16x1AVX512(SB), NOSPLIT, $0-56
	PRODUCT(1, WHOLEROWS, GETBF16, GETBF16TAIL, ZERO1, ROWS1, STORE1, WIDE(16, WIDE1(1, GETBF16), STOREWIDE1), AHEAD, FAR16)

// func floatBF16x2AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatBF16x2AVX512(SB), NOSPLIT, $0-56
	PRODUCT(1, WHOLEROWS, GETBF16, GETBF16TAIL, ZERO2, ROWS2, STORE2, WIDE(8, WIDE2(1, GETBF16), STOREWIDE2), AHEAD, FAR16)

// func floatBF16x4AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatBF16x4AVX512(SB), NOSPLIT, $0-56
	PRODUCT(1, WHOLEROWS, GETBF16, GETBF16TAIL, ZERO4X, ROWS4, STORE4, NARROW, STRIDES, BEYOND16)

// func floatBF16x6AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)
TEXT ·floatBF16x6AVX512(SB), NOSPLIT, $0-56
	PRODUCT(1, WHOLEROWS, GETBF16, GETBF16TAIL, ZERO6, ROWS6, STORE6, NARROW, STRIDES, BEYOND16)

// func sliceBF16x6AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride, wStride int, sums *float32, flags int)
TEXT ·sliceBF16x6AVX512(SB), NOSPLIT, $0-80
	PRODUCT(1, SLICEROWS, GETBF16, GETBF16TAIL, BEGINSLICE, ROWS6, ENDSLICE, NARROW, STRIDES, NARROW)
