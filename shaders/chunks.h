// Products of many rows of float16 activations, 64 columns at a time.
//
// The input is copied to threadgroup memory several chunks of columns ahead of the one that is
// multiplied, and so are weights of float16 and bfloat16. Quantised weights are loaded to
// registers one chunk ahead, and become float16 in threadgroup memory while the chunk before
// is multiplied.
//
// In threadgroup memory each row of a chunk has 128 bytes. Its 16-byte pieces are permuted
// differently in each of 8 rows, so that both the first pieces of 8 rows and the 8 pieces of one
// row lie in different banks.
//
// A threadgroup is two warpgroups of 4 SIMD groups. It computes M rows of W by 8*N rows of x: if M is
// 128, each warpgroup computes 64 rows of W; if M is 64, each takes every other chunk, and
// their sums are added at the end. On Hopper a warpgroup multiplies 64 rows of W with all rows of x
// directly from threadgroup memory. On other GPUs a SIMD group multiplies 16 rows of W through
// registers.
#ifndef PIANOLA_CHUNKS_H
#define PIANOLA_CHUNKS_H

#include "ahead.h"
#include "expand.h"
#include "mma.h"
#include "product.h"

// Columns of a chunk, and bytes of a row of a chunk.
#define PIANOLA_CHUNK 64
#define PIANOLA_CHUNK_BYTES 128

// PIANOLA_SIMDS is the number of SIMD groups of a threadgroup.
#define PIANOLA_SIMDS 8

// padded returns n columns rounded up to whole chunks.
static inline uint padded(uint n) { return (n + PIANOLA_CHUNK - 1) / PIANOLA_CHUNK * PIANOLA_CHUNK; }

// halves_bytes returns the size in bytes of a row of float16 activations of n columns, n rounded
// up to whole chunks. The row consists of n float16, n more if there are two terms, the unit, a
// float32, and 12 unused bytes.
static inline uint halves_bytes(uint n, uint terms) { return 2 * terms * n + 16; }

// halves_product is the work of a threadgroup: rows of W from low to high-1 and rows of x from
// first to last-1.
struct halves_product {
    device const uchar *x;
    device const uchar *w;
    device const float *b;
    device float *y;
    uint in, out, y_stride;
    uint low, high, first, last;
    bool bias;
};

// row_of returns a row of activations, and unit_at its unit.
template <uint Terms>
static inline device const uchar *row_of(thread const halves_product &p, uint r) { return p.x + ulong(r) * halves_bytes(padded(p.in), Terms); }

template <uint Terms>
static inline float unit_at(thread const halves_product &p, uint r) { return *(device const float *)(row_of<Terms>(p, r) + 2 * Terms * padded(p.in)); }

// A stage is one chunk in threadgroup memory, or two if M is 64: M rows of W if they are copied,
// and 8*N rows of each term of the input. Two stages of expanded weights precede the stages.
// Threadgroup memory holds as many stages as fit beside 1 KiB for alignment. One stage is being
// multiplied, the one before it may still be in use, and the others are being copied.
template <uint T, uint Terms, uint M, uint N>
struct stage {
    enum : uint {
        copied = T <= PIANOLA_WTYPE_BF16 ? 1 : 0,
        chunks = 128 / M,
        columns = chunks * PIANOLA_CHUNK,
        rows = M * PIANOLA_CHUNK_BYTES,
        weights = copied * rows,
        expanded = (1 - copied) * 2 * chunks * rows,
        input = 8 * N * PIANOLA_CHUNK_BYTES,
        chunk = weights + Terms * input,
        bytes = chunks * chunk,
        fit = (PIANOLA_TGMEM_GEMM_HALVES() - 1024 - expanded) / bytes,
        count = fit < 8 ? fit : 8,
    };
};

// piece_at returns the offset of a row's piece of 8 columns.
static inline uint piece_at(uint row, uint piece) { return row * PIANOLA_CHUNK_BYTES + (piece ^ row) % 8 * 16; }

// copy_piece copies a piece, or writes zeros for a piece past the end.
static inline void copy_piece(threadgroup uchar *to, device const uchar *from, bool there) {
#ifdef PIANOLA_COPIES
    metal::shim::copy_or_zero16(to, from, there ? 16 : 0);
#else
    *(threadgroup uint4 *)to = there ? *(device const uint4 *)from : uint4(0);
#endif
}

// fill_chunk starts to copy a chunk. A thread copies the same piece of every 32nd row. Rows past
// the last repeat the last; their results are not written.
template <uint T, uint Terms, uint M, uint N>
static inline void fill_chunk(threadgroup uchar *to, thread const halves_product &p, uint column, uint tid) {
    typedef stage<T, Terms, M, N> S;
    const uint piece = tid % 8;
    const uint c = column + 8 * piece;
    if (S::copied != 0) {
        PIANOLA_UNROLL
        for (uint k = 0; k < M / 32; k++) {
            const uint r = k * 32 + tid / 8;
            // A piece past the end is not read, but its address must be
            // valid.
            const ulong at = ulong(min(p.low + r, p.out - 1)) * p.in + min(c, p.in - 8);
            copy_piece(to + piece_at(r, piece), p.w + 2 * at, c < p.in);
        }
    }
    const uint columns = padded(p.in);
    PIANOLA_UNROLL
    for (uint k = 0; k < N / 4; k++) {
        const uint r = k * 32 + tid / 8;
        device const uchar *row = row_of<Terms>(p, min(p.first + r, p.last - 1));
        PIANOLA_UNROLL
        for (uint rest = 0; rest < Terms; rest++) {
            copy_piece(to + S::weights + rest * S::input + piece_at(r, piece), row + 2 * (rest * columns + min(c, columns - 8)), c < columns);
        }
    }
}

// fill_stage starts to copy the chunks of a stage.
template <uint T, uint Terms, uint M, uint N>
static inline void fill_stage(threadgroup uchar *to, thread const halves_product &p, uint column, uint tid) {
    typedef stage<T, Terms, M, N> S;
    PIANOLA_UNROLL
    for (uint i = 0; i < S::chunks; i++) {
        fill_chunk<T, Terms, M, N>(to + i * S::chunk, p, column + i * PIANOLA_CHUNK, tid);
    }
}

// convert_chunk converts the bfloat16 pieces that this thread has copied to float16. A
// weight below 2^-14 loses at most 2^-25. A value beyond float16's range becomes its
// largest number.
template <uint M>
static inline void convert_chunk(threadgroup uchar *at, uint tid) {
    PIANOLA_UNROLL
    for (uint k = 0; k < M / 32; k++) {
        threadgroup uint4 *piece = (threadgroup uint4 *)(at + piece_at(k * 32 + tid / 8, tid % 8));
        const uint4 v = *piece;
        *piece = uint4(halves4(four_of<PIANOLA_WTYPE_BF16>(v.xy)), halves4(four_of<PIANOLA_WTYPE_BF16>(v.zw)));
    }
}

// quant_row returns the row of W, from the threadgroup's first on, that a lane loads and expands. It
// belongs to the warpgroup that multiplies it.
template <uint M>
static inline uint quant_row(uint lane, uint simd) { return (M == 128 ? simd / 4 * 64 : 0) + simd % 4 * 16 + lane % 16; }

// quant_column returns the first column of the tile that a lane loads and expands, from the stage's
// first on.
template <uint M>
static inline uint quant_column(uint lane, uint simd) { return (M == 128 ? 0 : simd / 4 * PIANOLA_CHUNK) + lane / 16 * 32; }

// load_rows loads a thread's row of a tile of a stage. Strips past the last repeat the last.
template <uint T, uint M>
static inline void load_rows(thread row_tile &q, thread const halves_product &p, uint column, uint lane, uint simd) {
    const uint tile = min((column + quant_column<M>(lane, simd)) / 32, p.in / 32 - 1);
    const uint strip = min((p.low + quant_row<M>(lane, simd)) / 16, p.out / 16 - 1);
    load_row_tile<T>(q, p.w + strip * strip_bytes(T, p.in, T), tile, lane % 16);
}

// expand_rows writes a thread's row of a tile to its chunk as float16. A tile past the end is zero.
template <uint T, uint M>
static inline void expand_rows(threadgroup uchar *to, thread const row_tile &q, thread const halves_product &p, uint column, uint lane, uint simd) {
    const bool there = column + quant_column<M>(lane, simd) < p.in;
    const tile_pieces t = expand_row<T>(q);
    const uint row = quant_row<M>(lane, simd);
    threadgroup uchar *chunk = to + (M == 128 ? 0 : simd / 4 * (M * PIANOLA_CHUNK_BYTES));
    PIANOLA_UNROLL
    for (uint k = 0; k < 4; k++) {
        *(threadgroup uint4 *)(chunk + piece_at(row, lane / 16 * 4 + k)) = there ? t.of[k] : uint4(0);
    }
}

// commit_stage ends the copies that fill_stage has started. wait_stage waits until all but
// the last Left stages are complete.
static inline void commit_stage() {
#ifdef PIANOLA_COPIES
    metal::shim::commit_copies();
#endif
}

template <uint Left>
static inline void wait_stage() {
#ifdef PIANOLA_COPIES
    metal::shim::wait_copies<Left>();
#endif
}

// halves_sums are the sums of a SIMD group: for 16 rows of W and each of N blocks of 8 rows of x,
// four values in the layout of mma_16x8x16.
template <uint N>
struct halves_sums {
    float of[4 * N];
};

// multiply_chunk adds the products of 64 rows of W with a chunk of the input.
#ifdef PIANOLA_WARPGROUPS
template <uint Terms, uint N>
static inline void multiply_chunk(thread halves_sums<N> &c, threadgroup const uchar *weights, threadgroup const uchar *input, uint lane, uint simd) {
    (void)lane;
    (void)simd;
    const ulong w = metal::shim::matrix_at(weights);
    const ulong x = metal::shim::matrix_at(input);
    metal::shim::begin_products();
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_CHUNK / 16; k++) {
        PIANOLA_UNROLL
        for (uint rest = Terms; rest-- > 0;) {
            // Matrix addresses are in units of 16 bytes.
            metal::shim::multiply_shared<N>(c.of, w + 2 * k, x + rest * (8 * N * PIANOLA_CHUNK_BYTES / 16) + 2 * k);
        }
    }
    metal::shim::commit_products();
}
#else
// word_of returns a word of a piece of a row.
static inline uint word_of(threadgroup const uchar *rows, uint row, uint piece, uint i) {
    return *(threadgroup const uint *)(rows + piece_at(row, piece) + 4 * i);
}

template <uint Terms, uint N>
static inline void multiply_chunk(thread halves_sums<N> &c, threadgroup const uchar *weights, threadgroup const uchar *input, uint lane, uint simd) {
    const uint g = lane / 4;
    const uint j = lane % 4;
    const uint row = simd % 4 * 16 + g;
    _Pragma("clang loop unroll(disable)")
    for (uint k = 0; k < PIANOLA_CHUNK / 16; k++) {
        const uint4 a = uint4(word_of(weights, row, 2 * k, j), word_of(weights, row + 8, 2 * k, j), word_of(weights, row, 2 * k + 1, j), word_of(weights, row + 8, 2 * k + 1, j));
        PIANOLA_UNROLL
        for (uint rest = Terms; rest-- > 0;) {
            threadgroup const uchar *x = input + rest * (8 * N * PIANOLA_CHUNK_BYTES);
            PIANOLA_UNROLL
            for (uint n = 0; n < N; n++) {
                const uint2 b = uint2(word_of(x, 8 * n + g, 2 * k, j), word_of(x, 8 * n + g, 2 * k + 1, j));
                thread float *s = c.of + 4 * n;
                const float4 v = mma_16x8x16(a, b, float4(s[0], s[1], s[2], s[3]), lane);
                s[0] = v.x;
                s[1] = v.y;
                s[2] = v.z;
                s[3] = v.w;
            }
        }
    }
}
#endif

// add_warpgroups adds the sums of the second warpgroup to those of the first. All stages must have
// been multiplied.
template <uint N>
static inline void add_warpgroups(thread halves_sums<N> &c, threadgroup uchar *tg, uint lane, uint simd) {
    threadgroup float *other = (threadgroup float *)tg + simd % 4 * 32 + lane;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    PIANOLA_UNROLL
    for (uint i = 0; i < 4 * N; i++) {
        if (simd >= 4) {
            other[128 * i] = c.of[i];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    PIANOLA_UNROLL
    for (uint i = 0; i < 4 * N; i++) {
        if (simd < 4) {
            c.of[i] += other[128 * i];
        }
    }
}

// put_sums writes the sums, each multiplied by the unit of its row of x. low is the first of the
// warpgroup's rows of W.
template <uint Terms, uint N>
static inline void put_sums(thread const halves_sums<N> &c, thread const halves_product &p, uint low, uint lane, uint simd) {
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        PIANOLA_UNROLL
        for (uint k = 0; k < 2; k++) {
            const uint r = p.first + 8 * n + lane % 4 * 2 + k;
            if (r >= p.last) {
                continue;
            }
            const float unit = unit_at<Terms>(p, r);
            PIANOLA_UNROLL
            for (uint i = 0; i < 2; i++) {
                const uint o = low + simd % 4 * 16 + 8 * i + lane / 4;
                if (o < p.high) {
                    p.y[ulong(r) * p.y_stride + o] = c.of[4 * n + 2 * i + k] * unit + (p.bias ? p.b[o] : 0.0f);
                }
            }
        }
    }
}

// gemm_chunks multiplies one stage after the other. At the barrier before a stage every SIMD group
// has finished the stage before the previous one, so its memory can be filled again. A
// warpgroup expands only weights that it multiplies itself.
template <uint T, uint Terms, uint M, uint N>
static inline void gemm_chunks(thread const halves_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    typedef stage<T, Terms, M, N> S;
    const uint tid = simd * 32 + lane;
#ifdef PIANOLA_WARPGROUPS
    tg = metal::shim::aligned_matrix(tg);
#endif
    threadgroup uchar *stages = tg + S::expanded;
    const uint warpgroup = simd / 4;
    // The warpgroup's chunk of a stage, and its rows of W.
    const uint chunk = M == 128 ? 0 : warpgroup;
    const uint first = M == 128 ? warpgroup * 64 : 0;
    halves_sums<N> c;
    PIANOLA_UNROLL
    for (uint k = 0; k < 4 * N; k++) {
        c.of[k] = 0.0f;
    }
    row_tile q;
    if (S::copied == 0) {
        load_rows<T, M>(q, p, 0, lane, simd);
    }
    _Pragma("clang loop unroll(disable)")
    for (uint i = 0; i + 2 < S::count; i++) {
        if (i * S::columns < p.in) {
            fill_stage<T, Terms, M, N>(stages + i * S::bytes, p, i * S::columns, tid);
        }
        commit_stage();
    }
    uint from = 0;
    uint to = S::count - 2;
    for (uint column = 0; column < p.in; column += S::columns) {
        threadgroup uchar *at = stages + from * S::bytes + chunk * S::chunk;
        threadgroup uchar *expanded = tg + column / S::columns % 2 * (S::chunks * S::rows);
        if (S::copied == 0) {
            expand_rows<T, M>(expanded, q, p, column, lane, simd);
            load_rows<T, M>(q, p, column + S::columns, lane, simd);
        }
        wait_stage<S::count - 3>();
        if (T == PIANOLA_WTYPE_BF16) {
            PIANOLA_UNROLL
            for (uint i = 0; i < S::chunks; i++) {
                convert_chunk<M>(stages + from * S::bytes + i * S::chunk, tid);
            }
        }
#ifdef PIANOLA_WARPGROUPS
        metal::shim::publish();
#endif
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply_chunk<Terms, N>(c, (S::copied != 0 ? at : expanded + chunk * S::rows) + first * PIANOLA_CHUNK_BYTES, at + S::weights, lane, simd);
        const uint next = column + (S::count - 2) * S::columns;
        if (next < p.in) {
            fill_stage<T, Terms, M, N>(stages + to * S::bytes, p, next, tid);
        }
        commit_stage();
#ifdef PIANOLA_WARPGROUPS
        metal::shim::wait_products<1>();
#endif
        from = from + 1 == S::count ? 0 : from + 1;
        to = to + 1 == S::count ? 0 : to + 1;
    }
#ifdef PIANOLA_WARPGROUPS
    metal::shim::end_products<N>(c.of);
#endif
    if (M == 64) {
        add_warpgroups<N>(c, tg, lane, simd);
        if (warpgroup == 1) {
            return;
        }
    }
    put_sums<Terms, N>(c, p, p.low + first, lane, simd);
}

#endif
