// This kernel chooses the next token.
#include <metal_stdlib>

using namespace metal;

struct choice {
    uint vocab; // the number of logits
    uint next;  // the position of the token that is chosen
};

// choose adds bias to the logits and stores the index of the largest sum in tokens[c.next]. Of equal
// sums it takes the first. It runs as one threadgroup. tg has two words for each SIMD group.
[[max_total_threads_per_threadgroup(1024)]]
kernel void choose(
        device float *logits      [[buffer(0)]],
        device const float *bias  [[buffer(1)]],
        device uint *tokens       [[buffer(2)]],
        constant choice &c        [[buffer(3)]],
        threadgroup uint *tg      [[threadgroup(0)]],
        uint tid                  [[thread_index_in_threadgroup]],
        uint lane                 [[thread_index_in_simdgroup]],
        uint simd                 [[simdgroup_index_in_threadgroup]],
        uint simds                [[simdgroups_per_threadgroup]]) {
    float best = -3.0e38f;
    uint index = c.vocab;
    for (uint i = tid; i < c.vocab; i += simds * 32) {
        const float v = logits[i] + bias[i];
        logits[i] = v;
        if (v > best) {
            best = v;
            index = i;
        }
    }
    float top = simd_max(best);
    index = simd_min(best == top ? index : c.vocab);
    if (lane == 0) {
        tg[2 * simd] = as_type<uint>(top);
        tg[2 * simd + 1] = index;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd != 0) {
        return;
    }
    best = lane < simds ? as_type<float>(tg[2 * lane]) : -3.0e38f;
    top = simd_max(best);
    index = simd_min(lane < simds && best == top ? tg[2 * lane + 1] : c.vocab);
    if (lane == 0) {
        tokens[c.next] = min(index, c.vocab - 1);
    }
}
