// Scalars, vectors and their constructors.
#pragma once
#pragma clang system_header

namespace metal {
template <typename T, int N> using vec = T __attribute__((ext_vector_type(N)));

namespace shim {
// shape<T> gives the element type and the number of elements of a scalar or vector type.
template <typename T> struct shape {
    typedef T element;
    enum { count = 1 };
};
template <typename T, int N> struct shape<T __attribute__((ext_vector_type(N)))> {
    typedef T element;
    enum { count = N };
};

template <typename T, typename U> struct same { enum { value = 0 }; };
template <typename T> struct same<T, T> { enum { value = 1 }; };

// put writes the elements of a to r, beginning at i, and returns the next free index.
template <typename V, typename A> PIANOLA_INLINE int put(thread V &r, int i, A a) {
    typedef typename shape<V>::element E;
    if constexpr (shape<A>::count == 1) {
        r[i] = (E)a;
    } else {
        for (int k = 0; k < shape<A>::count; k++) r[i + k] = (E)a[k];
    }
    return i + shape<A>::count;
}

// make constructs a vector from one scalar for all elements, from a vector of another element
// type, or from parts with the right total number of elements.
template <typename V, typename... A> constexpr PIANOLA_INLINE V make(A... a) {
    typedef typename shape<V>::element E;
    if constexpr (sizeof...(A) == 0) {
        return (V)(E)0;
    } else if constexpr (sizeof...(A) == 1 && ((shape<A>::count == 1) && ...)) {
        return (V)((E)a, ...);
    } else {
        static_assert(((int)shape<A>::count + ...) == (int)shape<V>::count, "vector constructor: wrong number of elements");
        if constexpr (sizeof...(A) == 1) {
            return __builtin_convertvector((a, ...), V);
        } else if constexpr (((shape<A>::count == 1) && ...)) {
            return V{(E)a...};
        } else {
            V r;
            int i = 0;
            ((i = put(r, i, a)), ...);
            return r;
        }
    }
}
} // namespace shim
} // namespace metal

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;

#define PIANOLA_VECTORS(T)                              \
    typedef T T##2 __attribute__((ext_vector_type(2))); \
    typedef T T##3 __attribute__((ext_vector_type(3))); \
    typedef T T##4 __attribute__((ext_vector_type(4)));
PIANOLA_VECTORS(char)
PIANOLA_VECTORS(uchar)
PIANOLA_VECTORS(short)
PIANOLA_VECTORS(ushort)
PIANOLA_VECTORS(int)
PIANOLA_VECTORS(uint)
PIANOLA_VECTORS(long)
PIANOLA_VECTORS(ulong)
PIANOLA_VECTORS(half)
PIANOLA_VECTORS(float)
#undef PIANOLA_VECTORS

// A name followed by a parenthesis is a constructor; otherwise it is the type.
#define char2(...) metal::shim::make<char2>(__VA_ARGS__)
#define char3(...) metal::shim::make<char3>(__VA_ARGS__)
#define char4(...) metal::shim::make<char4>(__VA_ARGS__)
#define uchar2(...) metal::shim::make<uchar2>(__VA_ARGS__)
#define uchar3(...) metal::shim::make<uchar3>(__VA_ARGS__)
#define uchar4(...) metal::shim::make<uchar4>(__VA_ARGS__)
#define short2(...) metal::shim::make<short2>(__VA_ARGS__)
#define short3(...) metal::shim::make<short3>(__VA_ARGS__)
#define short4(...) metal::shim::make<short4>(__VA_ARGS__)
#define ushort2(...) metal::shim::make<ushort2>(__VA_ARGS__)
#define ushort3(...) metal::shim::make<ushort3>(__VA_ARGS__)
#define ushort4(...) metal::shim::make<ushort4>(__VA_ARGS__)
#define int2(...) metal::shim::make<int2>(__VA_ARGS__)
#define int3(...) metal::shim::make<int3>(__VA_ARGS__)
#define int4(...) metal::shim::make<int4>(__VA_ARGS__)
#define uint2(...) metal::shim::make<uint2>(__VA_ARGS__)
#define uint3(...) metal::shim::make<uint3>(__VA_ARGS__)
#define uint4(...) metal::shim::make<uint4>(__VA_ARGS__)
#define ulong2(...) metal::shim::make<ulong2>(__VA_ARGS__)
#define half2(...) metal::shim::make<half2>(__VA_ARGS__)
#define half3(...) metal::shim::make<half3>(__VA_ARGS__)
#define half4(...) metal::shim::make<half4>(__VA_ARGS__)
#define float2(...) metal::shim::make<float2>(__VA_ARGS__)
#define float3(...) metal::shim::make<float3>(__VA_ARGS__)
#define float4(...) metal::shim::make<float4>(__VA_ARGS__)

// Packed vectors have the alignment of their elements.
typedef float packed_float2 __attribute__((ext_vector_type(2), aligned(4)));
typedef float packed_float4 __attribute__((ext_vector_type(4), aligned(4)));
typedef half packed_half2 __attribute__((ext_vector_type(2), aligned(2)));
typedef half packed_half4 __attribute__((ext_vector_type(4), aligned(2)));
typedef char packed_char4 __attribute__((ext_vector_type(4), aligned(1)));
typedef uchar packed_uchar4 __attribute__((ext_vector_type(4), aligned(1)));
typedef ushort packed_ushort2 __attribute__((ext_vector_type(2), aligned(2)));
typedef ushort packed_ushort4 __attribute__((ext_vector_type(4), aligned(2)));

// INFINITY and NAN are not defined, because Metal's fast math assumes that they do not occur.
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.1920929e-7f
#define HALF_MAX 65504.0h

template <typename T, typename S> PIANOLA_INLINE T as_type(S s) {
    static_assert(sizeof(T) == sizeof(S), "as_type: the sizes differ");
    return __builtin_bit_cast(T, s);
}

namespace metal {
using ::as_type;

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
PIANOLA_INLINE mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
} // namespace metal
