// Writing the KV cache; see cache.h.
#include "cache.h"
#include "heads.h"

// A threadgroup writes one head of a row.
[[max_total_threads_per_threadgroup(1024)]]
kernel void kv_write(
        device const float *k              [[buffer(0)]],
        device const float *v              [[buffer(1)]],
        device uchar *k_cache              [[buffer(2)]],
        device uchar *v_cache              [[buffer(3)]],
        constant pianola_kv_write_params &p [[buffer(8)]],
        constant pianola_second &s         [[buffer(9)]],
        device pianola_step *step          [[buffer(10)]],
        uint3 group                        [[threadgroup_position_in_grid]],
        uint lane                          [[thread_index_in_simdgroup]],
        uint simd                          [[simdgroup_index_in_threadgroup]],
        uint simds                         [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.y >= s.rows) {
        return;
    }
    const ulong row = cache_row(group.y, s.kv_len, p.cap, p.first);
    device const float *k_head = k + ulong(group.y) * p.k_stride + ulong(group.x) * HEAD_DIM;
    device const float *v_head = v + ulong(group.y) * p.v_stride + ulong(group.x) * HEAD_DIM;
    kv_put(kv_row_of(k_cache, KV, p.kv_heads, p.cap, HEAD_DIM, group.x, row), k_head, KV, HEAD_DIM, lane, simd, simds);
    kv_put(kv_row_of(v_cache, KV, p.kv_heads, p.cap, HEAD_DIM, group.x, row), v_head, KV, HEAD_DIM, lane, simd, simds);
}

// A threadgroup computes one head of Q of a row, or one head of K and V. A thread processes
// pairs of elements, or single elements that are not rotated.
[[max_total_threads_per_threadgroup(1024)]]
kernel void qk_rope_kv(
        device const float *q                [[buffer(0)]],
        device const float *k                [[buffer(1)]],
        device const float *v                [[buffer(2)]],
        device const float *angles           [[buffer(3)]],
        device const float *norm             [[buffer(4)]],
        device float *q_out                  [[buffer(5)]],
        device uchar *k_cache                [[buffer(6)]],
        device uchar *v_cache                [[buffer(7)]],
        constant pianola_qk_rope_kv_params &p [[buffer(8)]],
        constant pianola_second &s           [[buffer(9)]],
        device pianola_step *step            [[buffer(10)]],
        threadgroup uchar *tg                [[threadgroup(0)]],
        uint3 group                          [[threadgroup_position_in_grid]],
        uint tid                             [[thread_index_in_threadgroup]],
        uint lane                            [[thread_index_in_simdgroup]],
        uint simd                            [[simdgroup_index_in_threadgroup]],
        uint simds                           [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.y >= s.rows) {
        return;
    }
    const bool is_q = group.x < p.heads;
    const uint head = is_q ? group.x : group.x - p.heads;
    const uint threads = simds * 32;
    device const float *x = is_q ? q + ulong(group.y) * p.q_stride : k + ulong(group.y) * p.k_stride;
    x += ulong(head) * HEAD_DIM;
    head_turn h = {x, is_q ? norm : norm + HEAD_DIM, angles + ulong(group.y) * p.half_ * 2, HEAD_DIM, p.half_, LAYOUT, QK_NORM != 0, 1.0f};
    if (QK_NORM != 0) {
        const float sum = threadgroup_sum(head_squares(h, tid, threads), (threadgroup float *)tg, lane, simd, simds);
        h.scale = precise::rsqrt(sum / float(HEAD_DIM) + p.eps);
    }
    const ulong row = cache_row(group.y, s.kv_len, p.cap, p.first);
    const kv_rows_to k_to = kv_row_of(k_cache, KV, p.kv_heads, p.cap, HEAD_DIM, is_q ? 0 : head, row);
    const kv_rows_to v_to = kv_row_of(v_cache, KV, p.kv_heads, p.cap, HEAD_DIM, is_q ? 0 : head, row);
    device float *q_to = q_out + (ulong(group.y) * p.heads + head) * HEAD_DIM;
    threadgroup float *k_head = (threadgroup float *)tg + simds; // used with q8_0 only
    for (uint i = tid; i < turned_twos(HEAD_DIM); i += threads) {
        const uint2 at = turned_at(h, i);
        const float2 value = turned(h, i, at);
        if (is_q) {
            q_to[at.x] = value.x;
            q_to[at.y] = value.y;
        } else if (KV == PIANOLA_KV_Q8_0) {
            k_head[at.x] = value.x;
            k_head[at.y] = value.y;
        } else {
            ((device half *)k_to.values)[at.x] = half(value.x);
            ((device half *)k_to.values)[at.y] = half(value.y);
        }
    }
    if (is_q) {
        return;
    }
    device const float *v_head = v + ulong(group.y) * p.v_stride + ulong(head) * HEAD_DIM;
    kv_put(v_to, v_head, KV, HEAD_DIM, lane, simd, simds);
    if (KV == PIANOLA_KV_Q8_0) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        kv_put(k_to, k_head, KV, HEAD_DIM, lane, simd, simds);
    }
}
