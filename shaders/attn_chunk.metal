// Attention of a row within its chunk of positions. Its functions are those of attn.
#include "attn_row.h"

// A threadgroup handles a row, for heads that share K and V.
// finds ahead: k_cache v_cache
[[max_total_threads_per_threadgroup(512)]]
kernel void attn_chunk(
        device const float *q                 [[buffer(0)]],
        device const uchar *k_cache           [[buffer(1)]],
        device const uchar *v_cache           [[buffer(2)]],
        device float *out                     [[buffer(3)]],
        device const float *logits            [[buffer(4)]],
        constant pianola_attn_chunk_params &p [[buffer(8)]],
        constant pianola_second &s            [[buffer(9)]],
        device pianola_step *step             [[buffer(10)]],
        threadgroup uchar *tg                 [[threadgroup(0)]],
        uint3 group                           [[threadgroup_position_in_grid]],
        uint tid                              [[thread_index_in_threadgroup]],
        uint lane                             [[thread_index_in_simdgroup]],
        uint simd                             [[simdgroup_index_in_threadgroup]],
        uint simds                            [[simdgroups_per_threadgroup]]) {
    const uint cap = cache_rows(k_cache, p.cap, SEQUENCES);
    k_cache = cache_of(k_cache, SEQUENCES);
    v_cache = cache_of(v_cache, SEQUENCES);
    if (!begins(step)) {
        return;
    }
    if (group.z >= s.rows) {
        return;
    }
    // Start with the last rows.
    const uint row = s.rows - 1 - group.z;
    if (row_stopped(step, row, SEQUENCES)) {
        return;
    }
    const uint shared = p.heads / p.kv_heads;
    const uint groups = (shared + p.head_group - 1) / p.head_group;
    const uint kv_head = group.x / groups;
    const uint first = group.x % groups * p.head_group;
    const uint head = kv_head * shared + first;
    attn_part a;
    a.d = HEAD_DIM;
    a.kind = KV;
    a.paged = SEQUENCES != PIANOLA_SEQUENCES_OWN;
    a.pages = row_pages(step, row, SEQUENCES, p.tables, p.table, p.pool, cap, p.kv_heads);
    a.head = kv_head;
    a.k = kv_rows_of(k_cache, KV, p.kv_heads, cap, HEAD_DIM, a.paged ? 0 : kv_head);
    a.v = kv_rows_of(v_cache, KV, p.kv_heads, cap, HEAD_DIM, a.paged ? 0 : kv_head);
    a.heads = min(p.head_group, shared - first);
    a.split = false;
    a.splits = 1;
    attn_place(a, out, row, p.heads, head, 0);
    a.scale = p.scale * M_LOG2E_F;
    a.learned = LEARNED != 0;
    a.logits = logits + head;
    a.soft_cap = p.soft_cap * M_LOG2E_F;
    a.fresh = false;
    a.base = 0;
    a.cap = cap;
    a.sinks = 0;
    a.turned = (threadgroup const float *)tg;
    a.end = max(row_visible(step, row, SEQUENCES, s.kv_len, p.table), 1u);
    a.begin = (a.end - 1) / p.window * p.window;
    a.wrap = cache_from(a.begin, a.cap, true);
    row_q rows_q = {q + ulong(row) * p.q_stride + ulong(head) * HEAD_DIM};
    attend_row(a, rows_q, HEAD_DIM, (threadgroup float *)tg, tid, lane, simd, simds);
}
