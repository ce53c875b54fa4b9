// Macros for AMX products of strips of 16 rows in layout Tiled16 with 16, 32, 48 or 64 rows of quantised
// activations. They compute the same arithmetic as tiledFunc.
//
// The columns of a strip are processed in chunks of at most CHUNK tiles. First the chunk's quants
// are expanded to int8, minus the type's offset, and its scales to float32: a record for each tile.
// Then groups of 16 rows of x are multiplied with the records. STEP multiplies the quants
// of a tile with 16 rows of x and stores the 16 by 16 integer sums in memory; POST adds these sums,
// times the scales, to the float sums in Z0-Z15. STEP runs one tile ahead of POST, so that the tile
// unit and the vector unit work at the same time. Registers:
//
//	SI       weights                   Z0-Z15   float sums, a register for each row of x
//	R12 R13  stride of x, 64           Z16-Z31  constants and temporary while weights are
//	R15      work area                          expanded, else
//	R11 BX   quants and scales of x,   Z24      d, m, or their products
//	         first row of the chunk    Z26 Z27  integer scales, or minimums, as float32
//	R9 R10   first row of the group,   Z16-Z18  temporary
//	         and its saved sums        K1       tiles of the chunk
//
// While weights are expanded, DI is the record, R8 the integer scales, CX and R14 count blocks and
// tiles. While they are multiplied, DI is the record and DX the scales of x for POST, R14 the record
// and AX the quants of x for STEP, R8 the integer sums, and CX the number of tiles left.
//
// The work area is part of the frame of 25,728 bytes, which also has room for its alignment and for
// variables. The work area's parts are, in bytes from its beginning:

#define CHUNK 16
#define RECORD 896                  // int8 [8, 16, 4] quants, then vectors at
#define RECORDD 512                 // d, times the integer scales of all columns if there are such
#define RECORDS 576                 // integer scales of columns 0 to 15
#define RECORDT 640                 // integer scales of columns 16 to 31
#define RECORDM 704                 // minimums of all columns, or the scale of two minimums
#define RECORDN 768                 // minimums of columns 0 to 15
#define RECORDO 832                 // minimums of columns 16 to 31
#define WORKX (CHUNK*RECORD)        // [16, CHUNK] scales of x
#define WORKS (WORKX+64*CHUNK)      // [16, CHUNK] sums of x: of all columns, times the scales, or of columns 0 to 15
#define WORKT (WORKS+64*CHUNK)      // [16, CHUNK] sums of x of columns 16 to 31
#define WORKI (WORKT+64*CHUNK)      // [2] integer sums of a step, 2 KiB each
#define WORKY (WORKI+4096)          // [4, 16, 16] float sums of the groups

// Go's assembler lacks AMX. The following macros encode its instructions; a test compares them with
// clang's encoding of the text in each comment. a, b, c and t are numbers of tiles.

// ldtilecfg [rax]
#define LDTILECFG BYTE $0xc4; BYTE $0xe2; BYTE $0x78; BYTE $0x49; BYTE $0x00
// tilerelease
#define TILERELEASE BYTE $0xc4; BYTE $0xe2; BYTE $0x78; BYTE $0x49; BYTE $0xc0
// tilezero tmm{t}
#define TILEZERO(t) BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $(0xc0+8*(t))
// {disp32} tileloadd tmm{t}, [rax + r12 + {d}]
#define TILELOADX(t, d) BYTE $0xc4; BYTE $0xa2; BYTE $0x7b; BYTE $0x4b; BYTE $(0x84+8*(t)); BYTE $0x20; LONG $(d)
// {disp32} tileloadd tmm{t}, [r14 + r13 + {d}]
#define TILELOADW(t, d) BYTE $0xc4; BYTE $0x82; BYTE $0x7b; BYTE $0x4b; BYTE $(0x84+8*(t)); BYTE $0x2e; LONG $(d)
// {disp32} tilestored [r8 + r13 + {d}], tmm{t}
#define TILESTORE(t, d) BYTE $0xc4; BYTE $0x82; BYTE $0x7a; BYTE $0x4b; BYTE $(0x84+8*(t)); BYTE $0x28; LONG $(d)
// tdpbssd tmm{c}, tmm{a}, tmm{b}
#define TDPBSSD(c, a, b) BYTE $0xc4; BYTE $0xe2; BYTE $(0x7b-8*(b)); BYTE $0x5e; BYTE $(0xc0+8*(c)+(a))

// The assembler lacks this instruction too.
// prefetchw [rdi]
#define PREFETCHW BYTE $0x0f; BYTE $0x0d; BYTE $0x0f

// Arguments of the macros of tiles, as in avx512_tiled_amd64.h, that fill a record. Z0 holds minus
// the type's offset in every byte.
#define NONE
#define NONEOF(C)
#define KEEP(g, W) \
	VPADDB    Z0, W, W         \
	VMOVDQU64 W, (64*(g))(DI)
#define KEEPD \
	VMOVUPS Z24, RECORDD(DI)
#define KEEPDS \
	VMOVUPS Z26, RECORDD(DI)
#define KEEPDST \
	KEEPD                    \
	VMOVUPS Z26, RECORDS(DI) \
	VMOVUPS Z27, RECORDT(DI)
// KEEPMIN keeps M, or minus M if OP subtracts: the product with 1. KEEPMINS does so with the scale of two
// minimums, and keeps these as float32.
#define KEEPMIN(OP, M) \
	VPTERNLOGD $0xff, Z1, Z1, Z1 \
	VPSRLD     $25, Z1, Z1       \
	VPSLLD     $23, Z1, Z1       \
	VPXORD     Z2, Z2, Z2        \
	OP         Z1, M, Z2         \
	VMOVUPS    Z2, RECORDM(DI)
#define KEEPMINS(OP, C) \
	KEEPMIN(OP, Z25)             \
	VPSLLD     $16, C, Z2        \
	VPSRAD     $16, Z2, Z2       \
	VCVTDQ2PS  Z2, Z2            \
	VMOVUPS    Z2, RECORDN(DI)   \
	VPSRAD     $16, C, Z2        \
	VCVTDQ2PS  Z2, Z2            \
	VMOVUPS    Z2, RECORDO(DI)

// EACH16 applies a macro to the numbers 0 to 15 and the registers Z0 to Z15.
#define EACH16(ROW) \
	ROW(0, Z0)   \
	ROW(1, Z1)   \
	ROW(2, Z2)   \
	ROW(3, Z3)   \
	ROW(4, Z4)   \
	ROW(5, Z5)   \
	ROW(6, Z6)   \
	ROW(7, Z7)   \
	ROW(8, Z8)   \
	ROW(9, Z9)   \
	ROW(10, Z10) \
	ROW(11, Z11) \
	ROW(12, Z12) \
	ROW(13, Z13) \
	ROW(14, Z14) \
	ROW(15, Z15)

#define ZEROROW(i, Z) \
	VPXORD Z, Z, Z
#define LOADROW(i, Z) \
	VMOVUPS (64*i)(R10), Z
#define SAVEROW(i, Z) \
	VMOVUPS Z, (64*i)(R10)

// ROWSOFY sets DI to the first row of y of the group, and DX to the stride of y.
#define ROWSOFY \
	MOVQ  yStride+8(FP), DX \
	MOVQ  R9, DI            \
	IMULQ DX, DI            \
	ADDQ  at-32(SP), DI

// FETCHROW requests a row of y for writing, and STOREROW writes it. Without the request, TILESTORE
// waits until the rows of y before it, which are seldom in a cache, are written.
#define FETCHROW(i, Z) \
	PREFETCHW    \
	ADDQ DX, DI
#define STOREROW(i, Z) \
	VMOVUPS Z, (DI)     \
	ADDQ    DX, DI

// STEP1 multiplies the columns of a tile together, STEP2 columns 0 to 15 and 16 to 31 separately.
// s, 0 or 1, selects the integer sums.
#define STEP1(s) \
	TILELOADX(4+s, 0)     \
	TILELOADW(6+s, 0)     \
	TILEZERO(s)           \
	TDPBSSD(s, 4+s, 6+s)  \
	TILESTORE(s, 2048*s)  \
	ADDQ $32, AX          \
	ADDQ $RECORD, R14
#define STEP2(s) \
	TILELOADX(4, 0)              \
	TILELOADW(6, 0)              \
	TILEZERO(2*s)                \
	TDPBSSD(2*s, 4, 6)           \
	TILELOADX(5, 16)             \
	TILELOADW(7, 256)            \
	TILEZERO(2*s+1)              \
	TDPBSSD(2*s+1, 5, 7)         \
	TILESTORE(2*s, 2048*s)       \
	TILESTORE(2*s+1, 2048*s+1024) \
	ADDQ $32, AX                 \
	ADDQ $RECORD, R14

// POSTD adds integer sums times d and the scale of x. POSTDS multiplies them by the scale of x and then
// by d times the integer scale, POSTDST by an integer scale for each half of the columns first; products
// with integer scales are exact.
#define POSTDROW(at, i, Z) \
	VCVTDQ2PS   (at+64*i)(R8), Z16         \
	VMULPS.BCST (4*CHUNK*i)(DX), Z24, Z17  \
	VFMADD231PS Z17, Z16, Z
#define POSTDROW0(i, Z) POSTDROW(0, i, Z)
#define POSTDROW1(i, Z) POSTDROW(2048, i, Z)
#define POSTD(ROW) \
	VMOVUPS RECORDD(DI), Z24 \
	EACH16(ROW)
#define POSTD0 POSTD(POSTDROW0)
#define POSTD1 POSTD(POSTDROW1)

#define POSTDSROW(at, i, Z) \
	VCVTDQ2PS   (at+64*i)(R8), Z16         \
	VMULPS.BCST (4*CHUNK*i)(DX), Z16, Z16  \
	VFMADD231PS Z24, Z16, Z
#define POSTDSROW0(i, Z) POSTDSROW(0, i, Z)
#define POSTDSROW1(i, Z) POSTDSROW(2048, i, Z)
#define POSTDS0 POSTD(POSTDSROW0)
#define POSTDS1 POSTD(POSTDSROW1)

#define POSTDSTROW(at, i, Z) \
	VCVTDQ2PS   (at+64*i)(R8), Z16         \
	VCVTDQ2PS   (at+1024+64*i)(R8), Z18    \
	VMULPS.BCST (4*CHUNK*i)(DX), Z24, Z17  \
	VMULPS      Z26, Z16, Z16              \
	VFMADD231PS Z27, Z18, Z16              \
	VFMADD231PS Z17, Z16, Z
#define POSTDSTROW0(i, Z) POSTDSTROW(0, i, Z)
#define POSTDSTROW1(i, Z) POSTDSTROW(2048, i, Z)
#define POSTDST(ROW) \
	VMOVUPS RECORDS(DI), Z26 \
	VMOVUPS RECORDT(DI), Z27 \
	POSTD(ROW)
#define POSTDST0 POSTDST(POSTDSTROW0)
#define POSTDST1 POSTDST(POSTDSTROW1)

// MINROW adds the minimums times the sum of a row of x, and the scale of x. MINSROW adds both minimums times the sums of
// columns 0 to 15 and 16 to 31, which is exact because minimums are below 16 and sums below 2^12, times
// the scales of the minimums and of x.
#define MINROW(i, Z) \
	VFMADD231PS.BCST (WORKS-WORKX+4*CHUNK*i)(DX), Z25, Z
#define MINSROW(i, Z) \
	VMULPS.BCST      (WORKS-WORKX+4*CHUNK*i)(DX), Z28, Z18 \
	VFMADD231PS.BCST (WORKT-WORKX+4*CHUNK*i)(DX), Z29, Z18 \
	VMULPS.BCST      (4*CHUNK*i)(DX), Z25, Z19             \
	VFMADD231PS      Z19, Z18, Z

// POSTDM, POSTDSM and POSTDSTM are POSTD, POSTDS and POSTDST for types with minimums.
#define POSTDMROW0(i, Z) \
	POSTDROW0(i, Z) \
	MINROW(i, Z)
#define POSTDMROW1(i, Z) \
	POSTDROW1(i, Z) \
	MINROW(i, Z)
#define POSTDM(ROW) \
	VMOVUPS RECORDM(DI), Z25 \
	POSTD(ROW)
#define POSTDM0 POSTDM(POSTDMROW0)
#define POSTDM1 POSTDM(POSTDMROW1)

#define POSTDSMROW0(i, Z) \
	POSTDSROW0(i, Z) \
	MINROW(i, Z)
#define POSTDSMROW1(i, Z) \
	POSTDSROW1(i, Z) \
	MINROW(i, Z)
#define POSTDSM0 POSTDM(POSTDSMROW0)
#define POSTDSM1 POSTDM(POSTDSMROW1)

#define POSTDSTMROW0(i, Z) \
	POSTDSTROW0(i, Z) \
	MINSROW(i, Z)
#define POSTDSTMROW1(i, Z) \
	POSTDSTROW1(i, Z) \
	MINSROW(i, Z)
#define POSTDSTM(ROW) \
	VMOVUPS RECORDM(DI), Z25 \
	VMOVUPS RECORDN(DI), Z28 \
	VMOVUPS RECORDO(DI), Z29 \
	POSTDST(ROW)
#define POSTDSTM0 POSTDSTM(POSTDSTMROW0)
#define POSTDSTM1 POSTDSTM(POSTDSTMROW1)

// SUMS1 copies the sums of blocks of a row of x, which include its scales. K1 selects tiles, each of which
// has a float32 at the address DX+R14. SUMS2 copies the sums of columns 0 to 15 and 16 to 31, two int16 each,
// which do not include the scales.
#define SUMS1 \
	VMOVUPS.Z (DX)(R14*1), K1, Z16   \
	VMOVUPS   Z16, (WORKS-WORKX)(DI)
#define SUMS2 \
	VMOVDQU32.Z (DX)(R14*1), K1, Z16       \
	VPSLLD      $16, Z16, Z17              \
	VPSRAD      $16, Z17, Z17              \
	VPSRAD      $16, Z16, Z16              \
	VCVTDQ2PS   Z16, Z16                   \
	VCVTDQ2PS   Z17, Z17                   \
	VMOVUPS     Z17, (WORKS-WORKX)(DI)     \
	VMOVUPS     Z16, (WORKT-WORKX)(DI)

// AMX is the body of a function. minus holds minus the type's offset in every byte. A block consists
// of head bytes, which the macro HEAD reads, and the given number of tiles of size bytes, which TILE
// expands. shape is the configuration of the tiles. While the scales of x are copied, the beginnings of
// its rows are requested.
#define AMX(minus, head, tiles, size, CONSTANTS, HEAD, TILE, SUMS, STEP, POST0, POST1) \
	NO_LOCAL_POINTERS             \
	MOVQ shape+72(FP), AX         \
	LDTILECFG                     \
	LEAQ 63(SP), R15              \
	ANDQ $~63, R15                \
	MOVQ w+16(FP), SI             \
	MOVQ xStride+48(FP), R12      \
	MOVL $64, R13                 \
	MOVQ y+0(FP), AX              \
	MOVQ AX, at-32(SP)            \
strip: \
	MOVQ x+40(FP), R11            \
	MOVQ in+56(FP), BX            \
	ADDQ R11, BX                  \
	MOVQ blocks+32(FP), CX        \
	MOVQ CX, left-8(SP)           \
chunk: \
	CONSTANTS                     \
	FILL32(minus, Z0)             \
	MOVL $(CHUNK/tiles), CX       \
	CMPQ CX, left-8(SP)           \
	CMOVQGT left-8(SP), CX        \
	MOVQ CX, now-16(SP)           \
	MOVQ R15, DI                  \
block: \
	HEAD                          \
	ADDQ $head, SI                \
	MOVL $tiles, R14              \
tile: \
	TILE                          \
	ADDQ $size, SI                \
	ADDQ $RECORD, DI              \
	DECL R14                      \
	JNE  tile                     \
	DECQ CX                       \
	JNE  block                    \
	MOVQ  now-16(SP), CX          \
	IMUL3Q $tiles, CX, CX         \
	MOVQ  CX, count-24(SP)        \
	MOVL  $1, AX                  \
	SHLQ  CX, AX                  \
	DECQ  AX                      \
	KMOVW AX, K1                  \
	XORL  R9, R9                  \
	LEAQ  WORKY(R15), R10         \
group: \
	MOVQ  R9, AX                  \
	IMULQ R12, AX                 \
	LEAQ  (BX)(AX*1), DX          \
	ADDQ  R11, AX                 \
	LEAQ  WORKX(R15), DI          \
	MOVQ  in+56(FP), R14          \
	SHRQ  $3, R14                 \
	MOVL  $16, CX                 \
	MOVQ  AX, R8                  \
copy: \
	PREFETCHT0 (R8)               \
	PREFETCHT0 64(R8)             \
	ADDQ R12, R8                  \
	VMOVUPS.Z (DX), K1, Z16       \
	VMOVUPS   Z16, (DI)           \
	SUMS                          \
	ADDQ R12, DX                  \
	ADDQ $(4*CHUNK), DI           \
	DECQ CX                       \
	JNE  copy                     \
	MOVQ left-8(SP), CX           \
	CMPQ CX, now-16(SP)           \
	JNE  sums                     \
	ROWSOFY                       \
	EACH16(FETCHROW)              \
sums: \
	EACH16(ZEROROW)               \
	CMPQ CX, blocks+32(FP)        \
	JEQ  begin                    \
	EACH16(LOADROW)               \
begin: \
	MOVQ R15, DI                  \
	MOVQ R15, R14                 \
	LEAQ WORKX(R15), DX           \
	LEAQ WORKI(R15), R8           \
	MOVQ count-24(SP), CX         \
	STEP(0)                       \
pair: \
	CMPQ CX, $2                   \
	JLT  even                     \
	STEP(1)                       \
even: \
	POST0                         \
	ADDQ $RECORD, DI              \
	ADDQ $4, DX                   \
	DECQ CX                       \
	JEQ  summed                   \
	CMPQ CX, $2                   \
	JLT  odd                      \
	STEP(0)                       \
odd: \
	POST1                         \
	ADDQ $RECORD, DI              \
	ADDQ $4, DX                   \
	DECQ CX                       \
	JNE  pair                     \
summed: \
	MOVQ left-8(SP), CX           \
	CMPQ CX, now-16(SP)           \
	JEQ  last                     \
	EACH16(SAVEROW)               \
	JMP  stored                   \
last: \
	ROWSOFY                       \
	EACH16(STOREROW)              \
stored: \
	ADDQ $1024, R10               \
	ADDQ $16, R9                  \
	CMPQ R9, rows+64(FP)          \
	JLT  group                    \
	MOVQ count-24(SP), AX         \
	LEAQ (BX)(AX*4), BX           \
	SHLQ $5, AX                   \
	ADDQ AX, R11                  \
	MOVQ now-16(SP), CX           \
	SUBQ CX, left-8(SP)           \
	JNE  chunk                    \
	ADDQ $64, at-32(SP)           \
	DECQ strips+24(FP)            \
	JNE  strip                    \
	TILERELEASE                   \
	VZEROUPPER                    \
	RET
