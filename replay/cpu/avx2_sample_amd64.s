#include "textflag.h"

// The sampler's loops over keys; philox.go, sample.go and sampler.OrderKey contain the same
// functions in Go. The constants are the entries of sampleTable, each repeated in every lane.

#define cAbs     0
#define cInf     32
#define cLimit   64
#define cMinusInf 96
#define cSign    128
#define c32      160
#define c16      192
#define c2to27   224
#define c2to26   256
#define cLow     288
#define cTerms   320 // 8 of them
#define c2to31   576

// func orderKeysAVX2(keys *uint32, logits *float32, steps int, c *sampleConstants) (most uint32)
//
// A step is 8 logits.
TEXT ·orderKeysAVX2(SB), NOSPLIT, $0-36
	MOVQ keys+0(FP), DI
	MOVQ logits+8(FP), SI
	MOVQ steps+16(FP), CX
	MOVQ c+24(FP), R8
	VMOVDQU cAbs(R8), Y15
	VMOVDQU cInf(R8), Y14
	VMOVDQU cLimit(R8), Y13
	VMOVDQU cMinusInf(R8), Y12
	VMOVDQU cSign(R8), Y11
	VPXOR   Y10, Y10, Y10
	VPXOR   Y9, Y9, Y9

keystep:
	TESTQ    CX, CX
	JLE      keydone
	VMOVDQU  (SI), Y0
	VPAND    Y15, Y0, Y1
	VPCMPGTD Y14, Y1, Y2     // NaN
	VPCMPEQD Y12, Y0, Y3
	VPOR     Y3, Y2, Y2
	VPCMPEQD Y9, Y1, Y5      // zero of either sign
	VPMINUD  Y13, Y1, Y1
	VPAND    Y11, Y0, Y6
	VPOR     Y6, Y1, Y1
	VPANDN   Y1, Y5, Y1
	VPSRAD   $31, Y1, Y7
	VPOR     Y11, Y7, Y7
	VPXOR    Y7, Y1, Y1
	VPANDN   Y1, Y2, Y1
	VMOVDQU  Y1, (DI)
	VPMAXUD  Y1, Y10, Y10
	ADDQ     $32, SI
	ADDQ     $32, DI
	DECQ     CX
	JMP      keystep

keydone:
	VEXTRACTI128 $1, Y10, X0
	VPMAXUD      X0, X10, X0
	VPSHUFD      $0x4e, X0, X1
	VPMAXUD      X1, X0, X0
	VPSHUFD      $0xb1, X0, X1
	VPMAXUD      X1, X0, X0
	VMOVD        X0, AX
	MOVL         AX, most+32(FP)
	VZEROUPPER
	RET

// func atLeastAVX2(keys *uint32, steps int, floor uint32) (mask uint64)
//
// A step is 8 keys; there are at most 8 steps.
TEXT ·atLeastAVX2(SB), NOSPLIT, $0-32
	MOVQ         keys+0(FP), SI
	MOVQ         steps+8(FP), DX
	MOVL         floor+16(FP), AX
	VMOVD        AX, X15
	VPBROADCASTD X15, Y15
	XORQ         BX, BX
	XORQ         CX, CX

leaststep:
	TESTQ     DX, DX
	JLE       leastdone
	VMOVDQU   (SI), Y0
	VPMAXUD   Y0, Y15, Y1
	VPCMPEQD  Y0, Y1, Y1
	VMOVMSKPS Y1, AX
	SHLQ      CX, AX
	ORQ       AX, BX
	ADDQ      $8, CX
	ADDQ      $32, SI
	DECQ      DX
	JMP       leaststep

leastdone:
	MOVQ BX, mask+24(FP)
	VZEROUPPER
	RET

// func countAVX2(keys *uint32, steps int, floor uint32) (n int)
//
// A step is 8 keys.
TEXT ·countAVX2(SB), NOSPLIT, $0-32
	MOVQ         keys+0(FP), SI
	MOVQ         steps+8(FP), CX
	MOVL         floor+16(FP), AX
	VMOVD        AX, X15
	VPBROADCASTD X15, Y15
	VPXOR        Y9, Y9, Y9

countstep:
	TESTQ    CX, CX
	JLE      countdone
	VMOVDQU  (SI), Y0
	VPMAXUD  Y0, Y15, Y1
	VPCMPEQD Y0, Y1, Y1
	VPSUBD   Y1, Y9, Y9
	ADDQ     $32, SI
	DECQ     CX
	JMP      countstep

countdone:
	VEXTRACTI128 $1, Y9, X0
	VPADDD       X0, X9, X0
	VPSHUFD      $0x4e, X0, X1
	VPADDD       X1, X0, X0
	VPSHUFD      $0xb1, X0, X1
	VPADDD       X1, X0, X0
	VMOVD        X0, AX
	MOVQ         AX, n+24(FP)
	VZEROUPPER
	RET

// func tallyAVX2(keys, weights *uint32, steps int, floor uint32) (n int, sum uint64)
//
// A step is 8 keys.
TEXT ·tallyAVX2(SB), NOSPLIT, $0-48
	MOVQ         keys+0(FP), SI
	MOVQ         weights+8(FP), DI
	MOVQ         steps+16(FP), CX
	MOVL         floor+24(FP), AX
	VMOVD        AX, X15
	VPBROADCASTD X15, Y15
	VPXOR        Y9, Y9, Y9
	VPXOR        Y8, Y8, Y8
	VPCMPEQD     Y14, Y14, Y14
	VPSRLQ       $32, Y14, Y14 // the low halves

tallystep:
	TESTQ    CX, CX
	JLE      tallydone
	VMOVDQU  (SI), Y0
	VPMAXUD  Y0, Y15, Y1
	VPCMPEQD Y0, Y1, Y1
	VPSUBD   Y1, Y9, Y9
	VPAND    (DI), Y1, Y1
	VPSRLQ   $32, Y1, Y2
	VPAND    Y14, Y1, Y1
	VPADDQ   Y1, Y8, Y8
	VPADDQ   Y2, Y8, Y8
	ADDQ     $32, SI
	ADDQ     $32, DI
	DECQ     CX
	JMP      tallystep

tallydone:
	VEXTRACTI128 $1, Y9, X0
	VPADDD       X0, X9, X0
	VPSHUFD      $0x4e, X0, X1
	VPADDD       X1, X0, X0
	VPSHUFD      $0xb1, X0, X1
	VPADDD       X1, X0, X0
	VMOVD        X0, AX
	MOVQ         AX, n+32(FP)
	VEXTRACTI128 $1, Y8, X0
	VPADDQ       X0, X8, X0
	VPSHUFD      $0x4e, X0, X1
	VPADDQ       X1, X0, X0
	VMOVQ        X0, AX
	MOVQ         AX, sum+40(FP)
	VZEROUPPER
	RET

// TERM adds the next term to the two polynomials in Y4 and Y5, whose variables are Y2 and Y3.
#define TERM(at) \
	VPMULUDQ Y2, Y4, Y4      \
	VPMULUDQ Y3, Y5, Y5      \
	VPSRLQ   $32, Y4, Y4     \
	VPSRLQ   $32, Y5, Y5     \
	VMOVDQU  cTerms+32*at(R8), Y6 \
	VPSUBQ   Y4, Y6, Y4      \
	VPSUBQ   Y5, Y6, Y5

// func weighAVX2(weights, keys *uint32, steps int, least uint32, value, scale float32, c *sampleConstants) (sum uint64)
//
// A step is 8 keys.
TEXT ·weighAVX2(SB), NOSPLIT, $0-56
	MOVQ         weights+0(FP), DI
	MOVQ         keys+8(FP), SI
	MOVQ         steps+16(FP), CX
	MOVL         least+24(FP), AX
	VMOVD        AX, X15
	VPBROADCASTD X15, Y15
	VBROADCASTSS value+28(FP), Y14
	VBROADCASTSS scale+32(FP), Y13
	MOVQ         c+40(FP), R8
	VMOVDQU      cSign(R8), Y12
	VPCMPEQD     Y11, Y11, Y11
	VMOVDQU      cLow(R8), Y10
	VPXOR        Y9, Y9, Y9   // the sum

weighstep:
	TESTQ      CX, CX
	JLE        weighdone
	VMOVDQU    (SI), Y0
	ADDQ       $32, SI
	ADDQ       $32, DI
	DECQ       CX
	VPMAXUD    Y0, Y15, Y8
	VPCMPEQD   Y0, Y8, Y8     // kept
	VPXOR      Y11, Y0, Y1
	VPSRAD     $31, Y1, Y1
	VPOR       Y12, Y1, Y1
	VPXOR      Y1, Y0, Y0     // the logit
	VSUBPS     Y0, Y14, Y0
	VMULPS     Y13, Y0, Y0
	VMOVUPS    c32(R8), Y1
	VCMPPS     $0x11, Y1, Y0, Y1
	VANDPS     Y1, Y8, Y8
	VPXOR      Y2, Y2, Y2
	VMOVDQU    Y2, -32(DI)
	VPTEST     Y8, Y8
	JEQ        weighstep
	VMULPS     c2to27(R8), Y0, Y1
	VCVTTPS2DQ Y1, Y1
	VMULPS     c2to26(R8), Y0, Y2
	VCVTTPS2DQ Y2, Y2         // half the value, which fits in an int32
	VPSLLD     $1, Y2, Y2
	VMOVUPS    c16(R8), Y3
	VCMPPS     $0x11, Y3, Y0, Y3
	VBLENDVPS  Y3, Y1, Y2, Y0
	VPSLLD     $5, Y0, Y2     // fractions in units of 2^-32, of the even lanes
	VPSRLQ     $32, Y2, Y3    // of the odd lanes
	VPSRLD     $27, Y0, Y7
	VMOVDQU    cTerms(R8), Y4
	VMOVDQA    Y4, Y5
	TERM(1)
	TERM(2)
	TERM(3)
	TERM(4)
	TERM(5)
	TERM(6)
	TERM(7)
	VPMULUDQ   Y2, Y4, Y4
	VPMULUDQ   Y3, Y5, Y5
	VPSRLQ     $33, Y4, Y4
	VPSRLQ     $33, Y5, Y5
	VMOVDQU    c2to31(R8), Y6
	VPSUBQ     Y4, Y6, Y4
	VPSUBQ     Y5, Y6, Y5
	VPAND      Y10, Y7, Y2
	VPSRLQ     $32, Y7, Y3
	VPSRLVQ    Y2, Y4, Y4
	VPSRLVQ    Y3, Y5, Y5
	VPAND      Y10, Y8, Y2
	VPSRLQ     $32, Y8, Y3
	VPAND      Y2, Y4, Y4
	VPAND      Y3, Y5, Y5
	VPADDQ     Y4, Y9, Y9
	VPADDQ     Y5, Y9, Y9
	VPSLLQ     $32, Y5, Y5
	VPOR       Y5, Y4, Y4
	VMOVDQU    Y4, -32(DI)
	JMP        weighstep

weighdone:
	VEXTRACTI128 $1, Y9, X0
	VPADDQ       X0, X9, X0
	VPSHUFD      $0x4e, X0, X1
	VPADDQ       X1, X0, X0
	VMOVQ        X0, AX
	MOVQ         AX, sum+48(FP)
	VZEROUPPER
	RET

// Offsets of the fields of contest.
#define dIDs     0   // [8] uint64, ids of 8 tokens
#define dEight   64  // [4] uint64
#define dM0      96  // [4] uint64
#define dM1      128
#define dKeys    160 // [10, 2] round keys, each in 4 lanes of 64 bits
#define dHigh    800 // high word of the second round's product that is the same for all ids
#define dC3      832
#define dLimit   864 // the following fields have 8 lanes
#define dLargest 896
#define dFactor  928
#define dBest    960
#define dSlope   992
#define dBase    1024
#define dSign    1056

// ROUND performs a round of Philox for 8 tokens, with the round's keys at the given address. Y0
// to Y3 and Y4 to Y7 are words 0 to 3 of 4 tokens each, in the low halves of 64-bit lanes. It
// uses Y8 to Y11.
#define ROUND(at) \
	VPMULUDQ Y0, Y14, Y8       \
	VPMULUDQ Y4, Y14, Y10      \
	VPMULUDQ Y2, Y13, Y9       \
	VPMULUDQ Y6, Y13, Y11      \
	VPXOR    dKeys+64*at(R8), Y1, Y0   \
	VPXOR    dKeys+64*at(R8), Y5, Y4   \
	VPXOR    dKeys+64*at+32(R8), Y3, Y2 \
	VPXOR    dKeys+64*at+32(R8), Y7, Y6 \
	VPSRLQ   $32, Y9, Y1       \
	VPSRLQ   $32, Y11, Y5      \
	VPXOR    Y1, Y0, Y0        \
	VPXOR    Y5, Y4, Y4        \
	VPSRLQ   $32, Y8, Y1       \
	VPSRLQ   $32, Y10, Y5      \
	VPXOR    Y1, Y2, Y2        \
	VPXOR    Y5, Y6, Y6        \
	VMOVDQA  Y9, Y1            \
	VMOVDQA  Y11, Y5           \
	VMOVDQA  Y8, Y3            \
	VMOVDQA  Y10, Y7

// func contestAVX2(words *[128]uint32, keys *uint32, steps int, d *contest) (mask uint64)
//
// A step is 8 tokens; there are at most 8 steps.
TEXT ·contestAVX2(SB), NOSPLIT, $0-40
	MOVQ    words+0(FP), DI
	MOVQ    keys+8(FP), SI
	MOVQ    steps+16(FP), DX
	MOVQ    d+24(FP), R8
	VMOVDQU dM0(R8), Y14
	VMOVDQU dM1(R8), Y13
	VMOVDQU dIDs(R8), Y12
	VMOVDQU dIDs+32(R8), Y15
	XORQ    BX, BX
	XORQ    CX, CX

conteststep:
	TESTQ     DX, DX
	JLE       contestdone
	VMOVDQU   (SI), Y0
	VMOVDQU   dLimit(R8), Y1
	VPMAXUD   Y0, Y1, Y1
	VPCMPEQD  Y0, Y1, Y1
	VMOVMSKPS Y1, R9
	TESTQ     R9, R9
	JEQ       contestnext

	// Round 1: words 2 and 3 are 0, and word 1 is the same for all tokens.
	VPMULUDQ Y12, Y14, Y3
	VPMULUDQ Y15, Y14, Y7
	VPSRLQ   $32, Y3, Y2
	VPSRLQ   $32, Y7, Y6
	VPXOR    dKeys+32(R8), Y2, Y2
	VPXOR    dKeys+32(R8), Y6, Y6

	// Round 2: word 0 is the same for all tokens, and word 1 is 0.
	VPMULUDQ Y2, Y13, Y1
	VPMULUDQ Y6, Y13, Y5
	VPSRLQ   $32, Y1, Y0
	VPSRLQ   $32, Y5, Y4
	VPXOR    dKeys+64(R8), Y0, Y0
	VPXOR    dKeys+64(R8), Y4, Y4
	VMOVDQU  dHigh(R8), Y8
	VPXOR    dKeys+96(R8), Y8, Y8
	VPXOR    Y8, Y3, Y2
	VPXOR    Y8, Y7, Y6
	VMOVDQU  dC3(R8), Y3
	VMOVDQA  Y3, Y7
	ROUND(2)
	ROUND(3)
	ROUND(4)
	ROUND(5)
	ROUND(6)
	ROUND(7)
	ROUND(8)

	// Round 10 computes only words 0 and 1.
	VPMULUDQ Y2, Y13, Y9
	VPMULUDQ Y6, Y13, Y11
	VPXOR    dKeys+576(R8), Y1, Y0
	VPXOR    dKeys+576(R8), Y5, Y4
	VPSRLQ   $32, Y9, Y1
	VPSRLQ   $32, Y11, Y5
	VPXOR    Y1, Y0, Y0
	VPXOR    Y5, Y4, Y4

	VSHUFPS $0x88, Y4, Y0, Y0
	VPERMQ  $0xd8, Y0, Y0     // word 0 of all 8 tokens, in order
	VSHUFPS $0x88, Y11, Y9, Y9
	VPERMQ  $0xd8, Y9, Y9     // word 1 of all 8 tokens
	VMOVDQU Y0, (DI)
	VMOVDQU Y9, 256(DI)

	// Compute an upper bound of -ln of word 0.
	VPSRLD      $1, Y0, Y0
	VCVTDQ2PS   Y0, Y0
	VCVTDQ2PS   Y0, Y0
	VMOVUPS     dBase(R8), Y1
	VFMADD132PS dSlope(R8), Y1, Y0

	VMOVDQU      (SI), Y2
	VMOVDQU      dSign(R8), Y3
	VPCMPEQD     Y4, Y4, Y4
	VPXOR        Y4, Y2, Y4
	VPSRAD       $31, Y4, Y4
	VPOR         Y3, Y4, Y4
	VPXOR        Y4, Y2, Y2   // the logit
	VMOVUPS      dLargest(R8), Y3
	VSUBPS       Y2, Y3, Y2
	VFNMADD231PS dFactor(R8), Y2, Y0
	VMOVUPS      dBest(R8), Y3
	VCMPPS       $0x1d, Y3, Y0, Y0
	VMOVMSKPS    Y0, AX
	ANDQ         R9, AX
	SHLQ         CX, AX
	ORQ          AX, BX

contestnext:
	VPADDQ dEight(R8), Y12, Y12
	VPADDQ dEight(R8), Y15, Y15
	ADDQ   $8, CX
	ADDQ   $32, SI
	ADDQ   $32, DI
	DECQ   DX
	JMP    conteststep

contestdone:
	MOVQ BX, mask+32(FP)
	VZEROUPPER
	RET
