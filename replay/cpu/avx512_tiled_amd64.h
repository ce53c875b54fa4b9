// Macros for AVX-512 products of strips of 16 rows in layout Tiled16 with one, two,
// four or eight rows of quantised activations. They compute the same arithmetic as
// tiledFunc. A lane is a row of the strip. The registers are
//
//	SI       the tile                 Z0-Z3    float sums, one for each row of x
//	AX       quants of x
//	DX       scales of x              Z8-Z11   integer sums
//	BX       sums of x                Z12-Z15  integer sums of columns 16 to 31 in
//	R12 R13  stride of x, times 3              types with a scale per 16 columns
//	CX R14   blocks and tiles left    Z16-Z23  temporary
//	DI       y                        Z24 Z25  d and dmin, or m
//	R8       integer scales, or the   Z26 Z27  scales and minimums of the tile
//	         stride of y              Z28-Z31  constants
//	R9       strips left
//	R10 R11  number of blocks, x
//
// With eight rows of x, Z0 to Z7 are their float sums, Z8 to Z15 their integer sums, and
// R10 and R11 are 5 and 7 times the stride of x. Types with two scales per tile have no such
// loop.
//
// VPDPBUSD adds four products of an unsigned and a signed byte to a 32-bit sum,
// without saturation. The weights are the unsigned operand. They are stored with an
// offset that makes them unsigned, so the integer sums begin with minus this offset
// times the sum of x.

// AHEAD is the distance in bytes by which tiles are prefetched.
#define AHEAD 2048

#define PREFETCH4(at) \
	PREFETCHT0 (AHEAD+at)(SI)     \
	PREFETCHT0 (AHEAD+at+64)(SI)  \
	PREFETCHT0 (AHEAD+at+128)(SI) \
	PREFETCHT0 (AHEAD+at+192)(SI)

// FILL32 sets every 4 bytes of Z to a constant. It uses AX.
#define FILL32(value, Z) \
	MOVL         $value, AX \
	VPBROADCASTD AX, Z

// TILED is the body of a function. A block consists of head bytes, which the macro
// HEAD reads, and the given number of tiles of size bytes, each of which TILE
// multiplies. ZERO runs before each strip and STORE after it.
#define TILED(head, tiles, size, ZERO, HEAD, TILE, STORE) \
	MOVQ blocks+32(FP), R10  \
	MOVQ x+40(FP), R11       \
	MOVQ xStride+48(FP), R12 \
	STRIPS(R10, R11, head, tiles, size, ZERO, HEAD, TILE, STORE)

// TILED8 is TILED for eight rows of x.
#define TILED8(head, tiles, size, HEAD, TILE) \
	MOVQ xStride+48(FP), R12 \
	LEAQ (R12)(R12*4), R10   \
	LEAQ (R10)(R12*2), R11   \
	STRIPS(blocks+32(FP), x+40(FP), head, tiles, size, ZERO8, HEAD, TILE, STORE8)

#define STRIPS(count, rows, head, tiles, size, ZERO, HEAD, TILE, STORE) \
	MOVQ y+0(FP), DI         \
	MOVQ w+16(FP), SI        \
	MOVQ strips+24(FP), R9   \
	LEAQ (R12)(R12*2), R13   \
strip: \
	TESTQ R9, R9           \
	JLE   done             \
	MOVQ  in+56(FP), R14   \
	SHRQ  $3, R14          \
	MOVQ  rows, AX         \
	LEAQ  (AX)(R14*8), DX  \
	LEAQ  (DX)(R14*1), BX  \
	MOVQ  count, CX        \
	ZERO                   \
block: \
	HEAD             \
	ADDQ $head, SI   \
	MOVL $tiles, R14 \
tile: \
	TILE            \
	ADDQ  $size, SI \
	ADDQ  $32, AX   \
	ADDQ  $4, DX    \
	ADDQ  $4, BX    \
	DECL  R14       \
	JNZ   tile      \
	DECQ  CX        \
	JNZ   block     \
	STORE           \
	ADDQ  $64, DI   \
	DECQ  R9        \
	JMP   strip     \
done: \
	VZEROUPPER \
	RET

// Macros whose names end in 1, 2, 4 or 8 handle that many rows of x.

#define ZERO1 \
	VPXORD Z0, Z0, Z0
#define ZERO2 \
	ZERO1             \
	VPXORD Z1, Z1, Z1
#define ZERO4 \
	ZERO2             \
	VPXORD Z2, Z2, Z2 \
	VPXORD Z3, Z3, Z3
#define ZERO8 \
	ZERO4             \
	VPXORD Z4, Z4, Z4 \
	VPXORD Z5, Z5, Z5 \
	VPXORD Z6, Z6, Z6 \
	VPXORD Z7, Z7, Z7

#define STORE1 \
	VMOVUPS Z0, (DI)
#define STORE2 \
	STORE1                    \
	MOVQ    yStride+8(FP), R8 \
	VMOVUPS Z1, (DI)(R8*1)
#define STORE4 \
	STORE2                    \
	LEAQ    (DI)(R8*2), AX    \
	VMOVUPS Z2, (AX)          \
	VMOVUPS Z3, (AX)(R8*1)

#define STORE8 \
	STORE4                     \
	LEAQ    (R8)(R8*2), AX     \
	LEAQ    (DI)(R8*4), DX     \
	VMOVUPS Z4, (DX)           \
	VMOVUPS Z5, (DX)(R8*1)     \
	VMOVUPS Z6, (DX)(R8*2)     \
	VMOVUPS Z7, (DX)(AX*1)

// LESS initialises the integers with the sums of x, which are pairs of 16-bit words, times the
// words of C.
#define LESS(at, C, I) \
	VPXORD        I, I, I \
	VPDPWSSD.BCST at, C, I
#define LESS1(C) \
	LESS((BX), C, Z8)
#define LESS2(C) \
	LESS((BX), C, Z8) \
	LESS((BX)(R12*1), C, Z9)
#define LESS4(C) \
	LESS2(C)                  \
	LESS((BX)(R12*2), C, Z10) \
	LESS((BX)(R13*1), C, Z11)
#define LESS8(C) \
	LESS4(C)                  \
	LESS((BX)(R12*4), C, Z12) \
	LESS((BX)(R10*1), C, Z13) \
	LESS((BX)(R13*2), C, Z14) \
	LESS((BX)(R11*1), C, Z15)
#define LESSHIGH1(C) \
	LESS((BX), C, Z12)
#define LESSHIGH2(C) \
	LESS((BX), C, Z12) \
	LESS((BX)(R12*1), C, Z13)
#define LESSHIGH4(C) \
	LESSHIGH2(C)              \
	LESS((BX)(R12*2), C, Z14) \
	LESS((BX)(R13*1), C, Z15)

// NOLESS initialises the integers with 0.
#define NOLESS1 \
	VPXORD Z8, Z8, Z8
#define NOLESS2 \
	VPXORD Z8, Z8, Z8 \
	VPXORD Z9, Z9, Z9
#define NOLESS4 \
	NOLESS2              \
	VPXORD Z10, Z10, Z10 \
	VPXORD Z11, Z11, Z11
#define NOLESS8 \
	NOLESS4              \
	VPXORD Z12, Z12, Z12 \
	VPXORD Z13, Z13, Z13 \
	VPXORD Z14, Z14, Z14 \
	VPXORD Z15, Z15, Z15
#define NOLESSHIGH1 \
	VPXORD Z12, Z12, Z12
#define NOLESSHIGH2 \
	VPXORD Z12, Z12, Z12 \
	VPXORD Z13, Z13, Z13
#define NOLESSHIGH4 \
	NOLESSHIGH2          \
	VPXORD Z14, Z14, Z14 \
	VPXORD Z15, Z15, Z15

// DOT adds the products of x and W, which is column group g of the weights. DOTHIGH adds them
// to the sums of columns 16 to 31.
#define DOT1(g, W) \
	VPDPBUSD.BCST (4*(g))(AX), W, Z8
#define DOT2(g, W) \
	VPDPBUSD.BCST (4*(g))(AX), W, Z8 \
	VPDPBUSD.BCST (4*(g))(AX)(R12*1), W, Z9
#define DOT4(g, W) \
	DOT2(g, W)                               \
	VPDPBUSD.BCST (4*(g))(AX)(R12*2), W, Z10 \
	VPDPBUSD.BCST (4*(g))(AX)(R13*1), W, Z11
#define DOT8(g, W) \
	DOT4(g, W)                               \
	VPDPBUSD.BCST (4*(g))(AX)(R12*4), W, Z12 \
	VPDPBUSD.BCST (4*(g))(AX)(R10*1), W, Z13 \
	VPDPBUSD.BCST (4*(g))(AX)(R13*2), W, Z14 \
	VPDPBUSD.BCST (4*(g))(AX)(R11*1), W, Z15
#define DOTHIGH1(g, W) \
	VPDPBUSD.BCST (4*(g))(AX), W, Z12
#define DOTHIGH2(g, W) \
	VPDPBUSD.BCST (4*(g))(AX), W, Z12 \
	VPDPBUSD.BCST (4*(g))(AX)(R12*1), W, Z13
#define DOTHIGH4(g, W) \
	DOTHIGH2(g, W)                           \
	VPDPBUSD.BCST (4*(g))(AX)(R12*2), W, Z14 \
	VPDPBUSD.BCST (4*(g))(AX)(R13*1), W, Z15

// ADD adds the integers I, times d and the scale of x at address dx, to ACC.
#define ADD(dx, I, ACC) \
	VMULPS.BCST dx, Z24, Z16 \
	VCVTDQ2PS   I, I         \
	VFMADD231PS Z16, I, ACC
#define ADD1 \
	ADD((DX), Z8, Z0)
#define ADD2 \
	ADD((DX), Z8, Z0) \
	ADD((DX)(R12*1), Z9, Z1)
#define ADD4 \
	ADD2                      \
	ADD((DX)(R12*2), Z10, Z2) \
	ADD((DX)(R13*1), Z11, Z3)
#define ADD8 \
	ADD4                      \
	ADD((DX)(R12*4), Z12, Z4) \
	ADD((DX)(R10*1), Z13, Z5) \
	ADD((DX)(R13*2), Z14, Z6) \
	ADD((DX)(R11*1), Z15, Z7)

// In K types the integers times their scales are below 2^24, and so is their sum. They are
// therefore exact as float32, which is faster than 32-bit integers.

// ADDK adds the integers I, times the scale of x at address dx, times d and their integer scale, whose
// product is in Z26.
#define ADDK(dx, I, ACC) \
	VCVTDQ2PS   I, I         \
	VMULPS.BCST dx, I, I     \
	VFMADD231PS Z26, I, ACC
#define ADDK1 \
	ADDK((DX), Z8, Z0)
#define ADDK2 \
	ADDK((DX), Z8, Z0) \
	ADDK((DX)(R12*1), Z9, Z1)
#define ADDK4 \
	ADDK2                      \
	ADDK((DX)(R12*2), Z10, Z2) \
	ADDK((DX)(R13*1), Z11, Z3)
#define ADDK8 \
	ADDK4                      \
	ADDK((DX)(R12*4), Z12, Z4) \
	ADDK((DX)(R10*1), Z13, Z5) \
	ADDK((DX)(R13*2), Z14, Z6) \
	ADDK((DX)(R11*1), Z15, Z7)

// ADDKK adds the integers I of columns 0 to 15 and J of columns 16 to 31, each times their
// integer scale. The fused multiplication and addition is exact.
#define ADDKK(dx, I, J, ACC) \
	VCVTDQ2PS   I, I         \
	VCVTDQ2PS   J, J         \
	VMULPS      Z26, I, I    \
	VFMADD231PS Z27, J, I    \
	VMULPS.BCST dx, Z24, Z16 \
	VFMADD231PS Z16, I, ACC
#define ADDKK1 \
	ADDKK((DX), Z8, Z12, Z0)
#define ADDKK2 \
	ADDKK((DX), Z8, Z12, Z0) \
	ADDKK((DX)(R12*1), Z9, Z13, Z1)
#define ADDKK4 \
	ADDKK2                           \
	ADDKK((DX)(R12*2), Z10, Z14, Z2) \
	ADDKK((DX)(R13*1), Z11, Z15, Z3)

// MIN adds the minimums M times the sum of x at s, which includes the scale of x, to ACC. OP is VFMADD231PS,
// or VFNMADD231PS to subtract them.
#define MIN(OP, M, s, ACC) \
	OP.BCST s, M, ACC
#define MIN1(OP, M) \
	MIN(OP, M, (BX), Z0)
#define MIN2(OP, M) \
	MIN1(OP, M) \
	MIN(OP, M, (BX)(R12*1), Z1)
#define MIN4(OP, M) \
	MIN2(OP, M)                 \
	MIN(OP, M, (BX)(R12*2), Z2) \
	MIN(OP, M, (BX)(R13*1), Z3)
#define MIN8(OP, M) \
	MIN4(OP, M)                 \
	MIN(OP, M, (BX)(R12*4), Z4) \
	MIN(OP, M, (BX)(R10*1), Z5) \
	MIN(OP, M, (BX)(R13*2), Z6) \
	MIN(OP, M, (BX)(R11*1), Z7)

// BIAS adds the biases in Z25 of MLX's types, times the sum of x at s, two words, and the scale of x at dx, to ACC.
// ONES is 1 in every word.
#define BIAS(ONES, dx, s, ACC) \
	VPXORD        Z17, Z17, Z17   \
	VPDPWSSD.BCST s, ONES, Z17    \
	VCVTDQ2PS     Z17, Z17        \
	VMULPS.BCST   dx, Z17, Z17    \
	VFMADD231PS   Z25, Z17, ACC
#define BIAS1(ONES) \
	BIAS(ONES, (DX), (BX), Z0)
#define BIAS4(ONES) \
	BIAS1(ONES)                            \
	BIAS(ONES, (DX)(R12*1), (BX)(R12*1), Z1) \
	BIAS(ONES, (DX)(R12*2), (BX)(R12*2), Z2) \
	BIAS(ONES, (DX)(R13*1), (BX)(R13*1), Z3)

// MINS adds or subtracts the minimums of columns 0 to 15 and 16 to 31, which are words in C. It multiplies
// them by the sums of x at s, and the result by their scale in Z25 times the scale of x at dx.
#define MINS(OP, C, dx, s, ACC) \
	VPXORD        Z17, Z17, Z17 \
	VPDPWSSD.BCST s, C, Z17     \
	VCVTDQ2PS     Z17, Z17      \
	VMULPS.BCST   dx, Z25, Z16  \
	OP            Z16, Z17, ACC
#define MINS1(OP, C) \
	MINS(OP, C, (DX), (BX), Z0)
#define MINS2(OP, C) \
	MINS1(OP, C) \
	MINS(OP, C, (DX)(R12*1), (BX)(R12*1), Z1)
#define MINS4(OP, C) \
	MINS2(OP, C)                              \
	MINS(OP, C, (DX)(R12*2), (BX)(R12*2), Z2) \
	MINS(OP, C, (DX)(R13*1), (BX)(R13*1), Z3)

// The HEAD macros read the data before the tiles of a block. HEAD loads the scales
// d to Z24; HEADMIN loads dmin to Z25 as well; NOHEAD is for types without such
// data. In some types the integer scales of all tiles follow: HEADSCALES and
// HEADMINSCALES set R8 to their address.
#define NOHEAD
#define HEAD \
	VCVTPH2PS (SI), Z24
#define HEADMIN \
	VCVTPH2PS (SI), Z24 \
	VCVTPH2PS 32(SI), Z25
#define HEADSCALES \
	HEAD \
	LEAQ 32(SI), R8
#define HEADMINSCALES \
	HEADMIN \
	LEAQ    64(SI), R8

// NIBBLES processes column groups g and g+4, whose nibbles begin at offset at in the tile. Z31
// is 0x0f in every byte.
#define NIBBLES(at, g, DOT) \
	VMOVDQU64 (at+64*g)(SI), Z16 \
	VPANDD    Z31, Z16, Z17      \
	VPSRLW    $4, Z16, Z16       \
	VPANDD    Z31, Z16, Z16      \
	DOT(g, Z17)                  \
	DOT(g+4, Z16)

// MLX is TILED for MLX's affine types. A block is 16 scales, 16 biases and the number of tiles
// given by the argument. SI is the address of the tile minus back bytes.
#define MLX(back, size, ZERO, TILE, STORE) \
	MOVQ y+0(FP), DI         \
	MOVQ w+16(FP), SI        \
	SUBQ $back, SI           \
	MOVQ strips+24(FP), R9   \
	MOVQ blocks+32(FP), R10  \
	MOVQ x+40(FP), R11       \
	MOVQ xStride+48(FP), R12 \
	LEAQ (R12)(R12*2), R13   \
strip: \
	TESTQ R9, R9           \
	JLE   done             \
	MOVQ  in+56(FP), R14   \
	SHRQ  $3, R14          \
	MOVQ  R11, AX          \
	LEAQ  (R11)(R14*8), DX \
	LEAQ  (DX)(R14*1), BX  \
	MOVQ  R10, CX          \
	ZERO                   \
block: \
	MOVQ      tiles+64(FP), R14      \
	CMPQ      bf16+72(FP), $0        \
	JNE       bf16                   \
	VCVTPH2PS (back)(SI), Z24        \
	VCVTPH2PS (back+32)(SI), Z25     \
	ADDQ      $64, SI                \
	JMP       tile                   \
bf16: \
	VPMOVZXWD (back)(SI), Z24        \
	VPMOVZXWD (back+32)(SI), Z25     \
	VPSLLD    $16, Z24, Z24          \
	VPSLLD    $16, Z25, Z25          \
	ADDQ      $64, SI                \
tile: \
	TILE            \
	ADDQ  $size, SI \
	ADDQ  $32, AX   \
	ADDQ  $4, DX    \
	ADDQ  $4, BX    \
	DECQ  R14       \
	JNZ   tile      \
	DECQ  CX        \
	JNZ   block     \
	STORE           \
	ADDQ  $64, DI   \
	DECQ  R9        \
	JMP   strip     \
done: \
	VZEROUPPER \
	RET
