// Sums over the 16 lanes of registers, used at the end of float products. TURN requires that
// Z31 contains transposed. The macros use Z24 to Z27.

DATA transposed<>+0(SB)/4, $0
DATA transposed<>+4(SB)/4, $4
DATA transposed<>+8(SB)/4, $8
DATA transposed<>+12(SB)/4, $12
DATA transposed<>+16(SB)/4, $1
DATA transposed<>+20(SB)/4, $5
DATA transposed<>+24(SB)/4, $9
DATA transposed<>+28(SB)/4, $13
DATA transposed<>+32(SB)/4, $2
DATA transposed<>+36(SB)/4, $6
DATA transposed<>+40(SB)/4, $10
DATA transposed<>+44(SB)/4, $14
DATA transposed<>+48(SB)/4, $3
DATA transposed<>+52(SB)/4, $7
DATA transposed<>+56(SB)/4, $11
DATA transposed<>+60(SB)/4, $15
GLOBL transposed<>(SB), RODATA|NOPTR, $64

// FOLD adds lanes l and l+8, then l and l+4, of the sums A to D, which belong to four rows of
// weights. A receives the four results, one in each quarter.
#define FOLD(A, B, C, D) \
	VSHUFF64X2 $0x44, B, A, Z24     \
	VSHUFF64X2 $0xee, B, A, Z25     \
	VSHUFF64X2 $0x44, D, C, Z26     \
	VSHUFF64X2 $0xee, D, C, Z27     \
	VADDPS     Z25, Z24, Z24        \
	VADDPS     Z27, Z26, Z26        \
	VSHUFF64X2 $0x88, Z26, Z24, Z25 \
	VSHUFF64X2 $0xdd, Z26, Z24, Z27 \
	VADDPS     Z27, Z25, A

// TURN adds lanes l and l+2, then l and l+1, of up to four results of FOLD, which belong to up
// to four rows of activations. Each quarter of A receives the results of one row of
// activations: one sum for each row of weights.
#define TURN(A, B, C, D) \
	VSHUFPS $0x44, B, A, Z24     \
	VSHUFPS $0xee, B, A, Z25     \
	VSHUFPS $0x44, D, C, Z26     \
	VSHUFPS $0xee, D, C, Z27     \
	VADDPS  Z25, Z24, Z24        \
	VADDPS  Z27, Z26, Z26        \
	VSHUFPS $0x88, Z26, Z24, Z25 \
	VSHUFPS $0xdd, Z26, Z24, Z27 \
	VADDPS  Z27, Z25, Z25        \
	VPERMPS Z25, Z31, A

#define ZERO4(A, B, C, D) \
	VPXORD A, A, A \
	VPXORD B, B, B \
	VPXORD C, C, C \
	VPXORD D, D, D

// STORE16 sets Z0 to the sums of the 16 lanes of Z0 to Z15.
#define STORE16 \
	FOLD(Z0, Z1, Z2, Z3)      \
	FOLD(Z4, Z5, Z6, Z7)      \
	FOLD(Z8, Z9, Z10, Z11)    \
	FOLD(Z12, Z13, Z14, Z15)  \
	TURN(Z0, Z4, Z8, Z12)

// LANESUM sets the first lane of X0 to the sum of the lanes of Z0. It uses Z1.
#define LANESUM \
	VEXTRACTF64X4 $1, Z0, Y1 \
	VADDPS        Y1, Y0, Y0 \
	VEXTRACTF128  $1, Y0, X1 \
	VADDPS        X1, X0, X0 \
	VMOVHLPS      X0, X0, X1 \
	VADDPS        X1, X0, X0 \
	VMOVSHDUP     X0, X1     \
	VADDSS        X1, X0, X0
