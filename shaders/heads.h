// Heads of Q, K and V before attention: QK norm, RoPE and their place in the KV cache.
#ifndef PIANOLA_HEADS_H
#define PIANOLA_HEADS_H

#include "rotate.h"

// head_turn describes a head of Q or K that is to be normalised and rotated.
struct head_turn {
    device const float *x;      // [d]
    device const float *w;      // norm weights, [d]
    device const float *angles; // cosine and sine, [pairs, 2]
    uint d, pairs, layout;
    bool norm; // without a norm, w and scale are not used
    float scale;
};

// turned_twos returns the number of pairs of elements in a head: the rotated pairs, and the
// unrotated elements after them, two at a time. A single last element is paired with itself.
static inline uint turned_twos(uint d) { return (d + 1) / 2; }

// turned_at returns the two elements of a pair.
static inline uint2 turned_at(thread const head_turn &h, uint i) {
    const uint2 stay = uint2(2 * i, h.d % 2 == 0 ? 2 * i + 1 : min(2 * i + 1, h.d - 1));
    return i < h.pairs ? rope_pair(i, h.pairs, h.layout) : stay;
}

// turned returns the two elements of turned_at, normalised and rotated.
static inline float2 turned(thread const head_turn &h, uint i, uint2 at) {
    float2 value = float2(h.x[at.x], h.x[at.y]);
    if (h.norm) {
        value = value * h.scale * float2(h.w[at.x], h.w[at.y]);
    }
    if (i < h.pairs) {
        value = rotate(value, float2(h.angles[2 * i], h.angles[2 * i + 1]));
    }
    return value;
}

// PIANOLA_HEAD_TWOS is the number of element pairs of a head that a lane reads at once. A SIMD
// group reads 256 elements.
#define PIANOLA_HEAD_TWOS 4

// head_twos is a lane's share of a head or of 256 elements of it: pairs of elements, their norm
// weights, and the cosine and sine of their angles.
struct head_twos {
    float2 x[PIANOLA_HEAD_TWOS];
    float2 w[PIANOLA_HEAD_TWOS];
    float2 turn[PIANOLA_HEAD_TWOS];
};

// load_twos reads a lane's share, beginning with pair number from. Lanes past the end read the
// last pair, and unrotated elements read the last pair's angle.
static inline void load_twos(thread head_twos &t, thread const head_turn &h, uint from, uint lane) {
    const uint twos = turned_twos(h.d);
    PIANOLA_UNROLL
    for (uint j = 0; j < PIANOLA_HEAD_TWOS; j++) {
        if (from + 32 * j < twos) {
            const uint i = min(from + 32 * j + lane, twos - 1);
            const uint2 at = turned_at(h, i);
            const uint pair = min(i, h.pairs - 1);
            t.x[j] = float2(h.x[at.x], h.x[at.y]);
            t.turn[j] = float2(h.angles[2 * pair], h.angles[2 * pair + 1]);
            t.w[j] = float2(1.0f);
            if (h.norm) {
                t.w[j] = float2(h.w[at.x], h.w[at.y]);
            }
        }
    }
}

// square_twos returns the sum of squares of the lane's elements.
static inline float square_twos(thread const head_twos &t, uint d, uint from, uint lane) {
    const uint twos = turned_twos(d);
    float sum = 0.0f;
    PIANOLA_UNROLL
    for (uint j = 0; j < PIANOLA_HEAD_TWOS; j++) {
        const uint i = from + 32 * j + lane;
        if (from + 32 * j < twos) {
            const float2 x = t.x[j];
            const float squares = d % 2 != 0 && i == twos - 1 ? x.x * x.x : dot(x, x);
            sum += i < twos ? squares : 0.0f;
        }
    }
    return sum;
}

// twos_scale returns the factor of the head's norm, or 1. t holds the first share of the head; if the
// head has several, t holds the last one afterwards. All lanes must call it.
static inline float twos_scale(thread head_twos &t, thread const head_turn &h, float eps, uint lane) {
    if (!h.norm) {
        return 1.0f;
    }
    const uint step = 32 * PIANOLA_HEAD_TWOS;
    float sum = square_twos(t, h.d, 0, lane);
    for (uint from = step; from < turned_twos(h.d); from += step) {
        load_twos(t, h, from, lane);
        sum += square_twos(t, h.d, from, lane);
    }
    return rsqrt(simd_sum(sum) / float(h.d) + eps);
}

// turned_two returns pair i of the head, which is pair j of the lane's share, normalised and
// rotated.
static inline float2 turned_two(thread const head_twos &t, thread const head_turn &h, uint j, uint i, float scale) {
    const float2 value = t.x[j] * scale * t.w[j];
    return i < h.pairs ? rotate(value, t.turn[j]) : value;
}

// cache_row returns the row of the cache for row r of a chunk. kv_len is the KV length of the
// chunk's first row. Positions below first, the attention sinks, have rows of their own before
// the ring.
static inline ulong cache_row(uint r, uint kv_len, uint cap, uint first) {
    const uint position = max(kv_len, 1u) - 1 + r;
    return position < first ? position : first + (position - first) % (cap - first);
}

#endif
