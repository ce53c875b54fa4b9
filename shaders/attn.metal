// Softmax attention over the KV cache, see cache.h.
#include "attn_row.h"

// turn_heads normalises and rotates consecutive heads of a row, beginning with h.
static inline void turn_heads(threadgroup float *to, head_turn h, uint heads, uint tid, uint threads) {
    const uint twos = turned_twos(h.d);
    for (uint i = tid; i < heads * twos; i += threads) {
        head_turn one = h;
        one.x = h.x + i / twos * h.d;
        const uint2 at = turned_at(one, i % twos);
        const float2 value = turned(one, i % twos, at);
        to[i / twos * h.d + at.x] = value.x;
        to[i / twos * h.d + at.y] = value.y;
    }
}

// A threadgroup handles the positions of one split of a row, for heads that share K and V.
// finds ahead: k_cache v_cache
[[max_total_threads_per_threadgroup(512)]]
kernel void attn(
        device const float *q          [[buffer(0)]],
        device const uchar *k_cache    [[buffer(1)]],
        device const uchar *v_cache    [[buffer(2)]],
        device float *out              [[buffer(3)]],
        device const float *turn       [[buffer(4)]],
        device const float *logits     [[buffer(5)]],
        constant pianola_attn_params &p [[buffer(8)]],
        constant pianola_second &s     [[buffer(9)]],
        device pianola_step *step      [[buffer(10)]],
        threadgroup uchar *tg          [[threadgroup(0)]],
        uint3 group                    [[threadgroup_position_in_grid]],
        uint tid                       [[thread_index_in_threadgroup]],
        uint lane                      [[thread_index_in_simdgroup]],
        uint simd                      [[simdgroup_index_in_threadgroup]],
        uint simds                     [[simdgroups_per_threadgroup]]) {
    const uint cap = cache_rows(k_cache, p.cap, SEQUENCES);
    k_cache = cache_of(k_cache, SEQUENCES);
    v_cache = cache_of(v_cache, SEQUENCES);
    if (!begins(step)) {
        return;
    }
    if (group.z >= s.rows) {
        return;
    }
    // Start with the last rows, which see the most positions and take longest.
    const uint row = s.rows - 1 - group.z;
    if (row_stopped(step, row, SEQUENCES)) {
        return;
    }
    const uint shared = p.heads / p.kv_heads;
    const uint groups = (shared + p.head_group - 1) / p.head_group;
    const uint kv_head = group.x / groups;
    const uint first = group.x % groups * p.head_group;
    const uint head = kv_head * shared + first;
    device const float *from = q + ulong(row) * p.q_stride + ulong(head) * HEAD_DIM;
    attn_part a;
    a.d = HEAD_DIM;
    a.kind = KV;
    a.paged = SEQUENCES != PIANOLA_SEQUENCES_OWN;
    a.pages = row_pages(step, row, SEQUENCES, p.tables, p.table, p.pool, cap, p.kv_heads);
    a.head = kv_head;
    a.k = kv_rows_of(k_cache, KV, p.kv_heads, cap, HEAD_DIM, a.paged ? 0 : kv_head);
    a.v = kv_rows_of(v_cache, KV, p.kv_heads, cap, HEAD_DIM, a.paged ? 0 : kv_head);
    a.heads = min(p.head_group, shared - first);
    a.split = SPLIT != 0;
    a.splits = p.splits;
    attn_place(a, out, row, p.heads, head, group.y);
    a.scale = p.scale * M_LOG2E_F;
    a.learned = LEARNED != 0 && group.y == 0;
    a.logits = logits + head;
    a.soft_cap = p.soft_cap * M_LOG2E_F;
    a.fresh = false;
    a.base = SINKS != 0 ? p.first : 0;
    a.cap = cap - a.base;
    a.sinks = 0;
    a.turned = (threadgroup const float *)tg;
    const uint len = row_visible(step, row, SEQUENCES, s.kv_len, p.table);
    const uint window = WINDOWED != 0 ? p.window : len;
    a.begin = len - min(len, window);
    a.end = len;
    if (SINKS != 0) {
        // The attention sinks are processed separately; the part may have no other positions.
        a.sinks = min(p.first, len);
        a.begin = min(max(a.begin, p.first), a.end);
        a.turned = (threadgroup const float *)tg + simds * min(p.head_group, 4u) * (min(HEAD_DIM, 256u) + 4);
        turn_heads((threadgroup float *)a.turned, {from, from, turn + ulong(row) * p.half_ * 2, HEAD_DIM, p.half_, LAYOUT, false, 1.0f}, a.heads, tid, simds * 32);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (a.split && !attn_limit(a, p.span, group.y)) {
        return;
    }
    a.wrap = a.base + cache_from(a.begin - a.base, a.cap, WINDOWED != 0);
    row_q rows_q = {from};
    attend_row(a, rows_q, HEAD_DIM, (threadgroup float *)tg, tid, lane, simd, simds);
}

// A threadgroup merges the splits of a head of a row.
[[max_total_threads_per_threadgroup(1024)]]
kernel void attn_merge(
        device const float *part             [[buffer(0)]],
        device float *out                    [[buffer(1)]],
        constant pianola_attn_merge_params &p [[buffer(8)]],
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
    const uint threads = simds * 32;
    threadgroup float *factors = (threadgroup float *)tg;
    threadgroup float *sums = factors + p.splits;
    threadgroup float *across = sums + threads;
    device const float *values = part + ulong(group.y) * p.heads * p.splits * (HEAD_DIM + 2);
    device const float *states = values + ulong(p.heads) * p.splits * HEAD_DIM + 2 * group.x * p.splits;
    values += ulong(group.x) * p.splits * HEAD_DIM;
    device float *to = out + (ulong(group.y) * p.heads + group.x) * HEAD_DIM;
    const uint visible = split_visible(s.kv_len + group.y, p.window);
    const uint each = split_each(visible, p.splits, p.span);
    const uint splits = min(p.splits, (visible + each - 1) / each);

    // Groups of as many lanes as the head has elements process splits in turn. The first values
    // are loaded while the factors are computed.
    const uint width = min((HEAD_DIM + 31) / 32 * 32, threads);
    const uint ways = threads / width;
    const uint way = tid / width;
    float ahead[8];
    PIANOLA_UNROLL
    for (uint n = 0; n < 8; n++) {
        const uint i = min(tid % width, HEAD_DIM - 1);
        ahead[n] = values[min(way + n * ways, splits - 1) * HEAD_DIM + i];
    }

    float top = PIANOLA_LOWEST;
    for (uint i = tid; i < splits; i += threads) {
        top = max(top, states[2 * i]);
    }
    top = simd_max(top);
    if (lane == 0) {
        across[simd] = top;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    top = simd_max(lane < simds ? across[lane] : PIANOLA_LOWEST);
    float weight = 0.0f;
    for (uint i = tid; i < splits; i += threads) {
        const float factor = exp(states[2 * i] - top);
        factors[i] = factor;
        weight += states[2 * i + 1] * factor;
    }
    weight = threadgroup_sum(weight, across + simds, lane, simd, simds);
    threadgroup_barrier(mem_flags::mem_threadgroup); // for the factors too
    const float scale = weight > 0.0f ? 1.0f / weight : 0.0f;

    for (uint from = 0; from < HEAD_DIM; from += width) {
        const uint i = from + tid % width;
        float value = 0.0f;
        if (i < HEAD_DIM && way < ways) {
            uint n = way;
            if (from == 0) {
                PIANOLA_UNROLL
                for (uint j = 0; j < 8; j++) {
                    if (n < splits) {
                        value += ahead[j] * factors[n];
                    }
                    n += ways;
                }
            }
            for (; n < splits; n += ways) {
                value += values[n * HEAD_DIM + i] * factors[n];
            }
        }
        if (ways > 1) {
            // Compute all elements at once.
            sums[tid] = value;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint w = 1; w < ways && tid < width; w++) {
                value += sums[w * width + tid];
            }
        }
        if (i < HEAD_DIM && tid < width) {
            to[i] = value * scale;
        }
    }
}
