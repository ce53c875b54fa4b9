// Products of a chunk of rows with float16 activations and float16, bfloat16 or quantised
// weights. A separate command converts the rows once, so that the products only copy and
// multiply.
#include "chunks.h"

[[max_total_threads_per_threadgroup(1024)]]
kernel void halves(
        device const float *x             [[buffer(0)]],
        device const float *x2            [[buffer(1)]],
        device uchar *out                 [[buffer(2)]],
        constant pianola_halves_params &p [[buffer(8)]],
        constant pianola_second &s        [[buffer(9)]],
        device pianola_step *step         [[buffer(10)]],
        threadgroup uchar *tg             [[threadgroup(0)]],
        uint3 group                       [[threadgroup_position_in_grid]],
        uint lane                         [[thread_index_in_simdgroup]],
        uint simd                         [[simdgroup_index_in_threadgroup]],
        uint simds                        [[simdgroups_per_threadgroup]]) {
    const bool begun = begins(step);
    const uint rows = s.rows;
    const bool runs = begun && group.x < rows;
    if (p.few == 0 && !runs) {
        return; // there may be many threadgroups without a row
    }
    product a;
    a.x = x;
    a.x2 = x2;
    a.in = p.in;
    a.x_stride = p.x_stride;
    a.activation = ACTIVATION;
    const bool aligned = p.x_stride % 4 == 0;
    const halves_row r = {out, padded(p.in), ACT == PIANOLA_ACT_F16 ? 1u : 2u, p.few != 0 ? few_places(rows) : 0, group.x};
    if (INPUT == PIANOLA_INPUT_SILU_MUL && aligned) {
        make_halves<PIANOLA_FROM_SILU_MUL, true>(r, a, 1.0f, runs, tg, lane, simd, simds);
    } else if (INPUT == PIANOLA_INPUT_SILU_MUL) {
        make_halves<PIANOLA_FROM_SILU_MUL, false>(r, a, 1.0f, runs, tg, lane, simd, simds);
    } else if (aligned) {
        make_halves<PIANOLA_FROM_ROW, true>(r, a, 1.0f, runs, tg, lane, simd, simds);
    } else {
        make_halves<PIANOLA_FROM_ROW, false>(r, a, 1.0f, runs, tg, lane, simd, simds);
    }
}

// PIANOLA_SEGMENTS is the number of segments of the columns of a product in a table for batching. In gemm_few each SIMD
// group has one.
#define PIANOLA_SEGMENTS PIANOLA_SIMDS

// segments_at returns the sum of a vector of the segments of a row of count vectors, the first one's first.
static inline float4 segments_at(device const float *x, uint count, uint at) {
    float4 v[PIANOLA_SEGMENTS];
    PIANOLA_UNROLL
    for (uint s = 0; s < PIANOLA_SEGMENTS; s++) {
        v[s] = ((device const float4 *)x)[s * count + at];
    }
    float4 sum = float4(0.0f);
    PIANOLA_UNROLL
    for (uint s = 0; s < PIANOLA_SEGMENTS; s++) {
        sum += v[s];
    }
    return sum;
}

// load_row loads every step-th vector of a row of count vectors, from first on. Where the row has fewer for all
// threads, nothing is loaded; where only for some, they repeat the last.
static inline void load_row(thread vectors &v, device const float *x, uint count, uint first, uint step) {
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_VECTORS; k++) {
        v.of[k] = k * step < count ? ((device const float4 *)x)[min(first + k * step, count - 1)] : float4(0.0f);
    }
}

// load_segments sets vectors of a row to the sums of those of its segments, which follow each other, in order. They are
// those that load_row loads.
static inline void load_segments(thread vectors &v, device const float *x, uint count, uint first, uint step) {
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_VECTORS; k++) {
        v.of[k] = float4(0.0f);
        if (k * step < count) {
            v.of[k] = segments_at(x, count, min(first + k * step, count - 1));
        }
    }
}

// add_once is add_rmsnorm_halves for a row of which each thread loads all its vectors at once, if runs. x is the
// row, in has the vectors of what is added to it and of the weights of the norm.
static inline void add_once(thread const halves_row &r, device float *x, thread input_vectors &in, constant pianola_add_rmsnorm_halves_params &p, bool runs, threadgroup uchar *tg, uint lane, uint simd, uint simds) {
    const uint tid = simd * 32 + lane;
    const uint threads = simds * 32;
    const uint count = p.n / 4;
    vectors v;
    load_row(v, x, count, tid, threads);
    issued();
    if (!runs) {
        return;
    }
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_VECTORS; k++) {
        const uint at = tid + k * threads;
        float squares = 0.0f;
        if (at < count) {
            in.x.of[k] = added(v.of[k], in.x.of[k], p.delta_scale);
            ((device float4 *)x)[at] = in.x.of[k];
            squares = dot(in.x.of[k], in.x.of[k]);
        }
        if (k * threads < count && at - lane < count) {
            put_squares((threadgroup float *)tg, squares, at, lane);
        }
    }
    const float sum = row_sum((threadgroup float *)tg, p.n, lane);
    product a;
    a.in = p.n;
    make_vectors<PIANOLA_FROM_NORM>(v, in, a, precise::rsqrt(sum / float(p.n) + p.eps) * or_one(p.scale), tid, threads);
    const float unit = unit_of(threadgroup_max(largest_of(v, 0.0f), (threadgroup float *)tg + square_parts(p.n), lane, simd, simds));
    put_vectors(r, v, unit, tid, threads);
    if (tid == 0) {
        put_unit(r, unit);
    }
}

// A command of a small batch is a chain of accesses to the cache, so a row that fits into the registers of the
// threads is loaded once, together with the step's values.
// reads ahead: w
[[max_total_threads_per_threadgroup(1024)]]
kernel void add_rmsnorm_halves(
        device float *x                               [[buffer(0)]],
        device const float *delta                     [[buffer(1)]],
        device const float *w                         [[buffer(2)]],
        device uchar *out                             [[buffer(3)]],
        constant pianola_add_rmsnorm_halves_params &p [[buffer(8)]],
        constant pianola_second &s                    [[buffer(9)]],
        device pianola_step *step                     [[buffer(10)]],
        threadgroup uchar *tg                         [[threadgroup(0)]],
        uint3 group                                   [[threadgroup_position_in_grid]],
        uint tid                                      [[thread_index_in_threadgroup]],
        uint lane                                     [[thread_index_in_simdgroup]],
        uint simd                                     [[simdgroup_index_in_threadgroup]],
        uint simds                                    [[simdgroups_per_threadgroup]]) {
    const uint threads = simds * 32;
    const uint count = p.n / 4;
    const ulong row = ulong(group.x) * p.n;
    const bool once = padded(p.n) / 4 <= PIANOLA_VECTORS * threads;
    input_vectors in;
    if (once) {
        load_row(in.x2, w, count, tid, threads);
        issued();
    }
    const bool begun = begins(step);
    const uint rows = s.rows;
    const bool runs = begun && group.x < rows;
    if (p.few == 0 && !runs) {
        return;
    }
    const halves_row r = {out, padded(p.n), 1, p.few != 0 ? few_places(rows) : 0, group.x};
    if (once) {
        if (p.segments != 0) {
            load_segments(in.x, delta + PIANOLA_SEGMENTS * row, count, tid, threads);
        } else {
            load_row(in.x, delta + row, count, tid, threads);
        }
        add_once(r, x + row, in, p, runs, tg, lane, simd, simds);
        return;
    }
    if (!runs) {
        return;
    }
    // A thread reads only elements that it wrote itself, so no barrier is needed.
    if (p.segments != 0) {
        for (uint i = tid; i < count; i += threads) {
            device float4 *at = (device float4 *)(x + row) + i;
            *at = added(*at, segments_at(delta + PIANOLA_SEGMENTS * row, count, i), p.delta_scale);
        }
    } else {
        add_to(x + row, delta + row, or_one(p.delta_scale), p.n, tid, threads);
    }
    const float sum = row_squares(x + row, p.n, (threadgroup float *)tg, tid, threads, lane);
    product a;
    a.x = x;
    a.x2 = w;
    a.in = p.n;
    a.x_stride = p.n;
    make_halves<PIANOLA_FROM_NORM, true>(r, a, precise::rsqrt(sum / float(p.n) + p.eps) * or_one(p.scale), true, tg + 4 * square_parts(p.n), lane, simd, simds);
}

// gemm_halves_of selects the shape of the threadgroup's work: row_group rows of x, fewer if there
// are not so many, and 64 rows of W if that takes at most spread threadgroups, otherwise 128. With segments,
// it is always 128 rows of W, and at most 128 of x unless the sums of segments are written apart. The threadgroups of a
// cluster divide the segments; without warpgroups, the first of them multiplies all.
template <uint T, uint Terms, uint Sums>
static inline void gemm_halves_of(thread halves_product &p, threadgroup uchar *tg, uint rows, uint row_group, uint spread, uint at, uint lane, uint simd) {
    if (rows <= 128) {
        row_group = rows <= 64 ? 64 : min(row_group, 128u);
    }
    const uint across = (rows + row_group - 1) / row_group;
    const uint group = Terms == 1 && row_group <= 128 && (p.out + 63) / 64 * across <= spread ? 64 : 128;
    if (Sums == PIANOLA_SUMS_CLUSTER) {
        p.rank = at % p.cluster;
        at /= p.cluster;
#ifdef PIANOLA_WARPGROUPS
        take_share(p, p.cluster);
#else
        if (p.rank != 0) {
            return;
        }
#endif
    }
    if (Sums == PIANOLA_SUMS_APART) {
        take_share(p, p.splits);
        p.y += p.rank * (PIANOLA_SIMDS / p.splits) * p.out;
    }
    // Threadgroups that run at the same time share rows of W: all rows of x
    // with some rows of W come first, then all rows of x with the next.
    p.low = at / across * group;
    p.high = min(p.low + group, p.out);
    p.first = at % across * row_group;
    p.last = min(p.first + row_group, rows);
    if (p.low >= p.out) {
        return;
    }
    if (Sums == PIANOLA_SUMS_APART) {
        if (row_group > 128) {
            gemm_chunks<T, 1, 128, 32, PIANOLA_SUMS_APART>(p, tg, lane, simd);
        } else {
            gemm_chunks<T, 1, 128, 16, PIANOLA_SUMS_APART>(p, tg, lane, simd);
        }
        return;
    }
#ifdef PIANOLA_WARPGROUPS
    if (Sums == PIANOLA_SUMS_CLUSTER) {
        // Products of up to 64 rows with quantised weights are those of gemm_few.
        if (T <= PIANOLA_WTYPE_BF16 && row_group <= 64) {
            gemm_cluster<T, Terms, 8>(p, tg, lane, simd);
        } else {
            gemm_cluster<T, Terms, 16>(p, tg, lane, simd);
        }
        return;
    }
#endif
    // Without warpgroups, the only threadgroup of a cluster that multiplies has all segments.
    const uint sums = Sums == PIANOLA_SUMS_CLUSTER ? PIANOLA_SUMS_ADDED : Sums;
    if (Terms == 1 && row_group > 128 && sums == PIANOLA_SUMS_WHOLE) {
        gemm_chunks<T, 1, 128, 32, PIANOLA_SUMS_WHOLE>(p, tg, lane, simd);
    } else if (row_group > 64) {
        if (Terms == 1 && group == 64 && sums == PIANOLA_SUMS_WHOLE) {
            gemm_chunks<T, 1, 64, 16, PIANOLA_SUMS_WHOLE>(p, tg, lane, simd);
        } else {
            gemm_chunks<T, Terms, 128, 16, sums>(p, tg, lane, simd);
        }
    } else if (Terms == 1 && group == 64 && sums == PIANOLA_SUMS_WHOLE) {
        gemm_chunks<T, 1, 64, 8, PIANOLA_SUMS_WHOLE>(p, tg, lane, simd);
    } else {
        gemm_chunks<T, Terms, 128, 8, sums>(p, tg, lane, simd);
    }
}

#ifdef PIANOLA_WARPGROUPS
// request_first requests the first columns of the weights before the input is ready, if the threadgroups
// divide only the rows of W and the segments. Then a threadgroup's weights do not depend on the number of rows of x.
template <uint T>
static inline void request_first(thread halves_product p, uint columns, uint group, bool apart, uint lane, uint simd) {
    p.low = group * 128;
    if (apart) {
        take_share(p, p.splits);
    }
    if (T > PIANOLA_WTYPE_BF16) {
        if (simd == 0 && lane < 8) {
            request_strip<T>(p, p.low / 16 + lane, p.begin, p.begin + columns);
        }
    } else if (simd < 4) {
        request_row(p, p.low + 32 * simd + lane, p.begin, p.begin + columns);
    }
}
#endif

// requests ahead: w
[[max_total_threads_per_threadgroup(384)]]
kernel void gemm_halves(
        device const uchar *x                  [[buffer(0)]],
        device const uchar *w                  [[buffer(1)]],
        device const float *b                  [[buffer(2)]],
        device float *y                        [[buffer(3)]],
        device const uchar *maps               [[buffer(4)]],
        constant pianola_gemm_halves_params &p [[buffer(8)]],
        constant pianola_second &s             [[buffer(9)]],
        device pianola_step *step              [[buffer(10)]],
        threadgroup uchar *tg                  [[threadgroup(0)]],
        uint3 group                            [[threadgroup_position_in_grid]],
        uint3 groups                           [[threadgroups_per_grid]],
        uint lane                              [[thread_index_in_simdgroup]],
        uint simd                              [[simdgroup_index_in_threadgroup]]) {
#if !defined(PIANOLA_NVPTX) || PIANOLA_SM >= 90 // other processors have too little threadgroup memory
    halves_product a = {x, w, b, y, p.in, p.out, p.y_stride, 0, 0, 0, 0, BIAS != 0, maps, p.ahead, p.cluster, p.splits, DIVISION == PIANOLA_DIVISION_APART ? group.z : 0, 0, 0};
#endif
#ifdef PIANOLA_WARPGROUPS
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: request_first<PIANOLA_WTYPE_##type>(a, p.ahead, group.x, DIVISION == PIANOLA_DIVISION_APART, lane, simd); break;
    if (p.ahead != 0 && groups.y == 1) {
        switch (WTYPE) {
            PIANOLA_EXPANDED(PIANOLA_CASE)
            PIANOLA_CASE(F16)
            PIANOLA_CASE(BF16)
        default: break;
        }
    }
#undef PIANOLA_CASE
#endif
    if (!begins(step)) {
        return;
    }
#if !defined(PIANOLA_NVPTX) || PIANOLA_SM >= 90
    const uint at = group.y * groups.x + group.x;
#define PIANOLA_PRODUCT(type, terms, sums) gemm_halves_of<PIANOLA_WTYPE_##type, terms, sums>(a, tg, s.rows, p.row_group, p.spread, at, lane, simd)
// PIANOLA_TERM multiplies rows with one float16 term.
#define PIANOLA_TERM(type) \
    if (DIVISION == PIANOLA_DIVISION_APART) { \
        PIANOLA_PRODUCT(type, 1, PIANOLA_SUMS_APART); \
    } else if (DIVISION == PIANOLA_DIVISION_CLUSTERS) { \
        PIANOLA_PRODUCT(type, 1, PIANOLA_SUMS_CLUSTER); \
    } else if (SEGMENTS != 0) { \
        PIANOLA_PRODUCT(type, 1, PIANOLA_SUMS_ADDED); \
    } else { \
        PIANOLA_PRODUCT(type, 1, PIANOLA_SUMS_WHOLE); \
    }
    if (WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: \
        PIANOLA_TERM(type) \
        break;
        switch (WTYPE) {
            PIANOLA_EXPANDED(PIANOLA_CASE)
        default: break;
        }
        return;
#undef PIANOLA_CASE
    }
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: \
        if (ACT == PIANOLA_ACT_F16) { \
            PIANOLA_TERM(type) \
        } else { \
            PIANOLA_PRODUCT(type, 2, PIANOLA_SUMS_WHOLE); \
        } \
        break;
    switch (WTYPE) {
        PIANOLA_CASE(F16)
        PIANOLA_CASE(BF16)
    default: break;
    }
#undef PIANOLA_CASE
#undef PIANOLA_TERM
#undef PIANOLA_PRODUCT
#endif
}
