// AVX2 macros shared by the products of a strip of 16 rows in layout Tiled16 with one or four rows
// of quantised activations x. Each lane holds a row of weights, so nothing is added across lanes.
// A column group is 4 adjacent columns of x and of the rows; a tile has 8 column groups. The
// arithmetic is the same as in tiledFunc. Macros whose names end in 1 handle one row of x,
// macros whose names end in 4 handle four rows. The registers are
//
//	SI   the tile                  Y0-Y3   weights
//	AX   quants of x               Y4-Y7   temporary, or used by the type
//	R10  scales of x               Y8-Y15  integer sums: for row 0 of x, those of
//	R11  sums of x                         rows 0 to 7 and 8 to 15 of the
//	BX   stride of x in bytes              weights, then the same for row 1 of
//	DX   three times BX                    x, and so on
//	CX   tiles or blocks left      n(SP)   float sums in the order of Y8 to Y15,
//	R12  tiles left in the block           then the sums of the minimums' part,
//	R13  the block                         then, from 512 on (256 in types
//	R8   integer scales of the             without minimums), integer scales
//	     tile

// WORDS1 sets every word of Y to 1.
#define WORDS1(Y) \
	VPCMPEQW Y, Y, Y \
	VPSRLW   $15, Y, Y

// ZERO clears the integer sums, CLEAR the float sums.
#define ZERO1 \
	VPXOR Y8, Y8, Y8 \
	VPXOR Y9, Y9, Y9
#define ZERO4 \
	ZERO1               \
	VPXOR Y10, Y10, Y10 \
	VPXOR Y11, Y11, Y11 \
	VPXOR Y12, Y12, Y12 \
	VPXOR Y13, Y13, Y13 \
	VPXOR Y14, Y14, Y14 \
	VPXOR Y15, Y15, Y15

#define CLEAR1 \
	VXORPS  Y0, Y0, Y0 \
	VMOVUPS Y0, (SP)   \
	VMOVUPS Y0, 32(SP)
#define CLEAR4 \
	CLEAR1              \
	VMOVUPS Y0, 64(SP)  \
	VMOVUPS Y0, 96(SP)  \
	VMOVUPS Y0, 128(SP) \
	VMOVUPS Y0, 160(SP) \
	VMOVUPS Y0, 192(SP) \
	VMOVUPS Y0, 224(SP)

// START and END are the beginning and the end of all functions.
#define START1 \
	MOVQ w+8(FP), SI       \
	MOVQ blocks+16(FP), CX \
	MOVQ q+24(FP), AX      \
	MOVQ d+32(FP), R10     \
	MOVQ s+40(FP), R11     \
	CLEAR1
#define START4 \
	MOVQ w+16(FP), SI      \
	MOVQ blocks+24(FP), CX \
	MOVQ q+32(FP), AX      \
	MOVQ d+40(FP), R10     \
	MOVQ s+48(FP), R11     \
	MOVQ stride+56(FP), BX \
	LEAQ (BX)(BX*2), DX    \
	CLEAR4

#define STORE(at, ROW) \
	VMOVUPS at(SP), Y0      \
	VMOVUPS (at+32)(SP), Y1 \
	VMOVUPS Y0, (0)ROW      \
	VMOVUPS Y1, (32)ROW

#define END1 \
	MOVQ       y+0(FP), DI \
	STORE(0, (DI))         \
	VZEROUPPER             \
	RET
#define END4 \
	MOVQ       yStride+8(FP), CX \
	MOVQ       y+0(FP), DI       \
	LEAQ       (CX)(CX*2), R12   \
	STORE(0, (DI))               \
	STORE(64, (DI)(CX*4))        \
	STORE(128, (DI)(CX*8))       \
	STORE(192, (DI)(R12*4))      \
	VZEROUPPER                   \
	RET

// NEXT advances to the next tile; size is the size of a tile in bytes.
#define NEXT(size) \
	ADDQ $size, SI \
	ADDQ $32, AX   \
	ADDQ $4, R10   \
	ADDQ $4, R11

// Addresses of the quants, scales and sums of the four rows of x.
#define Q0 (AX)
#define Q1 (AX)(BX*1)
#define Q2 (AX)(BX*2)
#define Q3 (AX)(DX*1)
#define D0 (R10)
#define D1 (R10)(BX*1)
#define D2 (R10)(BX*2)
#define D3 (R10)(DX*1)
#define SUM0 (R11)
#define SUM1 (R11)(BX*1)
#define SUM2 (R11)(BX*2)
#define SUM3 (R11)(DX*1)

// ADD adds the integers INT, times the scale of x in Y4 and the scales of the weights in WD, to
// the sums at offset at.
#define ADD(WD, INT, at) \
	VMULPS    WD, Y4, Y5       \
	VCVTDQ2PS INT, INT         \
	VFMADD213PS at(SP), Y5, INT \
	VMOVUPS   INT, at(SP)

#define ADDROW(D, INT0, INT1, at) \
	VBROADCASTSS D, Y4 \
	ADD(Y0, INT0, at)  \
	ADD(Y1, INT1, (at+32))

// ADDROWS calls ADD for all rows of x, with the weights' scales in Y0 and Y1.
#define ADDROWS1 \
	ADDROW(D0, Y8, Y9, 0)
#define ADDROWS4 \
	ADDROW(D0, Y8, Y9, 0)     \
	ADDROW(D1, Y10, Y11, 64)  \
	ADDROW(D2, Y12, Y13, 128) \
	ADDROW(D3, Y14, Y15, 192)

// ADDK adds the integers INT, times the scale of x in Y4, times the scales of the weights in WD, which
// include the integer scales, to the sums at offset at.
#define ADDK(WD, INT, at) \
	VCVTDQ2PS   INT, INT        \
	VMULPS      Y4, INT, INT    \
	VFMADD213PS at(SP), WD, INT \
	VMOVUPS     INT, at(SP)

#define ADDKROW(D, INT0, INT1, at) \
	VBROADCASTSS D, Y4 \
	ADDK(Y0, INT0, at) \
	ADDK(Y1, INT1, (at+32))

// ADDKROWS calls ADDK for all rows of x, with the weights' scales in Y0 and Y1.
#define ADDKROWS1 \
	ADDKROW(D0, Y8, Y9, 0)
#define ADDKROWS4 \
	ADDKROW(D0, Y8, Y9, 0)     \
	ADDKROW(D1, Y10, Y11, 64)  \
	ADDKROW(D2, Y12, Y13, 128) \
	ADDKROW(D3, Y14, Y15, 192)

// SCALED sets Y to the integers of 8 bytes at S, which OP converts, times the 8 float16 at D.
#define SCALED(OP, S, D, Y, T) \
	OP        S, Y    \
	VCVTDQ2PS Y, Y    \
	VCVTPH2PS D, T    \
	VMULPS    T, Y, Y

// MIN adds the minimums M, or subtracts them if OP does, times the sum of x in Y8, to the sums at offset at.
#define MIN(OP, M, at) \
	VMOVUPS at(SP), Y4 \
	OP      Y8, M, Y4  \
	VMOVUPS Y4, at(SP)

// MINROW adds the minimums in Y2 and Y3 times the sum of a row of x, which includes the scale of x.
#define MINROW(OP, SUM, at) \
	VBROADCASTSS SUM, Y8 \
	MIN(OP, Y2, at)      \
	MIN(OP, Y3, (at+32))

// MINROWS calls MINROW for all rows of x.
#define MINROWS1(OP) \
	MINROW(OP, SUM0, 0)
#define MINROWS4(OP) \
	MINROW(OP, SUM0, 0)   \
	MINROW(OP, SUM1, 64)  \
	MINROW(OP, SUM2, 128) \
	MINROW(OP, SUM3, 192)

// BIASROW adds the biases in Y2 and Y3 of MLX's types times the sum, two words, and the scale of a row of x.
#define BIASROW(D, SUM, at) \
	VPBROADCASTD SUM, Y8               \
	VPMADDWD     ·tiledOne(SB), Y8, Y8 \
	VCVTDQ2PS    Y8, Y8                \
	VBROADCASTSS D, Y9                 \
	VMULPS       Y9, Y8, Y8            \
	MIN(VFMADD231PS, Y2, at)           \
	MIN(VFMADD231PS, Y3, (at+32))

// BIASROWS calls BIASROW for all rows of x.
#define BIASROWS1 \
	BIASROW(D0, SUM0, 0)
#define BIASROWS4 \
	BIASROWS1                \
	BIASROW(D1, SUM1, 64)  \
	BIASROW(D2, SUM2, 128) \
	BIASROW(D3, SUM3, 192)

// OFFSETS initialises the integers with the sums of x times the words in Y6 and Y7, to
// compensate for the offset of the quants.
#define OFFSET(SUM, INT0, INT1) \
	VPBROADCASTD SUM, Y4      \
	VPMADDWD     Y4, Y6, INT0 \
	VPMADDWD     Y4, Y7, INT1
#define OFFSETS1 \
	OFFSET(SUM0, Y8, Y9)
#define OFFSETS4 \
	OFFSET(SUM0, Y8, Y9)   \
	OFFSET(SUM1, Y10, Y11) \
	OFFSET(SUM2, Y12, Y13) \
	OFFSET(SUM3, Y14, Y15)

// AHEAD1 prefetches 64 bytes of weights that are 2 KiB after the current ones. Only products with
// one row of x use it, because they are limited by memory. A prefetch beyond the end of the weights
// has no effect.
#define AHEAD1(at) \
	PREFETCHT0 (at+2048)(SI)
#define AHEAD4(at)

// HEAD begins a block of 8 tiles. The integer scales of all tiles are at the beginning of the
// block, from byte half up to byte size, after the float16 numbers.
#define HEAD(AHEAD, half, size) \
	AHEAD(0)          \
	AHEAD(64)         \
	AHEAD(128)        \
	AHEAD(192)        \
	AHEAD(256)        \
	MOVQ SI, R13      \
	LEAQ half(SI), R8 \
	ADDQ $size, SI    \
	MOVL $8, R12

// MLXHEAD begins a block of MLX's affine types: 16 scales and 16 biases, followed by TILES
// tiles. It stores scales and biases as float32 from 256(SP) on.
#define MLXHEAD(TILES, BF16) \
	MOVQ      TILES, R12    \
	CMPQ      BF16, $0      \
	JNE       bf16          \
	VCVTPH2PS (SI), Y0      \
	VCVTPH2PS 16(SI), Y1    \
	VCVTPH2PS 32(SI), Y2    \
	VCVTPH2PS 48(SI), Y3    \
	JMP       head          \
bf16: \
	VPMOVZXWD (SI), Y0      \
	VPMOVZXWD 16(SI), Y1    \
	VPMOVZXWD 32(SI), Y2    \
	VPMOVZXWD 48(SI), Y3    \
	VPSLLD    $16, Y0, Y0   \
	VPSLLD    $16, Y1, Y1   \
	VPSLLD    $16, Y2, Y2   \
	VPSLLD    $16, Y3, Y3   \
head: \
	VMOVUPS   Y0, 256(SP)   \
	VMOVUPS   Y1, 288(SP)   \
	VMOVUPS   Y2, 320(SP)   \
	VMOVUPS   Y3, 352(SP)   \
	ADDQ      $64, SI

// MLX is the body of a function after START, for one or four rows of x.
#define MLX(size, TILES, BF16, ZERO, TILE, ADDROWS, BIASROWS, END) \
block: \
	MLXHEAD(TILES, BF16)  \
tile: \
	ZERO                          \
	TILE                          \
	VMOVUPS 256(SP), Y0           \
	VMOVUPS 288(SP), Y1           \
	ADDROWS                       \
	VMOVUPS 320(SP), Y2           \
	VMOVUPS 352(SP), Y3           \
	BIASROWS                      \
	NEXT(size)                    \
	DECQ    R12                   \
	JNZ     tile                  \
	DECQ    CX                    \
	JNZ     block                 \
	END
