#include "textflag.h"
#include "avx2_tiled_amd64.h"

// Products of tiles with quants of 5 bits, nibbles and single bits, of 2, which
// are pairs, and of 3, pairs and single bits. Four groups of 8 rows of weights
// are decoded to Y0 to Y3 at a time.

// FILL fills 32 bytes with a constant of 8.
#define FILL(name, value) \
	DATA name+0(SB)/8, $value  \
	DATA name+8(SB)/8, $value  \
	DATA name+16(SB)/8, $value \
	DATA name+24(SB)/8, $value \
	GLOBL name(SB), RODATA|NOPTR, $32

// The bits of a quant that come from a pair, and from a single bit; 1 and -16
// in words.
FILL(tiledPair<>, 0x0303030303030303)
FILL(tiledThird<>, 0x0404040404040404)
FILL(tiledFifth<>, 0x1010101010101010)
FILL(tiledOne<>, 0x0001000100010001)
FILL(tiledLess16<>, 0xfff0fff0fff0fff0)

// QUAD multiplies Y0 to Y3 with four groups of a row of x, which are at, and
// their sums with integer scales. Sums of two products of four groups, 4 * 2 *
// 31 * 127 at most, fit in 16 bits.
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

// LEFT is for rows 0 to 7 of the weights and RIGHT for rows 8 to 15.
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

// BIT adds to the quants in W the single bit of their group: OP and n move it
// from its place in Y4 to that in Y7, a mask.
#define BIT(OP, n, W) \
	OP    $n, Y4, Y5 \
	VPAND Y7, Y5, Y5 \
	VPOR  Y5, W, W
#define BITINPLACE(W) \
	VPAND Y7, Y4, Y5 \
	VPOR  Y5, W, W

// FIVESLOW loads groups 0 to 3 of 8 rows, whose nibbles and single bits are at,
// FIVESHIGH groups 4 to 7.
#define FIVESLOW(at, bits) \
	VMOVDQU ·tiledLow(SB), Y6    \
	VMOVDQU tiledFifth<>(SB), Y7 \
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
	VMOVDQU tiledFifth<>(SB), Y7 \
	VMOVDQU bits(SI), Y4         \
	HIGHNIBBLES(at, Y0)          \
	HIGHNIBBLES((at+64), Y1)     \
	HIGHNIBBLES((at+128), Y2)    \
	HIGHNIBBLES((at+192), Y3)    \
	BITINPLACE(Y0)               \
	BIT(VPSRLW, 1, Y1)           \
	BIT(VPSRLW, 2, Y2)           \
	BIT(VPSRLW, 3, Y3)

// FIVES is a whole tile, whose integer scales, for rows 0 to 7 and 8 to 15, are
// SCALES0 and SCALES1.
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

// func tiledQ5_0AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *int16)
TEXT ·tiledQ5_0AVX2(SB), NOSPLIT, $256-48
	START1

block:
	AHEADFIVES(AHEAD1)
	VMOVDQU tiledLess16<>(SB), Y6
	VMOVDQU Y6, Y7
	OFFSETS1
	FIVES(tiledOne<>(SB), tiledOne<>(SB), LEFT1, RIGHT1)
	VCVTPH2PS 320(SI), Y0
	VCVTPH2PS 336(SI), Y1
	ADDROWS1
	NEXT(352)
	DECQ CX
	JNZ  block
	END1

// func tiledFourQ5_0AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride int)
TEXT ·tiledFourQ5_0AVX2(SB), NOSPLIT, $256-64
	START4

block:
	AHEADFIVES(AHEAD4)
	VMOVDQU tiledLess16<>(SB), Y6
	VMOVDQU Y6, Y7
	OFFSETS4
	FIVES(tiledOne<>(SB), tiledOne<>(SB), LEFT4, RIGHT4)
	VCVTPH2PS 320(SI), Y0
	VCVTPH2PS 336(SI), Y1
	ADDROWS4
	NEXT(352)
	DECQ CX
	JNZ  block
	END4

// func tiledQ5_1AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *int16)
TEXT ·tiledQ5_1AVX2(SB), NOSPLIT, $512-48
	START1
	CLEAR1(256)

block:
	AHEADFIVES(AHEAD1)
	ZERO1
	FIVES(tiledOne<>(SB), tiledOne<>(SB), LEFT1, RIGHT1)
	VCVTPH2PS 320(SI), Y0
	VCVTPH2PS 336(SI), Y1
	ADDROWS1
	VMOVDQU   tiledOne<>(SB), Y2
	VMOVDQU   Y2, Y3
	VCVTPH2PS 352(SI), Y10
	VCVTPH2PS 368(SI), Y11
	MINROWS1
	NEXT(384)
	DECQ CX
	JNZ  block
	ENDMINS1(VADDPS)
	END1

// func tiledFourQ5_1AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride int)
TEXT ·tiledFourQ5_1AVX2(SB), NOSPLIT, $512-64
	START4
	CLEAR4(256)

block:
	AHEADFIVES(AHEAD4)
	ZERO4
	FIVES(tiledOne<>(SB), tiledOne<>(SB), LEFT4, RIGHT4)
	VCVTPH2PS 320(SI), Y0
	VCVTPH2PS 336(SI), Y1
	ADDROWS4
	VMOVDQU   tiledOne<>(SB), Y2
	VMOVDQU   Y2, Y3
	VCVTPH2PS 352(SI), Y10
	VCVTPH2PS 368(SI), Y11
	MINROWS4
	NEXT(384)
	DECQ CX
	JNZ  block
	ENDMINS4(VADDPS)
	END4

// SPREAD makes 8 bytes of R8 the words of 8 lanes.
#define SPREAD(at, Y) \
	VPBROADCASTQ at(R8), Y \
	VPSHUFB      ·tiledSpread(SB), Y, Y

// func tiledQ5_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *int16)
TEXT ·tiledQ5_KAVX2(SB), NOSPLIT, $576-48
	START1
	CLEAR1(256)

block:
	HEAD(AHEAD1, 64, 320)

tile:
	AHEADFIVES(AHEAD1)
	SPREAD(0, Y0)
	SPREAD(8, Y1)
	VMOVDQU Y0, 512(SP)
	VMOVDQU Y1, 544(SP)
	ZERO1
	FIVES(512(SP), 544(SP), LEFT1, RIGHT1)
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS1
	SPREAD(16, Y2)
	SPREAD(24, Y3)
	VCVTPH2PS 32(R13), Y10
	VCVTPH2PS 48(R13), Y11
	MINROWS1
	ADDQ      $32, R8
	NEXT(320)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	ENDMINS1(VSUBPS)
	END1

// func tiledFourQ5_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride int)
TEXT ·tiledFourQ5_KAVX2(SB), NOSPLIT, $576-64
	START4
	CLEAR4(256)

block:
	HEAD(AHEAD4, 64, 320)

tile:
	AHEADFIVES(AHEAD4)
	SPREAD(0, Y0)
	SPREAD(8, Y1)
	VMOVDQU Y0, 512(SP)
	VMOVDQU Y1, 544(SP)
	ZERO4
	FIVES(512(SP), 544(SP), LEFT4, RIGHT4)
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS4
	SPREAD(16, Y2)
	SPREAD(24, Y3)
	VCVTPH2PS 32(R13), Y10
	VCVTPH2PS 48(R13), Y11
	MINROWS4
	ADDQ      $32, R8
	NEXT(320)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	ENDMINS4(VSUBPS)
	END4

// TWOSLOW loads groups 0 to 3 of 8 rows, whose pairs are at, TWOSHIGH groups 4
// to 7.
#define TWOSLOW(at) \
	VMOVDQU tiledPair<>(SB), Y6 \
	VMOVDQU at(SI), Y1          \
	VMOVDQU (at+64)(SI), Y3     \
	VPAND   Y6, Y1, Y0          \
	VPAND   Y6, Y3, Y2          \
	VPSRLW  $4, Y1, Y1          \
	VPSRLW  $4, Y3, Y3          \
	VPAND   Y6, Y1, Y1          \
	VPAND   Y6, Y3, Y3

#define TWOSHIGH(at) \
	VMOVDQU tiledPair<>(SB), Y6 \
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

// SCALES2 stores 8 rows' scales of the columns' halves, which are low nibbles,
// and their minimums, the high nibbles, as words of a lane.
#define SCALES2(h) \
	VPMOVZXBD (8*h)(R8), Y0          \
	VPMOVZXBD (8*h+16)(R8), Y1       \
	VPSRLD    $4, Y0, Y2             \
	VPSRLD    $4, Y1, Y3             \
	VPSLLD    $16, Y3, Y3            \
	VPOR      Y3, Y2, Y2             \
	VPAND     ·tiledLow(SB), Y0, Y0  \
	VPAND     ·tiledLow(SB), Y1, Y1  \
	VPSHUFB   ·tiledBoth(SB), Y0, Y0 \
	VPSHUFB   ·tiledBoth(SB), Y1, Y1 \
	VMOVDQU   Y0, (32*h+512)(SP)     \
	VMOVDQU   Y1, (32*h+576)(SP)     \
	VMOVDQU   Y2, (32*h+640)(SP)

// func tiledQ2_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *int16)
TEXT ·tiledQ2_KAVX2(SB), NOSPLIT, $704-48
	START1
	CLEAR1(256)

block:
	HEAD(AHEAD1, 64, 320)

tile:
	AHEAD1(0)
	AHEAD1(64)
	SCALES2(0)
	SCALES2(1)
	ZERO1
	TWOSLOW(0)
	LEFT1(0, 512(SP))
	TWOSHIGH(0)
	LEFT1(16, 576(SP))
	TWOSLOW(32)
	RIGHT1(0, 544(SP))
	TWOSHIGH(32)
	RIGHT1(16, 608(SP))
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS1
	VMOVDQU   640(SP), Y2
	VMOVDQU   672(SP), Y3
	VCVTPH2PS 32(R13), Y10
	VCVTPH2PS 48(R13), Y11
	MINROWS1
	ADDQ      $32, R8
	NEXT(128)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	ENDMINS1(VSUBPS)
	END1

// func tiledFourQ2_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride int)
TEXT ·tiledFourQ2_KAVX2(SB), NOSPLIT, $704-64
	START4
	CLEAR4(256)

block:
	HEAD(AHEAD4, 64, 320)

tile:
	AHEAD4(0)
	AHEAD4(64)
	SCALES2(0)
	SCALES2(1)
	ZERO4
	TWOSLOW(0)
	LEFT4(0, 512(SP))
	TWOSHIGH(0)
	LEFT4(16, 576(SP))
	TWOSLOW(32)
	RIGHT4(0, 544(SP))
	TWOSHIGH(32)
	RIGHT4(16, 608(SP))
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS4
	VMOVDQU   640(SP), Y2
	VMOVDQU   672(SP), Y3
	VCVTPH2PS 32(R13), Y10
	VCVTPH2PS 48(R13), Y11
	MINROWS4
	ADDQ      $32, R8
	NEXT(128)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	ENDMINS4(VSUBPS)
	END4

// func tiledTQ2_0AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *int16)
TEXT ·tiledTQ2_0AVX2(SB), NOSPLIT, $256-48
	START1

block:
	HEAD(AHEAD1, 32, 32)

tile:
	AHEAD1(0)
	AHEAD1(64)
	VPCMPEQW  Y6, Y6, Y6
	VMOVDQU   Y6, Y7
	OFFSETS1
	TWOSLOW(0)
	LEFT1(0, tiledOne<>(SB))
	TWOSHIGH(0)
	LEFT1(16, tiledOne<>(SB))
	TWOSLOW(32)
	RIGHT1(0, tiledOne<>(SB))
	TWOSHIGH(32)
	RIGHT1(16, tiledOne<>(SB))
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS1
	NEXT(128)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END1

// func tiledFourTQ2_0AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride int)
TEXT ·tiledFourTQ2_0AVX2(SB), NOSPLIT, $256-64
	START4

block:
	HEAD(AHEAD4, 32, 32)

tile:
	AHEAD4(0)
	AHEAD4(64)
	VPCMPEQW  Y6, Y6, Y6
	VMOVDQU   Y6, Y7
	OFFSETS4
	TWOSLOW(0)
	LEFT4(0, tiledOne<>(SB))
	TWOSHIGH(0)
	LEFT4(16, tiledOne<>(SB))
	TWOSLOW(32)
	RIGHT4(0, tiledOne<>(SB))
	TWOSHIGH(32)
	RIGHT4(16, tiledOne<>(SB))
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS4
	NEXT(128)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END4

// THREESLOW and THREESHIGH add the single bits.
#define THREESLOW(at, bits) \
	TWOSLOW(at)                  \
	VMOVDQU tiledThird<>(SB), Y7 \
	VMOVDQU bits(SI), Y4         \
	BIT(VPSLLW, 2, Y0)           \
	BIT(VPSLLW, 1, Y1)           \
	BITINPLACE(Y2)               \
	BIT(VPSRLW, 1, Y3)

#define THREESHIGH(at, bits) \
	TWOSHIGH(at)                 \
	VMOVDQU tiledThird<>(SB), Y7 \
	VMOVDQU bits(SI), Y4         \
	BIT(VPSRLW, 2, Y0)           \
	BIT(VPSRLW, 3, Y1)           \
	BIT(VPSRLW, 4, Y2)           \
	BIT(VPSRLW, 5, Y3)

// SCALES3 stores 8 rows' scales of the columns' halves, and leaves -4 times
// both, as words of a lane, in Y.
#define SCALES3(h, Y) \
	VPMOVSXBD (8*h)(R8), Y0          \
	VPMOVSXBD (8*h+16)(R8), Y1       \
	VPSHUFB   ·tiledBoth(SB), Y0, Y0 \
	VPSHUFB   ·tiledBoth(SB), Y1, Y1 \
	VMOVDQU   Y0, (32*h+256)(SP)     \
	VMOVDQU   Y1, (32*h+320)(SP)     \
	VPBLENDW  $0xaa, Y1, Y0, Y       \
	VPSLLW    $2, Y, Y               \
	VPSUBW    Y, Y2, Y

// func tiledQ3_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *int16)
TEXT ·tiledQ3_KAVX2(SB), NOSPLIT, $384-48
	START1

block:
	HEAD(AHEAD1, 32, 288)

tile:
	AHEAD1(0)
	AHEAD1(64)
	AHEAD1(128)
	VPXOR Y2, Y2, Y2
	SCALES3(0, Y6)
	SCALES3(1, Y7)
	OFFSETS1
	THREESLOW(0, 128)
	LEFT1(0, 256(SP))
	THREESHIGH(0, 128)
	LEFT1(16, 320(SP))
	THREESLOW(32, 160)
	RIGHT1(0, 288(SP))
	THREESHIGH(32, 160)
	RIGHT1(16, 352(SP))
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS1
	ADDQ      $32, R8
	NEXT(192)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END1

// func tiledFourQ3_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride int)
TEXT ·tiledFourQ3_KAVX2(SB), NOSPLIT, $384-64
	START4

block:
	HEAD(AHEAD4, 32, 288)

tile:
	AHEAD4(0)
	AHEAD4(64)
	AHEAD4(128)
	VPXOR Y2, Y2, Y2
	SCALES3(0, Y6)
	SCALES3(1, Y7)
	OFFSETS4
	THREESLOW(0, 128)
	LEFT4(0, 256(SP))
	THREESHIGH(0, 128)
	LEFT4(16, 320(SP))
	THREESLOW(32, 160)
	RIGHT4(0, 288(SP))
	THREESHIGH(32, 160)
	RIGHT4(16, 352(SP))
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS4
	ADDQ      $32, R8
	NEXT(192)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END4

// The products of MLX's affine types: a block is 16 scales, 16 biases and as many
// tiles as the arguments say. Quants are unsigned, and the biases' integer is 1. The
// numbers of a block are, as float32, from 512(SP) on.

// 128 in words, and the sign bits of bytes.
FILL(mlxLess<>, 0x0080008000800080)
FILL(mlxSign<>, 0x8080808080808080)

#define ONES tiledOne<>(SB)

#define MLX2TILE(LEFT, RIGHT) \
	TWOSLOW(0)      \
	LEFT(0, ONES)   \
	TWOSHIGH(0)     \
	LEFT(16, ONES)  \
	TWOSLOW(32)     \
	RIGHT(0, ONES)  \
	TWOSHIGH(32)    \
	RIGHT(16, ONES)

#define MLX3TILE(LEFT, RIGHT) \
	THREESLOW(0, 128)   \
	LEFT(0, ONES)       \
	THREESHIGH(0, 128)  \
	LEFT(16, ONES)      \
	THREESLOW(32, 160)  \
	RIGHT(0, ONES)      \
	THREESHIGH(32, 160) \
	RIGHT(16, ONES)

#define FOURSLOW(at) \
	VMOVDQU ·tiledLow(SB), Y6    \
	VPAND   at(SI), Y6, Y0       \
	VPAND   (at+64)(SI), Y6, Y1  \
	VPAND   (at+128)(SI), Y6, Y2 \
	VPAND   (at+192)(SI), Y6, Y3

#define FOURSHIGH(at) \
	VMOVDQU ·tiledLow(SB), Y6 \
	HIGHNIBBLES(at, Y0)       \
	HIGHNIBBLES((at+64), Y1)  \
	HIGHNIBBLES((at+128), Y2) \
	HIGHNIBBLES((at+192), Y3)

#define MLX4TILE(LEFT, RIGHT) \
	FOURSLOW(0)     \
	LEFT(0, ONES)   \
	FOURSHIGH(0)    \
	LEFT(16, ONES)  \
	FOURSLOW(32)    \
	RIGHT(0, ONES)  \
	FOURSHIGH(32)   \
	RIGHT(16, ONES)

#define MLX5TILE(LEFT, RIGHT) \
	FIVES(ONES, ONES, LEFT, RIGHT)

// SIXESLOW and SIXESHIGH add two bits.
#define SIXESLOW(at, pairs) \
	FOURSLOW(at)                   \
	VMOVDQU ·tiledHigh(SB), Y7     \
	VMOVDQU pairs(SI), Y4          \
	BIT(VPSLLW, 4, Y0)             \
	BITINPLACE(Y1)                 \
	VMOVDQU (pairs+64)(SI), Y4     \
	BIT(VPSLLW, 4, Y2)             \
	BITINPLACE(Y3)

#define SIXESHIGH(at, pairs) \
	FOURSHIGH(at)                  \
	VMOVDQU ·tiledHigh(SB), Y7     \
	VMOVDQU pairs(SI), Y4          \
	BIT(VPSLLW, 2, Y0)             \
	BIT(VPSRLW, 2, Y1)             \
	VMOVDQU (pairs+64)(SI), Y4     \
	BIT(VPSLLW, 2, Y2)             \
	BIT(VPSRLW, 2, Y3)

// QUADSIX is QUAD for quants of 6 bits, of which sums of two groups fit in 16 bits.
#define QUADSIX(at, Q, INT) \
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
	VPMADDWD     ONES, Y4, Y4   \
	VPMADDWD     ONES, Y6, Y6   \
	VPADDD       Y4, INT, INT   \
	VPADDD       Y6, INT, INT

// EIGHT does one group of bytes less 128, whose sign moves to x, so that sums of
// two products fit in 16 bits.
#define EIGHT(at, Q, W, INT) \
	VPBROADCASTD at Q, Y4     \
	VPSIGNB      W, Y4, Y4    \
	VPABSB       W, Y5        \
	VPMADDUBSW   Y4, Y5, Y4   \
	VPMADDWD     ONES, Y4, Y4 \
	VPADDD       Y4, INT, INT
#define QUADEIGHT(at, Q, INT) \
	EIGHT(at, Q, Y0, INT)      \
	EIGHT((at+4), Q, Y1, INT)  \
	EIGHT((at+8), Q, Y2, INT)  \
	EIGHT((at+12), Q, Y3, INT)

#define MLX6LEFT1(at) \
	QUADSIX(at, Q0, Y8)
#define MLX6LEFT4(at) \
	QUADSIX(at, Q0, Y8)  \
	QUADSIX(at, Q1, Y10) \
	QUADSIX(at, Q2, Y12) \
	QUADSIX(at, Q3, Y14)
#define MLX6RIGHT1(at) \
	QUADSIX(at, Q0, Y9)
#define MLX6RIGHT4(at) \
	QUADSIX(at, Q0, Y9)  \
	QUADSIX(at, Q1, Y11) \
	QUADSIX(at, Q2, Y13) \
	QUADSIX(at, Q3, Y15)

#define MLX6TILE(LEFT, RIGHT) \
	SIXESLOW(0, 256)   \
	LEFT(0)            \
	SIXESHIGH(0, 256)  \
	LEFT(16)           \
	SIXESLOW(32, 288)  \
	RIGHT(0)           \
	SIXESHIGH(32, 288) \
	RIGHT(16)

#define MLX8LEFT1(at) \
	QUADEIGHT(at, Q0, Y8)
#define MLX8LEFT4(at) \
	QUADEIGHT(at, Q0, Y8)  \
	QUADEIGHT(at, Q1, Y10) \
	QUADEIGHT(at, Q2, Y12) \
	QUADEIGHT(at, Q3, Y14)
#define MLX8RIGHT1(at) \
	QUADEIGHT(at, Q0, Y9)
#define MLX8RIGHT4(at) \
	QUADEIGHT(at, Q0, Y9)  \
	QUADEIGHT(at, Q1, Y11) \
	QUADEIGHT(at, Q2, Y13) \
	QUADEIGHT(at, Q3, Y15)

#define BYTES(at) \
	VMOVDQU mlxSign<>(SB), Y6    \
	VPXOR   at(SI), Y6, Y0       \
	VPXOR   (at+64)(SI), Y6, Y1  \
	VPXOR   (at+128)(SI), Y6, Y2 \
	VPXOR   (at+192)(SI), Y6, Y3

#define MLX8TILE(LEFT, RIGHT) \
	BYTES(0)   \
	LEFT(0)    \
	BYTES(256) \
	LEFT(16)   \
	BYTES(32)  \
	RIGHT(0)   \
	BYTES(288) \
	RIGHT(16)

// MLX8OFFSETS begins the integers with 128 times the sums of x.
#define MLX8OFFSETS1 \
	VMOVDQU mlxLess<>(SB), Y6 \
	VMOVDQU Y6, Y7            \
	OFFSETS1
#define MLX8OFFSETS4 \
	VMOVDQU mlxLess<>(SB), Y6 \
	VMOVDQU Y6, Y7            \
	OFFSETS4

#define FETCH2 \
	AHEAD1(0) \
	AHEAD1(64)
#define FETCH3 \
	FETCH2 \
	AHEAD1(128)
#define FETCH4 \
	FETCH3 \
	AHEAD1(192)
#define FETCH5 \
	FETCH4 \
	AHEAD1(256)
#define FETCH6 \
	FETCH5 \
	AHEAD1(320)
#define FETCH8 \
	FETCH6      \
	AHEAD1(384) \
	AHEAD1(448)

#define MLX2ONE \
	FETCH2 \
	MLX2TILE(LEFT1, RIGHT1)

// func mlx2AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *int16, tiles, bf16 int)
TEXT ·mlx2AVX2(SB), NOSPLIT, $640-64
	START1
	CLEAR1(256)
	MLX(128, tiles+48(FP), bf16+56(FP), ZERO1, MLX2ONE, ADDROWS1, MINROWS1, ENDMINS1, END1)

#define MLX2FOUR MLX2TILE(LEFT4, RIGHT4)

// func mlx2FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride, tiles, bf16 int)
TEXT ·mlx2FourAVX2(SB), NOSPLIT, $640-80
	START4
	CLEAR4(256)
	MLX(128, tiles+64(FP), bf16+72(FP), ZERO4, MLX2FOUR, ADDROWS4, MINROWS4, ENDMINS4, END4)

#define MLX3ONE \
	FETCH3 \
	MLX3TILE(LEFT1, RIGHT1)

// func mlx3AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *int16, tiles, bf16 int)
TEXT ·mlx3AVX2(SB), NOSPLIT, $640-64
	START1
	CLEAR1(256)
	MLX(192, tiles+48(FP), bf16+56(FP), ZERO1, MLX3ONE, ADDROWS1, MINROWS1, ENDMINS1, END1)

#define MLX3FOUR MLX3TILE(LEFT4, RIGHT4)

// func mlx3FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride, tiles, bf16 int)
TEXT ·mlx3FourAVX2(SB), NOSPLIT, $640-80
	START4
	CLEAR4(256)
	MLX(192, tiles+64(FP), bf16+72(FP), ZERO4, MLX3FOUR, ADDROWS4, MINROWS4, ENDMINS4, END4)

#define MLX4ONE \
	FETCH4 \
	MLX4TILE(LEFT1, RIGHT1)

// func mlx4AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *int16, tiles, bf16 int)
TEXT ·mlx4AVX2(SB), NOSPLIT, $640-64
	START1
	CLEAR1(256)
	MLX(256, tiles+48(FP), bf16+56(FP), ZERO1, MLX4ONE, ADDROWS1, MINROWS1, ENDMINS1, END1)

#define MLX4FOUR MLX4TILE(LEFT4, RIGHT4)

// func mlx4FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride, tiles, bf16 int)
TEXT ·mlx4FourAVX2(SB), NOSPLIT, $640-80
	START4
	CLEAR4(256)
	MLX(256, tiles+64(FP), bf16+72(FP), ZERO4, MLX4FOUR, ADDROWS4, MINROWS4, ENDMINS4, END4)

#define MLX5ONE \
	FETCH5 \
	MLX5TILE(LEFT1, RIGHT1)

// func mlx5AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *int16, tiles, bf16 int)
TEXT ·mlx5AVX2(SB), NOSPLIT, $640-64
	START1
	CLEAR1(256)
	MLX(320, tiles+48(FP), bf16+56(FP), ZERO1, MLX5ONE, ADDROWS1, MINROWS1, ENDMINS1, END1)

#define MLX5FOUR MLX5TILE(LEFT4, RIGHT4)

// func mlx5FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride, tiles, bf16 int)
TEXT ·mlx5FourAVX2(SB), NOSPLIT, $640-80
	START4
	CLEAR4(256)
	MLX(320, tiles+64(FP), bf16+72(FP), ZERO4, MLX5FOUR, ADDROWS4, MINROWS4, ENDMINS4, END4)

#define MLX6ONE \
	FETCH6 \
	MLX6TILE(MLX6LEFT1, MLX6RIGHT1)

// func mlx6AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *int16, tiles, bf16 int)
TEXT ·mlx6AVX2(SB), NOSPLIT, $640-64
	START1
	CLEAR1(256)
	MLX(384, tiles+48(FP), bf16+56(FP), ZERO1, MLX6ONE, ADDROWS1, MINROWS1, ENDMINS1, END1)

#define MLX6FOUR MLX6TILE(MLX6LEFT4, MLX6RIGHT4)

// func mlx6FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride, tiles, bf16 int)
TEXT ·mlx6FourAVX2(SB), NOSPLIT, $640-80
	START4
	CLEAR4(256)
	MLX(384, tiles+64(FP), bf16+72(FP), ZERO4, MLX6FOUR, ADDROWS4, MINROWS4, ENDMINS4, END4)

#define MLX8ONE \
	FETCH8 \
	MLX8TILE(MLX8LEFT1, MLX8RIGHT1)

// func mlx8AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *int16, tiles, bf16 int)
TEXT ·mlx8AVX2(SB), NOSPLIT, $640-64
	START1
	CLEAR1(256)
	MLX(512, tiles+48(FP), bf16+56(FP), MLX8OFFSETS1, MLX8ONE, ADDROWS1, MINROWS1, ENDMINS1, END1)

#define MLX8FOUR MLX8TILE(MLX8LEFT4, MLX8RIGHT4)

// func mlx8FourAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *int16, stride, tiles, bf16 int)
TEXT ·mlx8FourAVX2(SB), NOSPLIT, $640-80
	START4
	CLEAR4(256)
	MLX(512, tiles+64(FP), bf16+72(FP), MLX8OFFSETS4, MLX8FOUR, ADDROWS4, MINROWS4, ENDMINS4, END4)
