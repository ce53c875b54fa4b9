// Sums of the lanes of registers that are 16 sums each, as the products of floats
// end. TURN needs Z31 to be the order that transposed is. They use Z24 to Z27.

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

// FOLD adds up lanes l and l+8, then l and l+4 of the sums A to D, of four rows
// of weights. Each becomes a quarter of A.
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

// TURN adds up lanes l and l+2, then l and l+1 of what FOLD has left of up to
// four rows of activations. Each becomes a quarter of A, of one sum for each row
// of weights.
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

// STORE16 makes of 16 registers the 16 sums of their lanes, in Z0.
#define STORE16 \
	FOLD(Z0, Z1, Z2, Z3)      \
	FOLD(Z4, Z5, Z6, Z7)      \
	FOLD(Z8, Z9, Z10, Z11)    \
	FOLD(Z12, Z13, Z14, Z15)  \
	TURN(Z0, Z4, Z8, Z12)

