// Activation functions.
#include "silu.h"

// A threadgroup does a row.
[[max_total_threads_per_threadgroup(1024)]]
kernel void silu_mul(
        device const float *gate           [[buffer(0)]],
        device const float *up             [[buffer(1)]],
        device float *out                  [[buffer(2)]],
        constant pianola_silu_mul_params &p [[buffer(8)]],
        constant pianola_second &s         [[buffer(9)]],
        device pianola_step *step          [[buffer(10)]],
        uint3 group                        [[threadgroup_position_in_grid]],
        uint tid                           [[thread_index_in_threadgroup]],
        uint simds                         [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    device const float *g = gate + ulong(group.x) * p.stride;
    device const float *u = up + ulong(group.x) * p.stride;
    device float *to = out + ulong(group.x) * p.n;
    if (p.n % 4 == 0 && p.stride % 4 == 0) {
        for (uint i = tid; i < p.n / 4; i += simds * 32) {
            const float4 v = ((device const float4 *)g)[i];
            ((device float4 *)to)[i] = float4(silu(v.x), silu(v.y), silu(v.z), silu(v.w)) * ((device const float4 *)u)[i];
        }
        return;
    }
    for (uint i = tid; i < p.n; i += simds * 32) {
        to[i] = silu(g[i]) * u[i];
    }
}
