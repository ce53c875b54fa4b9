// Products of a chunk of rows with a float32 matrix of few rows, such as that of a router.
//
// The tiles of gemm need many rows of W to occupy a GPU. Here a threadgroup computes at most 8 rows of W with
// 8 rows of x, in float32: a lane reads 4 columns of each, and the SIMD groups divide the columns. A row's sums
// are added in an order that depends on the number of threads alone.
#ifndef PIANOLA_NARROW_H
#define PIANOLA_NARROW_H

#include "product.h"

// PIANOLA_NARROW is the largest number of rows of W of a threadgroup, and that of rows of x.
#define PIANOLA_NARROW 8

// narrow_sums are a lane's sums of N rows of x: sum r*8+o belongs to row r of x and row o of W.
template <uint N>
struct narrow_sums {
    float of[N * PIANOLA_NARROW];
};

// add_step adds the first M sums of lanes that are Apart apart. If there are several, a lane passes half of them to
// the other lane and keeps the rest.
template <uint M, uint Apart, uint N>
static inline void add_step(thread narrow_sums<N> &s, uint lane) {
    if (M <= 1) {
        s.of[0] += simd_shuffle_xor(s.of[0], ushort(Apart));
        return;
    }
    const bool upper = (lane & Apart) != 0;
    PIANOLA_UNROLL
    for (uint k = 0; k < M / 2; k++) {
        const float low = s.of[k];
        const float high = s.of[k + M / 2];
        s.of[k] = (upper ? high : low) + simd_shuffle_xor(upper ? low : high, ushort(Apart));
    }
}

// add_lanes adds the sums of all lanes. In the end a lane has those from narrow_first on.
template <uint N>
static inline void add_lanes(thread narrow_sums<N> &s, uint lane) {
    const uint n = N * PIANOLA_NARROW;
    add_step<n, 16>(s, lane);
    add_step<n / 2, 8>(s, lane);
    add_step<n / 4, 4>(s, lane);
    add_step<n / 8, 2>(s, lane);
    add_step<n / 16, 1>(s, lane);
}

// narrow_kept returns the number of sums that a lane has after add_lanes, and narrow_first the number of the
// first. With fewer sums than lanes, several lanes have the same one.
template <uint N>
static inline uint narrow_kept() { return max(N * PIANOLA_NARROW / 32, 1u); }

template <uint N>
static inline uint narrow_first(uint lane) { return N * PIANOLA_NARROW >= 32 ? lane * narrow_kept<N>() : lane / (32 / min(N * PIANOLA_NARROW, 32u)); }

// narrow_rows multiplies rows of x, at most N, with the rows of W from low to high-1. Rows past the last repeat it;
// their results are not written. in and x_stride are multiples of 4.
template <uint N>
static inline void narrow_rows(thread const product &p, threadgroup float *tg, uint low, uint high, uint lane, uint simd, uint simds) {
    const uint rows = p.last - p.first;
    device const float4 *x[N];
    PIANOLA_UNROLL
    for (uint r = 0; r < N; r++) {
        x[r] = (device const float4 *)(p.x + ulong(p.first + min(r, rows - 1)) * p.x_stride);
    }
    device const float4 *w[PIANOLA_NARROW];
    PIANOLA_UNROLL
    for (uint o = 0; o < PIANOLA_NARROW; o++) {
        w[o] = (device const float4 *)p.w + ulong(min(low + o, high - 1)) * (p.in / 4);
    }
    narrow_sums<N> s;
    PIANOLA_UNROLL
    for (uint i = 0; i < N * PIANOLA_NARROW; i++) {
        s.of[i] = 0.0f;
    }
    _Pragma("clang loop unroll(disable)")
    for (uint c = simd * 32 + lane; c < p.in / 4; c += simds * 32) {
        float4 a[PIANOLA_NARROW];
        float4 b[N];
        PIANOLA_UNROLL
        for (uint o = 0; o < PIANOLA_NARROW; o++) {
            a[o] = w[o][c];
        }
        PIANOLA_UNROLL
        for (uint r = 0; r < N; r++) {
            b[r] = x[r][c];
        }
        PIANOLA_UNROLL
        for (uint r = 0; r < N; r++) {
            PIANOLA_UNROLL
            for (uint o = 0; o < PIANOLA_NARROW; o++) {
                s.of[r * PIANOLA_NARROW + o] += dot(a[o], b[r]);
            }
        }
    }
    add_lanes(s, lane);
    threadgroup float *own = tg + simd * N * PIANOLA_NARROW;
    if (N * PIANOLA_NARROW >= 32 || lane % (32 / min(N * PIANOLA_NARROW, 32u)) == 0) {
        PIANOLA_UNROLL
        for (uint k = 0; k < narrow_kept<N>(); k++) {
            own[narrow_first<N>(lane) + k] = s.of[k];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = simd * 32 + lane; i < N * PIANOLA_NARROW; i += simds * 32) {
        const uint r = i / PIANOLA_NARROW;
        const uint o = low + i % PIANOLA_NARROW;
        float v = 0.0f;
        for (uint k = 0; k < simds; k++) {
            v += tg[k * N * PIANOLA_NARROW + i];
        }
        if (r < rows && o < high) {
            p.y[ulong(p.first + r) * p.y_stride + o] = v + (p.bias ? p.b[o] : 0.0f);
        }
    }
}

// gemm_narrow multiplies the threadgroup's rows of x, at most 8, with a group of rows of W.
static inline void gemm_narrow(thread const product &p, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
    threadgroup float *sums = (threadgroup float *)tg;
    const uint low = group * p.group;
    const uint high = min(low + p.group, p.out);
    const uint rows = p.last - p.first;
    if (rows > 1) {
        narrow_rows<8>(p, sums, low, high, lane, simd, simds);
    } else {
        narrow_rows<1>(p, sums, low, high, lane, simd, simds);
    }
}

#endif
