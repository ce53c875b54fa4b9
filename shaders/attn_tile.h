// Prefill attention: many rows and heads share K and V, which are loaded to threadgroup memory
// tile by tile. The products are matrix products of float16. K and V are float16, or int8 whose
// scales are applied to the other operand. Q and the weights are each split into the sum of two
// float16.
#ifndef PIANOLA_ATTN_TILE_H
#define PIANOLA_ATTN_TILE_H

#include "attn.h"
#include "mma.h"

// Number of positions in a tile.
#define PIANOLA_TILE 64

// The initial maximum score of a row. It is above the score of invisible positions, so that their
// weight is 0.
#define PIANOLA_UNSEEN (0.5f * PIANOLA_LOWEST)

// Factor of the weights of V, in addition to a q8_0 cache's scales. It keeps the low halves of
// the weights out of the subnormal range for V down to 0.1, without overflow for V up to 30,000.
#define PIANOLA_V_UNIT 256.0f

// attn_rows describes the tiled work of a threadgroup. Its attn_part is the first row's, except
// that begin and end cover the positions of all rows.
struct attn_rows {
    device const float *q; // Q of the first row
    uint rows;        // number of rows of the threadgroup, at least 1
    uint q_stride;    // elements of q from one row to the next
    uint out_stride;  // elements of out from one row to the next
    uint kv_len;      // number of visible positions of the first row, including its own
    uint window;      // largest number of positions that a row sees
};

// attn_sees returns the range of positions that a row sees, which may be empty.
static inline uint2 attn_sees(thread const attn_part &a, thread const attn_rows &t, uint row) {
    const uint end = t.kv_len + row;
    return uint2(max(a.begin, end - min(end, t.window)), min(a.end, end));
}

// tile_halves converts four int8 to float16, which is exact.
static inline uint2 tile_halves(uint q) {
    const uint above = q ^ PIANOLA_BYTES(128); // q + 128; byte 0x64 above it makes the float16 1152 + q
    const half2 zero = half2(half(1152.0f), half(1152.0f));
    return uint2(as_type<uint>(as_type<half2>(permute(above, PIANOLA_BYTES(0x64), 0x4140)) - zero),
                 as_type<uint>(as_type<half2>(permute(above, PIANOLA_BYTES(0x64), 0x4342)) - zero));
}

// tile_four returns four elements of a row as float16, without the scale; tile_eight returns
// eight.
static inline uint2 tile_four(kv_rows rows, uint kind, uint d, ulong row, uint at) {
    if (kind == PIANOLA_KV_Q8_0) {
        return tile_halves(*(device const uint *)(rows.values + row * d + at));
    }
    return *(device const uint2 *)(rows.values + 2 * (row * d + at));
}
static inline uint4 tile_eight(kv_rows rows, uint kind, uint d, ulong row, uint at) {
    if (kind == PIANOLA_KV_Q8_0) {
        const uint2 q = *(device const uint2 *)(rows.values + row * d + at);
        return uint4(tile_halves(q.x), tile_halves(q.y));
    }
    return *(device const uint4 *)(rows.values + 2 * (row * d + at));
}

// load_tile loads a tile of K and V to threadgroup memory.
//
//	k       [positions][D + 16] float16
//	v       [positions/4][D + 4][4] float16: each element of 4 consecutive positions
//	scales  [D/32][positions] float16 for K, then the same for V, if the kind is q8_0
//
// The extra 16 and 4 elements avoid bank conflicts.
template <uint D>
static inline void load_tile(thread const attn_part &a, uint tile, threadgroup half *k, threadgroup uint2 *v, threadgroup half *scales, uint tid, uint threads) {
    if (a.kind == PIANOLA_KV_Q8_0) {
        for (uint i = tid; i < PIANOLA_TILE * (D / 32); i += threads) {
            const uint block = i / PIANOLA_TILE;
            const bool there = block < a.d / 32;
            const ulong at = cache_at(a, tile * PIANOLA_TILE + i % PIANOLA_TILE) * (a.d / 32) + (there ? block : 0);
            scales[i] = there ? a.k.scales[at] : half(0.0f);
            scales[PIANOLA_TILE * (D / 32) + i] = there ? a.v.scales[at] : half(0.0f);
        }
    }
    for (uint i = tid; i < PIANOLA_TILE * (D / 8); i += threads) {
        const uint position = i / (D / 8);
        const uint at = i % (D / 8) * 8;
        uint4 words = uint4(0);
        if (at < a.d) {
            words = tile_eight(a.k, a.kind, a.d, cache_at(a, tile * PIANOLA_TILE + position), at);
        }
        *(threadgroup uint4 *)(k + position * (D + 16) + at) = words;
    }
    for (uint i = tid; i < PIANOLA_TILE / 4 * (D / 4); i += threads) {
        const uint four = i / (D / 4);
        const uint at = i % (D / 4) * 4;
        const uint position = tile * PIANOLA_TILE + four * 4;
        uint2 x = uint2(0);
        uint2 y = uint2(0);
        uint2 z = uint2(0);
        uint2 w = uint2(0);
        if (at < a.d) {
            x = tile_four(a.v, a.kind, a.d, cache_at(a, position), at);
            y = tile_four(a.v, a.kind, a.d, cache_at(a, position + 1), at);
            z = tile_four(a.v, a.kind, a.d, cache_at(a, position + 2), at);
            w = tile_four(a.v, a.kind, a.d, cache_at(a, position + 3), at);
        }
        threadgroup uint4 *to = (threadgroup uint4 *)(v + four * (D + 4) + at);
        to[0] = uint4((x.x & 0xffff) | (y.x << 16), (z.x & 0xffff) | (w.x << 16), (x.x >> 16) | (y.x & 0xffff0000), (z.x >> 16) | (w.x & 0xffff0000));
        to[1] = uint4((x.y & 0xffff) | (y.y << 16), (z.y & 0xffff) | (w.y << 16), (x.y >> 16) | (y.y & 0xffff0000), (z.y >> 16) | (w.y & 0xffff0000));
    }
}

// halves_of returns two floats as float16 in x, and their rounding errors as float16 in y.
static inline uint2 halves_of(float x, float y) {
    const half2 v = half2(x, y);
    return uint2(as_type<uint>(v), as_type<uint>(half2(float2(x, y) - float2(v))));
}

// tile_weights holds the weights of 16 positions and their rounding errors, in the layout of an
// operand of a product.
struct tile_weights {
    uint4 value;
    uint4 rest;
};

// weights_of returns the weights of 4 positions for two rows: low holds the first two weights
// of each row, high the others.
static inline tile_weights weights_of(float4 low, float4 high) {
    const uint2 x = halves_of(low.x, low.y);
    const uint2 y = halves_of(low.z, low.w);
    const uint2 z = halves_of(high.x, high.y);
    const uint2 w = halves_of(high.z, high.w);
    return {uint4(x.x, y.x, z.x, w.x), uint4(x.y, y.y, z.y, w.y)};
}

// attend_tile computes heads of up to D elements for some rows; D is a multiple of 16. A SIMD
// group processes 16 rows of a head at a time. Lanes hold elements in the layout of
// mma_16x8x16, except that the 16 elements of a sum are in another order: lane j of 4 holds the
// adjacent elements 4j to 4j+3.
template <uint D>
static inline void attend_tile(thread const attn_part &a, thread const attn_rows &t, threadgroup uchar *tg, uint tid, uint lane, uint simd, uint simds) {
    threadgroup half *k = (threadgroup half *)tg;
    threadgroup uint2 *v = (threadgroup uint2 *)(tg + PIANOLA_TILE * (D + 16) * 2);
    const bool q8 = a.kind == PIANOLA_KV_Q8_0;
    // The lane's own elements of Q. No other lane reads or writes them.
    threadgroup uint4 *q = (threadgroup uint4 *)(tg + PIANOLA_TILE * (D + 16) * 2 + PIANOLA_TILE * (D + 4) * 2) + simd * (D / 8) * 32 + lane;
    // After the Q of all SIMD groups: the scales of K, then the scales of V.
    threadgroup half *scales = (threadgroup half *)(tg + PIANOLA_TILE * (D + 16) * 2 + PIANOLA_TILE * (D + 4) * 2 + simds * (D / 8) * 512);
    const uint g = lane / 4;
    const uint j = lane % 4;
    const uint blocks = (t.rows + 15) / 16;
    const uint units = a.heads * blocks;
    const uint2 none = uint2(0, 0);
    for (uint base = 0; base < units; base += simds) {
        const uint unit = base + simd;
        const uint head = min(unit, units - 1) / blocks;
        const uint block = min(unit, units - 1) % blocks * 16;
        const uint row0 = min(block + g, t.rows - 1);
        const uint row1 = min(block + g + 8, t.rows - 1);
        const uint2 sees0 = attn_sees(a, t, row0);
        const uint2 sees1 = attn_sees(a, t, row1);
        // all: the positions that every row of the block sees. any: the positions that at least
        // one row sees.
        const uint last = min(block + 15, t.rows - 1);
        const uint2 all = uint2(attn_sees(a, t, last).x, attn_sees(a, t, block).y);
        const uint2 any = unit < units ? uint2(attn_sees(a, t, block).x, attn_sees(a, t, last).y) : none;
        device const float *q0 = t.q + ulong(row0) * t.q_stride + head * a.d;
        device const float *q1 = t.q + ulong(row1) * t.q_stride + head * a.d;
        for (uint i = 0; i < D / 16; i++) {
            uint2 x = none;
            uint2 y = none;
            uint2 z = none;
            uint2 w = none;
            const uint at = 16 * i + 4 * j;
            if (at < a.d) {
                x = halves_of(q0[at] * a.scale, q0[at + 1] * a.scale);
                y = halves_of(q1[at] * a.scale, q1[at + 1] * a.scale);
                z = halves_of(q0[at + 2] * a.scale, q0[at + 3] * a.scale);
                w = halves_of(q1[at + 2] * a.scale, q1[at + 3] * a.scale);
            }
            q[2 * i * 32] = uint4(x.x, y.x, z.x, w.x);
            q[(2 * i + 1) * 32] = uint4(x.y, y.y, z.y, w.y);
        }
        float4 acc[D / 8];
        PIANOLA_UNROLL
        for (uint n = 0; n < D / 8; n++) {
            acc[n] = float4(0.0f);
        }
        float2 top = float2(PIANOLA_UNSEEN); // maximum scores of rows g and g+8
        float2 sum = float2(0.0f);           // sums of weights over the lane's positions
        for (uint tile = a.begin / PIANOLA_TILE; tile * PIANOLA_TILE < a.end; tile++) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            load_tile<D>(a, tile, k, v, scales, tid, simds * 32);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint half_tile = 0; half_tile < PIANOLA_TILE; half_tile += 32) {
                const uint from = tile * PIANOLA_TILE + half_tile;
                if (from >= any.y || from + 32 <= any.x) {
                    continue;
                }
                // Columns of the score products are permuted so that a lane's scores are the
                // operand of the product with V: column c of products 2i and 2i+1 is position
                // 16i + 4(c/2) + c%2, and that plus 2.
                float4 score[4];
                float4 scaled[4]; // scores including the scales of a q8_0 cache
                PIANOLA_UNROLL
                for (uint n = 0; n < 4; n++) {
                    score[n] = float4(0.0f);
                    scaled[n] = float4(0.0f);
                }
                threadgroup const half *rows = k + (half_tile + g / 2 * 4 + g % 2) * (D + 16) + 4 * j;
                PIANOLA_UNROLL
                for (uint i = 0; i < D / 16; i++) {
                    const uint4 x = q[2 * i * 32];
                    const uint4 rest = q[(2 * i + 1) * 32];
                    uint2 y[4];
                    PIANOLA_UNROLL
                    for (uint n = 0; n < 4; n++) {
                        y[n] = *(threadgroup const uint2 *)(rows + (n / 2 * 16 + n % 2 * 2) * (D + 16) + 16 * i);
                        score[n] = mma_16x8x16(x, y[n], score[n], lane);
                    }
                    PIANOLA_UNROLL
                    for (uint n = 0; n < 4; n++) {
                        score[n] = mma_16x8x16(rest, y[n], score[n], lane);
                    }
                    if (q8 && i % 2 == 1) {
                        // A q8_0 block ends: multiply the sums of its 32 elements by their
                        // scale.
                        PIANOLA_UNROLL
                        for (uint n = 0; n < 4; n++) {
                            const float2 by = float2(*(threadgroup const half2 *)(scales + i / 2 * PIANOLA_TILE + half_tile + n / 2 * 16 + n % 2 * 2 + 4 * j));
                            scaled[n] += score[n] * float4(by.x, by.y, by.x, by.y);
                            score[n] = float4(0.0f);
                        }
                    }
                }
                if (q8) {
                    PIANOLA_UNROLL
                    for (uint n = 0; n < 4; n++) {
                        score[n] = scaled[n];
                    }
                }
                if (from < all.x || from + 32 > all.y) {
                    PIANOLA_UNROLL
                    for (uint n = 0; n < 4; n++) {
                        const uint p = from + n / 2 * 16 + n % 2 * 2 + 4 * j;
                        score[n].x = p >= sees0.x && p < sees0.y ? score[n].x : PIANOLA_LOWEST;
                        score[n].y = p + 1 >= sees0.x && p + 1 < sees0.y ? score[n].y : PIANOLA_LOWEST;
                        score[n].z = p >= sees1.x && p < sees1.y ? score[n].z : PIANOLA_LOWEST;
                        score[n].w = p + 1 >= sees1.x && p + 1 < sees1.y ? score[n].w : PIANOLA_LOWEST;
                    }
                }
                float2 most = top;
                PIANOLA_UNROLL
                for (uint n = 0; n < 4; n++) {
                    most = max(most, max(score[n].xz, score[n].yw));
                }
                most = max(most, simd_shuffle_xor(most, ushort(1)));
                most = max(most, simd_shuffle_xor(most, ushort(2)));
                const float2 shrink = exp2(top - most);
                top = most;
                sum *= shrink;
                PIANOLA_UNROLL
                for (uint n = 0; n < D / 8; n++) {
                    acc[n] *= float4(shrink.x, shrink.x, shrink.y, shrink.y);
                }
                PIANOLA_UNROLL
                for (uint n = 0; n < 4; n++) {
                    score[n] = exp2(score[n] - float4(most.x, most.x, most.y, most.y));
                    sum += float2(score[n].x + score[n].y, score[n].z + score[n].w);
                }
                PIANOLA_UNROLL
                for (uint i = 0; i < 2; i++) {
                    threadgroup const uint2 *columns = v + (half_tile / 4 + 4 * i + j) * (D + 4) + g;
                    float4 low = score[2 * i];
                    float4 high = score[2 * i + 1];
                    tile_weights w = weights_of(low, high);
                    PIANOLA_UNROLL
                    for (uint n = 0; n < D / 8; n++) {
                        if (q8 && n % 4 == 0) {
                            // The next 32 elements of V have their own scales.
                            threadgroup const half2 *by = (threadgroup const half2 *)(scales + (D / 32 + n / 4) * PIANOLA_TILE + half_tile + 16 * i + 4 * j);
                            const float2 first = float2(by[0]) * PIANOLA_V_UNIT;
                            const float2 second = float2(by[1]) * PIANOLA_V_UNIT;
                            w = weights_of(low * float4(first.x, first.y, first.x, first.y), high * float4(second.x, second.y, second.x, second.y));
                        }
                        const uint2 column = columns[8 * n];
                        acc[n] = mma_16x8x16(w.rest, column, acc[n], lane);
                        acc[n] = mma_16x8x16(w.value, column, acc[n], lane);
                    }
                }
            }
        }
        sum += simd_shuffle_xor(sum, ushort(1));
        sum += simd_shuffle_xor(sum, ushort(2));
        float2 ones = float2(q8 ? 1.0f / PIANOLA_V_UNIT : 1.0f);
        if (a.learned) {
            const float2 logit = float2(a.logits[head] * M_LOG2E_F);
            const float2 most = max(top, logit);
            const float2 shrink = exp2(top - most);
            sum = sum * shrink + exp2(logit - most);
            ones *= shrink;
        }
        const float2 scale = float2(sum.x == 0.0f ? 1.0f : ones.x / sum.x, sum.y == 0.0f ? 1.0f : ones.y / sum.y);
        device float *out = a.out + head * a.stride;
        const bool write0 = unit < units && block + g < t.rows;
        const bool write1 = unit < units && block + g + 8 < t.rows;
        device float *out0 = out + ulong(row0) * t.out_stride;
        device float *out1 = out + ulong(row1) * t.out_stride;
        PIANOLA_UNROLL
        for (uint n = 0; n < D / 8; n++) {
            const uint at = 8 * n + 2 * j;
            if (write0 && at < a.d) {
                *(device float2 *)(out0 + at) = acc[n].xy * scale.x;
            }
            if (write1 && at < a.d) {
                *(device float2 *)(out1 + at) = acc[n].zw * scale.y;
            }
        }
    }
}

#endif
