#include "textflag.h"
#include "avx2_amd64.h"

// Products of rows of MLX's affine types in the file's layout with quantised activations x. The
// quants are packed without gaps. For each half of 32 columns, VPSHUFB places the two bytes that
// contain a quant in a word; a multiplication moves the quant to the upper end of the word, and a
// shift back to the lower end.
//
//	SI   current bytes of the row     Y0       sums
//	CX   index of the block of x      Y1       0x0001 in every word
//	R9   remaining groups             Y6, X7   scale and bias of the group
//	BX   remaining blocks in a group  Y10, Y11 orders of VPSHUFB
//	R13  mlxPacking                      Y13, Y14 factors of the words
//	R14  temporary                    X15      shift count

// Offsets in mlxPacking.
#define ORDERS 0
#define FACTORS 64
#define SHIFT 128
#define BLOCKS 136
#define BYTES 144
#define KIND 152

DATA mlx128<>+0(SB)/4, $0x43000000
GLOBL mlx128<>(SB), RODATA|NOPTR, $4
DATA mlxSign<>+0(SB)/8, $0x8080808080808080
GLOBL mlxSign<>(SB), RODATA|NOPTR, $8

// func mlxRowsAVX2(y *float32, w *byte, rows, groups int, q *int8, d *float32, s *int16, how *mlxPacking)
TEXT ·mlxRowsAVX2(SB), NOSPLIT, $32-64
	MOVQ y+0(FP), DI
	MOVQ w+8(FP), SI
	MOVQ rows+16(FP), R8
	MOVQ q+32(FP), R10
	MOVQ d+40(FP), R11
	MOVQ s+48(FP), R12
	MOVQ how+56(FP), R13
	MOVQ BYTES(R13), AX
	VPCMPEQW Y1, Y1, Y1
	VPSRLW   $15, Y1, Y1
	VMOVDQU  ORDERS(R13), Y10
	VMOVDQU  (ORDERS+32)(R13), Y11
	VMOVDQU  FACTORS(R13), Y13
	VMOVDQU  (FACTORS+32)(R13), Y14
	VMOVQ    SHIFT(R13), X15

row:
	VXORPS  Y0, Y0, Y0
	VMOVUPS Y0, (SP)
	XORQ    CX, CX
	MOVQ    groups+24(FP), R9

group:
	MOVQ KIND(R13), R14
	CMPQ R14, $1
	JEQ  bf16
	JGT  f32
	VMOVD     (SI), X6
	VCVTPH2PS X6, X6
	ADDQ      $4, SI
	JMP       scaled

bf16:
	VMOVD     (SI), X6
	VPMOVZXWD X6, X6
	VPSLLD    $16, X6, X6
	ADDQ      $4, SI
	JMP       scaled

f32:
	VMOVQ (SI), X6
	ADDQ  $8, SI

scaled:
	VMOVSHDUP X6, X7
	CMPQ AX, $32
	JNE  unsigned
	VMULSS mlx128<>(SB), X6, X8 // the quants are less 128
	VADDSS X8, X7, X7

unsigned:
	VBROADCASTSS X6, Y6
	MOVQ BLOCKS(R13), BX

block:
	MOVQ         CX, R14
	SHLQ         $5, R14
	VMOVDQU      (R10)(R14*1), Y12
	VBROADCASTSS (R11)(CX*4), Y2
	VMULPS       Y6, Y2, Y3
	CMPQ AX, $32
	JEQ  eight
	CMPQ AX, $16
	JLT  few
	VMOVDQU     (SI), X4
	VINSERTI128 $1, -16(SI)(AX*1), Y4, Y4
	JMP  unpack

few: // two or three bits: 8 or 12 bytes
	VMOVQ (SI), X4
	CMPQ  AX, $8
	JEQ   both
	VPINSRD $2, 8(SI), X4, X4

both:
	VINSERTI128 $1, X4, Y4, Y4

unpack:
	VPSHUFB    Y10, Y4, Y5
	VPSHUFB    Y11, Y4, Y4
	VPMULLW    Y13, Y5, Y5
	VPMULLW    Y14, Y4, Y4
	VPSRLW     X15, Y5, Y5
	VPSRLW     X15, Y4, Y4
	VPACKUSWB  Y4, Y5, Y4
	VPMADDUBSW Y12, Y4, Y5
	JMP  add

eight:
	VPBROADCASTQ mlxSign<>(SB), Y5
	VPXOR      (SI), Y5, Y4
	VPSIGNB    Y4, Y12, Y5
	VPABSB     Y4, Y4
	VPMADDUBSW Y5, Y4, Y5

add:
	VPMADDWD  Y1, Y5, Y5
	VCVTDQ2PS Y5, Y5
	VMULPS    Y3, Y5, Y5
	VADDPS    Y5, Y0, Y0
	VMOVD     (R12)(CX*4), X8
	VPMADDWD  X1, X8, X8
	VCVTDQ2PS X8, X8
	VMULSS    X2, X7, X9
	VMULSS    X8, X9, X9
	MOVQ      CX, R14
	ANDQ      $7, R14
	VADDSS    (SP)(R14*4), X9, X9
	VMOVSS    X9, (SP)(R14*4)
	ADDQ      AX, SI
	INCQ      CX
	DECQ      BX
	JNZ       block
	DECQ      R9
	JNZ       group
	VADDPS    (SP), Y0, Y0
	REDUCE8(Y0, X0, X4)
	VMOVSS    X0, (DI)
	ADDQ      $4, DI
	DECQ      R8
	JNZ       row
	VZEROUPPER
	RET
