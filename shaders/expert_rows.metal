// What products of the rows of a chunk with the matrices of their experts need: the list of the rows of each
// expert, and the input in float16.
#include "halves.h"

// expert_ids returns the experts of products i to i+3, clamped, and the number of experts for products from
// last on. i is a multiple of 4.
static inline uint4 expert_ids(device const uint *ids, uint i, uint last, uint experts) {
    if (i + 4 <= last) {
        return min(*(device const uint4 *)(ids + i), uint4(experts - 1));
    }
    return uint4(min(ids[i], experts - 1), i + 1 < last ? min(ids[i + 1], experts - 1) : experts, i + 2 < last ? min(ids[i + 2], experts - 1) : experts, experts);
}

// A threadgroup writes the products of one expert, in ascending order. Its first SIMD group does the work: each
// lane counts those among its own products, and then writes them behind those of the lanes before it.
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
    const uint each = (count + 127) / 128 * 4;
    const uint first = min(lane * each, count);
    const uint last = min(first + each, count);
    uint before = 0; // products of the experts before this one
    uint own = 0;
    for (uint i = first; i < last; i += 4) {
        const uint4 e = expert_ids(ids, i, last, p.experts);
        PIANOLA_UNROLL
        for (uint k = 0; k < 4; k++) {
            before += e[k] < group.x ? 1 : 0;
            own += e[k] == group.x ? 1 : 0;
        }
    }
    before = simd_sum(before);
    const uint until = simd_prefix_inclusive_sum(own);
    if (lane == 0) {
        list[group.x] = before;
    }
    if (group.x == p.experts - 1 && lane == 31) {
        list[p.experts] = before + until;
    }
    if (own == 0) {
        return;
    }
    device uint *to = list + p.experts + 1 + before + until - own;
    for (uint i = first; i < last; i += 4) {
        const uint4 e = expert_ids(ids, i, last, p.experts);
        PIANOLA_UNROLL
        for (uint k = 0; k < 4; k++) {
            if (e[k] == group.x) {
                *to = i + k;
                to++;
            }
        }
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
    const halves_row r = {out, padded(p.in), ACT == PIANOLA_ACT_F16 ? 1u : 2u, 0, group.y * p.used + group.x};
    if (INPUT == PIANOLA_INPUT_SILU_MUL) {
        make_halves<PIANOLA_FROM_PRODUCT, true>(r, a, 1.0f, true, tg, lane, simd, simds);
    } else {
        make_halves<PIANOLA_FROM_ROW, true>(r, a, 1.0f, true, tg, lane, simd, simds);
    }
}
