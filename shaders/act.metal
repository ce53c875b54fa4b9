// Activation functions.
#include "silu.h"

// gelu_erf returns GELU defined by the normal distribution, with a polynomial approximation
// (Abramowitz and Stegun, 7.1.26).
static inline float gelu_erf(float x) {
    const float t = fast::divide(1.0f, 1.0f + 0.231641888f * abs(x));
    const float y = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    const float phi = 0.5f * y * exp(max(-0.5f * x * x, -88.0f));
    return x * (x > 0.0f ? 1.0f - phi : phi);
}

// relu_squared returns the square of x, or 0 if x is negative.
static inline float relu_squared(float x) {
    const float y = max(x, 0.0f);
    return y * y;
}

// A threadgroup processes one row.
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
    if (ACTIVATION == PIANOLA_ACTIVATION_CLAMPED_SWIGLU) {
        for (uint i = tid; i < p.n; i += simds * 32) {
            to[i] = swiglu(g[i], u[i], p.limit);
        }
        return;
    }
    if (ACTIVATION == PIANOLA_ACTIVATION_GELU) {
        for (uint i = tid; i < p.n; i += simds * 32) {
            to[i] = gelu_erf(g[i]) * u[i];
        }
        return;
    }
    if (ACTIVATION == PIANOLA_ACTIVATION_RELU_SQUARED) {
        for (uint i = tid; i < p.n; i += simds * 32) {
            to[i] = relu_squared(g[i]) * u[i];
        }
        return;
    }
    if (p.n % 4 == 0 && p.stride % 4 == 0) {
        for (uint i = tid; i < p.n / 4; i += simds * 32) {
            const float4 v = ((device const float4 *)g)[i];
            ((device float4 *)to)[i] = gated4(ACTIVATION, v) * ((device const float4 *)u)[i];
        }
        return;
    }
    for (uint i = tid; i < p.n; i += simds * 32) {
        to[i] = gated(ACTIVATION, g[i]) * u[i];
    }
}

// A threadgroup processes a part of a row.
[[max_total_threads_per_threadgroup(1024)]]
kernel void soft_cap(
        device float *x                    [[buffer(0)]],
        constant pianola_soft_cap_params &p [[buffer(8)]],
        constant pianola_second &s         [[buffer(9)]],
        device pianola_step *step          [[buffer(10)]],
        uint3 group                        [[threadgroup_position_in_grid]],
        uint tid                           [[thread_index_in_threadgroup]],
        uint simds                         [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    const uint first = group.x * p.part;
    if (group.y >= s.rows || first >= p.n) {
        return;
    }
    device float *of = x + ulong(group.y) * p.n + first;
    const uint n = min(p.part, p.n - first);
    for (uint i = tid; i < n; i += simds * 32) {
        of[i] = p.cap - fast::divide(2.0f * p.cap, 1.0f + exp(min(2.0f * of[i] / p.cap, 88.0f)));
    }
}

// A threadgroup processes a group of elements of a row.
[[max_total_threads_per_threadgroup(1024)]]
kernel void activate(
        device float *x                    [[buffer(0)]],
        constant pianola_activate_params &p [[buffer(8)]],
        constant pianola_second &s         [[buffer(9)]],
        device pianola_step *step          [[buffer(10)]],
        uint3 group                        [[threadgroup_position_in_grid]],
        uint tid                           [[thread_index_in_threadgroup]],
        uint simds                         [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    const uint first = group.x * p.group;
    if (group.y >= s.rows || first >= p.n) {
        return;
    }
    device float *of = x + ulong(group.y) * p.n + first;
    const uint n = min(p.group, p.n - first);
    if (ACTIVATION == PIANOLA_ACTIVATION_RELU_SQUARED) {
        for (uint i = tid; i < n; i += simds * 32) {
            of[i] = relu_squared(of[i]);
        }
        return;
    }
    for (uint i = tid; i < n; i += simds * 32) {
        of[i] = ACTIVATION == PIANOLA_ACTIVATION_GELU ? gelu_erf(of[i]) : gated(ACTIVATION, of[i]);
    }
}
