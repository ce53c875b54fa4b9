// Alternating updates: a residual stream of several copies, which are predicted before a layer and
// corrected after it. Also the cutoff of gates. A threadgroup processes one row; a thread reads and
// writes the same elements throughout.
#include "norm.h"

#define MAX_COPIES 4 // decl.MaxCopies
#define SUMS (1 + MAX_COPIES)

// threadgroup_sums replaces each of SUMS numbers by its sum over all threads. tg must have room for SUMS
// floats per SIMD group.
static inline void threadgroup_sums(thread float *sums, threadgroup float *tg, uint lane, uint simd, uint simds) {
    for (uint k = 0; k < SUMS; k++) {
        sums[k] = simd_sum(sums[k]);
    }
    if (simds == 1) {
        return;
    }
    if (lane == 0) {
        for (uint k = 0; k < SUMS; k++) {
            tg[simd * SUMS + k] = sums[k];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < SUMS; k++) {
        sums[k] = simd_sum(lane < simds ? tg[lane * SUMS + k] : 0.0f);
    }
}

// tanh_of returns the hyperbolic tangent of x.
static inline float tanh_of(float x) { return 1.0f - fast::divide(2.0f, 1.0f + exp(min(2.0f * x, 88.0f))); }

// route sets m to the router's result for x, a number for each copy and 0 for those that do not exist.
static inline void route_copies(thread float *m, device const float *x, device const float *router, uint n, uint copies, float eps,
                                threadgroup float *tg, uint tid, uint lane, uint simd, uint simds) {
    float sums[SUMS] = {};
    for (uint i = tid; i < n; i += simds * 32) {
        const float v = x[i];
        const float weighted = v * router[i];
        sums[0] += v * v;
        for (uint k = 0; k < MAX_COPIES; k++) {
            if (k < copies) {
                sums[1 + k] += weighted * router[(1 + k) * n + i];
            }
        }
    }
    threadgroup_sums(sums, tg, lane, simd, simds);
    const float scale = precise::rsqrt(sums[0] / float(n) + eps) / float(n);
    for (uint k = 0; k < MAX_COPIES; k++) {
        m[k] = k < copies ? tanh_of(sums[1 + k] * scale) : 0.0f;
    }
}

// coefficient returns the product of row i of the coefficients with m.
static inline float coefficient(device const float *coefs, uint i, uint copies, thread const float *m) {
    float sum = 0.0f;
    for (uint k = 0; k < MAX_COPIES; k++) {
        if (k < copies) {
            sum += coefs[i * copies + k] * m[k];
        }
    }
    return sum;
}

[[max_total_threads_per_threadgroup(1024)]]
kernel void altup_predict(
        device float *x                          [[buffer(0)]],
        device float *rest                       [[buffer(1)]],
        device const float *router               [[buffer(2)]],
        device const float *coefs                [[buffer(3)]],
        device float *active                     [[buffer(4)]],
        constant pianola_altup_predict_params &p [[buffer(8)]],
        constant pianola_second &s               [[buffer(9)]],
        device pianola_step *step                [[buffer(10)]],
        threadgroup uchar *tg                    [[threadgroup(0)]],
        uint3 group                              [[threadgroup_position_in_grid]],
        uint tid                                 [[thread_index_in_threadgroup]],
        uint lane                                [[thread_index_in_simdgroup]],
        uint simd                                [[simdgroup_index_in_threadgroup]],
        uint simds                               [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    device float *of = x + ulong(group.x) * p.n;
    device float *others = rest + ulong(group.x) * (p.copies - 1) * p.n;
    device float *to = active + ulong(group.x) * p.n;
    float m[MAX_COPIES];
    route_copies(m, of, router, p.n, p.copies, p.eps, (threadgroup float *)tg, tid, lane, simd, simds);
    float c[MAX_COPIES * MAX_COPIES];
    for (uint a = 0; a < MAX_COPIES; a++) {
        for (uint j = 0; j < MAX_COPIES; j++) {
            c[a * MAX_COPIES + j] = a < p.copies && j < p.copies ? coefficient(coefs, a * p.copies + j, p.copies, m) : 0.0f;
        }
    }
    for (uint i = tid; i < p.n; i += simds * 32) {
        float v[MAX_COPIES];
        v[0] = of[i];
        for (uint j = 1; j < MAX_COPIES; j++) {
            v[j] = j < p.copies ? others[(j - 1) * p.n + i] : 0.0f;
        }
        for (uint a = 0; a < MAX_COPIES; a++) {
            float sum = v[a];
            for (uint j = 0; j < MAX_COPIES; j++) {
                sum += c[a * MAX_COPIES + j] * v[j];
            }
            if (a == 0) {
                to[i] = sum;
                of[i] = sum * p.x_scale;
            } else if (a < p.copies) {
                others[(a - 1) * p.n + i] = sum;
            }
        }
    }
}

[[max_total_threads_per_threadgroup(1024)]]
kernel void altup_correct(
        device float *x                          [[buffer(0)]],
        device float *rest                       [[buffer(1)]],
        device const float *active               [[buffer(2)]],
        device const float *router               [[buffer(3)]],
        device const float *coefs                [[buffer(4)]],
        device const float *scale                [[buffer(5)]],
        device float *out                        [[buffer(6)]],
        constant pianola_altup_correct_params &p [[buffer(8)]],
        constant pianola_second &s               [[buffer(9)]],
        device pianola_step *step                [[buffer(10)]],
        threadgroup uchar *tg                    [[threadgroup(0)]],
        uint3 group                              [[threadgroup_position_in_grid]],
        uint tid                                 [[thread_index_in_threadgroup]],
        uint lane                                [[thread_index_in_simdgroup]],
        uint simd                                [[simdgroup_index_in_threadgroup]],
        uint simds                               [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    device float *of = x + ulong(group.x) * p.n;
    device float *others = rest + ulong(group.x) * (p.copies - 1) * p.n;
    device const float *predicted = active + ulong(group.x) * p.n;
    device float *to = out + ulong(group.x) * p.n;
    float m[MAX_COPIES];
    route_copies(m, of, router, p.n, p.copies, p.eps, (threadgroup float *)tg, tid, lane, simd, simds);
    float c[MAX_COPIES];
    for (uint a = 0; a < MAX_COPIES; a++) {
        c[a] = a < p.copies ? 1.0f + coefficient(coefs, a, p.copies, m) : 0.0f;
    }
    for (uint i = tid; i < p.n; i += simds * 32) {
        const float d = of[i] - predicted[i];
        const float v = predicted[i] + c[0] * d;
        of[i] = v;
        to[i] = v * scale[i];
        for (uint a = 1; a < MAX_COPIES; a++) {
            if (a < p.copies) {
                others[(a - 1) * p.n + i] += c[a] * d;
            }
        }
    }
}

[[max_total_threads_per_threadgroup(1024)]]
kernel void altup_add(
        device float *rest                   [[buffer(0)]],
        device const float *delta            [[buffer(1)]],
        device const float *w                [[buffer(2)]],
        constant pianola_altup_add_params &p [[buffer(8)]],
        constant pianola_second &s           [[buffer(9)]],
        device pianola_step *step            [[buffer(10)]],
        threadgroup uchar *tg                [[threadgroup(0)]],
        uint3 group                          [[threadgroup_position_in_grid]],
        uint tid                             [[thread_index_in_threadgroup]],
        uint lane                            [[thread_index_in_simdgroup]],
        uint simds                           [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    device float *others = rest + ulong(group.x) * (p.copies - 1) * p.n;
    device const float *from = delta + ulong(group.x) * p.n;
    const float sum = row_squares(from, p.n, (threadgroup float *)tg, tid, simds * 32, lane);
    const float scale = precise::rsqrt(sum / float(p.n) + p.eps);
    for (uint i = tid; i < p.n; i += simds * 32) {
        const float v = from[i] * scale * w[i];
        for (uint a = 1; a < MAX_COPIES; a++) {
            if (a < p.copies) {
                others[(a - 1) * p.n + i] += v;
            }
        }
    }
}

[[max_total_threads_per_threadgroup(1024)]]
kernel void altup_match(
        device float *x                        [[buffer(0)]],
        device float *rest                     [[buffer(1)]],
        constant pianola_altup_match_params &p [[buffer(8)]],
        constant pianola_second &s             [[buffer(9)]],
        device pianola_step *step              [[buffer(10)]],
        threadgroup uchar *tg                  [[threadgroup(0)]],
        uint3 group                            [[threadgroup_position_in_grid]],
        uint tid                               [[thread_index_in_threadgroup]],
        uint lane                              [[thread_index_in_simdgroup]],
        uint simd                              [[simdgroup_index_in_threadgroup]],
        uint simds                             [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    device float *of = x + ulong(group.x) * p.n;
    device float *others = rest + ulong(group.x) * (p.copies - 1) * p.n;
    float sums[SUMS] = {};
    for (uint i = tid; i < p.n; i += simds * 32) {
        sums[0] += of[i] * of[i];
        for (uint a = 1; a < MAX_COPIES; a++) {
            if (a < p.copies) {
                const float v = others[(a - 1) * p.n + i];
                sums[a] += v * v;
            }
        }
    }
    threadgroup_sums(sums, (threadgroup float *)tg, lane, simd, simds);
    float factors[MAX_COPIES];
    for (uint a = 1; a < MAX_COPIES; a++) {
        factors[a] = precise::sqrt(sums[0] / float(p.n)) * precise::rsqrt(max(sums[a] / float(p.n), p.least));
    }
    for (uint i = tid; i < p.n; i += simds * 32) {
        float sum = 0.0f;
        for (uint a = 1; a < MAX_COPIES; a++) {
            if (a < p.copies) {
                const float v = others[(a - 1) * p.n + i] * factors[a];
                sum += v;
                if (p.merge == 0) {
                    others[(a - 1) * p.n + i] = v;
                }
            }
        }
        if (p.merge != 0) {
            of[i] = (of[i] + sum) / float(p.copies);
        }
    }
}

[[max_total_threads_per_threadgroup(1024)]]
kernel void top_gates(
        device float *x                      [[buffer(0)]],
        constant pianola_top_gates_params &p [[buffer(8)]],
        constant pianola_second &s           [[buffer(9)]],
        device pianola_step *step            [[buffer(10)]],
        threadgroup uchar *tg                [[threadgroup(0)]],
        uint3 group                          [[threadgroup_position_in_grid]],
        uint tid                             [[thread_index_in_threadgroup]],
        uint lane                            [[thread_index_in_simdgroup]],
        uint simd                            [[simdgroup_index_in_threadgroup]],
        uint simds                           [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    device float *of = x + ulong(group.x) * p.stride;
    const uint threads = simds * 32;
    float sum = 0.0f;
    for (uint i = tid; i < p.n; i += threads) {
        sum += of[i];
    }
    const float mean = threadgroup_sum(sum, (threadgroup float *)tg, lane, simd, simds) / float(p.n);
    float squares = 0.0f;
    for (uint i = tid; i < p.n; i += threads) {
        const float d = of[i] - mean;
        squares += d * d;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup); // the reduction's memory is written again
    squares = threadgroup_sum(squares, (threadgroup float *)tg, lane, simd, simds);
    const float least = mean + p.cutoff * precise::sqrt(squares / float(p.n));
    for (uint i = tid; i < p.n; i += threads) {
        of[i] = max(of[i] - least, 0.0f);
    }
}
