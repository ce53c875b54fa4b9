// Rows of float16 activations and the products with them, for Apple GPUs. The kernels halves and
// add_rmsnorm_halves are those of halves.metal. gemm_halves uses SIMD-group matrices.
#include "simd_tile.h"

[[max_total_threads_per_threadgroup(1024)]]
kernel void halves(
        device const float *x             [[buffer(0)]],
        device const float *x2            [[buffer(1)]],
        device uchar *out                 [[buffer(2)]],
        constant pianola_halves_params &p [[buffer(8)]],
        constant pianola_second &s        [[buffer(9)]],
        device pianola_step *step         [[buffer(10)]],
        threadgroup uchar *tg             [[threadgroup(0)]],
        uint3 group                       [[threadgroup_position_in_grid]],
        uint lane                         [[thread_index_in_simdgroup]],
        uint simd                         [[simdgroup_index_in_threadgroup]],
        uint simds                        [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    product a;
    a.x = x;
    a.x2 = x2;
    a.in = p.in;
    a.x_stride = p.x_stride;
    a.activation = ACTIVATION;
    const bool aligned = p.x_stride % 4 == 0;
    const halves_row r = {out, padded(p.in), ACT == PIANOLA_ACT_F16 ? 1u : 2u, p.few != 0 ? few_places(s.rows) : 0, group.x};
    if (INPUT == PIANOLA_INPUT_SILU_MUL && aligned) {
        make_halves<PIANOLA_FROM_SILU_MUL, true>(r, a, 1.0f, true, tg, lane, simd, simds);
    } else if (INPUT == PIANOLA_INPUT_SILU_MUL) {
        make_halves<PIANOLA_FROM_SILU_MUL, false>(r, a, 1.0f, true, tg, lane, simd, simds);
    } else if (aligned) {
        make_halves<PIANOLA_FROM_ROW, true>(r, a, 1.0f, true, tg, lane, simd, simds);
    } else {
        make_halves<PIANOLA_FROM_ROW, false>(r, a, 1.0f, true, tg, lane, simd, simds);
    }
}

[[max_total_threads_per_threadgroup(1024)]]
kernel void add_rmsnorm_halves(
        device float *x                               [[buffer(0)]],
        device const float *delta                     [[buffer(1)]],
        device const float *w                         [[buffer(2)]],
        device uchar *out                             [[buffer(3)]],
        constant pianola_add_rmsnorm_halves_params &p [[buffer(8)]],
        constant pianola_second &s                    [[buffer(9)]],
        device pianola_step *step                     [[buffer(10)]],
        threadgroup uchar *tg                         [[threadgroup(0)]],
        uint3 group                                   [[threadgroup_position_in_grid]],
        uint tid                                      [[thread_index_in_threadgroup]],
        uint lane                                     [[thread_index_in_simdgroup]],
        uint simd                                     [[simdgroup_index_in_threadgroup]],
        uint simds                                    [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    const ulong row = ulong(group.x) * p.n;
    // A thread reads only elements that it wrote itself, so no barrier is needed.
    add_to(x + row, delta + row, or_one(p.delta_scale), p.n, tid, simds * 32);
    const float sum = row_squares(x + row, p.n, (threadgroup float *)tg, tid, simds * 32, lane);
    product a;
    a.x = x;
    a.x2 = w;
    a.in = p.n;
    a.x_stride = p.n;
    const halves_row r = {out, padded(p.n), 1, p.few != 0 ? few_places(s.rows) : 0, group.x};
    make_halves<PIANOLA_FROM_NORM, true>(r, a, precise::rsqrt(sum / float(p.n) + p.eps) * or_one(p.scale), true, tg + 4 * square_parts(p.n), lane, simd, simds);
}

[[max_total_threads_per_threadgroup(256)]]
kernel void gemm_halves(
        device const uchar *x                  [[buffer(0)]],
        device const uchar *w                  [[buffer(1)]],
        device const float *b                  [[buffer(2)]],
        device float *y                        [[buffer(3)]],
        device const uchar *maps               [[buffer(4)]],
        constant pianola_gemm_halves_params &p [[buffer(8)]],
        constant pianola_second &s             [[buffer(9)]],
        device pianola_step *step              [[buffer(10)]],
        threadgroup uchar *tg                  [[threadgroup(0)]],
        uint3 group                            [[threadgroup_position_in_grid]],
        uint3 groups                           [[threadgroups_per_grid]],
        uint lane                              [[thread_index_in_simdgroup]],
        uint simd                              [[simdgroup_index_in_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    (void)maps; // only GPUs with a copy unit have descriptors
    // Threadgroups that run at the same time share rows of W: all rows of x
    // with some rows of W come first, then all rows of x with the next.
    const uint at = group.y * groups.x + group.x;
    const uint across = (s.rows + p.row_group - 1) / p.row_group;
    const uint low = at / across * p.group;
    if (low >= p.out) {
        return;
    }
    const uint first = at % across * p.row_group;
    const tile_product a = {x, w, b, y, p.in, p.y_stride, p.group, low, min(low + p.group, p.out), first, min(first + p.row_group, s.rows),
                            ACT == PIANOLA_ACT_F16 ? 1u : 2u, BIAS != 0, WTYPE_FAMILY, WTYPE, (device const uint *)x, 0, 1};
    compute_tile(a, tg, lane, simd);
}
