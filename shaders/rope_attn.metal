// Fused decode attention of one row: QK norm, RoPE, the KV write and attention.
#include "attn_shared.h"

// A threadgroup handles several Q heads that share K and V, over the positions of a split.
// It computes Q of its heads, and also K and V of the newest position if that is visible to
// it. The first such threadgroup writes them to the cache. No threadgroup reads them from
// the cache.
// settled: k_cache v_cache
[[max_total_threads_per_threadgroup(256)]]
kernel void rope_attn(
        device const float *q               [[buffer(0)]],
        device const float *k               [[buffer(1)]],
        device const float *v               [[buffer(2)]],
        device const float *angles          [[buffer(3)]],
        device const float *norm            [[buffer(4)]],
        device uchar *k_cache               [[buffer(5)]],
        device uchar *v_cache               [[buffer(6)]],
        device float *out                   [[buffer(7)]],
        constant pianola_rope_attn_params &p [[buffer(8)]],
        constant pianola_second &s          [[buffer(9)]],
        device pianola_step *step           [[buffer(10)]],
        threadgroup uchar *tg               [[threadgroup(0)]],
        uint3 group                         [[threadgroup_position_in_grid]],
        uint tid                            [[thread_index_in_threadgroup]],
        uint lane                           [[thread_index_in_simdgroup]],
        uint simd                           [[simdgroup_index_in_threadgroup]],
        uint simds                          [[simdgroups_per_threadgroup]]) {
    const uint cap = cache_rows(k_cache, p.cap, PIANOLA_SEQUENCES_OWN);
    k_cache = cache_of(k_cache, PIANOLA_SEQUENCES_OWN);
    v_cache = cache_of(v_cache, PIANOLA_SEQUENCES_OWN);
    const bool settled = p.settled != 0;
    if (!settled) {
        wait_inputs();
    }
    const bool executed = runs(step);
    const uint kv_head = group.x;
    const uint first = group.z * p.head_group;
    const uint head = kv_head * p.shared + first;
    threadgroup float *sums = (threadgroup float *)tg;
    const uint row_bytes = 4 * min(p.head_group, 4u) * (min(HEAD_DIM, 256u) + 4);
    made_q m;
    m.q = q + ulong(head) * HEAD_DIM;
    m.k = k + ulong(kv_head) * HEAD_DIM;
    m.v = v + ulong(kv_head) * HEAD_DIM;
    m.norm = norm;
    m.turn = {q, norm, angles, HEAD_DIM, p.half_, LAYOUT, QK_NORM != 0, 1.0f};
    m.eps = p.eps;
    m.heads = min(p.head_group, p.shared - first);
    m.to = (threadgroup float *)(tg + simds * max(row_bytes, p.ahead));
    m.at = m.to;
    attn_part a;
    a.d = HEAD_DIM;
    a.kind = KV;
    a.k = kv_rows_of(k_cache, KV, p.kv_heads, cap, HEAD_DIM, kv_head);
    a.v = kv_rows_of(v_cache, KV, p.kv_heads, cap, HEAD_DIM, kv_head);
    a.heads = m.heads;
    a.split = SPLIT != 0;
    a.splits = p.splits;
    attn_place(a, out, 0, p.heads, head, group.y);
    a.scale = p.scale * M_LOG2E_F;
    a.learned = LEARNED != 0 && group.y == 0;
    a.logits = norm + (QK_NORM != 0 ? 2 * HEAD_DIM : 0) + head;
    a.soft_cap = p.soft_cap * M_LOG2E_F;
    a.cap = cap;
    a.base = 0;
    a.paged = false;
    a.sinks = 0;
    a.turned = sums;
    const uint len = max(s.kv_len, 1u) + s.behind;
    a.begin = len - min(len, WINDOWED != 0 ? p.window : len);
    a.end = len;
    if (!executed || (a.split && !attn_limit(a, p.span, group.y))) {
        if (settled) {
            wait_inputs();
        }
        return;
    }
    a.wrap = cache_from(a.begin, cap, WINDOWED != 0);
    a.fresh = a.end == len;
    const uint newest = len - 1 - a.wrap;
    const ulong row = ulong(min(newest < cap ? newest : newest - cap, cap - 1));
    a.end -= a.fresh ? 1 : 0;
    m.fresh = a.fresh;
    m.writes = a.fresh && first == 0;
    m.kind = KV;
    m.k_cache = kv_row_of(k_cache, KV, p.kv_heads, cap, HEAD_DIM, kv_head, row);
    m.v_cache = kv_row_of(v_cache, KV, p.kv_heads, cap, HEAD_DIM, kv_head, row);
    a.new_k = new_k(m);
    a.new_v = a.new_k + HEAD_DIM;
    if (shares(HEAD_DIM, KV, p.ahead)) {
#ifdef PIANOLA_COPIES
        if (KV == PIANOLA_KV_Q8_0) {
            if (HEAD_DIM <= 64) {
                attend_shared<64, PIANOLA_KV_Q8_0>(a, m, settled, tg, p.ahead, tid, lane, simd, simds);
            } else {
                attend_shared<128, PIANOLA_KV_Q8_0>(a, m, settled, tg, p.ahead, tid, lane, simd, simds);
            }
        } else if (HEAD_DIM <= 64) {
            attend_shared<64, PIANOLA_KV_F16>(a, m, settled, tg, p.ahead, tid, lane, simd, simds);
        } else {
            attend_shared<128, PIANOLA_KV_F16>(a, m, settled, tg, p.ahead, tid, lane, simd, simds);
        }
#endif
        return;
    }
    if (settled) {
        wait_inputs();
    }
    load_q(m, lane, simd);
    attend_row(a, m, HEAD_DIM, sums, tid, lane, simd, simds);
}
