// The next token.
#include "pianola.h"

// order_key maps the bits of a float32 to integers in the same order; both
// zeros are equal and NaN is below everything. Integers, since fast math
// may take comparisons with NaN for something else.
static inline int order_key(uint bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return int(0x80000000u);
    }
    if (bits == 0x80000000u) {
        return 0;
    }
    const int i = as_type<int>(bits);
    return i < 0 ? i ^ 0x7fffffff : i;
}

// Best is the largest element so far, the first of equals.
struct Best {
    int key;
    uint index;
};

static inline void consider(thread Best &best, uint bits, uint index) {
    const int key = order_key(bits);
    if (key > best.key) {
        best.key = key;
        best.index = index;
    }
}

// simd_best returns the best of a SIMD group, the same in every lane.
static inline Best simd_best(Best b) {
    Best r;
    r.key = simd_max(b.key);
    r.index = simd_min(b.key == r.key ? b.index : 0xffffffffu);
    return r;
}

// One threadgroup reads all logits.
//
// threadgroup memory: div(threads,32)*8 bytes
[[max_total_threads_per_threadgroup(1024)]]
kernel void argmax(
        device const uint *logits        [[buffer(0)]],
        device const uint *stops         [[buffer(1)]],
        device uint *tokens              [[buffer(2)]],
        constant pianola_argmax_params &p [[buffer(8)]],
        constant pianola_second &s       [[buffer(9)]],
        device pianola_step *step        [[buffer(10)]],
        threadgroup uchar *tg            [[threadgroup(0)]],
        uint tid                         [[thread_index_in_threadgroup]],
        uint lane                        [[thread_index_in_simdgroup]],
        uint simd                        [[simdgroup_index_in_threadgroup]],
        uint simds                       [[simdgroups_per_threadgroup]]) {
    if (step->stop != 0) {
        return;
    }
    const uint threads = simds * 32;
    // All NaN is index 0: nothing is above the lowest key.
    Best best = {int(0x80000000u), 0u};
    device const uint4 *logits4 = (device const uint4 *)logits;
    for (uint i = tid; i < p.n / 4; i += threads) {
        const uint4 v = logits4[i];
        consider(best, v.x, 4 * i);
        consider(best, v.y, 4 * i + 1);
        consider(best, v.z, 4 * i + 2);
        consider(best, v.w, 4 * i + 3);
    }
    for (uint i = p.n / 4 * 4 + tid; i < p.n; i += threads) {
        consider(best, logits[i], i);
    }
    best = simd_best(best);
    threadgroup int *keys = (threadgroup int *)tg;
    threadgroup uint *indexes = (threadgroup uint *)tg + simds;
    if (lane == 0) {
        keys[simd] = best.key;
        indexes[simd] = best.index;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd != 0) {
        return;
    }
    Best mine = {int(0x80000000u), 0u};
    if (lane < simds) {
        mine.key = keys[lane];
        mine.index = indexes[lane];
    }
    best = simd_best(mine);
    bool stop = false;
    for (uint i = lane; i < min(stops[0], p.max_stops); i += 32) {
        stop = stop || stops[1 + i] == best.index;
    }
    stop = simd_any(stop);
    if (lane == 0) {
        tokens[min(s.index, p.ring - 1)] = best.index;
        step->count += 1;
        if (stop) {
            step->stop = 1;
        }
    }
}
