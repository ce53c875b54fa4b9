// The pairs of elements that RoPE rotates.
#ifndef PIANOLA_ROTATE_H
#define PIANOLA_ROTATE_H

#include "pianola.h"

// rope_pair returns the two elements of pair i of a head.
static inline uint2 rope_pair(uint i, uint pairs, uint layout) {
    return layout == PIANOLA_LAYOUT_INTERLEAVED ? uint2(2 * i, 2 * i + 1) : uint2(i, i + pairs);
}

// rotate turns a pair by an angle's cosine and sine.
static inline float2 rotate(float2 v, float2 cs) {
    return float2(v.x * cs.x - v.y * cs.y, v.y * cs.x + v.x * cs.y);
}

#endif
