// Attention of one row. Q is either in memory or computed by the threadgroup.
#ifndef PIANOLA_ATTN_ROW_H
#define PIANOLA_ATTN_ROW_H

#include "attn.h"
#include "heads.h"

// kv_block holds 8 elements of K and of V for U positions, in the form that kv_eight returns.
template <uint U>
struct kv_block {
    uint4 k[U];
    uint4 v[U];
};

// load_block loads 8 elements, from element at on, of K and V for U positions at distances of
// 32/W.
template <uint W, uint U>
static inline void load_block(thread kv_block<U> &b, thread const attn_part &a, uint position, uint at) {
    PIANOLA_UNROLL
    for (uint u = 0; u < U; u++) {
        const ulong row = cache_at(a, position + u * (32 / W));
        b.k[u] = kv_eight(a.k, a.kind, a.d, row, at);
        b.v[u] = kv_eight(a.v, a.kind, a.d, row, at);
    }
}

// row_q is the Q of a row's heads in memory.
struct row_q {
    device const float *at; // [heads, d]
};

static inline void make_q(thread row_q &, uint, uint, uint) {}

// made_q computes the Q of a row's heads, and the row's K and V, in the threadgroup. Each SIMD
// group computes one head at a time.
struct made_q {
    device const float *q;    // [heads, d]
    device const float *k;    // [d]
    device const float *v;    // [d]
    device const float *norm; // norm weights, [2, d]: for Q, for K
    head_turn turn;           // settings of all heads; x and w are set for each head
    float eps;
    uint heads;
    bool fresh;            // K and V are computed too
    bool writes;           // K and V are written to the cache
    uint kind;             // element type of the cache
    kv_rows_to k_cache;    // destination in the cache: [d]
    kv_rows_to v_cache;    // [d]
    threadgroup float *to; // [heads, d], then K and V, rounded to the cache's values
    threadgroup const float *at; // part of to: the first head that attend reads
    head_twos first; // the first share of the SIMD group's next head, already loaded
};

// new_k returns the place where K is computed; V follows it.
static inline threadgroup float *new_k(thread const made_q &q) { return q.to + q.heads * q.turn.d; }

// head_of returns the settings of head i, counted over the Q heads, then K, then V.
static inline head_turn head_of(thread const made_q &q, uint i) {
    head_turn h = q.turn;
    h.x = i < q.heads ? q.q + i * h.d : i == q.heads ? q.k : q.v;
    h.w = i < q.heads ? q.norm : q.norm + h.d;
    return h;
}

// load_q reads the SIMD group's first head. It reads K and V even if they are not needed.
static inline void load_q(thread made_q &q, uint lane, uint simd) {
    if (simd < q.heads + 2) {
        const head_turn h = head_of(q, simd);
        load_twos(q.first, h, 0, lane);
    }
}

// make_head computes head i. Its first share has been loaded.
static inline void make_head(thread const made_q &q, thread const head_turn &h, uint i, uint lane) {
    const uint step = 32 * PIANOLA_HEAD_TWOS;
    const uint twos = turned_twos(h.d);
    const bool is_q = i < q.heads;
    const bool is_v = i > q.heads;
    threadgroup float *to = q.to + i * h.d;
    const bool halves = !is_q && q.kind == PIANOLA_KV_F16;
    device half *cache = (device half *)(is_v ? q.v_cache.values : q.k_cache.values);
    head_twos t = q.first;
    const float scale = twos_scale(t, h, q.eps, lane);
    for (uint from = 0; from < twos; from += step) {
        if (twos > step) {
            load_twos(t, h, from, lane);
        }
        PIANOLA_UNROLL
        for (uint j = 0; j < PIANOLA_HEAD_TWOS; j++) {
            const uint two = from + 32 * j + lane;
            if (from + 32 * j < twos && two < twos) {
                const uint2 at = turned_at(h, two);
                float2 value = is_v ? t.x[j] : turned_two(t, h, j, two, scale);
                if (halves) {
                    const half2 rounded = half2(value);
                    value = float2(rounded);
                    if (q.writes) {
                        cache[at.x] = rounded.x;
                        cache[at.y] = rounded.y;
                    }
                }
                to[at.x] = value.x;
                to[at.y] = value.y;
            }
        }
    }
}

// round_head rounds K or V in threadgroup memory to the values that a q8_0 cache stores.
static inline void round_head(thread const made_q &q, uint i, uint lane) {
    const uint d = q.turn.d;
    threadgroup float *to = q.to + i * d;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint at = 0; at < d; at += 128) {
        const uint from = min(at + 4 * lane, d - 4);
        threadgroup float4 *own = (threadgroup float4 *)(to + from);
        const float4 v = kv_quantise(at + 4 * lane < d ? *own : float4(0.0f), i > q.heads ? q.v_cache : q.k_cache, q.writes, d, at, lane);
        if (at + 4 * lane < d) {
            *own = v;
        }
    }
}

// make_q computes Q, K and V. All threads must call it once.
static inline void make_q(thread made_q &q, uint lane, uint simd, uint simds) {
    const uint heads = q.heads + (q.fresh ? 2 : 0);
    for (uint i = simd; i < heads; i += simds) {
        const head_turn h = head_of(q, i);
        if (i != simd) {
            load_twos(q.first, h, 0, lane);
        }
        make_head(q, h, i, lane);
        if (i >= q.heads && q.kind == PIANOLA_KV_Q8_0) {
            round_head(q, i, lane);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// score_of returns the product of Q and K for a position, times scale. W lanes hold 8 elements
// each of both.
template <uint W>
static inline float score_of(thread const float *q, thread const float *k, float scale) {
    float s = q[0] * k[0];
    PIANOLA_UNROLL
    for (uint i = 1; i < 8; i++) {
        s += q[i] * k[i];
    }
    s *= scale;
    PIANOLA_UNROLL
    for (uint w = W / 2; w > 0; w /= 2) {
        s += simd_shuffle_xor(s, ushort(w));
    }
    return s;
}

// load_q8 loads 8 elements of Q. A Q computed by the threadgroup is aligned.
static inline void load_q8(device const float *from, thread float *q) {
    PIANOLA_UNROLL
    for (uint i = 0; i < 8; i++) {
        q[i] = from[i];
    }
}
static inline void load_q8(threadgroup const float *from, thread float *q) {
    PIANOLA_UNROLL
    for (uint i = 0; i < 8; i += 4) {
        const float4 x = *(threadgroup const float4 *)(from + i);
        q[i] = x.x;
        q[i + 1] = x.y;
        q[i + 2] = x.z;
        q[i + 3] = x.w;
    }
}

// attn_lane is a lane's share of G heads: 8 elements of Q and 8 of the weighted sum of V.
template <uint G>
struct attn_lane {
    float q[G][8];
    float acc[G][8];
    float top[G];
    float sum[G];
};

// add_block adds the positions of a block that are before the part's end.
template <uint W, uint G, uint U>
static inline void add_block(thread attn_lane<G> &l, thread const attn_part &a, thread const kv_block<U> &b, uint position) {
    float score[U][G];
    bool seen[U];
    PIANOLA_UNROLL
    for (uint u = 0; u < U; u++) {
        float x[8];
        const float scale = kv_widen(b.k[u], a.kind, x);
        seen[u] = position + u * (32 / W) < a.end;
        PIANOLA_UNROLL
        for (uint g = 0; g < G; g++) {
            const float s = score_of<W>(l.q[g], x, scale);
            score[u][g] = seen[u] ? s : PIANOLA_LOWEST;
        }
    }
    if (a.soft_cap > 0.0f) {
        PIANOLA_UNROLL
        for (uint u = 0; u < U; u++) {
            PIANOLA_UNROLL
            for (uint g = 0; g < G; g++) {
                score[u][g] = seen[u] ? capped(score[u][g], a.soft_cap) : PIANOLA_LOWEST;
            }
        }
    }
    PIANOLA_UNROLL
    for (uint g = 0; g < G; g++) {
        float most = l.top[g];
        PIANOLA_UNROLL
        for (uint u = 0; u < U; u++) {
            most = max(most, score[u][g]);
        }
        const float shrink = exp2(l.top[g] - most);
        l.top[g] = most;
        l.sum[g] *= shrink;
        PIANOLA_UNROLL
        for (uint i = 0; i < 8; i++) {
            l.acc[g][i] *= shrink;
        }
        PIANOLA_UNROLL
        for (uint u = 0; u < U; u++) {
            score[u][g] = seen[u] ? exp2(score[u][g] - most) : 0.0f;
            l.sum[g] += score[u][g];
        }
    }
    PIANOLA_UNROLL
    for (uint u = 0; u < U; u++) {
        float x[8];
        const float scale = kv_widen(b.v[u], a.kind, x);
        PIANOLA_UNROLL
        for (uint g = 0; g < G; g++) {
            const float weight = score[u][g] * scale;
            PIANOLA_UNROLL
            for (uint i = 0; i < 8; i++) {
                l.acc[g][i] += weight * x[i];
            }
        }
    }
}

// kv_ahead holds the blocks that a SIMD group loads at the same time.
template <uint U, uint P>
struct kv_ahead {
    kv_block<U> blocks[P];
};

// load_ahead loads a SIMD group's first blocks. It skips blocks past the end.
template <uint W, uint U, uint P>
static inline void load_ahead(thread kv_ahead<U, P> &ahead, thread const attn_part &a, uint at, uint lane, uint simd, uint simds) {
    const uint from = a.begin + simd * (32 / W * U);
    PIANOLA_UNROLL
    for (uint i = 0; i < P; i++) {
        const uint next = from + i * simds * (32 / W * U);
        if (next < a.end) {
            load_block<W, U>(ahead.blocks[i], a, next + lane / W, at);
        }
    }
}

// load_heads loads a lane's 8 elements of Q of G heads, times the scale. A lane without
// elements gets zeros.
template <uint G, typename At>
static inline void load_heads(thread attn_lane<G> &l, thread const attn_part &a, At from, uint at, bool own) {
    PIANOLA_UNROLL
    for (uint g = 0; g < G; g++) {
        load_q8(from + min(g, a.heads - 1) * a.d + at, l.q[g]);
        PIANOLA_UNROLL
        for (uint i = 0; i < 8; i++) {
            l.q[g][i] = own ? l.q[g][i] * a.scale : 0.0f;
        }
    }
}

// attend computes the partial results of G heads of a row in threadgroup memory; the last heads
// may be inactive. W lanes read one position, 8 elements each, so d must be a multiple of 8 and
// at most 8*W. The SIMD groups take blocks of U*32/W positions in turn. A lane without elements
// reads the first ones and multiplies by 0.
template <uint W, uint G, uint U, uint P, typename Q>
static inline void attend(thread const attn_part &a, thread kv_ahead<U, P> &ahead, thread const Q &q_of, threadgroup float *tg, uint lane, uint simd, uint simds) {
    const uint slice = lane % W * 8;
    const bool own = slice < a.d;
    const uint at = own ? slice : 0;
    const uint step = simds * (32 / W * U);
    uint from = a.begin + simd * (32 / W * U);
    attn_lane<G> l;
    PIANOLA_UNROLL
    for (uint g = 0; g < G; g++) {
        l.top[g] = PIANOLA_LOWEST;
        l.sum[g] = 0.0f;
        PIANOLA_UNROLL
        for (uint i = 0; i < 8; i++) {
            l.acc[g][i] = 0.0f;
        }
    }
    if (a.sinks > 0) {
        const attn_part s = sinks_of(a);
        load_heads<G>(l, a, a.turned, at, own);
        for (uint p = simd * (32 / W * U); p < s.end; p += step) {
            kv_block<U> b;
            load_block<W, U>(b, s, p + lane / W, at);
            add_block<W, G, U>(l, s, b, p + lane / W);
        }
    }
    load_heads<G>(l, a, q_of.at, at, own);
    // The newest position belongs to the last SIMD group, which has the fewest other positions.
    // Its first lanes process it first.
    if (a.fresh && simd == simds - 1) {
        float x[8];
        float y[8];
        load_q8(a.new_k + at, x);
        load_q8(a.new_v + at, y);
        PIANOLA_UNROLL
        for (uint g = 0; g < G; g++) {
            float s = score_of<W>(l.q[g], x, 1.0f);
            s = a.soft_cap > 0.0f ? capped(s, a.soft_cap) : s;
            l.top[g] = lane < W ? s : PIANOLA_LOWEST;
            l.sum[g] = lane < W ? 1.0f : 0.0f;
            PIANOLA_UNROLL
            for (uint i = 0; i < 8; i++) {
                l.acc[g][i] = lane < W ? y[i] : 0.0f;
            }
        }
    }
    while (from < a.end) {
        PIANOLA_UNROLL
        for (uint i = 0; i < P; i++) {
            if (from < a.end) {
                const kv_block<U> b = ahead.blocks[i];
                if (from + P * step < a.end) {
                    load_block<W, U>(ahead.blocks[i], a, from + P * step + lane / W, at);
                }
                add_block<W, G, U>(l, a, b, from + lane / W);
                from += step;
            }
        }
    }

    PIANOLA_UNROLL
    for (uint g = 0; g < G; g++) {
        // Add up the lanes that hold the same elements of different positions.
        PIANOLA_UNROLL
        for (uint w = W; w < 32; w *= 2) {
            const float most = max(l.top[g], simd_shuffle_xor(l.top[g], ushort(w)));
            const float shrink = exp2(l.top[g] - most);
            l.top[g] = most;
            l.sum[g] *= shrink;
            l.sum[g] += simd_shuffle_xor(l.sum[g], ushort(w));
            PIANOLA_UNROLL
            for (uint i = 0; i < 8; i++) {
                l.acc[g][i] *= shrink;
                l.acc[g][i] += simd_shuffle_xor(l.acc[g][i], ushort(w));
            }
        }
        if (g < a.heads) {
            threadgroup float *part = attn_partial(tg, g * simds + simd, a.d);
            if (lane < W && own) {
                ((threadgroup float4 *)(part + slice))[0] = float4(l.acc[g][0], l.acc[g][1], l.acc[g][2], l.acc[g][3]);
                ((threadgroup float4 *)(part + slice))[1] = float4(l.acc[g][4], l.acc[g][5], l.acc[g][6], l.acc[g][7]);
            }
            if (lane == 0) {
                *(threadgroup float2 *)(part + a.d) = float2(l.top[g], l.sum[g]);
            }
        }
    }
}

// attend_heads computes all heads of the part, up to 4 at a time. It loads the first blocks of
// K and V before it computes Q.
template <uint W, uint U, uint P, typename Q>
static inline void attend_heads(thread attn_part &a, thread Q &q, threadgroup float *tg, uint tid, uint lane, uint simd, uint simds) {
    const uint at = lane % W * 8 < a.d ? lane % W * 8 : 0;
    const uint all = a.heads;
    kv_ahead<U, P> ahead;
    load_ahead<W>(ahead, a, at, lane, simd, simds);
    make_q(q, lane, simd, simds);
    for (uint h = 0; h < all; h += 4) {
        if (h > 0) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            q.at += 4 * a.d;
            a.turned += 4 * a.d;
            a.out += 4 * a.stride;
            a.states += 4 * 2 * a.splits;
            a.logits += 4;
            load_ahead<W>(ahead, a, at, lane, simd, simds);
        }
        a.heads = min(all - h, 4u);
        if (a.heads == 1) {
            attend<W, 1>(a, ahead, q, tg, lane, simd, simds);
        } else if (a.heads == 2) {
            attend<W, 2>(a, ahead, q, tg, lane, simd, simds);
        } else {
            attend<W, 4>(a, ahead, q, tg, lane, simd, simds);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        attn_gather<float4>(a, 0, a.heads, 0, a.d, tg, tid, simds);
    }
}

// attend_any computes heads of any size, 256 elements of the output at a time. Each SIMD group
// takes one position at a time.
template <typename Q>
static inline void attend_any(thread const attn_part &a, thread Q &q, threadgroup float *tg, uint tid, uint lane, uint simd, uint simds) {
    make_q(q, lane, simd, simds);
    for (uint unit = 0; unit < a.heads * ((a.d + 255) / 256); unit++) {
        const uint head = unit % a.heads;
        const uint from = unit / a.heads * 256;
        const uint n = min(a.d - from, 256u);
        const uint q_from = head * a.d;
        float acc[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        float top = PIANOLA_LOWEST;
        float sum = 0.0f;
        if (a.fresh && simd == simds - 1) {
            float score = 0.0f;
            for (uint i = lane; i < a.d; i += 32) {
                score += q.at[q_from + i] * a.scale * a.new_k[i];
            }
            top = simd_sum(score);
            top = a.soft_cap > 0.0f ? capped(top, a.soft_cap) : top;
            sum = 1.0f;
            PIANOLA_UNROLL
            for (uint j = 0; j < 8; j++) {
                const uint i = lane + 32 * j;
                acc[j] = i < n ? a.new_v[from + i] : 0.0f;
            }
        }
        const uint seen = a.sinks + (a.end - a.begin);
        for (uint m = simd; m < seen; m += simds) {
            const bool sink = m < a.sinks;
            const ulong row = sink ? sink_at(a, m) : cache_at(a, a.begin + m - a.sinks);
            float score = 0.0f;
            for (uint i = lane; i < a.d; i += 32) {
                score += (sink ? a.turned[q_from + i] : q.at[q_from + i]) * a.scale * kv_one(a.k, a.kind, a.d, row, i);
            }
            score = simd_sum(score);
            score = a.soft_cap > 0.0f ? capped(score, a.soft_cap) : score;
            const float most = max(top, score);
            const float shrink = exp2(top - most);
            const float weight = exp2(score - most);
            top = most;
            sum = sum * shrink + weight;
            PIANOLA_UNROLL
            for (uint j = 0; j < 8; j++) {
                const uint i = lane + 32 * j;
                acc[j] = acc[j] * shrink + (i < n ? weight * kv_one(a.v, a.kind, a.d, row, from + i) : 0.0f);
            }
        }
        if (unit > 0) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        threadgroup float *part = attn_partial(tg, simd, n);
        PIANOLA_UNROLL
        for (uint j = 0; j < 8; j++) {
            const uint i = lane + 32 * j;
            if (i < n) {
                part[i] = acc[j];
            }
        }
        if (lane == 0) {
            part[n] = top;
            part[n + 1] = sum;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        attn_gather<float>(a, head, 1, from, n, tg, tid, simds);
    }
}

// attend_row computes all heads of a threadgroup. The head size d is a constant of the entry. A
// block has 4 or 2 positions.
template <typename Q>
static inline void attend_row(thread attn_part &a, thread Q &q, uint d, threadgroup float *tg, uint tid, uint lane, uint simd, uint simds) {
    if (d % 8 != 0 || d > 256) {
        attend_any(a, q, tg, tid, lane, simd, simds);
    } else if (d <= 64) {
        attend_heads<8, 1, 4>(a, q, tg, tid, lane, simd, simds);
    } else if (d <= 128) {
        attend_heads<16, 2, 2>(a, q, tg, tid, lane, simd, simds);
    } else {
        attend_heads<32, 2, 2>(a, q, tg, tid, lane, simd, simds);
    }
}

#endif
