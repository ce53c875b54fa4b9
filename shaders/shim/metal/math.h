// Functions of scalars and vectors. Each target defines the scalar float functions in
// namespaces fast and precise. A name without a namespace is the fast function, as with Metal's
// fast math.
#pragma once
#pragma clang system_header

#define PIANOLA_UNARY_IN(space, name)                                                                            \
    namespace space {                                                                                            \
    template <typename T> PIANOLA_INLINE T name(T x) {                                                           \
        typedef typename shim::shape<T>::element E;                                                              \
        static_assert(shim::same<E, float>::value || shim::same<E, half>::value, #name ": float or half wanted"); \
        if constexpr (shim::shape<T>::count == 1) {                                                              \
            return (T)space::name((float)x);                                                                     \
        } else {                                                                                                 \
            T r;                                                                                                 \
            for (int i = 0; i < shim::shape<T>::count; i++) r[i] = (E)space::name((float)x[i]);                  \
            return r;                                                                                            \
        }                                                                                                        \
    }                                                                                                            \
    }
#define PIANOLA_UNARY(name)         \
    PIANOLA_UNARY_IN(fast, name)    \
    PIANOLA_UNARY_IN(precise, name) \
    template <typename T> PIANOLA_INLINE T name(T x) { return fast::name(x); }

namespace metal {
PIANOLA_UNARY(exp)
PIANOLA_UNARY(exp2)
PIANOLA_UNARY(log)
PIANOLA_UNARY(log2)
PIANOLA_UNARY(sin)
PIANOLA_UNARY(cos)
PIANOLA_UNARY(tanh)
PIANOLA_UNARY(rsqrt)
PIANOLA_UNARY(sqrt)
#undef PIANOLA_UNARY
#undef PIANOLA_UNARY_IN

// Both arguments must have the same type, as in Metal.
template <typename T> PIANOLA_INLINE T min(T a, T b) { return __builtin_elementwise_min(a, b); }
template <typename T> PIANOLA_INLINE T max(T a, T b) { return __builtin_elementwise_max(a, b); }
template <typename T> PIANOLA_INLINE T fmin(T a, T b) { return __builtin_elementwise_min(a, b); }
template <typename T> PIANOLA_INLINE T fmax(T a, T b) { return __builtin_elementwise_max(a, b); }
template <typename T> PIANOLA_INLINE T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); }
template <typename T> PIANOLA_INLINE T abs(T x) { return __builtin_elementwise_abs(x); }
template <typename T> PIANOLA_INLINE T fabs(T x) { return __builtin_elementwise_abs(x); }
template <typename T> PIANOLA_INLINE T floor(T x) { return __builtin_elementwise_floor(x); }
template <typename T> PIANOLA_INLINE T ceil(T x) { return __builtin_elementwise_ceil(x); }
template <typename T> PIANOLA_INLINE T trunc(T x) { return __builtin_elementwise_trunc(x); }
template <typename T> PIANOLA_INLINE T rint(T x) { return __builtin_elementwise_rint(x); }
template <typename T> PIANOLA_INLINE T copysign(T a, T b) { return __builtin_elementwise_copysign(a, b); }
template <typename T> PIANOLA_INLINE T fma(T a, T b, T c) { return __builtin_elementwise_fma(a, b, c); }
template <typename T> PIANOLA_INLINE T popcount(T x) { return __builtin_elementwise_popcount(x); }
template <typename T> PIANOLA_INLINE T mix(T a, T b, T t) { return a + (b - a) * t; }
template <typename T> PIANOLA_INLINE T select(T a, T b, bool c) { return c ? b : a; }
PIANOLA_INLINE uint clz(uint x) { return x ? (uint)__builtin_clz(x) : 32u; }
PIANOLA_INLINE uint ctz(uint x) { return x ? (uint)__builtin_ctz(x) : 32u; }

template <typename V> PIANOLA_INLINE typename shim::shape<V>::element dot(V a, V b) {
    typename shim::shape<V>::element s = a[0] * b[0];
    for (int i = 1; i < shim::shape<V>::count; i++) s += a[i] * b[i];
    return s;
}
} // namespace metal
