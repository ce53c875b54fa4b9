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

// few_places returns the number of places for rows, up to 64, in the order of gemm_few: the next power of two.
static inline uint few_places(uint rows) {
    return rows <= 8 ? (rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : 8) : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

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

// input_vectors are the vectors from which those of a row of the input are computed.
struct input_vectors {
    vectors x, x2;
};

// load_vectors loads every step-th vector of a row from first on. Past its end it repeats the last.
template <uint From, bool Aligned>
static inline void load_vectors(thread input_vectors &v, thread const product &p, ulong row, uint first, uint step) {
    const uint count = p.in / 4;
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_VECTORS; k++) {
        const ulong at = row + 4 * min(first + k * step, count - 1);
        v.x.of[k] = vector_at(p.x + at, Aligned);
        v.x2.of[k] = From == PIANOLA_FROM_SILU_MUL || From == PIANOLA_FROM_PRODUCT ? vector_at(p.x2 + at, Aligned) : From == PIANOLA_FROM_NORM ? vector_at(p.x2 + at - row, Aligned) : float4(0.0f);
    }
}

// make_vectors computes the vectors of a row that load_vectors has loaded, 0 past its end.
template <uint From>
static inline void make_vectors(thread vectors &v, thread const input_vectors &in, thread const product &p, float scale, uint first, uint step) {
    const uint count = p.in / 4;
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_VECTORS; k++) {
        v.of[k] = in.x.of[k];
        if (From == PIANOLA_FROM_SILU_MUL) {
            v.of[k] = gated4(p.activation, v.of[k]) * in.x2.of[k];
        } else if (From == PIANOLA_FROM_NORM) {
            v.of[k] = v.of[k] * in.x2.of[k] * scale;
        } else if (From == PIANOLA_FROM_PRODUCT) {
            v.of[k] = product4(p, v.of[k], in.x2.of[k]);
        }
        v.of[k] = first + k * step < count ? v.of[k] : float4(0.0f);
    }
}

// largest_of returns the largest absolute value of vectors, or most.
static inline float largest_of(thread const vectors &v, float most) {
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_VECTORS; k++) {
        const float4 a = abs(v.of[k]);
        most = max(most, max(max(a.x, a.y), max(a.z, a.w)));
    }
    return most;
}

// few_place returns the offset of a vector of a row in the order of gemm_few: tiles of 32 columns, of each
// tile the places of the rows, and of each row the 16 bytes of a lane, columns 4t to 4t+3 and 16+4t to 19+4t.
static inline ulong few_place(uint vector, uint row, uint places) {
    return ulong(vector / 8 * places + row) * 64 + vector % 4 * 16 + vector / 4 % 2 * 8;
}

// halves_row is the place of a converted row. places is their number in the order of gemm_few, or 0 for rows
// one after the other.
struct halves_row {
    device uchar *out;
    uint columns, terms, places, row;
};

// put_vectors writes every step-th vector of a row, from first on, in units.
static inline void put_vectors(thread const halves_row &r, thread const vectors &v, float unit, uint first, uint step) {
    // unit and its inverse are powers of two.
    const float inverse = as_type<float>((254u << 23) - as_type<uint>(unit));
    device uint2 *to = (device uint2 *)(r.out + ulong(r.row) * halves_bytes(r.columns, r.terms));
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_VECTORS; k++) {
        const uint at = first + k * step;
        if (at < r.columns / 4) {
            const float4 x = v.of[k] * inverse;
            const half4 words = half4(x);
            *(r.places != 0 ? (device uint2 *)(r.out + few_place(at, r.row, r.places)) : to + at) = as_type<uint2>(words);
            if (r.terms == 2) {
                to[r.columns / 4 + at] = as_type<uint2>(half4(x - float4(words)));
            }
        }
    }
}

// put_unit writes the unit of a row.
static inline void put_unit(thread const halves_row &r, float unit) {
    device float *to = (device float *)(r.out + ulong(r.row) * halves_bytes(r.columns, r.terms));
    *(r.places != 0 ? (device float *)(r.out + ulong(r.columns) * 2 * r.places) + r.row : to + r.terms * r.columns / 2) = unit;
}

// make_halves converts a row of the input to one or two terms, if runs. A threadgroup handles one row. The
// first loads do not wait until it is known whether the command runs.
template <uint From, bool Aligned>
static inline void make_halves(thread const halves_row &r, thread const product &p, float scale, bool runs, threadgroup uchar *tg, uint lane, uint simd, uint simds) {
    const uint tid = simd * 32 + lane;
    const uint threads = simds * 32;
    const uint pass = PIANOLA_VECTORS * threads;
    const ulong begin = ulong(r.row) * p.x_stride;
    input_vectors in;
    vectors v;
    float most = 0.0f;
    // Start with the last vectors, so that the vectors with which the second pass begins are
    // still in registers.
    const uint steps = (r.columns / 4 + pass - 1) / pass;
    load_vectors<From, Aligned>(in, p, begin, (steps - 1) * pass + tid, threads);
    issued();
    if (!runs) {
        return;
    }
    for (uint i = steps; i-- > 0;) {
        if (i + 1 < steps) {
            load_vectors<From, Aligned>(in, p, begin, i * pass + tid, threads);
        }
        make_vectors<From>(v, in, p, scale, i * pass + tid, threads);
        most = largest_of(v, most);
    }
    const float unit = unit_of(threadgroup_max(most, (threadgroup float *)tg, lane, simd, simds));
    for (uint i = 0; i < steps; i++) {
        if (i > 0) {
            load_vectors<From, Aligned>(in, p, begin, i * pass + tid, threads);
            make_vectors<From>(v, in, p, scale, i * pass + tid, threads);
        }
        put_vectors(r, v, unit, i * pass + tid, threads);
    }
    if (tid == 0) {
        put_unit(r, unit);
    }
}

#endif
