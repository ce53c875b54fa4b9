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

// head_squares returns the sum of squares of every step-th element from first on.
static inline float head_squares(thread const head_turn &h, uint first, uint step) {
    float sum = 0.0f;
    for (uint i = first; i < h.d; i += step) {
        sum += h.x[i] * h.x[i];
    }
    return sum;
}

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

// cache_row returns the row of the cache for row r of a chunk. kv_len is the KV length of the
// chunk's first row. Positions below first, the attention sinks, have rows of their own before
// the ring.
static inline ulong cache_row(uint r, uint kv_len, uint cap, uint first) {
    const uint position = max(kv_len, 1u) - 1 + r;
    return position < first ? position : first + (position - first) % (cap - first);
}

#endif
