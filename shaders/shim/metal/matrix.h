// SIMD-group matrices of 8 by 8. Lane l holds columns 2*(l%4) and 2*(l%4)+1 of row l/4. Apple's
// layout is different and unspecified, so kernels must not access elements directly.
#pragma once
#pragma clang system_header

namespace metal {
#if defined(PIANOLA_NVPTX) && PIANOLA_SM >= 80
#define PIANOLA_MMA 1
namespace shim {
// mma returns a*b + c: a is 16 by 16 float16, b 16 by 8 float16, c 16 by 8 float32.
// shaders/mma.h describes the elements that each lane holds.
PIANOLA_INLINE float4 mma(uint4 a, uint2 b, float4 c) {
    float d0, d1, d2, d3;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(c.x), "f"(c.y), "f"(c.z), "f"(c.w));
    return float4(d0, d1, d2, d3);
}

// load_matrices loads four matrices of 8 by 8 float16. Lane l passes the address of row l%8 of
// matrix l/8. load_matrices_across transposes each matrix.
PIANOLA_INLINE uint4 load_matrices(threadgroup const void *p) {
    uint x, y, z, w;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(shared_address(p)) : "memory");
    return uint4(x, y, z, w);
}
PIANOLA_INLINE uint4 load_matrices_across(threadgroup const void *p) {
    uint x, y, z, w;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(shared_address(p)) : "memory");
    return uint4(x, y, z, w);
}
} // namespace shim
#endif

template <typename T, int R, int C> struct simdgroup_matrix {
    static_assert(R == 8 && C == 8, "SIMD-group matrices are 8 by 8");
    vec<T, 2> pair;
    simdgroup_matrix() = default;
    explicit simdgroup_matrix(T v) : pair((vec<T, 2>)v) {}
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;

// stride is the number of elements from one row to the next; at is (column, row).
#define PIANOLA_MATRIX(space)                                                                                      \
    template <typename T>                                                                                          \
    PIANOLA_INLINE void simdgroup_load(thread simdgroup_matrix<T, 8, 8> &m, const space T *p, ulong stride = 8,    \
                                       ulong2 at = ulong2(0), bool transpose = false) {                            \
        const ulong r = shim::lane() / 4, c = shim::lane() % 4 * 2;                                                \
        p += at.y * stride + at.x;                                                                                 \
        m.pair[0] = transpose ? p[c * stride + r] : p[r * stride + c];                                             \
        m.pair[1] = transpose ? p[(c + 1) * stride + r] : p[r * stride + c + 1];                                   \
    }                                                                                                              \
    template <typename T>                                                                                          \
    PIANOLA_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> m, space T *p, ulong stride = 8,                 \
                                        ulong2 at = ulong2(0), bool transpose = false) {                           \
        const ulong r = shim::lane() / 4, c = shim::lane() % 4 * 2;                                                \
        p += at.y * stride + at.x;                                                                                 \
        p[transpose ? c * stride + r : r * stride + c] = m.pair[0];                                                \
        p[transpose ? (c + 1) * stride + r : r * stride + c + 1] = m.pair[1];                                      \
    }
PIANOLA_MATRIX(device)
PIANOLA_MATRIX(threadgroup)
#undef PIANOLA_MATRIX

template <typename T, int R, int C> PIANOLA_INLINE simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) {
    return simdgroup_matrix<T, R, C>(v);
}

// Computes d = a*b + c in float32.
template <typename D, typename A, typename B, typename C>
PIANOLA_COUNTABLE void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a,
                                                     simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c) {
#if defined(PIANOLA_NVPTX) && PIANOLA_SM >= 75
    if constexpr (shim::same<B, half>::value && shim::same<D, float>::value) {
        // The instruction needs b transposed. A float a is the sum of two float16 in the rows 0 to 7
        // and 8 to 15 of its operand; otherwise the latter are zero.
        const uint bv = __builtin_bit_cast(uint, b.pair);
        const vec<half, 2> high = {(half)a.pair[0], (half)a.pair[1]};
        const vec<half, 2> low = {(half)((float)a.pair[0] - (float)high[0]), (half)((float)a.pair[1] - (float)high[1])};
        uint bt;
        float d0, d1, z0, z1;
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(bt) : "r"(bv));
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%9};"
                     : "=f"(d0), "=f"(d1), "=f"(z0), "=f"(z1)
                     : "r"(__builtin_bit_cast(uint, high)), "r"(shim::same<A, half>::value ? 0u : __builtin_bit_cast(uint, low)), "r"(bt),
                       "f"((float)c.pair[0]), "f"((float)c.pair[1]), "f"(0.0f));
        d.pair[0] = d0 + z0;
        d.pair[1] = d1 + z1;
        return;
    }
#endif
#if defined(PIANOLA_HOST)
    const float av[2] = {(float)a.pair[0], (float)a.pair[1]}, bv[2] = {(float)b.pair[0], (float)b.pair[1]};
    float sum[2] = {(float)c.pair[0], (float)c.pair[1]};
    pianola_multiply(av, bv, sum);
    d.pair[0] = (D)sum[0];
    d.pair[1] = (D)sum[1];
#else
    const uint row = shim::lane() / 4 * 4, column = shim::lane() % 4;
    float s0 = (float)c.pair[0], s1 = (float)c.pair[1];
#pragma unroll
    for (uint k = 0; k < 8; k++) {
        const vec<A, 2> x = simd_shuffle(a.pair, (ushort)(row + k / 2));
        const vec<B, 2> y = simd_shuffle(b.pair, (ushort)(k * 4 + column));
        s0 += (float)x[k & 1] * (float)y[0];
        s1 += (float)x[k & 1] * (float)y[1];
    }
    d.pair[0] = (D)s0;
    d.pair[1] = (D)s1;
#endif
}
template <typename D, typename A, typename B>
PIANOLA_INLINE void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b) {
    simdgroup_multiply_accumulate(d, a, b, simdgroup_matrix<D, 8, 8>((D)0));
}
} // namespace metal
