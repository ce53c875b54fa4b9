// Products of the rows of a chunk with the matrices of their experts, for Apple GPUs. The rows of each
// expert are multiplied together.
#include "expert_tile.h"
#include "simd_tile.h"

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
