// Relaxed atomics, the only ones that Metal has.
#pragma once
#pragma clang system_header

namespace metal {
enum memory_order { memory_order_relaxed };
template <typename T> struct atomic { T value; };
#if defined(PIANOLA_CHECK)
// clang already defines types with these names.
#define atomic_uint metal::atomic<uint>
#define atomic_int metal::atomic<int>
#define atomic_float metal::atomic<float>
#define PIANOLA_BODY(...) ;
#else
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
typedef atomic<float> atomic_float;
#define PIANOLA_BODY(...) { __VA_ARGS__ }
#endif
#define PIANOLA_ATOMICS(space)                                                                                     \
    template <typename T> PIANOLA_INLINE T atomic_load_explicit(const volatile space atomic<T> *p, memory_order)   \
    PIANOLA_BODY(return __atomic_load_n(&p->value, __ATOMIC_RELAXED);)                                             \
    template <typename T, typename U>                                                                              \
    PIANOLA_INLINE void atomic_store_explicit(volatile space atomic<T> *p, U v, memory_order)                      \
    PIANOLA_BODY(__atomic_store_n(&p->value, (T)v, __ATOMIC_RELAXED);)                                             \
    template <typename T, typename U>                                                                              \
    PIANOLA_INLINE T atomic_fetch_add_explicit(volatile space atomic<T> *p, U v, memory_order)                     \
    PIANOLA_BODY(return __atomic_fetch_add(&p->value, (T)v, __ATOMIC_RELAXED);)                                    \
    template <typename T, typename U>                                                                              \
    PIANOLA_INLINE T atomic_fetch_max_explicit(volatile space atomic<T> *p, U v, memory_order)                     \
    PIANOLA_BODY(return __atomic_fetch_max(&p->value, (T)v, __ATOMIC_RELAXED);)                                    \
    template <typename T, typename U>                                                                              \
    PIANOLA_INLINE T atomic_fetch_or_explicit(volatile space atomic<T> *p, U v, memory_order)                      \
    PIANOLA_BODY(return __atomic_fetch_or(&p->value, (T)v, __ATOMIC_RELAXED);)
PIANOLA_ATOMICS(device)
PIANOLA_ATOMICS(threadgroup)
#undef PIANOLA_ATOMICS
#undef PIANOLA_BODY
} // namespace metal
