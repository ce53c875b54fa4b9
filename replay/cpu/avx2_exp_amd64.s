#include "textflag.h"

// The exp of doc.go on eight lanes, with the same operations as exp.go. The constants are the
// entries of expTable, in its order.

// EXP sets Y0 to exp(Y0). R8 is the address of the table. It uses Y1 to Y6.
#define EXP \
	VBROADCASTSS (R8), Y1       \
	VCMPPS       $0x11, Y1, Y0, Y5 \
	VBROADCASTSS 4(R8), Y1      \
	VCMPPS       $0x1e, Y1, Y0, Y6 \
	VBROADCASTSS 8(R8), Y1      \
	VMULPS       Y1, Y0, Y1     \
	VBROADCASTSS 12(R8), Y2     \
	VADDPS       Y2, Y1, Y1     \
	VSUBPS       Y2, Y1, Y3     \
	VPSUBD       Y2, Y1, Y1     \
	VBROADCASTSS 16(R8), Y2     \
	VMULPS       Y2, Y3, Y2     \
	VSUBPS       Y2, Y0, Y0     \
	VBROADCASTSS 20(R8), Y2     \
	VMULPS       Y2, Y3, Y2     \
	VSUBPS       Y2, Y0, Y0     \
	VBROADCASTSS 24(R8), Y2     \
	VMULPS       Y2, Y0, Y2     \
	VBROADCASTSS 28(R8), Y3     \
	VADDPS       Y3, Y2, Y2     \
	VMULPS       Y0, Y2, Y2     \
	VBROADCASTSS 32(R8), Y3     \
	VADDPS       Y3, Y2, Y2     \
	VMULPS       Y0, Y2, Y2     \
	VBROADCASTSS 36(R8), Y3     \
	VADDPS       Y3, Y2, Y2     \
	VMULPS       Y0, Y2, Y2     \
	VBROADCASTSS 40(R8), Y3     \
	VADDPS       Y3, Y2, Y2     \
	VMULPS       Y0, Y2, Y2     \
	VBROADCASTSS 44(R8), Y3     \
	VADDPS       Y3, Y2, Y2     \
	VMULPS       Y0, Y0, Y3     \
	VMULPS       Y3, Y2, Y2     \
	VADDPS       Y0, Y2, Y2     \
	VBROADCASTSS 48(R8), Y3     \
	VADDPS       Y3, Y2, Y0     \
	VPSRAD       $1, Y1, Y2     \
	VPSUBD       Y2, Y1, Y1     \
	VPSLLD       $23, Y2, Y2    \
	VPADDD       Y3, Y2, Y2     \
	VPSLLD       $23, Y1, Y1    \
	VPADDD       Y3, Y1, Y1     \
	VMULPS       Y2, Y0, Y0     \
	VMULPS       Y1, Y0, Y0     \
	VBROADCASTSS 52(R8), Y1     \
	VBLENDVPS    Y6, Y1, Y0, Y0 \
	VANDNPS      Y0, Y5, Y0

// func expSubAVX2(s *float32, m float32, steps int, c *[14]float32)
//
// A step is 8 elements.
TEXT ·expSubAVX2(SB), NOSPLIT, $0-32
	MOVQ s+0(FP), DI
	VBROADCASTSS m+8(FP), Y15
	MOVQ steps+16(FP), CX
	MOVQ c+24(FP), R8

expstep:
	TESTQ CX, CX
	JLE  expdone
	VMOVUPS (DI), Y0
	VSUBPS Y15, Y0, Y0
	EXP
	VMOVUPS Y0, (DI)
	ADDQ $32, DI
	DECQ CX
	JMP  expstep

expdone:
	VZEROUPPER
	RET

// func siluMulAVX2(dst, gate, up *float32, steps int, c *[14]float32)
//
// A step is 8 elements.
TEXT ·siluMulAVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ gate+8(FP), SI
	MOVQ up+16(FP), DX
	MOVQ steps+24(FP), CX
	MOVQ c+32(FP), R8
	VPCMPEQD Y15, Y15, Y15
	VPSLLD   $31, Y15, Y15 // the sign bit

silustep:
	TESTQ CX, CX
	JLE  siludone
	VMOVUPS (SI), Y14
	VXORPS Y15, Y14, Y0
	EXP
	VBROADCASTSS 48(R8), Y1
	VADDPS Y1, Y0, Y0
	VDIVPS Y0, Y14, Y0
	VMULPS (DX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $32, SI
	ADDQ $32, DX
	ADDQ $32, DI
	DECQ CX
	JMP  silustep

siludone:
	VZEROUPPER
	RET

// func geluMulAVX2(dst, gate, up *float32, steps int, c *[14]float32, cubic, linear float32)
//
// A step is 8 elements.
TEXT ·geluMulAVX2(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ gate+8(FP), SI
	MOVQ up+16(FP), DX
	MOVQ steps+24(FP), CX
	MOVQ c+32(FP), R8
	VBROADCASTSS cubic+40(FP), Y13
	VBROADCASTSS linear+44(FP), Y12
	VPCMPEQD Y15, Y15, Y15
	VPSLLD   $31, Y15, Y15 // the sign bit

gelustep:
	TESTQ CX, CX
	JLE  geludone
	VMOVUPS (SI), Y14
	VMULPS Y14, Y14, Y0
	VMULPS Y13, Y0, Y0
	VADDPS Y12, Y0, Y0
	VMULPS Y14, Y0, Y0
	VXORPS Y15, Y0, Y0
	EXP
	VBROADCASTSS 48(R8), Y1
	VADDPS Y1, Y0, Y0
	VDIVPS Y0, Y14, Y0
	VMULPS (DX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $32, SI
	ADDQ $32, DX
	ADDQ $32, DI
	DECQ CX
	JMP  gelustep

geludone:
	VZEROUPPER
	RET
