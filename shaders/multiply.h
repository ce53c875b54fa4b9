// Products of small matrices by a SIMD group: 16 rows of A times 8 columns of B. Lane 4g+t
// holds rows g and g+8 of A and column g of B. Its results are columns 2t and 2t+1 in rows
// g (x, y) and g+8 (z, w). The caller may assign inner columns to the words of A in any
// order, if it assigns them to the words of B in the same order.
//
// NVIDIA has an instruction for each product from sm_80 on; elsewhere lanes exchange words.
#ifndef PIANOLA_MULTIPLY_H
#define PIANOLA_MULTIPLY_H

#include "pianola.h"

#if defined(PIANOLA_NVPTX) && PIANOLA_SM >= 80
#define PIANOLA_MMA 1
#endif

// The number of blocks of 8 columns of B that a kernel handles at a time. It is small where
// a product takes many instructions. The emulator uses the number of GPUs with the
// instructions.
#if defined(PIANOLA_MMA) || defined(PIANOLA_HOST)
#define PIANOLA_MMA_BLOCKS 8
#else
#define PIANOLA_MMA_BLOCKS 2
#endif

// multiply_bytes returns the products of 16 inner columns of int8. Lane 4g+t holds four of
// them: a.x for row g and a.y for row g+8.
static inline int4 multiply_bytes(uint2 a, uint b, int4 c, uint lane) {
#if defined(PIANOLA_MMA) || defined(PIANOLA_HOST)
    (void)lane;
    return metal::shim::multiply_bytes(a, b, c);
#else
    const uint row = lane / 4 * 4;
    const uint column = lane % 4 * 8;
    _Pragma("clang loop unroll(disable)")
    for (uint t = 0; t < 4; t++) {
        const uint2 p = simd_shuffle(a, ushort(row + t));
        const int q0 = int(simd_shuffle(b, ushort(column + t)));
        const int q1 = int(simd_shuffle(b, ushort(column + 4 + t)));
        c = int4(dot4(int(p.x), q0, c.x), dot4(int(p.x), q1, c.y), dot4(int(p.y), q0, c.z), dot4(int(p.y), q1, c.w));
    }
    return c;
#endif
}

// multiply_bytes2 does the same for 32 inner columns: a.x and a.y are for row g, a.z and
// a.w for row g+8.
static inline int4 multiply_bytes2(uint4 a, uint2 b, uint lane) {
#ifdef PIANOLA_MMA
    (void)lane;
    return metal::shim::multiply_bytes2(a, b);
#else
    return multiply_bytes(a.yw, b.y, multiply_bytes(a.xz, b.x, int4(0), lane), lane);
#endif
}

// dot2 returns c plus the products of the two halves of a and of b.
static inline float dot2(uint a, uint b, float c) {
    const float2 x = float2(as_type<half2>(a));
    const float2 y = float2(as_type<half2>(b));
    return c + x.x * y.x + x.y * y.y;
}

// multiply_halves adds the products of 16 inner columns of float16. Lane 4g+t holds four of
// them: a.x and a.y for row g, a.z and a.w for row g+8.
static inline void multiply_halves(thread float4 &c, uint4 a, uint2 b, uint lane) {
#ifdef PIANOLA_MMA
    (void)lane;
    c = metal::shim::multiply_halves(a, b, c);
#else
    const uint row = lane / 4 * 4;
    const uint column = lane % 4 * 8;
#ifdef PIANOLA_HOST
    // The emulator adds all products in one step. mma_16x8x16 in mma.h does the same.
    (void)row;
    (void)column;
    const uint2 upper = a.xy;
    const uint2 lower = a.zw;
    c = metal::shim::add_products(upper, lower, b, c);
    return;
#endif
    _Pragma("clang loop unroll(disable)")
    for (uint t = 0; t < 4; t++) {
        const uint4 p = simd_shuffle(a, ushort(row + t));
        const uint2 q0 = simd_shuffle(b, ushort(column + t));
        const uint2 q1 = simd_shuffle(b, ushort(column + 4 + t));
        c.x = dot2(p.y, q0.y, dot2(p.x, q0.x, c.x));
        c.y = dot2(p.y, q1.y, dot2(p.x, q1.x, c.y));
        c.z = dot2(p.w, q0.y, dot2(p.z, q0.x, c.z));
        c.w = dot2(p.w, q1.y, dot2(p.z, q1.x, c.w));
    }
#endif
}

#endif
