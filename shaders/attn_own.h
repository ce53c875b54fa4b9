// Attention of one row by matrix products, together with QK norm, RoPE and the KV write of the row.
//
// A threadgroup, or a cluster of them, computes the Q heads of a row that share K and V, up to 16 pairs of a row
// and a head. It computes them as attn_units.h does, with the same bits, but four SIMD groups share the work of a
// tile in another way, because there are so few pairs: each computes the scores of 16 positions, all exchange their
// scores and compute all weights, and each multiplies the weights by a quarter of the columns of V.
//
// The work is divided into spans: the tiles of a segment that a way takes. Four SIMD groups compute one span after
// the other. The states of spans are joined in the order in which attn_units.h joins them: first the segments of each
// way, then the ways. The threadgroups of a cluster each compute some spans, and the first of them joins all states.
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
    bool made;               // K and V are computed
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

// make_own computes Q of the heads, and K and V if o.made is set. A SIMD group computes one head at a time. Q of the
// pairs past the last is 0.
template <uint D>
static inline void make_own(thread const own_row &o, uint kind, float by, uint lane, uint simd, uint simds) {
    for (uint i = simd; i < o.heads + (o.made ? 2 : 0); i += simds) {
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

// own_work is the work of a row, and the spans of it that a team of four SIMD groups computes: every teams-th from first
// on that is before last.
struct own_work {
    uint begin, end;  // positions
    uint each;        // positions of a segment
    uint ways, spans; // in which a segment is divided, and in all
    uint first, last; // spans
    uint teams;
    bool newest; // one of the threadgroup's spans has the row's own position
};

// own_tile is a tile of a span. Its page is read when the tile before it is next, so that no copy waits for it.
struct own_tile {
    uint span, at, end; // at is its first position, end that of the first after the span
    uint page;
};

// tile_page returns the page of a tile, which is as long as a page.
static inline uint tile_page(thread const attn_part &a, uint at) { return a.paged ? a.pages.entries[min(at / PIANOLA_UNIT, a.pages.count - 1)] : 0; }

// first_tile returns the first tile of a span.
static inline own_tile first_tile(thread const own_work &w, thread const attn_part &a, uint span) {
    const uint segment = span / w.ways;
    const uint begin = w.begin + segment * w.each;
    const uint at = begin + (span - segment * w.ways) * PIANOLA_UNIT;
    return {span, at, min(begin + w.each, w.end), tile_page(a, at)};
}

// ends_span reports whether a tile is the last of its span. next_tile returns the tile after it.
static inline bool ends_span(thread const own_work &w, thread const own_tile &t) { return t.at + w.ways * PIANOLA_UNIT >= t.end; }
static inline own_tile next_tile(thread const own_work &w, thread const attn_part &a, thread const own_tile &t) {
    if (!ends_span(w, t)) {
        const uint at = t.at + w.ways * PIANOLA_UNIT;
        return {t.span, at, t.end, tile_page(a, at)};
    }
    return first_tile(w, a, t.span + w.teams);
}

// fill_own starts to copy K or V of a tile. a.end is the row's own position, which is not in the cache: it is
// copied from threadgroup memory if it is made, and otherwise left out. Positions that the row does not see
// are 0.
template <uint D>
static inline void fill_own(threadgroup uchar *to, kv_rows rows, thread const attn_part &a, threadgroup const half *newest, bool made, thread const own_tile &tile, uint tid, uint threads) {
    const ulong first = (ulong(min(tile.page, a.pages.last)) * a.pages.heads + a.head) * PIANOLA_PAGE; // in a page
    if (tile.at >= a.begin && tile.at + PIANOLA_UNIT <= a.end && (!a.paged || D == 64 || D == 128)) {
        if (a.paged) {
            fill_rows<D>(to, rows, a, first, tid, threads);
        } else {
            fill_tile<D>(to, rows, a, tile.at, tid, threads);
        }
        return;
    }
    for (uint i = tid; i < PIANOLA_UNIT * (D / 8); i += threads) {
        const uint row = i / (D / 8);
        const uint at = tile.at + row;
        const uint piece = i % (D / 8);
        threadgroup uchar *slot = to + column_at(row, piece);
        if (at >= a.begin && at < a.end) {
            fill_piece(slot, rows, a, a.paged ? first + row : cache_at(a, at), piece);
        } else if (at != a.end) {
            *(threadgroup uint4 *)slot = uint4(0);
        } else if (made) {
            *(threadgroup uint4 *)slot = *(threadgroup const uint4 *)(newest + 8 * piece);
        }
    }
}

// fill_own_keys starts to copy K of a tile to a slot, and fill_own_values V, if the tile's span is one of those of w.
template <uint D>
static inline void fill_own_keys(thread const tile_ring &r, thread const own_work &w, thread const attn_part &a, threadgroup const half *newest, bool made, thread const own_tile &tile, uint slot) {
    if (tile.span < w.last) {
        fill_own<D>(keys_at<D>(r, slot), a.k, a, newest, made, tile, r.tid, r.threads);
    }
    commit_stage();
}
template <uint D>
static inline void fill_own_values(thread const tile_ring &r, thread const own_work &w, thread const attn_part &a, threadgroup const half *newest, bool made, thread const own_tile &tile, uint slot) {
    if (tile.span < w.last) {
        fill_own<D>(values_at<D>(r, slot), a.v, a, newest + D, made, tile, r.tid, r.threads);
    }
    commit_stage();
}

// put_newest puts K and V of the row's own position into a tile that has been filled without them.
template <uint D>
static inline void put_newest(thread const tile_ring &r, thread const attn_part &a, threadgroup const half *newest, uint slot) {
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

// own_states is where the states of spans are in threadgroup memory. A state is an array of vectors for each of
// the 128 threads that computed it: the sums of the first 8 pairs, those of the others if there are more, and the largest
// scores and the sums of weights.
struct own_states {
    threadgroup float4 *at; // the thread's part of the first state
    bool all;               // there are more than 8 pairs
};

// own_vectors returns the number of vectors of a state.
template <uint D>
static inline uint own_vectors(bool all) { return (all ? D / 32 : D / 64) + 1; }

// own_state returns the thread's part of a state.
template <uint D>
static inline threadgroup float4 *own_state(thread const own_states &s, uint i) { return s.at + i * (own_vectors<D>(s.all) * 128); }

// put_state writes a state.
template <uint D>
static inline void put_state(thread const own_states &s, uint i, thread const unit_state<D / 4, 1> &u) {
    threadgroup float4 *to = own_state<D>(s, i);
    PIANOLA_UNROLL
    for (uint n = 0; n < D / 64; n++) {
        to[128 * n] = float4(u.sums[8 * n], u.sums[8 * n + 1], u.sums[8 * n + 4], u.sums[8 * n + 5]);
        if (s.all) {
            to[128 * (D / 64 + n)] = float4(u.sums[8 * n + 2], u.sums[8 * n + 3], u.sums[8 * n + 6], u.sums[8 * n + 7]);
        }
    }
    to[128 * (own_vectors<D>(s.all) - 1)] = float4(u.top, u.total);
}

// clear_state sets a state to that of no positions.
template <uint D>
static inline void clear_state(thread unit_state<D, 1> &u) {
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 2; i++) {
        u.sums[i] = 0.0f;
    }
    u.top = float2(PIANOLA_UNSEEN);
    u.total = float2(0.0f);
}

// state_half is the part of a state for 8 of its pairs, and the largest scores and sums of weights of all.
template <uint D>
struct state_half {
    float4 sums[D / 64];
    float4 ends;
};

// vector_of returns a vector in threadgroup memory; if Remote is set, that of the threadgroup with the given rank in
// the cluster.
template <bool Remote>
static inline float4 vector_of(threadgroup const float4 *at, uint rank) {
#if defined(PIANOLA_NVPTX) && PIANOLA_SM >= 90
    if (Remote) {
        return metal::shim::cluster_load(metal::shim::shared_address(at), rank);
    }
#endif
    (void)rank;
    return *at;
}

// half_of returns the first or second half of a state.
template <uint D, bool Remote>
static inline state_half<D> half_of(thread const own_states &s, uint i, uint half_, uint rank) {
    threadgroup const float4 *from = own_state<D>(s, i);
    state_half<D> v;
    PIANOLA_UNROLL
    for (uint n = 0; n < D / 64; n++) {
        v.sums[n] = vector_of<Remote>(from + 128 * (half_ * (D / 64) + n), rank);
    }
    v.ends = vector_of<Remote>(from + 128 * (own_vectors<D>(s.all) - 1), rank);
    return v;
}

// join_half joins the sums of a half of u with those of a state for earlier positions, if Before is set, or for later
// ones.
template <uint D, uint Half, bool Before>
static inline void join_half(thread unit_state<D / 4, 1> &u, thread const state_half<D> &v, thread const joining &j) {
    const float before = Half == 0 ? j.before.x : j.before.y;
    const float after = Half == 0 ? j.after.x : j.after.y;
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 16; i++) {
        thread float &sum = u.sums[i / 4 * 8 + i % 4 / 2 * 4 + i % 2 + 2 * Half];
        const float other = v.sums[i / 4][i % 4];
        sum = Before ? joined(other, before, sum, after) : joined(sum, before, other, after);
    }
}

// join_state joins u with a state of the threadgroup for earlier positions, if Before is set, or for later ones.
template <uint D, bool Before>
static inline void join_state(thread unit_state<D / 4, 1> &u, thread const own_states &s, uint i) {
    const state_half<D> v = half_of<D, false>(s, i, 0, 0);
    const joining j = Before ? joining_of(v.ends.xy, u.top) : joining_of(u.top, v.ends.xy);
    join_half<D, 0, Before>(u, v, j);
    if (s.all) {
        const state_half<D> second = half_of<D, false>(s, i, 1, 0);
        join_half<D, 1, Before>(u, second, j);
    }
    u.top = j.top;
    u.total = Before ? joined_two(v.ends.zw, j.before, u.total, j.after) : joined_two(u.total, j.before, v.ends.zw, j.after);
}

// join_spans joins half of the states of the spans of a way. Each threadgroup of the cluster has the states of as many
// spans as each says. The sums of u must be 0.
template <uint D, uint Half>
static inline void join_spans(thread unit_state<D / 4, 1> &u, thread const own_states &s, thread const own_work &w, uint way, uint each) {
    const uint few = 4; // states that are loaded at once
    u.top = float2(PIANOLA_UNSEEN);
    u.total = float2(0.0f);
    _Pragma("clang loop unroll(disable)")
    for (uint first = way; first < w.spans; first += few * w.ways) {
        state_half<D> v[few];
        PIANOLA_UNROLL
        for (uint i = 0; i < few; i++) {
            const uint span = min(first + i * w.ways, w.spans - 1);
            v[i] = half_of<D, true>(s, span % each, Half, span / each);
        }
        PIANOLA_UNROLL
        for (uint i = 0; i < few; i++) {
            if (first + i * w.ways < w.spans) {
                const joining j = joining_of(u.top, v[i].ends.xy);
                join_half<D, Half, false>(u, v[i], j);
                u.top = j.top;
                u.total = joined_two(u.total, j.before, v[i].ends.zw, j.after);
            }
        }
    }
}

// end_span joins the state of a span with those of the spans of its way before it. In a cluster, which joins them
// later, it puts the state away. It leaves the state of the last span of the SIMD groups in u, except in a cluster, and
// otherwise sets u to the state of no positions.
template <uint D>
static inline void end_span(thread unit_state<D / 4, 1> &u, thread const own_states &s, thread const own_work &w, uint span, uint each, uint cluster) {
    if (cluster == 1 && span >= w.ways) {
        join_state<D, true>(u, s, span % w.ways);
    }
    if (cluster > 1 || span + w.teams < w.last) {
        put_state<D>(s, cluster > 1 ? span % each : span % w.ways, u);
        clear_state(u);
    }
}

// join_cluster joins the states of each way, which the threadgroups of a cluster hold, and returns whether this is the
// threadgroup that has the results: u is that of the last way of the SIMD groups.
template <uint D>
static inline bool join_cluster(thread unit_state<D / 4, 1> &u, thread const own_states &s, thread const own_work &w, uint team, uint each, uint rank) {
#if defined(PIANOLA_NVPTX) && PIANOLA_SM >= 90
    metal::shim::cluster_wait(); // the states are there
    if (rank == 0) {
        for (uint way = team; way < min(w.ways, w.spans); way += w.teams) {
            if (way > team) {
                put_state<D>(s, way - w.teams, u);
            }
            clear_state(u);
            join_spans<D, 0>(u, s, w, way, each);
            if (s.all) {
                join_spans<D, 1>(u, s, w, way, each);
            }
        }
    }
    metal::shim::cluster_wait(); // the first threadgroup reads this one's memory
#else
    (void)u, (void)s, (void)w, (void)team, (void)each;
#endif
    return rank == 0;
}

// join_ways_own joins the states of the ways, of which u is one.
template <uint D>
static inline void join_ways_own(thread unit_state<D / 4, 1> &u, thread const own_states &s, uint way) {
    if (way == 0) {
        join_state<D, false>(u, s, 1);
    } else {
        join_state<D, true>(u, s, 0);
    }
}

// work_of returns the work of one of the teams of four SIMD groups in a threadgroup of a cluster. a.end is the row's
// own position. It sets each to the largest number of spans of a threadgroup.
template <uint D>
static inline own_work work_of(thread const attn_part &a, uint team, uint teams, uint rank, uint cluster, thread uint &each) {
    own_work w;
    w.teams = teams;
    w.ways = segmented(D) ? 2 : teams;
    const uint step = w.ways * PIANOLA_UNIT;
    w.begin = a.begin / step * step;
    w.end = a.end + 1;
    const uint positions = w.end - w.begin;
    w.each = segmented(D) ? segment_of(positions) : (positions + step - 1) / step * step;
    const uint segments = 1 + uint(positions > w.each) + uint(positions > 2 * w.each) + uint(positions > 3 * w.each);
    w.spans = segments * w.ways;
    if (teams == w.ways) {
        w.end = w.begin + (positions + step - 1) / step * step; // all teams have as many tiles
    } else if (positions - (segments - 1) * w.each <= PIANOLA_UNIT) {
        w.spans--; // the second way has no positions of the last segment
    }
    const uint own = (segments - 1) * w.ways + a.end / PIANOLA_UNIT % w.ways;
    each = (w.spans + cluster * teams - 1) / (cluster * teams) * teams;
    w.newest = own - rank * each < each;
    w.first = rank * each + team;
    w.last = min((rank + 1) * each, w.spans);
    return w;
}

// attend_own computes a row with heads of D elements, in a cluster of threadgroups of which this one has the given rank.
// a.end is the row's own position. If K and V are settled, it waits for its inputs after it has started to copy them.
template <uint D>
static inline void attend_own(thread const attn_part &a, thread const attn_pairs &t, thread const own_row &row, halves_place h, bool settled, threadgroup uchar *tg, uint slots, uint rank, uint cluster, uint lane, uint simd, uint simds) {
#if !defined(PIANOLA_NVPTX) || PIANOLA_SM < 90
    if (rank > 0) { // the first threadgroup computes all spans
        return;
    }
    cluster = 1;
#endif
    const uint team = simd / 4;
    const uint part = simd % 4;
    uint each;
    const own_work w = work_of<D>(a, team, simds / 4, rank, cluster, each);
    if (rank * each >= w.spans) {
        if (settled) {
            wait_inputs(); // as every command that begins early must before it ends
        }
        return;
    }
    if (w.spans <= each) {
        cluster = 1; // the others of the cluster have nothing to compute
    }
    tile_ring r;
    r.at = tg + team * slots * (2 * PIANOLA_TILE_BLOCKS(D));
    r.slots = slots;
    r.threads = 128;
    r.tid = part * 32 + lane;
    r.barrier = 1 + team;
    own_row o = row;
    o.made = w.newest;
    threadgroup uchar *rest = tg + w.teams * slots * (2 * PIANOLA_TILE_BLOCKS(D));
    threadgroup float4 *exchange = (threadgroup float4 *)((threadgroup float *)rest + team * PIANOLA_OWN_SCORES) + lane;
    o.queries = rest + w.teams * (4 * PIANOLA_OWN_SCORES);
    o.newest = (threadgroup half *)(o.queries + 2 * PIANOLA_OWN_PAIRS * D);
    o.head = (threadgroup float *)(o.newest + 2 * D);
    const own_states states = {(threadgroup float4 *)(o.head + (a.kind == PIANOLA_KV_Q8_0 ? 2 * D : 0)) + r.tid, t.shared > 8};
    own_tile next = first_tile(w, a, w.first); // the tile whose K is copied next
    uint newest = slots;                       // slot of the tile of the row's own position
    for (uint i = 0; i < slots; i++) {
        const own_tile after = next_tile(w, a, next); // its page is read while this one is requested
        fill_own_keys<D>(r, w, a, o.newest, false, next, i);
        fill_own_values<D>(r, w, a, o.newest, false, next, i);
        newest = next.span < w.last && a.end - next.at < PIANOLA_UNIT ? i : newest;
        next = after;
    }
    if (settled) {
        wait_inputs();
    }
    make_own<D>(o, a.kind, a.scale, lane, simd, simds);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (newest < slots) {
        put_newest<D>(r, a, o.newest, newest);
    }

    const uint4 sees = uint4(pair_sees(t, 0), pair_sees(t, 0));
    unit_state<D / 4, 1> u;
    clear_state(u);
    uint slot = 0;
    uint past = slots; // slot of the tile before, if there is one
    own_tile values = next;
    for (own_tile tile = first_tile(w, a, w.first); tile.span < w.last; tile = next_tile(w, a, tile)) {
        meet_own(r);
        if (past < slots) { // all SIMD groups are done with V of the tile before
            fill_own_values<D>(r, w, a, o.newest, true, values, past);
        }
        float own[8];
        score_own<D>(own, o.queries, keys_at<D>(r, slot), lane, part);
        PIANOLA_UNROLL
        for (uint k = 0; k < 2; k++) {
            exchange[(2 * part + k) * 32] = float4(own[4 * k], own[4 * k + 1], own[4 * k + 2], own[4 * k + 3]);
        }
        meet_own(r);
        // All SIMD groups are done with K of the tile.
        fill_own_keys<D>(r, w, a, o.newest, true, next, slot);
        values = next;
        next = next_tile(w, a, next);
        PIANOLA_UNROLL
        for (uint k = 0; k < PIANOLA_UNIT / 8; k++) {
            const float4 v = exchange[k * 32];
            u.scores[4 * k] = v.x;
            u.scores[4 * k + 1] = v.y;
            u.scores[4 * k + 2] = v.z;
            u.scores[4 * k + 3] = v.w;
        }
        const float2 shrink = weigh_scores(u, tile.at, sees, sees.xy, a.soft_cap, lane);
        shrink_sums(u, shrink);
        round_weights(u);
        add_own<D>(u, values_at<D>(r, slot), lane, part);
        if (ends_span(w, tile)) {
            end_span<D>(u, states, w, tile.span, each, cluster);
        }
        past = slot;
        slot = slot + 1 == slots ? 0 : slot + 1;
    }
    uint way = (w.spans - 1) % w.ways; // of u, if there is one team
    if (cluster > 1) {
        if (!join_cluster<D>(u, states, w, team, each, rank)) {
            return;
        }
        way = min(w.ways, w.spans) - 1;
    }
    if (w.teams > 1) {
        if (team > 0) {
            put_state<D>(states, 1, u);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (team > 0) {
            return;
        }
        way = 0;
    }
    if (w.spans > 1) {
        join_ways_own<D>(u, states, way);
    }
    h.column += part * (D / 4);
    put_pairs(u, a, t, h, 0, lane);
}

#endif
