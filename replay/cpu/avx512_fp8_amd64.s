#include "textflag.h"

DATA fp8Magnitude<>+0(SB)/8, $0x007f007f007f007f
GLOBL fp8Magnitude<>(SB), RODATA|NOPTR, $8
DATA fp8Sign<>+0(SB)/8, $0x0080008000800080
GLOBL fp8Sign<>(SB), RODATA|NOPTR, $8
DATA fp8Exponent<>+0(SB)/8, $0x7c007c007c007c00
GLOBL fp8Exponent<>(SB), RODATA|NOPTR, $8
DATA fp8Unit<>+0(SB)/4, $0x43800000
GLOBL fp8Unit<>(SB), RODATA|NOPTR, $4

// func fp8ToF32AVX512(dst *float32, src *byte, steps int, scale float32)
//
// A step is 16 elements, converted as fp8ToF32AVX2 does.
TEXT ·fp8ToF32AVX512(SB), NOSPLIT, $0-28
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         steps+16(FP), CX
	VBROADCASTSS scale+24(FP), Z7
	VBROADCASTSS fp8Unit<>(SB), Z6
	VPBROADCASTQ fp8Magnitude<>(SB), Y5
	VPBROADCASTQ fp8Sign<>(SB), Y4
	VPBROADCASTQ fp8Exponent<>(SB), Y3

step:
	TESTQ     CX, CX
	JLE       done
	VPMOVZXBW (SI), Y0
	VPAND     Y4, Y0, Y1
	VPAND     Y5, Y0, Y0
	VPCMPEQW  Y5, Y0, Y2
	VPAND     Y3, Y2, Y2
	VPSLLW    $7, Y0, Y0
	VPSLLW    $8, Y1, Y1
	VPOR      Y1, Y0, Y0
	VPOR      Y2, Y0, Y0
	VCVTPH2PS Y0, Z0
	VMULPS    Z6, Z0, Z0
	VMULPS    Z7, Z0, Z0
	VMOVUPS   Z0, (DI)
	ADDQ      $16, SI
	ADDQ      $64, DI
	DECQ      CX
	JMP       step

done:
	VZEROUPPER
	RET
