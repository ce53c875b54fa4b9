#include "textflag.h"
#include "avx512_fold_amd64.h"

// The gated delta rule for four rows of a state at a time, in the arithmetic of doc.go. The registers are
//
//	SI DI   rows of the state, as they are read and written
//	R8 R9   size of a row of the state, and times 3
//	DX CX   k and q of a row of input, and the position in k; the next k follows q
//	BX      keep and beta
//	R10 R12 values, and their stride
//	R11 R13 results, and their stride
//	R15     rows of input left
//	Z0-Z3   sums of q and the new state       Z8-Z11  delta of each row, in all lanes
//	Z4-Z7   sums of the next k and the state  Z13-Z15 k, q, the next k
//	X30     sums of k and the state           Z29     keep
//	Z16-Z23 rows of the state, products       Z31     permutation for TURN

// DECAY sets the rows of the state in Z16 to Z19 to keep*state + delta*k and stores them with MOVE.
#define DECAY(MOVE) \
	VMOVUPS (CX), Z13        \
	VMOVUPS (CX)(R8*1), Z14  \
	VMULPS  (SI), Z29, Z16   \
	VMULPS  (SI)(R8*1), Z29, Z17 \
	VMULPS  (SI)(R8*2), Z29, Z18 \
	VMULPS  (SI)(R9*1), Z29, Z19 \
	VMULPS  Z13, Z8, Z20     \
	VMULPS  Z13, Z9, Z21     \
	VMULPS  Z13, Z10, Z22    \
	VMULPS  Z13, Z11, Z23    \
	VADDPS  Z20, Z16, Z16    \
	VADDPS  Z21, Z17, Z17    \
	VADDPS  Z22, Z18, Z18    \
	VADDPS  Z23, Z19, Z19    \
	MOVE    Z16, (DI)        \
	MOVE    Z17, (DI)(R8*1)  \
	MOVE    Z18, (DI)(R8*2)  \
	MOVE    Z19, (DI)(R9*1)

// SUM adds the products of the rows of the state and V to the sums A to D.
#define SUM(V, A, B, C, D) \
	VFMADD231PS Z16, V, A \
	VFMADD231PS Z17, V, B \
	VFMADD231PS Z18, V, C \
	VFMADD231PS Z19, V, D

// FIRST sets A to the sums of the first k and the row of the state at SI, and moves SI to the next row.
// The rows are read one after another, which suits the hardware prefetcher.
#define FIRST(label, A) \
	MOVQ        DX, CX       \
	MOVQ        R8, AX       \
label: \
	VMOVUPS     (CX), Z13    \
	PREFETCHT0  4096(SI)     \
	VFMADD231PS (SI), Z13, A \
	ADDQ        $64, CX      \
	ADDQ        $64, SI      \
	SUBQ        $64, AX      \
	JGT         label

// func deltaAVX512(to, from, kq, gates, values, out *float32, shape *int)
TEXT ·deltaAVX512(SB), NOSPLIT, $16-56
	MOVQ      to+0(FP), DI
	MOVQ      from+8(FP), SI
	MOVQ      values+32(FP), R10
	MOVQ      out+40(FP), R11
	MOVQ      shape+48(FP), AX
	MOVQ      0(AX), CX
	MOVQ      CX, rows-8(SP)
	MOVQ      8(AX), R8
	SHLQ      $2, R8
	LEAQ      (R8)(R8*2), R9
	MOVQ      24(AX), R12
	SHLQ      $2, R12
	MOVQ      32(AX), R13
	SHLQ      $2, R13
	VMOVUPS   transposed<>(SB), Z31

group:
	SUBQ    $4, rows-8(SP)
	JLT     done
	MOVQ    SI, next-16(SP)
	MOVQ    kq+16(FP), DX
	MOVQ    gates+24(FP), BX
	MOVQ    shape+48(FP), AX
	MOVQ    16(AX), R15

	// The sums of the first k and the state.
	ZERO4(Z4, Z5, Z6, Z7)
	FIRST(first0, Z4)
	FIRST(first1, Z5)
	FIRST(first2, Z6)
	FIRST(first3, Z7)
	MOVQ    next-16(SP), SI
	FOLD(Z4, Z5, Z6, Z7)
	TURN(Z4, Z4, Z4, Z4)
	VMOVAPS     Z4, Z30

row:
	VBROADCASTSS (BX), Z29
	VBROADCASTSS 4(BX), X16
	VMULPS       X30, X29, X17
	VMOVUPS      (R10), X18
	VSUBPS       X17, X18, X17
	VMULPS       X16, X17, X17
	VSHUFPS      $0x55, X17, X17, X18
	VSHUFPS      $0xaa, X17, X17, X19
	VSHUFPS      $0xff, X17, X17, X20
	VBROADCASTSS X17, Z8
	VBROADCASTSS X18, Z9
	VBROADCASTSS X19, Z10
	VBROADCASTSS X20, Z11
	ZERO4(Z0, Z1, Z2, Z3)
	ZERO4(Z4, Z5, Z6, Z7)
	MOVQ         DX, CX
	MOVQ         R8, AX
	CMPQ         R15, $1
	JLE          last

columns:
	VMOVUPS (CX)(R8*2), Z15
	DECAY(VMOVUPS)
	SUM(Z14, Z0, Z1, Z2, Z3)
	SUM(Z15, Z4, Z5, Z6, Z7)
	ADDQ    $64, CX
	ADDQ    $64, SI
	ADDQ    $64, DI
	SUBQ    $64, AX
	JGT     columns
	SUBQ    R8, DI
	MOVQ    DI, SI
	FOLD(Z0, Z1, Z2, Z3)
	FOLD(Z4, Z5, Z6, Z7)
	TURN(Z0, Z4, Z0, Z4)
	VMOVUPS       X0, (R11)
	VEXTRACTF32X4 $1, Z0, X30
	LEAQ    (DX)(R8*2), DX
	ADDQ    $8, BX
	ADDQ    R12, R10
	ADDQ    R13, R11
	DECQ    R15
	JMP     row

last:
	MOVQ    shape+48(FP), BX
	CMPQ    40(BX), $0
	JNE     stream

store:
	DECAY(VMOVUPS)
	SUM(Z14, Z0, Z1, Z2, Z3)
	ADDQ    $64, CX
	ADDQ    $64, SI
	ADDQ    $64, DI
	SUBQ    $64, AX
	JGT     store
	JMP     stored

stream:
	DECAY(VMOVNTPS)
	SUM(Z14, Z0, Z1, Z2, Z3)
	ADDQ    $64, CX
	ADDQ    $64, SI
	ADDQ    $64, DI
	SUBQ    $64, AX
	JGT     stream

stored:
	SUBQ    R8, DI
	FOLD(Z0, Z1, Z2, Z3)
	TURN(Z0, Z0, Z0, Z0)
	VMOVUPS X0, (R11)

	// The next four rows.
	LEAQ    (DI)(R8*4), DI
	MOVQ    next-16(SP), SI
	LEAQ    (SI)(R8*4), SI
	MOVQ    values+32(FP), R10
	ADDQ    $16, R10
	MOVQ    R10, values+32(FP)
	MOVQ    out+40(FP), R11
	ADDQ    $16, R11
	MOVQ    R11, out+40(FP)
	JMP     group

done:
	SFENCE // after VMOVNTPS
	VZEROUPPER
	RET
