#include "textflag.h"

// Float dot products of rows. Y0 to Y3 are the 32 sums of doc.go.

#define ZERO \
	VXORPS Y0, Y0, Y0 \
	VXORPS Y1, Y1, Y1 \
	VXORPS Y2, Y2, Y2 \
	VXORPS Y3, Y3, Y3

// MULADD adds the products of the weights in Y4 to Y7 with 32 activations.
#define MULADD \
	VMULPS (R12), Y4, Y4   \
	VMULPS 32(R12), Y5, Y5 \
	VMULPS 64(R12), Y6, Y6 \
	VMULPS 96(R12), Y7, Y7 \
	VADDPS Y4, Y0, Y0      \
	VADDPS Y5, Y1, Y1      \
	VADDPS Y6, Y2, Y2      \
	VADDPS Y7, Y3, Y3      \
	ADDQ   $128, R12

// REDUCE32 adds up Y0 to Y3 into the lowest lane of X0.
#define REDUCE32 \
	VADDPS       Y1, Y0, Y0 \
	VADDPS       Y3, Y2, Y2 \
	VADDPS       Y2, Y0, Y0 \
	VEXTRACTF128 $1, Y0, X1 \
	VADDPS       X1, X0, X0 \
	VMOVHLPS     X0, X0, X1 \
	VADDPS       X1, X0, X0 \
	VMOVSHDUP    X0, X1     \
	VADDSS       X1, X0, X0

// LOADF32, LOADF16 and LOADBF16 load 32 weights.
#define LOADF32 \
	VMOVUPS (SI), Y4   \
	VMOVUPS 32(SI), Y5 \
	VMOVUPS 64(SI), Y6 \
	VMOVUPS 96(SI), Y7 \
	ADDQ    $128, SI

#define LOADF16 \
	VCVTPH2PS (SI), Y4   \
	VCVTPH2PS 16(SI), Y5 \
	VCVTPH2PS 32(SI), Y6 \
	VCVTPH2PS 48(SI), Y7 \
	ADDQ      $64, SI

#define LOADBF16 \
	VPMOVZXWD (SI), Y4    \
	VPMOVZXWD 16(SI), Y5  \
	VPMOVZXWD 32(SI), Y6  \
	VPMOVZXWD 48(SI), Y7  \
	VPSLLD    $16, Y4, Y4 \
	VPSLLD    $16, Y5, Y5 \
	VPSLLD    $16, Y6, Y6 \
	VPSLLD    $16, Y7, Y7 \
	ADDQ      $64, SI

// ROWS is the body of a rows function: rows of steps times 32 weights.
#define ROWS(LOAD) \
	MOVQ y+0(FP), DI       \
	MOVQ w+8(FP), SI       \
	MOVQ rows+16(FP), R8   \
	MOVQ steps+24(FP), R9  \
	MOVQ x+32(FP), R10     \
row:                       \
	TESTQ R8, R8           \
	JLE   done             \
	MOVQ  R10, R12         \
	MOVQ  R9, CX           \
	ZERO                   \
step:                      \
	LOAD                   \
	MULADD                 \
	DECQ   CX              \
	JNZ    step            \
	REDUCE32               \
	VMOVSS X0, (DI)        \
	ADDQ   $4, DI          \
	DECQ   R8              \
	JMP    row             \
done:                      \
	VZEROUPPER             \
	RET

// SUMS is the body of a sums function: the sums of one row, not reduced.
#define SUMS(LOAD) \
	MOVQ sums+0(FP), DI     \
	MOVQ w+8(FP), SI        \
	MOVQ steps+16(FP), CX   \
	MOVQ x+24(FP), R12      \
	ZERO                    \
	TESTQ CX, CX            \
	JLE   done              \
step:                       \
	LOAD                    \
	MULADD                  \
	DECQ  CX                \
	JNZ   step              \
done:                       \
	VMOVUPS Y0, (DI)        \
	VMOVUPS Y1, 32(DI)      \
	VMOVUPS Y2, 64(DI)      \
	VMOVUPS Y3, 96(DI)      \
	VZEROUPPER              \
	RET

// func rowsF32AVX2(y *float32, w *byte, rows, steps int, x *float32)
TEXT ·rowsF32AVX2(SB), NOSPLIT, $0-40
	ROWS(LOADF32)

// func rowsF16AVX2(y *float32, w *byte, rows, steps int, x *float32)
TEXT ·rowsF16AVX2(SB), NOSPLIT, $0-40
	ROWS(LOADF16)

// func rowsBF16AVX2(y *float32, w *byte, rows, steps int, x *float32)
TEXT ·rowsBF16AVX2(SB), NOSPLIT, $0-40
	ROWS(LOADBF16)

// func sumsF32AVX2(sums *[32]float32, w *byte, steps int, x *float32)
TEXT ·sumsF32AVX2(SB), NOSPLIT, $0-32
	SUMS(LOADF32)

// func sumsF16AVX2(sums *[32]float32, w *byte, steps int, x *float32)
TEXT ·sumsF16AVX2(SB), NOSPLIT, $0-32
	SUMS(LOADF16)

// func sumsBF16AVX2(sums *[32]float32, w *byte, steps int, x *float32)
TEXT ·sumsBF16AVX2(SB), NOSPLIT, $0-32
	SUMS(LOADBF16)

// func addScaledF16AVX2(acc *float32, v *byte, w *float32, rows, n int)
//
// n is a multiple of 8. Columns are taken 32 or 8 at a time, so that their
// sums stay in registers over all rows.
TEXT ·addScaledF16AVX2(SB), NOSPLIT, $0-40
	MOVQ acc+0(FP), DI
	MOVQ v+8(FP), SI
	MOVQ w+16(FP), R10
	MOVQ rows+24(FP), R8
	MOVQ n+32(FP), R9
	LEAQ (R9)(R9*1), R11 // bytes of a row

columns32:
	CMPQ R9, $32
	JLT  columns8
	VMOVUPS (DI), Y0
	VMOVUPS 32(DI), Y1
	VMOVUPS 64(DI), Y2
	VMOVUPS 96(DI), Y3
	MOVQ SI, AX
	XORQ CX, CX

rows32:
	CMPQ CX, R8
	JGE  end32
	VBROADCASTSS (R10)(CX*4), Y8
	VCVTPH2PS (AX), Y4
	VCVTPH2PS 16(AX), Y5
	VCVTPH2PS 32(AX), Y6
	VCVTPH2PS 48(AX), Y7
	VMULPS Y8, Y4, Y4
	VMULPS Y8, Y5, Y5
	VMULPS Y8, Y6, Y6
	VMULPS Y8, Y7, Y7
	VADDPS Y4, Y0, Y0
	VADDPS Y5, Y1, Y1
	VADDPS Y6, Y2, Y2
	VADDPS Y7, Y3, Y3
	ADDQ R11, AX
	INCQ CX
	JMP  rows32

end32:
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VMOVUPS Y2, 64(DI)
	VMOVUPS Y3, 96(DI)
	ADDQ $128, DI
	ADDQ $64, SI
	SUBQ $32, R9
	JMP  columns32

columns8:
	CMPQ R9, $8
	JLT  scaleddone
	VMOVUPS (DI), Y0
	MOVQ SI, AX
	XORQ CX, CX

rows8:
	CMPQ CX, R8
	JGE  end8
	VBROADCASTSS (R10)(CX*4), Y8
	VCVTPH2PS (AX), Y4
	VMULPS Y8, Y4, Y4
	VADDPS Y4, Y0, Y0
	ADDQ R11, AX
	INCQ CX
	JMP  rows8

end8:
	VMOVUPS Y0, (DI)
	ADDQ $32, DI
	ADDQ $16, SI
	SUBQ $8, R9
	JMP  columns8

scaleddone:
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
