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

// add_products adds the products of 16 inner columns of float16 to c, and multiply_bytes those of int8;
// the emulator's functions describe them. The caller may assign inner columns in any order.
PIANOLA_INLINE float4 add_products(uint2 x0, uint2 x1, uint2 y, float4 c) {
    const unsigned x[4] = {x0.x, x0.y, x1.x, x1.y}, z[2] = {y.x, y.y};
    float sums[4] = {c.x, c.y, c.z, c.w};
    pianola_add_products(x, z, sums);
    return float4(sums[0], sums[1], sums[2], sums[3]);
}
PIANOLA_COUNTABLE int4 multiply_bytes(uint2 a, uint b, int4 c) {
    const unsigned x[2] = {a.x, a.y};
    int sums[4] = {c.x, c.y, c.z, c.w};
    pianola_add_byte_products(x, b, sums);
    return int4(sums[0], sums[1], sums[2], sums[3]);
}

// load_matrices loads four matrices of 8 by 8 float16. Lane l passes the address of row l%8 of
// matrix l/8. load_matrices_across transposes each matrix.
struct matrix_rows {
    const char *own;
    const unsigned *all; // low words of the addresses of all rows
    template <typename T> uint at(uint row, uint column) const {
        return ((const T *)(own + (int)(all[row] - (unsigned)(ulong)own)))[column];
    }
};
PIANOLA_INLINE matrix_rows exchange_rows(threadgroup const void *p) {
    return {(const char *)p, exchange((int)(ulong)p, "load of matrices")};
}
PIANOLA_INLINE uint4 load_matrices(threadgroup const void *p) {
    const matrix_rows rows = exchange_rows(p);
    const uint l = lane();
    uint4 to;
    for (uint i = 0; i < 4; i++) to[i] = rows.at<uint>(8 * i + l / 4, l % 4);
    return to;
}
PIANOLA_INLINE uint4 load_matrices_across(threadgroup const void *p) {
    const matrix_rows rows = exchange_rows(p);
    const uint l = lane();
    uint4 to;
    for (uint i = 0; i < 4; i++) to[i] = rows.at<ushort>(8 * i + l % 4 * 2, l / 4) | rows.at<ushort>(8 * i + l % 4 * 2 + 1, l / 4) << 16;
    return to;
}
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
