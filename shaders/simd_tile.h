// Products of float16 with SIMD-group matrices of 8 by 8 elements, for Apple GPUs.
//
// A threadgroup of 2*m threads computes a tile: m rows of W times 8*N rows of x, where N is at most 8
// and at most m/8. In each step, its threads write 32 columns of W, as float16, and of x to a stage in
// threadgroup memory, and each SIMD group multiplies its part of them. There are two stages. One is
// filled while the other is multiplied, so a step needs one barrier.
//
// In a stage, a block of 8 rows and 8 columns is 128 consecutive bytes, so the lanes of a SIMD group
// load a matrix from different banks.
//
// An element of the result is the sum over blocks of 8 columns, in an order that depends only on the
// weight type. So the bits of a row depend neither on m nor on N, nor on other rows.
#ifndef PIANOLA_SIMD_TILE_H
#define PIANOLA_SIMD_TILE_H

#include "blocks.h"
#include "halves.h"
#include "rows.h"

// tile_product is the work of a threadgroup: rows of W from low to high-1 and rows of x from first to
// last-1. The tile has m rows of W, some of which may be past high-1.
//
// If count is not 0, first to last-1 are not rows but indices in items, which are rows of y below count.
// Then share rows of y have the same row of x.
struct tile_product {
    device const uchar *x; // rows of float16 with one or two terms
    device const uchar *w; // in layout Rows
    device const float *b;
    device float *y;
    uint in, y_stride;
    uint m, low, high, first, last;
    uint terms;
    bool bias;
    uint type, wtype; // type is the family of wtype
    device const uint *items;
    uint count, share;
};

// y_row returns row i of y, and x_row the address of row i of x.
static inline uint y_row(thread const tile_product &p, uint i) { return p.count != 0 ? min(p.items[i], p.count - 1) : i; }
static inline device const uchar *x_row(thread const tile_product &p, uint i) {
    return p.x + ulong(p.count != 0 ? y_row(p, i) / p.share : i) * halves_bytes(padded(p.in), p.terms);
}

// piece_words are 16 weights of a row as they are stored: 8 words of floats, or the quants of a piece,
// its scales and its minimums.
struct piece_words {
    uint4 a, b;
};

// load_piece_words reads piece i of a row. Weights past the end of a row are 0.
static inline piece_words load_piece_words(thread const tile_product &p, device const uchar *row, uint i) {
    piece_words v;
    v.a = uint4(0);
    v.b = uint4(0);
    if (is_float(p.type)) {
        if (16 * i < p.in) {
            v.a = ((device const uint4 *)row)[2 * i];
        }
        if (16 * i + 8 < p.in) {
            v.b = ((device const uint4 *)row)[2 * i + 1];
        }
        return v;
    }
    block_piece q;
    q.q = uint4(0);
    q.d = float2(0.0f);
    q.m = float2(0.0f);
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: q = load_piece<PIANOLA_WTYPE_##type>(row, i, p.wtype); break;
    switch (p.type) {
        PIANOLA_QUANTISED(PIANOLA_CASE)
        PIANOLA_BLOCKS_ALONE(PIANOLA_CASE)
    default: break;
    }
#undef PIANOLA_CASE
    v.a = q.q;
    v.b = as_type<uint4>(float4(q.d, q.m));
    return v;
}

// is_wide reports whether weights of a type may be out of the range of float16.
static inline bool is_wide(uint type) { return type == PIANOLA_WTYPE_BF16 || has_e8m0(type) || type >= PIANOLA_FAMILIES; }

// half_words converts four weights to float16. Values out of range become ±65504.
static inline uint2 half_words(uint type, float4 v) { return is_wide(type) ? halves4(v) : as_type<uint2>(half4(v)); }

// run_halves converts the 8 weights of a run to float16: quants times a scale, plus a minimum.
static inline uint4 run_halves(uint type, uint2 q, float d, float m) {
    if (type == PIANOLA_WTYPE_FP8) {
        return uint4(half_words(type, quants4<PIANOLA_WTYPE_FP8>(q.x) * d), half_words(type, quants4<PIANOLA_WTYPE_FP8>(q.y) * d));
    }
    return uint4(half_words(type, signed4(q.x) * d + m), half_words(type, signed4(q.y) * d + m));
}

// piece_halves converts the first or the second run of a piece to float16.
static inline uint4 piece_halves(uint type, piece_words v, bool second) {
    const uint4 w = second ? v.b : v.a;
    if (type == PIANOLA_WTYPE_F16) {
        return w;
    }
    if (type == PIANOLA_WTYPE_BF16) {
        return uint4(halves4(four_of<PIANOLA_WTYPE_BF16>(w.xy)), halves4(four_of<PIANOLA_WTYPE_BF16>(w.zw)));
    }
    const float4 scale = as_type<float4>(v.b);
    return second ? run_halves(type, v.a.zw, scale.y, scale.w) : run_halves(type, v.a.xy, scale.x, scale.z);
}

// PIANOLA_STEP is the number of columns of a step, and of two pieces of weights.
#define PIANOLA_STEP 32

// step_columns returns the first column of each half of a step. A half is 16 consecutive columns; the
// step has the columns of pieces 2*i and 2*i+1.
static inline uint2 step_columns(uint type, uint i) {
    const uint run = piece_run(type);
    const uint c = piece_columns(type, 2 * i).x;
    return uint2(c, run == 8 ? c + 16 : c + run);
}

// block_at returns the offset in bytes, in the weights or the input of a stage, of the 16 bytes of a row
// in a block of 8 columns.
static inline uint block_at(uint row, uint block) { return row / 8 * 512 + block * 128 + row % 8 * 16; }

// PIANOLA_TERM_BYTES is the number of bytes of a stage that 8 rows of x take for each term, and that 8 rows
// of W take.
#define PIANOLA_TERM_BYTES 512

// step_rows are the rows from which a thread loads: one of W, and up to two of x, if they are there.
struct step_rows {
    device const uchar *w;
    device const uchar *x[2];
    bool there[2];
};

// step_rows_of returns the rows of a thread.
template <uint N>
static inline step_rows step_rows_of(thread const tile_product &p, uint tid) {
    step_rows rows;
    const ulong row = min(p.low + tid / 2, p.high - 1);
    rows.w = p.w + row * (is_float(p.type) ? ulong(p.in) * 2 : row_bytes(p.type, p.in, p.wtype));
    PIANOLA_UNROLL
    for (uint k = 0; k < 2; k++) {
        const uint r = (tid + k * 2 * p.m) / 4;
        rows.there[k] = r < 8 * N && p.first + r < p.last;
        rows.x[k] = x_row(p, rows.there[k] ? p.first + r : p.first);
    }
    return rows;
}

// step_words are what a thread loads for a step: a piece of weights, and up to two runs of 8 columns of x
// with up to two terms.
struct step_words {
    piece_words w;
    uint4 x[2][2];
};

// load_step loads what the thread writes to a stage. Rows of x past the last are 0.
static inline void load_step(thread step_words &v, thread const tile_product &p, thread const step_rows &rows, uint i, uint tid) {
    v.w = load_piece_words(p, rows.w, 2 * i + tid % 2);
    const uint2 c = step_columns(p.type, i);
    const uint columns = padded(p.in);
    const uint column = (tid % 4 < 2 ? c.x : c.y) + tid % 2 * 8;
    PIANOLA_UNROLL
    for (uint k = 0; k < 2; k++) {
        PIANOLA_UNROLL
        for (uint t = 0; t < 2; t++) {
            v.x[k][t] = uint4(0);
            if (rows.there[k] && t < p.terms) {
                v.x[k][t] = *(device const uint4 *)(rows.x[k] + 2 * (column + t * columns));
            }
        }
    }
}

// store_step writes what load_step loaded to a stage.
template <uint N>
static inline void store_step(threadgroup uchar *stage, thread const step_words &v, thread const tile_product &p, uint tid) {
    const uint h = tid % 2;
    const bool adjacent = piece_run(p.type) == 8;
    *(threadgroup uint4 *)(stage + block_at(tid / 2, adjacent ? 2 * h : h)) = piece_halves(p.type, v.w, false);
    *(threadgroup uint4 *)(stage + block_at(tid / 2, adjacent ? 2 * h + 1 : h + 2)) = piece_halves(p.type, v.w, true);
    threadgroup uchar *x = stage + p.m / 8 * PIANOLA_TERM_BYTES;
    PIANOLA_UNROLL
    for (uint k = 0; k < 2; k++) {
        const uint r = (tid + k * 2 * p.m) / 4;
        PIANOLA_UNROLL
        for (uint t = 0; t < 2; t++) {
            if (r < 8 * N && t < p.terms) {
                *(threadgroup uint4 *)(x + t * N * PIANOLA_TERM_BYTES + block_at(r, tid % 4)) = v.x[k][t];
            }
        }
    }
}

// tile_shape divides a tile among SIMD groups: each computes 8*down rows of W by 8*across rows of x, and
// beside SIMD groups share rows of W.
template <uint N>
struct tile_shape {
    enum : uint {
        down = N >= 4 ? 4 : 2,
        across = N == 8 ? 4 : N == 1 ? 1 : 2,
        beside = N / across,
    };
};

// tile_sums are the sums of a SIMD group.
template <uint N>
struct tile_sums {
    simdgroup_float8x8 of[tile_shape<N>::down][tile_shape<N>::across];
};

// multiply_step adds the products of a stage. w and x are the SIMD group's first rows of W and of x.
template <uint N>
static inline void multiply_step(thread tile_sums<N> &c, threadgroup const uchar *w, threadgroup const uchar *x, uint terms) {
    typedef tile_shape<N> S;
    PIANOLA_UNROLL
    for (uint block = 0; block < PIANOLA_STEP / 8; block++) {
        simdgroup_half8x8 a[S::down];
        simdgroup_half8x8 b[S::across];
        PIANOLA_UNROLL
        for (uint i = 0; i < S::down; i++) {
            simdgroup_load(a[i], (threadgroup const half *)(w + block_at(8 * i, block)), 8);
        }
        for (uint t = 0; t < terms; t++) {
            PIANOLA_UNROLL
            for (uint j = 0; j < S::across; j++) {
                simdgroup_load(b[j], (threadgroup const half *)(x + t * N * PIANOLA_TERM_BYTES + block_at(8 * j, block)), 8, ulong2(0), true);
            }
            PIANOLA_UNROLL
            for (uint i = 0; i < S::down; i++) {
                PIANOLA_UNROLL
                for (uint j = 0; j < S::across; j++) {
                    simdgroup_multiply_accumulate(c.of[i][j], a[i], b[j], c.of[i][j]);
                }
            }
        }
    }
}

// put_tile writes a SIMD group's sums, which belong to the rows of W from low and of x from first on. The
// lanes may not access elements of a matrix, so the sums of 8 rows of x at a time go through memory.
template <uint N>
static inline void put_tile(thread const tile_sums<N> &c, threadgroup float *memory, thread const tile_product &p, uint low, uint first, uint lane) {
    typedef tile_shape<N> S;
    const uint width = 8 * S::down;
    const uint columns = padded(p.in);
    PIANOLA_UNROLL
    for (uint j = 0; j < S::across; j++) {
        PIANOLA_UNROLL
        for (uint i = 0; i < S::down; i++) {
            simdgroup_store(c.of[i][j], memory + 8 * i, width, ulong2(0), true);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint e = lane; e < 8 * width; e += 32) {
            const uint o = low + e % width;
            const uint r = first + 8 * j + e / width;
            if (o < p.high && r < p.last) {
                const float unit = *(device const float *)(x_row(p, r) + 2 * p.terms * columns);
                p.y[ulong(y_row(p, r)) * p.y_stride + o] = memory[e] * unit + (p.bias ? p.b[o] : 0.0f);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// compute_tile_of computes a tile with 8*N rows of x.
template <uint N>
static inline void compute_tile_of(thread const tile_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    typedef tile_shape<N> S;
    const uint tid = simd * 32 + lane;
    const uint stage = (p.m / 8 + p.terms * N) * PIANOLA_TERM_BYTES;
    const uint low = simd / S::beside * S::down * 8;
    const uint first = simd % S::beside * S::across * 8;
    const bool active = p.low + low < p.high && p.first + first < p.last;
    const step_rows rows = step_rows_of<N>(p, tid);
    tile_sums<N> c;
    PIANOLA_UNROLL
    for (uint i = 0; i < S::down; i++) {
        PIANOLA_UNROLL
        for (uint j = 0; j < S::across; j++) {
            c.of[i][j] = simdgroup_float8x8(0.0f);
        }
    }
    const uint steps = (p.in + PIANOLA_STEP - 1) / PIANOLA_STEP;
    step_words v;
    // The loads of a step are issued before the products of the step before it.
    for (uint i = 0; i <= steps; i++) {
        if (i < steps) {
            load_step(v, p, rows, i, tid);
        }
        if (i > 0 && active) {
            threadgroup const uchar *from = tg + (i - 1) % 2 * stage;
            multiply_step<N>(c, from + low * 64, from + p.m * 64 + first * 64, p.terms);
        }
        if (i < steps) {
            store_step<N>(tg + i % 2 * stage, v, p, tid);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (active) {
        put_tile<N>(c, (threadgroup float *)tg + simd * 64 * S::down, p, p.low + low, p.first + first, lane);
    }
}

// compute_tile computes a tile. All threads of the threadgroup must call it.
static inline void compute_tile(thread const tile_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    const uint rows = p.last - p.first;
    if (rows > 32) {
        compute_tile_of<8>(p, tg, lane, simd);
    } else if (rows > 16) {
        compute_tile_of<4>(p, tg, lane, simd);
    } else if (rows > 8) {
        compute_tile_of<2>(p, tg, lane, simd);
    } else {
        compute_tile_of<1>(p, tg, lane, simd);
    }
}

#endif
