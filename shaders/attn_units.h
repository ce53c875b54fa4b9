// Prefill attention: many rows and heads share K and V.
//
// The pairs of a row and a Q head that share K and V are numbered heads first, and divided into units
// of 64. Four SIMD groups compute a unit, each 16 pairs. Positions are processed in tiles of 64, and
// the products are matrix products of float16. On Hopper the four SIMD groups multiply together
// from threadgroup memory. On other GPUs each SIMD group multiplies through registers.
//
// In threadgroup memory, Q of a unit and K and V of a tile are blocks of 64 rows by 64 columns
// in the layout of chunks.h. K and V are copied several steps ahead of the tile that is
// multiplied.
//
// In a table for batching, the positions that a row sees are divided into up to four segments of tiles. Each has
// sums of its own, which are joined in order, so that several threadgroups can each compute a segment of a row,
// see attn_own.h, and the row has the same bits.
#ifndef PIANOLA_ATTN_UNITS_H
#define PIANOLA_ATTN_UNITS_H

#include "attn_pairs.h"
#include "chunks.h"

// Pairs of a unit, and positions of a tile.
#define PIANOLA_UNIT 64

// Bytes of a block, and of a unit's Q or a tile's K or V.
#define PIANOLA_BLOCK (PIANOLA_UNIT * PIANOLA_CHUNK_BYTES)
#define PIANOLA_TILE_BLOCKS(D) ((D + 63) / 64 * PIANOLA_BLOCK)

// Segments of a row, and positions of the smallest. A segment is a multiple of the tiles of two ways.
#define PIANOLA_MOST_SEGMENTS 4
#define PIANOLA_LEAST_SEGMENT 512
#define PIANOLA_SEGMENT_STEP (2 * PIANOLA_UNIT)

// segmented reports whether the positions of heads of d elements are divided into segments.
static inline constexpr bool segmented(uint d) { return d <= 128; }

// segment_of returns the number of positions of a segment of a row that sees a number of positions, counted from the
// first of its first step of tiles.
static inline uint segment_of(uint positions) {
    const uint each = (positions + PIANOLA_MOST_SEGMENTS - 1) / PIANOLA_MOST_SEGMENTS;
    return max((each + PIANOLA_SEGMENT_STEP - 1) / PIANOLA_SEGMENT_STEP * PIANOLA_SEGMENT_STEP, uint(PIANOLA_LEAST_SEGMENT));
}

// joining is how the states of some pairs are joined with those of the same pairs for later positions: the largest
// scores of both, and the factors of the sums of each.
struct joining {
    float2 top, before, after;
};
static inline joining joining_of(float2 before, float2 after) {
    const float2 most = max(before, after);
    return {most, exp2(before - most), exp2(after - most)};
}

// joined returns a joined sum, and joined_two those of two pairs or of two columns.
static inline float joined(float before, float by, float after, float after_by) { return fma(before, by, after * after_by); }
static inline float2 joined_two(float2 before, float2 by, float2 after, float2 after_by) {
    return float2(joined(before.x, by.x, after.x, after_by.x), joined(before.y, by.y, after.y, after_by.y));
}

// halves_place is where the results of attention become rows of float16, see halves.h. V is float16 already,
// and so is a mean of it but for rounding: the unit of a row is 1.
struct halves_place {
    device uchar *to; // null if the results are float32
    uint row, column; // of the first pair's first element
    uint columns;     // of a row
    uint places;      // of rows in the order of gemm_few, or 0 for rows one after the other
};

// halves_place_of returns the place of the results from a row and head on, of rows of heads of d elements.
static inline halves_place halves_place_of(device uchar *to, uint row, uint rows, uint head, uint heads, uint d, bool few) {
    return {to, row, head * d, heads * d, few ? few_places(rows) : 0};
}

// put_two writes two elements of a row of the results; column is even. put_unit writes the row's unit.
static inline void put_two(thread const halves_place &h, uint row, uint column, float2 v) {
    const ulong at = h.places != 0 ? few_place(column / 4, row, h.places) + column % 4 * 2 : row * ulong(halves_bytes(h.columns, 1)) + 2 * column;
    *(device uint *)(h.to + at) = as_type<uint>(half2(v));
}
static inline void put_unit(thread const halves_place &h, uint row) {
    const ulong at = h.places != 0 ? ulong(h.columns) * 2 * h.places + 4 * row : row * ulong(halves_bytes(h.columns, 1)) + 2 * h.columns;
    *(device float *)(h.to + at) = 1.0f;
}

// column_at returns the offset of 8 columns of a row of a matrix of blocks.
static inline uint column_at(uint row, uint piece) { return piece / 8 * PIANOLA_BLOCK + piece_at(row, piece % 8); }

// put_queries writes Q of some units to threadgroup memory, scaled and rounded to one or two
// float16. Columns past the head are 0.
template <uint D, uint Terms>
static inline void put_queries(threadgroup uchar *to, thread const attn_part &a, thread const attn_pairs &t, uint units, uint tid, uint threads) {
    for (uint i = tid; i < units * PIANOLA_UNIT * (D / 8); i += threads) {
        const uint pair = i / (D / 8);
        const uint piece = i % (D / 8);
        float4 x = float4(0.0f);
        float4 y = float4(0.0f);
        if (8 * piece < a.d) {
            device const float *from = t.q + ulong(pair_row(t, t.first + pair)) * t.q_stride + pair_head(t, t.first + pair) * a.d + 8 * piece;
            x = vector_at(from, t.aligned) * a.scale;
            y = vector_at(from + 4, t.aligned) * a.scale;
        }
        threadgroup uchar *at = to + pair / PIANOLA_UNIT * (Terms * PIANOLA_TILE_BLOCKS(D)) + column_at(pair % PIANOLA_UNIT, piece);
        const half4 first = half4(x);
        const half4 second = half4(y);
        *(threadgroup uint4 *)at = uint4(as_type<uint2>(first), as_type<uint2>(second));
        if (Terms == 2) {
            *(threadgroup uint4 *)(at + PIANOLA_TILE_BLOCKS(D)) = uint4(as_type<uint2>(half4(x - float4(first))), as_type<uint2>(half4(y - float4(second))));
        }
    }
}

// fill_piece starts to copy 8 columns of a row of K or V. Int8 elements are converted at once.
// Columns past the head are 0.
static inline void fill_piece(threadgroup uchar *to, kv_rows rows, thread const attn_part &a, ulong row, uint piece) {
    const bool there = 8 * piece < a.d;
    const uint at = there ? 8 * piece : 0;
    if (a.kind == PIANOLA_KV_Q8_0) {
        const uint2 q = *(device const uint2 *)(rows.values + row * a.d + at);
        const half scale = there ? rows.scales[row * (a.d / 32) + at / 32] : half(0.0f);
        *(threadgroup uint4 *)to = scaled_halves(q, scale);
    } else {
        copy_piece(to, rows.values + 2 * (row * a.d + at), there);
    }
}

// fill_rows starts to copy K or V of a tile whose rows of 64 or 128 columns follow each other in the cache, from
// row on, as those of a page do. A thread copies the same piece of every 8th row, or of rows further apart, so that only
// their addresses differ.
template <uint D>
static inline void fill_rows(threadgroup uchar *to, kv_rows rows, thread const attn_part &a, ulong row, uint tid, uint threads) {
    const uint piece = tid % (D / 8);
    const uint pass = threads / (D / 8);
    threadgroup uchar *slot = to + column_at(tid / (D / 8), piece);
    row += tid / (D / 8);
    for (uint r = 0; r < PIANOLA_UNIT; r += D / 32 * pass) {
        PIANOLA_UNROLL
        for (uint k = 0; k < D / 32; k++) {
            fill_piece(slot + (r + k * pass) * PIANOLA_CHUNK_BYTES, rows, a, row + (r + k * pass), piece);
        }
    }
}

// fill_tile starts to copy K or V of a tile. Positions outside of the part's range repeat its ends.
template <uint D>
static inline void fill_tile(threadgroup uchar *to, kv_rows rows, thread const attn_part &a, uint position, uint tid, uint threads) {
    const uint last = position + PIANOLA_UNIT - 1 - a.wrap;
    if ((D == 64 || D == 128) && position >= a.begin && position + PIANOLA_UNIT <= a.end && (a.paged || last < a.cap || last - a.cap >= PIANOLA_UNIT - 1)) {
        fill_rows<D>(to, rows, a, cache_at(a, position), tid, threads);
        return;
    }
    for (uint i = tid; i < PIANOLA_UNIT * (D / 8); i += threads) {
        const uint r = i / (D / 8);
        const uint piece = i % (D / 8);
        fill_piece(to + column_at(r, piece), rows, a, cache_at(a, position + r), piece);
    }
}

// tile_ring is the threadgroup memory of K and V of the tiles that some SIMD groups compute, which
// also fill it: slots of a tile each.
struct tile_ring {
    threadgroup uchar *at;
    uint slots;
    uint first; // first position of tile 0
    uint step;  // positions from one tile to the next
    uint tiles;
    uint tid, threads;
    uint barrier; // number of the SIMD groups' barrier
};

// keys_at returns K of a slot, and values_at V.
template <uint D>
static inline threadgroup uchar *keys_at(thread const tile_ring &r, uint slot) { return r.at + slot * (2 * PIANOLA_TILE_BLOCKS(D)); }
template <uint D>
static inline threadgroup uchar *values_at(thread const tile_ring &r, uint slot) { return keys_at<D>(r, slot) + PIANOLA_TILE_BLOCKS(D); }

// fill_keys starts to copy K of a tile to a slot, and fill_values V.
template <uint D>
static inline void fill_keys(thread const tile_ring &r, thread const attn_part &a, uint tile, uint slot) {
    if (tile < r.tiles) {
        fill_tile<D>(keys_at<D>(r, slot), a.k, a, r.first + tile * r.step, r.tid, r.threads);
    }
}
template <uint D>
static inline void fill_values(thread const tile_ring &r, thread const attn_part &a, uint tile, uint slot) {
    if (tile < r.tiles) {
        fill_tile<D>(values_at<D>(r, slot), a.v, a, r.first + tile * r.step, r.tid, r.threads);
    }
}

// before returns the slot before another one.
static inline uint before(thread const tile_ring &r, uint slot) { return slot == 0 ? r.slots - 1 : slot - 1; }

// wait_filled waits until all but the last left groups of copies are complete.
static inline void wait_filled(uint left) {
    switch (left) {
    case 0: wait_stage<0>(); break;
    case 1: wait_stage<1>(); break;
    case 2: wait_stage<2>(); break;
    default: wait_stage<3>();
    }
}

// unit_state is the state of a SIMD group's 16 pairs, in the layout of mma_16x8x16: sums of V,
// scores or weights of a tile, weights as an operand of the product with V, and the largest score
// and sum of weights of pairs g and g+8.
template <uint D, uint Terms>
struct unit_state {
    float sums[D / 2];
    float scores[PIANOLA_UNIT / 2];
    uint4 weights[Terms * PIANOLA_UNIT / 16];
    float2 top, total;
};

// held reports whether Q is kept in registers.
template <uint D, uint Terms>
static inline constexpr bool held() { return D <= 128 && Terms == 1; }

// query returns 16 pairs by 16 columns of Q as an operand of a product.
static inline uint4 query(threadgroup const uchar *q, uint column, uint lane, uint simd) {
    return matrices(q, column_at(simd % 4 * 16 + lane % 16, 2 * column + lane / 16), lane);
}

// multiply_keys computes the scores of a tile. On Hopper it starts to compute them.
template <uint D, uint Terms>
static inline void multiply_keys(thread unit_state<D, Terms> &u, thread const uint4 *own, threadgroup const uchar *q, threadgroup const uchar *k, uint lane, uint simd) {
#ifdef PIANOLA_WARPGROUPS
    (void)lane;
    (void)simd;
    const ulong keys = metal::shim::matrix_at(k);
    const ulong queries = metal::shim::matrix_at(q);
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 16; i++) {
        // Matrix addresses are in units of 16 bytes.
        const ulong at = i / 4 * (PIANOLA_BLOCK / 16) + i % 4 * 2;
        if (held<D, Terms>()) {
            if (i == 0) {
                metal::shim::multiply_rows<8, true, false>(u.scores, own[i], keys + at);
            } else {
                metal::shim::multiply_rows<8, false, false>(u.scores, own[i], keys + at);
            }
            continue;
        }
        PIANOLA_UNROLL
        for (uint rest = Terms; rest-- > 0;) {
            const ulong x = queries + rest * (PIANOLA_TILE_BLOCKS(D) / 16) + at;
            if (i == 0 && rest == Terms - 1) {
                metal::shim::begin_shared(u.scores, x, keys + at);
            } else {
                metal::shim::multiply_shared<8>(u.scores, x, keys + at);
            }
        }
    }
#else
    PIANOLA_UNROLL
    for (uint i = 0; i < PIANOLA_UNIT / 2; i++) {
        u.scores[i] = 0.0f;
    }
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 16; i++) {
        uint4 x[Terms];
        PIANOLA_UNROLL
        for (uint rest = 0; rest < Terms; rest++) {
            x[rest] = held<D, Terms>() ? own[i] : query(q + rest * PIANOLA_TILE_BLOCKS(D), i, lane, simd);
        }
        PIANOLA_UNROLL
        for (uint n = 0; n < PIANOLA_UNIT / 16; n++) {
            const uint4 y = matrices(k, column_at(16 * n + lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2), lane);
            PIANOLA_UNROLL
            for (uint rest = Terms; rest-- > 0;) {
                add_product(u.scores + 8 * n, x[rest], y.xy, lane);
                add_product(u.scores + 8 * n + 4, x[rest], y.zw, lane);
            }
        }
    }
#endif
}

// multiply_values adds the products of the weights with V. On Hopper it starts to add them.
template <uint D, uint Terms>
static inline void multiply_values(thread unit_state<D, Terms> &u, threadgroup const uchar *v, uint lane) {
#ifdef PIANOLA_WARPGROUPS
    (void)lane;
    const ulong values = metal::shim::matrix_at(v);
#endif
    PIANOLA_UNROLL
    for (uint i = 0; i < PIANOLA_UNIT / 16; i++) {
#ifdef PIANOLA_WARPGROUPS
        PIANOLA_UNROLL
        for (uint rest = Terms; rest-- > 0;) {
            const uint4 w = u.weights[rest * (PIANOLA_UNIT / 16) + i];
            PIANOLA_UNROLL
            for (uint c = 0; c < D / 64; c++) {
                metal::shim::multiply_rows<8, false, true>(u.sums + 32 * c, w, values + c * (PIANOLA_BLOCK / 16) + i * 128);
            }
            if (D % 64 != 0) {
                metal::shim::multiply_rows<(D % 64 != 0 ? D % 64 : 64) / 8, false, true>(u.sums + D / 64 * 32, w, values + D / 64 * (PIANOLA_BLOCK / 16) + i * 128);
            }
        }
#else
        PIANOLA_UNROLL
        for (uint n = 0; n < D / 16; n++) {
            const uint4 y = matrices_across(v, column_at(16 * i + lane % 16, 2 * n + lane / 16), lane);
            PIANOLA_UNROLL
            for (uint rest = Terms; rest-- > 0;) {
                add_product(u.sums + 8 * n, u.weights[rest * (PIANOLA_UNIT / 16) + i], y.xy, lane);
                add_product(u.sums + 8 * n + 4, u.weights[rest * (PIANOLA_UNIT / 16) + i], y.zw, lane);
            }
        }
#endif
    }
}

// weigh_scores replaces the scores of a tile by weights and returns the factors of the sums so far.
// position is the tile's first. sees are the positions that the lane's pairs see, all the positions
// that all pairs of the SIMD group see.
template <uint D, uint Terms>
static inline float2 weigh_scores(thread unit_state<D, Terms> &u, uint position, uint4 sees, uint2 all, float soft_cap, uint lane) {
    thread float *s = u.scores;
    if (soft_cap > 0.0f) {
        PIANOLA_UNROLL
        for (uint i = 0; i < PIANOLA_UNIT / 2; i++) {
            s[i] = capped(s[i], soft_cap);
        }
    }
    if (position < all.x || position + PIANOLA_UNIT > all.y) {
        PIANOLA_UNROLL
        for (uint i = 0; i < PIANOLA_UNIT / 2; i++) {
            const uint p = position + i / 4 * 8 + lane % 4 * 2 + i % 2;
            const uint2 range = i % 4 < 2 ? sees.xy : sees.zw;
            s[i] = p >= range.x && p < range.y ? s[i] : PIANOLA_LOWEST;
        }
    }
    float2 most = u.top;
    PIANOLA_UNROLL
    for (uint i = 0; i < PIANOLA_UNIT / 2; i += 4) {
        most = max(most, max(float2(s[i], s[i + 2]), float2(s[i + 1], s[i + 3])));
    }
    most = max(most, simd_shuffle_xor(most, ushort(1)));
    most = max(most, simd_shuffle_xor(most, ushort(2)));
    const float2 shrink = exp2(u.top - most);
    u.top = most;
    u.total *= shrink;
    PIANOLA_UNROLL
    for (uint i = 0; i < PIANOLA_UNIT / 2; i += 4) {
        s[i] = exp2(s[i] - most.x);
        s[i + 1] = exp2(s[i + 1] - most.x);
        s[i + 2] = exp2(s[i + 2] - most.y);
        s[i + 3] = exp2(s[i + 3] - most.y);
        u.total += float2(s[i] + s[i + 1], s[i + 2] + s[i + 3]);
    }
    return shrink;
}

// shrink_sums multiplies the sums by the factors of their pairs.
template <uint D, uint Terms>
static inline void shrink_sums(thread unit_state<D, Terms> &u, float2 by) {
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 2; i++) {
        u.sums[i] *= i % 4 < 2 ? by.x : by.y;
    }
}

// round_weights rounds the weights to operands of the product with V.
template <uint D, uint Terms>
static inline void round_weights(thread unit_state<D, Terms> &u) {
    PIANOLA_UNROLL
    for (uint i = 0; i < PIANOLA_UNIT / 16; i++) {
        PIANOLA_UNROLL
        for (uint k = 0; k < 4; k++) {
            const uint2 v = halves_of(u.scores[8 * i + 2 * k], u.scores[8 * i + 2 * k + 1]);
            u.weights[i][k] = v.x;
            if (Terms == 2) {
                u.weights[PIANOLA_UNIT / 16 + i][k] = v.y;
            }
        }
    }
}

// The following functions do nothing where products are complete when they return.

// begin_tile must precede products: the operands in registers are complete.
template <uint D, uint Terms>
static inline void begin_tile(thread unit_state<D, Terms> &u) {
#ifdef PIANOLA_WARPGROUPS
    metal::shim::settle_words<Terms * PIANOLA_UNIT / 16>(u.weights);
    metal::shim::settle<D / 2>(u.sums);
    metal::shim::begin_products();
#else
    (void)u;
#endif
}

// commit_tile ends a group of products.
static inline void commit_tile() {
#ifdef PIANOLA_WARPGROUPS
    metal::shim::commit_products();
#endif
}

// end_keys waits for the products of all groups but the last Left, which include the scores.
template <uint Left, uint D, uint Terms>
static inline void end_keys(thread unit_state<D, Terms> &u) {
#ifdef PIANOLA_WARPGROUPS
    metal::shim::wait_products<Left>();
    metal::shim::settle<PIANOLA_UNIT / 2>(u.scores);
#else
    (void)u;
#endif
}

// end_values waits for all products.
template <uint D, uint Terms>
static inline void end_values(thread unit_state<D, Terms> &u) {
#ifdef PIANOLA_WARPGROUPS
    metal::shim::wait_products<0>();
    metal::shim::settle<D / 2>(u.sums);
#else
    (void)u;
#endif
}

// meet_filled waits until all but the last left groups of copies to a ring are complete.
static inline void meet_filled(thread const tile_ring &r, uint left) {
    wait_filled(left);
#ifdef PIANOLA_WARPGROUPS
    metal::shim::publish();
#endif
#ifdef PIANOLA_NVPTX
    metal::shim::part_wait(r.barrier, r.threads);
#else
    (void)r;
    threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
}

// join_ways adds the state of the second four SIMD groups to that of the first, which computed other
// positions of the same pairs.
template <uint D, uint Terms>
static inline void join_ways(thread unit_state<D, Terms> &u, threadgroup uchar *tg, uint lane, uint simd) {
    threadgroup float *other = (threadgroup float *)tg + simd % 4 * 32 + lane;
    threadgroup float *states = other + 128 * (D / 2);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd >= 4) {
        PIANOLA_UNROLL
        for (uint i = 0; i < D / 2; i++) {
            other[128 * i] = u.sums[i];
        }
        states[0] = u.top.x;
        states[128] = u.top.y;
        states[256] = u.total.x;
        states[384] = u.total.y;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd < 4) {
        const joining j = joining_of(u.top, float2(states[0], states[128]));
        u.top = j.top;
        u.total = joined_two(u.total, j.before, float2(states[256], states[384]), j.after);
        PIANOLA_UNROLL
        for (uint i = 0; i < D / 2; i++) {
            u.sums[i] = joined(u.sums[i], i % 4 < 2 ? j.before.x : j.before.y, other[128 * i], i % 4 < 2 ? j.after.x : j.after.y);
        }
    }
}

// put_pairs writes the results of 16 pairs, from pair first on.
template <uint D, uint Terms>
static inline void put_pairs(thread unit_state<D, Terms> &u, thread const attn_part &a, thread const attn_pairs &t, thread const halves_place &h, uint first, uint lane) {
    PIANOLA_UNROLL
    for (uint k = 0; k < 2; k++) {
        const uint pair = first + lane / 4 + 8 * k;
        const uint head = pair_head(t, pair);
        float total = u.total[k];
        total += simd_shuffle_xor(total, ushort(1));
        total += simd_shuffle_xor(total, ushort(2));
        float by = 1.0f;
        if (a.learned) {
            const float logit = a.logits[head] * M_LOG2E_F;
            const float most = max(u.top[k], logit);
            by = exp2(u.top[k] - most);
            total = total * by + exp2(logit - most);
        }
        by = total == 0.0f ? 0.0f : by / total;
        if (pair > t.last) {
            continue;
        }
        if (h.to) {
            const uint row = h.row + pair_row(t, pair);
            const uint column = h.column + head * a.d + lane % 4 * 2;
            PIANOLA_UNROLL
            for (uint n = 0; n < D / 8; n++) {
                if (8 * n < a.d) {
                    put_two(h, row, column + 8 * n, float2(u.sums[4 * n + 2 * k], u.sums[4 * n + 2 * k + 1]) * by);
                }
            }
            if (column == 0) {
                put_unit(h, row);
            }
            continue;
        }
        device float *out = a.out + ulong(pair_row(t, pair)) * t.out_stride + head * a.d + lane % 4 * 2;
        PIANOLA_UNROLL
        for (uint n = 0; n < D / 8; n++) {
            if (8 * n < a.d) {
                *(device float2 *)(out + 8 * n) = float2(u.sums[4 * n + 2 * k], u.sums[4 * n + 2 * k + 1]) * by;
            }
        }
    }
}

// unit_segments is the joined state of the segments before that of the current tile. A thread keeps its part in
// threadgroup memory, because there are not enough registers: sums, then the largest scores and the sums of weights.
struct unit_segments {
    threadgroup float4 *at;
    uint threads; // of the threadgroup
    uint step;    // positions from one tile of a way to the next
    uint next;    // where the next segment of any pair of the SIMD group begins
    bool some;    // there are such segments
};

// segments_of returns the segments of a row that sees some positions: the first position of the first step of tiles,
// and the number of positions of each.
static inline uint2 segments_of(uint2 sees, uint step) {
    const uint first = sees.x / step * step;
    return uint2(first, segment_of(sees.y - first));
}

// next_segment returns where the first segment after a position begins.
static inline uint next_segment(uint2 sees, uint step, uint position) {
    const uint2 s = segments_of(sees, step);
    return position < s.x ? s.x + s.y : s.x + ((position - s.x) / s.y + 1) * s.y;
}

// set_next sets where the next segment after a position begins.
static inline void set_next(thread unit_segments &g, uint position, uint4 sees) {
    g.next = simd_min(min(next_segment(sees.xy, g.step, position), next_segment(sees.zw, g.step, position)));
}

// begins_segment reports whether a way's tile at a position is the first in its segment, but for the first segment.
static inline bool begins_segment(uint2 sees, uint step, uint position) {
    const uint2 s = segments_of(sees, step);
    return position >= s.x + s.y && (position - s.x) % s.y < step;
}

// meet_segments ends the segments that end before a way's tile at a position, which is at least g.next: it joins their
// states with those of the segments before, and keeps the result in threadgroup memory.
template <uint D, uint Terms>
static inline void meet_segments(thread unit_segments &g, thread unit_state<D, Terms> &u, uint position, uint4 sees) {
    const bool x = begins_segment(sees.xy, g.step, position);
    const bool y = begins_segment(sees.zw, g.step, position);
    const float4 state = g.some ? g.at[D / 8 * g.threads] : float4(PIANOLA_UNSEEN, PIANOLA_UNSEEN, 0.0f, 0.0f);
    const joining j = joining_of(state.xy, u.top);
    const float2 total = joined_two(state.zw, j.before, u.total, j.after);
    g.at[D / 8 * g.threads] = float4(x ? j.top.x : state.x, y ? j.top.y : state.y, x ? total.x : state.z, y ? total.y : state.w);
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 8; i++) {
        threadgroup float4 *at = g.at + i * g.threads;
        const float4 v = g.some ? *at : float4(0.0f);
        const float2 first = joined_two(v.xy, float2(j.before.x), float2(u.sums[4 * i], u.sums[4 * i + 1]), float2(j.after.x));
        const float2 second = joined_two(v.zw, float2(j.before.y), float2(u.sums[4 * i + 2], u.sums[4 * i + 3]), float2(j.after.y));
        *at = float4(x ? first : v.xy, y ? second : v.zw);
        u.sums[4 * i] = x ? 0.0f : u.sums[4 * i];
        u.sums[4 * i + 1] = x ? 0.0f : u.sums[4 * i + 1];
        u.sums[4 * i + 2] = y ? 0.0f : u.sums[4 * i + 2];
        u.sums[4 * i + 3] = y ? 0.0f : u.sums[4 * i + 3];
    }
    u.top = float2(x ? PIANOLA_UNSEEN : u.top.x, y ? PIANOLA_UNSEEN : u.top.y);
    u.total = float2(x ? 0.0f : u.total.x, y ? 0.0f : u.total.y);
    g.some = true;
    set_next(g, position, sees);
}

// join_segments joins the state of the last segments with that of the segments before.
template <uint D, uint Terms>
static inline void join_segments(thread unit_segments &g, thread unit_state<D, Terms> &u) {
    const float4 state = g.at[D / 8 * g.threads];
    const joining j = joining_of(state.xy, u.top);
    u.top = j.top;
    u.total = joined_two(state.zw, j.before, u.total, j.after);
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 8; i++) {
        const float4 v = g.at[i * g.threads];
        u.sums[4 * i] = joined(v.x, j.before.x, u.sums[4 * i], j.after.x);
        u.sums[4 * i + 1] = joined(v.y, j.before.x, u.sums[4 * i + 1], j.after.x);
        u.sums[4 * i + 2] = joined(v.z, j.before.y, u.sums[4 * i + 2], j.after.y);
        u.sums[4 * i + 3] = joined(v.w, j.before.y, u.sums[4 * i + 3], j.after.y);
    }
}

// attend_units computes units of pairs with heads of up to D elements; D is a multiple of 16. If
// there are more SIMD groups than four for each unit, the next four take every other tile, in a ring
// of their own.
//
// The scores of a tile are multiplied at the same time as V of the tile before, so that weights are
// computed during products. A group of copies is K of a tile and V of the tile before.
template <uint D, uint Terms, bool Segments>
static inline void attend_units(thread const attn_part &a, thread const attn_pairs &t, thread const halves_place &h, threadgroup uchar *tg, uint units, uint slots, uint lane, uint simd, uint simds) {
#ifdef PIANOLA_WARPGROUPS
    tg = metal::shim::aligned_matrix(tg);
#endif
    const uint ways = simds / (4 * units);
    const uint unit = simd / 4 / ways;
    const uint way = simd / 4 % ways;
    tile_ring r;
    r.at = tg + units * (Terms * PIANOLA_TILE_BLOCKS(D)) + way * slots * (2 * PIANOLA_TILE_BLOCKS(D));
    r.slots = slots;
    r.step = ways * PIANOLA_UNIT;
    r.first = a.begin / r.step * r.step;
    r.tiles = (a.end - r.first + r.step - 1) / r.step;
    r.first += way * PIANOLA_UNIT;
    r.threads = simds / ways * 32;
    r.tid = (ways == 1 ? simd : simd % 4) * 32 + lane;
    r.barrier = 1 + way;
    fill_keys<D>(r, a, 0, 0);
    commit_stage();
    for (uint i = 0; i + 1 < slots; i++) {
        fill_keys<D>(r, a, i + 1, i + 1);
        fill_values<D>(r, a, i, i);
        commit_stage();
    }
    put_queries<D, Terms>(tg, a, t, units, simd * 32 + lane, simds * 32);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    const uint first = t.first + unit * PIANOLA_UNIT + simd % 4 * 16; // pair
    const uint4 sees = uint4(pair_sees(t, first + lane / 4), pair_sees(t, first + lane / 4 + 8));
    const uint2 all = uint2(pair_sees(t, first + 15).x, pair_sees(t, first).y);
    threadgroup const uchar *q = tg + unit * (Terms * PIANOLA_TILE_BLOCKS(D));
    unit_state<D, Terms> u;
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 2; i++) {
        u.sums[i] = 0.0f;
    }
    PIANOLA_UNROLL
    for (uint i = 0; i < Terms * PIANOLA_UNIT / 16; i++) {
        u.weights[i] = uint4(0);
    }
    u.top = float2(PIANOLA_UNSEEN);
    u.total = float2(0.0f);
    const bool segments = Segments && segmented(D);
    unit_segments g;
    if (segments) {
        g = {(threadgroup float4 *)(tg + (units * Terms + ways * slots * 2) * PIANOLA_TILE_BLOCKS(D)) + simd * 32 + lane, simds * 32, r.step, 0, false};
        set_next(g, r.first, sees);
    }

    meet_filled(r, slots - 1);
    uint4 queries[D / 16];
    if (held<D, Terms>()) {
        PIANOLA_UNROLL
        for (uint i = 0; i < D / 16; i++) {
            queries[i] = query(q, i, lane, simd);
        }
    }
    begin_tile(u);
    multiply_keys(u, queries, q, keys_at<D>(r, 0), lane, simd);
    commit_tile();
    end_keys<0>(u);
    weigh_scores(u, r.first, sees, all, a.soft_cap, lane);
    round_weights(u);
    uint slot = 0; // of the tile before
    for (uint i = 1; i < r.tiles; i++) {
        const uint next = slot + 1 == slots ? 0 : slot + 1;
        meet_filled(r, slots - 2);
        begin_tile(u);
        multiply_keys(u, queries, q, keys_at<D>(r, next), lane, simd);
        commit_tile();
        multiply_values(u, values_at<D>(r, slot), lane);
        commit_tile();
        // All SIMD groups are done with K of the tile before, and with V of the tile before that.
        fill_keys<D>(r, a, i + slots - 1, slot);
        fill_values<D>(r, a, i + slots - 2, before(r, slot));
        commit_stage();
        end_keys<1>(u);
        if (segments && r.first + i * r.step >= g.next) {
            end_values(u);
            meet_segments(g, u, r.first + i * r.step, sees);
        }
        const float2 shrink = weigh_scores(u, r.first + i * r.step, sees, all, a.soft_cap, lane);
        end_values(u);
        shrink_sums(u, shrink);
        round_weights(u);
        slot = next;
    }
    meet_filled(r, 0);
    begin_tile(u);
    multiply_values(u, values_at<D>(r, slot), lane);
    commit_tile();
    end_values(u);
    if (segments && g.some) {
        join_segments(g, u);
    }

    if (ways > 1) {
        join_ways(u, tg, lane, simd);
        if (simd >= 4) {
            return;
        }
    }
    put_pairs(u, a, t, h, first, lane);
}

#endif
