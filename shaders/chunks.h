// Products of many rows of float16 activations, 64 columns at a time.
//
// A threadgroup has three warpgroups of 4 SIMD groups. The last one fills stages, each with a chunk
// of columns of the weights and of the input, several chunks ahead. The first two multiply: they
// compute M rows of W by 8*N rows of x. If M is 128, each computes 64 rows of W; if M is 64, a stage
// has two chunks, each warpgroup takes one of them, and their sums are added at the end.
//
// In threadgroup memory each row of a chunk has 128 bytes. Its 16-byte pieces are permuted
// differently in each of 8 rows, so that both the first pieces of 8 rows and the 8 pieces of one
// row lie in different banks.
//
// On Hopper (copies.h) the GPU's copy unit fills the stages, except that the threads expand quantised
// weights, and a warpgroup multiplies 64 rows of W with all rows of x directly from threadgroup memory.
// On other GPUs (this file) the threads copy, and a SIMD group multiplies 16 rows of W through
// registers.
#ifndef PIANOLA_CHUNKS_H
#define PIANOLA_CHUNKS_H

#include "ahead.h"
#include "expand.h"
#include "halves.h"
#include "mma.h"

// PIANOLA_CHUNK_BYTES is the number of bytes of a row of a chunk.
#define PIANOLA_CHUNK_BYTES 128

// PIANOLA_SIMDS is the number of SIMD groups that multiply, and PIANOLA_FILLERS of those that fill
// stages.
#define PIANOLA_SIMDS 8
#define PIANOLA_FILLERS 4

// segment_columns returns the number of columns of a segment, whole chunks, if in columns are divided
// into one segment for each SIMD group that multiplies. The last segments may be shorter or empty.
static inline uint segment_columns(uint in) { return (padded(in) / PIANOLA_CHUNK + PIANOLA_SIMDS - 1) / PIANOLA_SIMDS * PIANOLA_CHUNK; }

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
    device const uchar *maps; // descriptors of x and of w, for the copy unit of a GPU that has one
    uint ahead;               // columns of quantised weights that are requested ahead of those that are loaded
    uint cluster, splits;     // threadgroups that divide the segments of the columns, as a cluster or by themselves, or 0
    uint rank;                // which of them this is
    uint begin, end;          // the threadgroup's columns if there are several: from begin to end-1
};

// What becomes of the sums of segments: there is one for all columns; those of the segments are added in order, as
// gemm_few adds them; the threadgroups of a cluster hold and then add them; or each is written to y by itself.
#define PIANOLA_SUMS_WHOLE 0
#define PIANOLA_SUMS_ADDED 1
#define PIANOLA_SUMS_CLUSTER 2
#define PIANOLA_SUMS_APART 3

// divides reports whether a threadgroup has only some of the segments.
static inline constexpr bool divides(uint sums) { return sums >= PIANOLA_SUMS_CLUSTER; }

// take_share sets the columns of a threadgroup that has some of the segments, of parts threadgroups.
static inline void take_share(thread halves_product &p, uint parts) {
    const uint share = PIANOLA_SIMDS / parts * segment_columns(p.in);
    p.begin = min(p.rank * share, p.in);
    p.end = min(p.begin + share, p.in);
}

// first_column and last_column return the first column that a threadgroup multiplies and the one after the last.
template <uint Sums>
static inline uint first_column(thread const halves_product &p) { return divides(Sums) ? p.begin : 0; }

template <uint Sums>
static inline uint last_column(thread const halves_product &p) { return divides(Sums) ? p.end : p.in; }

// row_of returns a row of activations, and unit_at its unit.
template <uint Terms>
static inline device const uchar *row_of(thread const halves_product &p, uint r) { return p.x + ulong(r) * halves_bytes(padded(p.in), Terms); }

template <uint Terms>
static inline float unit_at(thread const halves_product &p, uint r) { return *(device const float *)(row_of<Terms>(p, r) + 2 * Terms * padded(p.in)); }

// A stage is one chunk in threadgroup memory, or two if M is 64: M rows of W as float16 and 8*N rows of
// each term of the input. Threadgroup memory holds as many stages as fit beside 3 KiB for alignment,
// barriers and units. One stage is being multiplied, the one before it may still be in use, and the others
// are being filled.
template <uint T, uint Terms, uint M, uint N>
struct stage {
    enum : uint {
        copied = T <= PIANOLA_WTYPE_BF16 ? 1 : 0,
        chunks = 128 / M,
        columns = chunks * PIANOLA_CHUNK,
        weights = M * PIANOLA_CHUNK_BYTES,
        input = 8 * N * PIANOLA_CHUNK_BYTES,
        chunk = weights + Terms * input,
        bytes = chunks * chunk,
        fit = (PIANOLA_TGMEM_GEMM_HALVES() - 3072) / bytes,
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

#ifndef PIANOLA_WARPGROUPS
// fill_chunk starts to copy a chunk. A thread copies the same piece of every 16th row. Rows past
// the last repeat the last; their results are not written.
template <uint T, uint Terms, uint M, uint N>
static inline void fill_chunk(threadgroup uchar *to, thread const halves_product &p, uint column, uint tid) {
    typedef stage<T, Terms, M, N> S;
    const uint piece = tid % 8;
    const uint c = column + 8 * piece;
    if (S::copied != 0) {
        PIANOLA_UNROLL
        for (uint k = 0; k < M / 16; k++) {
            const uint r = k * 16 + tid / 8;
            // A piece past the end is not read, but its address must be
            // valid.
            const ulong at = ulong(min(p.low + r, p.out - 1)) * p.in + min(c, p.in - 8);
            copy_piece(to + piece_at(r, piece), p.w + 2 * at, c < p.in);
        }
    }
    const uint columns = padded(p.in);
    PIANOLA_UNROLL
    for (uint k = 0; k < N / 2; k++) {
        const uint r = k * 16 + tid / 8;
        device const uchar *row = row_of<Terms>(p, min(p.first + r, p.last - 1));
        PIANOLA_UNROLL
        for (uint rest = 0; rest < Terms; rest++) {
            copy_piece(to + S::weights + rest * S::input + piece_at(r, piece), row + 2 * (rest * columns + min(c, columns - 8)), c < columns);
        }
    }
}
#endif

// convert_chunk converts the bfloat16 pieces that this thread copies, those of every 16th row, to
// float16. A
// weight below 2^-14 loses at most 2^-25. A value beyond float16's range becomes its
// largest number.
template <uint M>
static inline void convert_chunk(threadgroup uchar *at, uint tid) {
    PIANOLA_UNROLL
    for (uint k = 0; k < M / 16; k++) {
        threadgroup uint4 *piece = (threadgroup uint4 *)(at + piece_at(k * 16 + tid / 8, tid % 8));
        const uint4 v = *piece;
        *piece = uint4(halves4(four_of<PIANOLA_WTYPE_BF16>(v.xy)), halves4(four_of<PIANOLA_WTYPE_BF16>(v.zw)));
    }
}

// quant_row returns the row of W, from the threadgroup's first on, of the tile that a lane expands, of
// 8 parts of a stage.
template <uint M>
static inline uint quant_row(uint lane, uint part) { return (M == 128 ? part / 4 * 64 : 0) + part % 4 * 16 + lane % 16; }

// quant_column returns the first column of that tile, from the stage's first on.
template <uint M>
static inline uint quant_column(uint lane, uint part) { return (M == 128 ? 0 : part / 4 * PIANOLA_CHUNK) + lane / 16 * 32; }

// quant_rows are the rows of tiles that a lane expands for a stage: of two parts of it.
struct quant_rows {
    row_tile of[8 / PIANOLA_FILLERS];
};

// load_rows loads a lane's rows of tiles of the stage that begins at a column. Strips past the last
// repeat the last.
template <uint T, uint M>
static inline void load_rows(thread quant_rows &q, thread const halves_product &p, uint column, uint lane, uint filler) {
    PIANOLA_UNROLL
    for (uint k = 0; k < 8 / PIANOLA_FILLERS; k++) {
        const uint part = filler + k * PIANOLA_FILLERS;
        const uint tile = min((column + quant_column<M>(lane, part)) / 32, p.in / 32 - 1);
        const uint strip = min((p.low + quant_row<M>(lane, part)) / 16, p.out / 16 - 1);
        load_row_tile<T>(q.of[k], p.w + strip * strip_bytes(T, p.in, T), tile, lane % 16);
    }
}

#ifdef PIANOLA_WARPGROUPS
// request_strip requests the columns of a strip of quantised weights from first to last-1, if there are
// any, so that they are in the L2 cache later. Whole blocks are requested.
template <uint T>
static inline void request_strip(thread const halves_product &p, uint strip, uint first, uint last) {
    const uint block = 32 * tile_form_of(T).tiles;
    last = min(last, p.in);
    if (strip < p.out / 16 && first < last) {
        const uint from = first / block;
        const uint to = (last + block - 1) / block;
        metal::shim::prefetch_bytes(p.w + strip * strip_bytes(T, p.in, T) + from * tile_form_of(T).bytes, (to - from) * tile_form_of(T).bytes);
    }
}

// request_row does the same for a row of float weights. first and last are multiples of 8.
static inline void request_row(thread const halves_product &p, uint row, uint first, uint last) {
    last = min(last, p.in);
    if (row < p.out && first < last) {
        metal::shim::prefetch_bytes(p.w + 2 * (ulong(row) * p.in + first), 2 * (last - first));
    }
}
#endif

// expand_rows writes a lane's rows of tiles to their stage as float16. A tile past the end repeats the
// last; the input is 0 there.
template <uint T, uint Terms, uint M, uint N>
static inline void expand_rows(threadgroup uchar *to, thread const quant_rows &q, uint lane, uint filler) {
    PIANOLA_UNROLL
    for (uint k = 0; k < 8 / PIANOLA_FILLERS; k++) {
        const uint part = filler + k * PIANOLA_FILLERS;
        const tile_pieces t = expand_row<T>(q.of[k]);
        const uint row = quant_row<M>(lane, part);
        threadgroup uchar *chunk = to + (M == 128 ? 0 : part / 4 * stage<T, Terms, M, N>::chunk);
        PIANOLA_UNROLL
        for (uint i = 0; i < 4; i++) {
            *(threadgroup uint4 *)(chunk + piece_at(row, lane / 16 * 4 + i)) = t.of[i];
        }
    }
}

// commit_stage ends the copies that fill_chunk has started. wait_stage waits until all but
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

#ifndef PIANOLA_WARPGROUPS
// word_of returns a word of a piece of a row.
static inline uint word_of(threadgroup const uchar *rows, uint row, uint piece, uint i) {
    return *(threadgroup const uint *)(rows + piece_at(row, piece) + 4 * i);
}

// multiply_chunk adds the products of 64 rows of W with a chunk of the input.
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

// sums_barrier is a barrier of the threads that call finish_sums.
static inline void sums_barrier() {
#ifdef PIANOLA_WARPGROUPS
    metal::shim::threads_wait<32 * PIANOLA_SIMDS>();
#else
    threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
}

// add_warpgroups adds the sums of the second warpgroup to those of the first. The stages must no
// longer be used.
template <uint N>
static inline void add_warpgroups(thread halves_sums<N> &c, threadgroup uchar *tg, uint lane, uint simd) {
    threadgroup float *other = (threadgroup float *)tg + simd % 4 * 32 + lane;
    PIANOLA_UNROLL
    for (uint i = 0; i < 4 * N; i++) {
        if (simd / 4 == 1) {
            other[128 * i] = c.of[i];
        }
    }
    sums_barrier();
    PIANOLA_UNROLL
    for (uint i = 0; i < 4 * N; i++) {
        if (simd < 4) {
            c.of[i] += other[128 * i];
        }
    }
}

// units_at returns where the units of the threadgroup's rows of x are in threadgroup memory. Up to 256
// bytes after the stages hold barriers.
template <uint T, uint Terms, uint M, uint N>
static inline threadgroup float *units_at(threadgroup uchar *tg) {
    typedef stage<T, Terms, M, N> S;
    return (threadgroup float *)(tg + S::count * S::bytes + 256);
}

// copy_units copies the units, so that the results need not wait for each of them.
template <uint T, uint Terms, uint M, uint N>
static inline void copy_units(thread const halves_product &p, threadgroup uchar *tg, uint tid) {
    if (tid < 8 * N) {
        units_at<T, Terms, M, N>(tg)[tid] = unit_at<Terms>(p, min(p.first + tid, p.last - 1));
    }
}

// result_row returns the first of the two rows of W, 8 apart, whose results a lane writes. low is the first of the
// warpgroup's rows of W.
static inline uint result_row(uint low, uint lane, uint simd) { return low + simd % 4 * 16 + lane / 4; }

// bias_at returns the biases of rows o and o+8 of W.
static inline float2 bias_at(thread const halves_product &p, uint o) {
    return p.bias ? float2(p.b[min(o, p.out - 1)], p.b[min(o + 8, p.out - 1)]) : float2(0.0f);
}

// put_block writes a lane's sums of block n of 8 rows of x, each multiplied by the unit of its row.
static inline void put_block(float4 c, uint n, thread const halves_product &p, threadgroup const float *units, uint o, float2 bias, uint lane) {
    PIANOLA_UNROLL
    for (uint k = 0; k < 2; k++) {
        const uint row = 8 * n + lane % 4 * 2 + k;
        const float unit = units[row];
        device float *y = p.y + ulong(p.first + row) * p.y_stride + o;
        if (p.first + row < p.last && o < p.high) {
            y[0] = c[k] * unit + bias.x;
        }
        if (p.first + row < p.last && o + 8 < p.high) {
            y[8] = c[2 + k] * unit + bias.y;
        }
    }
}

// put_sums writes the sums of all blocks. low is the first of the warpgroup's rows of W.
template <uint N>
static inline void put_sums(thread const halves_sums<N> &c, thread const halves_product &p, threadgroup const float *units, uint low, uint lane, uint simd) {
    const uint o = result_row(low, lane, simd);
    const float2 bias = bias_at(p, o);
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        put_block(float4(c.of[4 * n], c.of[4 * n + 1], c.of[4 * n + 2], c.of[4 * n + 3]), n, p, units, o, bias, lane);
    }
}

// add_sums adds the sums of a segment to those of the segments before, and clears them.
template <uint N>
static inline void add_sums(thread halves_sums<N> &to, thread halves_sums<N> &c) {
    PIANOLA_UNROLL
    for (uint k = 0; k < 4 * N; k++) {
        to.of[k] += c.of[k];
        c.of[k] = 0.0f;
    }
}

// clear_sums sets all sums to 0.
template <uint N>
static inline void clear_sums(thread halves_sums<N> &c) {
    PIANOLA_UNROLL
    for (uint k = 0; k < 4 * N; k++) {
        c.of[k] = 0.0f;
    }
}

// put_apart writes the sums of a segment to their place in y, and clears them. The next segment's place follows. The
// compiler must not keep the places of all rows in registers from one segment to the next.
template <uint N>
static inline void put_apart(thread halves_sums<N> &c, thread halves_product &p, threadgroup const float *units, uint lane, uint simd) {
    halves_product q = p;
    q.first = opaque(p.first);
    q.y_stride = opaque(p.y_stride);
    put_sums<N>(c, q, units, p.low + simd / 4 * 64, opaque(lane), simd);
    clear_sums<N>(c);
    p.y += p.out;
}

// clear_rest writes zeros as the sums of the threadgroup's segments that have no columns. y is the place of the segment
// after the last that has.
static inline void clear_rest(thread const halves_product &p, uint lane, uint simd) {
    const uint segment = segment_columns(p.in);
    const uint columns = p.begin < p.end ? p.end - p.begin : 1; // a segment has been written in any case
    const uint rest = PIANOLA_SIMDS / p.splits - (columns + segment - 1) / segment;
    for (uint i = simd; i < rest * (p.last - p.first); i += PIANOLA_SIMDS) {
        device float *y = p.y + ulong(p.first + i / rest) * p.y_stride + i % rest * p.out;
        for (uint o = p.low + lane; o < p.high; o += 32) {
            y[o] = 0.0f;
        }
    }
}

// finish_sums adds the sums of the warpgroups if they multiplied different chunks, and writes the
// results. On Hopper only the threads that multiply call it, otherwise all.
template <uint T, uint Terms, uint M, uint N>
static inline void finish_sums(thread halves_sums<N> &c, thread const halves_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    sums_barrier(); // for the units
    if (M == 64) {
        add_warpgroups<N>(c, tg, lane, simd);
    }
    if (simd < (M == 64 ? 4 : PIANOLA_SIMDS)) {
        put_sums<N>(c, p, units_at<T, Terms, M, N>(tg), p.low + (M == 64 ? 0 : simd / 4 * 64), lane, simd);
    }
}

#ifdef PIANOLA_WARPGROUPS
#include "copies.h"
#else

// fill_stage starts to copy the chunks of a stage before the column end, and expands quantised weights. q holds the lane's
// rows of tiles of this stage, and then of the next.
template <uint T, uint Terms, uint M, uint N>
static inline void fill_stage(threadgroup uchar *to, thread quant_rows &q, thread const halves_product &p, uint column, uint end, uint lane, uint filler) {
    typedef stage<T, Terms, M, N> S;
    if (column < end) {
        PIANOLA_UNROLL
        for (uint i = 0; i < S::chunks; i++) {
            fill_chunk<T, Terms, M, N>(to + i * S::chunk, p, column + i * PIANOLA_CHUNK, filler * 32 + lane);
        }
        if (S::copied == 0) {
            expand_rows<T, Terms, M, N>(to, q, lane, filler);
            load_rows<T, M>(q, p, column + S::columns, lane, filler);
        }
    }
    commit_stage();
}

// gemm_chunks multiplies one stage after the other. At the barrier before a stage it is filled, and
// the previous one is no longer used, so it can be filled again. M is 128 if there are segments.
template <uint T, uint Terms, uint M, uint N, uint Sums>
static inline void gemm_chunks(thread halves_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    typedef stage<T, Terms, M, N> S;
    const uint begin = first_column<Sums>(p);
    const uint end = last_column<Sums>(p);
    threadgroup const float *units = units_at<T, Terms, M, N>(tg);
    const bool fills = simd >= PIANOLA_SIMDS;
    const uint filler = simd - PIANOLA_SIMDS;
    copy_units<T, Terms, M, N>(p, tg, simd * 32 + lane);
    halves_sums<N> c;
    halves_sums<N> all;
    clear_sums<N>(c);
    clear_sums<N>(all);
    const uint segment = segment_columns(p.in);
    uint border = begin + segment;
    quant_rows q;
    if (fills) {
        if (S::copied == 0) {
            load_rows<T, M>(q, p, begin, lane, filler);
        }
        _Pragma("clang loop unroll(disable)")
        for (uint i = 0; i + 1 < S::count; i++) {
            fill_stage<T, Terms, M, N>(tg + i * S::bytes, q, p, begin + i * S::columns, end, lane, filler);
        }
    }
    uint from = 0;
    uint to = S::count - 1;
    _Pragma("clang loop unroll(disable)")
    for (uint column = begin; column < end; column += S::columns) {
        threadgroup uchar *at = tg + from * S::bytes;
        if (fills) {
            wait_stage<S::count - 2>();
            if (T == PIANOLA_WTYPE_BF16) {
                PIANOLA_UNROLL
                for (uint i = 0; i < S::chunks; i++) {
                    convert_chunk<M>(at + i * S::chunk, filler * 32 + lane);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (fills) {
            fill_stage<T, Terms, M, N>(tg + to * S::bytes, q, p, column + (S::count - 1) * S::columns, end, lane, filler);
        } else {
            if (Sums != PIANOLA_SUMS_WHOLE && column == border) {
                if (Sums == PIANOLA_SUMS_APART) {
                    put_apart<N>(c, p, units, lane, simd);
                } else {
                    add_sums<N>(all, c);
                }
                border += segment;
            }
            threadgroup const uchar *chunk = at + (M == 128 ? 0 : simd / 4 * S::chunk);
            multiply_chunk<Terms, N>(c, chunk + (M == 128 ? simd / 4 * 64 * PIANOLA_CHUNK_BYTES : 0), chunk + S::weights, lane, simd);
        }
        from = from + 1 == S::count ? 0 : from + 1;
        to = to + 1 == S::count ? 0 : to + 1;
    }
    if (Sums == PIANOLA_SUMS_APART) {
        sums_barrier(); // for the units, if there are no columns
        if (!fills) {
            put_apart<N>(c, p, units, lane, simd);
            clear_rest(p, lane, simd);
        }
        return;
    }
    if (Sums == PIANOLA_SUMS_ADDED) {
        add_sums<N>(all, c);
        c = all;
    }
    finish_sums<T, Terms, M, N>(c, p, tg, lane, simd);
}
#endif

#endif
