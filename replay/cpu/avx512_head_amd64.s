#include "textflag.h"
#include "avx512_fold_amd64.h"

DATA even<>+0(SB)/8, $0x0e0c0a0806040200
DATA even<>+8(SB)/8, $0x1e1c1a1816141210
GLOBL even<>(SB), RODATA|NOPTR, $16

// func turnHeadAVX512(out, x, w, angles *float32, d int, eps float32)
//
// It computes the RMS norm of x, with the operations of norm.go, and rotates its halves as rotateHalves does. d is a
// multiple of 32. The head after x is requested. Registers:
//
//	SI R8   x and its second half    Z0       factor of the norm
//	DI R9   out and its second half  Z1-Z10   temporary
//	BX R10  w and its second half    Z30 Z31  indices of the cosines, and of the sines
//	DX      angles                   CX R11   columns left
TEXT ·turnHeadAVX512(SB), NOSPLIT, $0-44
	MOVQ       out+0(FP), DI
	MOVQ       x+8(FP), SI
	MOVQ       w+16(FP), BX
	MOVQ       angles+24(FP), DX
	MOVQ       d+32(FP), CX
	VPMOVZXBD  even<>(SB), Z30
	VPTERNLOGD $0xff, Z1, Z1, Z1
	VPSUBD     Z1, Z30, Z31
	LEAQ       (SI)(CX*2), R8
	LEAQ       (DI)(CX*2), R9
	LEAQ       (BX)(CX*2), R10
	VCVTSI2SSL CX, X2, X2
	MOVQ       CX, R11
	MOVQ       SI, AX
	VPXORD     Z0, Z0, Z0

square:
	VMOVUPS     (AX), Z1
	VFMADD231PS Z1, Z1, Z0
	ADDQ        $64, AX
	SUBQ        $16, CX
	JGT         square

	LANESUM
	VDIVSS       X2, X0, X0
	VADDSS       eps+40(FP), X0, X0
	VSQRTSS      X0, X0, X0
	MOVL         $0x3f800000, CX
	VMOVD        CX, X1
	VDIVSS       X0, X1, X0
	VBROADCASTSS X0, Z0

turn:
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	ADDQ       $128, AX
	VMULPS     (SI), Z0, Z1
	VMULPS     (R8), Z0, Z2
	VMULPS     (BX), Z1, Z1
	VMULPS     (R10), Z2, Z2
	VMOVUPS    (DX), Z4
	VMOVUPS    64(DX), Z5
	VMOVAPS    Z4, Z3
	VPERMT2PS  Z5, Z30, Z3  // cosines
	VPERMT2PS  Z5, Z31, Z4  // sines
	VMULPS     Z3, Z1, Z6
	VMULPS     Z4, Z2, Z7
	VMULPS     Z3, Z2, Z8
	VMULPS     Z4, Z1, Z9
	VSUBPS     Z7, Z6, Z6
	VADDPS     Z9, Z8, Z8
	VMOVUPS    Z6, (DI)
	VMOVUPS    Z8, (R9)
	ADDQ       $64, SI
	ADDQ       $64, R8
	ADDQ       $64, BX
	ADDQ       $64, R10
	ADDQ       $64, DI
	ADDQ       $64, R9
	ADDQ       $128, DX
	SUBQ       $32, R11
	JGT        turn
	VZEROUPPER
	RET
