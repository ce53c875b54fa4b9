#include "textflag.h"

#define V0 Y0
#define V1 Y1
#define V2 Y2
#define V3 Y3
#define V4 Y4
#define V5 Y5
#define V6 Y6
#define V7 Y7
#define V8 Y8
#define V9 Y9
#define V10 Y10
#define V11 Y11
#define V12 Y12
#define V13 Y13
#define V14 Y14
#define V15 Y15
#define M1 Y6
#define M2 Y7
#define BYTES 32
#define GROUPS 2

// COMPARE sets the lanes of M to ones in which the predicate holds for A and B.
#define COMPARE(PREDICATE, B, A, M) \
	VCMPPS $PREDICATE, B, A, M

// BOTH removes from M the lanes that are not in N.
#define BOTH(N, M) \
	VANDPS N, M, M

// PICK copies the lanes in M.
#define PICK(M, FROM, TO) \
	VBLENDVPS M, FROM, TO, TO

// UNCHANGE empties the set of changed lanes, and CHANGE adds those in M1.
#define UNCHANGE \
	VXORPS V13, V13, V13
#define CHANGE \
	VORPS M1, V13, V13
#define IFUNCHANGED(label) \
	VMOVMSKPS V13, AX \
	TESTL AX, AX      \
	JEQ   label

// The tables below are indexed by the last three bits of a negative number.

// quarters holds the halves 2, 6, 10 and 14, eighths those with odd indices, and low and high the
// levels.
DATA quarters<>+0(SB)/4, $0xc2bb0000 // 2: -93.5
DATA quarters<>+4(SB)/4, $0
DATA quarters<>+8(SB)/4, $0
DATA quarters<>+12(SB)/4, $0
DATA quarters<>+16(SB)/4, $0
DATA quarters<>+20(SB)/4, $0x429e0000 // 14: 79
DATA quarters<>+24(SB)/4, $0x41980000 // 10: 19
DATA quarters<>+28(SB)/4, $0xc1e40000 // 6: -28.5
GLOBL quarters<>(SB), RODATA|NOPTR, $32
DATA eighths<>+0(SB)/4, $0xc2e70000 // 1: -115.5
DATA eighths<>+4(SB)/4, $0x42ca0000 // 15: 101
DATA eighths<>+8(SB)/4, $0x42740000 // 13: 61
DATA eighths<>+12(SB)/4, $0x41fc0000 // 11: 31.5
DATA eighths<>+16(SB)/4, $0x40e00000 // 9: 7
DATA eighths<>+20(SB)/4, $0xc1800000 // 7: -16
DATA eighths<>+24(SB)/4, $0xc2280000 // 5: -42
DATA eighths<>+28(SB)/4, $0xc2940000 // 3: -74
GLOBL eighths<>(SB), RODATA|NOPTR, $32
DATA low<>+0(SB)/4, $0xc2fe0000 // -127
DATA low<>+4(SB)/4, $0xc1200000 // -10
DATA low<>+8(SB)/4, $0xc1b00000 // -22
DATA low<>+12(SB)/4, $0xc20c0000 // -35
DATA low<>+16(SB)/4, $0xc2440000 // -49
DATA low<>+20(SB)/4, $0xc2820000 // -65
DATA low<>+24(SB)/4, $0xc2a60000 // -83
DATA low<>+28(SB)/4, $0xc2d00000 // -104
GLOBL low<>(SB), RODATA|NOPTR, $32
DATA high<>+0(SB)/4, $0x3f800000 // 1
DATA high<>+4(SB)/4, $0x42e20000 // 113
DATA high<>+8(SB)/4, $0x42b20000 // 89
DATA high<>+12(SB)/4, $0x428a0000 // 69
DATA high<>+16(SB)/4, $0x42540000 // 53
DATA high<>+20(SB)/4, $0x42180000 // 38
DATA high<>+24(SB)/4, $0x41c80000 // 25
DATA high<>+28(SB)/4, $0x41500000 // 13
GLOBL high<>(SB), RODATA|NOPTR, $32

// LEVELCONSTANTS sets Y13, Y8 and Y9 to the halves 8, 4 and 12.
#define LEVELCONSTANTS \
	VBROADCASTSS middles<>+32(SB), Y13 \
	VBROADCASTSS middles<>+16(SB), Y8  \
	VBROADCASTSS middles<>+48(SB), Y9

// LEVELINDEX sets Y5 to the negative index of the level nearest to Y6, and Y7 to a mask of the
// lanes with indices from 8 on.
#define LEVELINDEX \
	COMPARE(NOTLESS, Y13, Y6, Y7)  \
	VBLENDVPS Y7, Y9, Y8, Y5       \
	COMPARE(NOTLESS, Y5, Y6, Y15)  \
	VPADDD Y7, Y7, Y5              \
	VPADDD Y15, Y5, Y5             \
	VPERMPS quarters<>(SB), Y5, Y15 \
	COMPARE(NOTLESS, Y15, Y6, Y15) \
	VPADDD Y5, Y5, Y5              \
	VPADDD Y15, Y5, Y5             \
	VPERMPS eighths<>(SB), Y5, Y15 \
	COMPARE(NOTLESS, Y15, Y6, Y15) \
	VPADDD Y5, Y5, Y5              \
	VPADDD Y15, Y5, Y5

#define LEVEL \
	LEVELINDEX                  \
	VPERMPS low<>(SB), Y5, Y6   \
	VPERMPS high<>(SB), Y5, Y15 \
	VBLENDVPS Y7, Y15, Y6, Y6

#include "search_amd64.h"

// func affineMeanAVX2(c *columns, factors *float32, trials, elems int, top float32)
AFFINE(·affineMeanAVX2, MEANWEIGHTS, FIRSTSQUARE, NEXTSQUARE)

// func affineMagnitudeAVX2(c *columns, factors *float32, trials, elems int, top float32)
AFFINE(·affineMagnitudeAVX2, MAGNITUDEWEIGHTS, FIRSTMAGNITUDE, NEXTMAGNITUDE)

// func symmetricAVX2(c *columns, factors *float32, trials, elems int, lo, hi float32)
SYMMETRIC(·symmetricAVX2)

// func descendAVX2(c *columns, elems int, first float32, lo, hi int32)
DESCEND(·descendAVX2)

// func levelsAVX2(c *columns, factors *float32, trials, elems int)
LEVELSEARCH(·levelsAVX2)

// func transposeAVX2(c *columns, x *float32, elems int)
//
// transposeAVX2 sets the columns to 16 sub-blocks of elems elements, a multiple of 8. It takes 8
// by 8 elements at a time.
TEXT ·transposeAVX2(SB), NOSPLIT, $0-24
	MOVQ c+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ elems+16(FP), CX
	MOVQ $2, R12
	LEAQ (CX*4), R8      // the size of a sub-block
	LEAQ (R8)(R8*2), R9

rows:
	MOVQ CX, BX
	MOVQ DI, R10

square:
	LEAQ (SI)(R8*4), R11
	VMOVUPS (SI), Y0
	VMOVUPS (SI)(R8*1), Y1
	VMOVUPS (SI)(R8*2), Y2
	VMOVUPS (SI)(R9*1), Y3
	VMOVUPS (R11), Y4
	VMOVUPS (R11)(R8*1), Y5
	VMOVUPS (R11)(R8*2), Y6
	VMOVUPS (R11)(R9*1), Y7
	VUNPCKLPS Y1, Y0, Y8
	VUNPCKHPS Y1, Y0, Y9
	VUNPCKLPS Y3, Y2, Y10
	VUNPCKHPS Y3, Y2, Y11
	VUNPCKLPS Y5, Y4, Y12
	VUNPCKHPS Y5, Y4, Y13
	VUNPCKLPS Y7, Y6, Y14
	VUNPCKHPS Y7, Y6, Y15
	VUNPCKLPD Y10, Y8, Y0
	VUNPCKHPD Y10, Y8, Y1
	VUNPCKLPD Y11, Y9, Y2
	VUNPCKHPD Y11, Y9, Y3
	VUNPCKLPD Y14, Y12, Y4
	VUNPCKHPD Y14, Y12, Y5
	VUNPCKLPD Y15, Y13, Y6
	VUNPCKHPD Y15, Y13, Y7
	VPERM2F128 $0x20, Y4, Y0, Y8
	VPERM2F128 $0x20, Y5, Y1, Y9
	VPERM2F128 $0x20, Y6, Y2, Y10
	VPERM2F128 $0x20, Y7, Y3, Y11
	VPERM2F128 $0x31, Y4, Y0, Y12
	VPERM2F128 $0x31, Y5, Y1, Y13
	VPERM2F128 $0x31, Y6, Y2, Y14
	VPERM2F128 $0x31, Y7, Y3, Y15
	VMOVUPS Y8, (R10)
	VMOVUPS Y9, 64(R10)
	VMOVUPS Y10, 128(R10)
	VMOVUPS Y11, 192(R10)
	VMOVUPS Y12, 256(R10)
	VMOVUPS Y13, 320(R10)
	VMOVUPS Y14, 384(R10)
	VMOVUPS Y15, 448(R10)
	ADDQ $32, SI
	ADDQ $512, R10
	SUBQ $8, BX
	JNZ  square
	LEAQ (R8)(R8*2), R11
	LEAQ (R11)(R8*4), R11
	ADDQ R11, SI         // 7 sub-blocks
	ADDQ $32, DI
	DECQ R12
	JNZ  rows
	VZEROUPPER
	RET

// QUANT sets V to the quants of the eight elements at offset at, plus the offset.
#define QUANT(at, V) \
	VADDPS  at(SI), Y9, V \
	VDIVPS  Y8, V, V      \
	VADDPS  Y15, V, V     \
	VPAND   Y14, V, V     \
	VPSUBD  Y13, V, V     \
	VPMAXSD Y12, V, V     \
	VPMINSD Y11, V, V     \
	VPAND   Y7, V, V      \
	VPADDD  Y10, V, V

// PACK writes the 16 integers of Y0 and Y1 as bytes.
#define PACK \
	VPACKSSDW Y1, Y0, Y0    \
	VEXTRACTI128 $1, Y0, X1 \
	VPACKUSWB X1, X0, X0    \
	VPSHUFD $0xd8, X0, X0   \
	VMOVDQU X0, (DI)

// func quantsAVX2(q *uint8, x, scale, minimum *float32, subs, elems int, lo, hi, offset int32)
//
// elems is a multiple of 16. A sub-block with scale 0 gets the quant 0 plus the offset.
TEXT ·quantsAVX2(SB), NOSPLIT, $0-60
	MOVQ q+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ scale+16(FP), R8
	MOVQ minimum+24(FP), R9
	MOVQ subs+32(FP), R10
	VBROADCASTSS shift<>(SB), Y15
	VBROADCASTSS fraction<>(SB), Y14
	VBROADCASTSS bias<>(SB), Y13
	VBROADCASTSS lo+48(FP), Y12
	VBROADCASTSS hi+52(FP), Y11
	VBROADCASTSS offset+56(FP), Y10
	VXORPS Y6, Y6, Y6

sub:
	VBROADCASTSS (R8), Y8
	VBROADCASTSS (R9), Y9
	COMPARE(NOTEQUAL, Y6, Y8, Y7)
	MOVQ elems+40(FP), CX

sixteen:
	QUANT(0, Y0)
	QUANT(32, Y1)
	PACK
	ADDQ $64, SI
	ADDQ $16, DI
	SUBQ $16, CX
	JNZ  sixteen
	ADDQ $4, R8
	ADDQ $4, R9
	DECQ R10
	JNZ  sub
	VZEROUPPER
	RET

// func levelQuantsAVX2(q *uint8, x, inverse *float32, subs int)
//
// A sub-block has 32 elements.
TEXT ·levelQuantsAVX2(SB), NOSPLIT, $0-32
	MOVQ q+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ inverse+16(FP), R8
	MOVQ subs+24(FP), R10
	LEVELCONSTANTS
	VPXOR Y4, Y4, Y4

levelsub:
	VBROADCASTSS (R8), Y3
	MOVQ $2, CX

levelsixteen:
	VMULPS (SI), Y3, Y6
	LEVELINDEX
	VPSUBD Y5, Y4, Y0
	VMULPS 32(SI), Y3, Y6
	LEVELINDEX
	VPSUBD Y5, Y4, Y1
	PACK
	ADDQ $64, SI
	ADDQ $16, DI
	DECQ CX
	JNZ  levelsixteen
	ADDQ $4, R8
	DECQ R10
	JNZ  levelsub
	VZEROUPPER
	RET
