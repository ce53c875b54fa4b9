// What gemv and gemm share: their arguments and their input.
#ifndef PIANOLA_PRODUCT_H
#define PIANOLA_PRODUCT_H

#include "silu.h"

// product is y = W * input + b for the rows of x from first to last-1. x2 and b
// are not read unless silu and bias say that they are there.
struct product {
    device const float *x;
    device const float *x2;
    device const uchar *w;
    device const float *b;
    device float *y;
    uint in, out, x_stride, y_stride;
    uint group;       // rows of W that a threadgroup computes
    uint first, last; // rows of x
    bool silu, bias;
};

// input4 returns elements 4i to 4i+3 of a row of the input. Plain says that it
// is x and that vectors of it are aligned.
template <bool Plain>
static inline float4 input4(thread const product &p, uint row, uint i) {
    device const float *x = p.x + ulong(row) * p.x_stride + 4 * i;
    if (Plain || p.x_stride % 4 == 0) {
        const float4 v = *(device const float4 *)x;
        if (Plain || !p.silu) {
            return v;
        }
        return float4(silu(v.x), silu(v.y), silu(v.z), silu(v.w)) * *(device const float4 *)(p.x2 + (x - p.x));
    }
    const float4 v = float4(x[0], x[1], x[2], x[3]);
    if (!p.silu) {
        return v;
    }
    device const float *f = p.x2 + (x - p.x);
    return float4(silu(v.x), silu(v.y), silu(v.z), silu(v.w)) * float4(f[0], f[1], f[2], f[3]);
}

// input1 returns element i.
static inline float input1(thread const product &p, uint row, uint i) {
    const ulong at = ulong(row) * p.x_stride + i;
    return p.silu ? silu(p.x[at]) * p.x2[at] : p.x[at];
}

// stage_input writes n elements of a row of the input from column c on.
static inline void stage_input(threadgroup float *to, thread const product &p, uint row, uint c, uint n, uint tid, uint threads) {
    for (uint i = tid; i < n; i += threads) {
        to[i] = input1(p, row, c + i);
    }
}

// quantise_block makes four int8 of each lane's part of a block of 32, which
// eight lanes have, and returns the block's scale. Integers are those of every
// other device.
static inline float quantise_block(thread int &q, float4 v) {
    float most = max(max(abs(v.x), abs(v.y)), max(abs(v.z), abs(v.w)));
    most = max(most, simd_shuffle_xor(most, ushort(1)));
    most = max(most, simd_shuffle_xor(most, ushort(2)));
    most = max(most, simd_shuffle_xor(most, ushort(4)));
    float scale = precise::divide(most, 127.0f);
    float inverse = 0.0f;
    if (scale >= FLT_MIN) {
        inverse = precise::divide(1.0f, scale);
    } else {
        scale = 0.0f;
    }
    q = as_type<int>(char4(clamp(rint(v * inverse), float4(-127.0f), float4(127.0f))));
    return scale;
}

// quantise writes the 8-bit form of a row of the input: blocks of 32 as words
// of four, and a scale each. All threads must call it; a barrier must follow.
static inline void quantise(threadgroup int *q, threadgroup float *d, thread const product &p, uint row, uint lane, uint simd, uint simds) {
    const uint count = p.in / 4;
    // A lane reads some vectors before it needs the first.
    for (uint first = simd * 32; first < count; first += 4 * simds * 32) {
        float4 v[4];
        _Pragma("clang loop unroll(full)")
        for (uint k = 0; k < 4; k++) {
            v[k] = input4<false>(p, row, min(first + k * simds * 32 + lane, count - 1));
        }
        _Pragma("clang loop unroll(full)")
        for (uint k = 0; k < 4; k++) {
            const uint i = first + k * simds * 32 + lane;
            if (i - lane >= count) {
                break;
            }
            int word;
            const float scale = quantise_block(word, v[k]);
            if (i < count) {
                q[i] = word;
                if (lane % 8 == 0) {
                    d[i / 8] = scale;
                }
            }
        }
    }
}

#endif
