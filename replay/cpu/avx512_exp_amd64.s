#include "textflag.h"

// The exp of doc.go on 16 lanes, with the same operations as exp.go, and the softmax step of
// attention. Z16 to Z29 hold the entries of expTable, in its order. R8 is the address of the
// table.

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

// EXP sets Z0 to exp(Z0). It uses Z1 to Z3, K5 and K6.
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

// EACH16 is a loop over CX elements, 16 at a time; K1 is the mask of valid elements.
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

// GELUMUL is SILUMUL with the exponent of GELU's tanh approximation.
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

// SCALEMAX keeps the previous maximum if an element is NaN, because VMAXPS then returns its
// first operand in this syntax.
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
	MOVL $0x80000000, AX // the sign bit
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
	MOVL $0x80000000, AX // the sign bit
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

// SOFTEN computes the weights exp(score - maximum) of the 16 scores in S, with the
// maximum in Z11. mask selects the scores that exist. It stores the weights at at(DI)
// and adds them to the sums in Z12.
#define SOFTEN(at, mask, S) \
	VSUBPS    Z11, S, Z0        \
	EXP                         \
	VMOVUPS   Z0, mask, at(DI)  \
	VADDPS    Z0, Z12, mask, Z12

// func softenAVX512(scores *float32, stride, n int, scale float32, top, sum *float32, heads int, acc *float32, d int, c *[14]float32)
//
// A head has at most 64 scores. The scores of a head begin stride bytes after those of the previous
// head. d is a multiple of 16.
TEXT ·softenAVX512(SB), NOSPLIT, $0-80
	MOVQ         scores+0(FP), DI
	MOVQ         stride+8(FP), R9
	MOVQ         n+16(FP), R10
	VBROADCASTSS scale+24(FP), Z15
	MOVQ         top+32(FP), SI
	MOVQ         sum+40(FP), DX
	MOVQ         heads+48(FP), R11
	MOVQ         acc+56(FP), R12
	MOVQ         d+64(FP), R13
	MOVQ         c+72(FP), R8
	TABLE
	MOVQ         $64, CX
	SUBQ         R10, CX
	MOVQ         $-1, AX
	SHRQ         CX, AX
	KMOVW        AX, K1
	SHRQ         $16, AX
	KMOVW        AX, K2
	SHRQ         $16, AX
	KMOVW        AX, K3
	SHRQ         $16, AX
	KMOVW        AX, K4

head:
	TESTQ        R11, R11
	JLE          softened
	VMULPS.Z     (DI), Z15, K1, Z4
	VMULPS.Z     64(DI), Z15, K2, Z5
	VMULPS.Z     128(DI), Z15, K3, Z6
	VMULPS.Z     192(DI), Z15, K4, Z7
	MOVL         $0xff800000, AX // minus infinity
	VPBROADCASTD AX, Z1
	VMAXPS       Z1, Z4, K1, Z1
	VMAXPS       Z1, Z5, K2, Z1
	VMAXPS       Z1, Z6, K3, Z1
	VMAXPS       Z1, Z7, K4, Z1
	VEXTRACTF64X4 $1, Z1, Y2
	VMAXPS       Y2, Y1, Y1
	VEXTRACTF128 $1, Y1, X2
	VMAXPS       X2, X1, X1
	VMOVHLPS     X1, X1, X2
	VMAXPS       X2, X1, X1
	VMOVSHDUP    X1, X2
	VMAXPS       X2, X1, X1
	VXORPS       X2, X2, X2
	VADDSS       X2, X1, X9
	VMOVSS       (SI), X8
	VUCOMISS     X8, X9
	JLS          top
	VSUBSS       X9, X8, X0
	EXP
	VBROADCASTSS X0, Z10
	VMOVSS       X9, (SI)
	VMULSS       (DX), X0, X2
	VMOVSS       X2, (DX)
	XORQ         CX, CX

shrink:
	VMULPS  (R12)(CX*4), Z10, Z0
	VMOVUPS Z0, (R12)(CX*4)
	ADDQ    $16, CX
	CMPQ    CX, R13
	JLT     shrink

top:
	VBROADCASTSS  (SI), Z11
	VPXORD        Z12, Z12, Z12
	SOFTEN(0, K1, Z4)
	CMPQ          R10, $16
	JLE           sum
	SOFTEN(64, K2, Z5)
	CMPQ          R10, $32
	JLE           sum
	SOFTEN(128, K3, Z6)
	CMPQ          R10, $48
	JLE           sum
	SOFTEN(192, K4, Z7)

sum:
	VEXTRACTF64X4 $1, Z12, Y0
	VADDPS        Y0, Y12, Y0
	VEXTRACTF128  $1, Y0, X1
	VADDPS        X1, X0, X0
	VMOVHLPS      X0, X0, X1
	VADDPS        X1, X0, X0
	VMOVSHDUP     X0, X1
	VADDSS        X1, X0, X0
	VADDSS        (DX), X0, X0
	VMOVSS        X0, (DX)
	ADDQ          R9, DI
	ADDQ          $4, SI
	ADDQ          $4, DX
	LEAQ          (R12)(R13*4), R12
	DECQ          R11
	JMP           head

softened:
	VZEROUPPER
	RET
