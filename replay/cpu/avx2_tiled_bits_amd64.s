#include "textflag.h"
#include "avx2_tiled_amd64.h"
#include "avx2_tiled_bits_amd64.h"

// Products of tiles with quants of 5 bits (nibbles and single bits), 2 bits (pairs) and 3 bits
// (pairs and single bits).

// tiledPair masks the two bits of a quant that come from a pair of bits. tiledThird and tiledFifth
// mask the bit of a quant that comes from a single bit. The other constants are 1 and -16 in every
// word.
FILL(·tiledPair, 0x0303030303030303)
FILL(·tiledThird, 0x0404040404040404)
FILL(·tiledFifth, 0x1010101010101010)
FILL(·tiledOne, 0x0001000100010001)
FILL(·tiledLess16, 0xfff0fff0fff0fff0)

// func tiledQ5_0AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
TEXT ·tiledQ5_0AVX2(SB), NOSPLIT, $256-48
	START1

block:
	AHEADFIVES(AHEAD1)
	VMOVDQU ·tiledLess16(SB), Y6
	VMOVDQU Y6, Y7
	OFFSETS1
	FIVES(·tiledOne(SB), ·tiledOne(SB), LEFT1, RIGHT1)
	VCVTPH2PS 320(SI), Y0
	VCVTPH2PS 336(SI), Y1
	ADDROWS1
	NEXT(352)
	DECQ CX
	JNZ  block
	END1

// func tiledFourQ5_0AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
TEXT ·tiledFourQ5_0AVX2(SB), NOSPLIT, $256-64
	START4

block:
	AHEADFIVES(AHEAD4)
	VMOVDQU ·tiledLess16(SB), Y6
	VMOVDQU Y6, Y7
	OFFSETS4
	FIVES(·tiledOne(SB), ·tiledOne(SB), LEFT4, RIGHT4)
	VCVTPH2PS 320(SI), Y0
	VCVTPH2PS 336(SI), Y1
	ADDROWS4
	NEXT(352)
	DECQ CX
	JNZ  block
	END4

// func tiledQ5_1AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
TEXT ·tiledQ5_1AVX2(SB), NOSPLIT, $256-48
	START1

block:
	AHEADFIVES(AHEAD1)
	ZERO1
	FIVES(·tiledOne(SB), ·tiledOne(SB), LEFT1, RIGHT1)
	VCVTPH2PS 320(SI), Y0
	VCVTPH2PS 336(SI), Y1
	ADDROWS1
	VCVTPH2PS 352(SI), Y2
	VCVTPH2PS 368(SI), Y3
	MINROWS1(VFMADD231PS)
	NEXT(384)
	DECQ CX
	JNZ  block
	END1

// func tiledFourQ5_1AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
TEXT ·tiledFourQ5_1AVX2(SB), NOSPLIT, $256-64
	START4

block:
	AHEADFIVES(AHEAD4)
	ZERO4
	FIVES(·tiledOne(SB), ·tiledOne(SB), LEFT4, RIGHT4)
	VCVTPH2PS 320(SI), Y0
	VCVTPH2PS 336(SI), Y1
	ADDROWS4
	VCVTPH2PS 352(SI), Y2
	VCVTPH2PS 368(SI), Y3
	MINROWS4(VFMADD231PS)
	NEXT(384)
	DECQ CX
	JNZ  block
	END4

// func tiledQ5_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
TEXT ·tiledQ5_KAVX2(SB), NOSPLIT, $256-48
	START1

block:
	HEAD(AHEAD1, 64, 320)

tile:
	AHEADFIVES(AHEAD1)
	ZERO1
	FIVES(·tiledOne(SB), ·tiledOne(SB), LEFT1, RIGHT1)
	SCALED(VPMOVZXBD, (R8), (R13), Y0, Y4)
	SCALED(VPMOVZXBD, 8(R8), 16(R13), Y1, Y4)
	ADDKROWS1
	SCALED(VPMOVZXBD, 16(R8), 32(R13), Y2, Y4)
	SCALED(VPMOVZXBD, 24(R8), 48(R13), Y3, Y4)
	MINROWS1(VFNMADD231PS)
	ADDQ      $32, R8
	NEXT(320)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END1

// func tiledFourQ5_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
TEXT ·tiledFourQ5_KAVX2(SB), NOSPLIT, $256-64
	START4

block:
	HEAD(AHEAD4, 64, 320)

tile:
	AHEADFIVES(AHEAD4)
	ZERO4
	FIVES(·tiledOne(SB), ·tiledOne(SB), LEFT4, RIGHT4)
	SCALED(VPMOVZXBD, (R8), (R13), Y0, Y4)
	SCALED(VPMOVZXBD, 8(R8), 16(R13), Y1, Y4)
	ADDKROWS4
	SCALED(VPMOVZXBD, 16(R8), 32(R13), Y2, Y4)
	SCALED(VPMOVZXBD, 24(R8), 48(R13), Y3, Y4)
	MINROWS4(VFNMADD231PS)
	ADDQ      $32, R8
	NEXT(320)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END4

// SCALES2 stores the scales of 8 rows for both halves of the columns, which are low nibbles,
// and their minimums, which are high nibbles, as the two words of a lane.
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
	VMOVDQU   Y0, (32*h+256)(SP)     \
	VMOVDQU   Y1, (32*h+320)(SP)     \
	VMOVDQU   Y2, (32*h+384)(SP)

// MINS subtracts the minimums in PAIRS, times the sums of x in Y8, times the scale of x in Y9 and the scales
// of the minimums in D, from the sums at offset at.
#define MINS(PAIRS, D, at) \
	VPMADDWD     Y8, PAIRS, Y5  \
	VMULPS       Y9, D, Y6      \
	VCVTDQ2PS    Y5, Y5         \
	VMOVUPS      at(SP), Y4     \
	VFNMADD231PS Y6, Y5, Y4     \
	VMOVUPS      Y4, at(SP)

#define MINSROW(D, SUM, at) \
	VPBROADCASTD SUM, Y8   \
	VBROADCASTSS D, Y9     \
	MINS(Y2, Y10, at)      \
	MINS(Y3, Y11, (at+32))

// MINSROWS calls MINS for all rows of x.
#define MINSROWS1 \
	VMOVDQU   (32*0+384)(SP), Y2 \
	VMOVDQU   (32*1+384)(SP), Y3 \
	VCVTPH2PS 32(R13), Y10       \
	VCVTPH2PS 48(R13), Y11       \
	MINSROW(D0, SUM0, 0)
#define MINSROWS4 \
	MINSROWS1              \
	MINSROW(D1, SUM1, 64)  \
	MINSROW(D2, SUM2, 128) \
	MINSROW(D3, SUM3, 192)

// func tiledQ2_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
TEXT ·tiledQ2_KAVX2(SB), NOSPLIT, $448-48
	START1

block:
	HEAD(AHEAD1, 64, 320)

tile:
	AHEAD1(0)
	AHEAD1(64)
	SCALES2(0)
	SCALES2(1)
	ZERO1
	TWOSLOW(0)
	LEFT1(0, 256(SP))
	TWOSHIGH(0)
	LEFT1(16, 320(SP))
	TWOSLOW(32)
	RIGHT1(0, 288(SP))
	TWOSHIGH(32)
	RIGHT1(16, 352(SP))
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS1
	MINSROWS1
	ADDQ      $32, R8
	NEXT(128)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END1

// func tiledFourQ2_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
TEXT ·tiledFourQ2_KAVX2(SB), NOSPLIT, $448-64
	START4

block:
	HEAD(AHEAD4, 64, 320)

tile:
	AHEAD4(0)
	AHEAD4(64)
	SCALES2(0)
	SCALES2(1)
	ZERO4
	TWOSLOW(0)
	LEFT4(0, 256(SP))
	TWOSHIGH(0)
	LEFT4(16, 320(SP))
	TWOSLOW(32)
	RIGHT4(0, 288(SP))
	TWOSHIGH(32)
	RIGHT4(16, 352(SP))
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS4
	MINSROWS4
	ADDQ      $32, R8
	NEXT(128)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END4

// func tiledTQ2_0AVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
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
	LEFT1(0, ·tiledOne(SB))
	TWOSHIGH(0)
	LEFT1(16, ·tiledOne(SB))
	TWOSLOW(32)
	RIGHT1(0, ·tiledOne(SB))
	TWOSHIGH(32)
	RIGHT1(16, ·tiledOne(SB))
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS1
	NEXT(128)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END1

// func tiledFourTQ2_0AVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
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
	LEFT4(0, ·tiledOne(SB))
	TWOSHIGH(0)
	LEFT4(16, ·tiledOne(SB))
	TWOSLOW(32)
	RIGHT4(0, ·tiledOne(SB))
	TWOSHIGH(32)
	RIGHT4(16, ·tiledOne(SB))
	VCVTPH2PS (R13), Y0
	VCVTPH2PS 16(R13), Y1
	ADDROWS4
	NEXT(128)
	DECL R12
	JNZ  tile
	DECQ CX
	JNZ  block
	END4

// SCALES3 stores the scales of 8 rows for both halves of the columns, as the two words of a
// lane, and sets Y to -4 times these words.
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

// func tiledQ3_KAVX2(y *float32, w *byte, blocks int, q *int8, d *float32, s *byte)
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

// func tiledFourQ3_KAVX2(y *float32, yStride int, w *byte, blocks int, q *int8, d *float32, s *byte, stride int)
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
