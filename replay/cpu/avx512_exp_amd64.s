#include "textflag.h"
#include "avx512_fold_amd64.h"

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

// FOUR applies OP, whose first source is C, to four registers A and stores the results in B. EACH4
// has a first source for each register.
#define FOUR(OP, C, A0, A1, A2, A3, B0, B1, B2, B3) \
	OP C, A0, B0 \
	OP C, A1, B1 \
	OP C, A2, B2 \
	OP C, A3, B3
#define EACH4(OP, C0, C1, C2, C3, A0, A1, A2, A3, B0, B1, B2, B3) \
	OP C0, A0, B0 \
	OP C1, A1, B1 \
	OP C2, A2, B2 \
	OP C3, A3, B3

// HORNER multiplies Z8 to Z11 by Z0 to Z3 and adds C.
#define HORNER(C) \
	EACH4(VMULPS, Z0, Z1, Z2, Z3, Z8, Z9, Z10, Z11, Z8, Z9, Z10, Z11) \
	FOUR(VADDPS, C, Z8, Z9, Z10, Z11, Z8, Z9, Z10, Z11)

// EXP4 sets Z0 to Z3 to exp(Z0) to exp(Z3), if their elements are at most 100 or NaN, and to 0 where
// K1 to K4 have no bit. The instructions of the four are interleaved, because one chain of them leaves
// no room for others in the processor's scheduler. It uses Z4 to Z15.
#define EXP4 \
	FOUR(VMULPS, Z18, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)                     \
	FOUR(VADDPS, Z19, Z4, Z5, Z6, Z7, Z4, Z5, Z6, Z7)                     \
	FOUR(VSUBPS, Z19, Z4, Z5, Z6, Z7, Z12, Z13, Z14, Z15)                 \
	FOUR(VPSUBD, Z19, Z4, Z5, Z6, Z7, Z4, Z5, Z6, Z7)                     \
	FOUR(VMULPS, Z20, Z12, Z13, Z14, Z15, Z8, Z9, Z10, Z11)               \
	EACH4(VSUBPS, Z8, Z9, Z10, Z11, Z0, Z1, Z2, Z3, Z0, Z1, Z2, Z3)       \
	FOUR(VMULPS, Z21, Z12, Z13, Z14, Z15, Z8, Z9, Z10, Z11)               \
	EACH4(VSUBPS, Z8, Z9, Z10, Z11, Z0, Z1, Z2, Z3, Z0, Z1, Z2, Z3)       \
	FOUR(VMULPS, Z22, Z0, Z1, Z2, Z3, Z8, Z9, Z10, Z11)                   \
	FOUR(VADDPS, Z23, Z8, Z9, Z10, Z11, Z8, Z9, Z10, Z11)                 \
	HORNER(Z24)                                                           \
	HORNER(Z25)                                                           \
	HORNER(Z26)                                                           \
	HORNER(Z27)                                                           \
	EACH4(VMULPS, Z0, Z1, Z2, Z3, Z0, Z1, Z2, Z3, Z12, Z13, Z14, Z15)     \
	EACH4(VMULPS, Z12, Z13, Z14, Z15, Z8, Z9, Z10, Z11, Z8, Z9, Z10, Z11) \
	EACH4(VADDPS, Z0, Z1, Z2, Z3, Z8, Z9, Z10, Z11, Z8, Z9, Z10, Z11)     \
	FOUR(VADDPS, Z28, Z8, Z9, Z10, Z11, Z0, Z1, Z2, Z3)                   \
	FOUR(VPSRAD, $1, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11)                    \
	EACH4(VPSUBD, Z8, Z9, Z10, Z11, Z4, Z5, Z6, Z7, Z4, Z5, Z6, Z7)       \
	FOUR(VPSLLD, $23, Z8, Z9, Z10, Z11, Z8, Z9, Z10, Z11)                 \
	FOUR(VPADDD, Z28, Z8, Z9, Z10, Z11, Z8, Z9, Z10, Z11)                 \
	FOUR(VPSLLD, $23, Z4, Z5, Z6, Z7, Z4, Z5, Z6, Z7)                     \
	FOUR(VPADDD, Z28, Z4, Z5, Z6, Z7, Z4, Z5, Z6, Z7)                     \
	EACH4(VMULPS, Z8, Z9, Z10, Z11, Z0, Z1, Z2, Z3, Z0, Z1, Z2, Z3)       \
	VMULPS.Z Z4, Z0, K1, Z0 \
	VMULPS.Z Z5, Z1, K2, Z1 \
	VMULPS.Z Z6, Z2, K3, Z2 \
	VMULPS.Z Z7, Z3, K4, Z3

// BOUND4 prepares any elements for EXP4. Elements above expMax become 100 (Z30), for which EXP4 gives
// infinity.
#define BOUND4 \
	BOUND(Z0, K1) \
	BOUND(Z1, K2) \
	BOUND(Z2, K3) \
	BOUND(Z3, K4)
#define BOUND(X, K) \
	VCMPPS  $0x15, Z16, X, K  \
	VCMPPS  $0x1e, Z17, X, K5 \
	VMOVAPS Z30, K5, X

// EACH64 is a loop over CX elements, 64 at a time, as long as there are so many. Z30 is 100 and Z31
// the sign bit.
#define EACH64(STEP) \
	MOVL $0x42c80000, AX \
	VPBROADCASTD AX, Z30 \
	MOVL $0x80000000, AX \
	VPBROADCASTD AX, Z31 \
	SUBQ $64, CX         \
	JLT  few             \
many: \
	STEP                 \
	SUBQ $64, CX         \
	JGE  many            \
few: \
	ADDQ $64, CX

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

// LOAD64 sets Z0 to Z3 to 64 elements, and KEEP64 stores them.
#define LOAD64 \
	VMOVUPS (DI), Z0    \
	VMOVUPS 64(DI), Z1  \
	VMOVUPS 128(DI), Z2 \
	VMOVUPS 192(DI), Z3
#define KEEP64 \
	VMOVUPS Z0, (DI)    \
	VMOVUPS Z1, 64(DI)  \
	VMOVUPS Z2, 128(DI) \
	VMOVUPS Z3, 192(DI)

#define EXPSUB4 \
	LOAD64                    \
	VBROADCASTSS m+8(FP), Z15 \
	FOUR(VSUBPS, Z15, Z0, Z1, Z2, Z3, Z0, Z1, Z2, Z3) \
	BOUND4                    \
	EXP4                      \
	KEEP64                    \
	ADDQ         $256, DI

#define SILUMUL4 \
	VPXORD (SI), Z31, Z0    \
	VPXORD 64(SI), Z31, Z1  \
	VPXORD 128(SI), Z31, Z2 \
	VPXORD 192(SI), Z31, Z3 \
	GATED4

// GATED4 finishes four vectors of SILUMUL, or of GELUMUL, whose exponents are in Z0 to Z3.
#define GATED4 \
	BOUND4      \
	EXP4        \
	FOUR(VADDPS, Z28, Z0, Z1, Z2, Z3, Z0, Z1, Z2, Z3) \
	GATED(0, Z0, Z4)   \
	GATED(64, Z1, Z5)  \
	GATED(128, Z2, Z6) \
	GATED(192, Z3, Z7) \
	ADDQ $256, SI \
	ADDQ $256, DX \
	ADDQ $256, DI
#define GATED(at, E, X) \
	VMOVUPS at(SI), X    \
	VDIVPS  E, X, X      \
	VMULPS  at(DX), X, X \
	VMOVUPS X, at(DI)

#define GELUMUL4 \
	VMOVUPS      (SI), Z0            \
	VMOVUPS      64(SI), Z1          \
	VMOVUPS      128(SI), Z2         \
	VMOVUPS      192(SI), Z3         \
	EACH4(VMULPS, Z0, Z1, Z2, Z3, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7) \
	VBROADCASTSS cubic+40(FP), Z12   \
	VBROADCASTSS linear+44(FP), Z11  \
	FOUR(VMULPS, Z12, Z4, Z5, Z6, Z7, Z4, Z5, Z6, Z7)             \
	FOUR(VADDPS, Z11, Z4, Z5, Z6, Z7, Z4, Z5, Z6, Z7)             \
	EACH4(VMULPS, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z3) \
	FOUR(VPXORD, Z31, Z0, Z1, Z2, Z3, Z0, Z1, Z2, Z3)             \
	GATED4

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
	MOVQ n+16(FP), CX
	MOVQ c+24(FP), R8
	TABLE
	EACH64(EXPSUB4)
	VBROADCASTSS m+8(FP), Z15
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
	EACH64(SILUMUL4)
	VMOVAPS Z31, Z15
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
	EACH64(GELUMUL4)
	VBROADCASTSS cubic+40(FP), Z12
	VBROADCASTSS linear+44(FP), Z11
	VMOVAPS Z31, Z15
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

// MASKS sets K1 to K4 to the valid scores, whose bits are in K7.
#define MASKS \
	KMOVQ     K7, K1      \
	KSHIFTRQ  $16, K7, K2 \
	KSHIFTRQ  $32, K7, K3 \
	KSHIFTRQ  $48, K7, K4

// SCALED sets Z0 to Z3 to the scores of a head times the scale in Z15.
#define SCALED \
	VMULPS.Z (DI), Z15, K1, Z0    \
	VMULPS.Z 64(DI), Z15, K2, Z1  \
	VMULPS.Z 128(DI), Z15, K3, Z2 \
	VMULPS.Z 192(DI), Z15, K4, Z3

// SHRINK multiplies the R13 elements at acc by Z0.
#define SHRINK(acc) \
	XORL    CX, CX              \
shrink: \
	VMULPS  (acc)(CX*4), Z0, Z1 \
	VMOVUPS Z1, (acc)(CX*4)     \
	ADDQ    $16, CX             \
	CMPQ    CX, R13             \
	JLT     shrink

// func softenAVX512(scores *float32, stride, n int, scale float32, top, sum *float32, heads int, acc *float32, d int, c *[14]float32)
//
// A head has at most 64 scores. The scores of a head begin stride bytes after those of the previous
// head. d is a multiple of 16. There are at most 16 heads. Lane j of Z30 and Z31 belongs to head j,
// whose bit is in R14.
TEXT ·softenAVX512(SB), NOSPLIT, $128-80
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
	KMOVQ        AX, K7
	MASKS
	MOVL         $0xff800000, AX // minus infinity
	VPBROADCASTD AX, Z14
	MOVL         $1, R14
	VPXORD       Z31, Z31, Z31
	VPXORD       Z30, Z30, Z30

	// Z31 becomes the largest score of each head.
largest:
	SCALED
	VMOVAPS       Z14, Z4
	VMAXPS        Z4, Z0, K1, Z4
	VMAXPS        Z4, Z1, K2, Z4
	VMAXPS        Z4, Z2, K3, Z4
	VMAXPS        Z4, Z3, K4, Z4
	VEXTRACTF64X4 $1, Z4, Y5
	VMAXPS        Y5, Y4, Y4
	VEXTRACTF128  $1, Y4, X5
	VMAXPS        X5, X4, X4
	VMOVHLPS      X4, X4, X5
	VMAXPS        X5, X4, X4
	VMOVSHDUP     X4, X5
	VMAXPS        X5, X4, X4
	KMOVW         R14, K5
	VBROADCASTSS  X4, K5, Z31
	ADDQ          R9, DI
	ADDL          R14, R14
	DECQ          R11
	JNZ           largest

	// Raise the maxima. The frame holds the new ones, and the factors of the sums.
	DECL     R14
	KMOVW    R14, K1
	VPXORD   Z0, Z0, Z0
	VADDPS   Z0, Z31, Z31 // turns -0 into 0
	VMOVUPS.Z (SI), K1, Z4
	VCMPPS   $0x1e, Z4, Z31, K1, K2
	KMOVW    K2, BX
	VSUBPS   Z31, Z4, Z0
	VMOVAPS  Z31, K2, Z4
	VMOVUPS  Z4, top-64(SP)
	VMOVUPS  Z31, K2, (SI)
	VMOVUPS.Z (DX), K1, Z31
	TESTL    BX, BX
	JEQ      kept
	EXP
	VMOVUPS  Z0, factors-128(SP)
	VMULPS   Z0, Z31, K2, Z31

kept:
	MOVQ scores+0(FP), DI
	MOVL $1, R14
	LEAQ top-64(SP), SI
	LEAQ factors-128(SP), R8
	MOVQ heads+48(FP), R11

head:
	TESTL        R14, BX
	JEQ          weights
	VBROADCASTSS (R8), Z0
	SHRINK(R12)

weights:
	MASKS
	VBROADCASTSS scale+24(FP), Z15
	SCALED
	VBROADCASTSS (SI), Z4
	FOUR(VSUBPS, Z4, Z0, Z1, Z2, Z3, Z0, Z1, Z2, Z3)
	VCMPPS       $0x15, Z16, Z0, K1, K1
	VCMPPS       $0x15, Z16, Z1, K2, K2
	VCMPPS       $0x15, Z16, Z2, K3, K3
	VCMPPS       $0x15, Z16, Z3, K4, K4
	EXP4
	MASKS
	VMOVUPS      Z0, K1, (DI)
	VMOVUPS      Z1, K2, 64(DI)
	VMOVUPS      Z2, K3, 128(DI)
	VMOVUPS      Z3, K4, 192(DI)
	VADDPS       Z1, Z0, Z0
	VADDPS       Z2, Z0, Z0
	VADDPS       Z3, Z0, Z0
	LANESUM
	KMOVW        R14, K5
	VBROADCASTSS X0, K5, Z30
	ADDQ         R9, DI
	ADDQ         $4, SI
	ADDQ         $4, R8
	LEAQ         (R12)(R13*4), R12
	ADDL         R14, R14
	DECQ         R11
	JNZ          head

	DECL       R14
	KMOVW      R14, K1
	VADDPS     Z31, Z30, Z30
	VMOVUPS    Z30, K1, (DX)
	VZEROUPPER
	RET

// SEES sets K1 to K4 to the lanes that see positions R11 to R11+3, and ALL to all lanes.
#define SEES1(at, K) \
	LEAL         at(R11), AX \
	VPBROADCASTD AX, Z4      \
	VPCMPGTD     Z4, Z5, K
#define SEES \
	VMOVDQU32 (R9), Z5 \
	SEES1(0, K1)       \
	SEES1(1, K2)       \
	SEES1(2, K3)       \
	SEES1(3, K4)

#define ALL \
	KXNORW K1, K1, K1 \
	KXNORW K2, K2, K2 \
	KXNORW K3, K3, K3 \
	KXNORW K4, K4, K4

// LARGEST4 multiplies the scores of four positions by Z15 and raises the maxima Z10 to Z13.
#define LARGEST4 \
	VMULPS  (DI), Z15, Z0    \
	VMULPS  64(DI), Z15, Z1  \
	VMULPS  128(DI), Z15, Z2 \
	VMULPS  192(DI), Z15, Z3 \
	KEEP64                   \
	VMAXPS  Z10, Z0, K1, Z10 \
	VMAXPS  Z11, Z1, K2, Z11 \
	VMAXPS  Z12, Z2, K3, Z12 \
	VMAXPS  Z13, Z3, K4, Z13

// WEIGHTS4 turns the scores of four positions into weights relative to the maxima in Z31.
#define WEIGHTS4 \
	LOAD64 \
	FOUR(VSUBPS, Z31, Z0, Z1, Z2, Z3, Z0, Z1, Z2, Z3) \
	VCMPPS $0x15, Z16, Z0, K1, K1 \
	VCMPPS $0x15, Z16, Z1, K2, K2 \
	VCMPPS $0x15, Z16, Z2, K3, K3 \
	VCMPPS $0x15, Z16, Z3, K4, K4 \
	EXP4                          \
	KEEP64

// ROWS16 applies FIRST16, which loads the weights of a position, or MORE16, which adds those of another one, to 16
// positions.
#define ROWS16(OP16) \
	OP16(0, Z0)    \
	OP16(64, Z1)   \
	OP16(128, Z2)  \
	OP16(192, Z3)  \
	OP16(256, Z4)  \
	OP16(320, Z5)  \
	OP16(384, Z6)  \
	OP16(448, Z7)  \
	OP16(512, Z8)  \
	OP16(576, Z9)  \
	OP16(640, Z10) \
	OP16(704, Z11) \
	OP16(768, Z12) \
	OP16(832, Z13) \
	OP16(896, Z14) \
	OP16(960, Z15)
#define FIRST16(at, Z) \
	VMOVUPS at(DI), Z
#define MORE16(at, Z) \
	VADDPS at(DI), Z, Z

// func softenWideAVX512(scores *float32, n, least int, seen *int32, scale float32, live int, top, sum, acc *float32, d int, c *[14]float32)
//
// A position has 16 scores, one for each row of Q: lane j. Lane j sees the first seen[j] of the n positions, which
// are at most 64, and all lanes see the first least. live has a bit for each lane that is in use.
TEXT ·softenWideAVX512(SB), NOSPLIT, $64-88
	MOVQ         scores+0(FP), DI
	MOVQ         seen+24(FP), R9
	VBROADCASTSS scale+32(FP), Z15
	MOVQ         c+80(FP), R8
	TABLE
	MOVQ         least+16(FP), R10
	ANDQ         $~3, R10
	MOVL         $0xff800000, AX // minus infinity
	VPBROADCASTD AX, Z10
	VMOVAPS      Z10, Z11
	VMOVAPS      Z10, Z12
	VMOVAPS      Z10, Z13
	XORL         R11, R11
	JMP          seenlargest

largest:
	ALL
	LARGEST4
	ADDQ $256, DI
	ADDQ $4, R11

seenlargest:
	CMPQ R11, R10
	JLT  largest
	JMP  somelargest

masked:
	SEES
	LARGEST4
	ADDQ $256, DI
	ADDQ $4, R11

somelargest:
	CMPQ R11, n+8(FP)
	JLT  masked

	// Z31 becomes the new maxima, Z30 the sums relative to them.
	VMAXPS  Z11, Z10, Z10
	VMAXPS  Z13, Z12, Z12
	VMAXPS  Z12, Z10, Z10
	VPXORD  Z0, Z0, Z0
	VADDPS  Z0, Z10, Z10 // turns -0 into 0
	MOVQ    top+48(FP), SI
	MOVQ    sum+56(FP), DX
	VMOVUPS (SI), Z31
	VMOVUPS (DX), Z30
	MOVQ    live+40(FP), AX
	KMOVW   AX, K1
	VCMPPS  $0x1e, Z31, Z10, K1, K2
	KMOVW   K2, BX
	TESTL   BX, BX
	JEQ     kept
	VSUBPS  Z10, Z31, Z0
	VMOVAPS Z10, K2, Z31
	VMOVUPS Z31, K2, (SI)
	EXP
	VMULPS  Z0, Z30, K2, Z30
	VMOVUPS Z0, factors-64(SP)
	LEAQ    factors-64(SP), R8
	MOVQ    acc+64(FP), R12
	MOVQ    d+72(FP), R13

raised:
	BSFL         BX, CX
	BTRL         CX, BX
	VBROADCASTSS (R8)(CX*4), Z0
	IMULQ        R13, CX
	LEAQ         (R12)(CX*4), AX
	SHRINK(AX)
	TESTL   BX, BX
	JNE     raised

kept:
	MOVQ scores+0(FP), DI
	XORL R11, R11
	JMP  seenweights

weights:
	ALL
	WEIGHTS4
	ADDQ $256, DI
	ADDQ $4, R11

seenweights:
	CMPQ R11, R10
	JLT  weights
	JMP  someweights

maskedweights:
	SEES
	WEIGHTS4
	ADDQ $256, DI
	ADDQ $4, R11

someweights:
	CMPQ R11, n+8(FP)
	JLT  maskedweights

	// The sum of the weights of a lane has 16 parts, those of positions j modulo 16.
	VPXORD Z0, Z0, Z0
	JMP    seenzero

zero:
	VMOVUPS Z0, (DI)
	ADDQ    $64, DI
	INCQ    R11

seenzero:
	TESTQ $15, R11
	JNE   zero
	MOVQ  scores+0(FP), DI
	ROWS16(FIRST16)
	JMP   seensums

sums:
	ADDQ $1024, DI
	ROWS16(MORE16)

seensums:
	SUBQ   $16, R11
	JGT    sums
	EACH4(VADDPS, Z8, Z9, Z10, Z11, Z0, Z1, Z2, Z3, Z0, Z1, Z2, Z3)
	EACH4(VADDPS, Z12, Z13, Z14, Z15, Z4, Z5, Z6, Z7, Z4, Z5, Z6, Z7)
	EACH4(VADDPS, Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z0, Z1, Z2, Z3)
	VADDPS Z2, Z0, Z0
	VADDPS Z3, Z1, Z1
	VADDPS Z1, Z0, Z0
	VADDPS Z0, Z30, Z30
	MOVQ   live+40(FP), AX
	KMOVW  AX, K1
	VMOVUPS Z30, K1, (DX)
	VZEROUPPER
	RET
