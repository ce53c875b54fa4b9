// RMS norms and sums of the residual stream. A threadgroup processes a row or a head.
#include "norm.h"

// scale_mul writes the thread's part of (x * w) * scale.
static inline void scale_mul(device float *out, device const float *x, device const float *w, float scale, uint n, uint tid, uint threads) {
    if (n % 4 == 0) {
        device float4 *out4 = (device float4 *)out;
        device const float4 *x4 = (device const float4 *)x;
        device const float4 *w4 = (device const float4 *)w;
        for (uint i = tid; i < n / 4; i += threads) {
            out4[i] = x4[i] * w4[i] * scale;
        }
        return;
    }
    for (uint i = tid; i < n; i += threads) {
        out[i] = x[i] * w[i] * scale;
    }
}

[[max_total_threads_per_threadgroup(1024)]]
kernel void rmsnorm(
        device const float *x             [[buffer(0)]],
        device const float *w             [[buffer(1)]],
        device float *out                 [[buffer(2)]],
        constant pianola_rmsnorm_params &p [[buffer(8)]],
        constant pianola_second &s        [[buffer(9)]],
        device pianola_step *step         [[buffer(10)]],
        threadgroup uchar *tg             [[threadgroup(0)]],
        uint3 group                       [[threadgroup_position_in_grid]],
        uint tid                          [[thread_index_in_threadgroup]],
        uint lane                         [[thread_index_in_simdgroup]],
        uint simds                        [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    const uint row = min(s.index + group.x, p.x_rows - 1);
    device const float *from = x + ulong(row) * p.n;
    const float sum = row_squares(from, p.n, (threadgroup float *)tg, tid, simds * 32, lane);
    scale_mul(out + ulong(group.x) * p.n, from, w, precise::rsqrt(sum / float(p.n) + p.eps) * or_one(p.scale), p.n, tid, simds * 32);
}

[[max_total_threads_per_threadgroup(1024)]]
kernel void add_rmsnorm(
        device float *x                       [[buffer(0)]],
        device const float *delta             [[buffer(1)]],
        device const float *w                 [[buffer(2)]],
        device float *out                     [[buffer(3)]],
        constant pianola_add_rmsnorm_params &p [[buffer(8)]],
        constant pianola_second &s            [[buffer(9)]],
        device pianola_step *step             [[buffer(10)]],
        threadgroup uchar *tg                 [[threadgroup(0)]],
        uint3 group                           [[threadgroup_position_in_grid]],
        uint tid                              [[thread_index_in_threadgroup]],
        uint lane                             [[thread_index_in_simdgroup]],
        uint simds                            [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    const ulong row = ulong(group.x) * p.n;
    // A thread reads only elements that it wrote itself, so no barrier is needed.
    add_to(x + row, delta + row, or_one(p.delta_scale), p.n, tid, simds * 32);
    const float sum = row_squares(x + row, p.n, (threadgroup float *)tg, tid, simds * 32, lane);
    scale_mul(out + row, x + row, w, precise::rsqrt(sum / float(p.n) + p.eps) * or_one(p.scale), p.n, tid, simds * 32);
}

[[max_total_threads_per_threadgroup(1024)]]
kernel void add(
        device float *x               [[buffer(0)]],
        device const float *delta     [[buffer(1)]],
        constant pianola_add_params &p [[buffer(8)]],
        constant pianola_second &s    [[buffer(9)]],
        device pianola_step *step     [[buffer(10)]],
        uint3 group                   [[threadgroup_position_in_grid]],
        uint tid                      [[thread_index_in_threadgroup]],
        uint simds                    [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    const ulong row = ulong(group.x) * p.n;
    add_to(x + row, delta + row, or_one(p.delta_scale), p.n, tid, simds * 32);
}

// add_scaled adds the thread's part of (delta * scale) * w to x.
static inline void add_scaled(device float *x, device const float *delta, device const float *w, float scale, uint n, uint tid, uint threads) {
    if (n % 4 == 0) {
        device float4 *x4 = (device float4 *)x;
        device const float4 *d4 = (device const float4 *)delta;
        device const float4 *w4 = (device const float4 *)w;
        for (uint i = tid; i < n / 4; i += threads) {
            x4[i] += d4[i] * scale * w4[i];
        }
        return;
    }
    for (uint i = tid; i < n; i += threads) {
        x[i] += delta[i] * scale * w[i];
    }
}

[[max_total_threads_per_threadgroup(1024)]]
kernel void norm_add(
        device float *x                    [[buffer(0)]],
        device const float *delta          [[buffer(1)]],
        device const float *post           [[buffer(2)]],
        device const float *w              [[buffer(3)]],
        device float *out                  [[buffer(4)]],
        constant pianola_norm_add_params &p [[buffer(8)]],
        constant pianola_second &s         [[buffer(9)]],
        device pianola_step *step          [[buffer(10)]],
        threadgroup uchar *tg              [[threadgroup(0)]],
        uint3 group                        [[threadgroup_position_in_grid]],
        uint tid                           [[thread_index_in_threadgroup]],
        uint lane                          [[thread_index_in_simdgroup]],
        uint simds                         [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    const ulong row = ulong(group.x) * p.n;
    float sum = row_squares(delta + row, p.n, (threadgroup float *)tg, tid, simds * 32, lane);
    add_scaled(x + row, delta + row, post, precise::rsqrt(sum / float(p.n) + p.eps), p.n, tid, simds * 32);
    if (NORM == 0) {
        return;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup); // the reduction's memory is written again
    // A thread reads only elements that it wrote itself.
    sum = row_squares(x + row, p.n, (threadgroup float *)tg, tid, simds * 32, lane);
    scale_mul(out + row, x + row, w, precise::rsqrt(sum / float(p.n) + p.eps), p.n, tid, simds * 32);
}

[[max_total_threads_per_threadgroup(1024)]]
kernel void head_norm(
        device float *x                     [[buffer(0)]],
        device const float *w               [[buffer(1)]],
        constant pianola_head_norm_params &p [[buffer(8)]],
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
    if (group.y >= s.rows) {
        return;
    }
    // Rows and heads need not be aligned to 16 bytes.
    device float *head = x + ulong(group.y) * p.stride + ulong(group.x) * HEAD_DIM;
    float sum = 0.0f;
    for (uint i = tid; i < HEAD_DIM; i += simds * 32) {
        sum += head[i] * head[i];
    }
    sum = threadgroup_sum(sum, (threadgroup float *)tg, lane, simd, simds);
    const float scale = precise::rsqrt(sum / float(HEAD_DIM) + p.eps);
    for (uint i = tid; i < HEAD_DIM; i += simds * 32) {
        head[i] = head[i] * scale * w[i];
    }
}
