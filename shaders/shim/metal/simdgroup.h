// SIMD-group functions and barriers.
#pragma once
#pragma clang system_header

namespace metal {
namespace shim {
// PIANOLA_MOVE applies a move of 32-bit words, given as an expression of w, to a value of any
// size.
#define PIANOLA_MOVE(T, v, move)                                                    \
    if constexpr (sizeof(T) == 1) {                                                 \
        const int w = __builtin_bit_cast(uchar, v);                                 \
        return __builtin_bit_cast(T, (uchar)(move));                                \
    } else if constexpr (sizeof(T) == 2) {                                          \
        const int w = __builtin_bit_cast(ushort, v);                                \
        return __builtin_bit_cast(T, (ushort)(move));                               \
    } else if constexpr (sizeof(T) == 4) {                                          \
        const int w = __builtin_bit_cast(int, v);                                   \
        return __builtin_bit_cast(T, (int)(move));                                  \
    } else {                                                                        \
        typedef int W __attribute__((ext_vector_type(sizeof(T) / 4)));              \
        W s = __builtin_bit_cast(W, v);                                             \
        for (int i = 0; i < (int)(sizeof(T) / 4); i++) {                            \
            const int w = s[i];                                                     \
            s[i] = (move);                                                          \
        }                                                                           \
        return __builtin_bit_cast(T, s);                                            \
    }
// Operations on two lanes and, where the GPU has an instruction, on all lanes.
#if defined(PIANOLA_NVPTX) && PIANOLA_SM >= 80
#define PIANOLA_REDUX(name, name_unsigned)                                                \
    static PIANOLA_INLINE int all(int v) { return name(v, -1); }                          \
    static PIANOLA_INLINE uint all(uint v) { return (uint)name_unsigned((int)v, -1); }
#else
#define PIANOLA_REDUX(name, name_unsigned)
#endif
struct add {
    template <typename T> static PIANOLA_INLINE T of(T a, T b) { return a + b; }
    PIANOLA_REDUX(__nvvm_redux_sync_add, __nvvm_redux_sync_add)
};
struct larger {
    template <typename T> static PIANOLA_INLINE T of(T a, T b) { return __builtin_elementwise_max(a, b); }
    PIANOLA_REDUX(__nvvm_redux_sync_max, __nvvm_redux_sync_umax)
};
struct smaller {
    template <typename T> static PIANOLA_INLINE T of(T a, T b) { return __builtin_elementwise_min(a, b); }
    PIANOLA_REDUX(__nvvm_redux_sync_min, __nvvm_redux_sync_umin)
};
#undef PIANOLA_REDUX
} // namespace shim

template <typename T> PIANOLA_INLINE T simd_shuffle(T v, ushort from) { PIANOLA_MOVE(T, v, shim::shuffle(w, from)) }
template <typename T> PIANOLA_INLINE T simd_shuffle_xor(T v, ushort mask) { PIANOLA_MOVE(T, v, shim::shuffle_xor(w, mask)) }
template <typename T> PIANOLA_INLINE T simd_broadcast(T v, ushort from) { return simd_shuffle(v, from); }
template <typename T> PIANOLA_INLINE T simd_broadcast_first(T v) { return simd_shuffle(v, (ushort)0); }
// A lane without such a neighbour keeps its value.
template <typename T> PIANOLA_INLINE T simd_shuffle_down(T v, ushort d) {
    const uint l = shim::lane();
    return simd_shuffle(v, (ushort)(l + d > 31 ? l : l + d));
}
template <typename T> PIANOLA_INLINE T simd_shuffle_up(T v, ushort d) {
    const uint l = shim::lane();
    return simd_shuffle(v, (ushort)(l < d ? l : l - d));
}
#undef PIANOLA_MOVE

namespace shim {
// reduce combines the lanes at distances 16, 8, 4, 2 and 1, so that every lane gets the same
// bits. In the emulator the lanes meet only once.
template <typename F, typename T> PIANOLA_COUNTABLE T reduce(T v) {
#if defined(PIANOLA_NVPTX) && PIANOLA_SM >= 80
    if constexpr (same<T, int>::value || same<T, uint>::value) return F::all(v);
#endif
#if defined(PIANOLA_HOST)
    if constexpr (sizeof(T) == 4) {
        const unsigned *all = exchange(__builtin_bit_cast(int, v), "SIMD reduction");
        T t[32];
        for (int i = 0; i < 32; i++) t[i] = __builtin_bit_cast(T, all[i]);
        for (int m = 16; m; m >>= 1)
            for (int i = 0; i < m; i++) t[i] = F::of(t[i], t[i + m]);
        return t[0];
    }
#endif
#pragma unroll
    for (uint m = 16; m; m >>= 1) v = F::of(v, simd_shuffle_xor(v, (ushort)m));
    return v;
}
} // namespace shim

template <typename T> PIANOLA_INLINE T simd_sum(T v) { return shim::reduce<shim::add>(v); }
template <typename T> PIANOLA_INLINE T simd_max(T v) { return shim::reduce<shim::larger>(v); }
template <typename T> PIANOLA_INLINE T simd_min(T v) { return shim::reduce<shim::smaller>(v); }
PIANOLA_INLINE bool simd_any(bool p) { return shim::ballot(p) != 0; }
PIANOLA_INLINE bool simd_all(bool p) { return shim::ballot(!p) == 0; }
PIANOLA_INLINE bool simd_is_first() { return shim::lane() == 0; }
template <typename T> PIANOLA_INLINE T simd_prefix_inclusive_sum(T v) {
    const uint l = shim::lane();
    for (uint d = 1; d < 32; d <<= 1) {
        const T below = simd_shuffle_up(v, (ushort)d);
        v = l >= d ? v + below : v;
    }
    return v;
}

PIANOLA_INLINE void threadgroup_barrier(mem_flags) { shim::threadgroup_wait(); }
PIANOLA_INLINE void simdgroup_barrier(mem_flags) { shim::simdgroup_wait(); }
} // namespace metal
