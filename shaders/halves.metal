// Products of a chunk of rows with float16 activations and float16, bfloat16 or quantised
// weights. A separate command converts the rows once, so that the products only copy and
// multiply.
#include "chunks.h"
#include "norm.h"

// PIANOLA_VECTORS is the number of vectors of a row that a thread loads at once. The
// vectors past those of all threads are loaded twice.
#define PIANOLA_VECTORS 4

// vectors are a thread's vectors of a row of the input.
struct vectors {
    float4 of[PIANOLA_VECTORS];
};

// What make_halves converts: a row, silu(row) * another, or the norm of a row, whose scale is given, times
// weights.
#define PIANOLA_FROM_ROW 0
#define PIANOLA_FROM_SILU_MUL 1
#define PIANOLA_FROM_NORM 2

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
        up[k] = From == PIANOLA_FROM_SILU_MUL ? vector_at(p.x2 + at, Aligned) : From == PIANOLA_FROM_NORM ? vector_at(p.x2 + at - row, Aligned) : float4(0.0f);
    }
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_VECTORS; k++) {
        if (From == PIANOLA_FROM_SILU_MUL) {
            v.of[k] = gated4(p.activation, v.of[k]) * up[k];
        } else if (From == PIANOLA_FROM_NORM) {
            v.of[k] = v.of[k] * scale * up[k];
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
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    product a;
    a.x = x;
    a.x2 = x2;
    a.in = p.in;
    a.x_stride = p.x_stride;
    a.activation = ACTIVATION;
    const bool aligned = p.x_stride % 4 == 0;
    const uint terms = ACT == PIANOLA_ACT_F16 ? 1 : 2;
    const uint blocks = p.few != 0 ? few_blocks(s.rows) : 0;
    if (INPUT == PIANOLA_INPUT_SILU_MUL && aligned) {
        make_halves<PIANOLA_FROM_SILU_MUL, true>(out, a, 1.0f, terms, blocks, group.x, tg, lane, simd, simds);
    } else if (INPUT == PIANOLA_INPUT_SILU_MUL) {
        make_halves<PIANOLA_FROM_SILU_MUL, false>(out, a, 1.0f, terms, blocks, group.x, tg, lane, simd, simds);
    } else if (aligned) {
        make_halves<PIANOLA_FROM_ROW, true>(out, a, 1.0f, terms, blocks, group.x, tg, lane, simd, simds);
    } else {
        make_halves<PIANOLA_FROM_ROW, false>(out, a, 1.0f, terms, blocks, group.x, tg, lane, simd, simds);
    }
}

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
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    const ulong row = ulong(group.x) * p.n;
    // A thread reads only elements that it wrote itself, so no barrier is needed.
    add_to(x + row, delta + row, or_one(p.delta_scale), p.n, tid, simds * 32);
    const float sum = threadgroup_sum(square_sum(x + row, p.n, tid, simds * 32), (threadgroup float *)tg, lane, simd, simds);
    threadgroup_barrier(mem_flags::mem_threadgroup); // the reduction's memory is written again
    product a;
    a.x = x;
    a.x2 = w;
    a.in = p.n;
    a.x_stride = p.n;
    make_halves<PIANOLA_FROM_NORM, true>(out, a, precise::rsqrt(sum / float(p.n) + p.eps) * or_one(p.scale), 1, p.few != 0 ? few_blocks(s.rows) : 0, group.x, tg, lane, simd, simds);
}

// gemm_halves_of selects the shape of the threadgroup's work: row_group rows of x, fewer if there
// are not so many, and 64 rows of W if that takes at most spread threadgroups, otherwise 128.
template <uint T, uint Terms>
static inline void gemm_halves_of(thread halves_product &p, threadgroup uchar *tg, uint rows, uint row_group, uint spread, uint at, uint lane, uint simd) {
    if (rows <= 128) {
        row_group = rows <= 64 ? 64 : min(row_group, 128u);
    }
    const uint across = (rows + row_group - 1) / row_group;
    const uint group = Terms == 1 && row_group <= 128 && (p.out + 63) / 64 * across <= spread ? 64 : 128;
    // Threadgroups that run at the same time share rows of W: all rows of x
    // with some rows of W come first, then all rows of x with the next.
    p.low = at / across * group;
    p.high = min(p.low + group, p.out);
    p.first = at % across * row_group;
    p.last = min(p.first + row_group, rows);
    if (p.low >= p.out) {
        return;
    }
    if (Terms == 1 && row_group > 128) {
        gemm_chunks<T, 1, 128, 32>(p, tg, lane, simd);
    } else if (row_group > 64) {
        if (Terms == 1 && group == 64) {
            gemm_chunks<T, 1, 64, 16>(p, tg, lane, simd);
        } else {
            gemm_chunks<T, Terms, 128, 16>(p, tg, lane, simd);
        }
    } else if (Terms == 1 && group == 64) {
        gemm_chunks<T, 1, 64, 8>(p, tg, lane, simd);
    } else {
        gemm_chunks<T, Terms, 128, 8>(p, tg, lane, simd);
    }
}

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
    if (!begins(step)) {
        return;
    }
#if !defined(PIANOLA_NVPTX) || PIANOLA_SM >= 90 // other processors have too little threadgroup memory
    const uint at = group.y * groups.x + group.x;
    halves_product a = {x, w, b, y, p.in, p.out, p.y_stride, 0, 0, 0, 0, BIAS != 0, maps};
    if (WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemm_halves_of<PIANOLA_WTYPE_##type, 1>(a, tg, s.rows, p.row_group, p.spread, at, lane, simd); break;
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
            gemm_halves_of<PIANOLA_WTYPE_##type, 1>(a, tg, s.rows, p.row_group, p.spread, at, lane, simd); \
        } else { \
            gemm_halves_of<PIANOLA_WTYPE_##type, 2>(a, tg, s.rows, p.row_group, p.spread, at, lane, simd); \
        } \
        break;
    switch (WTYPE) {
        PIANOLA_CASE(F16)
        PIANOLA_CASE(BF16)
    default: break;
    }
#undef PIANOLA_CASE
#endif
}
