// The selective state space of Mamba-2, and what surrounds it.
#include "norm.h"
#include "recurrent.h"

// The largest number of elements of a row of the state that a lane holds.
#define PIANOLA_COLUMNS 8

// A SIMD group computes one element of a head: its row of the state, of which each lane holds every 32nd
// element, at all rows of the chunk, or at one row of a batch.
[[max_total_threads_per_threadgroup(1024)]]
kernel void ssm_scan(
        device const float *x               [[buffer(0)]],
        device const float *steps           [[buffer(1)]],
        device const float *w               [[buffer(2)]],
        device float *out                   [[buffer(3)]],
        device float *state                 [[buffer(4)]],
        constant pianola_ssm_scan_params &p [[buffer(8)]],
        constant pianola_second &s          [[buffer(9)]],
        device pianola_step *step           [[buffer(10)]],
        uint3 group                         [[threadgroup_position_in_grid]],
        uint lane                           [[thread_index_in_simdgroup]],
        uint simd                           [[simdgroup_index_in_threadgroup]],
        uint simds                          [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.z >= (SEQUENCES == PIANOLA_SEQUENCES_MANY ? s.rows : 1) || row_stopped(step, group.z, SEQUENCES)) {
        return;
    }
    const stretch at = row_stretch(step, group.z, SEQUENCES, s.index, s.rows);
    const states of = row_states(step, group.z, SEQUENCES, p.tables, p.table, p.pool, p.live, p.saved);
    const uint head = group.y;
    const ulong size = ulong(p.heads) * p.head_dim * p.state_dim;
    const uint b_at = p.heads * p.head_dim + head / (p.heads / p.groups) * p.state_dim;
    const float rate = DECAY == PIANOLA_DECAY_LOG ? exp(w[head]) : -w[head];
    const float shift = w[p.heads + head], pass = w[2 * p.heads + head];
    const uint last = min(p.head_dim, (group.x + 1) * p.group);
    for (uint i = group.x * p.group + simd; i < last; i += simds) {
        const ulong row = (ulong(head) * p.head_dim + i) * p.state_dim;
        device const float *from = state + size * of.entry(at.begin) + row;
        float h[PIANOLA_COLUMNS];
        PIANOLA_UNROLL
        for (uint j = 0; j < PIANOLA_COLUMNS; j++) {
            h[j] = at.begin != 0 && lane + 32 * j < p.state_dim ? from[lane + 32 * j] : 0.0f;
        }
        uint stored = next_stored(at.begin, at.end, p.each);
        for (uint r = at.first; r < at.first + at.rows; r++) {
            device const float *in = x + ulong(r) * p.x_stride;
            device const float *b = in + b_at;
            device const float *c = b + p.groups * p.state_dim;
            const float a = steps[ulong(r) * p.step_stride + head] + shift;
            const float length = min(max(a > 20.0f ? a : log(1.0f + exp(a)), p.step_min), p.step_max);
            const float keep = exp(-rate * length);
            const float v = in[head * p.head_dim + i];
            const float add = length * v;
            float y = 0.0f;
            PIANOLA_UNROLL
            for (uint j = 0; j < PIANOLA_COLUMNS; j++) {
                if (lane + 32 * j < p.state_dim) {
                    h[j] = keep * h[j] + add * b[lane + 32 * j];
                    y += c[lane + 32 * j] * h[j];
                }
            }
            y = simd_sum(y);
            if (lane == 0) {
                out[(ulong(r) * p.heads + head) * p.head_dim + i] = y + pass * v;
            }
            if (at.begin + r - at.first + 1 == stored) {
                device float *to = state + size * of.entry(stored) + row;
                PIANOLA_UNROLL
                for (uint j = 0; j < PIANOLA_COLUMNS; j++) {
                    if (lane + 32 * j < p.state_dim) {
                        to[lane + 32 * j] = h[j];
                    }
                }
                stored = next_stored(stored, at.end, p.each);
            }
        }
    }
}

// A threadgroup processes a group of a row. A thread reads and writes the same elements in each pass.
[[max_total_threads_per_threadgroup(1024)]]
kernel void gated_norm(
        device float *x                       [[buffer(0)]],
        device const float *gate              [[buffer(1)]],
        device const float *w                 [[buffer(2)]],
        constant pianola_gated_norm_params &p [[buffer(8)]],
        constant pianola_second &s            [[buffer(9)]],
        device pianola_step *step             [[buffer(10)]],
        threadgroup uchar *tg                 [[threadgroup(0)]],
        uint3 group                           [[threadgroup_position_in_grid]],
        uint tid                              [[thread_index_in_threadgroup]],
        uint lane                             [[thread_index_in_simdgroup]],
        uint simd                             [[simdgroup_index_in_threadgroup]],
        uint simds                            [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.y >= s.rows) {
        return;
    }
    device float *to = x + (ulong(group.y) * p.groups + group.x) * p.n;
    device const float *g = gate + ulong(group.y) * p.gate_stride + group.x * p.n;
    float sum = 0.0f;
    for (uint i = tid; i < p.n; i += simds * 32) {
        float v = to[i];
        if (GATE != PIANOLA_GATE_AFTER) {
            v = v * (g[i] / (1.0f + exp(-g[i])));
            to[i] = v;
        }
        sum += v * v;
    }
    if (GATE == PIANOLA_GATE_ALONE) {
        return;
    }
    sum = threadgroup_sum(sum, (threadgroup float *)tg, lane, simd, simds);
    const float scale = precise::rsqrt(sum / float(p.n) + p.eps);
    device const float *weights = w + group.x * p.n;
    for (uint i = tid; i < p.n; i += simds * 32) {
        float v = to[i] * scale * weights[i];
        if (GATE == PIANOLA_GATE_AFTER) {
            v = v * (g[i] / (1.0f + exp(-g[i])));
        }
        to[i] = v;
    }
}

// A threadgroup processes one row.
[[max_total_threads_per_threadgroup(1024)]]
kernel void scale_columns(
        device float *x                          [[buffer(0)]],
        device const float *w                    [[buffer(1)]],
        constant pianola_scale_columns_params &p [[buffer(8)]],
        constant pianola_second &s               [[buffer(9)]],
        device pianola_step *step                [[buffer(10)]],
        uint3 group                              [[threadgroup_position_in_grid]],
        uint tid                                 [[thread_index_in_threadgroup]],
        uint simds                               [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    device float *to = x + ulong(group.x) * p.stride;
    for (uint i = tid; i < p.n; i += simds * 32) {
        to[i] *= w[i];
    }
}
