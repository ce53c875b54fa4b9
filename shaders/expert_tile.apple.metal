// Products of the rows of a chunk with the matrices of their experts, for Apple GPUs. The rows of each
// expert are multiplied together.
#include "simd_tile.h"

// A threadgroup writes the products of one expert, in ascending order. Its first SIMD group does the work.
[[max_total_threads_per_threadgroup(1024)]]
kernel void expert_rows(
        device const uint *ids                  [[buffer(0)]],
        device uint *list                       [[buffer(1)]],
        constant pianola_expert_rows_params &p  [[buffer(8)]],
        constant pianola_second &s              [[buffer(9)]],
        device pianola_step *step               [[buffer(10)]],
        uint3 group                             [[threadgroup_position_in_grid]],
        uint lane                               [[thread_index_in_simdgroup]],
        uint simd                               [[simdgroup_index_in_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= p.experts || simd != 0) {
        return;
    }
    const uint count = s.rows * p.used;
    uint before = 0; // products of the experts before this one
    for (uint i = lane; i < count; i += 32) {
        before += min(ids[i], p.experts - 1) < group.x ? 1 : 0;
    }
    before = simd_sum(before);
    if (lane == 0) {
        list[group.x] = before;
    }
    device uint *to = list + p.experts + 1 + before;
    uint found = 0;
    for (uint first = 0; first < count; first += 32) {
        const uint i = first + lane;
        const uint own = i < count && min(ids[i], p.experts - 1) == group.x ? 1 : 0;
        const uint sum = simd_prefix_inclusive_sum(own);
        if (own != 0) {
            to[found + sum - 1] = i;
        }
        found += simd_shuffle(sum, ushort(31));
    }
    if (group.x == p.experts - 1 && lane == 0) {
        list[p.experts] = before + found;
    }
}

// A threadgroup converts one input of a row.
[[max_total_threads_per_threadgroup(1024)]]
kernel void expert_halves(
        device const float *x                    [[buffer(0)]],
        device const float *x2                   [[buffer(1)]],
        device uchar *out                        [[buffer(2)]],
        constant pianola_expert_halves_params &p [[buffer(8)]],
        constant pianola_second &s               [[buffer(9)]],
        device pianola_step *step                [[buffer(10)]],
        threadgroup uchar *tg                    [[threadgroup(0)]],
        uint3 group                              [[threadgroup_position_in_grid]],
        uint lane                                [[thread_index_in_simdgroup]],
        uint simd                                [[simdgroup_index_in_threadgroup]],
        uint simds                               [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.y >= s.rows) {
        return;
    }
    product a;
    a.x = x;
    a.x2 = x2;
    a.in = p.in;
    a.x_stride = p.x_stride;
    a.activation = ACTIVATION;
    a.limit = p.limit;
    const uint terms = ACT == PIANOLA_ACT_F16 ? 1 : 2;
    const uint row = group.y * p.used + group.x;
    if (INPUT == PIANOLA_INPUT_SILU_MUL) {
        make_halves<PIANOLA_FROM_PRODUCT, true>(out, a, 1.0f, terms, 0, row, tg, lane, simd, simds);
    } else {
        make_halves<PIANOLA_FROM_ROW, true>(out, a, 1.0f, terms, 0, row, tg, lane, simd, simds);
    }
}

// expert_tile is a tile of an expert: its products from first to last-1 in the list.
struct expert_tile {
    uint expert, first, last;
};

// expert_tile_of returns tile number n of the tiles of all experts, of rows products each. If there are not so
// many, expert is the number of experts. All lanes of a SIMD group must call it.
static inline expert_tile expert_tile_of(device const uint *list, uint experts, uint rows, uint n, uint lane) {
    for (uint first = 0; first < experts; first += 32) {
        const uint e = first + lane;
        const uint begin = list[min(e, experts)];
        const uint end = list[min(e + 1, experts)];
        const uint tiles = (end - begin + rows - 1) / rows;
        const uint sum = simd_prefix_inclusive_sum(tiles);
        const uint all = simd_shuffle(sum, ushort(31));
        if (n < all) {
            // The lane of the expert is the first whose sum is greater than n.
            uint owner = simd_sum(sum <= n ? 1u : 0u);
            const uint at = simd_shuffle(begin, ushort(owner)) + (n - simd_shuffle(sum - tiles, ushort(owner))) * rows;
            return {first + owner, at, min(at + rows, simd_shuffle(end, ushort(owner)))};
        }
        n -= all;
    }
    return {experts, 0, 0};
}

// A threadgroup computes rows of one expert's matrix for some of the expert's products.
[[max_total_threads_per_threadgroup(256)]]
kernel void expert_gemm(
        device const uchar *x                  [[buffer(0)]],
        device const uchar *w                  [[buffer(1)]],
        device const float *b                  [[buffer(2)]],
        device const uint *list                [[buffer(3)]],
        device float *y                        [[buffer(4)]],
        constant pianola_expert_gemm_params &p [[buffer(8)]],
        constant pianola_second &s             [[buffer(9)]],
        device pianola_step *step              [[buffer(10)]],
        threadgroup uchar *tg                  [[threadgroup(0)]],
        uint3 group                            [[threadgroup_position_in_grid]],
        uint lane                              [[thread_index_in_simdgroup]],
        uint simd                              [[simdgroup_index_in_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    const uint count = s.rows * p.used;
    const expert_tile t = expert_tile_of(list, p.experts, p.row_group, group.y, lane);
    const uint last = min(t.last, count);
    const uint low = group.x * p.group;
    if (t.first >= last || low >= p.out) {
        return;
    }
    const ulong bytes = is_float(WTYPE_FAMILY) ? ulong(p.out) * p.in * 2 : p.out * row_bytes(WTYPE_FAMILY, p.in, WTYPE);
    const tile_product a = {x, w + t.expert * bytes, b + ulong(t.expert) * p.out, y, p.in, p.y_stride,
                            p.group, low, min(low + p.group, p.out), t.first, last, ACT == PIANOLA_ACT_F16 ? 1u : 2u, BIAS != 0, WTYPE_FAMILY, WTYPE, list + p.experts + 1, count, p.share};
    compute_tile(a, tg, lane, simd);
}
