#include "textflag.h"

// weighAVX2, countAVX2, tallyAVX2 and contestAVX2 with twice the number of lanes. The constants
// are the entries of sampleTable; only the first lane of each is used.

#define cSign    128
#define c32      160
#define c2to27   224
#define cTerms   320 // 8 of them
#define c2to31   576

// TERM adds the next term to the two polynomials in Z4 and Z5, whose variables are Z2 and Z3.
#define TERM(term) \
	VPMULUDQ Z2, Z4, Z4      \
	VPMULUDQ Z3, Z5, Z5      \
	VPSRLQ   $32, Z4, Z4     \
	VPSRLQ   $32, Z5, Z5     \
	VPSUBQ   Z4, term, Z4    \
	VPSUBQ   Z5, term, Z5

// func weighAVX512(weights, keys *uint32, steps int, least uint32, value, scale float32, c *sampleConstants) (sum uint64)
//
// A step is 16 keys.
TEXT ·weighAVX512(SB), NOSPLIT, $0-56
	MOVQ         weights+0(FP), DI
	MOVQ         keys+8(FP), SI
	MOVQ         steps+16(FP), CX
	MOVL         least+24(FP), AX
	VPBROADCASTD AX, Z15
	VBROADCASTSS value+28(FP), Z14
	VBROADCASTSS scale+32(FP), Z13
	MOVQ         c+40(FP), R8
	VPBROADCASTD cSign(R8), Z12
	VBROADCASTSS c32(R8), Z11
	VBROADCASTSS c2to27(R8), Z10
	VPBROADCASTQ cTerms(R8), Z16
	VPBROADCASTQ cTerms+32(R8), Z17
	VPBROADCASTQ cTerms+64(R8), Z18
	VPBROADCASTQ cTerms+96(R8), Z19
	VPBROADCASTQ cTerms+128(R8), Z20
	VPBROADCASTQ cTerms+160(R8), Z21
	VPBROADCASTQ cTerms+192(R8), Z22
	VPBROADCASTQ cTerms+224(R8), Z23
	VPBROADCASTQ c2to31(R8), Z24
	VPXORQ       Z9, Z9, Z9   // the sum
	VPXORQ       Z25, Z25, Z25

weighstep:
	TESTQ       CX, CX
	JLE         weighdone
	VMOVDQU32   (SI), Z0
	ADDQ        $64, SI
	ADDQ        $64, DI
	DECQ        CX
	VPCMPUD     $5, Z15, Z0, K1 // kept
	VPSRAD      $31, Z0, Z1
	VPTERNLOGD  $0x65, Z0, Z12, Z1 // the logit: the key with its sign or all bits flipped
	VSUBPS      Z1, Z14, Z0
	VMULPS      Z13, Z0, Z0
	VCMPPS      $0x11, Z11, Z0, K1, K2
	VMOVDQU32   Z25, -64(DI)
	KORTESTW    K2, K2
	JEQ         weighstep
	VMULPS      Z10, Z0, Z0
	VCVTTPS2UDQ Z0, Z0
	VPSLLD      $5, Z0, Z2    // fractions in units of 2^-32, of the even lanes
	VPSRLQ      $32, Z2, Z3   // of the odd lanes
	VPSRLD      $27, Z0, Z7
	VMOVDQA64   Z16, Z4
	VMOVDQA64   Z16, Z5
	TERM(Z17)
	TERM(Z18)
	TERM(Z19)
	TERM(Z20)
	TERM(Z21)
	TERM(Z22)
	TERM(Z23)
	VPMULUDQ    Z2, Z4, Z4
	VPMULUDQ    Z3, Z5, Z5
	VPSRLQ      $33, Z4, Z4
	VPSRLQ      $33, Z5, Z5
	VPSUBQ      Z4, Z24, Z4
	VPSUBQ      Z5, Z24, Z5
	VPSLLQ      $32, Z5, Z5
	VPORQ       Z5, Z4, Z4
	VPSRLVD.Z   Z7, Z4, K2, Z4
	VMOVDQU32   Z4, -64(DI)
	VPSRLQ      $32, Z4, Z5
	VPSLLQ      $32, Z4, Z4
	VPSRLQ      $32, Z4, Z4
	VPADDQ      Z4, Z9, Z9
	VPADDQ      Z5, Z9, Z9
	JMP         weighstep

weighdone:
	VEXTRACTI64X4 $1, Z9, Y0
	VPADDQ        Y0, Y9, Y0
	VEXTRACTI128  $1, Y0, X1
	VPADDQ        X1, X0, X0
	VPSHUFD       $0x4e, X0, X1
	VPADDQ        X1, X0, X0
	VMOVQ         X0, AX
	MOVQ          AX, sum+48(FP)
	VZEROUPPER
	RET

// func countAVX512(keys *uint32, steps int, floor uint32) (n int)
//
// A step is 16 keys.
TEXT ·countAVX512(SB), NOSPLIT, $0-32
	MOVQ         keys+0(FP), SI
	MOVQ         steps+8(FP), CX
	MOVL         floor+16(FP), AX
	VPBROADCASTD AX, Z15
	XORQ         BX, BX

countstep:
	TESTQ   CX, CX
	JLE     countdone
	VPCMPUD $2, (SI), Z15, K1 // floor <= key
	KMOVW   K1, AX
	POPCNTL AX, AX
	ADDQ    AX, BX
	ADDQ    $64, SI
	DECQ    CX
	JMP     countstep

countdone:
	MOVQ BX, n+24(FP)
	VZEROUPPER
	RET

// func tallyAVX512(keys, weights *uint32, steps int, floor uint32) (n int, sum uint64)
//
// A step is 16 keys.
TEXT ·tallyAVX512(SB), NOSPLIT, $0-48
	MOVQ         keys+0(FP), SI
	MOVQ         weights+8(FP), DI
	MOVQ         steps+16(FP), CX
	MOVL         floor+24(FP), AX
	VPBROADCASTD AX, Z15
	XORQ         BX, BX
	VPXORQ       Z9, Z9, Z9
	VPTERNLOGD   $0xff, Z14, Z14, Z14
	VPSRLQ       $32, Z14, Z14        // the low halves

tallystep:
	TESTQ       CX, CX
	JLE         tallydone
	VPCMPUD     $2, (SI), Z15, K1
	VMOVDQU32.Z (DI), K1, Z0
	KMOVW       K1, AX
	POPCNTL     AX, AX
	ADDQ        AX, BX
	VPSRLQ      $32, Z0, Z1
	VPANDQ      Z14, Z0, Z0
	VPADDQ      Z0, Z9, Z9
	VPADDQ      Z1, Z9, Z9
	ADDQ        $64, SI
	ADDQ        $64, DI
	DECQ        CX
	JMP         tallystep

tallydone:
	MOVQ          BX, n+32(FP)
	VEXTRACTI64X4 $1, Z9, Y0
	VPADDQ        Y0, Y9, Y0
	VEXTRACTI128  $1, Y0, X1
	VPADDQ        X1, X0, X0
	VPSHUFD       $0x4e, X0, X1
	VPADDQ        X1, X0, X0
	VMOVQ         X0, AX
	MOVQ          AX, sum+40(FP)
	VZEROUPPER
	RET

// Offsets of the fields of contest.
#define dIDs     0
#define dEight   64
#define dM0      96
#define dM1      128
#define dKeys    160
#define dHigh    800
#define dC3      832
#define dLimit   864
#define dLargest 896
#define dFactor  928
#define dBest    960
#define dSlope   992
#define dBase    1024
#define dSign    1056

// ROUND performs a round of Philox for 16 tokens, with the round's keys at the given address.
// Z0 to Z3 and Z4 to Z7 are words 0 to 3 of 8 tokens each, in the low halves of 64-bit lanes.
// It uses Z8 to Z11.
#define ROUND(at) \
	VPMULUDQ Z0, Z14, Z8       \
	VPMULUDQ Z4, Z14, Z10      \
	VPMULUDQ Z2, Z13, Z9       \
	VPMULUDQ Z6, Z13, Z11      \
	VPSRLQ   $32, Z9, Z0       \
	VPSRLQ   $32, Z11, Z4      \
	VPSRLQ   $32, Z8, Z2       \
	VPSRLQ   $32, Z10, Z6      \
	VPTERNLOGQ.BCST $0x96, dKeys+64*at(R8), Z1, Z0 \
	VPTERNLOGQ.BCST $0x96, dKeys+64*at(R8), Z5, Z4 \
	VPTERNLOGQ.BCST $0x96, dKeys+64*at+32(R8), Z3, Z2 \
	VPTERNLOGQ.BCST $0x96, dKeys+64*at+32(R8), Z7, Z6 \
	VMOVDQA64 Z9, Z1           \
	VMOVDQA64 Z11, Z5          \
	VMOVDQA64 Z8, Z3           \
	VMOVDQA64 Z10, Z7

// func contestAVX512(words *[128]uint32, keys *uint32, steps int, d *contest) (mask uint64)
//
// A step is 16 tokens; there are at most 4 steps.
TEXT ·contestAVX512(SB), NOSPLIT, $0-40
	MOVQ         words+0(FP), DI
	MOVQ         keys+8(FP), SI
	MOVQ         steps+16(FP), DX
	MOVQ         d+24(FP), R8
	VPBROADCASTQ dM0(R8), Z14
	VPBROADCASTQ dM1(R8), Z13
	VPBROADCASTQ dEight(R8), Z16
	VMOVDQU64    dIDs(R8), Z12
	VPADDQ       Z16, Z12, Z15
	VPADDQ       Z16, Z16, Z16
	VPBROADCASTD dLimit(R8), Z17
	VBROADCASTSS dLargest(R8), Z18
	VBROADCASTSS dFactor(R8), Z19
	VBROADCASTSS dBest(R8), Z20
	VBROADCASTSS dSlope(R8), Z21
	VBROADCASTSS dBase(R8), Z22
	VPBROADCASTD dSign(R8), Z23
	VPBROADCASTQ dC3(R8), Z24
	VPBROADCASTQ dHigh(R8), Z25
	VPXORQ.BCST  dKeys+96(R8), Z25, Z25
	XORQ         BX, BX
	XORQ         CX, CX

conteststep:
	TESTQ     DX, DX
	JLE       contestdone
	VMOVDQU32 (SI), Z30
	VPCMPUD   $5, Z17, Z30, K1
	KORTESTW  K1, K1
	JEQ       contestnext

	// Round 1: words 2 and 3 are 0, and word 1 is the same for all tokens.
	VPMULUDQ    Z12, Z14, Z3
	VPMULUDQ    Z15, Z14, Z7
	VPSRLQ      $32, Z3, Z2
	VPSRLQ      $32, Z7, Z6
	VPXORQ.BCST dKeys+32(R8), Z2, Z2
	VPXORQ.BCST dKeys+32(R8), Z6, Z6

	// Round 2: word 0 is the same for all tokens, and word 1 is 0.
	VPMULUDQ    Z2, Z13, Z1
	VPMULUDQ    Z6, Z13, Z5
	VPSRLQ      $32, Z1, Z0
	VPSRLQ      $32, Z5, Z4
	VPXORQ.BCST dKeys+64(R8), Z0, Z0
	VPXORQ.BCST dKeys+64(R8), Z4, Z4
	VPXORQ      Z25, Z3, Z2
	VPXORQ      Z25, Z7, Z6
	VMOVDQA64   Z24, Z3
	VMOVDQA64   Z24, Z7
	ROUND(2)
	ROUND(3)
	ROUND(4)
	ROUND(5)
	ROUND(6)
	ROUND(7)
	ROUND(8)

	// Round 10 computes only words 0 and 1.
	VPMULUDQ Z2, Z13, Z9
	VPMULUDQ Z6, Z13, Z11
	VPSRLQ   $32, Z9, Z0
	VPSRLQ   $32, Z11, Z4
	VPTERNLOGQ.BCST $0x96, dKeys+576(R8), Z1, Z0
	VPTERNLOGQ.BCST $0x96, dKeys+576(R8), Z5, Z4

	VPMOVQD      Z0, Y0
	VPMOVQD      Z4, Y4
	VINSERTI64X4 $1, Y4, Z0, Z0   // word 0 of all 16 tokens, in order
	VPMOVQD      Z9, Y9
	VPMOVQD      Z11, Y11
	VINSERTI64X4 $1, Y11, Z9, Z9  // word 1 of all 16 tokens
	VMOVDQU32    Z0, (DI)
	VMOVDQU32    Z9, 256(DI)

	// Compute an upper bound of -ln of word 0.
	VPSRLD      $1, Z0, Z0
	VCVTDQ2PS   Z0, Z0
	VCVTDQ2PS   Z0, Z0
	VFMADD132PS Z21, Z22, Z0

	VPSRAD       $31, Z30, Z1
	VPTERNLOGD   $0x65, Z30, Z23, Z1 // the logit
	VSUBPS       Z1, Z18, Z2
	VFNMADD231PS Z19, Z2, Z0
	VCMPPS       $0x1d, Z20, Z0, K1, K2
	KMOVW        K2, AX
	SHLQ         CX, AX
	ORQ          AX, BX

contestnext:
	VPADDQ Z16, Z12, Z12
	VPADDQ Z16, Z15, Z15
	ADDQ   $16, CX
	ADDQ   $64, SI
	ADDQ   $64, DI
	DECQ   DX
	JMP    conteststep

contestdone:
	MOVQ BX, mask+32(FP)
	VZEROUPPER
	RET
