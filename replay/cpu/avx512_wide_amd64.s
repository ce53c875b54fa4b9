#include "textflag.h"

// Loops of attention for 32 rows of Q together. The rows of K and V are float32, and Q is transposed: a
// register holds one element of each of 16 rows.

// ROW adds the products of one element of the rows of Q and the element k of a row of K.
#define ROW(k, Z, A, B) \
	VBROADCASTSS k, Z         \
	VFMADD231PS  Z24, Z, A    \
	VFMADD231PS  Z25, Z, B

// ROWS4 does so for four rows of K. The element of Q has the offset q, that of K the offset k.
#define ROWS4(q, k, A, B, C, D, E, F, G, H) \
	VMOVUPS q(AX), Z24             \
	VMOVUPS q(AX)(R11*1), Z25      \
	ROW(k(BX), Z28, A, E)          \
	ROW(k(BX)(R9*1), Z29, B, F)    \
	ROW(k(BX)(R9*2), Z30, C, G)    \
	ROW(k(BX)(R10*1), Z31, D, H)

#define ZERO8(A, B, C, D, E, F, G, H) \
	VPXORD A, A, A \
	VPXORD B, B, B \
	VPXORD C, C, C \
	VPXORD D, D, D \
	VPXORD E, E, E \
	VPXORD F, F, F \
	VPXORD G, G, G \
	VPXORD H, H, H

// LANES sets Z0 to Z7 to the sums of lanes l and l+8 of a product: those of the columns that are l or l+8
// modulo 16.
#define LANES(l, label) \
	LEAQ (64*(l))(DX), AX                           \
	LEAQ (4*(l))(SI), BX                            \
	ZERO8(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)           \
	ZERO8(Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15)     \
	MOVQ R8, CX                                     \
label: \
	ROWS4(0, 0, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)          \
	ROWS4(512, 32, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15) \
	ROWS4(1024, 64, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)          \
	ROWS4(1536, 96, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15) \
	ADDQ $2048, AX                                  \
	ADDQ $128, BX                                    \
	DECQ CX                                         \
	JNZ  label                                      \
	VADDPS Z8, Z0, Z0                               \
	VADDPS Z9, Z1, Z1                               \
	VADDPS Z10, Z2, Z2                              \
	VADDPS Z11, Z3, Z3                              \
	VADDPS Z12, Z4, Z4                              \
	VADDPS Z13, Z5, Z5                              \
	VADDPS Z14, Z6, Z6                              \
	VADDPS Z15, Z7, Z7

// FOUR sets Z16 to Z23 to the sums of lanes l, l+4, l+8 and l+12.
#define FOUR(l, label, label4) \
	LANES(l, label)     \
	VMOVAPS Z0, Z16     \
	VMOVAPS Z1, Z17     \
	VMOVAPS Z2, Z18     \
	VMOVAPS Z3, Z19     \
	VMOVAPS Z4, Z20     \
	VMOVAPS Z5, Z21     \
	VMOVAPS Z6, Z22     \
	VMOVAPS Z7, Z23     \
	LANES(l+4, label4)  \
	VADDPS Z0, Z16, Z16 \
	VADDPS Z1, Z17, Z17 \
	VADDPS Z2, Z18, Z18 \
	VADDPS Z3, Z19, Z19 \
	VADDPS Z4, Z20, Z20 \
	VADDPS Z5, Z21, Z21 \
	VADDPS Z6, Z22, Z22 \
	VADDPS Z7, Z23, Z23

// KEEP8 stores Z16 to Z23, and ADD8 adds what it stored. at is 0 or 512.
#define KEEP8(at) \
	VMOVUPS Z16, (at)(R13)     \
	VMOVUPS Z17, (at+64)(R13)  \
	VMOVUPS Z18, (at+128)(R13) \
	VMOVUPS Z19, (at+192)(R13) \
	VMOVUPS Z20, (at+256)(R13) \
	VMOVUPS Z21, (at+320)(R13) \
	VMOVUPS Z22, (at+384)(R13) \
	VMOVUPS Z23, (at+448)(R13)
#define ADD8(at) \
	VADDPS (at)(R13), Z16, Z16     \
	VADDPS (at+64)(R13), Z17, Z17  \
	VADDPS (at+128)(R13), Z18, Z18 \
	VADDPS (at+192)(R13), Z19, Z19 \
	VADDPS (at+256)(R13), Z20, Z20 \
	VADDPS (at+320)(R13), Z21, Z21 \
	VADDPS (at+384)(R13), Z22, Z22 \
	VADDPS (at+448)(R13), Z23, Z23

// func scoresAVX512(out *float32, outStep int, k *float32, n, d int, q, sums *float32)
//
// The lanes of a product are added in the order of doc.go: lanes l and l+8, then l and l+4, l and l+2, l and
// l+1. Registers:
//
//	DI     out                        Z0-Z15   sums of two lanes of four rows of K, 32 rows of Q
//	R12    outStep                    Z16-Z23  sums of four lanes
//	SI BX  four rows of K, a column   Z24 Z25  a column of Q
//	R9     size of a row in bytes     Z28-Z31  elements of K
//	R10    R9 times 3                 R8 CX    16 columns, and what is left of them
//	R11    16 rows of Q               DX AX    Q, and a column
//	                                  R13      sums
TEXT ·scoresAVX512(SB), NOSPLIT, $0-56
	MOVQ out+0(FP), DI
	MOVQ outStep+8(FP), R12
	MOVQ k+16(FP), SI
	MOVQ d+32(FP), R9
	MOVQ q+40(FP), DX
	MOVQ sums+48(FP), R13
	MOVQ R9, R8
	SHRQ $5, R8
	SHLQ $2, R9
	LEAQ (R9)(R9*2), R10
	MOVQ R9, R11
	SHLQ $4, R11

four:
	FOUR(0, lane0, lane4)
	KEEP8(0)
	FOUR(2, lane2, lane6)
	ADD8(0)
	KEEP8(0)
	FOUR(1, lane1, lane5)
	KEEP8(512)
	FOUR(3, lane3, lane7)
	ADD8(512)
	ADD8(0)
	VMOVUPS Z16, (DI)
	VMOVUPS Z17, 64(DI)
	VMOVUPS Z18, 128(DI)
	VMOVUPS Z19, 192(DI)
	VMOVUPS Z20, (DI)(R12*1)
	VMOVUPS Z21, 64(DI)(R12*1)
	VMOVUPS Z22, 128(DI)(R12*1)
	VMOVUPS Z23, 192(DI)(R12*1)
	ADDQ $256, DI
	LEAQ (SI)(R9*4), SI
	SUBQ $4, n+24(FP)
	JGT  four
	VZEROUPPER
	RET

// PAIRS transposes four rows A to D: the quarters of A receive columns 0, 4, 8 and 12 of the four rows, those of B
// columns 1, 5, 9 and 13, and so on.
#define PAIRS(A, B, C, D) \
	VUNPCKLPS B, A, Z28   \
	VUNPCKHPS B, A, Z29   \
	VUNPCKLPS D, C, Z30   \
	VUNPCKHPS D, C, Z31   \
	VUNPCKLPD Z30, Z28, A \
	VUNPCKHPD Z30, Z28, B \
	VUNPCKLPD Z31, Z29, C \
	VUNPCKHPD Z31, Z29, D

// QUARTERS transposes the quarters of four registers and stores them as rows i, i+4, i+8 and i+12.
#define QUARTERS(i, A, B, C, D) \
	VSHUFF64X2 $0x44, B, A, Z28     \
	VSHUFF64X2 $0xee, B, A, Z29     \
	VSHUFF64X2 $0x44, D, C, Z30     \
	VSHUFF64X2 $0xee, D, C, Z31     \
	VSHUFF64X2 $0x88, Z30, Z28, A   \
	VSHUFF64X2 $0xdd, Z30, Z28, B   \
	VSHUFF64X2 $0x88, Z31, Z29, C   \
	VSHUFF64X2 $0xdd, Z31, Z29, D   \
	VMOVUPS    A, (64*i)(DI)        \
	VMOVUPS    B, (64*i+256)(DI)    \
	VMOVUPS    C, (64*i+512)(DI)    \
	VMOVUPS    D, (64*i+768)(DI)

#define LOAD4(A, B, C, D) \
	VMOVUPS (AX), A        \
	VMOVUPS (AX)(R9*1), B  \
	VMOVUPS (AX)(R9*2), C  \
	VMOVUPS (AX)(R11*1), D \
	LEAQ    (AX)(R9*4), AX

// func transposeAVX512(dst, src *float32, srcStride, n int)
//
// n is the number of tiles of 16 by 16 elements.
TEXT ·transposeAVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ srcStride+16(FP), R9
	MOVQ n+24(FP), CX
	LEAQ (R9)(R9*2), R11

tile:
	MOVQ SI, AX
	LOAD4(Z0, Z1, Z2, Z3)
	LOAD4(Z4, Z5, Z6, Z7)
	LOAD4(Z8, Z9, Z10, Z11)
	LOAD4(Z12, Z13, Z14, Z15)
	PAIRS(Z0, Z1, Z2, Z3)
	PAIRS(Z4, Z5, Z6, Z7)
	PAIRS(Z8, Z9, Z10, Z11)
	PAIRS(Z12, Z13, Z14, Z15)
	QUARTERS(0, Z0, Z4, Z8, Z12)
	QUARTERS(1, Z1, Z5, Z9, Z13)
	QUARTERS(2, Z2, Z6, Z10, Z14)
	QUARTERS(3, Z3, Z7, Z11, Z15)
	ADDQ $1024, DI
	ADDQ $64, SI
	DECQ CX
	JNZ  tile
	VZEROUPPER
	RET

// func widenF16AVX512(dst *float32, src *byte, n int)
TEXT ·widenF16AVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

halves:
	PREFETCHT0 4096(SI)
	VCVTPH2PS (SI), Z0
	VCVTPH2PS 32(SI), Z1
	VMOVUPS   Z0, (DI)
	VMOVUPS   Z1, 64(DI)
	ADDQ $64, SI
	ADDQ $128, DI
	SUBQ $32, CX
	JGT  halves
	VZEROUPPER
	RET

// func widenQ8AVX512(dst *float32, src *byte, scales *float32, n int)
TEXT ·widenQ8AVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ scales+16(FP), DX
	MOVQ n+24(FP), CX

block:
	VPMOVSXBD   (SI), Z0
	VPMOVSXBD   16(SI), Z1
	VCVTDQ2PS   Z0, Z0
	VCVTDQ2PS   Z1, Z1
	VMULPS.BCST (DX), Z0, Z0
	VMULPS.BCST (DX), Z1, Z1
	VMOVUPS     Z0, (DI)
	VMOVUPS     Z1, 64(DI)
	ADDQ $32, SI
	ADDQ $128, DI
	ADDQ $4, DX
	SUBQ $32, CX
	JGT  block
	VZEROUPPER
	RET
