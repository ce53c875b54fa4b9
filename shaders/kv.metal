// Writing the KV cache; see cache.h.
#include "cache.h"
#include "heads.h"
#include "sequence.h"

// kv_place is the place of a row's head 0 in a cache, and the distance of its heads in rows.
struct kv_place {
    ulong row;
    uint apart;
};

// place_of returns the place of row r.
static inline kv_place place_of(kv_pages g, bool paged, uint visible, uint r, uint kv_len, uint cap, uint first) {
    kv_place to = {0, cap};
    if (paged) {
        to.row = page_row(g, 0, visible - 1);
        to.apart = PIANOLA_PAGE;
    } else {
        to.row = cache_row(r, kv_len, cap, first);
    }
    return to;
}

// A threadgroup writes one head of a row.
// finds ahead: k_cache v_cache
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
    const uint cap = cache_rows(k_cache, p.cap, SEQUENCES);
    k_cache = cache_of(k_cache, SEQUENCES);
    v_cache = cache_of(v_cache, SEQUENCES);
    if (!begins(step)) {
        return;
    }
    if (group.y >= s.rows) {
        return;
    }
    if (row_stopped(step, group.y, SEQUENCES)) {
        return;
    }
    const kv_place at = place_of(row_pages(step, group.y, SEQUENCES, p.tables, p.table, p.pool, cap, p.kv_heads), SEQUENCES != PIANOLA_SEQUENCES_OWN,
                                 row_visible(step, group.y, SEQUENCES, s.kv_len, p.table), group.y, s.kv_len, cap, p.first);
    device const float *k_head = k + ulong(group.y) * p.k_stride + ulong(group.x) * HEAD_DIM;
    device const float *v_head = v + ulong(group.y) * p.v_stride + ulong(group.x) * HEAD_DIM;
    kv_put(kv_row_of(k_cache, KV, p.kv_heads, cap, HEAD_DIM, 0, at.row + ulong(group.x) * at.apart), k_head, KV, HEAD_DIM, lane, simd, simds);
    kv_put(kv_row_of(v_cache, KV, p.kv_heads, cap, HEAD_DIM, 0, at.row + ulong(group.x) * at.apart), v_head, KV, HEAD_DIM, lane, simd, simds);
}

// turn_of returns h for head i of a row: of Q, or of K after the heads of Q.
static inline head_turn turn_of(head_turn h, device const float *q, device const float *k, device const float *norm, uint i, uint heads) {
    h.x = i < heads ? q + ulong(i) * h.d : k + ulong(i - heads) * h.d;
    h.w = i < heads ? norm : norm + h.d;
    return h;
}

// A threadgroup computes head_group of a row's heads: those of Q, then those of K and V. A SIMD group
// computes one head at a time.
// finds ahead: k_cache v_cache
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
        uint lane                            [[thread_index_in_simdgroup]],
        uint simd                            [[simdgroup_index_in_threadgroup]],
        uint simds                           [[simdgroups_per_threadgroup]]) {
    const uint cap = cache_rows(k_cache, p.cap, SEQUENCES);
    k_cache = cache_of(k_cache, SEQUENCES);
    v_cache = cache_of(v_cache, SEQUENCES);
    if (!begins(step)) {
        return;
    }
    if (group.y >= s.rows) {
        return;
    }
    if (row_stopped(step, group.y, SEQUENCES) || (p.joined != 0 && !row_joined(step, group.y))) {
        return;
    }
    const kv_place place = place_of(row_pages(step, group.y, SEQUENCES, p.tables, p.table, p.pool, cap, p.kv_heads), SEQUENCES != PIANOLA_SEQUENCES_OWN,
                                 row_visible(step, group.y, SEQUENCES, s.kv_len, p.table), group.y, s.kv_len, cap, p.first);
    const uint twos = turned_twos(HEAD_DIM);
    const uint share = 32 * PIANOLA_HEAD_TWOS;
    const uint end = min((group.x + 1) * p.head_group, p.heads + p.kv_heads);
    threadgroup float *k_head = (threadgroup float *)tg + simd * HEAD_DIM; // used with q8_0 only
    device const float *q_row = q + ulong(group.y) * p.q_stride;
    device const float *k_row = k + ulong(group.y) * p.k_stride;
    const head_turn any = {q_row, norm, angles + ulong(group.y) * p.half_ * 2, HEAD_DIM, p.half_, LAYOUT, QK_NORM != 0, 1.0f};
    head_twos next; // the first share of the SIMD group's next head, loaded before the head is stored
    const uint first = group.x * p.head_group + simd;
    head_turn later = turn_of(any, q_row, k_row, norm, first, p.heads);
    if (first < end) {
        load_twos(next, later, 0, lane);
    }
    for (uint i = first; i < end; i += simds) {
        const head_turn h = later;
        const bool is_q = i < p.heads;
        const uint head = is_q ? i : i - p.heads;
        device float *q_to = q_out + (ulong(group.y) * p.heads + head) * HEAD_DIM;
        const kv_rows_to k_to = kv_row_of(k_cache, KV, p.kv_heads, cap, HEAD_DIM, 0, place.row + ulong(is_q ? 0 : head) * place.apart);
        const kv_rows_to v_to = kv_row_of(v_cache, KV, p.kv_heads, cap, HEAD_DIM, 0, place.row + ulong(is_q ? 0 : head) * place.apart);
        head_twos t = next;
        const float scale = twos_scale(t, h, p.eps, lane);
        later = turn_of(any, q_row, k_row, norm, i + simds, p.heads);
        if (i + simds < end) {
            load_twos(next, later, 0, lane);
        }
        for (uint from = 0; from < twos; from += share) {
            if (twos > share) {
                load_twos(t, h, from, lane);
            }
            PIANOLA_UNROLL
            for (uint j = 0; j < PIANOLA_HEAD_TWOS; j++) {
                const uint two = from + 32 * j + lane;
                if (two >= twos) {
                    continue;
                }
                const uint2 at = turned_at(h, two);
                const float2 value = turned_two(t, h, j, two, scale);
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
        }
        if (is_q) {
            continue;
        }
        device const float *v_head = v + ulong(group.y) * p.v_stride + ulong(head) * HEAD_DIM;
        kv_put(v_to, v_head, KV, HEAD_DIM, lane, 0, 1);
        if (KV == PIANOLA_KV_Q8_0) {
            simdgroup_barrier(mem_flags::mem_threadgroup);
            kv_put(k_to, k_head, KV, HEAD_DIM, lane, 0, 1);
            simdgroup_barrier(mem_flags::mem_threadgroup); // before k_head is written again
        }
    }
}
