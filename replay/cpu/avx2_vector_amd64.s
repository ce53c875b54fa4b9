#include "textflag.h"

// Elementwise loops of norms, RoPE and argmax. A step is 8 elements; the Go callers process the
// remaining ones. Products and sums are rounded separately.

// func addAVX2(x, delta *float32, steps int)
//
// x += delta
TEXT ·addAVX2(SB), NOSPLIT, $0-24
	MOVQ x+0(FP), DI
	MOVQ delta+8(FP), SI
	MOVQ steps+16(FP), CX

addstep:
	TESTQ   CX, CX
	JLE     adddone
	VMOVUPS (DI), Y0
	VADDPS  (SI), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, DI
	ADDQ    $32, SI
	DECQ    CX
	JMP     addstep

adddone:
	VZEROUPPER
	RET

// func scaleMulAVX2(out, x, w *float32, steps int, scale float32)
//
// out = (x * scale) * w
TEXT ·scaleMulAVX2(SB), NOSPLIT, $0-36
	MOVQ         out+0(FP), DI
	MOVQ         x+8(FP), SI
	MOVQ         w+16(FP), DX
	MOVQ         steps+24(FP), CX
	VBROADCASTSS scale+32(FP), Y15

scalestep:
	TESTQ   CX, CX
	JLE     scaledone
	VMULPS  (SI), Y15, Y0
	VMULPS  (DX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, DI
	ADDQ    $32, SI
	ADDQ    $32, DX
	DECQ    CX
	JMP     scalestep

scaledone:
	VZEROUPPER
	RET

// func divideAVX2(out, x *float32, steps int, by float32)
//
// out = x / by
TEXT ·divideAVX2(SB), NOSPLIT, $0-28
	MOVQ         out+0(FP), DI
	MOVQ         x+8(FP), SI
	MOVQ         steps+16(FP), CX
	VBROADCASTSS by+24(FP), Y15

dividestep:
	VMOVUPS (SI), Y0
	VDIVPS  Y15, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, DI
	ADDQ    $32, SI
	DECQ    CX
	JNZ     dividestep
	VZEROUPPER
	RET

// func decayAVX2(dst, src, k *float32, steps int, keep, delta float32)
//
// dst = keep*src + delta*k
TEXT ·decayAVX2(SB), NOSPLIT, $0-40
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         k+16(FP), DX
	MOVQ         steps+24(FP), CX
	VBROADCASTSS keep+32(FP), Y14
	VBROADCASTSS delta+36(FP), Y15

decaystep:
	TESTQ   CX, CX
	JLE     decaydone
	VMULPS  (SI), Y14, Y0
	VMULPS  (DX), Y15, Y1
	VADDPS  Y1, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, DI
	ADDQ    $32, SI
	ADDQ    $32, DX
	DECQ    CX
	JMP     decaystep

decaydone:
	VZEROUPPER
	RET

// func rotateHalvesAVX2(x, high, angles *float32, steps int)
//
// Element i of x and element i of high form a pair (x0, x1); angles holds the cosine and sine
// of each pair. x0 becomes x0*cos - x1*sin, x1 becomes x1*cos + x0*sin.
TEXT ·rotateHalvesAVX2(SB), NOSPLIT, $0-32
	MOVQ x+0(FP), DI
	MOVQ high+8(FP), SI
	MOVQ angles+16(FP), DX
	MOVQ steps+24(FP), CX

halvesstep:
	TESTQ   CX, CX
	JLE     halvesdone
	VMOVUPS (DX), Y0
	VMOVUPS 32(DX), Y1
	VSHUFPS $0x88, Y1, Y0, Y2 // cosines 0 1 4 5, 2 3 6 7
	VSHUFPS $0xdd, Y1, Y0, Y3
	VPERMPD $0xd8, Y2, Y2     // 0 1 2 3 4 5 6 7
	VPERMPD $0xd8, Y3, Y3
	VMOVUPS (DI), Y4
	VMOVUPS (SI), Y5
	VMULPS  Y2, Y4, Y6
	VMULPS  Y3, Y5, Y7
	VSUBPS  Y7, Y6, Y6
	VMULPS  Y2, Y5, Y5
	VMULPS  Y3, Y4, Y4
	VADDPS  Y4, Y5, Y5
	VMOVUPS Y6, (DI)
	VMOVUPS Y5, (SI)
	ADDQ    $32, DI
	ADDQ    $32, SI
	ADDQ    $64, DX
	DECQ    CX
	JMP     halvesstep

halvesdone:
	VZEROUPPER
	RET

// func rotatePairsAVX2(x, angles *float32, steps int)
//
// The same as rotateHalvesAVX2 for pairs of adjacent elements. A step is 4 pairs.
TEXT ·rotatePairsAVX2(SB), NOSPLIT, $0-24
	MOVQ x+0(FP), DI
	MOVQ angles+8(FP), DX
	MOVQ steps+16(FP), CX

pairsstep:
	TESTQ     CX, CX
	JLE       pairsdone
	VMOVUPS   (DX), Y0
	VMOVSLDUP Y0, Y1          // cosines, each twice
	VMOVSHDUP Y0, Y2          // sines
	VMOVUPS   (DI), Y3
	VPERMILPS $0xb1, Y3, Y4   // pairs swapped
	VMULPS    Y1, Y3, Y3
	VMULPS    Y2, Y4, Y4
	VADDSUBPS Y4, Y3, Y3      // subtracts in even lanes, adds in odd lanes
	VMOVUPS   Y3, (DI)
	ADDQ      $32, DI
	ADDQ      $32, DX
	DECQ      CX
	JMP       pairsstep

pairsdone:
	VZEROUPPER
	RET

// MAX sets each lane of M to the maximum of itself and an element. VMAXPS returns its last
// source, here M, if an element is NaN.
#define MAX(at, V, M) \
	VMOVUPS at(SI), V   \
	VMAXPS  M, V, M

// func maxAVX2(x *float32, steps int) float32
//
// A step is 32 elements, and there is at least one step. The result is -Inf if all elements are
// NaN.
TEXT ·maxAVX2(SB), NOSPLIT, $0-20
	MOVQ         x+0(FP), SI
	MOVQ         steps+8(FP), CX
	MOVL         $0xff800000, AX
	VMOVD        AX, X0
	VPBROADCASTD X0, Y0
	VMOVAPS      Y0, Y1
	VMOVAPS      Y0, Y2
	VMOVAPS      Y0, Y3

maxstep:
	MAX(0, Y4, Y0)
	MAX(32, Y5, Y1)
	MAX(64, Y6, Y2)
	MAX(96, Y7, Y3)
	ADDQ         $128, SI
	DECQ         CX
	JG           maxstep
	VMAXPS       Y1, Y0, Y0
	VMAXPS       Y3, Y2, Y2
	VMAXPS       Y2, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VMAXPS       X1, X0, X0
	VMOVHLPS     X0, X0, X1
	VMAXPS       X1, X0, X0
	VMOVSHDUP    X0, X1
	VMAXSS       X1, X0, X0
	VMOVSS       X0, ret+16(FP)
	VZEROUPPER
	RET

// func findAVX2(x *float32, steps int, m float32) int
//
// It returns the index of the first element that equals m, or 8*steps.
TEXT ·findAVX2(SB), NOSPLIT, $0-32
	MOVQ         x+0(FP), SI
	MOVQ         steps+8(FP), CX
	VBROADCASTSS m+16(FP), Y15
	XORQ         AX, AX

findstep:
	TESTQ     CX, CX
	JLE       finddone
	VCMPPS    $0, (SI)(AX*4), Y15, Y0
	VMOVMSKPS Y0, DX
	TESTL     DX, DX
	JNZ       findhit
	ADDQ      $8, AX
	DECQ      CX
	JMP       findstep

findhit:
	BSFL DX, DX
	ADDQ DX, AX

finddone:
	MOVQ AX, ret+24(FP)
	VZEROUPPER
	RET
