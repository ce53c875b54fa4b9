// Products of small float16 matrices by a SIMD group. The lanes hold elements in a documented
// layout, so that the result of a product can be an operand of the next one.
#ifndef PIANOLA_MMA_H
#define PIANOLA_MMA_H

#include "pianola.h"

// half_dot returns the sum of the two products of two pairs of float16, in float32.
static inline float half_dot(uint a, uint b) {
    const float2 x = float2(as_type<half2>(a));
    const float2 y = float2(as_type<half2>(b));
    return x.x * y.x + x.y * y.y;
}

// mma_16x8x16 returns a·b + c. With g = lane/4 and j = lane%4, a lane holds
//
//	a, 16 by 16 float16: .x row g, .y row g+8, columns 2j and 2j+1; .z, .w the same rows, columns 2j+8 and 2j+9
//	b, 16 by 8 float16:  .x rows 2j and 2j+1, .y rows 2j+8 and 2j+9, of column g
//	c, 16 by 8 float32:  .xy row g, .zw row g+8, columns 2j and 2j+1
//
// It is one instruction on NVIDIA GPUs since Ampere. On other GPUs the lanes exchange elements.
// All lanes must call it.
static inline float4 mma_16x8x16(uint4 a, uint2 b, float4 c, uint lane) {
#ifdef PIANOLA_MMA
    (void)lane;
    return metal::shim::mma(a, b, c);
#else
    const uint row = lane / 4 * 4;
    const uint column = lane % 4 * 8;
#ifdef PIANOLA_HOST
    // The emulator adds the products of all 16 columns of a in one step, as NVIDIA's matrix units
    // do. It gets the operands of all lanes in one exchange, because emulated kernels spend most
    // of their time in exchanges.
    (void)row;
    (void)column;
    const uint2 upper = a.xz;
    const uint2 lower = a.yw;
    return metal::shim::add_products(upper, lower, b, c);
#endif
    _Pragma("clang loop unroll(disable)")
    for (uint j = 0; j < 4; j++) {
        const uint4 x = simd_shuffle(a, ushort(row + j));
        const uint2 y = simd_shuffle(b, ushort(column + j));
        const uint2 z = simd_shuffle(b, ushort(column + 4 + j));
        c.x += half_dot(x.x, y.x) + half_dot(x.z, y.y);
        c.y += half_dot(x.x, z.x) + half_dot(x.z, z.y);
        c.z += half_dot(x.y, y.x) + half_dot(x.w, y.y);
        c.w += half_dot(x.y, z.x) + half_dot(x.w, z.y);
    }
    return c;
#endif
}

// add_product adds a·b to the lane's four elements of c.
static inline void add_product(thread float *c, uint4 a, uint2 b, uint lane) {
    const float4 v = mma_16x8x16(a, b, float4(c[0], c[1], c[2], c[3]), lane);
    c[0] = v.x;
    c[1] = v.y;
    c[2] = v.z;
    c[3] = v.w;
}

// matrices loads four matrices of 8 by 8 float16 from threadgroup memory. at is the offset of a row
// of 16 bytes from base; lane l passes that of row l%8 of matrix l/8. A lane gets, of each matrix,
// columns 2j and 2j+1 of row g. matrices_across gets rows 2j and 2j+1 of column g. Either is one
// instruction on NVIDIA GPUs since Ampere. All lanes must call it.
static inline uint4 matrices(threadgroup const uchar *base, uint at, uint lane) {
#if defined(PIANOLA_MMA) || defined(PIANOLA_HOST)
    (void)lane;
    return metal::shim::load_matrices(base + at);
#else
    uint4 to;
    PIANOLA_UNROLL
    for (uint i = 0; i < 4; i++) {
        to[i] = *(threadgroup const uint *)(base + simd_shuffle(at, ushort(8 * i + lane / 4)) + lane % 4 * 4);
    }
    return to;
#endif
}
static inline uint4 matrices_across(threadgroup const uchar *base, uint at, uint lane) {
#if defined(PIANOLA_MMA) || defined(PIANOLA_HOST)
    (void)lane;
    return metal::shim::load_matrices_across(base + at);
#else
    uint4 to;
    PIANOLA_UNROLL
    for (uint i = 0; i < 4; i++) {
        const uint low = *(threadgroup const ushort *)(base + simd_shuffle(at, ushort(8 * i + lane % 4 * 2)) + lane / 4 * 2);
        const uint high = *(threadgroup const ushort *)(base + simd_shuffle(at, ushort(8 * i + lane % 4 * 2 + 1)) + lane / 4 * 2);
        to[i] = low | high << 16;
    }
    return to;
#endif
}

#endif
