// Softmax attention of the rows of a chunk over the KV cache, by SIMD-group matrices, see cache.h.
//
// A SIMD group computes 8 or 16 consecutive pairs; see attn_pairs.h. Positions are processed in
// tiles. All SIMD groups copy a tile's K to threadgroup memory and multiply Q with it. Then they
// copy its V to the same place and multiply the weights with it. Q, the weights and all sums are
// float32.
//
// The elements of a SIMD-group matrix that a lane holds are unspecified. So scores become weights
// in threadgroup memory, and a product with a diagonal matrix scales the sums of a pair.
#include "attn_pairs.h"

// fill_rows copies K or V of N positions to threadgroup memory, as rows of float16 that are stride
// elements apart. Positions outside of the part's range repeat its ends.
template <uint N>
static inline void fill_rows(threadgroup half *to, uint stride, kv_rows rows, thread const attn_part &a, uint position, uint tid, uint threads) {
    const uint pieces = a.d / 8;
    for (uint i = tid; i < N * pieces; i += threads) {
        const uint r = i / pieces;
        const uint at = i % pieces * 8;
        const uint4 words = kv_eight(rows, a.kind, a.d, cache_at(a, position + r), at);
        *(threadgroup uint4 *)(to + r * stride + at) = a.kind == PIANOLA_KV_Q8_0 ? scaled_halves(words.xy, as_type<half>(ushort(words.z))) : words;
    }
}

// put_rows writes C columns of Q of the SIMD group's 8*U pairs, scaled, as rows of float32 that are
// wide elements apart. Columns past the head are 0.
template <uint U, uint C>
static inline void put_rows(threadgroup float *to, uint wide, thread const attn_part &a, thread const attn_pairs &t, uint first, uint column, uint lane) {
    PIANOLA_UNROLL
    for (uint u = 0; u < U; u++) {
        const uint pair = first + 8 * u + lane / 4;
        device const float *from = t.q + ulong(pair_row(t, pair)) * t.q_stride + pair_head(t, pair) * a.d;
        PIANOLA_UNROLL
        for (uint j = 0; j < C / 4; j++) {
            const uint i = column + lane % 4 * (C / 4) + j;
            to[(8 * u + lane / 4) * wide + lane % 4 * (C / 4) + j] = i < a.d ? from[i] * a.scale : 0.0f;
        }
    }
}

// weigh_rows replaces the scores of the SIMD group's block u of 8 pairs by weights. Lanes 4g to
// 4g+3 hold the largest score of pair g, and each has the sum of its own weights. It returns the
// factor of pair g's sums so far.
template <uint C>
static inline float weigh_rows(thread float *x, thread float &top, thread float &total, uint position, uint2 sees, float soft_cap, uint lane) {
    float most = top;
    PIANOLA_UNROLL
    for (uint j = 0; j < C / 4; j++) {
        const uint p = position + lane % 4 * (C / 4) + j;
        const float score = soft_cap > 0.0f ? capped(x[j], soft_cap) : x[j];
        x[j] = p >= sees.x && p < sees.y ? score : PIANOLA_LOWEST;
        most = max(most, x[j]);
    }
    most = max(most, simd_shuffle_xor(most, ushort(1)));
    most = max(most, simd_shuffle_xor(most, ushort(2)));
    const float shrink = exp2(top - most);
    top = most;
    total *= shrink;
    PIANOLA_UNROLL
    for (uint j = 0; j < C / 4; j++) {
        x[j] = exp2(x[j] - most);
        total += x[j];
    }
    return shrink;
}

// attend_pairs computes the pairs of a threadgroup with heads of up to D elements, in tiles of C
// positions. A SIMD group computes 8*U pairs.
template <uint D, uint U, uint C>
static inline void attend_pairs(thread const attn_part &a, thread const attn_pairs &t, threadgroup uchar *tg, uint lane, uint simd, uint simds) {
    // Rows have some more elements, so that the rows of a matrix are in different banks.
    const uint stride = a.d + 8;
    const uint wide = C + 4;
    const bool held = D <= 128; // Q is in registers
    const uint tid = simd * 32 + lane;
    threadgroup half *tile = (threadgroup half *)tg;
    threadgroup float *scores = (threadgroup float *)(tile + C * stride) + simd * (8 * U * wide);
    threadgroup float *queries = (threadgroup float *)(tile + C * stride) + simds * (8 * U * wide) + simd * (8 * U * (a.d + 4));
    threadgroup float *mine = scores + lane / 4 * wide + lane % 4 * (C / 4);
    const uint first = t.first + simd * (8 * U);

    simdgroup_float8x8 q[U * D / 8];
    simdgroup_float8x8 sums[U * D / 8];
    float top[U];
    float total[U];
    uint2 sees[U];
    PIANOLA_UNROLL
    for (uint u = 0; u < U; u++) {
        top[u] = PIANOLA_UNSEEN;
        total[u] = 0.0f;
        sees[u] = pair_sees(t, first + 8 * u + lane / 4);
    }
    PIANOLA_UNROLL
    for (uint i = 0; i < U * D / 8; i++) {
        sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    PIANOLA_UNROLL
    for (uint from = 0; from < D; from += C) {
        if (from >= a.d) {
            continue;
        }
        if (!held) {
            put_rows<U, C>(queries + from, a.d + 4, a, t, first, from, lane);
            continue;
        }
        put_rows<U, C>(scores, wide, a, t, first, from, lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        PIANOLA_UNROLL
        for (uint i = 0; i < U * C / 8; i++) {
            const uint u = i / (C / 8);
            const uint c = i % (C / 8) * 8;
            if (from + c < a.d) {
                simdgroup_load(q[u * (D / 8) + (from + c) / 8], scores + 8 * u * wide + c, wide);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }

    // The positions that some pair of the SIMD group sees.
    const uint2 all = uint2(pair_sees(t, first).x, pair_sees(t, first + 8 * U - 1).y);
    for (uint position = a.begin / C * C; position < a.end; position += C) {
        const bool seen = position < all.y && position + C > all.x;
        threadgroup_barrier(mem_flags::mem_threadgroup); // for the last tile's V
        fill_rows<C>(tile, stride, a.k, a, position, tid, simds * 32);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (seen) {
            simdgroup_float8x8 s[U * C / 8];
            PIANOLA_UNROLL
            for (uint i = 0; i < U * C / 8; i++) {
                s[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
            PIANOLA_UNROLL
            for (uint i = 0; i < D / 8; i++) {
                if (8 * i >= a.d) {
                    continue;
                }
                if (!held) {
                    PIANOLA_UNROLL
                    for (uint u = 0; u < U; u++) {
                        simdgroup_load(q[u], queries + 8 * u * (a.d + 4) + 8 * i, a.d + 4);
                    }
                }
                PIANOLA_UNROLL
                for (uint n = 0; n < C / 8; n++) {
                    simdgroup_half8x8 k;
                    simdgroup_load(k, tile + 8 * n * stride + 8 * i, stride, ulong2(0), true);
                    PIANOLA_UNROLL
                    for (uint u = 0; u < U; u++) {
                        simdgroup_multiply_accumulate(s[u * (C / 8) + n], q[held ? u * (D / 8) + i : u], k, s[u * (C / 8) + n]);
                    }
                }
            }
            PIANOLA_UNROLL
            for (uint i = 0; i < U * C / 8; i++) {
                simdgroup_store(s[i], scores + 8 * (i / (C / 8)) * wide + i % (C / 8) * 8, wide);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup); // all SIMD groups are done with K
        fill_rows<C>(tile, stride, a.v, a, position, tid, simds * 32);
        if (seen) {
            PIANOLA_UNROLL
            for (uint u = 0; u < U; u++) {
                float x[C / 4];
                PIANOLA_UNROLL
                for (uint j = 0; j < C / 4; j++) {
                    x[j] = mine[8 * u * wide + j];
                }
                const float shrink = weigh_rows<C>(x, top[u], total[u], position, sees[u], a.soft_cap, lane);
                if (simd_any(shrink != 1.0f)) {
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                    PIANOLA_UNROLL
                    for (uint j = 0; j < 2; j++) {
                        const uint column = lane % 4 * 2 + j;
                        scores[(8 * u + lane / 4) * wide + column] = column == lane / 4 ? shrink : 0.0f;
                    }
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                    simdgroup_float8x8 by;
                    simdgroup_load(by, scores + 8 * u * wide, wide);
                    PIANOLA_UNROLL
                    for (uint i = 0; i < D / 8; i++) {
                        if (8 * i < a.d) {
                            simdgroup_multiply(sums[u * (D / 8) + i], by, sums[u * (D / 8) + i]);
                        }
                    }
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                }
                PIANOLA_UNROLL
                for (uint j = 0; j < C / 4; j++) {
                    mine[8 * u * wide + j] = x[j];
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (seen) {
            PIANOLA_UNROLL
            for (uint n = 0; n < C / 8; n++) {
                simdgroup_float8x8 w[U];
                PIANOLA_UNROLL
                for (uint u = 0; u < U; u++) {
                    simdgroup_load(w[u], scores + 8 * u * wide + 8 * n, wide);
                }
                PIANOLA_UNROLL
                for (uint i = 0; i < D / 8; i++) {
                    if (8 * i >= a.d) {
                        continue;
                    }
                    simdgroup_half8x8 v;
                    simdgroup_load(v, tile + 8 * n * stride + 8 * i, stride);
                    PIANOLA_UNROLL
                    for (uint u = 0; u < U; u++) {
                        simdgroup_multiply_accumulate(sums[u * (D / 8) + i], w[u], v, sums[u * (D / 8) + i]);
                    }
                }
            }
        }
    }

    float by[U];
    PIANOLA_UNROLL
    for (uint u = 0; u < U; u++) {
        float weight = total[u];
        weight += simd_shuffle_xor(weight, ushort(1));
        weight += simd_shuffle_xor(weight, ushort(2));
        by[u] = 1.0f;
        if (a.learned) {
            const float logit = a.logits[pair_head(t, first + 8 * u + lane / 4)] * M_LOG2E_F;
            const float most = max(top[u], logit);
            by[u] = exp2(top[u] - most);
            weight = weight * by[u] + exp2(logit - most);
        }
        by[u] = weight == 0.0f ? 0.0f : by[u] / weight;
    }
    PIANOLA_UNROLL
    for (uint from = 0; from < D; from += C) {
        if (from >= a.d) {
            continue;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        PIANOLA_UNROLL
        for (uint i = 0; i < U * C / 8; i++) {
            const uint u = i / (C / 8);
            const uint c = i % (C / 8) * 8;
            if (from + c < a.d) {
                simdgroup_store(sums[u * (D / 8) + (from + c) / 8], scores + 8 * u * wide + c, wide);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        const uint column = from + lane % 4 * (C / 4);
        PIANOLA_UNROLL
        for (uint u = 0; u < U; u++) {
            const uint pair = first + 8 * u + lane / 4;
            if (pair <= t.last && column < a.d) {
                device float *out = a.out + ulong(pair_row(t, pair)) * t.out_stride + pair_head(t, pair) * a.d + column;
                PIANOLA_UNROLL
                for (uint j = 0; j < C / 4; j += 4) {
                    *(device float4 *)(out + j) = *(threadgroup const float4 *)(mine + 8 * u * wide + j) * by[u];
                }
            }
        }
    }
}

// A threadgroup handles all visible positions for some units of 16 pairs.
[[max_total_threads_per_threadgroup(128)]]
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
    if (!begins(step)) {
        return;
    }
    (void)halves; // act is f32 here
    attn_pairs t;
    t.shared = p.heads / p.kv_heads;
    const uint each = p.units * 16;
    const tile_rows own = tile_rows_of(step, group.y, SEQUENCES, s.rows, t.shared, each, false, lane);
    if (own.count == 0) {
        return;
    }
    const uint row = own.first;
    // Start with the last rows, which see the most positions and take longest.
    t.first = (own.groups - 1 - own.part) * each;
    t.last = own.count * t.shared - 1;
    t.kv_len = row_visible(step, row, SEQUENCES, s.kv_len, p.table);
    t.window = WINDOWED != 0 ? p.window : t.kv_len + own.count;
    const uint head = group.x * t.shared;
    t.q = q + ulong(row) * p.q_stride + ulong(head) * HEAD_DIM;
    t.q_stride = p.q_stride;
    t.out_stride = p.heads * HEAD_DIM;
    t.aligned = false; // Q is read element by element
    attn_part a;
    a.d = HEAD_DIM;
    a.kind = KV;
    a.paged = SEQUENCES != PIANOLA_SEQUENCES_OWN;
    a.pages = row_pages(step, row, SEQUENCES, p.tables, p.table, p.pool, p.cap, p.kv_heads);
    a.head = group.x;
    a.k = kv_rows_of(k_cache, KV, p.kv_heads, p.cap, HEAD_DIM, a.paged ? 0 : group.x);
    a.v = kv_rows_of(v_cache, KV, p.kv_heads, p.cap, HEAD_DIM, a.paged ? 0 : group.x);
    a.out = out + ulong(row) * t.out_stride + ulong(head) * HEAD_DIM;
    a.scale = p.scale * M_LOG2E_F;
    a.soft_cap = p.soft_cap * M_LOG2E_F;
    a.learned = LEARNED != 0;
    a.logits = logits + head;
    a.base = 0;
    a.cap = p.cap;
    a.begin = pair_sees(t, t.first).x;
    a.end = pair_sees(t, t.first + each - 1).y;
    a.wrap = cache_from(a.begin, a.cap, WINDOWED != 0);
    if (HEAD_DIM <= 64) {
        attend_pairs<64, 2, 32>(a, t, tg, lane, simd, simds);
    } else if (HEAD_DIM <= 128) {
        attend_pairs<128, 1, 32>(a, t, tg, lane, simd, simds);
    } else {
        attend_pairs<256, 1, 16>(a, t, tg, lane, simd, simds);
    }
}
