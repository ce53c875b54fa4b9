// Factors of rows.
#include "pianola.h"
#include "sequence.h"

// A threadgroup multiplies one row.
[[max_total_threads_per_threadgroup(1024)]]
kernel void scale_rows(
        device float *x                       [[buffer(0)]],
        device const float *factors           [[buffer(1)]],
        constant pianola_scale_rows_params &p [[buffer(8)]],
        constant pianola_second &s            [[buffer(9)]],
        device pianola_step *step             [[buffer(10)]],
        uint3 group                           [[threadgroup_position_in_grid]],
        uint tid                              [[thread_index_in_threadgroup]],
        uint simds                            [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    const uint position = row_position(step, group.x, SEQUENCES, s.index);
    const float factor = factors[min((position + p.offset) / max(p.span, 1u), p.count - 1)];
    device float *row = x + ulong(group.x) * p.stride;
    for (uint i = tid; i < p.n; i += simds * 32) {
        row[i] *= factor;
    }
}
