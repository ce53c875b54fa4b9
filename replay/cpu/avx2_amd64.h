// Macros shared by the products of quantised rows. rowsAssembled is their counterpart in Go.

// REDUCE8 adds up the eight lanes of Y0 into lane 0. X0 is the lower half of Y0.
#define REDUCE8(Y0, X0, X1) \
	VEXTRACTF128 $1, Y0, X1 \
	VADDPS       X1, X0, X0 \
	VMOVHLPS     X0, X0, X1 \
	VADDPS       X1, X0, X0 \
	VMOVSHDUP    X0, X1     \
	VADDSS       X1, X0, X0

// FILL sets every 8 bytes of Y to a constant. X is the lower half of Y. It uses AX.
#define FILL(value, X, Y) \
	MOVQ         $value, AX \
	VMOVQ        AX, X      \
	VPBROADCASTQ X, Y

// SHIFTS sets Y to the shift counts for VPSRLVQ: 0 in the lower half, 4 in the upper half. X is
// the lower half of Y. It uses AX and X0.
#define SHIFTS(X, Y) \
	FILL(4, X0, Y0) \
	VPXOR X, X, X   \
	VINSERTI128 $1, X0, Y, Y

// LEVELSIQ4 sets both halves of Y to the levels of IQ4_NL and IQ4_XS. X is the lower half of Y.
// It uses AX and X0.
#define LEVELSIQ4(X, Y) \
	MOVQ        $0xf6eaddcfbfad9881, AX \
	VMOVQ       AX, X                   \
	MOVQ        $0x7159453526190d01, AX \
	VMOVQ       AX, X0                  \
	VPUNPCKLQDQ X0, X, X                \
	VINSERTI128 $1, X, Y, Y
