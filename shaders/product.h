// Code shared by products: their arguments, their input, and the conversion of the input to
// float16.
#ifndef PIANOLA_PRODUCT_H
#define PIANOLA_PRODUCT_H

#include "merge.h"
#include "quantise.h"
#include "silu.h"

// product is y = W * input + b, or y += W * input + b, for rows [first, last) of x. x2 and b are
// read only if silu, norm or bias is set.
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
    uint activation; // activation function if silu is set
    bool norm; // the input is normalised; not in gemm
    bool add;  // add the product to y; gemm always overwrites y
    float eps;
    bool merge; // the input is merged from splits; not in gemm
    split_row parts;
    float limit; // limit of the clamped activation
    uint wtype; // the exact type; the template parameter T is its family
};

// product1 returns activation(gate) * up for one element, product4 for four.
static inline float product1(thread const product &p, float gate, float up) {
    return p.activation == PIANOLA_ACTIVATION_CLAMPED_SWIGLU ? swiglu(gate, up, p.limit) : gated(p.activation, gate) * up;
}
static inline float4 product4(thread const product &p, float4 gate, float4 up) {
    if (p.activation == PIANOLA_ACTIVATION_CLAMPED_SWIGLU) {
        return float4(swiglu(gate.x, up.x, p.limit), swiglu(gate.y, up.y, p.limit), swiglu(gate.z, up.z, p.limit), swiglu(gate.w, up.w, p.limit));
    }
    return gated4(p.activation, gate) * up;
}

// input4 returns elements 4i to 4i+3 of a row of the input, or of x if the input is to be
// normalised. Plain means that the input is x and its vectors are aligned.
template <bool Plain>
static inline float4 input4(thread const product &p, uint row, uint i) {
    device const float *x = p.x + ulong(row) * p.x_stride + 4 * i;
    if (Plain || p.x_stride % 4 == 0) {
        const float4 v = *(device const float4 *)x;
        if (Plain || !p.silu) {
            return v;
        }
        return product4(p, v, *(device const float4 *)(p.x2 + (x - p.x)));
    }
    const float4 v = float4(x[0], x[1], x[2], x[3]);
    if (!p.silu) {
        return v;
    }
    device const float *f = p.x2 + (x - p.x);
    return product4(p, v, float4(f[0], f[1], f[2], f[3]));
}

// input1 returns element i.
static inline float input1(thread const product &p, uint row, uint i) {
    const ulong at = ulong(row) * p.x_stride + i;
    return p.silu ? product1(p, p.x[at], p.x2[at]) : p.x[at];
}

// norm_scale returns the norm's factor of a row; each thread passes its share of the sum of
// squares. tg must have room for a float per SIMD group. All threads must call it. A barrier is
// required before tg is written again.
static inline float norm_scale(thread const product &p, float squares, threadgroup float *tg, uint lane, uint simd, uint simds) {
    return rsqrt(threadgroup_sum(squares, tg, lane, simd, simds) / float(p.in) + p.eps);
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

// stage_input writes n elements of a row of the input, beginning with column c, to threadgroup
// memory. scale is the norm's factor.
static inline void stage_input(threadgroup float *to, thread const product &p, uint row, uint c, uint n, float scale, uint tid, uint threads) {
    if (p.merge) {
        for (uint i = tid; i < n / 4; i += threads) {
            split_reads r;
            load_splits(r, p.parts, c / 4 + i);
            ((threadgroup float4 *)to)[i] = merge_splits(r);
        }
        return;
    }
    for (uint i = tid; i < n; i += threads) {
        const float v = input1(p, row, c + i);
        to[i] = p.norm ? v * scale * p.x2[c + i] : v;
    }
}

// unit_of returns the power of two by which m must be divided to be between 1024 and 2048. All
// tiny values share one unit.
static inline float unit_of(float m) { return as_type<float>(max(as_type<uint>(m) & 0x7f800000u, 0x10000000u) - (10u << 23)); }

// halves4 converts four floats to float16. Values out of range become ±65504.
static inline uint2 halves4(float4 v) { return as_type<uint2>(clamp(half4(v), half4(-65504.0h), half4(65504.0h))); }

// PIANOLA_INPUT_READS is the number of vectors of the input that a lane loads before it uses
// the first.
#define PIANOLA_INPUT_READS 4

// input_part holds N of a lane's vectors of a row of x, and of x2 if it is used: every threads-th
// vector from the lane's first on. A vector is unset if no lane of the SIMD group has it. A
// lane past the end repeats the last vector.
template <uint N>
struct input_part {
    float4 x[N];
    float4 x2[N];
};

// vector_at reads four floats.
static inline float4 vector_at(device const float *x, bool aligned) {
    return aligned ? *(device const float4 *)x : float4(x[0], x[1], x[2], x[3]);
}

template <bool Aligned, uint N>
static inline void load_vectors(thread float4 *to, device const float *x, uint count, uint first, uint lane, uint threads) {
    PIANOLA_UNROLL
    for (uint k = 0; k < N; k++) {
        if (first + k * threads < count) {
            to[k] = vector_at(x + 4 * min(first + k * threads + lane, count - 1), Aligned);
        }
    }
}

// load_input reads a part. first is the index of lane 0's first vector.
template <uint N>
static inline void load_input(thread input_part<N> &part, thread const product &p, uint row, uint first, uint lane, uint threads) {
    const ulong at = ulong(row) * p.x_stride;
    const uint count = p.in / 4;
    if (at % 4 == 0) {
        load_vectors<true, N>(part.x, p.x + at, count, first, lane, threads);
        if (p.norm || p.silu) {
            load_vectors<true, N>(part.x2, p.norm ? p.x2 : p.x2 + at, count, first, lane, threads);
        }
    } else {
        load_vectors<false, N>(part.x, p.x + at, count, first, lane, threads);
        if (p.norm || p.silu) {
            load_vectors<false, N>(part.x2, p.norm ? p.x2 : p.x2 + at, count, first, lane, threads);
        }
    }
}

// row_squares returns the thread's share of the sum of squares of a row. It uses the vectors of the
// part and reads the row's other vectors from memory.
template <uint N>
static inline float row_squares(thread const input_part<N> &part, thread const product &p, uint row, uint lane, uint simd, uint simds) {
    const uint threads = simds * 32;
    const uint count = p.in / 4;
    float sum = 0.0f;
    PIANOLA_UNROLL
    for (uint k = 0; k < N; k++) {
        if (simd * 32 + k * threads < count) {
            sum += simd * 32 + k * threads + lane < count ? dot(part.x[k], part.x[k]) : 0.0f;
        }
    }
    for (uint i = simd * 32 + lane + N * threads; i < count; i += threads) {
        const float4 v = input4<false>(p, row, i);
        sum += dot(v, v);
    }
    return sum;
}

// made_input returns vector k of a part after the norm or the activation.
template <uint N>
static inline float4 made_input(thread const input_part<N> &part, thread const product &p, uint k, float norm) {
    const float4 v = part.x[k];
    if (p.norm) {
        return v * norm * part.x2[k];
    }
    return p.silu ? product4(p, v, part.x2[k]) : v;
}

// put_input writes vector i of count to stage or, in its 8-bit form, to q and d. stage holds
// the even vectors before the odd ones, because a lane reads two adjacent vectors.
template <bool Quantised>
static inline void put_input(threadgroup float4 *stage, threadgroup int *q, threadgroup float *d, float4 v, uint i, uint count) {
    if (!Quantised) {
        if (i < count) {
            stage[i % 2 * (count / 2) + i / 2] = v;
        }
        return;
    }
    int word;
    const float scale = quantise_block(word, v);
    if (i < count) {
        q[i] = word;
        if (i % 8 == 0) {
            d[i / 8] = scale;
        }
    }
}

// make_merged is make_input for an input that is merged from splits. A thread loads the data of
// two vectors before it uses the first.
template <bool Quantised>
static inline void make_merged(threadgroup float4 *stage, threadgroup int *q, threadgroup float *d, thread const product &p, uint lane, uint simd, uint simds) {
    const uint count = p.in / 4;
    const uint threads = simds * 32;
    for (uint first = simd * 32; first < count; first += 2 * threads) {
        split_reads part[2];
        PIANOLA_UNROLL
        for (uint k = 0; k < 2; k++) {
            if (first + k * threads < count) {
                load_splits(part[k], p.parts, min(first + k * threads + lane, count - 1));
            }
        }
        PIANOLA_UNROLL
        for (uint k = 0; k < 2; k++) {
            if (first + k * threads < count) {
                put_input<Quantised>(stage, q, d, merge_splits(part[k]), first + k * threads + lane, count);
            }
        }
    }
}

// make_input writes a row of the input to threadgroup memory: as floats to stage, or in its
// 8-bit form to q, in words of four int8, and d, with one scale per block of 32. tg is scratch
// for norm_scale. All threads must call it, and a barrier must follow.
template <bool Quantised>
static inline void make_input(threadgroup float4 *stage, threadgroup int *q, threadgroup float *d, threadgroup float *tg, thread const product &p, uint row, uint lane, uint simd, uint simds) {
    if (p.merge) {
        make_merged<Quantised>(stage, q, d, p, lane, simd, simds);
        return;
    }
    const uint count = p.in / 4;
    const uint threads = simds * 32;
    input_part<PIANOLA_INPUT_READS> part;
    load_input(part, p, row, simd * 32, lane, threads);
    const float norm = p.norm ? norm_scale(p, row_squares(part, p, row, lane, simd, simds), tg, lane, simd, simds) : 1.0f;
    for (uint first = simd * 32; first < count; first += PIANOLA_INPUT_READS * threads) {
        if (first != simd * 32) {
            load_input(part, p, row, first, lane, threads);
        }
        PIANOLA_UNROLL
        for (uint k = 0; k < PIANOLA_INPUT_READS; k++) {
            if (first + k * threads < count) {
                put_input<Quantised>(stage, q, d, made_input(part, p, k, norm), first + k * threads + lane, count);
            }
        }
    }
}

#endif
