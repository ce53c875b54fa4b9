#include "textflag.h"

// Products of long rows of float weights with one row of activations, in the arithmetic of doc.go.
// Decode is limited by memory bandwidth. Processing two rows at a time hides the latency of the
// additions. The two rows are in different halves of the matrix, because the hardware prefetcher
// works best on streams that do not share pages: two adjacent rows are read at less than half the
// rate. Software prefetches far ahead would cost a fifth of the rate.
//
//	SI R10  weights of both halves      Z0 Z1   sums, or Y0 to Y3 with AVX2
//	DX      activations                 Z4-Z7   weights
//	AX      position in x               CX R9   steps of 64 columns: left, per row
//	DI R11  y of both halves            R8      rows left in a half

// STREAM is the body of a function. HALF processes half a step, which is the given number of
// bytes. ZERO runs before each two rows, and REDUCE leaves their sums in X0 and X1.
#define STREAM(bytes, ZERO, HALF, REDUCE) \
	MOVQ  y+0(FP), DI      \
	MOVQ  w+8(FP), SI      \
	MOVQ  half+16(FP), R8  \
	MOVQ  steps+24(FP), R9 \
	MOVQ  x+32(FP), DX     \
	LEAQ  (DI)(R8*4), R11  \
	MOVQ  R8, R10          \
	IMULQ R9, R10          \
	IMULQ $(2*bytes), R10  \
	ADDQ  SI, R10          \
row: \
	MOVQ DX, AX            \
	MOVQ R9, CX            \
	ZERO                   \
step: \
	HALF(0, 0)             \
	HALF(bytes, 128)       \
	ADDQ   $(2*bytes), SI  \
	ADDQ   $(2*bytes), R10 \
	ADDQ   $256, AX        \
	DECQ   CX              \
	JNZ    step            \
	REDUCE                 \
	VMOVSS X0, (DI)        \
	VMOVSS X1, (R11)       \
	ADDQ   $4, DI          \
	ADDQ   $4, R11         \
	DECQ   R8              \
	JNZ    row             \
	VZEROUPPER             \
	RET

// REDUCE8 adds lanes l and l+4, then l and l+2, l and l+1, of Y. X is the lower half of Y.
#define REDUCE8(Y, X) \
	VEXTRACTF128 $1, Y, X4 \
	VADDPS       X4, X, X  \
	VMOVHLPS     X, X, X4  \
	VADDPS       X4, X, X  \
	VMOVSHDUP    X, X4     \
	VADDSS       X4, X, X

#define ZERO512 \
	VPXORD Z0, Z0, Z0 \
	VPXORD Z1, Z1, Z1
#define REDUCE512 \
	VEXTRACTF64X4 $1, Z0, Y4 \
	VADDPS        Y4, Y0, Y0 \
	VEXTRACTF64X4 $1, Z1, Y4 \
	VADDPS        Y4, Y1, Y1 \
	REDUCE8(Y0, X0)          \
	REDUCE8(Y1, X1)

#define ADD512(x) \
	VFMADD231PS x(AX), Z4, Z0      \
	VFMADD231PS x(AX), Z6, Z1      \
	VFMADD231PS (x+64)(AX), Z5, Z0 \
	VFMADD231PS (x+64)(AX), Z7, Z1

#define HALF512F32(w, x) \
	VMOVUPS w(SI), Z4       \
	VMOVUPS (w+64)(SI), Z5  \
	VMOVUPS w(R10), Z6      \
	VMOVUPS (w+64)(R10), Z7 \
	ADD512(x)
#define HALF512F16(w, x) \
	VCVTPH2PS w(SI), Z4       \
	VCVTPH2PS (w+32)(SI), Z5  \
	VCVTPH2PS w(R10), Z6      \
	VCVTPH2PS (w+32)(R10), Z7 \
	ADD512(x)
#define HALF512BF16(w, x) \
	VPMOVZXWD w(SI), Z4       \
	VPMOVZXWD (w+32)(SI), Z5  \
	VPMOVZXWD w(R10), Z6      \
	VPMOVZXWD (w+32)(R10), Z7 \
	VPSLLD    $16, Z4, Z4     \
	VPSLLD    $16, Z5, Z5     \
	VPSLLD    $16, Z6, Z6     \
	VPSLLD    $16, Z7, Z7     \
	ADD512(x)

#define ZERO256 \
	VXORPS Y0, Y0, Y0 \
	VXORPS Y1, Y1, Y1 \
	VXORPS Y2, Y2, Y2 \
	VXORPS Y3, Y3, Y3
#define REDUCE256 \
	VADDPS Y2, Y0, Y0 \
	VADDPS Y3, Y1, Y1 \
	REDUCE8(Y0, X0)   \
	REDUCE8(Y1, X1)

// ADD256 adds 16 columns to Y0 and Y2, the sums of the first row, and to Y1 and Y3, the sums of
// the second row.
#define ADD256(x) \
	VFMADD231PS x(AX), Y4, Y0      \
	VFMADD231PS x(AX), Y6, Y1      \
	VFMADD231PS (x+32)(AX), Y5, Y2 \
	VFMADD231PS (x+32)(AX), Y7, Y3
#define GETF32256(w, x) \
	VMOVUPS w(SI), Y4       \
	VMOVUPS (w+32)(SI), Y5  \
	VMOVUPS w(R10), Y6      \
	VMOVUPS (w+32)(R10), Y7 \
	ADD256(x)
#define GETF16256(w, x) \
	VCVTPH2PS w(SI), Y4       \
	VCVTPH2PS (w+16)(SI), Y5  \
	VCVTPH2PS w(R10), Y6      \
	VCVTPH2PS (w+16)(R10), Y7 \
	ADD256(x)
#define GETBF16256(w, x) \
	VPMOVZXWD w(SI), Y4       \
	VPMOVZXWD (w+16)(SI), Y5  \
	VPMOVZXWD w(R10), Y6      \
	VPMOVZXWD (w+16)(R10), Y7 \
	VPSLLD    $16, Y4, Y4     \
	VPSLLD    $16, Y5, Y5     \
	VPSLLD    $16, Y6, Y6     \
	VPSLLD    $16, Y7, Y7     \
	ADD256(x)
#define HALF256F32(w, x) \
	GETF32256(w, x)      \
	GETF32256(w+64, x+64)
#define HALF256F16(w, x) \
	GETF16256(w, x)      \
	GETF16256(w+32, x+64)
#define HALF256BF16(w, x) \
	GETBF16256(w, x)      \
	GETBF16256(w+32, x+64)

// func streamF32AVX512(y *float32, w *byte, half, steps int, x *float32)
TEXT ·streamF32AVX512(SB), NOSPLIT, $0-40
	STREAM(128, ZERO512, HALF512F32, REDUCE512)

// func streamF16AVX512(y *float32, w *byte, half, steps int, x *float32)
TEXT ·streamF16AVX512(SB), NOSPLIT, $0-40
	STREAM(64, ZERO512, HALF512F16, REDUCE512)

// func streamBF16AVX512(y *float32, w *byte, half, steps int, x *float32)
TEXT ·streamBF16AVX512(SB), NOSPLIT, $0-40
	STREAM(64, ZERO512, HALF512BF16, REDUCE512)

// func streamF32AVX2(y *float32, w *byte, half, steps int, x *float32)
TEXT ·streamF32AVX2(SB), NOSPLIT, $0-40
	STREAM(128, ZERO256, HALF256F32, REDUCE256)

// func streamF16AVX2(y *float32, w *byte, half, steps int, x *float32)
TEXT ·streamF16AVX2(SB), NOSPLIT, $0-40
	STREAM(64, ZERO256, HALF256F16, REDUCE256)

// func streamBF16AVX2(y *float32, w *byte, half, steps int, x *float32)
TEXT ·streamBF16AVX2(SB), NOSPLIT, $0-40
	STREAM(64, ZERO256, HALF256BF16, REDUCE256)
