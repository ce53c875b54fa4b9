// NVIDIA: one warp is a SIMD group.
#pragma once
#pragma clang system_header

#include <metal/precise.h>

namespace metal {
namespace shim {
PIANOLA_INLINE uint lane() { return __nvvm_read_ptx_sreg_laneid(); }
PIANOLA_INLINE int shuffle(int v, uint from) { return __nvvm_shfl_sync_idx_i32(-1, v, (int)from, 31); }
PIANOLA_INLINE int shuffle_xor(int v, uint mask) { return __nvvm_shfl_sync_bfly_i32(-1, v, (int)mask, 31); }
PIANOLA_INLINE uint ballot(bool p) { return (uint)__nvvm_vote_ballot_sync(-1u, p); }
PIANOLA_INLINE void threadgroup_wait() { __syncthreads(); }
PIANOLA_INLINE void simdgroup_wait() { __nvvm_bar_warp_sync(-1u); }

// inputs_ready is a line for package replay/cuda to find.
PIANOLA_INLINE void inputs_ready() { asm volatile("// pianola: inputs ready" ::: "memory"); }

PIANOLA_INLINE uint opaque(uint v) {
    asm volatile("" : "+r"(v));
    return v;
}

// LLVM 19 has no intrinsic for it.
PIANOLA_INLINE int dot4(int a, int b, int acc) {
    int r;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(acc));
    return r;
}

// permute picks four bytes of a and b.
PIANOLA_INLINE uint permute(uint a, uint b, uint s) { return (uint)__nvvm_prmt((int)a, (int)b, (int)s); }

// round_bytes adds 1.5 * 2^23, whose last bit is 1, and takes the last bytes:
// conversions have a fourth of the rate. The product before it must not join.
PIANOLA_INLINE int round_bytes(float4 v) {
    const float x = __nvvm_add_rn_f(v.x, 12582912.0f), y = __nvvm_add_rn_f(v.y, 12582912.0f);
    const float z = __nvvm_add_rn_f(v.z, 12582912.0f), w = __nvvm_add_rn_f(v.w, 12582912.0f);
    const uint xy = permute(__builtin_bit_cast(uint, x), __builtin_bit_cast(uint, y), 0x0040);
    const uint zw = permute(__builtin_bit_cast(uint, z), __builtin_bit_cast(uint, w), 0x0040);
    return (int)permute(xy, zw, 0x5410);
}

#if PIANOLA_SM >= 80
// Copies that go on while the thread does: those since the last commit are a
// group, and wait_copies waits until all groups but the last N are there.
PIANOLA_INLINE uint shared_address(threadgroup const void *p) { return (uint)(ulong)p; }
PIANOLA_INLINE void copy16(threadgroup void *to, device const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
PIANOLA_INLINE void copy8(threadgroup void *to, device const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
PIANOLA_INLINE void copy4(threadgroup void *to, device const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
PIANOLA_INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <uint N> PIANOLA_INLINE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Products of matrices by a warp; shaders/mma.h says who has what.
PIANOLA_INLINE int4 multiply_bytes(uint2 a, uint b, int4 c) {
    int c0 = c.x, c1 = c.y, c2 = c.z, c3 = c.w;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(c0), "+r"(c1), "+r"(c2), "+r"(c3)
                 : "r"(a.x), "r"(a.y), "r"(b));
    return int4{c0, c1, c2, c3};
}
PIANOLA_INLINE int4 multiply_bytes2(uint4 a, uint2 b) {
    int c0, c1, c2, c3;
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                 : "=r"(c0), "=r"(c1), "=r"(c2), "=r"(c3)
                 : "r"(a.x), "r"(a.z), "r"(a.y), "r"(a.w), "r"(b.x), "r"(b.y), "r"(0));
    return int4{c0, c1, c2, c3};
}
PIANOLA_INLINE float4 multiply_halves(uint4 a, uint2 b, float4 c) {
    float c0 = c.x, c1 = c.y, c2 = c.z, c3 = c.w;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                 : "r"(a.x), "r"(a.z), "r"(a.y), "r"(a.w), "r"(b.x), "r"(b.y));
    return float4{c0, c1, c2, c3};
}
#endif
} // namespace shim

namespace fast {
PIANOLA_INLINE float exp2(float x) { return __nvvm_ex2_approx_ftz_f(x); }
PIANOLA_INLINE float exp(float x) { return __nvvm_ex2_approx_ftz_f(x * M_LOG2E_F); }
PIANOLA_INLINE float log2(float x) { return __nvvm_lg2_approx_ftz_f(x); }
PIANOLA_INLINE float log(float x) { return __nvvm_lg2_approx_ftz_f(x) * M_LN2_F; }
PIANOLA_INLINE float sin(float x) { return __nvvm_sin_approx_ftz_f(x); }
PIANOLA_INLINE float cos(float x) { return __nvvm_cos_approx_ftz_f(x); }
PIANOLA_INLINE float rsqrt(float x) { return __nvvm_rsqrt_approx_ftz_f(x); }
PIANOLA_INLINE float sqrt(float x) { return __nvvm_sqrt_approx_ftz_f(x); }
PIANOLA_INLINE float divide(float x, float y) { return __nvvm_div_approx_ftz_f(x, y); }
PIANOLA_INLINE float tanh(float x) { return 1.0f - 2.0f * __nvvm_rcp_approx_ftz_f(1.0f + exp(2.0f * x)); }
} // namespace fast

namespace precise {
PIANOLA_INLINE float exp2(float x) { return __nvvm_ex2_approx_f(x); }
PIANOLA_INLINE float log2(float x) { return __nvvm_lg2_approx_f(x); }
PIANOLA_INLINE float log(float x) { return __nvvm_lg2_approx_f(x) * M_LN2_F; }
PIANOLA_INLINE float sqrt(float x) { return __nvvm_sqrt_rn_f(x); }
PIANOLA_INLINE float divide(float x, float y) { return __nvvm_div_rn_f(x, y); }
PIANOLA_INLINE float rsqrt(float x) { return divide(1.0f, sqrt(x)); }
} // namespace precise
} // namespace metal
