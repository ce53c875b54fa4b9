// What kernels share: conversions, products of packed integers, reductions.
#ifndef PIANOLA_H
#define PIANOLA_H

#include <metal_stdlib>
#include "params.h"
#include "constants.h"

using namespace metal;

// dot4 returns acc plus the products of the four int8 of a and of b: one
// instruction on NVIDIA.
static inline int dot4(int a, int b, int acc) {
#ifdef PIANOLA_SHIM
    return metal::shim::dot4(a, b, acc);
#else
    const char4 x = as_type<char4>(a);
    const char4 y = as_type<char4>(b);
    return acc + int(x.x) * int(y.x) + int(x.y) * int(y.y) + int(x.z) * int(y.z) + int(x.w) * int(y.w);
#endif
}

// bf16_to_f32 returns the value of a bfloat16, which is the upper half of a
// float32. By bits, since not every processor has the type.
static inline float bf16_to_f32(ushort bits) { return as_type<float>(uint(bits) << 16); }

// threadgroup_sum returns the sum of v over all threads of the threadgroup.
// tg has room for a float of each SIMD group. All threads must call it;
// between two calls with the same tg there must be a barrier.
static inline float threadgroup_sum(float v, threadgroup float *tg, uint lane, uint simd, uint simds) {
    v = simd_sum(v);
    if (simds == 1) {
        return v;
    }
    if (lane == 0) {
        tg[simd] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Each SIMD group adds them for itself, which saves a second barrier.
    return simd_sum(lane < simds ? tg[lane] : 0.0f);
}

#endif
