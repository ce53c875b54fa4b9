// Attention of one row by matrix products, together with QK norm, RoPE and the KV write of the row.
//
// A threadgroup computes the Q heads of a row that share K and V, up to 16 pairs of a row and a head. It
// computes them as attn_units.h does, with the same bits, but four SIMD groups share the work of a tile in
// another way, because there are so few pairs: each computes the scores of 16 positions, all exchange their
// scores and compute all weights, and each multiplies the weights by a quarter of the columns of V. Two
// threadgroups fit in a core at once.
//
// K and V of the row's own position, the last one that it sees, are computed in threadgroup memory, written
// to the cache, and put into their tile from there. No other threadgroup reads them.
#ifndef PIANOLA_ATTN_OWN_H
#define PIANOLA_ATTN_OWN_H

#include "attn_units.h"
#include "heads.h"

// Pairs, and floats of the scores of a tile.
#define PIANOLA_OWN_PAIRS 16
#define PIANOLA_OWN_SCORES (PIANOLA_OWN_PAIRS * PIANOLA_UNIT)

// own_row is the row's Q, K and V before QK norm and RoPE, and where they go. In threadgroup memory Q is
// scaled and rounded to float16, in blocks of 16 rows of 64 columns.
struct own_row {
    device const float *q, *k, *v;
    device const float *norm; // [2, d]: for Q, for K
    head_turn turn;           // of all heads; x and w are set for each head
    float eps;
    uint heads;              // that share K and V
    kv_rows_to k_to, v_to;   // in the cache
    threadgroup uchar *queries;
    threadgroup half *newest; // K, then V, as the cache returns them
    threadgroup float *head;  // K or V before it is quantised, used with q8_0 only: [2, d]
};

// own_query_at returns the offset of 8 columns of a pair's Q.
static inline uint own_query_at(uint pair, uint piece) { return piece / 8 * (PIANOLA_OWN_PAIRS * PIANOLA_CHUNK_BYTES) + piece_at(pair, piece % 8); }

// quantise_own quantises K or V and keeps the values that the cache returns.
template <uint D>
static inline void quantise_own(threadgroup half *to, kv_rows_to cache, threadgroup const float *x, uint lane) {
    for (uint at = 0; at < D; at += 128) {
        const uint from = min(at + 4 * lane, D - 4);
        const bool there = at + 4 * lane < D;
        const float4 v = kv_quantise(there ? *(threadgroup const float4 *)(x + from) : float4(0.0f), cache, true, D, at, lane);
        if (there) {
            *(threadgroup half4 *)(to + from) = half4(v);
        }
    }
}

// make_own computes Q of the heads, and K and V. A SIMD group computes one head at a time. Q of the pairs past
// the last is 0.
template <uint D>
static inline void make_own(thread const own_row &o, uint kind, float by, uint lane, uint simd, uint simds) {
    for (uint i = simd; i < o.heads + 2; i += simds) {
        const bool is_q = i < o.heads;
        const bool is_v = i > o.heads;
        head_turn h = o.turn;
        h.x = is_q ? o.q + i * D : is_v ? o.v : o.k;
        h.w = is_q ? o.norm : o.norm + D;
        head_twos t; // all of the head
        load_twos(t, h, 0, lane);
        const float scale = is_v ? 1.0f : twos_scale(t, h, o.eps, lane);
        threadgroup half *newest = o.newest + (is_v ? D : 0);
        threadgroup float *head = o.head + (is_v ? D : 0);
        device half *cache = (device half *)(is_v ? o.v_to.values : o.k_to.values);
        PIANOLA_UNROLL
        for (uint j = 0; j < PIANOLA_HEAD_TWOS; j++) {
            const uint two = 32 * j + lane;
            if (two >= D / 2) {
                continue;
            }
            const uint2 at = turned_at(h, two);
            const float2 value = is_v ? t.x[j] : turned_two(t, h, j, two, scale);
            if (is_q) {
                *(threadgroup half *)(o.queries + own_query_at(i, at.x / 8) + at.x % 8 * 2) = half(value.x * by);
                *(threadgroup half *)(o.queries + own_query_at(i, at.y / 8) + at.y % 8 * 2) = half(value.y * by);
            } else if (kind == PIANOLA_KV_Q8_0) {
                head[at.x] = value.x;
                head[at.y] = value.y;
            } else {
                newest[at.x] = half(value.x);
                newest[at.y] = half(value.y);
                cache[at.x] = half(value.x);
                cache[at.y] = half(value.y);
            }
        }
        if (!is_q && kind == PIANOLA_KV_Q8_0) {
            simdgroup_barrier(mem_flags::mem_threadgroup);
            const kv_rows_to to = {is_v ? o.v_to.values : o.k_to.values, is_v ? o.v_to.scales : o.k_to.scales};
            quantise_own<D>(newest, to, head, lane);
        }
    }
    for (uint i = simd * 32 + lane; i < (PIANOLA_OWN_PAIRS - o.heads) * (D / 8); i += simds * 32) {
        *(threadgroup uint4 *)(o.queries + own_query_at(o.heads + i / (D / 8), i % (D / 8))) = uint4(0);
    }
}

// fill_own starts to copy K or V of a tile. a.end is the row's own position, which is not in the cache: it is
// copied from threadgroup memory if it is made, and otherwise left out. Positions that the row does not see
// are 0.
template <uint D>
static inline void fill_own(threadgroup uchar *to, kv_rows rows, thread const attn_part &a, threadgroup const half *newest, bool made, uint position, uint tid, uint threads) {
    if (position >= a.begin && position + PIANOLA_UNIT <= a.end) {
        fill_tile<D>(to, rows, a, position, tid, threads);
        return;
    }
    for (uint i = tid; i < PIANOLA_UNIT * (D / 8); i += threads) {
        const uint at = position + i / (D / 8);
        const uint piece = i % (D / 8);
        threadgroup uchar *slot = to + column_at(i / (D / 8), piece);
        if (at >= a.begin && at < a.end) {
            fill_piece(slot, rows, a, cache_at(a, at), piece);
        } else if (at != a.end) {
            *(threadgroup uint4 *)slot = uint4(0);
        } else if (made) {
            *(threadgroup uint4 *)slot = *(threadgroup const uint4 *)(newest + 8 * piece);
        }
    }
}

// fill_own_keys starts to copy K of a tile to a slot, and fill_own_values V.
template <uint D>
static inline void fill_own_keys(thread const tile_ring &r, thread const attn_part &a, threadgroup const half *newest, bool made, uint tile, uint slot) {
    if (tile < r.tiles) {
        fill_own<D>(keys_at<D>(r, slot), a.k, a, newest, made, r.first + tile * r.step, r.tid, r.threads);
    }
    commit_stage();
}
template <uint D>
static inline void fill_own_values(thread const tile_ring &r, thread const attn_part &a, threadgroup const half *newest, bool made, uint tile, uint slot) {
    if (tile < r.tiles) {
        fill_own<D>(values_at<D>(r, slot), a.v, a, newest + D, made, r.first + tile * r.step, r.tid, r.threads);
    }
    commit_stage();
}

// put_newest puts K and V of the row's own position into their tile if that has been filled without them.
template <uint D>
static inline void put_newest(thread const tile_ring &r, thread const attn_part &a, threadgroup const half *newest) {
    if (a.end < r.first || (a.end - r.first) % r.step >= PIANOLA_UNIT || (a.end - r.first) / r.step >= r.slots) {
        return;
    }
    const uint slot = (a.end - r.first) / r.step;
    if (r.tid < D / 4) {
        const uint piece = r.tid % (D / 8);
        threadgroup uchar *to = r.tid < D / 8 ? keys_at<D>(r, slot) : values_at<D>(r, slot);
        *(threadgroup uint4 *)(to + column_at(a.end % PIANOLA_UNIT, piece)) = *(threadgroup const uint4 *)(newest + 8 * r.tid);
    }
}

// meet_own waits until K or V of the next tile has been copied, of a ring of slots whose groups of copies are K
// and V of the tiles in turn.
static inline void meet_own(thread const tile_ring &r) {
    switch (r.slots) {
    case 1: wait_stage<0>(); break;
    case 2: wait_stage<2>(); break;
    case 3: wait_stage<4>(); break;
    default: wait_stage<6>();
    }
#ifdef PIANOLA_NVPTX
    metal::shim::part_wait(r.barrier, r.threads);
#else
    threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
}

// score_own computes a SIMD group's scores of a tile, those of 16 positions.
template <uint D>
static inline void score_own(thread float *scores, threadgroup const uchar *queries, threadgroup const uchar *k, uint lane, uint part) {
    PIANOLA_UNROLL
    for (uint i = 0; i < 8; i++) {
        scores[i] = 0.0f;
    }
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 16; i++) {
        const uint4 x = matrices(queries, own_query_at(lane % 16, 2 * i + lane / 16), lane);
        const uint4 y = matrices(k, column_at(16 * part + lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2), lane);
        add_product(scores, x, y.xy, lane);
        add_product(scores + 4, x, y.zw, lane);
    }
}

// add_own adds the products of the weights with a SIMD group's quarter of the columns of V.
template <uint D>
static inline void add_own(thread unit_state<D / 4, 1> &u, threadgroup const uchar *v, uint lane, uint part) {
    PIANOLA_UNROLL
    for (uint i = 0; i < PIANOLA_UNIT / 16; i++) {
        PIANOLA_UNROLL
        for (uint n = 0; n < D / 64; n++) {
            const uint4 y = matrices_across(v, column_at(16 * i + lane % 16, part * (D / 32) + 2 * n + lane / 16), lane);
            add_product(u.sums + 8 * n, u.weights[i], y.xy, lane);
            add_product(u.sums + 8 * n + 4, u.weights[i], y.zw, lane);
        }
    }
}

// attend_own computes a row with heads of D elements. a.end is the row's own position. If K and V are settled, it waits
// for its inputs after it has started to copy them.
template <uint D>
static inline void attend_own(thread const attn_part &a, thread const attn_pairs &t, thread const own_row &row, halves_place h, bool settled, threadgroup uchar *tg, uint slots, uint lane, uint simd, uint simds) {
    const uint way = simd / 4;
    const uint part = simd % 4;
    const uint ways = simds / 4;
    tile_ring r;
    r.at = tg + way * slots * (2 * PIANOLA_TILE_BLOCKS(D));
    r.slots = slots;
    r.step = ways * PIANOLA_UNIT;
    r.first = a.begin / r.step * r.step;
    r.tiles = (a.end + 1 - r.first + r.step - 1) / r.step;
    r.first += way * PIANOLA_UNIT;
    r.threads = 128;
    r.tid = part * 32 + lane;
    r.barrier = 1 + way;
    own_row o = row;
    threadgroup uchar *rest = tg + ways * slots * (2 * PIANOLA_TILE_BLOCKS(D));
    threadgroup float *exchange = (threadgroup float *)rest + way * PIANOLA_OWN_SCORES + lane;
    o.queries = rest + ways * (4 * PIANOLA_OWN_SCORES);
    o.newest = (threadgroup half *)(o.queries + 2 * PIANOLA_OWN_PAIRS * D);
    o.head = (threadgroup float *)(o.newest + 2 * D);
    for (uint i = 0; i < slots; i++) {
        fill_own_keys<D>(r, a, o.newest, false, i, i);
        fill_own_values<D>(r, a, o.newest, false, i, i);
    }
    if (settled) {
        wait_inputs();
    }
    make_own<D>(o, a.kind, a.scale, lane, simd, simds);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    put_newest<D>(r, a, o.newest);

    const uint4 sees = uint4(pair_sees(t, 0), pair_sees(t, 0));
    unit_state<D / 4, 1> u;
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 8; i++) {
        u.sums[i] = 0.0f;
    }
    u.top = float2(PIANOLA_UNSEEN);
    u.total = float2(0.0f);
    uint slot = 0;
    uint past = 0; // slot of the tile before
    for (uint i = 0; i < r.tiles; i++) {
        meet_own(r);
        if (i > 0) { // all SIMD groups are done with V of the tile before
            fill_own_values<D>(r, a, o.newest, true, i - 1 + slots, past);
        }
        float own[8];
        score_own<D>(own, o.queries, keys_at<D>(r, slot), lane, part);
        PIANOLA_UNROLL
        for (uint k = 0; k < 8; k++) {
            exchange[(8 * part + k) * 32] = own[k];
        }
        meet_own(r);
        // All SIMD groups are done with K of the tile.
        fill_own_keys<D>(r, a, o.newest, true, i + slots, slot);
        PIANOLA_UNROLL
        for (uint k = 0; k < PIANOLA_UNIT / 2; k++) {
            u.scores[k] = exchange[k * 32];
        }
        const float2 shrink = weigh_scores(u, r.first + i * r.step, sees, sees.xy, a.soft_cap, lane);
        shrink_sums(u, shrink);
        round_weights(u);
        add_own<D>(u, values_at<D>(r, slot), lane, part);
        past = slot;
        slot = slot + 1 == slots ? 0 : slot + 1;
    }
    if (ways > 1) {
        join_ways(u, tg, lane, simd);
        if (simd >= 4) {
            return;
        }
    }
    h.column += part * (D / 4);
    put_pairs(u, a, t, h, 0, lane);
}

#endif
