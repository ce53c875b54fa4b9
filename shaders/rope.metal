// Rotary position embedding.
#include "pianola.h"
#include "rotate.h"
#include "sequence.h"

// A threadgroup computes the angles of a row. Each product and quotient must be rounded to
// float32 like on the CPU: one unit in the last place of an angle near 131,071 is 0.008.
[[max_total_threads_per_threadgroup(1024)]]
kernel void rope_angles(
        device const float *inv_freq          [[buffer(0)]],
        device const float *factors           [[buffer(1)]],
        device float *out                     [[buffer(2)]],
        constant pianola_rope_angles_params &p [[buffer(8)]],
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
    const float pos = p.still == 0 ? float(position) : position < p.still ? 0.0f : -float(position - (p.still - 1));
    device float *row = out + ulong(group.x) * p.half_ * 2;
    for (uint i = tid; i < p.half_; i += simds * 32) {
        float a = pos * inv_freq[i];
        if (FACTORS != 0) {
            a = precise::divide(a, factors[i]);
        }
        row[2 * i] = precise::cos(a) * p.attn_factor;
        row[2 * i + 1] = precise::sin(a) * p.attn_factor;
    }
}

// A threadgroup rotates one head of one row in place.
[[max_total_threads_per_threadgroup(1024)]]
kernel void rope(
        device float *x                [[buffer(0)]],
        device const float *angles     [[buffer(1)]],
        constant pianola_rope_params &p [[buffer(8)]],
        constant pianola_second &s     [[buffer(9)]],
        device pianola_step *step      [[buffer(10)]],
        uint3 group                    [[threadgroup_position_in_grid]],
        uint tid                       [[thread_index_in_threadgroup]],
        uint simds                     [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.y >= s.rows) {
        return;
    }
    device float *head = x + ulong(group.y) * p.stride + ulong(group.x) * HEAD_DIM;
    device const float *row = angles + ulong(group.y) * p.half_ * 2;
    for (uint i = tid; i < p.half_; i += simds * 32) {
        const uint2 at = rope_pair(i, p.half_, LAYOUT);
        const float2 v = rotate(float2(head[at.x], head[at.y]), float2(row[2 * i], row[2 * i + 1]));
        head[at.x] = v.x;
        head[at.y] = v.y;
    }
}
