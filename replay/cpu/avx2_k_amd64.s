#include "textflag.h"
#include "avx2_amd64.h"

// Products of rows of weights in superblocks of 256 with quantised activations x, one row at a
// time. doc.go describes the arithmetic of the lanes. The registers are
//
//	SI       the superblock          Y0       sums
//	AX       quants of x, [256]      Y1       sums of the minimums' part
//	BX       scales of x, [8]        Y3       scales of the current half, twice
//	DX       sums of x, [16]         Y4-Y8    temporary
//	Y2       scales, [16]            Y9       d * scales of x, [8]
//	Y13-Y15  constants               Y10      Y9 of the current half, twice

// select holds four shuffles. Applied to the eight scales in each half of a register, shuffle k
// repeats scale 2k in the lower half and scale 2k+1 in the upper half.
DATA select<>+0(SB)/8, $0x0100010001000100
DATA select<>+8(SB)/8, $0x0100010001000100
DATA select<>+16(SB)/8, $0x0302030203020302
DATA select<>+24(SB)/8, $0x0302030203020302
DATA select<>+32(SB)/8, $0x0504050405040504
DATA select<>+40(SB)/8, $0x0504050405040504
DATA select<>+48(SB)/8, $0x0706070607060706
DATA select<>+56(SB)/8, $0x0706070607060706
DATA select<>+64(SB)/8, $0x0908090809080908
DATA select<>+72(SB)/8, $0x0908090809080908
DATA select<>+80(SB)/8, $0x0b0a0b0a0b0a0b0a
DATA select<>+88(SB)/8, $0x0b0a0b0a0b0a0b0a
DATA select<>+96(SB)/8, $0x0d0c0d0c0d0c0d0c
DATA select<>+104(SB)/8, $0x0d0c0d0c0d0c0d0c
DATA select<>+112(SB)/8, $0x0f0e0f0e0f0e0f0e
DATA select<>+120(SB)/8, $0x0f0e0f0e0f0e0f0e
GLOBL select<>(SB), RODATA|NOPTR, $128

// twice is a shuffle that repeats each of 16 bytes.
DATA twice<>+0(SB)/8, $0x0303020201010000
DATA twice<>+8(SB)/8, $0x0707060605050404
DATA twice<>+16(SB)/8, $0x0b0b0a0a09090808
DATA twice<>+24(SB)/8, $0x0f0f0e0e0d0d0c0c
GLOBL twice<>(SB), RODATA|NOPTR, $32

// ROWS is the body of a function. SUPER processes one superblock of size bytes.
#define ROWS(size, SUPER) \
	MOVQ    y+0(FP), DI       \
	MOVQ    w+8(FP), SI       \
	MOVQ    rows+16(FP), R8   \
	MOVQ    blocks+24(FP), R9 \
	MOVQ    q+32(FP), R10     \
	MOVQ    d+40(FP), R11     \
	MOVQ    s+48(FP), R12     \
row: \
	TESTQ   R8, R8     \
	JLE     done       \
	VXORPS  Y0, Y0, Y0 \
	VXORPS  Y1, Y1, Y1 \
	MOVQ    R10, AX    \
	MOVQ    R11, BX    \
	MOVQ    R12, DX    \
	MOVQ    R9, CX     \
super: \
	PREFETCHT0 1024(SI) \
	PREFETCHT0 1088(SI) \
	PREFETCHT0 1152(SI) \
	SUPER               \
	ADDQ    $size, SI   \
	ADDQ    $256, AX    \
	ADDQ    $32, BX     \
	ADDQ    $32, DX     \
	DECQ    CX          \
	JNZ     super       \
	VADDPS  Y1, Y0, Y0  \
	REDUCE8(Y0, X0, X4) \
	VMOVSS  X0, (DI)    \
	ADDQ    $4, DI      \
	DECQ    R8          \
	JMP     row         \
done: \
	VZEROUPPER \
	RET

// SCALE multiplies the superblock's scale at w by the scales of x.
#define SCALE(w) \
	VPBROADCASTW w, X4  \
	VCVTPH2PS    X4, Y4 \
	VMULPS       (BX), Y4, Y9

// MINIMUM subtracts the minimums' part: the 16 minimums in Y5 times the scale at w.
#define MINIMUM(w) \
	VPBROADCASTW w, X4        \
	VCVTPH2PS    X4, Y4       \
	VMULPS       (BX), Y4, Y4 \
	VPMADDWD     (DX), Y5, Y5 \
	VCVTDQ2PS    Y5, Y5       \
	VMULPS       Y4, Y5, Y5   \
	VSUBPS       Y5, Y1, Y1

// DOT multiplies the unsigned quants in Y7 by block b of x and adds pairs of products.
#define DOT(b) \
	VPMADDUBSW (b*32)(AX), Y7, Y7

// DOTLESS is DOT for the quants minus the offset in Y14.
#define DOTLESS(b) \
	VPMADDUBSW (b*32)(AX), Y7, Y7  \
	VPMADDUBSW (b*32)(AX), Y14, Y8 \
	VPSUBW     Y8, Y7, Y7

// HALF selects the scales of the four blocks of a half. order is $0x44 for the lower half and
// $0xee for the upper.
#define HALF(order) \
	VPERMQ order, Y2, Y3 \
	VPERMQ order, Y9, Y10

// ADD adds block k of the half, whose pairs of products are in Y7, to the sums.
#define ADD(k) \
	VPSHUFB   select<>+(k*32)(SB), Y3, Y8 \
	VPMADDWD  Y8, Y7, Y7                  \
	VCVTDQ2PS Y7, Y7                      \
	VPERMILPS $(k*0x55), Y10, Y8          \
	VMULPS    Y8, Y7, Y7                  \
	VADDPS    Y7, Y0, Y0

// Q6BLOCK processes block b. LOW sets Y7 to the low 4 bits of the quants. HIGH shifts Y6 by n,
// so that the high 2 bits are in place.
#define Q6BLOCK(b, k, LOW, HIGH, n) \
	LOW               \
	HIGH  $n, Y6, Y8  \
	VPAND Y13, Y8, Y8 \
	VPOR  Y8, Y7, Y7  \
	DOTLESS(b)        \
	ADD(k)

#define Q6LOWA VPAND Y15, Y4, Y7
#define Q6LOWB VPAND Y15, Y5, Y7
#define Q6HIGHA VPSRLW $4, Y4, Y7 \
	VPAND Y15, Y7, Y7
#define Q6HIGHB VPSRLW $4, Y5, Y7 \
	VPAND Y15, Y7, Y7

// Q6HALF processes the four blocks from b on.
#define Q6HALF(b) \
	VMOVDQU (b*16)(SI), Y4                \
	VMOVDQU (b*16+32)(SI), Y5             \
	VMOVDQU (b*8+128)(SI), Y6             \
	Q6BLOCK((b+0), 0, Q6LOWA, VPSLLW, 4)  \
	Q6BLOCK((b+1), 1, Q6LOWB, VPSLLW, 2)  \
	Q6BLOCK((b+2), 2, Q6HIGHA, VPSRLW, 0) \
	Q6BLOCK((b+3), 3, Q6HIGHB, VPSRLW, 2)

#define Q6SUPER \
	SCALE(208(SI))        \
	VPMOVSXBW 192(SI), Y2 \
	HALF($0x44)           \
	Q6HALF(0)             \
	HALF($0xee)           \
	Q6HALF(4)

// func rowsQ6_KAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsQ6_KAVX2(SB), NOSPLIT, $0-56
	FILL(0x0f0f0f0f0f0f0f0f, X15, Y15)
	FILL(0x2020202020202020, X14, Y14)
	FILL(0x3030303030303030, X13, Y13)
	ROWS(210, Q6SUPER)

// Q4_K and Q5_K pack eight scales and eight minimums of 6 bits into 12 bytes, after two
// float16. k4low selects the bytes with the low bits, for scales 0 to 3 (6 bits), scales 4 to 7
// (4 bits), minimums 0 to 3 (6 bits) and minimums 4 to 7 (4 bits).
DATA k4low<>+0(SB)/8, $0x0f0e0d0c07060504
DATA k4low<>+8(SB)/8, $0x0f0e0d0c0b0a0908
GLOBL k4low<>(SB), RODATA|NOPTR, $16

DATA k4shift<>+0(SB)/8, $0
DATA k4shift<>+8(SB)/8, $0x0000000400000000
GLOBL k4shift<>(SB), RODATA|NOPTR, $16

DATA k4mask<>+0(SB)/8, $0x0f0f0f0f3f3f3f3f
DATA k4mask<>+8(SB)/8, $0x0f0f0f0f3f3f3f3f
GLOBL k4mask<>(SB), RODATA|NOPTR, $16

// k4high selects the bytes whose top 2 bits complete the 4-bit values.
DATA k4high<>+0(SB)/8, $0x0706050480808080
DATA k4high<>+8(SB)/8, $0x0b0a090880808080
GLOBL k4high<>(SB), RODATA|NOPTR, $16

// K4SCALES unpacks the scales to the words of Y2 and the minimums to the words of Y5, each
// value twice. X13 must be 0x30 in every byte.
#define K4SCALES \
	VMOVDQU   (SI), X2               \
	VPSHUFB   k4low<>(SB), X2, X3    \
	VPSRLVD   k4shift<>(SB), X3, X3  \
	VPAND     k4mask<>(SB), X3, X3   \
	VPSHUFB   k4high<>(SB), X2, X2   \
	VPSRLD    $2, X2, X2             \
	VPAND     X13, X2, X2            \
	VPOR      X2, X3, X3             \
	VPSHUFB   twice<>+0(SB), X3, X2  \
	VPSHUFB   twice<>+16(SB), X3, X5 \
	VPMOVZXBW X2, Y2                 \
	VPMOVZXBW X5, Y5

// Q4PAIR processes blocks b and b+1, the low and high nibbles of the same bytes.
#define Q4PAIR(b, k, k1) \
	VMOVDQU (b*16+16)(SI), Y4 \
	VPAND   Y15, Y4, Y7       \
	DOT(b)                    \
	ADD(k)                    \
	VPSRLW  $4, Y4, Y7        \
	VPAND   Y15, Y7, Y7       \
	DOT((b+1))                \
	ADD(k1)

#define Q4SUPER \
	SCALE((SI))     \
	K4SCALES        \
	MINIMUM(2(SI))  \
	HALF($0x44)     \
	Q4PAIR(0, 0, 1) \
	Q4PAIR(2, 2, 3) \
	HALF($0xee)     \
	Q4PAIR(4, 0, 1) \
	Q4PAIR(6, 2, 3)

// func rowsQ4_KAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsQ4_KAVX2(SB), NOSPLIT, $0-56
	FILL(0x0f0f0f0f0f0f0f0f, X15, Y15)
	FILL(0x3030303030303030, X13, Y13)
	ROWS(144, Q4SUPER)

// Q5BIT adds the fifth bit to the quants in Y7. SHIFT by n moves the bit from Y6 to its place.
#define Q5BIT(SHIFT, n) \
	SHIFT $n, Y6, Y8  \
	VPAND Y14, Y8, Y8 \
	VPOR  Y8, Y7, Y7

// Q5PAIR processes blocks b and b+1.
#define Q5PAIR(b, k, k1, SHIFT, n, SHIFT1, n1) \
	VMOVDQU (b*16+48)(SI), Y4 \
	VPAND   Y15, Y4, Y7       \
	Q5BIT(SHIFT, n)           \
	DOT(b)                    \
	ADD(k)                    \
	VPSRLW  $4, Y4, Y7        \
	VPAND   Y15, Y7, Y7       \
	Q5BIT(SHIFT1, n1)         \
	DOT((b+1))                \
	ADD(k1)

#define Q5SUPER \
	SCALE((SI))                           \
	K4SCALES                              \
	MINIMUM(2(SI))                        \
	VMOVDQU 16(SI), Y6                    \
	HALF($0x44)                           \
	Q5PAIR(0, 0, 1, VPSLLW, 4, VPSLLW, 3) \
	Q5PAIR(2, 2, 3, VPSLLW, 2, VPSLLW, 1) \
	HALF($0xee)                           \
	Q5PAIR(4, 0, 1, VPSRLW, 0, VPSRLW, 1) \
	Q5PAIR(6, 2, 3, VPSRLW, 2, VPSRLW, 3)

// func rowsQ5_KAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsQ5_KAVX2(SB), NOSPLIT, $0-56
	FILL(0x0f0f0f0f0f0f0f0f, X15, Y15)
	FILL(0x1010101010101010, X14, Y14)
	FILL(0x3030303030303030, X13, Y13)
	ROWS(176, Q5SUPER)

// Q2BLOCK processes block b, whose quants are the low 2 bits of Y4, and shifts them out.
#define Q2BLOCK(b, k) \
	VPAND  Y15, Y4, Y7 \
	VPSRLW $2, Y4, Y4  \
	DOT(b)             \
	ADD(k)

#define Q2HALF(b) \
	VMOVDQU (b*8+16)(SI), Y4 \
	Q2BLOCK((b+0), 0)        \
	Q2BLOCK((b+1), 1)        \
	Q2BLOCK((b+2), 2)        \
	Q2BLOCK((b+3), 3)

#define Q2SUPER \
	SCALE(80(SI))         \
	VMOVDQU   (SI), X2    \
	VPSRLW    $4, X2, X5  \
	VPAND     X14, X2, X2 \
	VPAND     X14, X5, X5 \
	VPMOVZXBW X2, Y2      \
	VPMOVZXBW X5, Y5      \
	MINIMUM(82(SI))       \
	HALF($0x44)           \
	Q2HALF(0)             \
	HALF($0xee)           \
	Q2HALF(4)

// func rowsQ2_KAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsQ2_KAVX2(SB), NOSPLIT, $0-56
	FILL(0x0303030303030303, X15, Y15)
	FILL(0x0f0f0f0f0f0f0f0f, X14, Y14)
	ROWS(84, Q2SUPER)

// Q3_K packs 16 scales of 6 bits into 12 bytes, followed by a float16. These bytes are loaded
// with the last 16 bytes of the superblock, so they begin at byte 2. The low 4 bits of the
// scales are the low nibbles, then the high nibbles, of the first eight bytes. The high 2 bits
// are at bits 0, 2, 4 and 6 of the last four bytes.
DATA q3low<>+0(SB)/8, $0x0908070605040302
DATA q3low<>+8(SB)/8, $0x0908070605040302
GLOBL q3low<>(SB), RODATA|NOPTR, $16

DATA q3lowshift<>+0(SB)/8, $0
DATA q3lowshift<>+8(SB)/8, $0x0000000400000004
GLOBL q3lowshift<>(SB), RODATA|NOPTR, $16

DATA q3high<>+0(SB)/8, $0x0d0c0b0a0d0c0b0a
DATA q3high<>+8(SB)/8, $0x0d0c0b0a0d0c0b0a
GLOBL q3high<>(SB), RODATA|NOPTR, $16

DATA q3highshift<>+0(SB)/8, $0x0000000200000000
DATA q3highshift<>+8(SB)/8, $0x0000000600000004
GLOBL q3highshift<>(SB), RODATA|NOPTR, $16

DATA q3bytes<>+0(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA q3bytes<>+8(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA q3bytes<>+16(SB)/8, $0x2020202020202020
DATA q3bytes<>+24(SB)/8, $0x2020202020202020
GLOBL q3bytes<>(SB), RODATA|NOPTR, $32

// Q3BLOCK processes block b. The low 2 bits of its quants are the low 2 bits of Y4, which it
// shifts out. SHIFT by n moves the third bit from Y13 to its place.
#define Q3BLOCK(b, k, SHIFT, n) \
	VPAND  Y15, Y4, Y7 \
	VPSRLW $2, Y4, Y4  \
	SHIFT  $n, Y13, Y8 \
	VPAND  Y14, Y8, Y8 \
	VPOR   Y8, Y7, Y7  \
	DOTLESS(b)         \
	ADD(k)

#define Q3SUPER \
	SCALE(108(SI))                      \
	VMOVDQU   94(SI), X2                \
	VPSHUFB   q3low<>(SB), X2, X3       \
	VPSRLVD   q3lowshift<>(SB), X3, X3  \
	VPAND     q3bytes<>+0(SB), X3, X3   \
	VPSHUFB   q3high<>(SB), X2, X2      \
	VPSRLVD   q3highshift<>(SB), X2, X2 \
	VPAND     X15, X2, X2               \
	VPSLLW    $4, X2, X2                \
	VPOR      X3, X2, X2                \
	VPSUBB    q3bytes<>+16(SB), X2, X2  \
	VPMOVSXBW X2, Y2                    \
	VMOVDQU   (SI), Y13                 \
	VMOVDQU   32(SI), Y4                \
	HALF($0x44)                         \
	Q3BLOCK(0, 0, VPSLLW, 2)            \
	Q3BLOCK(1, 1, VPSLLW, 1)            \
	Q3BLOCK(2, 2, VPSRLW, 0)            \
	Q3BLOCK(3, 3, VPSRLW, 1)            \
	VMOVDQU   64(SI), Y4                \
	HALF($0xee)                         \
	Q3BLOCK(4, 0, VPSRLW, 2)            \
	Q3BLOCK(5, 1, VPSRLW, 3)            \
	Q3BLOCK(6, 2, VPSRLW, 4)            \
	Q3BLOCK(7, 3, VPSRLW, 5)

// func rowsQ3_KAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsQ3_KAVX2(SB), NOSPLIT, $0-56
	FILL(0x0303030303030303, X15, Y15)
	FILL(0x0404040404040404, X14, Y14)
	ROWS(110, Q3SUPER)

// IQ4_XS has eight scales of 6 bits after a float16: their high 2 bits are in one word,
// followed by four bytes with the low 4 bits. The code spreads both over words and multiplies
// them by powers of two that move them to the same place in every word.
DATA x4low<>+0(SB)/8, $0x8005800580048004
DATA x4low<>+8(SB)/8, $0x8007800780068006
GLOBL x4low<>(SB), RODATA|NOPTR, $16

DATA x4lowfactor<>+0(SB)/8, $0x0001001000010010
DATA x4lowfactor<>+8(SB)/8, $0x0001001000010010
GLOBL x4lowfactor<>(SB), RODATA|NOPTR, $16

DATA x4lowmask<>+0(SB)/8, $0x00f000f000f000f0
DATA x4lowmask<>+8(SB)/8, $0x00f000f000f000f0
GLOBL x4lowmask<>(SB), RODATA|NOPTR, $16

DATA x4high<>+0(SB)/8, $0x0302030203020302
DATA x4high<>+8(SB)/8, $0x0302030203020302
GLOBL x4high<>(SB), RODATA|NOPTR, $16

DATA x4highfactor<>+0(SB)/8, $0x0100040010004000
DATA x4highfactor<>+8(SB)/8, $0x0001000400100040
GLOBL x4highfactor<>(SB), RODATA|NOPTR, $16

DATA x4offset<>+0(SB)/8, $0x0020002000200020
DATA x4offset<>+8(SB)/8, $0x0020002000200020
GLOBL x4offset<>(SB), RODATA|NOPTR, $16

// X4BLOCK processes block b. Low nibbles go to the lower half of a register, high nibbles to
// the upper half, and select levels in Y14. The absolute values of the levels are
// multiplied by x with the signs of the levels, so that the sum of two products fits in 16 bits.
#define X4BLOCK(b, k) \
	VBROADCASTI128 (b*16+8)(SI), Y4 \
	VPSRLVQ        Y13, Y4, Y4      \
	VPAND          Y15, Y4, Y4      \
	VPSHUFB        Y4, Y14, Y4      \
	VMOVDQU        (b*32)(AX), Y7   \
	VPSIGNB        Y4, Y7, Y7       \
	VPABSB         Y4, Y4           \
	VPMADDUBSW     Y7, Y4, Y7       \
	ADD(k)

#define X4SUPER \
	SCALE((SI))                            \
	VMOVQ       (SI), X2                   \
	VPSHUFB     x4low<>(SB), X2, X3        \
	VPMULLW     x4lowfactor<>(SB), X3, X3  \
	VPAND       x4lowmask<>(SB), X3, X3    \
	VPSRLW      $4, X3, X3                 \
	VPSHUFB     x4high<>(SB), X2, X2       \
	VPMULLW     x4highfactor<>(SB), X2, X2 \
	VPSRLW      $14, X2, X2                \
	VPSLLW      $4, X2, X2                 \
	VPOR        X3, X2, X2                 \
	VPSUBW      x4offset<>(SB), X2, X2     \
	VPUNPCKLWD  X2, X2, X3                 \
	VPUNPCKHWD  X2, X2, X2                 \
	VINSERTI128 $1, X2, Y3, Y2             \
	HALF($0x44)                            \
	X4BLOCK(0, 0)                          \
	X4BLOCK(1, 1)                          \
	X4BLOCK(2, 2)                          \
	X4BLOCK(3, 3)                          \
	HALF($0xee)                            \
	X4BLOCK(4, 0)                          \
	X4BLOCK(5, 1)                          \
	X4BLOCK(6, 2)                          \
	X4BLOCK(7, 3)

// func rowsIQ4_XSAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)
TEXT ·rowsIQ4_XSAVX2(SB), NOSPLIT, $0-56
	FILL(0x0f0f0f0f0f0f0f0f, X15, Y15)
	LEVELSIQ4(X14, Y14)
	SHIFTS(X13, Y13)
	ROWS(136, X4SUPER)
