// Tiles of the products of a chunk with the matrices of its experts.
#ifndef PIANOLA_EXPERT_TILE_H
#define PIANOLA_EXPERT_TILE_H

#include "pianola.h"

// expert_tile is a tile of an expert: its products from first to last-1 in the list.
struct expert_tile {
    uint expert, first, last;
};

// PIANOLA_EXPERT_LOADS is the number of experts whose products a lane loads at once.
#define PIANOLA_EXPERT_LOADS 4

// expert_tile_of returns tile number n of the tiles of all experts, of rows products each. If there are not so
// many, expert is the number of experts. All lanes of a SIMD group must call it.
static inline expert_tile expert_tile_of(device const uint *list, uint experts, uint rows, uint n, uint lane) {
    for (uint first = 0; first < experts; first += 32 * PIANOLA_EXPERT_LOADS) {
        uint begin[PIANOLA_EXPERT_LOADS];
        uint end[PIANOLA_EXPERT_LOADS];
        PIANOLA_UNROLL
        for (uint k = 0; k < PIANOLA_EXPERT_LOADS; k++) {
            begin[k] = list[min(first + 32 * k + lane, experts)];
            end[k] = list[min(first + 32 * k + lane + 1, experts)];
        }
        // The 32 experts that have the tile, and its number among theirs.
        bool found = false;
        uint low = 0;
        uint from = 0;
        uint to = 0;
        PIANOLA_UNROLL
        for (uint k = 0; k < PIANOLA_EXPERT_LOADS; k++) {
            const uint all = simd_sum((end[k] - begin[k] + rows - 1) / rows);
            if (!found && n < all) {
                found = true;
                low = first + 32 * k;
                from = begin[k];
                to = end[k];
            } else if (!found) {
                n -= all;
            }
        }
        if (found) {
            const uint tiles = (to - from + rows - 1) / rows;
            const uint sum = simd_prefix_inclusive_sum(tiles);
            // The lane of the expert is the first whose sum is greater than n.
            const uint owner = simd_sum(sum <= n ? 1u : 0u);
            const uint at = simd_shuffle(from, ushort(owner)) + (n - simd_shuffle(sum - tiles, ushort(owner))) * rows;
            return {low + owner, at, min(at + rows, simd_shuffle(to, ushort(owner)))};
        }
    }
    return {experts, 0, 0};
}

#endif
