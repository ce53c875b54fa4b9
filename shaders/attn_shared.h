// Decode attention by matrix products: one row of up to 8 heads that share K and V.
//
// A SIMD group processes 16 positions at a time. It copies their K and V to a ring in its own
// threadgroup memory, several slots ahead. The products are matrix products of float16. Q and the
// weights are each split into the sum of two float16, which are the rows g and g+8 of an operand,
// so one product computes both terms. K and V are float16, or int8 whose scales are applied to the
// scores and to the weights.
#ifndef PIANOLA_ATTN_SHARED_H
#define PIANOLA_ATTN_SHARED_H

#include "attn_row.h"
#include "mma.h"

// PIANOLA_SHARED_RING is the smallest size of the ring of a SIMD group: two slots of float16 heads of
// 128 elements.
#define PIANOLA_SHARED_RING 8192

#ifdef PIANOLA_COPIES

// PIANOLA_SHARED is the largest number of heads that a SIMD group computes at once, and
// PIANOLA_SHARED_POSITIONS the number of positions.
#define PIANOLA_SHARED 8
#define PIANOLA_SHARED_POSITIONS 16

// kv_slot describes a slot of the ring, which holds K or V of 16 positions in a cache of kind KV:
// 16 rows of pieces of 16 bytes, room for heads of D elements, then the scales of 16 rows. The
// pieces of a row are permuted, so that the pieces that lanes read together lie in different banks.
template <uint D, uint Kind>
struct kv_slot {
    enum : uint {
        q8 = Kind == PIANOLA_KV_Q8_0 ? 1 : 0,
        pieces = q8 != 0 ? D / 16 : D / 8,
        row = 16 * pieces,
        scales = q8 * (D / 32) * 2, // bytes of a row
        bytes = PIANOLA_SHARED_POSITIONS * (row + scales),
    };
};

// slot_piece returns the offset of a piece of row r.
template <uint D, uint Kind>
static inline uint slot_piece(uint r, uint piece) {
    typedef kv_slot<D, Kind> S;
    const uint by = S::pieces < 8 ? r & 2 : (r & 6) ^ (r & 1) << 2;
    return r * S::row + 16 * (piece ^ by);
}

// copy_scales copies the scales of a row.
template <uint Bytes>
static inline void copy_scales(threadgroup uchar *to, device const half *from) {
    if (Bytes == 8) {
        metal::shim::copy8(to, from);
    } else {
        metal::shim::copy4(to, from);
    }
}

// copy_slot starts to copy K or V of 16 positions, if the part has any of them. Positions past the
// end repeat the last, and elements past the end of a head are 0.
template <uint D, uint Kind>
static inline void copy_slot(threadgroup uchar *to, thread const attn_part &a, kv_rows rows, uint position, uint lane) {
    typedef kv_slot<D, Kind> S;
    if (position < a.end) {
        const uint size = S::q8 != 0 ? a.d : 2 * a.d; // bytes of a row
        const ulong first = cache_at(a, position);
        // Usually the positions are adjacent rows.
        const bool plain = position + PIANOLA_SHARED_POSITIONS <= a.end && first + PIANOLA_SHARED_POSITIONS <= a.base + a.cap;
        const uint row = lane / S::pieces;
        const uint piece = lane % S::pieces;
        const bool there = 16 * piece < size;
        const uint each = 32 / S::pieces; // rows that the lanes copy at once
        device const uchar *from = rows.values + (there ? 16 * piece : 0);
        if (plain) {
            from += first * size + row * size;
            PIANOLA_UNROLL
            for (uint i = 0; i < PIANOLA_SHARED_POSITIONS / each; i++) {
                metal::shim::copy_or_zero16(to + slot_piece<D, Kind>(i * each + row, piece), from + i * each * size, there ? 16 : 0);
            }
        } else {
            PIANOLA_UNROLL
            for (uint i = 0; i < PIANOLA_SHARED_POSITIONS / each; i++) {
                metal::shim::copy_or_zero16(to + slot_piece<D, Kind>(i * each + row, piece), from + cache_at(a, position + i * each + row) * size, there ? 16 : 0);
            }
        }
        if (S::q8 != 0 && lane < PIANOLA_SHARED_POSITIONS) {
            copy_scales<S::scales>(to + PIANOLA_SHARED_POSITIONS * S::row + lane * S::scales, rows.scales + cache_at(a, position + lane) * (D / 32));
        }
    }
    metal::shim::commit_copies();
}

// kv_ring is a SIMD group's ring of count slots, and the slot that is read next.
struct kv_ring {
    threadgroup uchar *first;
    uint count; // 2 to 6
    uint next;
};

// PIANOLA_SHARED_SLOTS is the largest number of slots of a ring.
#define PIANOLA_SHARED_SLOTS 6

// ring_of returns a ring of bytes.
template <uint D, uint Kind>
static inline kv_ring ring_of(threadgroup uchar *first, uint bytes) {
    return {first, min(uint(PIANOLA_SHARED_SLOTS), bytes / kv_slot<D, Kind>::bytes), 0};
}

// slot_of returns the slot that is read next.
template <uint D, uint Kind>
static inline threadgroup uchar *slot_of(thread const kv_ring &ring) { return ring.first + ring.next * kv_slot<D, Kind>::bytes; }

// copy_next starts to copy item i after K of position from to the next slot, and advances the ring. K
// and V follow each other.
template <uint D, uint Kind>
static inline void copy_next(thread kv_ring &ring, thread const attn_part &a, uint i, uint from, uint step, uint lane) {
    const bool is_k = i % 2 == 0;
    const kv_rows rows = {is_k ? a.k.values : a.v.values, is_k ? a.k.scales : a.v.scales};
    copy_slot<D, Kind>(slot_of<D, Kind>(ring), a, rows, from + i / 2 * step, lane);
    ring.next = ring.next + 1 == ring.count ? 0 : ring.next + 1;
}

// copy_ahead starts to copy K and V of the SIMD group's first positions to all slots.
template <uint D, uint Kind>
static inline void copy_ahead(thread kv_ring &ring, thread const attn_part &a, uint from, uint step, uint lane) {
    _Pragma("clang loop unroll(disable)")
    for (uint i = 0; i < ring.count; i++) {
        copy_next<D, Kind>(ring, a, i, from, step, lane);
    }
}

// wait_slot waits until all lanes have copied their parts of the next slot.
static inline void wait_slot(thread const kv_ring &ring) {
    if (ring.count >= 6) {
        metal::shim::wait_copies<5>();
    } else if (ring.count >= 4) {
        metal::shim::wait_copies<3>();
    } else if (ring.count == 3) {
        metal::shim::wait_copies<2>();
    } else {
        metal::shim::wait_copies<1>();
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// refill copies later positions to the next slot, which all lanes have read. It held K of position
// from, or V if v is 1.
template <uint D, uint Kind>
static inline void refill(thread kv_ring &ring, thread const attn_part &a, uint v, uint from, uint step, uint lane) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
    copy_next<D, Kind>(ring, a, ring.count + v, from, step, lane);
}

// shared_q holds Q as operands of the products: lane j of 4 holds the elements 32v + 8j + 4h to
// 32v + 8j + 4h + 3 of head g in operand 2v + h.
template <uint D>
struct shared_q {
    uint4 of[D / 16];
};

// load_shared reads Q of the heads, times the scale. Heads and elements past the end are 0.
template <uint D>
static inline void load_shared(thread shared_q<D> &q, thread const attn_part &a, threadgroup const float *from, uint lane) {
    const uint g = lane / 4;
    threadgroup const float *head = from + min(g, a.heads - 1) * a.d;
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 16; i++) {
        const uint at = 32 * (i / 2) + 8 * (lane % 4) + 4 * (i % 2);
        const bool there = at < a.d && g < a.heads;
        const float4 x = *(threadgroup const float4 *)(head + (there ? at : 0)) * (there ? a.scale : 0.0f);
        const uint2 low = halves_of(x.x, x.y);
        const uint2 high = halves_of(x.z, x.w);
        q.of[i] = uint4(low.x, low.y, high.x, high.y);
    }
}

// shared_sums is the state of a lane for head g = lane/4. acc holds the sums of weighted V in the
// layout of mma_16x8x16; element_at returns the elements of its columns.
template <uint D>
struct shared_sums {
    float4 acc[D / 8];
    float top;
    float sum; // over the lane's own positions
};

// four_scales returns the scales of block b at the positions 2j, 2j+1, 2j+8 and 2j+9 of a slot.
template <uint D, uint Kind>
static inline float4 four_scales(threadgroup const uchar *slot, uint b, uint j) {
    typedef kv_slot<D, Kind> S;
    threadgroup const half *scales = (threadgroup const half *)(slot + PIANOLA_SHARED_POSITIONS * S::row) + b;
    const uint each = D / 32;
    return float4(scales[2 * j * each], scales[(2 * j + 1) * each], scales[(2 * j + 8) * each], scales[(2 * j + 9) * each]);
}

// half_scores returns the scores of head g at the positions 2j and 2j+1 of the columns of c: the sum
// of both terms of Q.
static inline float2 half_scores(float4 c) { return c.xy + c.zw; }

// scores_of returns the scores of head g at the positions 2j, 2j+1, 2j+8 and 2j+9 of the slot, and
// refills it.
template <uint D, uint Kind>
static inline float4 scores_of(thread const shared_q<D> &q, thread kv_ring &ring, thread const attn_part &a, uint from, uint step, uint lane) {
    typedef kv_slot<D, Kind> S;
    const uint g = lane / 4;
    const uint j = lane % 4;
    threadgroup const uchar *slot = slot_of<D, Kind>(ring);
    float4 score = float4(0.0f);
    if (S::q8 != 0) {
        uint2 k[2][D / 32];
        float4 scales[D / 32];
        PIANOLA_UNROLL
        for (uint b = 0; b < D / 32; b++) {
            PIANOLA_UNROLL
            for (uint n = 0; n < 2; n++) {
                k[n][b] = *(threadgroup const uint2 *)(slot + slot_piece<D, Kind>(8 * n + g, 2 * b + j / 2) + 8 * (j % 2));
            }
            scales[b] = four_scales<D, Kind>(slot, b, j);
        }
        refill<D, Kind>(ring, a, 0, from, step, lane);
        PIANOLA_UNROLL
        for (uint b = 0; b < D / 32; b++) {
            float4 c[2] = {float4(0.0f), float4(0.0f)};
            PIANOLA_UNROLL
            for (uint h = 0; h < 2; h++) {
                PIANOLA_UNROLL
                for (uint n = 0; n < 2; n++) {
                    c[n] = mma_16x8x16(q.of[2 * b + h], tile_halves(h == 0 ? k[n][b].x : k[n][b].y), c[n], lane);
                }
            }
            score += float4(half_scores(c[0]), half_scores(c[1])) * scales[b];
        }
        return score;
    }
    uint4 k[2][D / 32];
    PIANOLA_UNROLL
    for (uint v = 0; v < D / 32; v++) {
        PIANOLA_UNROLL
        for (uint n = 0; n < 2; n++) {
            k[n][v] = *(threadgroup const uint4 *)(slot + slot_piece<D, Kind>(8 * n + g, 4 * v + j));
        }
    }
    refill<D, Kind>(ring, a, 0, from, step, lane);
    // Two sums for each product, because an addition waits for the one before it.
    float4 c[2][2] = {{float4(0.0f), float4(0.0f)}, {float4(0.0f), float4(0.0f)}};
    PIANOLA_UNROLL
    for (uint v = 0; v < D / 32; v++) {
        PIANOLA_UNROLL
        for (uint n = 0; n < 2; n++) {
            c[n][0] = mma_16x8x16(q.of[2 * v], k[n][v].xy, c[n][0], lane);
        }
        PIANOLA_UNROLL
        for (uint n = 0; n < 2; n++) {
            c[n][1] = mma_16x8x16(q.of[2 * v + 1], k[n][v].zw, c[n][1], lane);
        }
    }
    return float4(half_scores(c[0][0] + c[0][1]), half_scores(c[1][0] + c[1][1]));
}

// shared_weights returns the operand of the weights of 4 positions of head g.
static inline uint4 shared_weights(float4 w) {
    const uint2 low = halves_of(w.x, w.y);
    const uint2 high = halves_of(w.z, w.w);
    return uint4(low.x, low.y, high.x, high.y);
}

// add_values adds V of the slot, times the weights, and refills the slot.
template <uint D, uint Kind>
static inline void add_values(thread shared_sums<D> &s, float4 weights, thread kv_ring &ring, thread const attn_part &a, uint from, uint step, uint lane) {
    typedef kv_slot<D, Kind> S;
    const uint g = lane / 4;
    const uint j = lane % 4;
    threadgroup const uchar *slot = slot_of<D, Kind>(ring);
    if (S::q8 != 0) {
        uint v[4][D / 32];
        float4 scales[D / 32];
        PIANOLA_UNROLL
        for (uint b = 0; b < D / 32; b++) {
            PIANOLA_UNROLL
            for (uint i = 0; i < 4; i++) {
                v[i][b] = *(threadgroup const uint *)(slot + slot_piece<D, Kind>(2 * j + i % 2 + i / 2 * 8, 2 * b + g / 4) + 4 * (g % 4));
            }
            scales[b] = four_scales<D, Kind>(slot, b, j);
        }
        refill<D, Kind>(ring, a, 1, from, step, lane);
        PIANOLA_UNROLL
        for (uint b = 0; b < D / 32; b++) {
            const uint4 w = shared_weights(weights * (scales[b] * PIANOLA_V_UNIT));
            // Elements 0 and 1, then 2 and 3, of two positions each.
            const uint2 low = tile_halves(permute(v[0][b], v[1][b], 0x5140));
            const uint2 next = tile_halves(permute(v[0][b], v[1][b], 0x7362));
            const uint2 high = tile_halves(permute(v[2][b], v[3][b], 0x5140));
            const uint2 last = tile_halves(permute(v[2][b], v[3][b], 0x7362));
            s.acc[4 * b] = mma_16x8x16(w, uint2(low.x, high.x), s.acc[4 * b], lane);
            s.acc[4 * b + 1] = mma_16x8x16(w, uint2(low.y, high.y), s.acc[4 * b + 1], lane);
            s.acc[4 * b + 2] = mma_16x8x16(w, uint2(next.x, last.x), s.acc[4 * b + 2], lane);
            s.acc[4 * b + 3] = mma_16x8x16(w, uint2(next.y, last.y), s.acc[4 * b + 3], lane);
        }
        return;
    }
    uint4 v[4][D / 64];
    PIANOLA_UNROLL
    for (uint u = 0; u < D / 64; u++) {
        PIANOLA_UNROLL
        for (uint i = 0; i < 4; i++) {
            v[i][u] = *(threadgroup const uint4 *)(slot + slot_piece<D, Kind>(2 * j + i % 2 + i / 2 * 8, 8 * u + g));
        }
    }
    refill<D, Kind>(ring, a, 1, from, step, lane);
    const uint4 w = shared_weights(weights);
    PIANOLA_UNROLL
    for (uint u = 0; u < D / 64; u++) {
        PIANOLA_UNROLL
        for (uint n = 0; n < 8; n++) {
            const uint pair = n % 2 == 0 ? 0x5410 : 0x7632;
            const uint2 b = uint2(permute(v[0][u][n / 2], v[1][u][n / 2], pair), permute(v[2][u][n / 2], v[3][u][n / 2], pair));
            s.acc[8 * u + n] = mma_16x8x16(w, b, s.acc[8 * u + n], lane);
        }
    }
}

// element_at returns the element of a head that column 2j of product i computes; column 2j+1 is
// next_column elements further. A lane reads 8 adjacent elements of V, or 4 of an int8 head, and each
// of them belongs to another product.
template <uint Kind>
static inline uint element_at(uint i, uint j) {
    return Kind == PIANOLA_KV_Q8_0 ? i / 4 * 32 + 8 * j + i % 4 : i / 8 * 64 + 16 * j + i % 8;
}
template <uint Kind>
static inline uint next_column() { return Kind == PIANOLA_KV_Q8_0 ? 4 : 8; }

// begin_shared sets the sums to the newest position if it is the SIMD group's and not in the cache,
// or to nothing.
template <uint D, uint Kind>
static inline void begin_shared(thread shared_sums<D> &s, thread const attn_part &a, threadgroup const float *q, bool fresh, uint lane) {
    const uint j = lane % 4;
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 8; i++) {
        s.acc[i] = float4(0.0f);
    }
    s.top = PIANOLA_LOWEST;
    s.sum = 0.0f;
    if (!fresh) {
        return;
    }
    threadgroup const float *head = q + min(lane / 4, a.heads - 1) * a.d;
    float score = 0.0f;
    for (uint at = 4 * j; at < a.d; at += 16) {
        score += dot(*(threadgroup const float4 *)(head + at) * a.scale, *(threadgroup const float4 *)(a.new_k + at));
    }
    score += simd_shuffle_xor(score, ushort(1));
    score += simd_shuffle_xor(score, ushort(2));
    s.top = a.soft_cap > 0.0f ? capped(score, a.soft_cap) : score;
    s.sum = j == 0 ? 1.0f : 0.0f;
    const float unit = Kind == PIANOLA_KV_Q8_0 ? PIANOLA_V_UNIT : 1.0f;
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 8; i++) {
        const uint at = element_at<Kind>(i, j);
        s.acc[i].x = at < a.d ? a.new_v[at] * unit : 0.0f;
        s.acc[i].y = at + next_column<Kind>() < a.d ? a.new_v[at + next_column<Kind>()] * unit : 0.0f;
    }
}

// weigh_shared turns scores into weights and adapts the sums to the new maximum. before is the number
// of positions before the part's end.
template <uint D>
static inline float4 weigh_shared(thread shared_sums<D> &s, thread const attn_part &a, float4 score, uint before, uint lane) {
    if (a.soft_cap > 0.0f) {
        score = float4(capped(score.x, a.soft_cap), capped(score.y, a.soft_cap), capped(score.z, a.soft_cap), capped(score.w, a.soft_cap));
    }
    if (before < PIANOLA_SHARED_POSITIONS) {
        const uint own = lane % 4 * 2;
        score.x = own < before ? score.x : PIANOLA_LOWEST;
        score.y = own + 1 < before ? score.y : PIANOLA_LOWEST;
        score.z = own + 8 < before ? score.z : PIANOLA_LOWEST;
        score.w = own + 9 < before ? score.w : PIANOLA_LOWEST;
    }
    float most = max(s.top, max(max(score.x, score.y), max(score.z, score.w)));
    most = max(most, simd_shuffle_xor(most, ushort(1)));
    most = max(most, simd_shuffle_xor(most, ushort(2)));
    if (simd_any(most != s.top)) {
        const float shrink = exp2(s.top - most);
        s.top = most;
        s.sum *= shrink;
        PIANOLA_UNROLL
        for (uint i = 0; i < D / 8; i++) {
            s.acc[i] *= shrink;
        }
    }
    const float4 weights = exp2(score - most);
    s.sum += (weights.x + weights.y) + (weights.z + weights.w);
    return weights;
}

// put_shared writes the SIMD group's result to threadgroup memory, where attn_gather expects it.
template <uint D, uint Kind>
static inline void put_shared(thread shared_sums<D> &s, thread const attn_part &a, threadgroup float *tg, uint lane, uint simd, uint simds) {
    const uint g = lane / 4;
    const uint j = lane % 4;
    s.sum += simd_shuffle_xor(s.sum, ushort(1));
    s.sum += simd_shuffle_xor(s.sum, ushort(2));
    if (g >= a.heads) {
        return;
    }
    const float unit = Kind == PIANOLA_KV_Q8_0 ? 1.0f / PIANOLA_V_UNIT : 1.0f;
    threadgroup float *part = attn_partial(tg, g * simds + simd, a.d);
    PIANOLA_UNROLL
    for (uint i = 0; i < D / 8; i += 4) {
        const uint at = element_at<Kind>(i, j);
        const float2 x = half_scores(s.acc[i]) * unit;
        const float2 y = half_scores(s.acc[i + 1]) * unit;
        const float2 z = half_scores(s.acc[i + 2]) * unit;
        const float2 w = half_scores(s.acc[i + 3]) * unit;
        if (at < a.d) {
            *(threadgroup float4 *)(part + at) = float4(x.x, y.x, z.x, w.x);
        }
        if (at + next_column<Kind>() < a.d) {
            *(threadgroup float4 *)(part + at + next_column<Kind>()) = float4(x.y, y.y, z.y, w.y);
        }
    }
    if (j == 0) {
        *(threadgroup float2 *)(part + a.d) = float2(s.top, s.sum);
    }
}

// attend_shared computes all heads of the part, up to 8 at a time. The SIMD groups take 16 positions
// in turn. It starts to copy K and V before it computes Q, and before it waits for its inputs if they are settled.
// tg holds the rings, ahead bytes each, and then the SIMD groups' results.
template <uint D, uint Kind>
static inline void attend_shared(thread attn_part &a, thread made_q &q, bool settled, threadgroup uchar *tg, uint ahead, uint tid, uint lane, uint simd, uint simds) {
    const uint step = simds * PIANOLA_SHARED_POSITIONS;
    uint first = a.begin + simd * PIANOLA_SHARED_POSITIONS;
    const uint all = a.heads;
    kv_ring ring = ring_of<D, Kind>(tg + simd * ahead, ahead);
    if (!settled) {
        load_q(q, lane, simd);
    }
    copy_ahead<D, Kind>(ring, a, first, step, lane);
    if (settled) {
        wait_inputs();
        load_q(q, lane, simd);
    }
    make_q(q, lane, simd, simds);
    for (uint h = 0; h < all; h += PIANOLA_SHARED) {
        if (h > 0) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            q.at += PIANOLA_SHARED * a.d;
            a.out += PIANOLA_SHARED * a.stride;
            a.states += PIANOLA_SHARED * 2 * a.splits;
            a.logits += PIANOLA_SHARED;
            ring.next = 0;
            first = opaque(first);
            copy_ahead<D, Kind>(ring, a, first, step, lane);
        }
        a.heads = min(all - h, uint(PIANOLA_SHARED));
        shared_q<D> own;
        load_shared<D>(own, a, q.at, lane);
        shared_sums<D> s;
        // The newest position belongs to the last SIMD group, which has the fewest other positions.
        begin_shared<D, Kind>(s, a, q.at, a.fresh && simd == simds - 1, lane);
        for (uint from = first; from < a.end; from += step) {
            wait_slot(ring);
            const float4 score = scores_of<D, Kind>(own, ring, a, from, step, lane);
            const float4 weights = weigh_shared<D>(s, a, score, a.end - from, lane);
            wait_slot(ring);
            add_values<D, Kind>(s, weights, ring, a, from, step, lane);
        }
        // The results replace the rings.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        put_shared<D, Kind>(s, a, (threadgroup float *)tg, lane, simd, simds);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        attn_gather<float4>(a, 0, a.heads, 0, a.d, (threadgroup float *)tg, tid, simds);
    }
}

#endif

// shares reports whether attend_shared can compute heads of d elements, given a ring of ahead bytes.
static inline bool shares(uint d, uint kind, uint ahead) {
#ifdef PIANOLA_COPIES
    return ahead >= PIANOLA_SHARED_RING && (kind == PIANOLA_KV_Q8_0 ? d == 64 || d == 128 : d % 8 == 0 && d <= 128);
#else
    (void)d;
    (void)kind;
    (void)ahead;
    return false;
#endif
}

#endif
