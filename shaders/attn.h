// What decode and prefill attention share.
#ifndef PIANOLA_ATTN_H
#define PIANOLA_ATTN_H

#include "pianola.h"

// Loops over private arrays must be unrolled, or they are in memory.
#define PIANOLA_UNROLL _Pragma("clang loop unroll(full)")

// The maximum of no scores, and the score of a position that is not seen. Its
// distance to any score is finite.
#define PIANOLA_LOWEST (-1e30f)

// attn_part is some heads of a row that share K and V, over some positions.
// Scores are in units of log 2: scale has the factor.
struct attn_part {
    device const half *k;  // [cap, d]
    device const half *v;  // [cap, d]
    device float *out;     // of the first head
    uint stride;           // elements of out from one head to the next
    uint d;                // elements of a head
    uint heads;            // at least 1
    uint begin, end;       // positions
    uint cap;              // rows of the cache, 0 if positions do not wrap
    bool split;            // write maximum and weight too, and do not divide
    float scale;           // factor of Q·K
    // The newest position, if it is seen and not in the cache: [d] each. It is
    // not among begin to end-1, of which there may then be none, 0 to 0.
    bool fresh;
    threadgroup const half *new_k;
    threadgroup const half *new_v;
};

// cache_at returns the first element of a position's row in k and v. Positions
// that are not there are replaced by one that is.
static inline ulong cache_at(thread const attn_part &a, uint position) {
    const uint p = clamp(position, a.begin, a.end - 1);
    return ulong(a.cap == 0 ? p : p % a.cap) * a.d;
}

// half8 widens 8 halves that were loaded as 16 bytes.
static inline void half8(uint4 words, thread float *x) {
    PIANOLA_UNROLL
    for (uint i = 0; i < 4; i++) {
        const float2 pair = float2(as_type<half2>(words[i]));
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
    }
}

// attn_write_empty writes what attn_merge wants to know of a split that sees
// no position.
static inline void attn_write_empty(thread const attn_part &a, uint tid, uint threads) {
    for (uint h = tid; h < a.heads; h += threads) {
        a.out[h * a.stride + a.d] = PIANOLA_LOWEST;
        a.out[h * a.stride + a.d + 1] = 0.0f;
    }
}

// attn_partial returns where a SIMD group leaves its sum of n elements of a
// head in threadgroup memory; the maximum and the weight are behind them.
static inline threadgroup float *attn_partial(threadgroup float *tg, uint i, uint n) { return tg + i * (n + 4); }

// attn_gather writes n elements, from element first on, of the output of some
// heads: the merged sums of all SIMD groups, in their order.
static inline void attn_gather(thread const attn_part &a, uint head, uint heads, uint first, uint n, threadgroup float *tg, uint tid, uint simds) {
    for (uint e = tid; e < heads * n; e += simds * 32) {
        const uint h = e / n;
        const uint i = e % n;
        threadgroup const float *from = attn_partial(tg, h * simds, n);
        float top = PIANOLA_LOWEST;
        for (uint s = 0; s < simds; s++) {
            top = max(top, from[s * (n + 4) + n]);
        }
        float value = 0.0f;
        float weight = 0.0f;
        for (uint s = 0; s < simds; s++) {
            const float factor = exp2(from[s * (n + 4) + n] - top);
            value += from[s * (n + 4) + i] * factor;
            weight += from[s * (n + 4) + n + 1] * factor;
        }
        device float *out = a.out + (head + h) * a.stride;
        if (a.split) {
            out[first + i] = value;
            if (first + i == 0) {
                out[a.d] = top * M_LN2_F;
                out[a.d + 1] = weight;
            }
        } else {
            out[first + i] = weight > 0.0f ? value / weight : 0.0f;
        }
    }
}

#endif
