// Rows of float16 activations: their layout, and the conversion of rows of float32.
#ifndef PIANOLA_HALVES_H
#define PIANOLA_HALVES_H

#include "norm.h"
#include "product.h"

// PIANOLA_CHUNK is the number of columns to whose multiples the columns of a row are rounded up.
#define PIANOLA_CHUNK 64

// padded returns n columns rounded up to whole chunks.
static inline uint padded(uint n) { return (n + PIANOLA_CHUNK - 1) / PIANOLA_CHUNK * PIANOLA_CHUNK; }

// halves_bytes returns the size in bytes of a row of float16 activations of n columns, n rounded
// up to whole chunks. The row consists of n float16, n more if there are two terms, the unit, a
// float32, and 124 unused bytes: a row begins at a multiple of 128 bytes, because the copy unit needs
// twice the time for rows that do not.
static inline uint halves_bytes(uint n, uint terms) { return 2 * terms * n + 128; }

// few_blocks returns the number of blocks of 8 rows, 1, 2, 4 or 8, in which gemm_few reads that many rows.
static inline uint few_blocks(uint rows) { return rows <= 8 ? 1 : rows <= 16 ? 2 : rows <= 32 ? 4 : 8; }

// PIANOLA_VECTORS is the number of vectors of a row that a thread loads at once. The
// vectors past those of all threads are loaded twice.
#define PIANOLA_VECTORS 4

// vectors are a thread's vectors of a row of the input.
struct vectors {
    float4 of[PIANOLA_VECTORS];
};

// What make_halves converts: a row, silu(row) * another, the norm of a row, whose scale is given, times
// weights, or any activation of a row * another.
#define PIANOLA_FROM_ROW 0
#define PIANOLA_FROM_SILU_MUL 1
#define PIANOLA_FROM_NORM 2
#define PIANOLA_FROM_PRODUCT 3

// read_vectors loads every step-th vector of a row of the input from first on, with 0 past
// its end.
template <uint From, bool Aligned>
static inline void read_vectors(thread vectors &v, thread const product &p, ulong row, float scale, uint first, uint step) {
    const uint count = p.in / 4;
    float4 up[PIANOLA_VECTORS];
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_VECTORS; k++) {
        const ulong at = row + 4 * min(first + k * step, count - 1);
        v.of[k] = vector_at(p.x + at, Aligned);
        up[k] = From == PIANOLA_FROM_SILU_MUL || From == PIANOLA_FROM_PRODUCT ? vector_at(p.x2 + at, Aligned) : From == PIANOLA_FROM_NORM ? vector_at(p.x2 + at - row, Aligned) : float4(0.0f);
    }
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_VECTORS; k++) {
        if (From == PIANOLA_FROM_SILU_MUL) {
            v.of[k] = gated4(p.activation, v.of[k]) * up[k];
        } else if (From == PIANOLA_FROM_NORM) {
            v.of[k] = v.of[k] * scale * up[k];
        } else if (From == PIANOLA_FROM_PRODUCT) {
            v.of[k] = product4(p, v.of[k], up[k]);
        }
        v.of[k] = first + k * step < count ? v.of[k] : float4(0.0f);
    }
}

// few_place returns the offset of a vector of a row in the order of gemm_few: tiles of 32 columns, of each
// tile the blocks of 8 rows, and of each block the 16 bytes of a lane, columns 4t to 4t+3 and 16+4t to 19+4t
// of a row.
static inline ulong few_place(uint vector, uint row, uint blocks) {
    return ulong(vector / 8 * blocks + row / 8) * 512 + row % 8 * 64 + vector % 4 * 16 + vector / 4 % 2 * 8;
}

// make_halves converts a row of the input to one or two terms. A threadgroup handles one row. blocks is the
// number of blocks of 8 rows in the order of gemm_few, or 0 for rows one after the other.
template <uint From, bool Aligned>
static inline void make_halves(device uchar *out, thread const product &p, float scale, uint terms, uint blocks, uint row, threadgroup uchar *tg, uint lane, uint simd, uint simds) {
    const uint columns = padded(p.in);
    const uint tid = simd * 32 + lane;
    const uint threads = simds * 32;
    const ulong begin = ulong(row) * p.x_stride;
    vectors v;
    float most = 0.0f;
    // Start with the last vectors, so that the vectors with which the second pass begins are
    // still in registers.
    const uint steps = (columns / 4 + PIANOLA_VECTORS * threads - 1) / (PIANOLA_VECTORS * threads);
    for (uint i = steps; i-- > 0;) {
        read_vectors<From, Aligned>(v, p, begin, scale, i * PIANOLA_VECTORS * threads + tid, threads);
        PIANOLA_UNROLL
        for (uint k = 0; k < PIANOLA_VECTORS; k++) {
            const float4 a = abs(v.of[k]);
            most = max(most, max(max(a.x, a.y), max(a.z, a.w)));
        }
    }
    const float unit = unit_of(threadgroup_max(most, (threadgroup float *)tg, lane, simd, simds));
    // unit and its inverse are powers of two.
    const float inverse = as_type<float>((254u << 23) - as_type<uint>(unit));
    device uint2 *to = (device uint2 *)(out + ulong(row) * halves_bytes(columns, terms));
    for (uint i = 0; i < steps; i++) {
        const uint first = i * PIANOLA_VECTORS * threads + tid;
        if (i > 0) {
            read_vectors<From, Aligned>(v, p, begin, scale, first, threads);
        }
        PIANOLA_UNROLL
        for (uint k = 0; k < PIANOLA_VECTORS; k++) {
            if (first + k * threads < columns / 4) {
                const float4 x = v.of[k] * inverse;
                const half4 words = half4(x);
                const uint at = first + k * threads;
                *(blocks != 0 ? (device uint2 *)(out + few_place(at, row, blocks)) : to + at) = as_type<uint2>(words);
                if (terms == 2) {
                    to[columns / 4 + first + k * threads] = as_type<uint2>(half4(x - float4(words)));
                }
            }
        }
    }
    if (tid == 0) {
        *(blocks != 0 ? (device float *)(out + ulong(columns) * 16 * blocks) + row : (device float *)to + terms * columns / 2) = unit;
    }
}

#endif
