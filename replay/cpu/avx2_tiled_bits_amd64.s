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
