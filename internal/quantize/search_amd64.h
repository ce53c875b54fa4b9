// Searches for the scales of 16 sub-blocks, with one sub-block in each lane. avx2_amd64.s and
// avx512_amd64.s include this file and define what differs: the registers V0 to V15 of BYTES
// bytes, of which GROUPS hold 16 lanes, and operations on masks. Every lane takes the steps of the
// functions in search.go, in the same order, so it gets the same bits.
//
// The arguments of a search begin with a *columns. Elements of a lane are 64 bytes apart.

#define X 0
#define WEIGHTS 2048
#define SCALED 4096
#define QUANTS 6144
#define SPREAD 8192
#define SCALE 8256
#define MINIMUM 8320
#define NARROWEST 8384

// The predicates of VCMPPS. For NaN, NOTEQUAL and NOTLESSEQUAL hold, and the others do not.
#define LESS 17
#define GREATER 30
#define NOTEQUAL 4
#define NOTLESS 29
#define NOTLESSEQUAL 22

DATA shift<>+0(SB)/4, $0x4b400000 // 1.5*2^23
GLOBL shift<>(SB), RODATA|NOPTR, $4
DATA magnitude<>+0(SB)/4, $0x7fffffff
GLOBL magnitude<>(SB), RODATA|NOPTR, $4
DATA fraction<>+0(SB)/4, $0x007fffff
GLOBL fraction<>(SB), RODATA|NOPTR, $4
DATA bias<>+0(SB)/4, $0x00400000
GLOBL bias<>(SB), RODATA|NOPTR, $4
DATA one<>+0(SB)/4, $0x3f800000
GLOBL one<>(SB), RODATA|NOPTR, $4
DATA thirtysecond<>+0(SB)/4, $0x3d000000
GLOBL thirtysecond<>(SB), RODATA|NOPTR, $4

// EACH4 executes STEP for four elements at a time, until CX, a multiple of four, is 0. STEP takes
// the offset of an element from SI.
#define EACH4(label, STEP) \
label:                \
	STEP(0)           \
	STEP(64)          \
	STEP(128)         \
	STEP(192)         \
	ADDQ $256, SI     \
	SUBQ $4, CX       \
	JNZ  label

// BEGIN sets SI and CX for a loop over all elements.
#define BEGIN \
	MOVQ DI, SI \
	MOVQ R9, CX

#define SUMSQUARES(at) \
	VMOVUPS (X+at)(SI), V6 \
	VMULPS  V6, V6, V6     \
	VADDPS  V6, V0, V0

#define ADDMEAN(at) \
	VANDPS  (X+at)(SI), V15, V6 \
	VADDPS  V6, V0, V6          \
	VMOVUPS V6, (WEIGHTS+at)(SI)

// MEANWEIGHTS sets the weights to the magnitudes plus the root of their mean square.
#define MEANWEIGHTS \
	VXORPS V0, V0, V0                  \
	BEGIN                              \
	EACH4(squares, SUMSQUARES)         \
	VBROADCASTSS thirtysecond<>(SB), V6 \
	VMULPS V6, V0, V0                  \
	VSQRTPS V0, V0                     \
	BEGIN                              \
	EACH4(mean, ADDMEAN)

#define MAGNITUDE(at) \
	VANDPS  (X+at)(SI), V15, V6 \
	VMOVUPS V6, (WEIGHTS+at)(SI)

// MAGNITUDEWEIGHTS sets the weights to the magnitudes.
#define MAGNITUDEWEIGHTS \
	BEGIN \
	EACH4(magnitudes, MAGNITUDE)

// BOUND extends V13 to V10, the range of the elements, and adds to V8, the sum of the weights, and
// V9, the sum of their products with the elements.
#define BOUND(at) \
	VMOVUPS (X+at)(SI), V6       \
	VMOVUPS (WEIGHTS+at)(SI), V7 \
	VMINPS  V6, V13, V13         \
	VMAXPS  V6, V10, V10         \
	VADDPS  V7, V8, V8           \
	VMULPS  V6, V7, V7           \
	VADDPS  V7, V9, V9

// SETLEVELS sets V6 and the quants to the levels of the elements, for the lowest value V13 and the
// inverse scale V0. V1 is the shift and V2 the highest level plus the shift. The magnitude of a
// level that is not clamped is below 2^22.
#define SETLEVELS(at) \
	VMOVUPS (X+at)(SI), V6 \
	VSUBPS  V13, V6, V6    \
	VMULPS  V0, V6, V6     \
	VADDPS  V1, V6, V6     \
	VMAXPS  V1, V6, V6     \
	VMINPS  V2, V6, V6     \
	VSUBPS  V1, V6, V6     \
	VMOVUPS V6, (QUANTS+at)(SI)

// NEXTLEVELS sets the levels and adds to V3, V4 and V5 the weighted sums of the quants, of their
// squares, and of their products with the elements.
#define NEXTLEVELS(at) \
	SETLEVELS(at)                   \
	VMULPS  (WEIGHTS+at)(SI), V6, V7 \
	VADDPS  V7, V3, V3              \
	VMULPS  V6, V7, V14             \
	VADDPS  V14, V4, V4             \
	VMULPS  (X+at)(SI), V7, V7      \
	VADDPS  V7, V5, V5

// DIFFERENCE sets V6 to the difference of an element and its approximation with the scale S and
// the minimum M.
#define DIFFERENCE(S, M, at) \
	VMULPS (QUANTS+at)(SI), S, V6 \
	VADDPS M, V6, V6              \
	VSUBPS (X+at)(SI), V6, V6

#define ADDSQUARE(SUM, at) \
	VMULPS V6, V6, V6                \
	VMULPS (WEIGHTS+at)(SI), V6, V6  \
	VADDPS V6, SUM, SUM

#define ADDMAGNITUDE(SUM, at) \
	VANDPS V15, V6, V6               \
	VMULPS (WEIGHTS+at)(SI), V6, V6  \
	VADDPS V6, SUM, SUM

#define FIRSTSQUARE(at) \
	DIFFERENCE(V12, V13, at) \
	ADDSQUARE(V11, at)

#define NEXTSQUARE(at) \
	DIFFERENCE(V0, V3, at) \
	ADDSQUARE(V5, at)

#define FIRSTMAGNITUDE(at) \
	DIFFERENCE(V12, V13, at) \
	ADDMAGNITUDE(V11, at)

#define NEXTMAGNITUDE(at) \
	DIFFERENCE(V0, V3, at) \
	ADDMAGNITUDE(V5, at)

// AFFINE is grid.affine for elems elements with the given weights and error. It also writes the
// range of the elements and the smallest range of all trials, by which the caller can tell whether
// the levels were in the range that SETLEVELS requires.
//
// V8 and V9 are sums, V10 is the highest element, V11 the smallest error so far, V12 its scale, and V13 its
// lowest value. In a trial, V14 is the determinant, V0 the scale, and V3 the lowest value; with V5
// as the scale, the lowest value is 0.
#define AFFINE(name, SETWEIGHTS, FIRSTERROR, NEXTERROR) \
TEXT name(SB), NOSPLIT, $0-36               \
	MOVQ c+0(FP), DI                         \
	MOVQ elems+24(FP), R9                    \
	MOVQ $GROUPS, R12                        \
	VBROADCASTSS magnitude<>(SB), V15        \
group:                                       \
	SETWEIGHTS                               \
	VMOVUPS X(DI), V13                       \
	VMOVAPS V13, V10                         \
	VXORPS V8, V8, V8                        \
	VXORPS V9, V9, V9                        \
	BEGIN                                    \
	EACH4(bound, BOUND)                      \
	VXORPS V6, V6, V6                        \
	VMINPS V6, V13, V13                      \
	VSUBPS V13, V10, V7                      \
	VMOVUPS V7, SPREAD(DI)                   \
	VMOVUPS V7, NARROWEST(DI)                \
	VBROADCASTSS shift<>(SB), V1             \
	VBROADCASTSS top+32(FP), V0              \
	VADDPS V1, V0, V2                        \
	VDIVPS V7, V0, V0                        \
	VBROADCASTSS one<>(SB), V12              \
	VDIVPS V0, V12, V12                      \
	BEGIN                                    \
	EACH4(firstlevels, SETLEVELS)            \
	VXORPS V11, V11, V11                     \
	BEGIN                                    \
	EACH4(firsterror, FIRSTERROR)            \
	MOVQ factors+8(FP), R8                   \
	MOVQ trials+16(FP), R10                  \
trial:                                       \
	VSUBPS V13, V10, V7                      \
	VBROADCASTSS (R8), V0                    \
	VDIVPS V7, V0, V0                        \
	VMINPS NARROWEST(DI), V7, V7             \
	VMOVUPS V7, NARROWEST(DI)                \
	VXORPS V3, V3, V3                        \
	VXORPS V4, V4, V4                        \
	VXORPS V5, V5, V5                        \
	BEGIN                                    \
	EACH4(nextlevels, NEXTLEVELS)            \
	VMULPS V4, V8, V14                       \
	VMULPS V3, V3, V6                        \
	VSUBPS V6, V14, V14                      \
	VMULPS V5, V8, V0                        \
	VMULPS V3, V9, V6                        \
	VSUBPS V6, V0, V0                        \
	VDIVPS V14, V0, V0                       \
	VMULPS V9, V4, V7                        \
	VMULPS V5, V3, V3                        \
	VSUBPS V3, V7, V3                        \
	VDIVPS V14, V3, V3                       \
	VDIVPS V4, V5, V5                        \
	VXORPS V4, V4, V4                        \
	COMPARE(GREATER, V4, V3, M1)             \
	PICK(M1, V5, V0)                         \
	PICK(M1, V4, V3)                         \
	VXORPS V5, V5, V5                        \
	BEGIN                                    \
	EACH4(nexterror, NEXTERROR)              \
	COMPARE(LESS, V11, V5, M1)               \
	COMPARE(NOTLESSEQUAL, V4, V14, M2)       \
	BOTH(M2, M1)                             \
	PICK(M1, V5, V11)                        \
	PICK(M1, V0, V12)                        \
	PICK(M1, V3, V13)                        \
	ADDQ $4, R8                              \
	DECQ R10                                 \
	JNZ  trial                               \
	VMOVUPS V12, SCALE(DI)                   \
	VXORPS V6, V6, V6                        \
	VSUBPS V13, V6, V6                       \
	VMOVUPS V6, MINIMUM(DI)                  \
	ADDQ $BYTES, DI                          \
	DECQ R12                                 \
	JNZ  group                               \
	VZEROUPPER                               \
	RET

// EXTREME sets V10 to the element with the largest magnitude, the first of equals, and V9 to the
// magnitude. V15 is the mask of magnitudes.
#define EXTREME(at) \
	VMOVUPS (X+at)(SI), V4       \
	VANDPS  V15, V4, V5          \
	COMPARE(GREATER, V9, V5, M1) \
	PICK(M1, V4, V10)            \
	VMAXPS  V5, V9, V9

#define SQUAREWEIGHT(at) \
	VMOVUPS (X+at)(SI), V6        \
	VMULPS  V6, V6, V7            \
	VMOVUPS V7, (WEIGHTS+at)(SI)  \
	VMULPS  V6, V7, V7            \
	VMOVUPS V7, (SCALED+at)(SI)

// SQUAREWEIGHTS sets V10 and the spread to the extreme of the elements, the weights to their
// squares, and the scaled elements to the products of both. V14 is 0.
#define SQUAREWEIGHTS \
	VBROADCASTSS magnitude<>(SB), V15 \
	VXORPS V9, V9, V9                \
	VXORPS V10, V10, V10             \
	VXORPS V14, V14, V14             \
	BEGIN                            \
	EACH4(extreme, EXTREME)          \
	VMOVUPS V10, SPREAD(DI)          \
	BEGIN                            \
	EACH4(weight, SQUAREWEIGHT)

// FIT adds to V3 and V4 the weighted sums of an element times its quant and of the quant's square.
// V8 is the lowest quant plus the shift.
#define FIT(at) \
	VMULPS (X+at)(SI), V0, V6       \
	VADDPS V1, V6, V6               \
	VMINPS V2, V6, V6               \
	VMAXPS V8, V6, V6               \
	VSUBPS V1, V6, V6               \
	VMULPS (SCALED+at)(SI), V6, V7 \
	VADDPS V7, V3, V3               \
	VMULPS (WEIGHTS+at)(SI), V6, V7 \
	VMULPS V6, V7, V7               \
	VADDPS V7, V4, V4

// FITTED sets V12 to the scale V3/V4, and V11 to its merit, in the lanes where the merit is
// greater.
#define FITTED \
	VMULPS V3, V3, V5            \
	VMULPS V4, V11, V6           \
	VDIVPS V4, V3, V0            \
	COMPARE(GREATER, V6, V5, M1) \
	COMPARE(GREATER, V14, V4, M2) \
	BOTH(M2, M1)                 \
	PICK(M1, V0, V12)            \
	VMULPS V3, V0, V0            \
	PICK(M1, V0, V11)

// SYMMETRIC is symmetric for elems elements. factors begins with the one that maps the extreme to
// the lowest quant. The spread becomes the extreme.
#define SYMMETRIC(name) \
TEXT name(SB), NOSPLIT, $0-40        \
	MOVQ c+0(FP), DI                  \
	MOVQ elems+24(FP), R9             \
	MOVQ $GROUPS, R12                 \
group:                                \
	SQUAREWEIGHTS                     \
	VBROADCASTSS shift<>(SB), V1      \
	VBROADCASTSS lo+32(FP), V8        \
	VADDPS V1, V8, V8                 \
	VBROADCASTSS hi+36(FP), V2        \
	VADDPS V1, V2, V2                 \
	MOVQ factors+8(FP), R8            \
	MOVQ trials+16(FP), R10           \
	VBROADCASTSS (R8), V0             \
	VDIVPS V10, V0, V0                \
	VXORPS V3, V3, V3                 \
	VXORPS V4, V4, V4                 \
	BEGIN                             \
	EACH4(first, FIT)                 \
	VDIVPS V4, V3, V0                 \
	VXORPS V12, V12, V12              \
	COMPARE(NOTEQUAL, V14, V4, M1)    \
	PICK(M1, V0, V12)                 \
	VMULPS V3, V12, V11               \
	JMP  next                         \
trial:                                \
	VBROADCASTSS (R8), V0             \
	VDIVPS V10, V0, V0                \
	VXORPS V3, V3, V3                 \
	VXORPS V4, V4, V4                 \
	BEGIN                             \
	EACH4(fit, FIT)                   \
	FITTED                            \
next:                                 \
	ADDQ $4, R8                       \
	DECQ R10                          \
	JNZ  trial                        \
	VMOVUPS V12, SCALE(DI)            \
	ADDQ $BYTES, DI                   \
	DECQ R12                          \
	JNZ  group                        \
	VZEROUPPER                        \
	RET

// NEAREST sets V0 to the integer nearest to it, from V9 to V10, as a float. V1 is the shift, V2
// the mask of a fraction, and V8 its bias. Whatever V0 is, it takes the steps of clamp.
#define NEAREST \
	VADDPS V1, V0, V0    \
	VANDPS V2, V0, V0    \
	VPSUBD V8, V0, V0    \
	VPMAXSD V9, V0, V0   \
	VPMINSD V10, V0, V0  \
	VCVTDQ2PS V0, V0

// FIRSTQUANT sets a quant to the nearest of V3 times the element and adds to V11 and V12 as FIT
// does.
#define FIRSTQUANT(at) \
	VMULPS  (X+at)(SI), V3, V0       \
	NEAREST                          \
	VMOVUPS V0, (QUANTS+at)(SI)      \
	VMULPS  (SCALED+at)(SI), V0, V4 \
	VADDPS  V4, V11, V11             \
	VMULPS  (WEIGHTS+at)(SI), V0, V4 \
	VMULPS  V0, V4, V4               \
	VADDPS  V4, V12, V12

// DESCENT moves a quant to the value that suits the others best, where that improves the fit.
#define DESCENT(at) \
	VMOVUPS (QUANTS+at)(SI), V3       \
	VMULPS  (SCALED+at)(SI), V3, V4  \
	VSUBPS  V4, V11, V4               \
	VMULPS  (WEIGHTS+at)(SI), V3, V5  \
	VMULPS  V3, V5, V5                \
	VSUBPS  V5, V12, V5               \
	VMULPS  (X+at)(SI), V5, V0        \
	VDIVPS  V4, V0, V0                \
	NEAREST                           \
	COMPARE(GREATER, V14, V4, M1)     \
	COMPARE(NOTEQUAL, V3, V0, M2)     \
	BOTH(M2, M1)                      \
	VMULPS  (SCALED+at)(SI), V0, V15 \
	VADDPS  V15, V4, V4               \
	VMULPS  (WEIGHTS+at)(SI), V0, V15 \
	VMULPS  V0, V15, V15              \
	VADDPS  V15, V5, V5               \
	COMPARE(GREATER, V14, V5, M2)     \
	BOTH(M2, M1)                      \
	VMULPS  V4, V4, V15               \
	VMULPS  V12, V15, V15             \
	VMULPS  V11, V11, V3              \
	VMULPS  V5, V3, V3                \
	COMPARE(GREATER, V3, V15, M2)     \
	BOTH(M2, M1)                      \
	VMOVUPS (QUANTS+at)(SI), V3       \
	PICK(M1, V0, V3)                  \
	VMOVUPS V3, (QUANTS+at)(SI)       \
	PICK(M1, V4, V11)                 \
	PICK(M1, V5, V12)                 \
	CHANGE

// DESCEND is descend for elems elements. lo and hi are the bounds of a quant. The spread becomes
// the extreme.
//
// V11 and V12 are the weighted sums.
#define DESCEND(name) \
TEXT name(SB), NOSPLIT, $0-28        \
	MOVQ c+0(FP), DI                  \
	MOVQ elems+8(FP), R9              \
	MOVQ $GROUPS, R12                 \
group:                                \
	SQUAREWEIGHTS                     \
	VBROADCASTSS first+16(FP), V3     \
	VDIVPS V10, V3, V3                \
	VBROADCASTSS shift<>(SB), V1      \
	VBROADCASTSS fraction<>(SB), V2   \
	VBROADCASTSS bias<>(SB), V8       \
	VBROADCASTSS lo+20(FP), V9        \
	VBROADCASTSS hi+24(FP), V10       \
	VXORPS V11, V11, V11              \
	VXORPS V12, V12, V12              \
	BEGIN                             \
	EACH4(firstquant, FIRSTQUANT)     \
	MOVQ $5, R10                      \
round:                                \
	UNCHANGE                          \
	BEGIN                             \
	EACH4(descent, DESCENT)           \
	IFUNCHANGED(done)                 \
	DECQ R10                          \
	JNZ  round                        \
done:                                 \
	VDIVPS V12, V11, V11              \
	VXORPS V0, V0, V0                 \
	COMPARE(GREATER, V14, V12, M1)    \
	PICK(M1, V11, V0)                 \
	VMOVUPS V0, SCALE(DI)             \
	ADDQ $BYTES, DI                   \
	DECQ R12                          \
	JNZ  group                        \
	VZEROUPPER                        \
	RET

// Halves between the levels of IQ4_NL, from middles+4 on, and the levels. A number is nearest to
// the level of index i if i of the halves are not above it.
DATA middles<>+0(SB)/4, $0xff800000
DATA middles<>+4(SB)/4, $0xc2e70000 // -115.5
DATA middles<>+8(SB)/4, $0xc2bb0000 // -93.5
DATA middles<>+12(SB)/4, $0xc2940000 // -74
DATA middles<>+16(SB)/4, $0xc2640000 // -57
DATA middles<>+20(SB)/4, $0xc2280000 // -42
DATA middles<>+24(SB)/4, $0xc1e40000 // -28.5
DATA middles<>+28(SB)/4, $0xc1800000 // -16
DATA middles<>+32(SB)/4, $0xc0900000 // -4.5
DATA middles<>+36(SB)/4, $0x40e00000 // 7
DATA middles<>+40(SB)/4, $0x41980000 // 19
DATA middles<>+44(SB)/4, $0x41fc0000 // 31.5
DATA middles<>+48(SB)/4, $0x42360000 // 45.5
DATA middles<>+52(SB)/4, $0x42740000 // 61
DATA middles<>+56(SB)/4, $0x429e0000 // 79
DATA middles<>+60(SB)/4, $0x42ca0000 // 101
GLOBL middles<>(SB), RODATA|NOPTR, $64
DATA levels<>+0(SB)/4, $0xc2fe0000 // -127
DATA levels<>+4(SB)/4, $0xc2d00000 // -104
DATA levels<>+8(SB)/4, $0xc2a60000 // -83
DATA levels<>+12(SB)/4, $0xc2820000 // -65
DATA levels<>+16(SB)/4, $0xc2440000 // -49
DATA levels<>+20(SB)/4, $0xc20c0000 // -35
DATA levels<>+24(SB)/4, $0xc1b00000 // -22
DATA levels<>+28(SB)/4, $0xc1200000 // -10
DATA levels<>+32(SB)/4, $0x3f800000 // 1
DATA levels<>+36(SB)/4, $0x41500000 // 13
DATA levels<>+40(SB)/4, $0x41c80000 // 25
DATA levels<>+44(SB)/4, $0x42180000 // 38
DATA levels<>+48(SB)/4, $0x42540000 // 53
DATA levels<>+52(SB)/4, $0x428a0000 // 69
DATA levels<>+56(SB)/4, $0x42b20000 // 89
DATA levels<>+60(SB)/4, $0x42e20000 // 113
GLOBL levels<>(SB), RODATA|NOPTR, $64

// FITLEVELS adds to V3 and V4 as FIT does, for the levels nearest to V0 times the element. LEVEL
// replaces V6 by its level.
#define FITLEVELS(at) \
	VMULPS (X+at)(SI), V0, V6       \
	LEVEL                           \
	VMULPS (WEIGHTS+at)(SI), V6, V7 \
	VMULPS (X+at)(SI), V7, V5       \
	VADDPS V5, V3, V3               \
	VMULPS V6, V7, V7               \
	VADDPS V7, V4, V4

// LEVELSEARCH is scaleOfLevels for elems elements. factors begins with the lowest level. The spread
// becomes the extreme.
#define LEVELSEARCH(name) \
TEXT name(SB), NOSPLIT, $0-32        \
	MOVQ c+0(FP), DI                  \
	MOVQ elems+24(FP), R9             \
	MOVQ $GROUPS, R12                 \
group:                                \
	SQUAREWEIGHTS                     \
	LEVELCONSTANTS                    \
	MOVQ factors+8(FP), R8            \
	MOVQ trials+16(FP), R10           \
	VBROADCASTSS (R8), V0             \
	VSUBPS V10, V14, V5               \
	VDIVPS V0, V5, V5                 \
	VBROADCASTSS one<>(SB), V0        \
	VDIVPS V5, V0, V0                 \
	VXORPS V3, V3, V3                 \
	VXORPS V4, V4, V4                 \
	BEGIN                             \
	EACH4(first, FITLEVELS)           \
	VDIVPS V4, V3, V12                \
	VMULPS V3, V12, V11               \
	JMP  next                         \
trial:                                \
	VBROADCASTSS (R8), V0             \
	VDIVPS V10, V0, V0                \
	VXORPS V3, V3, V3                 \
	VXORPS V4, V4, V4                 \
	BEGIN                             \
	EACH4(fit, FITLEVELS)             \
	FITTED                            \
next:                                 \
	ADDQ $4, R8                       \
	DECQ R10                          \
	JNZ  trial                        \
	VMOVUPS V12, SCALE(DI)            \
	ADDQ $BYTES, DI                   \
	DECQ R12                          \
	JNZ  group                        \
	VZEROUPPER                        \
	RET
