// The gated delta rule, and the gate of attention.
#include "recurrent.h"

// The largest number of elements of a key that a lane holds.
#define PIANOLA_KEYS 8

// A SIMD group computes one element of a head's values: its row of the state, of which each lane holds
// every 32nd element, at all rows of the chunk, or at one row of a batch.
[[max_total_threads_per_threadgroup(1024)]]
kernel void delta_rule(
        device const float *x               [[buffer(0)]],
        device const float *gates           [[buffer(1)]],
        device const float *w               [[buffer(2)]],
        device float *out                   [[buffer(3)]],
        device float *state                 [[buffer(4)]],
        constant pianola_delta_rule_params &p [[buffer(8)]],
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
    const uint key_head = p.tiled != 0 ? head % p.key_heads : head / (p.heads / p.key_heads);
    const uint keys = p.key_heads * p.key_dim; // elements of all keys
    const ulong size = ulong(p.heads) * p.value_dim * p.key_dim;
    const float rate = DECAY == PIANOLA_DECAY_LOG ? exp(w[head]) : -w[head];
    const float shift = w[p.heads + head];
    const float scale = precise::rsqrt(float(p.key_dim));
    const uint last = min(p.value_dim, (group.x + 1) * p.group);
    for (uint i = group.x * p.group + simd; i < last; i += simds) {
        const ulong row = (ulong(head) * p.value_dim + i) * p.key_dim;
        device const float *from = state + size * of.entry(at.begin) + row;
        float h[PIANOLA_KEYS];
        PIANOLA_UNROLL
        for (uint j = 0; j < PIANOLA_KEYS; j++) {
            h[j] = at.begin != 0 && lane + 32 * j < p.key_dim ? from[lane + 32 * j] : 0.0f;
        }
        uint stored = next_stored(at.begin, at.end, p.each);
        for (uint r = at.first; r < at.first + at.rows; r++) {
            device const float *in = x + ulong(r) * p.x_stride;
            device const float *qs = in + key_head * p.key_dim;
            device const float *ks = qs + keys;
            float q[PIANOLA_KEYS];
            float k[PIANOLA_KEYS];
            float qq = 0.0f;
            float kk = 0.0f;
            float kh = 0.0f;
            PIANOLA_UNROLL
            for (uint j = 0; j < PIANOLA_KEYS; j++) {
                const uint e = lane + 32 * j;
                q[j] = e < p.key_dim ? qs[e] : 0.0f;
                k[j] = e < p.key_dim ? ks[e] : 0.0f;
                qq += q[j] * q[j];
                kk += k[j] * k[j];
                kh += k[j] * h[j];
            }
            const float q_scale = precise::rsqrt(simd_sum(qq) + p.eps) * scale;
            const float k_scale = precise::rsqrt(simd_sum(kk) + p.eps);
            kh = simd_sum(kh) * k_scale;
            device const float *gate = gates + ulong(r) * p.gate_stride;
            const float a = gate[p.heads + head] + shift;
            const float soft = a > 20.0f ? a : log(1.0f + exp(a));
            const float keep = exp(-rate * soft);
            const float beta = 1.0f / (1.0f + exp(-gate[head]));
            const float delta = (in[2 * keys + head * p.value_dim + i] - keep * kh) * beta * k_scale;
            float y = 0.0f;
            PIANOLA_UNROLL
            for (uint j = 0; j < PIANOLA_KEYS; j++) {
                h[j] = keep * h[j] + delta * k[j];
                y += q[j] * h[j];
            }
            y = simd_sum(y) * q_scale;
            if (lane == 0) {
                out[(ulong(r) * p.heads + head) * p.value_dim + i] = y;
            }
            if (at.begin + r - at.first + 1 == stored) {
                device float *to = state + size * of.entry(stored) + row;
                PIANOLA_UNROLL
                for (uint j = 0; j < PIANOLA_KEYS; j++) {
                    if (lane + 32 * j < p.key_dim) {
                        to[lane + 32 * j] = h[j];
                    }
                }
                stored = next_stored(stored, at.end, p.each);
            }
        }
    }
}

// A threadgroup processes one row.
[[max_total_threads_per_threadgroup(1024)]]
kernel void sigmoid_mul(
        device float *x                     [[buffer(0)]],
        device const float *gate            [[buffer(1)]],
        constant pianola_sigmoid_mul_params &p [[buffer(8)]],
        constant pianola_second &s          [[buffer(9)]],
        device pianola_step *step           [[buffer(10)]],
        uint3 group                         [[threadgroup_position_in_grid]],
        uint tid                            [[thread_index_in_threadgroup]],
        uint simds                          [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    device float *to = x + ulong(group.x) * p.n;
    device const float *from = gate + ulong(group.x) * p.gate_stride;
    for (uint i = tid; i < p.n; i += simds * 32) {
        to[i] = to[i] / (1.0f + exp(-from[i]));
    }
}
