// The step before multi-head latent attention: the row of the KV cache, and the rotated parts of Q.
#include "cache.h"
#include "heads.h"
#include "sequence.h"

// Threadgroup 0 of a row writes the cache row, threadgroup 1 rotates the heads of Q.
// finds ahead: k_cache
[[max_total_threads_per_threadgroup(1024)]]
kernel void latent_kv(
        device const float *q               [[buffer(0)]],
        device const float *kv              [[buffer(1)]],
        device const float *angles          [[buffer(2)]],
        device const float *w               [[buffer(3)]],
        device float *q_out                 [[buffer(4)]],
        device uchar *k_cache               [[buffer(5)]],
        constant pianola_latent_kv_params &p [[buffer(8)]],
        constant pianola_second &s          [[buffer(9)]],
        device pianola_step *step           [[buffer(10)]],
        threadgroup uchar *tg               [[threadgroup(0)]],
        uint3 group                         [[threadgroup_position_in_grid]],
        uint tid                            [[thread_index_in_threadgroup]],
        uint lane                           [[thread_index_in_simdgroup]],
        uint simd                           [[simdgroup_index_in_threadgroup]],
        uint simds                          [[simdgroups_per_threadgroup]]) {
    const uint cap = cache_rows(k_cache, p.cap, SEQUENCES);
    k_cache = cache_of(k_cache, SEQUENCES);
    if (!begins(step)) {
        return;
    }
    if (group.y >= s.rows) {
        return;
    }
    if (row_stopped(step, group.y, SEQUENCES)) {
        return;
    }
    const uint threads = simds * 32;
    device const float *turn = angles + ulong(group.y) * p.half_ * 2;
    if (group.x != 0) {
        const uint apart = p.nope + 2 * p.half_;
        device const float *from = q + ulong(group.y) * p.q_stride + p.nope;
        device float *to = q_out + ulong(group.y) * p.heads * HEAD_DIM;
        for (uint i = tid; i < p.heads * p.half_; i += threads) {
            const uint head = i / p.half_;
            const uint pair = i % p.half_;
            const uint2 at = rope_pair(pair, p.half_, LAYOUT);
            const float2 v = rotate(float2(from[head * apart + at.x], from[head * apart + at.y]), float2(turn[2 * pair], turn[2 * pair + 1]));
            to[head * HEAD_DIM + at.x] = v.x;
            to[head * HEAD_DIM + at.y] = v.y;
        }
        return;
    }
    const uint rotated = 2 * p.half_;
    const uint rank = HEAD_DIM - rotated;
    threadgroup float *row = (threadgroup float *)tg;
    device const float *from = kv + ulong(group.y) * p.kv_stride;
    float sum = 0.0f;
    for (uint i = tid; i < rank; i += threads) {
        sum += from[i] * from[i];
    }
    sum = threadgroup_sum(sum, row + HEAD_DIM, lane, simd, simds);
    const float scale = precise::rsqrt(sum / float(rank) + p.eps);
    for (uint i = tid; i < rank; i += threads) {
        row[rotated + i] = from[i] * scale * w[i];
    }
    for (uint pair = tid; pair < p.half_; pair += threads) {
        const uint2 at = rope_pair(pair, p.half_, LAYOUT);
        const float2 v = rotate(float2(from[rank + at.x], from[rank + at.y]), float2(turn[2 * pair], turn[2 * pair + 1]));
        row[at.x] = v.x;
        row[at.y] = v.y;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong at = cache_row(group.y, s.kv_len, cap, p.first);
    if (SEQUENCES != PIANOLA_SEQUENCES_OWN) {
        const kv_pages pages = row_pages(step, group.y, SEQUENCES, p.tables, p.table, p.pool, cap, 1);
        at = page_row(pages, 0, row_visible(step, group.y, SEQUENCES, s.kv_len, p.table) - 1);
    }
    kv_put(kv_row_of(k_cache, KV, 1, cap, HEAD_DIM, 0, at), row, KV, HEAD_DIM, lane, simd, simds);
}
