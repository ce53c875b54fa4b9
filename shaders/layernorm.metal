// Norms that subtract the mean. A threadgroup of layernorm processes one row.
#include "pianola.h"

[[max_total_threads_per_threadgroup(1024)]]
kernel void layernorm(
        device const float *x               [[buffer(0)]],
        device const float *w               [[buffer(1)]],
        device float *out                   [[buffer(2)]],
        constant pianola_layernorm_params &p [[buffer(8)]],
        constant pianola_second &s          [[buffer(9)]],
        device pianola_step *step           [[buffer(10)]],
        threadgroup uchar *tg               [[threadgroup(0)]],
        uint3 group                         [[threadgroup_position_in_grid]],
        uint tid                            [[thread_index_in_threadgroup]],
        uint lane                           [[thread_index_in_simdgroup]],
        uint simd                           [[simdgroup_index_in_threadgroup]],
        uint simds                          [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    device const float *from = x + ulong(min(s.index + group.x, p.x_rows - 1)) * p.n;
    device float *to = out + ulong(group.x) * p.n;
    const uint threads = simds * 32;
    float sum = 0.0f;
    for (uint i = tid; i < p.n; i += threads) {
        sum += from[i];
    }
    const float mean = threadgroup_sum(sum, (threadgroup float *)tg, lane, simd, simds) / float(p.n);
    // Compute the variance from the differences to the mean. The difference of two sums would
    // lose precision if the mean is large.
    float squares = 0.0f;
    for (uint i = tid; i < p.n; i += threads) {
        const float d = from[i] - mean;
        squares += d * d;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    squares = threadgroup_sum(squares, (threadgroup float *)tg, lane, simd, simds);
    const float scale = precise::rsqrt(squares / float(p.n) + p.eps);
    for (uint i = tid; i < p.n; i += threads) {
        to[i] = (from[i] - mean) * scale * w[i] + w[p.n + i];
    }
}

// A threadgroup processes a head of one row. Rows and heads need not be aligned to 16 bytes.
[[max_total_threads_per_threadgroup(1024)]]
kernel void head_layernorm(
        device float *x                           [[buffer(0)]],
        device const float *w                     [[buffer(1)]],
        constant pianola_head_layernorm_params &p [[buffer(8)]],
        constant pianola_second &s                [[buffer(9)]],
        device pianola_step *step                 [[buffer(10)]],
        threadgroup uchar *tg                     [[threadgroup(0)]],
        uint3 group                               [[threadgroup_position_in_grid]],
        uint tid                                  [[thread_index_in_threadgroup]],
        uint lane                                 [[thread_index_in_simdgroup]],
        uint simd                                 [[simdgroup_index_in_threadgroup]],
        uint simds                                [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.y >= s.rows) {
        return;
    }
    device float *head = x + ulong(group.y) * p.stride + ulong(group.x) * HEAD_DIM;
    device const float *weights = w + ulong(group.x) * HEAD_DIM;
    const uint threads = simds * 32;
    float sum = 0.0f;
    for (uint i = tid; i < HEAD_DIM; i += threads) {
        sum += head[i];
    }
    const float mean = threadgroup_sum(sum, (threadgroup float *)tg, lane, simd, simds) / float(HEAD_DIM);
    float squares = 0.0f;
    for (uint i = tid; i < HEAD_DIM; i += threads) {
        const float d = head[i] - mean;
        squares += d * d;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    squares = threadgroup_sum(squares, (threadgroup float *)tg, lane, simd, simds);
    const float scale = precise::rsqrt(squares / float(HEAD_DIM) + p.eps);
    for (uint i = tid; i < HEAD_DIM; i += threads) {
        head[i] = (head[i] - mean) * scale * weights[i];
    }
}
