// The choice of experts by scores, with groups of experts and biases.
#include "best.h"

// Without a candidate, the index of a Best is PIANOLA_NOBODY.
#define PIANOLA_NOBODY 0xffffffffu

// take makes an element the best if it is larger, or the first.
static inline void take(thread Best &best, float value, uint index) {
    const int key = order_key(as_type<uint>(value));
    if (key > best.key || best.index == PIANOLA_NOBODY) {
        best.key = key;
        best.index = index;
    }
}

// nobody returns the best of no elements.
static inline Best nobody() {
    Best b;
    b.key = int(0x80000000u);
    b.index = PIANOLA_NOBODY;
    return b;
}

// scores computes the scores of a row's experts.
struct scores {
    device const float *logits, *b;
    float top, scale; // of the softmax
    bool sigmoid, biased;

    float score(uint e) const {
        const float x = logits[e];
        return sigmoid ? 1.0f / (1.0f + exp(-x)) : exp(x - top) * scale;
    }

    // rank returns the number by which experts are compared.
    float rank(uint e) const { return biased ? score(e) + b[e] : score(e); }
};

// best_groups returns a bit for each of the groups whose experts are candidates.
static inline uint best_groups(scores row, uint experts, uint groups, uint top, uint best, uint lane) {
    const float lowest = as_type<float>(0xff800000u); // -inf
    const uint size = experts / groups;
    float first = lowest, second = lowest;
    if (lane < groups) {
        for (uint e = lane * size; e < (lane + 1) * size; e++) {
            const float v = row.rank(e);
            const int key = order_key(as_type<uint>(v));
            if (key > order_key(as_type<uint>(first))) {
                second = first;
                first = v;
            } else if (key > order_key(as_type<uint>(second))) {
                second = v;
            }
        }
    }
    const float value = best == 2 ? first + second : first;
    uint mask = 0;
    for (uint i = 0; i < top; i++) {
        Best b = nobody();
        if (lane < groups && (mask >> lane & 1) == 0) {
            take(b, value, lane);
        }
        mask |= 1u << min(simd_best(b).index, 31u);
    }
    return mask;
}

// The first SIMD group chooses a row's experts one after another.
[[max_total_threads_per_threadgroup(1024)]]
kernel void route_scored(
        device const float *logits              [[buffer(0)]],
        device const float *b                   [[buffer(1)]],
        device uint *ids                        [[buffer(2)]],
        device float *weights                   [[buffer(3)]],
        device const float *factors             [[buffer(4)]],
        constant pianola_route_scored_params &p [[buffer(8)]],
        constant pianola_second &s              [[buffer(9)]],
        device pianola_step *step               [[buffer(10)]],
        uint3 group                             [[threadgroup_position_in_grid]],
        uint lane                               [[thread_index_in_simdgroup]],
        uint simd                               [[simdgroup_index_in_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows || simd != 0) {
        return;
    }
    scores row = {logits + ulong(group.x) * p.experts, b, 0.0f, 1.0f, p.sigmoid != 0, BIAS != 0};
    device uint *chosen = ids + ulong(group.x) * p.used;
    device float *weight = weights + ulong(group.x) * p.used;
    if (!row.sigmoid) {
        float top = -3e38f;
        for (uint e = lane; e < p.experts; e += 32) {
            top = max(top, row.logits[e]);
        }
        row.top = simd_max(top);
        float sum = 0.0f;
        for (uint e = lane; e < p.experts; e += 32) {
            sum += row.score(e);
        }
        row.scale = 1.0f / simd_sum(sum);
    }
    const uint mask = p.groups > 1 ? best_groups(row, p.experts, p.groups, p.top_groups, p.best, lane) : 1u;
    const uint size = p.experts / max(p.groups, 1u);
    uint taken = 0; // one bit for each of the lane's experts that is already chosen
    float sum = 0.0f;
    for (uint i = 0; i < p.used; i++) {
        Best b = nobody();
        for (uint k = 0; 32 * k + lane < p.experts; k++) {
            const uint e = 32 * k + lane;
            if ((taken >> k & 1) == 0 && (mask >> min(e / size, 31u) & 1) != 0) {
                take(b, row.rank(e), e);
            }
        }
        const uint expert = min(simd_best(b).index, p.experts - 1);
        if (expert % 32 == lane) {
            taken |= 1u << (expert / 32);
        }
        const float score = row.score(expert);
        sum += score;
        if (lane == 0) {
            chosen[i] = expert;
            weight[i] = score;
        }
    }
    if (lane == 0) {
        const float scale = OVER == PIANOLA_OVER_ALL ? p.scale : p.scale / sum;
        for (uint i = 0; i < p.used; i++) {
            weight[i] *= FACTORS != 0 ? scale * factors[chosen[i]] : scale;
        }
    }
}
