#include "textflag.h"

// exp of doc.go on 16 lanes, operation by operation as in exp.go, and what
// attention does before it. The constants are those of expTable, in Z16 to Z29
// by its order; R8 is the table.

#define TABLE \
	VBROADCASTSS (R8), Z16   \
	VBROADCASTSS 4(R8), Z17  \
	VBROADCASTSS 8(R8), Z18  \
	VBROADCASTSS 12(R8), Z19 \
	VBROADCASTSS 16(R8), Z20 \
	VBROADCASTSS 20(R8), Z21 \
	VBROADCASTSS 24(R8), Z22 \
	VBROADCASTSS 28(R8), Z23 \
	VBROADCASTSS 32(R8), Z24 \
	VBROADCASTSS 36(R8), Z25 \
	VBROADCASTSS 40(R8), Z26 \
	VBROADCASTSS 44(R8), Z27 \
	VBROADCASTSS 48(R8), Z28 \
	VBROADCASTSS 52(R8), Z29

// EXP sets Z0 to exp(Z0). Z1 to Z3, K5 and K6 are used.
#define EXP \
	VCMPPS    $0x15, Z16, Z0, K5 \
	VCMPPS    $0x1e, Z17, Z0, K6 \
	VMULPS    Z18, Z0, Z1        \
	VADDPS    Z19, Z1, Z1        \
	VSUBPS    Z19, Z1, Z3        \
	VPSUBD    Z19, Z1, Z1        \
	VMULPS    Z20, Z3, Z2        \
	VSUBPS    Z2, Z0, Z0         \
	VMULPS    Z21, Z3, Z2        \
	VSUBPS    Z2, Z0, Z0         \
	VMULPS    Z22, Z0, Z2        \
	VADDPS    Z23, Z2, Z2        \
	VMULPS    Z0, Z2, Z2         \
	VADDPS    Z24, Z2, Z2        \
	VMULPS    Z0, Z2, Z2         \
	VADDPS    Z25, Z2, Z2        \
	VMULPS    Z0, Z2, Z2         \
	VADDPS    Z26, Z2, Z2        \
	VMULPS    Z0, Z2, Z2         \
	VADDPS    Z27, Z2, Z2        \
	VMULPS    Z0, Z0, Z3         \
	VMULPS    Z3, Z2, Z2         \
	VADDPS    Z0, Z2, Z2         \
	VADDPS    Z28, Z2, Z0        \
	VPSRAD    $1, Z1, Z2         \
	VPSUBD    Z2, Z1, Z1         \
	VPSLLD    $23, Z2, Z2        \
	VPADDD    Z28, Z2, Z2        \
	VPSLLD    $23, Z1, Z1        \
	VPADDD    Z28, Z1, Z1        \
	VMULPS    Z2, Z0, Z0         \
	VMULPS    Z1, Z0, Z0         \
	VBLENDMPS Z29, Z0, K6, Z0    \
	VMOVAPS.Z Z0, K5, Z0

// EACH16 is a loop over CX elements, 16 at a time; K1 has those that are there.
#define EACH16(STEP) \
	MOVL  $-1, AX     \
	KMOVW AX, K1      \
	SUBQ  $16, CX     \
	JLT   rest        \
step: \
	STEP              \
	SUBQ  $16, CX     \
	JGE   step        \
rest: \
	ADDQ  $16, CX     \
	JLE   done        \
	MOVL  $1, AX      \
	SHLL  CX, AX      \
	DECL  AX          \
	KMOVW AX, K1      \
	STEP              \
done:

#define EXPSUB \
	VMOVUPS.Z (DI), K1, Z0 \
	VSUBPS    Z15, Z0, Z0  \
	EXP                    \
	VMOVUPS   Z0, K1, (DI) \
	ADDQ      $64, DI

#define SILUMUL \
	VMOVUPS.Z (SI), K1, Z14  \
	VMOVUPS.Z (DX), K1, Z13  \
	VPXORD    Z15, Z14, Z0   \
	EXP                      \
	VADDPS    Z28, Z0, Z0    \
	VDIVPS    Z0, Z14, Z0    \
	VMULPS    Z13, Z0, Z0    \
	VMOVUPS   Z0, K1, (DI)   \
	ADDQ      $64, SI        \
	ADDQ      $64, DX        \
	ADDQ      $64, DI

// GELUMUL is SILUMUL with an exponent of its own.
#define GELUMUL \
	VMOVUPS.Z (SI), K1, Z14  \
	VMOVUPS.Z (DX), K1, Z13  \
	VMULPS    Z14, Z14, Z0   \
	VMULPS    Z12, Z0, Z0    \
	VADDPS    Z11, Z0, Z0    \
	VMULPS    Z14, Z0, Z0    \
	VPXORD    Z15, Z0, Z0    \
	EXP                      \
	VADDPS    Z28, Z0, Z0    \
	VDIVPS    Z0, Z14, Z0    \
	VMULPS    Z13, Z0, Z0    \
	VMOVUPS   Z0, K1, (DI)   \
	ADDQ      $64, SI        \
	ADDQ      $64, DX        \
	ADDQ      $64, DI

// SCALEMAX keeps the maximum so far where an element is not a number: VMAXPS
// gives its first operand then.
#define SCALEMAX \
	VMOVUPS.Z (DI), K1, Z2     \
	VMULPS    Z0, Z2, Z2       \
	VMOVUPS   Z2, K1, (DI)     \
	VMAXPS    Z1, Z2, K1, Z1   \
	ADDQ      $64, DI

// func expSubAVX512(s *float32, m float32, n int, c *[14]float32)
TEXT ·expSubAVX512(SB), NOSPLIT, $0-32
	MOVQ s+0(FP), DI
	VBROADCASTSS m+8(FP), Z15
	MOVQ n+16(FP), CX
	MOVQ c+24(FP), R8
	TABLE
	EACH16(EXPSUB)
	VZEROUPPER
	RET

// func siluMulAVX512(dst, gate, up *float32, n int, c *[14]float32)
TEXT ·siluMulAVX512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ gate+8(FP), SI
	MOVQ up+16(FP), DX
	MOVQ n+24(FP), CX
	MOVQ c+32(FP), R8
	TABLE
	MOVL $0x80000000, AX // the sign
	VPBROADCASTD AX, Z15
	EACH16(SILUMUL)
	VZEROUPPER
	RET

// func geluMulAVX512(dst, gate, up *float32, n int, c *[14]float32, cubic, linear float32)
TEXT ·geluMulAVX512(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ gate+8(FP), SI
	MOVQ up+16(FP), DX
	MOVQ n+24(FP), CX
	MOVQ c+32(FP), R8
	TABLE
	VBROADCASTSS cubic+40(FP), Z12
	VBROADCASTSS linear+44(FP), Z11
	MOVL $0x80000000, AX // the sign
	VPBROADCASTD AX, Z15
	EACH16(GELUMUL)
	VZEROUPPER
	RET

// func scaleMaxAVX512(s *float32, scale float32, n int) float32
TEXT ·scaleMaxAVX512(SB), NOSPLIT, $0-28
	MOVQ s+0(FP), DI
	VBROADCASTSS scale+8(FP), Z0
	MOVQ n+16(FP), CX
	MOVL $0xff800000, AX // minus infinity
	VPBROADCASTD AX, Z1
	EACH16(SCALEMAX)
	VEXTRACTF64X4 $1, Z1, Y2
	VMAXPS Y2, Y1, Y1
	VEXTRACTF128 $1, Y1, X2
	VMAXPS X2, X1, X1
	VMOVHLPS X1, X1, X2
	VMAXPS X2, X1, X1
	VMOVSHDUP X1, X2
	VMAXPS X2, X1, X1
	VMOVSS X1, ret+24(FP)
	VZEROUPPER
	RET
