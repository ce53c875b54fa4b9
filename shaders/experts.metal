// Experts: selection, products and their sum.
#include "gemv_apple.h"

// better_expert returns the expert with the larger logit; among equal logits, the first. .x is
// the logit, .y the expert. Lanes without an expert pass the lowest logit.
static inline float2 better_expert(float2 a, float2 b) { return b.x > a.x || (b.x == a.x && b.y < a.y) ? b : a; }

// PIANOLA_EXPERTS is the largest number of experts in a layer, 32 per lane.
#define PIANOLA_EXPERTS 1024

// The first SIMD group chooses a row's experts one after another.
[[max_total_threads_per_threadgroup(1024)]]
kernel void route(
        device const float *logits          [[buffer(0)]],
        device uint *ids                    [[buffer(1)]],
        device float *weights               [[buffer(2)]],
        constant pianola_route_params &p    [[buffer(8)]],
        constant pianola_second &s          [[buffer(9)]],
        device pianola_step *step           [[buffer(10)]],
        uint3 group                         [[threadgroup_position_in_grid]],
        uint lane                           [[thread_index_in_simdgroup]],
        uint simd                           [[simdgroup_index_in_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows || simd != 0) {
        return;
    }
    device const float *row = logits + ulong(group.x) * p.experts;
    device uint *chosen = ids + ulong(group.x) * p.used;
    device float *weight = weights + ulong(group.x) * p.used;
    uint taken = 0; // one bit for each of the lane's experts that is already chosen
    float top = 0.0f;
    float sum = 0.0f;
    for (uint i = 0; i < p.used; i++) {
        float2 best = float2(-3e38f, float(PIANOLA_EXPERTS));
        for (uint k = 0; 32 * k + lane < p.experts; k++) {
            if ((taken >> k & 1) == 0) {
                best = better_expert(best, float2(row[32 * k + lane], float(32 * k + lane)));
            }
        }
        for (ushort w = 16; w > 0; w /= 2) {
            best = better_expert(best, simd_shuffle_xor(best, w));
        }
        const uint expert = min(uint(best.y), p.experts - 1);
        if (expert % 32 == lane) {
            taken |= 1u << (expert / 32);
        }
        top = i == 0 ? best.x : top;
        const float part = exp(best.x - top);
        sum += part;
        if (lane == 0) {
            chosen[i] = expert;
            weight[i] = part;
        }
    }
    if (OVER == PIANOLA_OVER_ALL) {
        sum = 0.0f;
        for (uint e = lane; e < p.experts; e += 32) {
            sum += exp(row[e] - top);
        }
        sum = simd_sum(sum);
    }
    if (lane == 0) {
        const float scale = 1.0f / sum;
        for (uint i = 0; i < p.used; i++) {
            weight[i] *= scale;
        }
    }
}

// A threadgroup computes rows of one chosen expert's matrix for a row of x, as gemv does.
[[max_total_threads_per_threadgroup(256)]]
kernel void expert_gemv(
        device const float *x            [[buffer(0)]],
        device const float *x2           [[buffer(1)]],
        device const uchar *w            [[buffer(2)]],
        device const float *b            [[buffer(3)]],
        device const uint *ids           [[buffer(4)]],
        device float *y                  [[buffer(5)]],
        constant pianola_expert_gemv_params &p [[buffer(8)]],
        constant pianola_second &s       [[buffer(9)]],
        device pianola_step *step        [[buffer(10)]],
        threadgroup uchar *tg            [[threadgroup(0)]],
        uint3 group                      [[threadgroup_position_in_grid]],
        uint lane                        [[thread_index_in_simdgroup]],
        uint simd                        [[simdgroup_index_in_threadgroup]],
        uint simds                       [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.z >= s.rows) {
        return;
    }
    // The index of the product among the products of all rows; from it follow the expert and
    // the row of x.
    const uint at = group.z * p.used + group.y;
    const uint expert = min(ids[at], p.experts - 1);
    const ulong input = ulong(at / p.share) * p.x_stride;
    const ulong bytes = WEIGHTS == PIANOLA_WEIGHTS_TILED16 ? p.out / 16 * strip_bytes(WTYPE_FAMILY, p.in, WTYPE)
                        : is_float(WTYPE)                  ? ulong(p.out) * p.in * element_bytes(WTYPE)
                                                           : p.out * row_bytes(WTYPE_FAMILY, p.in, WTYPE);
    product a = {x + input, x2 + input, w + expert * bytes, b + ulong(expert) * p.out, y + ulong(at) * p.y_stride,
                 p.in, p.out, p.x_stride, p.y_stride, p.group, 0, 1,
                 INPUT == PIANOLA_INPUT_SILU_MUL, BIAS != 0, ACTIVATION, false, false, 0.0f, false,
                 {x, x, 0, 0, 0, 0, 0, 0, 0}, p.limit, WTYPE};
    if (ACT == PIANOLA_ACT_Q8 && WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_steps<PIANOLA_WTYPE_##type>(a, p.ahead, step, s, tg, group.x, lane, simd, simds); break;
        switch (WTYPE_FAMILY) {
            PIANOLA_QUANTISED(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
        return;
    }
#ifdef PIANOLA_ROWS_APPLE
    if (ACT == PIANOLA_ACT_F32 && WEIGHTS == PIANOLA_WEIGHTS_ROWS) {
        const uint stage = p.stage != 0 ? p.stage : PIANOLA_STAGE;
        const product_end end = {false, false, false, b, y, y, 0, 0};
        rows_apple(a, end, WTYPE_FAMILY, step, s, stage, tg, group.x, lane, simd, simds);
    }
#else
    if (ACT == PIANOLA_ACT_F32 && WEIGHTS == PIANOLA_WEIGHTS_ROWS) {
        const uint stage = p.stage != 0 ? p.stage : PIANOLA_STAGE;
        if (is_float(WTYPE) && p.in % 8 == 0 && p.in <= stage) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_steps<PIANOLA_WTYPE_##type>(a, p.ahead, step, s, tg, group.x, lane, simd, simds); break;
            switch (WTYPE) {
                PIANOLA_FLOATS(PIANOLA_CASE)
            default: break;
            }
#undef PIANOLA_CASE
            return;
        }
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_rows<PIANOLA_WTYPE_##type>(a, step, s, stage, tg, group.x, lane, simd, simds); break;
        switch (WTYPE_FAMILY) {
            PIANOLA_FLOATS(PIANOLA_CASE)
            PIANOLA_QUANTISED(PIANOLA_CASE)
            PIANOLA_BLOCKS_ALONE(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
    }
#endif
}

// A threadgroup processes one row.
[[max_total_threads_per_threadgroup(1024)]]
kernel void expert_sum(
        device const float *x               [[buffer(0)]],
        device const float *weights         [[buffer(1)]],
        device float *out                   [[buffer(2)]],
        constant pianola_expert_sum_params &p [[buffer(8)]],
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
    device const float *from = x + ulong(group.x) * p.used * p.n;
    device const float *weight = weights + ulong(group.x) * p.used;
    device float *to = out + ulong(group.x) * p.n;
    for (uint i = tid; i < p.n; i += simds * 32) {
        float sum = 0.0f;
        for (uint k = 0; k < p.used; k++) {
            sum += weight[k] * from[ulong(k) * p.n + i];
        }
        to[i] = OUTPUT == PIANOLA_OUTPUT_ADD ? to[i] + sum : sum;
    }
}
