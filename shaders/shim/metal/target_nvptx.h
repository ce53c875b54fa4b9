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

// LLVM 19 has no intrinsic for it.
PIANOLA_INLINE int dot4(int a, int b, int acc) {
    int r;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(acc));
    return r;
}
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
