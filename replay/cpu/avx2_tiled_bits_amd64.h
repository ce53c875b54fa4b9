// Macros shared by the products of tiles with quants of 2, 3, 5 and other numbers of bits. Y0
// to Y3 hold four decoded column groups of 8 rows of weights.

// FILL defines 32 bytes of data that repeat an 8-byte constant.
#define FILL(name, value) \
	DATA name+0(SB)/8, $value  \
	DATA name+8(SB)/8, $value  \
	DATA name+16(SB)/8, $value \
	DATA name+24(SB)/8, $value \
	GLOBL name(SB), RODATA|NOPTR, $32

// QUAD multiplies Y0 to Y3 by four column groups of a row of x, beginning at offset at, and the
// sums by integer scales. Sums of two products of four groups, at most 4 * 2 * 31 * 127, fit in
// 16 bits.
#define QUAD(at, SCALES, Q, INT) \
	VPBROADCASTD at Q, Y4       \
	VPBROADCASTD (at+4)Q, Y5    \
	VPBROADCASTD (at+8)Q, Y6    \
	VPBROADCASTD (at+12)Q, Y7   \
	VPMADDUBSW   Y4, Y0, Y4     \
	VPMADDUBSW   Y5, Y1, Y5     \
	VPMADDUBSW   Y6, Y2, Y6     \
	VPMADDUBSW   Y7, Y3, Y7     \
	VPADDW       Y5, Y4, Y4     \
	VPADDW       Y7, Y6, Y6     \
	VPADDW       Y6, Y4, Y4     \
	VPMADDWD     SCALES, Y4, Y4 \
	VPADDD       Y4, INT, INT

// LEFT multiplies rows 0 to 7 of the weights, RIGHT rows 8 to 15.
#define LEFT1(at, SCALES) \
	QUAD(at, SCALES, Q0, Y8)
#define LEFT4(at, SCALES) \
	QUAD(at, SCALES, Q0, Y8)  \
	QUAD(at, SCALES, Q1, Y10) \
	QUAD(at, SCALES, Q2, Y12) \
	QUAD(at, SCALES, Q3, Y14)
#define RIGHT1(at, SCALES) \
	QUAD(at, SCALES, Q0, Y9)
#define RIGHT4(at, SCALES) \
	QUAD(at, SCALES, Q0, Y9)  \
	QUAD(at, SCALES, Q1, Y11) \
	QUAD(at, SCALES, Q2, Y13) \
	QUAD(at, SCALES, Q3, Y15)

// BIT adds the single bit of a column group to the quants in W. OP by n moves the bit from its
// place in Y4 to the place selected by the mask Y7.
#define BIT(OP, n, W) \
	OP    $n, Y4, Y5 \
	VPAND Y7, Y5, Y5 \
	VPOR  Y5, W, W
#define BITINPLACE(W) \
	VPAND Y7, Y4, Y5 \
	VPOR  Y5, W, W

// FIVESLOW loads column groups 0 to 3 of 8 rows, FIVESHIGH groups 4 to 7. at and bits are the
// addresses of the nibbles and the single bits.
#define FIVESLOW(at, bits) \
	VMOVDQU ·tiledLow(SB), Y6    \
	VMOVDQU ·tiledFifth(SB), Y7 \
	VMOVDQU bits(SI), Y4         \
	VPAND   at(SI), Y6, Y0       \
	VPAND   (at+64)(SI), Y6, Y1  \
	VPAND   (at+128)(SI), Y6, Y2 \
	VPAND   (at+192)(SI), Y6, Y3 \
	BIT(VPSLLW, 4, Y0)           \
	BIT(VPSLLW, 3, Y1)           \
	BIT(VPSLLW, 2, Y2)           \
	BIT(VPSLLW, 1, Y3)

#define HIGHNIBBLES(at, W) \
	VMOVDQU at(SI), W \
	VPSRLW  $4, W, W  \
	VPAND   Y6, W, W

#define FIVESHIGH(at, bits) \
	VMOVDQU ·tiledLow(SB), Y6    \
	VMOVDQU ·tiledFifth(SB), Y7 \
	VMOVDQU bits(SI), Y4         \
	HIGHNIBBLES(at, Y0)          \
	HIGHNIBBLES((at+64), Y1)     \
	HIGHNIBBLES((at+128), Y2)    \
	HIGHNIBBLES((at+192), Y3)    \
	BITINPLACE(Y0)               \
	BIT(VPSRLW, 1, Y1)           \
	BIT(VPSRLW, 2, Y2)           \
	BIT(VPSRLW, 3, Y3)

// FIVES multiplies a whole tile. SCALES0 and SCALES1 are the integer scales of rows 0 to 7 and
// 8 to 15.
#define FIVES(SCALES0, SCALES1, LEFT, RIGHT) \
	FIVESLOW(0, 256)   \
	LEFT(0, SCALES0)   \
	FIVESHIGH(0, 256)  \
	LEFT(16, SCALES0)  \
	FIVESLOW(32, 288)  \
	RIGHT(0, SCALES1)  \
	FIVESHIGH(32, 288) \
	RIGHT(16, SCALES1)

#define AHEADFIVES(AHEAD) \
	AHEAD(0)   \
	AHEAD(64)  \
	AHEAD(128) \
	AHEAD(192) \
	AHEAD(256) \
	AHEAD(320)

// TWOSLOW loads column groups 0 to 3 of 8 rows, whose 2-bit pairs are at the given address;
// TWOSHIGH loads groups 4 to 7.
#define TWOSLOW(at) \
	VMOVDQU ·tiledPair(SB), Y6 \
	VMOVDQU at(SI), Y1          \
	VMOVDQU (at+64)(SI), Y3     \
	VPAND   Y6, Y1, Y0          \
	VPAND   Y6, Y3, Y2          \
	VPSRLW  $4, Y1, Y1          \
	VPSRLW  $4, Y3, Y3          \
	VPAND   Y6, Y1, Y1          \
	VPAND   Y6, Y3, Y3

#define TWOSHIGH(at) \
	VMOVDQU ·tiledPair(SB), Y6 \
	VMOVDQU at(SI), Y1          \
	VMOVDQU (at+64)(SI), Y3     \
	VPSRLW  $2, Y1, Y0          \
	VPSRLW  $2, Y3, Y2          \
	VPSRLW  $6, Y1, Y1          \
	VPSRLW  $6, Y3, Y3          \
	VPAND   Y6, Y0, Y0          \
	VPAND   Y6, Y1, Y1          \
	VPAND   Y6, Y2, Y2          \
	VPAND   Y6, Y3, Y3

// THREESLOW and THREESHIGH do the same and add the single bits.
#define THREESLOW(at, bits) \
	TWOSLOW(at)                  \
	VMOVDQU ·tiledThird(SB), Y7 \
	VMOVDQU bits(SI), Y4         \
	BIT(VPSLLW, 2, Y0)           \
	BIT(VPSLLW, 1, Y1)           \
	BITINPLACE(Y2)               \
	BIT(VPSRLW, 1, Y3)

#define THREESHIGH(at, bits) \
	TWOSHIGH(at)                 \
	VMOVDQU ·tiledThird(SB), Y7 \
	VMOVDQU bits(SI), Y4         \
	BIT(VPSRLW, 2, Y0)           \
	BIT(VPSRLW, 3, Y1)           \
	BIT(VPSRLW, 4, Y2)           \
	BIT(VPSRLW, 5, Y3)
