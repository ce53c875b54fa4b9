// Fused attention of rows of different sequences: QK norm, RoPE, the KV write and attention.
#include "attn_own.h"

// A threadgroup, or a cluster of them, handles the heads of a row that share K and V, over all visible positions.
// settled: k_cache v_cache
[[max_total_threads_per_threadgroup(256)]]
kernel void rope_attn_tile(
        device const float *q                    [[buffer(0)]],
        device const float *k                    [[buffer(1)]],
        device const float *v                    [[buffer(2)]],
        device const float *angles               [[buffer(3)]],
        device const float *norm                 [[buffer(4)]],
        device uchar *k_cache                    [[buffer(5)]],
        device uchar *v_cache                    [[buffer(6)]],
        device uchar *halves                     [[buffer(7)]],
        constant pianola_rope_attn_tile_params &p [[buffer(8)]],
        constant pianola_second &s               [[buffer(9)]],
        device pianola_step *step                [[buffer(10)]],
        threadgroup uchar *tg                    [[threadgroup(0)]],
        uint3 group                              [[threadgroup_position_in_grid]],
        uint lane                                [[thread_index_in_simdgroup]],
        uint simd                                [[simdgroup_index_in_threadgroup]],
        uint simds                               [[simdgroups_per_threadgroup]]) {
    const uint cap = cache_rows(k_cache, p.cap, SEQUENCES);
    k_cache = cache_of(k_cache, SEQUENCES);
    v_cache = cache_of(v_cache, SEQUENCES);
    const bool settled = p.settled != 0;
    if (!settled) {
        wait_inputs();
    }
    (void)cap;
#if !defined(PIANOLA_NVPTX) || PIANOLA_SM >= 90 // only tables with gemm_halves have this kernel
    const bool executed = runs(step);
    // What the step block says of the row is loaded together.
    const uint row = group.y;
    const uint cluster = max(CLUSTER, 1u);
    const uint share = group.x / cluster; // K and V head
    const uint rank = group.x % cluster;
    const uint rows = s.rows;
    const bool stopped = row_stopped(step, row, SEQUENCES) || (SEQUENCES == PIANOLA_SEQUENCES_MANY && row_joined(step, row));
    attn_pairs t;
    t.kv_len = row_visible(step, row, SEQUENCES, s.kv_len, p.table);
    attn_part a;
    a.pages = row_pages(step, row, SEQUENCES, p.tables, p.table, p.pool, cap, p.kv_heads);
    issued();
    if (!executed || row >= rows || stopped) {
        if (settled) {
            wait_inputs();
        }
        return;
    }
    t.shared = p.heads / p.kv_heads;
    t.first = 0;
    t.last = t.shared - 1;
    t.window = WINDOWED != 0 ? p.window : t.kv_len + 1;
    t.q = nullptr;
    t.q_stride = 0;
    t.out_stride = 0;
    t.aligned = false;
    const uint head = share * t.shared;
    a.d = HEAD_DIM;
    a.kind = KV;
    a.paged = SEQUENCES != PIANOLA_SEQUENCES_OWN;
    a.head = share;
    a.k = kv_rows_of(k_cache, KV, p.kv_heads, cap, HEAD_DIM, a.paged ? 0 : share);
    a.v = kv_rows_of(v_cache, KV, p.kv_heads, cap, HEAD_DIM, a.paged ? 0 : share);
    a.scale = p.scale * M_LOG2E_F;
    a.soft_cap = p.soft_cap * M_LOG2E_F;
    a.learned = LEARNED != 0;
    a.logits = norm + (QK_NORM != 0 ? 2 * HEAD_DIM : 0) + head;
    a.base = 0;
    a.cap = cap;
    a.begin = pair_sees(t, 0).x;
    a.end = t.kv_len - 1; // the row's own position
    a.wrap = cache_from(a.begin, a.cap, WINDOWED != 0);
    const ulong newest = a.paged ? page_row(a.pages, a.head, a.end) : cache_row(0, t.kv_len, cap, 0);
    own_row o;
    o.q = q + ulong(row) * p.q_stride + ulong(head) * HEAD_DIM;
    o.k = k + ulong(row) * p.kv_stride + ulong(share) * HEAD_DIM;
    o.v = v + ulong(row) * p.kv_stride + ulong(share) * HEAD_DIM;
    o.norm = norm;
    o.turn = {q, norm, angles + ulong(row) * p.half_ * 2, HEAD_DIM, p.half_, LAYOUT, QK_NORM != 0, 1.0f};
    o.eps = p.eps;
    o.heads = t.shared;
    o.k_to = kv_row_of(k_cache, KV, p.kv_heads, cap, HEAD_DIM, a.paged ? 0 : share, newest);
    o.v_to = kv_row_of(v_cache, KV, p.kv_heads, cap, HEAD_DIM, a.paged ? 0 : share, newest);
    const halves_place h = halves_place_of(halves, row, s.rows, head, p.heads, HEAD_DIM, p.few != 0);
    switch (HEAD_DIM) {
    case 64: attend_own<64>(a, t, o, h, settled, tg, p.slots, rank, cluster, lane, simd, simds); break;
    case 128: attend_own<128>(a, t, o, h, settled, tg, p.slots, rank, cluster, lane, simd, simds); break;
    case 192: attend_own<192>(a, t, o, h, settled, tg, p.slots, rank, cluster, lane, simd, simds); break;
    default: attend_own<256>(a, t, o, h, settled, tg, p.slots, rank, cluster, lane, simd, simds);
    }
#endif
}
