#include "textflag.h"

// Masks in every word: the bits of an E4M3 number except the sign, the sign bit, and the
// exponent bits of a float16.
DATA fp8Magnitude<>+0(SB)/8, $0x007f007f007f007f
DATA fp8Magnitude<>+8(SB)/8, $0x007f007f007f007f
GLOBL fp8Magnitude<>(SB), RODATA|NOPTR, $16
DATA fp8Sign<>+0(SB)/8, $0x0080008000800080
DATA fp8Sign<>+8(SB)/8, $0x0080008000800080
GLOBL fp8Sign<>(SB), RODATA|NOPTR, $16
DATA fp8Exponent<>+0(SB)/8, $0x7c007c007c007c00
DATA fp8Exponent<>+8(SB)/8, $0x7c007c007c007c00
GLOBL fp8Exponent<>(SB), RODATA|NOPTR, $16
DATA fp8Unit<>+0(SB)/4, $0x43800000
GLOBL fp8Unit<>(SB), RODATA|NOPTR, $4

// func fp8ToF32AVX2(dst *float32, src *byte, steps int, scale float32)
//
// A step is 8 elements. An element's bits, moved into a float16, have 1/256 of its value. A
// magnitude of all ones becomes NaN.
TEXT ·fp8ToF32AVX2(SB), NOSPLIT, $0-28
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         steps+16(FP), CX
	VBROADCASTSS scale+24(FP), Y7
	VBROADCASTSS fp8Unit<>(SB), Y6
	VMOVDQU      fp8Magnitude<>(SB), X5
	VMOVDQU      fp8Sign<>(SB), X4
	VMOVDQU      fp8Exponent<>(SB), X3

step:
	TESTQ     CX, CX
	JLE       done
	VPMOVZXBW (SI), X0
	VPAND     X4, X0, X1
	VPAND     X5, X0, X0
	VPCMPEQW  X5, X0, X2
	VPAND     X3, X2, X2
	VPSLLW    $7, X0, X0
	VPSLLW    $8, X1, X1
	VPOR      X1, X0, X0
	VPOR      X2, X0, X0
	VCVTPH2PS X0, Y0
	VMULPS    Y6, Y0, Y0
	VMULPS    Y7, Y0, Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $8, SI
	ADDQ      $32, DI
	DECQ      CX
	JMP       step

done:
	VZEROUPPER
	RET
