// Attention of one row, whose Q is in memory or made by the threadgroup.
#ifndef PIANOLA_ATTN_ROW_H
#define PIANOLA_ATTN_ROW_H

#include "attn.h"
#include "heads.h"

// load_block loads 8 elements, from element at on, of U positions of k and v
// that are 32/W apart.
template <uint W, uint U>
static inline void load_block(thread const attn_part &a, uint position, uint at, thread uint4 *k, thread uint4 *v) {
    PIANOLA_UNROLL
    for (uint u = 0; u < U; u++) {
        const ulong row = cache_at(a, position + u * (32 / W)) + at;
        k[u] = *(device const uint4 *)(a.k + row);
        v[u] = *(device const uint4 *)(a.v + row);
    }
}

// row_q is Q of the heads of a row as it is in memory.
struct row_q {
    device const float *at; // [heads, d]
};

static inline void make_q(thread row_q &, uint, uint, uint, uint) {}

// made_q is Q of the heads of a row, K and V, which the threadgroup makes.
struct made_q {
    device const float *q; // [heads, d]
    device const float *k; // [d]
    device const float *v; // [d]
    head_turn turn;        // of all heads, but for x, w and scale
    device const float *norm; // [2, d]: of Q, of K
    float eps;
    uint heads;
    bool fresh;              // K and V are wanted too
    bool writes;             // they go to the cache
    device half *k_cache;    // where: [d]
    device half *v_cache;    // [d]
    threadgroup float *to;   // [heads, d], then K and V
    threadgroup const float *at; // from a head of it on
    bool made;
};

// new_k returns where K is made; V is behind it.
static inline threadgroup half *new_k(thread const made_q &q) { return (threadgroup half *)(q.to + q.heads * q.turn.d); }

// make_q makes Q, K and V once: a SIMD group a head. All threads must call it.
static inline void make_q(thread made_q &q, uint tid, uint lane, uint simd, uint simds) {
    if (q.made) {
        return;
    }
    q.made = true;
    const uint d = q.turn.d;
    threadgroup half *k = new_k(q);
    for (uint unit = simd; unit < q.heads + (q.fresh ? 2 : 0); unit += simds) {
        if (unit > q.heads) {
            for (uint i = lane; i < d; i += 32) {
                k[d + i] = half(q.v[i]);
            }
            continue;
        }
        const bool is_q = unit < q.heads;
        head_turn h = q.turn;
        h.x = is_q ? q.q + unit * d : q.k;
        h.w = is_q ? q.norm : q.norm + d;
        if (h.norm) {
            h.scale = precise::rsqrt(simd_sum(head_squares(h, lane, 32)) / float(d) + q.eps);
        }
        for (uint i = lane; i < d - h.pairs; i += 32) {
            const uint2 at = turned_at(h, i);
            const float2 value = turned(h, i, at);
            if (is_q) {
                q.to[unit * d + at.x] = value.x;
                q.to[unit * d + at.y] = value.y;
            } else {
                k[at.x] = half(value.x);
                k[at.y] = half(value.y);
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (q.writes) {
        for (uint i = tid; i < d; i += simds * 32) {
            q.k_cache[i] = k[i];
            q.v_cache[i] = k[d + i];
        }
    }
}

// score_of returns the product of a position that W lanes have, 8 elements
// each.
template <uint W>
static inline float score_of(thread const float *q, thread const float *k) {
    float s = q[0] * k[0];
    PIANOLA_UNROLL
    for (uint i = 1; i < 8; i++) {
        s += q[i] * k[i];
    }
    PIANOLA_UNROLL
    for (uint w = W / 2; w > 0; w /= 2) {
        s += simd_shuffle_xor(s, ushort(w));
    }
    return s;
}

// attend does G heads of a row, of which the last may not be there. W lanes
// read a position, 8 elements each; a SIMD group takes blocks of U times 32/W
// positions, which follow from the positions alone. d is a multiple of 8, at
// most 8*W.
template <uint W, uint G, uint U, typename Q>
static inline void attend(thread const attn_part &a, thread Q &q_of, threadgroup float *tg, uint tid, uint lane, uint simd, uint simds) {
    const uint slice = lane % W * 8;
    const bool own = slice < a.d;
    const uint at = own ? slice : 0; // lanes without elements repeat the first ones, times 0
    // The next block is on its way while one is computed, or Q is made.
    const uint step = 32 / W * U;
    const uint first = a.begin / step;
    uint block = first + (simd + simds - first % simds) % simds;
    uint4 k_next[U];
    uint4 v_next[U];
    if (a.begin < a.end) {
        load_block<W, U>(a, block * step + lane / W, at, k_next, v_next);
    }
    make_q(q_of, tid, lane, simd, simds);

    float q[G][8];
    float acc[G][8];
    float top[G];
    float sum[G];
    PIANOLA_UNROLL
    for (uint g = 0; g < G; g++) {
        const uint from = min(g, a.heads - 1) * a.d + at;
        top[g] = PIANOLA_LOWEST;
        sum[g] = 0.0f;
        PIANOLA_UNROLL
        for (uint i = 0; i < 8; i++) {
            q[g][i] = own ? q_of.at[from + i] * a.scale : 0.0f;
            acc[g][i] = 0.0f;
        }
    }
    if (a.fresh) {
        // The first lanes begin with the newest position, the others with none.
        const bool mine = simd == 0 && lane < W;
        float x[8];
        float y[8];
        half8(*(threadgroup const uint4 *)(a.new_k + at), x);
        half8(*(threadgroup const uint4 *)(a.new_v + at), y);
        PIANOLA_UNROLL
        for (uint g = 0; g < G; g++) {
            const float s = score_of<W>(q[g], x);
            top[g] = mine ? s : PIANOLA_LOWEST;
            sum[g] = mine ? 1.0f : 0.0f;
            PIANOLA_UNROLL
            for (uint i = 0; i < 8; i++) {
                acc[g][i] = mine ? y[i] : 0.0f;
            }
        }
    }
    for (; block * step < a.end; block += simds) {
        uint4 k[U];
        uint4 v[U];
        bool seen[U];
        PIANOLA_UNROLL
        for (uint u = 0; u < U; u++) {
            const uint position = block * step + u * (32 / W) + lane / W;
            seen[u] = position >= a.begin && position < a.end;
            k[u] = k_next[u];
            v[u] = v_next[u];
        }
        load_block<W, U>(a, (block + simds) * step + lane / W, at, k_next, v_next);
        float score[U][G];
        PIANOLA_UNROLL
        for (uint u = 0; u < U; u++) {
            float x[8];
            half8(k[u], x);
            PIANOLA_UNROLL
            for (uint g = 0; g < G; g++) {
                const float s = score_of<W>(q[g], x);
                score[u][g] = seen[u] ? s : PIANOLA_LOWEST;
            }
        }
        PIANOLA_UNROLL
        for (uint g = 0; g < G; g++) {
            float most = top[g];
            PIANOLA_UNROLL
            for (uint u = 0; u < U; u++) {
                most = max(most, score[u][g]);
            }
            const float shrink = exp2(top[g] - most);
            top[g] = most;
            sum[g] *= shrink;
            PIANOLA_UNROLL
            for (uint i = 0; i < 8; i++) {
                acc[g][i] *= shrink;
            }
            PIANOLA_UNROLL
            for (uint u = 0; u < U; u++) {
                score[u][g] = seen[u] ? exp2(score[u][g] - most) : 0.0f;
                sum[g] += score[u][g];
            }
        }
        PIANOLA_UNROLL
        for (uint u = 0; u < U; u++) {
            float x[8];
            half8(v[u], x);
            PIANOLA_UNROLL
            for (uint g = 0; g < G; g++) {
                PIANOLA_UNROLL
                for (uint i = 0; i < 8; i++) {
                    acc[g][i] += score[u][g] * x[i];
                }
            }
        }
    }

    PIANOLA_UNROLL
    for (uint g = 0; g < G; g++) {
        // The lanes that hold the same elements add up what they have.
        PIANOLA_UNROLL
        for (uint w = W; w < 32; w *= 2) {
            const float most = max(top[g], simd_shuffle_xor(top[g], ushort(w)));
            const float shrink = exp2(top[g] - most);
            top[g] = most;
            sum[g] *= shrink;
            sum[g] += simd_shuffle_xor(sum[g], ushort(w));
            PIANOLA_UNROLL
            for (uint i = 0; i < 8; i++) {
                acc[g][i] *= shrink;
                acc[g][i] += simd_shuffle_xor(acc[g][i], ushort(w));
            }
        }
        if (g < a.heads) {
            threadgroup float *part = attn_partial(tg, g * simds + simd, a.d);
            if (lane < W && own) {
                ((threadgroup float4 *)(part + slice))[0] = float4(acc[g][0], acc[g][1], acc[g][2], acc[g][3]);
                ((threadgroup float4 *)(part + slice))[1] = float4(acc[g][4], acc[g][5], acc[g][6], acc[g][7]);
            }
            if (lane == 0) {
                part[a.d] = top[g];
                part[a.d + 1] = sum[g];
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    attn_gather(a, 0, a.heads, 0, a.d, tg, tid, simds);
}

// attend_heads does all heads, up to 4 at a time.
template <uint W, typename Q>
static inline void attend_heads(thread attn_part &a, thread Q &q, threadgroup float *tg, uint tid, uint lane, uint simd, uint simds) {
    if (a.heads == 1) {
        attend<W, 1, 4>(a, q, tg, tid, lane, simd, simds);
    } else if (a.heads == 2) {
        attend<W, 2, 4>(a, q, tg, tid, lane, simd, simds);
    } else {
        const uint all = a.heads;
        for (uint h = 0; h < all; h += 4) {
            if (h > 0) {
                threadgroup_barrier(mem_flags::mem_threadgroup);
                q.at += 4 * a.d;
                a.out += 4 * a.stride;
            }
            a.heads = min(all - h, 4u);
            attend<W, 4, 2>(a, q, tg, tid, lane, simd, simds);
        }
    }
}

// attend_any does heads of any size, 256 elements of the output at a time: a
// SIMD group takes a position.
template <typename Q>
static inline void attend_any(thread const attn_part &a, thread Q &q, threadgroup float *tg, uint tid, uint lane, uint simd, uint simds) {
    make_q(q, tid, lane, simd, simds);
    for (uint unit = 0; unit < a.heads * ((a.d + 255) / 256); unit++) {
        const uint head = unit % a.heads;
        const uint from = unit / a.heads * 256;
        const uint n = min(a.d - from, 256u);
        const uint q_from = head * a.d;
        float acc[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        float top = PIANOLA_LOWEST;
        float sum = 0.0f;
        if (a.fresh && simd == 0) {
            float score = 0.0f;
            for (uint i = lane; i < a.d; i += 32) {
                score += q.at[q_from + i] * a.scale * float(a.new_k[i]);
            }
            top = simd_sum(score);
            sum = 1.0f;
            PIANOLA_UNROLL
            for (uint j = 0; j < 8; j++) {
                const uint i = lane + 32 * j;
                acc[j] = i < n ? float(a.new_v[from + i]) : 0.0f;
            }
        }
        for (uint p = a.begin + (simd + simds - a.begin % simds) % simds; p < a.end; p += simds) {
            const ulong row = cache_at(a, p);
            float score = 0.0f;
            for (uint i = lane; i < a.d; i += 32) {
                score += q.at[q_from + i] * a.scale * float(a.k[row + i]);
            }
            score = simd_sum(score);
            const float most = max(top, score);
            const float shrink = exp2(top - most);
            const float weight = exp2(score - most);
            top = most;
            sum = sum * shrink + weight;
            PIANOLA_UNROLL
            for (uint j = 0; j < 8; j++) {
                const uint i = lane + 32 * j;
                acc[j] = acc[j] * shrink + (i < n ? weight * float(a.v[row + from + i]) : 0.0f);
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
        attn_gather(a, head, 1, from, n, tg, tid, simds);
    }
}

// attend_row does all heads of a threadgroup. d is their size, which entries
// fix.
template <typename Q>
static inline void attend_row(thread attn_part &a, thread Q &q, uint d, threadgroup float *tg, uint tid, uint lane, uint simd, uint simds) {
    if (d % 8 != 0 || d > 256) {
        attend_any(a, q, tg, tid, lane, simd, simds);
    } else if (d <= 64) {
        attend_heads<8>(a, q, tg, tid, lane, simd, simds);
    } else if (d <= 128) {
        attend_heads<16>(a, q, tg, tid, lane, simd, simds);
    } else {
        attend_heads<32>(a, q, tg, tid, lane, simd, simds);
    }
}

#endif
