// Target x86-64: lanes are fibers of the emulator.
#pragma once
#pragma clang system_header

#include <emulator.h>
#include <metal/precise.h>

namespace metal {
namespace shim {
PIANOLA_INLINE uint lane() { return pianola_lane(); }
// exchange returns the words that all lanes of the SIMD group pass to it.
PIANOLA_INLINE const unsigned *exchange(int v, const char *what) { return pianola_exchange((unsigned)v, what); }
PIANOLA_INLINE int shuffle(int v, uint from) { return (int)exchange(v, "simd_shuffle")[from & 31]; }
PIANOLA_INLINE int shuffle_xor(int v, uint mask) { return (int)exchange(v, "simd_shuffle_xor")[(lane() ^ mask) & 31]; }
PIANOLA_COUNTABLE uint ballot(bool p) {
    const unsigned *all = exchange(p, "simd_ballot");
    uint bits = 0;
    for (int i = 0; i < 32; i++) bits |= all[i] << i;
    return bits;
}
PIANOLA_INLINE void threadgroup_wait() { pianola_threadgroup_barrier(); }
PIANOLA_INLINE void simdgroup_wait() { exchange(0, "simdgroup_barrier"); }

// Copies are complete when the function returns.
PIANOLA_INLINE void copy16(threadgroup void *to, device const void *from) { __builtin_memcpy((void *)to, (const void *)from, 16); }
PIANOLA_INLINE void copy_or_zero16(threadgroup void *to, device const void *from, uint n) {
    __builtin_memset((void *)to, 0, 16);
    if (n != 0) copy16(to, from);
}
PIANOLA_INLINE void copy8(threadgroup void *to, device const void *from) { __builtin_memcpy((void *)to, (const void *)from, 8); }
PIANOLA_INLINE void copy4(threadgroup void *to, device const void *from) { __builtin_memcpy((void *)to, (const void *)from, 4); }
PIANOLA_INLINE void commit_copies() {}
template <uint N> PIANOLA_INLINE void wait_copies() {}

PIANOLA_COUNTABLE int dot4(int a, int b, int acc) {
    const char4 x = __builtin_bit_cast(char4, a), y = __builtin_bit_cast(char4, b);
    for (int i = 0; i < 4; i++) acc += (int)x[i] * (int)y[i];
    return acc;
}

// product_sums are sums of products of float16 as NVIDIA's matrix units compute them: the products of 16
// columns are added to c in one step, so that their order does not matter. x0 and x1 hold four columns of
// two rows of the first matrix, y0 and y1 of two columns of the second.
struct product_sums {
    double of[4];
    static double dot(uint2 x, uint2 y) {
        typedef _Float16 pair __attribute__((ext_vector_type(2)));
        double sum = 0;
        for (int i = 0; i < 2; i++) {
            const pair a = __builtin_bit_cast(pair, (uint)x[i]), b = __builtin_bit_cast(pair, (uint)y[i]);
            sum += (double)a[0] * (double)b[0] + (double)a[1] * (double)b[1];
        }
        return sum;
    }
    void add(uint2 x0, uint2 x1, uint2 y0, uint2 y1) {
        of[0] += dot(x0, y0);
        of[1] += dot(x0, y1);
        of[2] += dot(x1, y0);
        of[3] += dot(x1, y1);
    }
    float4 plus(float4 c) const { return float4((float)(c.x + of[0]), (float)(c.y + of[1]), (float)(c.z + of[2]), (float)(c.w + of[3])); }
};
} // namespace shim

namespace precise {
PIANOLA_INLINE float exp2(float x) { return __builtin_exp2f(x); }
PIANOLA_INLINE float log(float x) { return __builtin_logf(x); }
PIANOLA_INLINE float log2(float x) { return __builtin_log2f(x); }
PIANOLA_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
PIANOLA_INLINE float divide(float x, float y) { return x / y; }
PIANOLA_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
} // namespace precise

namespace fast {
PIANOLA_INLINE float exp(float x) { return __builtin_expf(x); }
PIANOLA_INLINE float exp2(float x) { return __builtin_exp2f(x); }
PIANOLA_INLINE float log(float x) { return __builtin_logf(x); }
PIANOLA_INLINE float log2(float x) { return __builtin_log2f(x); }
PIANOLA_INLINE float sin(float x) { return __builtin_sinf(x); }
PIANOLA_INLINE float cos(float x) { return __builtin_cosf(x); }
PIANOLA_INLINE float tanh(float x) { return __builtin_tanhf(x); }
PIANOLA_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
PIANOLA_INLINE float divide(float x, float y) { return x / y; }
PIANOLA_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
} // namespace fast
} // namespace metal
