#include "textflag.h"

// Sums of float16 or float32 rows of V weighted by attention, for one, two, four or six accumulators, 64
// columns at a time. The registers are
//
//	SI AX       V, and the row in it       Z0-Z23   sums, four for each accumulator
//	R10         size of a row in bytes     Z24-Z27  64 elements of V
//	DX CX       weights, and the next one  Z28      a weight
//	BX R13 R14  stride of the weights,     K1-K4    masks of valid columns
//	            times 3, times 5           R9       columns left
//	DI R8       acc and its stride         R12      address
//	R11         rows left

// GET and PUT load and store the sums of an accumulator, whose address is R12.
#define GET(A, B, C, D) \
	VMOVUPS.Z (R12), K1, A    \
	VMOVUPS.Z 64(R12), K2, B  \
	VMOVUPS.Z 128(R12), K3, C \
	VMOVUPS.Z 192(R12), K4, D

#define PUT(A, B, C, D) \
	VMOVUPS A, K1, (R12)    \
	VMOVUPS B, K2, 64(R12)  \
	VMOVUPS C, K3, 128(R12) \
	VMOVUPS D, K4, 192(R12)

// ADD adds the elements of V times the weight at w.
#define ADD(w, A, B, C, D) \
	VBROADCASTSS w, Z28         \
	VFMADD231PS  Z28, Z24, A    \
	VFMADD231PS  Z28, Z25, B    \
	VFMADD231PS  Z28, Z26, C    \
	VFMADD231PS  Z28, Z27, D

// Macros ending in 1, 2, 4 or 6 handle that many accumulators.
#define EACH1(MOVE) \
	MOVQ DI, R12         \
	MOVE(Z0, Z1, Z2, Z3)
#define EACH2(MOVE) \
	EACH1(MOVE)          \
	ADDQ R8, R12         \
	MOVE(Z4, Z5, Z6, Z7)
#define EACH4(MOVE) \
	EACH2(MOVE)              \
	ADDQ R8, R12             \
	MOVE(Z8, Z9, Z10, Z11)   \
	ADDQ R8, R12             \
	MOVE(Z12, Z13, Z14, Z15)
#define EACH6(MOVE) \
	EACH4(MOVE)              \
	ADDQ R8, R12             \
	MOVE(Z16, Z17, Z18, Z19) \
	ADDQ R8, R12             \
	MOVE(Z20, Z21, Z22, Z23)

#define ADD1 \
	ADD((CX), Z0, Z1, Z2, Z3)
#define ADD2 \
	ADD1                            \
	ADD((CX)(BX*1), Z4, Z5, Z6, Z7)
#define ADD4 \
	ADD2                                 \
	ADD((CX)(BX*2), Z8, Z9, Z10, Z11)    \
	ADD((CX)(R13*1), Z12, Z13, Z14, Z15)
#define ADD6 \
	ADD4                                 \
	ADD((CX)(BX*4), Z16, Z17, Z18, Z19)  \
	ADD((CX)(R14*1), Z20, Z21, Z22, Z23)

// LONG1 and LONG2 process 128 columns at a time for one and two accumulators. Sums are in Z0 to
// Z7 and Z8 to Z15, V is in Z16 to Z23. Rows of 128 columns are thus read sequentially, which
// suits the hardware prefetcher.
#define LONGGET(A, B, C, D, E, F, G, H) \
	VMOVUPS (R12), A    \
	VMOVUPS 64(R12), B  \
	VMOVUPS 128(R12), C \
	VMOVUPS 192(R12), D \
	VMOVUPS 256(R12), E \
	VMOVUPS 320(R12), F \
	VMOVUPS 384(R12), G \
	VMOVUPS 448(R12), H
#define LONGPUT(A, B, C, D, E, F, G, H) \
	VMOVUPS A, (R12)    \
	VMOVUPS B, 64(R12)  \
	VMOVUPS C, 128(R12) \
	VMOVUPS D, 192(R12) \
	VMOVUPS E, 256(R12) \
	VMOVUPS F, 320(R12) \
	VMOVUPS G, 384(R12) \
	VMOVUPS H, 448(R12)
#define LONGADD(w, A, B, C, D, E, F, G, H) \
	VBROADCASTSS w, Z28      \
	VFMADD231PS  Z28, Z16, A \
	VFMADD231PS  Z28, Z17, B \
	VFMADD231PS  Z28, Z18, C \
	VFMADD231PS  Z28, Z19, D \
	VFMADD231PS  Z28, Z20, E \
	VFMADD231PS  Z28, Z21, F \
	VFMADD231PS  Z28, Z22, G \
	VFMADD231PS  Z28, Z23, H
// V is prefetched 4 KiB ahead, as K is in avx512_f32_amd64.s.
#define LONGV \
	PREFETCHT0 4096(AX)    \
	PREFETCHT0 4160(AX)    \
	PREFETCHT0 4224(AX)    \
	PREFETCHT0 4288(AX)    \
	VCVTPH2PS (AX), Z16    \
	VCVTPH2PS 32(AX), Z17  \
	VCVTPH2PS 64(AX), Z18  \
	VCVTPH2PS 96(AX), Z19  \
	VCVTPH2PS 128(AX), Z20 \
	VCVTPH2PS 160(AX), Z21 \
	VCVTPH2PS 192(AX), Z22 \
	VCVTPH2PS 224(AX), Z23
#define LONGEACH1(MOVE) \
	MOVQ DI, R12                         \
	MOVE(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)
#define LONGEACH2(MOVE) \
	LONGEACH1(MOVE)                              \
	ADDQ R8, R12                                 \
	MOVE(Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15)
#define LONGADD1 \
	LONGADD((CX), Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)
#define LONGADD2 \
	LONGADD1                                                      \
	LONGADD((CX)(BX*1), Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15)
#define LONG(EACH, ADD) \
	JMP  longtest         \
long: \
	MOVQ SI, AX           \
	MOVQ DX, CX           \
	MOVQ m+24(FP), R11    \
	EACH(LONGGET)         \
longrow: \
	LONGV                 \
	ADD                   \
	ADDQ R10, AX          \
	ADDQ $4, CX           \
	DECQ R11              \
	JNZ  longrow          \
	EACH(LONGPUT)         \
	ADDQ $512, DI         \
	ADDQ $256, SI         \
	SUBQ $128, R9         \
	JLE  done             \
longtest: \
	CMPQ R9, $128         \
	JGE  long
#define SHORTONLY

// WHOLE32 processes 64 columns at a time as long as there are as many: loads with masks would take the ports
// of the additions.
#define WHOLEGET(A, B, C, D) \
	VMOVUPS (R12), A    \
	VMOVUPS 64(R12), B  \
	VMOVUPS 128(R12), C \
	VMOVUPS 192(R12), D
#define WHOLEPUT(A, B, C, D) \
	VMOVUPS A, (R12)    \
	VMOVUPS B, 64(R12)  \
	VMOVUPS C, 128(R12) \
	VMOVUPS D, 192(R12)
#define WHOLE32(EACH, ADD) \
	JMP  wholetest       \
whole: \
	MOVQ SI, AX          \
	MOVQ DX, CX          \
	MOVQ m+24(FP), R11   \
	EACH(WHOLEGET)       \
wholerow: \
	VMOVUPS (AX), Z24    \
	VMOVUPS 64(AX), Z25  \
	VMOVUPS 128(AX), Z26 \
	VMOVUPS 192(AX), Z27 \
	ADD                  \
	ADDQ R10, AX         \
	ADDQ $64, CX         \
	DECQ R11             \
	JNZ  wholerow        \
	EACH(WHOLEPUT)       \
	ADDQ $256, DI        \
	ADDQ $256, SI        \
	SUBQ $64, R9         \
	JLE  done            \
wholetest: \
	CMPQ R9, $64         \
	JGE  whole

// V16 and V32 load 64 elements of V, which are float16 or float32.
#define V16 \
	PREFETCHT0  4096(AX)        \
	PREFETCHT0  4160(AX)        \
	VCVTPH2PS.Z (AX), K1, Z24   \
	VCVTPH2PS.Z 32(AX), K2, Z25 \
	VCVTPH2PS.Z 64(AX), K3, Z26 \
	VCVTPH2PS.Z 96(AX), K4, Z27
#define V32 \
	VMOVUPS.Z (AX), K1, Z24    \
	VMOVUPS.Z 64(AX), K2, Z25  \
	VMOVUPS.Z 128(AX), K3, Z26 \
	VMOVUPS.Z 192(AX), K4, Z27

// SCALED is the body of a function. An element of V has 1<<shift bytes; the weights of two rows of V are next bytes
// apart.
#define SCALED(shift, next, V, EACH, ADD, FIRST) \
	MOVQ acc+0(FP), DI      \
	MOVQ n+8(FP), R9        \
	MOVQ v+16(FP), SI       \
	MOVQ w+32(FP), DX       \
	MOVQ wStride+40(FP), BX \
	LEAQ (BX)(BX*2), R13    \
	LEAQ (BX)(BX*4), R14    \
	LEAQ (R9*4), R8         \
	MOVQ R9, R10            \
	SHLQ $shift, R10        \
	FIRST                   \
columns: \
	MOVQ    $-1, AX         \
	CMPQ    R9, $64         \
	JGE     mask            \
	MOVQ    R9, CX          \
	SHLQ    CX, AX          \
	NOTQ    AX              \
mask: \
	KMOVW   AX, K1          \
	SHRQ    $16, AX         \
	KMOVW   AX, K2          \
	SHRQ    $16, AX         \
	KMOVW   AX, K3          \
	SHRQ    $16, AX         \
	KMOVW   AX, K4          \
	MOVQ    SI, AX          \
	MOVQ    DX, CX          \
	MOVQ    m+24(FP), R11   \
	EACH(GET)               \
row: \
	V                       \
	ADD                     \
	ADDQ R10, AX            \
	ADDQ $next, CX          \
	DECQ R11                \
	JNZ  row                \
	EACH(PUT)               \
	ADDQ $256, DI           \
	ADDQ $(64<<shift), SI   \
	SUBQ $64, R9            \
	JGT  columns            \
done: \
	VZEROUPPER              \
	RET

// func addScaledF16x1AVX512(acc *float32, n int, v *byte, m int, w *float32, wStride int)
TEXT ·addScaledF16x1AVX512(SB), NOSPLIT, $0-48
	SCALED(1, 4, V16, EACH1, ADD1, LONG(LONGEACH1, LONGADD1))

// func addScaledF16x2AVX512(acc *float32, n int, v *byte, m int, w *float32, wStride int)
TEXT ·addScaledF16x2AVX512(SB), NOSPLIT, $0-48
	SCALED(1, 4, V16, EACH2, ADD2, LONG(LONGEACH2, LONGADD2))

// func addScaledF16x4AVX512(acc *float32, n int, v *byte, m int, w *float32, wStride int)
TEXT ·addScaledF16x4AVX512(SB), NOSPLIT, $0-48
	SCALED(1, 4, V16, EACH4, ADD4, SHORTONLY)

// func addScaledF16x6AVX512(acc *float32, n int, v *byte, m int, w *float32, wStride int)
TEXT ·addScaledF16x6AVX512(SB), NOSPLIT, $0-48
	SCALED(1, 4, V16, EACH6, ADD6, SHORTONLY)

// func addScaledF32x1AVX512(acc *float32, n int, v *float32, m int, w *float32, wStride int)
TEXT ·addScaledF32x1AVX512(SB), NOSPLIT, $0-48
	SCALED(2, 64, V32, EACH1, ADD1, WHOLE32(EACH1, ADD1))

// func addScaledF32x2AVX512(acc *float32, n int, v *float32, m int, w *float32, wStride int)
TEXT ·addScaledF32x2AVX512(SB), NOSPLIT, $0-48
	SCALED(2, 64, V32, EACH2, ADD2, WHOLE32(EACH2, ADD2))

// func addScaledF32x4AVX512(acc *float32, n int, v *float32, m int, w *float32, wStride int)
TEXT ·addScaledF32x4AVX512(SB), NOSPLIT, $0-48
	SCALED(2, 64, V32, EACH4, ADD4, WHOLE32(EACH4, ADD4))

// func addScaledF32x6AVX512(acc *float32, n int, v *float32, m int, w *float32, wStride int)
TEXT ·addScaledF32x6AVX512(SB), NOSPLIT, $0-48
	SCALED(2, 64, V32, EACH6, ADD6, WHOLE32(EACH6, ADD6))
