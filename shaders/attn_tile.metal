// Softmax attention of the rows of a chunk over the KV cache, see cache.h.
#include "attn_units.h"

// attn_tile_of selects the number of elements of a head that the code is compiled for. Rounded up to
// 64 it must be that of the head, because the declaration's threadgroup memory is for the head.
template <uint Terms, bool Segments>
static inline void attn_tile_of(thread const attn_part &a, thread const attn_pairs &t, thread const halves_place &h, threadgroup uchar *tg, uint units, uint slots, uint lane, uint simd, uint simds) {
    switch (a.d) {
    case 64: attend_units<64, Terms, Segments>(a, t, h, tg, units, slots, lane, simd, simds); break;
    case 80: attend_units<80, Terms, Segments>(a, t, h, tg, units, slots, lane, simd, simds); break;
    case 96: attend_units<96, Terms, Segments>(a, t, h, tg, units, slots, lane, simd, simds); break;
    case 160: attend_units<160, Terms, Segments>(a, t, h, tg, units, slots, lane, simd, simds); break;
    default:
        if (a.d < 64) {
            attend_units<64, Terms, Segments>(a, t, h, tg, units, slots, lane, simd, simds);
        } else if (a.d <= 128) {
            attend_units<128, Terms, Segments>(a, t, h, tg, units, slots, lane, simd, simds);
        } else if (a.d <= 192) {
            attend_units<192, Terms, Segments>(a, t, h, tg, units, slots, lane, simd, simds);
        } else {
            attend_units<256, Terms, Segments>(a, t, h, tg, units, slots, lane, simd, simds);
        }
    }
}

// A threadgroup handles all visible positions for some units.
// finds ahead: k_cache v_cache
[[max_total_threads_per_threadgroup(256)]]
kernel void attn_tile(
        device const float *q               [[buffer(0)]],
        device const uchar *k_cache         [[buffer(1)]],
        device const uchar *v_cache         [[buffer(2)]],
        device float *out                   [[buffer(3)]],
        device const float *logits          [[buffer(4)]],
        device uchar *halves                [[buffer(5)]],
        constant pianola_attn_tile_params &p [[buffer(8)]],
        constant pianola_second &s          [[buffer(9)]],
        device pianola_step *step           [[buffer(10)]],
        threadgroup uchar *tg               [[threadgroup(0)]],
        uint3 group                         [[threadgroup_position_in_grid]],
        uint lane                           [[thread_index_in_simdgroup]],
        uint simd                           [[simdgroup_index_in_threadgroup]],
        uint simds                          [[simdgroups_per_threadgroup]]) {
    const uint cap = cache_rows(k_cache, p.cap, SEQUENCES);
    k_cache = cache_of(k_cache, SEQUENCES);
    v_cache = cache_of(v_cache, SEQUENCES);
    if (!begins(step)) {
        return;
    }
    (void)cap;
#if !defined(PIANOLA_NVPTX) || PIANOLA_SM >= 80 // other processors have no such products
    const uint shared = p.heads / p.kv_heads;
    const uint each = p.units * PIANOLA_UNIT;
    tile_rows own = tile_rows_of(step, group.y, SEQUENCES, s.rows, shared, each, p.joined != 0, lane);
    _Pragma("clang loop unroll(disable)")
    while (own.count != 0) {
        const uint row = own.first;
        attn_pairs t;
        t.shared = shared;
        // Start with the last rows, which see the most positions and take longest.
        t.first = (own.groups - 1 - own.part) * each;
        t.last = own.count * shared - 1;
        t.kv_len = row_visible(step, row, SEQUENCES, s.kv_len, p.table);
        t.window = WINDOWED != 0 ? p.window : t.kv_len + own.count;
        const uint head = group.x * shared;
        t.q = q + ulong(row) * p.q_stride + ulong(head) * HEAD_DIM;
        t.q_stride = p.q_stride;
        t.out_stride = p.heads * HEAD_DIM;
        t.aligned = p.q_stride % 4 == 0;
        attn_part a;
        a.d = HEAD_DIM;
        a.kind = KV;
        a.paged = SEQUENCES != PIANOLA_SEQUENCES_OWN;
        a.pages = row_pages(step, row, SEQUENCES, p.tables, p.table, p.pool, cap, p.kv_heads);
        a.head = group.x;
        a.k = kv_rows_of(k_cache, KV, p.kv_heads, cap, HEAD_DIM, a.paged ? 0 : group.x);
        a.v = kv_rows_of(v_cache, KV, p.kv_heads, cap, HEAD_DIM, a.paged ? 0 : group.x);
        a.out = out + ulong(row) * t.out_stride + ulong(head) * HEAD_DIM;
        a.scale = p.scale * M_LOG2E_F;
        a.soft_cap = p.soft_cap * M_LOG2E_F;
        a.learned = LEARNED != 0;
        a.logits = logits + head;
        a.base = 0;
        a.cap = cap;
        a.begin = pair_sees(t, t.first).x;
        a.end = pair_sees(t, t.first + each - 1).y;
        a.wrap = cache_from(a.begin, a.cap, WINDOWED != 0);
        const halves_place h = halves_place_of(HALVES != 0 ? halves : nullptr, row, s.rows, head, p.heads, HEAD_DIM, p.few != 0);
        // The compiler does not know that the number is the same for all lanes. If it does, the
        // addresses of products are uniform.
        const uint uniform = simd_broadcast_first(simd);
        if (SEGMENTS != 0) {
#if !defined(PIANOLA_NVPTX) || defined(PIANOLA_WARPGROUPS) // only tables for such products have segments
            attn_tile_of<1, true>(a, t, h, tg, p.units, p.slots, lane, uniform, simds);
#endif
        } else if (ACT == PIANOLA_ACT_F16) {
            attn_tile_of<1, false>(a, t, h, tg, p.units, p.slots, lane, uniform, simds);
        } else {
            attn_tile_of<2, false>(a, t, h, tg, p.units, p.slots, lane, uniform, simds);
        }
        own.first += own.count;
        if (own.first >= own.end) {
            return;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        next_rows(own, step, true, lane);
    }
#endif
}
