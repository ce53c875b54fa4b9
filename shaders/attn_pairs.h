// The work of prefill attention: pairs of a row and a Q head that share K and V, numbered heads
// first.
#ifndef PIANOLA_ATTN_PAIRS_H
#define PIANOLA_ATTN_PAIRS_H

#include "attn.h"

// The initial maximum score of a pair. It is above the score of invisible positions, so that their
// weight is 0.
#define PIANOLA_UNSEEN (0.5f * PIANOLA_LOWEST)

// attn_pairs describes the work of a threadgroup. Its attn_part is the first row's, except that
// begin and end cover the positions of all rows.
struct attn_pairs {
    device const float *q; // row 0 of the first head
    uint q_stride;         // elements of q from one row to the next
    uint out_stride;       // elements of out from one row to the next
    bool aligned;          // the rows of q are aligned to 16 bytes
    uint shared;           // heads that share K and V
    uint first, last;      // first pair of the threadgroup, and last of all pairs
    uint kv_len;           // number of visible positions of row 0, including its own
    uint window;           // largest number of positions that a row sees
};

// pair_row returns the row of a pair, and pair_head its head. Pairs past the last repeat the last.
static inline uint pair_row(thread const attn_pairs &t, uint pair) { return min(pair, t.last) / t.shared; }
static inline uint pair_head(thread const attn_pairs &t, uint pair) { return min(pair, t.last) % t.shared; }

// pair_sees returns the range of positions that a pair sees.
static inline uint2 pair_sees(thread const attn_pairs &t, uint pair) {
    const uint end = t.kv_len + pair_row(t, pair);
    return uint2(end - min(end, t.window), end);
}

// scaled_halves returns 8 int8, multiplied by a scale, as float16.
static inline uint4 scaled_halves(uint2 q, half scale) {
    const half2 by = half2(scale, scale);
    const uint2 low = tile_halves(q.x);
    const uint2 high = tile_halves(q.y);
    return uint4(as_type<uint>(as_type<half2>(low.x) * by), as_type<uint>(as_type<half2>(low.y) * by),
                 as_type<uint>(as_type<half2>(high.x) * by), as_type<uint>(as_type<half2>(high.y) * by));
}

#endif
