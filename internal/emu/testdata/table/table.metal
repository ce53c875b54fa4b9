// Kernels with the names of declared ones, for tables that the emulated device replays.
#include <metal_stdlib>

using namespace metal;

// The declared kernel add for one row; it also counts tokens.
kernel void add(device float *x [[buffer(0)]], device const float *delta [[buffer(1)]], device uint *step [[buffer(10)]], uint t [[thread_index_in_threadgroup]]) {
    x[t] += delta[t];
    if (t == 0) {
        step[9] += 1;
    }
}

// Reads one element more than its declaration allows.
kernel void silu_mul(device const float *gate [[buffer(0)]], device const float *up [[buffer(1)]], device float *out [[buffer(2)]], uint t [[thread_index_in_threadgroup]]) {
    out[t] = gate[t] * up[t + 1];
}
