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

// tile_rows are rows of a threadgroup: count from first on, of those before end. Their pairs are divided among
// groups threadgroups, of which this is number part. If count is 0, there is nothing to compute.
struct tile_rows {
    uint first, count, end, groups, part;
};

// next_rows sets the rows to the next that follow each other in a sequence, from first on. If joined, those that are the
// only ones of their sequence are left out. All lanes get the same rows.
static inline void next_rows(thread tile_rows &r, device pianola_step *step, bool joined, uint lane) {
    uint first = r.end;
    for (uint i = r.first + lane; i < r.end; i += 32) {
        if (!row_stopped(step, i, PIANOLA_SEQUENCES_MANY) && (!joined || row_joined(step, i))) {
            first = i;
            break;
        }
    }
    r.first = simd_min(first);
    uint end = r.end;
    for (uint i = r.first + 1 + lane; i < r.end; i += 32) {
        if (!row_follows(step, i)) {
            end = i;
            break;
        }
    }
    r.count = simd_min(end) - r.first;
}

// tile_rows_of returns the first rows of threadgroup number at, which computes up to each pairs at once. Rows of
// different sequences share no positions, so of a batch these are a row and those that follow it in its sequence,
// up to the next multiple of the rows that have each pairs. If joined, a threadgroup computes all rows between two
// multiples, one sequence after the other, but for those that are the only ones of their sequence.
static inline tile_rows tile_rows_of(device pianola_step *step, uint at, uint sequences, uint rows, uint shared, uint each, bool joined, uint lane) {
    if (sequences != PIANOLA_SEQUENCES_MANY) {
        const uint groups = (rows * shared + each - 1) / each;
        return {0, at < groups ? rows : 0, 0, groups, at};
    }
    const uint parts = (shared + each - 1) / each;
    const uint some = max(each / shared, 1u);
    const uint place = at / parts;
    tile_rows r = {place, 0, min((place / some + 1) * some, rows), parts, at % parts};
    if (joined) {
        const uint all = (rows + some - 1) / some;
        if (place >= all) {
            return r;
        }
        r.first = (all - 1 - place) * some; // rows of prompts are the last, and take longest
        r.end = min(r.first + some, rows);
    } else if (place >= rows || row_stopped(step, place, sequences) || (place % some != 0 && row_follows(step, place))) {
        return r;
    }
    next_rows(r, step, joined, lane);
    if (!joined) {
        r.end = r.first + r.count;
    }
    return r;
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
