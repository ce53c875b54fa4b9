// Splits of attention, and the merging of their results.
#ifndef PIANOLA_MERGE_H
#define PIANOLA_MERGE_H

#include "pianola.h"

// split_each returns the number of positions per split of a row that sees visible positions:
// visible divided by the largest power of two that is at most splits, rounded up to a multiple of
// 16, and at least span. The last split in use may have fewer positions; splits after it have
// none.
static inline uint split_each(uint visible, uint splits, uint span) {
    const uint shift = 31 - clz(splits);
    const uint even = (visible + (1u << shift) - 1) >> shift;
    return max(span, (even + 15) / 16 * 16);
}

// split_row describes the partial results of a row's splits.
struct split_row {
    device const float *values; // [heads, splits, head_dim]
    device const float *states; // [heads, splits, 2]: maximum, weight
    uint heads, head_dim, splits;
    uint span, window;
    uint visible, each; // visible positions of the row, and positions per split; set by split_sees
};

// split_visible returns the number of positions that a row sees. A window of 0 means no window.
static inline uint split_visible(uint kv_len, uint window) {
    const uint len = max(kv_len, 1u);
    return window == 0 ? len : min(len, window);
}

// split_sees sets the numbers of visible positions.
static inline void split_sees(thread split_row &s, uint kv_len) {
    s.visible = split_visible(kv_len, s.window);
    s.each = split_each(s.visible, max(s.splits, 1u), s.span);
}

// PIANOLA_SPLITS is the largest number of splits that a product merges.
#define PIANOLA_SPLITS 8

// split_reads holds the partial results of four elements.
struct split_reads {
    float4 values[PIANOLA_SPLITS];
    float2 states[PIANOLA_SPLITS];
};

// load_splits reads the partial results of elements 4i to 4i+3 of a row whose heads follow one
// another. It skips splits without positions and gives them weight 0.
static inline void load_splits(thread split_reads &r, thread const split_row &s, uint i) {
    const uint each = s.head_dim / 4;
    // Adding 0.5 keeps the quotient at least 0.5/each away from an integer, so rounding errors
    // do not change the result.
    const uint head = min(uint((float(i) + 0.5f) / float(each)), s.heads - 1);
    device const float4 *values = (device const float4 *)s.values + head * s.splits * each + (i - head * each);
    device const float2 *states = (device const float2 *)s.states + head * s.splits;
    PIANOLA_UNROLL
    for (uint j = 0; j < PIANOLA_SPLITS; j++) {
        r.values[j] = float4(0.0f);
        r.states[j] = float2(-1e30f, 0.0f);
        if (j * s.each < s.visible) {
            r.values[j] = values[j * each];
            r.states[j] = states[j];
        }
    }
}

// merge_splits returns the four merged elements.
static inline float4 merge_splits(thread const split_reads &r) {
    float top = r.states[0].x;
    PIANOLA_UNROLL
    for (uint j = 1; j < PIANOLA_SPLITS; j++) {
        top = max(top, r.states[j].x);
    }
    float4 value = float4(0.0f);
    float weight = 0.0f;
    PIANOLA_UNROLL
    for (uint j = 0; j < PIANOLA_SPLITS; j++) {
        const float factor = exp(r.states[j].x - top);
        value += r.values[j] * factor;
        weight += r.states[j].y * factor;
    }
    return value * (weight > 0.0f ? 1.0f / weight : 0.0f);
}

#endif
