#include "textflag.h"

// Quantization of activations to 8 bits, as doc.go defines it.

// func quantizeAVX2(q *int8, d, x *float32, blocks int, c *[4]float32)
//
// c holds 127, -127, the smallest scale and 1.
TEXT ·quantizeAVX2(SB), NOSPLIT, $0-40
	MOVQ q+0(FP), DI
	MOVQ d+8(FP), DX
	MOVQ x+16(FP), SI
	MOVQ blocks+24(FP), CX
	MOVQ c+32(FP), AX
	VBROADCASTSS (AX), Y15
	VBROADCASTSS 4(AX), Y14
	VMOVSS 8(AX), X13
	VMOVSS 12(AX), X12
	VPCMPEQD Y11, Y11, Y11
	VPSRLD   $1, Y11, Y11     // the magnitude mask
	MOVQ $0x0000000400000000, AX
	VMOVQ AX, X9
	MOVQ $0x0000000500000001, AX
	VMOVQ AX, X8
	VPUNPCKLQDQ X8, X9, X9    // 0 4 1 5
	VPCMPEQD X8, X8, X8
	VPSRLD   $31, X8, X8
	VPADDD   X8, X8, X8
	VPADDD   X8, X9, X8       // 2 6 3 7
	VINSERTI128 $1, X8, Y9, Y9 // order of 4-byte groups after packing within halves

quantblock:
	TESTQ CX, CX
	JLE  quantdone
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VMOVUPS 64(SI), Y2
	VMOVUPS 96(SI), Y3
	VXORPS Y8, Y8, Y8
	VANDPS Y11, Y0, Y4
	VANDPS Y11, Y1, Y5
	VANDPS Y11, Y2, Y6
	VANDPS Y11, Y3, Y7
	VMAXPS Y8, Y4, Y8         // returns the second operand if one is NaN
	VMAXPS Y8, Y5, Y8
	VMAXPS Y8, Y6, Y8
	VMAXPS Y8, Y7, Y8
	VEXTRACTF128 $1, Y8, X4
	VMAXPS X4, X8, X8
	VMOVHLPS X8, X8, X4
	VMAXPS X4, X8, X8
	VMOVSHDUP X8, X4
	VMAXSS X4, X8, X8
	VDIVSS X15, X8, X8        // the scale
	VDIVSS X8, X12, X4        // its inverse
	VUCOMISS X13, X8
	JAE  quantscale
	VXORPS X8, X8, X8
	VXORPS X4, X4, X4

quantscale:
	VMOVSS X8, (DX)
	VBROADCASTSS X4, Y4
	VMULPS Y4, Y0, Y0
	VMULPS Y4, Y1, Y1
	VMULPS Y4, Y2, Y2
	VMULPS Y4, Y3, Y3
	VMINPS Y15, Y0, Y0
	VMINPS Y15, Y1, Y1
	VMINPS Y15, Y2, Y2
	VMINPS Y15, Y3, Y3
	VMAXPS Y14, Y0, Y0
	VMAXPS Y14, Y1, Y1
	VMAXPS Y14, Y2, Y2
	VMAXPS Y14, Y3, Y3
	VCVTPS2DQ Y0, Y0
	VCVTPS2DQ Y1, Y1
	VCVTPS2DQ Y2, Y2
	VCVTPS2DQ Y3, Y3
	VPACKSSDW Y1, Y0, Y0
	VPACKSSDW Y3, Y2, Y2
	VPACKSSWB Y2, Y0, Y0
	VPERMD Y0, Y9, Y0
	VMOVDQU Y0, (DI)
	ADDQ $32, DI
	ADDQ $4, DX
	ADDQ $128, SI
	DECQ CX
	JMP  quantblock

quantdone:
	VZEROUPPER
	RET

// func sumHalvesAVX2(s *int16, q *int8, blocks int)
//
// A block is 32 elements, two sums.
TEXT ·sumHalvesAVX2(SB), NOSPLIT, $0-24
	MOVQ s+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ blocks+16(FP), CX
	VPCMPEQW Y15, Y15, Y15
	VPABSB   Y15, Y14         // 1 in every byte
	VPABSW   Y15, Y15         // 1 in every word

sumblock:
	TESTQ CX, CX
	JLE  sumdone
	VPMADDUBSW (SI), Y14, Y0
	VPMADDWD   Y15, Y0, Y0
	VPHADDD    Y0, Y0, Y0
	VPHADDD    Y0, Y0, Y0     // the sum of a half block in each 128-bit lane
	VEXTRACTI128 $1, Y0, X1
	VPUNPCKLWD X1, X0, X0
	VMOVD      X0, (DI)
	ADDQ $4, DI
	ADDQ $32, SI
	DECQ CX
	JMP  sumblock

sumdone:
	VZEROUPPER
	RET

// ADDPARTS sets Y to eight partial sums of the block of q at offset at.
#define ADDPARTS(at, Y) \
	VPMADDUBSW at(SI), Y14, Y \
	VPMADDWD   Y15, Y, Y

// func sumBlocksAVX2(s *float32, q *int8, d *float32, blocks int)
TEXT ·sumBlocksAVX2(SB), NOSPLIT, $0-32
	MOVQ s+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ d+16(FP), DX
	MOVQ blocks+24(FP), CX
	VPCMPEQW Y15, Y15, Y15
	VPABSB   Y15, Y14         // 1 in every byte
	VPABSW   Y15, Y15         // 1 in every word
	SUBQ $4, CX
	JL   rest

four:
	ADDPARTS(0, Y0)
	ADDPARTS(32, Y1)
	ADDPARTS(64, Y2)
	ADDPARTS(96, Y3)
	VPHADDD      Y1, Y0, Y0
	VPHADDD      Y3, Y2, Y2
	VPHADDD      Y2, Y0, Y0   // a lane for each block in both halves
	VEXTRACTI128 $1, Y0, X1
	VPADDD       X1, X0, X0
	VCVTDQ2PS    X0, X0
	VMULPS       (DX), X0, X0
	VMOVUPS      X0, (DI)
	ADDQ $16, DI
	ADDQ $16, DX
	ADDQ $128, SI
	SUBQ $4, CX
	JGE  four

rest:
	ADDQ $4, CX
	JEQ  end

block:
	ADDPARTS(0, Y0)
	VEXTRACTI128 $1, Y0, X1
	VPADDD       X1, X0, X0
	VPHADDD      X0, X0, X0
	VPHADDD      X0, X0, X0
	VCVTDQ2PS    X0, X0
	VMULSS       (DX), X0, X0
	VMOVSS       X0, (DI)
	ADDQ $4, DI
	ADDQ $4, DX
	ADDQ $32, SI
	DECQ CX
	JNE  block

end:
	VZEROUPPER
	RET
