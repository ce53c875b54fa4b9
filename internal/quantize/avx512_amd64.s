#include "textflag.h"

#define V0 Z0
#define V1 Z1
#define V2 Z2
#define V3 Z3
#define V4 Z4
#define V5 Z5
#define V6 Z6
#define V7 Z7
#define V8 Z8
#define V9 Z9
#define V10 Z10
#define V11 Z11
#define V12 Z12
#define V13 Z13
#define V14 Z14
#define V15 Z15
#define M1 K1
#define M2 K2
#define BYTES 64
#define GROUPS 1

// COMPARE sets M to the lanes in which the predicate holds for A and B.
#define COMPARE(PREDICATE, B, A, M) \
	VCMPPS $PREDICATE, B, A, M

// BOTH removes from M the lanes that are not in N.
#define BOTH(N, M) \
	KANDW N, M, M

// PICK copies the lanes in M.
#define PICK(M, FROM, TO) \
	VMOVAPS FROM, M, TO

// UNCHANGE empties the set of changed lanes, and CHANGE adds those in M1.
#define UNCHANGE \
	KXORW K3, K3, K3
#define CHANGE \
	KORW M1, K3, K3
#define IFUNCHANGED(label) \
	KORTESTW K3, K3 \
	JEQ label

// HIGHER adds STEP to the index Z7 in the lanes of Z6 that are not below the half of the sum. The
// indices are multiples of 2*STEP. Z13 holds the halves.
#define HIGHER(STEP) \
	VPADDD  STEP, Z7, Z5       \
	VPERMPS Z13, Z5, Z15       \
	COMPARE(NOTLESS, Z15, Z6, K1) \
	VMOVDQA32 Z5, K1, Z7

#define LEVELCONSTANTS \
	VMOVUPS middles<>(SB), Z13      \
	VMOVUPS levels<>(SB), Z16       \
	VPBROADCASTD fours<>+0(SB), Z17 \
	VPBROADCASTD fours<>+4(SB), Z18 \
	VPBROADCASTD fours<>+8(SB), Z19 \
	VPBROADCASTD fours<>+12(SB), Z20

#define LEVEL \
	VPXORD Z7, Z7, Z7 \
	HIGHER(Z17)       \
	HIGHER(Z18)       \
	HIGHER(Z19)       \
	HIGHER(Z20)       \
	VPERMPS Z16, Z7, Z6

DATA fours<>+0(SB)/4, $8
DATA fours<>+4(SB)/4, $4
DATA fours<>+8(SB)/4, $2
DATA fours<>+12(SB)/4, $1
GLOBL fours<>(SB), RODATA|NOPTR, $16

#include "search_amd64.h"

// func affineMeanAVX512(c *columns, factors *float32, trials, elems int, top float32)
AFFINE(·affineMeanAVX512, MEANWEIGHTS, FIRSTSQUARE, NEXTSQUARE)

// func affineMagnitudeAVX512(c *columns, factors *float32, trials, elems int, top float32)
AFFINE(·affineMagnitudeAVX512, MAGNITUDEWEIGHTS, FIRSTMAGNITUDE, NEXTMAGNITUDE)

// func symmetricAVX512(c *columns, factors *float32, trials, elems int, lo, hi float32)
SYMMETRIC(·symmetricAVX512)

// func descendAVX512(c *columns, elems int, first float32, lo, hi int32)
DESCEND(·descendAVX512)

// func levelsAVX512(c *columns, factors *float32, trials, elems int)
LEVELSEARCH(·levelsAVX512)
