// Helpers shared by kernels: conversions, products of packed integers and reductions.
#ifndef PIANOLA_H
#define PIANOLA_H

#include <metal_stdlib>
#include "params.h"
#include "constants.h"

// PIANOLA_UNROLL stands before a loop over a private array, which is in memory unless the loop is
// unrolled. On the emulator unrolling would only make the compiler slow.
#ifdef PIANOLA_HOST
#define PIANOLA_UNROLL
#else
#define PIANOLA_UNROLL _Pragma("clang loop unroll(full)")
#endif

// PIANOLA_COPIES is defined if threadgroup memory can be filled by asynchronous copies.
#if defined(PIANOLA_HOST) || (defined(PIANOLA_NVPTX) && PIANOLA_SM >= 80)
#define PIANOLA_COPIES 1
#endif

using namespace metal;

// wait_inputs must be called by all threads, once, before the first read of memory that another
// command writes. A device may start a kernel before the preceding commands have ended. Then
// wait_inputs waits for them, so a kernel may read only constant memory, such as weights, before it,
// and if its parameter settled is 1, the caches of attention, the step block and the secondary values.
static inline void wait_inputs() {
#ifdef PIANOLA_NVPTX
    metal::shim::inputs_ready();
#endif
}

// runs returns whether the command is to be executed; after the chain has stopped it returns false.
static inline bool runs(device const pianola_step *step) { return step->stop == 0; }

// begins is wait_inputs and then runs.
static inline bool begins(device const pianola_step *step) {
    wait_inputs();
    return runs(step);
}

// issued keeps the compiler from moving loads that stand before it to where their values are used.
static inline void issued() {
#ifdef PIANOLA_NVPTX
    metal::shim::issued();
#endif
}

// opaque returns v, but the compiler cannot know that. Code that depends on the result is not
// hoisted out of loops, where it would occupy registers.
static inline uint opaque(uint v) {
#ifdef PIANOLA_NVPTX
    return metal::shim::opaque(v);
#else
    return v;
#endif
}

// dot4 returns acc plus the sum of the products of the four int8 in a and b. It is one
// instruction on NVIDIA GPUs.
static inline int dot4(int a, int b, int acc) {
#ifdef PIANOLA_SHIM
    return metal::shim::dot4(a, b, acc);
#else
    const char4 x = as_type<char4>(a);
    const char4 y = as_type<char4>(b);
    return acc + int(x.x) * int(y.x) + int(x.y) * int(y.y) + int(x.z) * int(y.z) + int(x.w) * int(y.w);
#endif
}

// round_bytes rounds four floats to int8, ties to even. For a magnitude above 127 the result is
// unspecified.
static inline int round_bytes(float4 v) {
#ifdef PIANOLA_NVPTX
    return metal::shim::round_bytes(v);
#else
    return as_type<int>(char4(clamp(rint(v), float4(-127.0f), float4(127.0f))));
#endif
}

// reciprocal returns 1/x with the rounding of a division. x must be normal and less than 2^126.
static inline float reciprocal(float x) {
#ifdef PIANOLA_NVPTX
    const float guess = fast::divide(1.0f, x);
    return fma(fma(-x, guess, 1.0f), guess, guess);
#else
    return precise::divide(1.0f, x);
#endif
}

// bf16_to_f32 returns the value of a bfloat16, which is the upper half of a float32. It works on
// bits, since not every processor has the type.
static inline float bf16_to_f32(ushort bits) { return as_type<float>(uint(bits) << 16); }

// threadgroup_sum returns the sum of v over all threads of the threadgroup. tg must have room for
// a float per SIMD group. All threads must call it. A barrier is required between two calls with
// the same tg.
static inline float threadgroup_sum(float v, threadgroup float *tg, uint lane, uint simd, uint simds) {
    v = simd_sum(v);
    if (simds == 1) {
        return v;
    }
    if (lane == 0) {
        tg[simd] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Each SIMD group adds the sums itself, which saves a second barrier.
    return simd_sum(lane < simds ? tg[lane] : 0.0f);
}

// threadgroup_max returns the largest v over all threads. It has the same requirements as
// threadgroup_sum.
static inline float threadgroup_max(float v, threadgroup float *tg, uint lane, uint simd, uint simds) {
    v = simd_max(v);
    if (simds == 1) {
        return v;
    }
    if (lane == 0) {
        tg[simd] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_max(tg[lane < simds ? lane : 0]);
}

#endif
