// Parts of norms and of sums of the residual stream.
#ifndef PIANOLA_NORM_H
#define PIANOLA_NORM_H

#include "pianola.h"

// The sum of the squares of a row is the sum of the sums of its parts of 32 columns, in an order that depends
// only on the number of columns. So all kernels compute the same bits, whatever the size of their threadgroups.

// square_parts returns the number of parts of n columns, rounded up to a multiple of 4. The parts past the last
// are 0.
static inline uint square_parts(uint n) { return (n + 127) / 128 * 4; }

// add_parts returns the sum of count numbers, a multiple of 4. All lanes of a SIMD group call it.
template <typename V>
static inline float add_parts(V parts, uint count, uint lane) {
    const float4 first = lane < count / 4 ? parts[lane] : float4(0.0f);
    float sum = (first.x + first.y) + (first.z + first.w);
    for (uint i = lane + 32; i < count / 4; i += 32) {
        const float4 v = parts[i];
        sum += (v.x + v.y) + (v.z + v.w);
    }
    return simd_sum(sum);
}

// part_sum returns the sum of v over the 8 lanes that have a part of 8 vectors, and part_max the largest.
static inline float part_sum(float v) {
    v += simd_shuffle_xor(v, ushort(1));
    v += simd_shuffle_xor(v, ushort(2));
    return v + simd_shuffle_xor(v, ushort(4));
}
static inline float part_max(float v) {
    v = max(v, simd_shuffle_xor(v, ushort(1)));
    v = max(v, simd_shuffle_xor(v, ushort(2)));
    return max(v, simd_shuffle_xor(v, ushort(4)));
}

// put_squares stores the sums of parts, of which a lane has the squares of vector at, or 0 past the row's end.
// All lanes of a SIMD group call it with neighbouring vectors, lane 0 with a multiple of 32.
static inline void put_squares(threadgroup float *parts, float squares, uint at, uint lane) {
    squares = part_sum(squares);
    if (lane % 8 == 0) {
        parts[at / 8] = squares;
    }
}

// row_sum returns the sum of the parts of a row of n columns after all threads have stored theirs.
static inline float row_sum(threadgroup const float *parts, uint n, uint lane) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return add_parts((threadgroup const float4 *)parts, square_parts(n), lane);
}

// row_squares returns the sum of squares of a row. parts has square_parts(n) elements. All threads call it; a
// barrier is required between two calls.
static inline float row_squares(device const float *x, uint n, threadgroup float *parts, uint tid, uint threads, uint lane) {
    if (n % 4 == 0) {
        device const float4 *x4 = (device const float4 *)x;
        for (uint at = tid; at - lane < n / 4; at += threads) {
            put_squares(parts, at < n / 4 ? dot(x4[at], x4[at]) : 0.0f, at, lane);
        }
        return row_sum(parts, n, lane);
    }
    const uint used = (n + 31) / 32;
    for (uint at = tid; at - lane < n; at += threads) {
        const float v = at < n ? x[at] : 0.0f;
        const float squares = simd_sum(v * v);
        if (lane == 0) {
            parts[at / 32] = squares;
        }
    }
    if (used + tid < square_parts(n)) {
        parts[used + tid] = 0.0f;
    }
    return row_sum(parts, n, lane);
}

// or_one returns scale, or 1 if scale is 0.
static inline float or_one(float scale) { return scale == 0.0f ? 1.0f : scale; }

// added returns a vector of the residual stream to which delta times scale, or delta if scale is 0, is added.
static inline float4 added(float4 x, float4 delta, float scale) { return x + delta * or_one(scale); }

// add_to adds the thread's part of delta times scale to x.
static inline void add_to(device float *x, device const float *delta, float scale, uint n, uint tid, uint threads) {
    if (n % 4 == 0) {
        device float4 *x4 = (device float4 *)x;
        device const float4 *d4 = (device const float4 *)delta;
        for (uint i = tid; i < n / 4; i += threads) {
            x4[i] += d4[i] * scale;
        }
        return;
    }
    for (uint i = tid; i < n; i += threads) {
        x[i] += delta[i] * scale;
    }
}

#endif
