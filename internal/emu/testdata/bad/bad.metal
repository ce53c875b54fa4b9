// Kernels with faults that the emulator must detect, and one without a fault.
#include <metal_stdlib>

using namespace metal;

// Each thread reads a value that another thread has written, without a barrier.
kernel void no_barrier(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], threadgroup float *tg [[threadgroup(0)]], uint t [[thread_index_in_threadgroup]], uint3 n [[threads_per_threadgroup]]) {
    tg[t] = x[t];
    y[t] = tg[n.x - 1 - t];
}

kernel void with_barrier(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], threadgroup float *tg [[threadgroup(0)]], uint t [[thread_index_in_threadgroup]], uint3 n [[threads_per_threadgroup]]) {
    tg[t] = x[t];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[t] = tg[n.x - 1 - t];
}

// The barrier is wrong: it orders only the threads of a SIMD group.
kernel void small_barrier(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], threadgroup float *tg [[threadgroup(0)]], uint t [[thread_index_in_threadgroup]], uint3 n [[threads_per_threadgroup]]) {
    tg[t] = x[t];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    y[t] = tg[n.x - 1 - t];
}

kernel void divergent(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {
    float v = x[t];
    if (t % 32 < 16) {
        v = simd_sum(v);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[t] = v;
}

kernel void early_return(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {
    if (t >= 33) {
        return;
    }
    y[t] = simd_max(x[t]);
}

kernel void early_group(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {
    if (t >= 32) {
        return;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[t] = x[t];
}

// Faults for the sanitizers.
kernel void past_the_end(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {
    y[t] = x[t + 1];
}

kernel void past_threadgroup_memory(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], threadgroup float *tg [[threadgroup(0)]], uint t [[thread_index_in_threadgroup]]) {
    tg[t + 1] = x[t];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[t] = tg[t + 1];
}

kernel void misaligned(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {
    if (t == 0) {
        const float4 v = *(device const float4 *)(x + 1);
        y[0] = v.x;
    }
}

kernel void past_an_array(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {
    float v[4];
    for (uint i = 0; i < 4; i++) {
        v[i] = x[t];
    }
    y[t] = v[t];
}

// Kernels that return their positions and the results of SIMD functions.
kernel void positions(device uint *y [[buffer(1)]], uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]], uint3 size [[threads_per_threadgroup]], uint t [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
    const uint g = (group.z * groups.y + group.y) * groups.x + group.x;
    y[g * size.x + t] = ((g * 16 + simd) * 32 + lane) * 4 + simds;
}

kernel void simd_functions(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {
    const float v = x[t];
    device float *out = y + t * 14;
    out[0] = simd_sum(v);
    out[1] = simd_max(v);
    out[2] = simd_min(v);
    out[3] = simd_shuffle_xor(v, 5);
    out[4] = simd_shuffle(v, 31 - t % 32);
    out[5] = simd_broadcast(v, 7);
    out[6] = simd_shuffle_down(v, 3);
    out[7] = simd_shuffle_up(v, 3);
    out[8] = simd_prefix_inclusive_sum(v);
    out[9] = simd_any(v == x[3]) ? 1.0f : 0.0f;
    out[10] = simd_all(v >= 0.0f) ? 1.0f : 0.0f;
    out[11] = float(simd_shuffle(half(v), 2));
    const float4 v4 = simd_shuffle_xor(float4(v, -v, 2.0f * v, 1.0f), 1);
    out[12] = v4.x + v4.y + v4.z;
    out[13] = simd_broadcast_first(v);
}
