// What gemv and gemm share: their arguments and their input.
#ifndef PIANOLA_PRODUCT_H
#define PIANOLA_PRODUCT_H

#include "silu.h"

// product is y = W * input + b, or what is added to y, for the rows of x from
// first to last-1. x2 and b are not read unless silu, norm and bias say that
// they are there.
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
    bool norm; // the input is normalised; gemm has none
    bool add;  // to y; gemm stores
    float eps;
};

// input4 returns elements 4i to 4i+3 of a row of the input, or of x if it is to
// be normalised. Plain says that it is x and that vectors of it are aligned.
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

// norm_scale returns the factor of a row whose squares the threads have summed
// up, each its own. tg has room for a float of each SIMD group. All threads must
// call it; before tg is written again there must be a barrier.
static inline float norm_scale(thread const product &p, float squares, threadgroup float *tg, uint lane, uint simd, uint simds) {
    return precise::rsqrt(threadgroup_sum(squares, tg, lane, simd, simds) / float(p.in) + p.eps);
}

// square_sum1 returns the sum of squares of the thread's elements of a row.
static inline float square_sum1(thread const product &p, uint row, uint tid, uint threads) {
    device const float *x = p.x + ulong(row) * p.x_stride;
    float sum = 0.0f;
    if (p.x_stride % 4 == 0 && p.in % 4 == 0) {
        for (uint i = tid; i < p.in / 4; i += threads) {
            const float4 v = ((device const float4 *)x)[i];
            sum += dot(v, v);
        }
        return sum;
    }
    for (uint i = tid; i < p.in; i += threads) {
        sum += x[i] * x[i];
    }
    return sum;
}

// stage_input writes n elements of a row of the input from column c on. scale
// is the norm's.
static inline void stage_input(threadgroup float *to, thread const product &p, uint row, uint c, uint n, float scale, uint tid, uint threads) {
    for (uint i = tid; i < n; i += threads) {
        const float v = input1(p, row, c + i);
        to[i] = p.norm ? v * scale * p.x2[c + i] : v;
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

// PIANOLA_INPUT_READS is how many vectors of the input a lane reads before it
// needs the first.
#define PIANOLA_INPUT_READS 4

// input_part is a lane's part of a row of the input: vectors that are as far
// apart as the threadgroup has threads. Of those past the last it has the last.
struct input_part {
    float4 v[PIANOLA_INPUT_READS];
};

// load_input reads a part from vector i on.
static inline void load_input(thread input_part &part, thread const product &p, uint row, uint i, uint threads) {
    _Pragma("clang loop unroll(full)")
    for (uint k = 0; k < PIANOLA_INPUT_READS; k++) {
        part.v[k] = input4<false>(p, row, min(i + k * threads, p.in / 4 - 1));
    }
}

// load_factors reads the norm's weights for a part.
static inline void load_factors(thread input_part &part, thread const product &p, uint i, uint threads) {
    _Pragma("clang loop unroll(full)")
    for (uint k = 0; k < PIANOLA_INPUT_READS; k++) {
        part.v[k] = ((device const float4 *)p.x2)[min(i + k * threads, p.in / 4 - 1)];
    }
}

// quantise writes the 8-bit form of a row of the input: blocks of 32 as words
// of four, and a scale each. tg is what norm_scale wants. All threads must call
// it; a barrier must follow.
static inline void quantise(threadgroup int *q, threadgroup float *d, threadgroup float *tg, thread const product &p, uint row, uint lane, uint simd, uint simds) {
    const uint count = p.in / 4;
    const uint threads = simds * 32;
    const uint tid = simd * 32 + lane;
    input_part x;
    input_part w;
    load_input(x, p, row, tid, threads);
    float norm = 1.0f;
    if (p.norm) {
        // What a part does not hold is read twice.
        load_factors(w, p, tid, threads);
        float sum = 0.0f;
        _Pragma("clang loop unroll(full)")
        for (uint k = 0; k < PIANOLA_INPUT_READS; k++) {
            sum += tid + k * threads < count ? dot(x.v[k], x.v[k]) : 0.0f;
        }
        for (uint i = tid + PIANOLA_INPUT_READS * threads; i < count; i += threads) {
            const float4 v = input4<false>(p, row, i);
            sum += dot(v, v);
        }
        norm = norm_scale(p, sum, tg, lane, simd, simds);
    }
    for (uint first = simd * 32; first < count; first += PIANOLA_INPUT_READS * threads) {
        if (first != simd * 32) {
            load_input(x, p, row, first + lane, threads);
            if (p.norm) {
                load_factors(w, p, first + lane, threads);
            }
        }
        _Pragma("clang loop unroll(full)")
        for (uint k = 0; k < PIANOLA_INPUT_READS; k++) {
            const uint i = first + k * threads + lane;
            if (i - lane >= count) {
                break;
            }
            int word;
            const float scale = quantise_block(word, p.norm ? x.v[k] * norm * w.v[k] : x.v[k]);
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
