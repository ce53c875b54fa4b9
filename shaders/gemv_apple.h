// Products of a matrix in layout Rows and one row of unquantized activations, or a few rows, in the
// shape of Apple's GPUs.
//
// A threadgroup computes many rows of W, so that few threadgroups read the input. It stages the input
// in threadgroup memory, part by part if it does not fit. A unit is 4 rows of W, and a step is a
// piece of each of these rows for every lane. The steps of all units are divided evenly among the SIMD
// groups. If a SIMD group's share ends within a unit, its sums are only a part of the unit's; the
// parts are added in a fixed order. A lane's next weights are requested before it waits for the input.
#ifndef PIANOLA_GEMV_APPLE_H
#define PIANOLA_GEMV_APPLE_H

#include "gemv.h"

// PIANOLA_ROWS_APPLE is defined if kernels use gemv_apple in place of the products of gemv.h for the
// layout Rows.
#if !defined(PIANOLA_HOST) && !defined(PIANOLA_NVPTX)
#define PIANOLA_ROWS_APPLE 1
#endif

// product_end describes what a product does besides multiplying.
struct product_end {
    bool scaled;               // the input is scaled; the norm's factor multiplies the sums
    bool gated;                // y is activation(gate) * up, where gate is the first half of the rows of W
    bool squares;              // write y * next, and the sum of the squares of y
    device const float *next;  // [out]
    device float *to;          // [rows, out], as y
    device float *sums;        // [rows, sums_stride]
    uint sums_stride;
    uint parts;                // if the input is scaled, partial sums of squares of a row in x2
};

// sums_row returns the distance between rows of n partial sums of squares, in elements.
static inline uint sums_row(uint n) { return (n + 3) / 4 * 4; }

// row_of returns the row of W that is row i of a threadgroup. With gates, the first half of a
// threadgroup's rows are gates. Rows past the last repeat the last.
static inline uint row_of(thread const product &p, thread const product_end &end, share s, uint at) {
    const uint i = min(at, s.count - 1);
    if (!end.gated) {
        return s.first + i;
    }
    const uint half_count = s.count / 2;
    return s.first / 2 + (i < half_count ? i : p.out / 2 + i - half_count);
}

// piece_of returns the number of columns of a piece: a lane reads 32 columns of quantized types, 8
// of floats, and 1 if rows of floats are not aligned.
template <uint T, bool Aligned>
static inline uint piece_of() {
    return is_float(T) ? Aligned ? 8 : 1 : 32;
}

// parts_of describes the parts of a row that are staged one after another.
struct parts_of {
    uint pieces; // of a row
    uint each;   // pieces of a part; the last part may have fewer
    uint steps;  // of a unit in a part
    uint count;
};

static inline parts_of divide_row(uint in, uint stage, uint piece) {
    const uint pieces = quotient(in + piece - 1, piece);
    const uint most = max(min(stage, (in + 31) / 32 * 32) / piece, 1u);
    const uint parts = (pieces + most - 1) / most;
    // Parts of about the same size, in whole steps.
    const uint steps = ((pieces + parts - 1) / parts + 31) / 32;
    const uint each = min(32 * steps, most);
    return {pieces, each, steps, (pieces + each - 1) / each};
}

// place_in is the order of the vectors of the input in threadgroup memory: vector v is at index
// v % 8 * column + v / 8 * row. The lanes of a SIMD group then read adjacent vectors.
struct place_in {
    uint column, row;
};

static inline uint place_at(place_in l, uint v) { return v % 8 * l.column + v / 8 * l.row; }

// unit_pieces holds a lane's weights of a step: a piece of each of 4 rows.
struct unit_pieces {
    block_piece blocks[8];
    eight floats[4];
};

// has_nibbles reports whether a type's quants are the 4-bit numbers that it stores, less a constant. A
// piece then has the words as stored, in q.x and q.y: 4 quants in the low halves of the bytes, and
// 4 of the other 8 columns in the high halves.
template <uint T>
static inline bool has_nibbles() {
    return T == PIANOLA_WTYPE_Q4_0 || T == PIANOLA_WTYPE_Q4_1 || T == PIANOLA_WTYPE_Q4_K;
}

// load_nibbles reads two pieces of 16 columns, which have the same scales.
template <uint T>
static inline void load_nibbles(thread block_piece &even, thread block_piece &odd, device const uchar *row, uint piece) {
    even.m = float2(0.0f);
    if (T == PIANOLA_WTYPE_Q4_K) {
        device const uchar *b = row + ulong(piece / 16) * block_bytes(T);
        const uint p = piece % 16;
        const uint2 first = scale_min_k4(b + 4, p / 4 * 2);
        const uint2 second = scale_min_k4(b + 4, p / 4 * 2 + 1);
        even.d = half_at(b) * float2(float(first.x), float(second.x));
        even.m = half_at(b + 2) * -float2(float(first.y), float(second.y));
        device const uchar *quants = b + 16 + p / 4 * 32 + p % 4 * 8;
        even.q.xy = bytes8(T, quants);
        odd.q.xy = bytes8(T, quants + 8);
    } else {
        device const uchar *b = row + ulong(piece / 2) * block_bytes(T);
        even.d = float2(half_at(b));
        if (has_minimum(T)) {
            even.m = float2(half_at(b + minimum_at_of(T)));
        }
        even.q.xy = bytes8(T, b + quants_at(T));
        odd.q.xy = bytes8(T, b + quants_at(T) + 8);
    }
    odd.d = even.d;
    odd.m = even.m;
}

// load_quants reads the quants of an odd piece of 16 columns. Its scales and minimums are those of the
// piece before it, except in NVFP4, where they are read too.
template <uint T>
static inline void load_quants(thread block_piece &r, device const uchar *row, uint piece, uint wtype) {
    if (T == PIANOLA_WTYPE_Q8_0) {
        device const uchar *b = row + ulong(piece / 2) * block_bytes(T);
        r.q = uint4(bytes8(T, b + 18), bytes8(T, b + 26));
    } else if (T == PIANOLA_WTYPE_Q6_K) {
        const uint p = piece % 16;
        device const uchar *b = row + ulong(piece / 16) * block_bytes(T);
        const uint2 w = bytes8(T, b + p / 8 * 64 + p / 4 % 2 * 32 + p % 4 * 8);
        const uint2 pairs = bytes8(T, b + 128 + p / 8 * 32 + p % 4 * 8) >> (p / 4 % 2 * 2);
        r.q = less(uint4((w & PIANOLA_BYTES(15)) | (pairs & PIANOLA_BYTES(3)) << 4, (w >> 4 & PIANOLA_BYTES(15)) | (pairs & PIANOLA_BYTES(48))), 32);
    } else {
        const block_piece odd = load_piece<T>(row, piece, wtype);
        r.q = odd.q;
        if (T == PIANOLA_WTYPE_NVFP4) {
            r.d = odd.d;
        }
    }
}

// load_pieces reads a piece of each of 4 rows.
template <uint T>
static inline void load_pieces(thread unit_pieces &u, thread const weight_rows &w, uint piece, uint wtype) {
    PIANOLA_UNROLL
    for (uint r = 0; r < 4; r++) {
        if (is_float(T)) {
            u.floats[r] = load_eight<T>(w.row[r], piece);
        } else if (has_nibbles<T>()) {
            load_nibbles<T>(u.blocks[2 * r], u.blocks[2 * r + 1], w.row[r], 2 * piece);
        } else {
            u.blocks[2 * r] = load_piece<T>(w.row[r], 2 * piece, wtype);
            u.blocks[2 * r + 1] = u.blocks[2 * r];
            load_quants<T>(u.blocks[2 * r + 1], w.row[r], 2 * piece + 1, wtype);
        }
    }
}

// low_nibbles and high_nibbles return the low or the high halves of four bytes, less the type's zero.
// The bits of a number in those of 1024 make a float16 of 1024 and the number, or 16 times the number.
template <uint T>
static inline float4 low_nibbles(uint w) {
    const half2 less = half2(half(1024 + zero_of(T)));
    const half2 even = as_type<half2>((w & 0x000f000fu) ^ 0x64006400u) - less;
    const half2 odd = as_type<half2>((w >> 8 & 0x000f000fu) ^ 0x64006400u) - less;
    return float4(even.x, odd.x, even.y, odd.y);
}

template <uint T>
static inline float4 high_nibbles(uint w) {
    const half2 part = half2(0.0625h);
    const half2 less = half2(half(64 + zero_of(T)));
    const half2 even = fma(as_type<half2>((w & 0x00f000f0u) ^ 0x64006400u), part, -less);
    const half2 odd = fma(as_type<half2>((w >> 8 & 0x00f000f0u) ^ 0x64006400u), part, -less);
    return float4(even.x, odd.x, even.y, odd.y);
}

// dots_of returns the products of a piece's quants with 16 columns of the input: those with the scale
// d.x, and those with the scale d.y.
template <uint T>
static inline float2 dots_of(uint4 q, float4 v0, float4 v1, float4 v2, float4 v3) {
    if (has_nibbles<T>()) {
        return float2(dot(low_nibbles<T>(q.x), v0) + dot(low_nibbles<T>(q.y), v1), dot(high_nibbles<T>(q.x), v2) + dot(high_nibbles<T>(q.y), v3));
    }
    return float2(dot(quants4<T>(q.x), v0) + dot(quants4<T>(q.y), v1), dot(quants4<T>(q.z), v2) + dot(quants4<T>(q.w), v3));
}

// multiply_pieces adds the products with a piece of the staged input to the sums of 4 rows.
template <uint T>
static inline void multiply_pieces(thread float4 &sum, thread const unit_pieces &u, threadgroup const float4 *x, place_in order, uint piece) {
    if (is_float(T)) {
        const float4 low = x[place_at(order, 2 * piece)];
        const float4 high = x[place_at(order, 2 * piece + 1)];
        PIANOLA_UNROLL
        for (uint r = 0; r < 4; r++) {
            sum[r] += dot_eight<T>(u.floats[r], low, high);
        }
        return;
    }
    PIANOLA_UNROLL
    for (uint h = 0; h < 2; h++) {
        const uint2 c = piece_columns(T, 2 * piece + h);
        const float4 v0 = x[place_at(order, c.x / 4)];
        const float4 v1 = x[place_at(order, c.x / 4 + 1)];
        const float4 v2 = x[place_at(order, c.y / 4)];
        const float4 v3 = x[place_at(order, c.y / 4 + 1)];
        PIANOLA_UNROLL
        for (uint r = 0; r < 4; r++) {
            const block_piece b = u.blocks[2 * r + h];
            const float2 dots = dots_of<T>(b.q, v0, v1, v2, v3);
            sum[r] += b.d.x * dots.x;
            sum[r] += b.d.y * dots.y;
            if (has_minimum(T)) {
                sum[r] += b.m.x * sum4(v0 + v1) + b.m.y * sum4(v2 + v3);
            }
        }
    }
}

// stage_vectors writes n vectors of a row of the input, from vector first on, to threadgroup memory.
// scale is the norm's factor.
static inline void stage_vectors(threadgroup float4 *to, place_in order, thread const product &p, uint row, uint first, uint n, float scale, uint tid, uint threads) {
    if (p.merge) {
        for (uint i = tid; i < n; i += threads) {
            split_reads r;
            load_splits(r, p.parts, first + i);
            to[place_at(order, i)] = merge_splits(r);
        }
        return;
    }
    for (uint from = tid; from < n; from += 4 * threads) {
        float4 v[4];
        PIANOLA_UNROLL
        for (uint k = 0; k < 4; k++) {
            const uint i = from + k * threads;
            if (i < n) {
                v[k] = input4<false>(p, row, first + i);
                if (p.norm) {
                    v[k] *= ((device const float4 *)p.x2)[first + i] * scale;
                }
            }
        }
        PIANOLA_UNROLL
        for (uint k = 0; k < 4; k++) {
            const uint i = from + k * threads;
            if (i < n) {
                to[place_at(order, i)] = v[k];
            }
        }
    }
}

// stage_norm writes a whole row of the norm of x to threadgroup memory. It keeps the first vectors
// of x in registers, where it reads them only once. slots is scratch.
static inline void stage_norm(threadgroup float4 *to, threadgroup float *slots, place_in order, thread const product &p, uint row, uint lane, uint simd, uint simds) {
    const uint n = p.in / 4;
    const uint threads = simds * 32;
    const uint tid = simd * 32 + lane;
    float4 v[4];
    float squares = 0.0f;
    PIANOLA_UNROLL
    for (uint k = 0; k < 4; k++) {
        v[k] = float4(0.0f);
        if (tid + k * threads < n) {
            v[k] = input4<false>(p, row, tid + k * threads);
        }
        squares += dot(v[k], v[k]);
    }
    for (uint i = tid + 4 * threads; i < n; i += threads) {
        const float4 more = input4<false>(p, row, i);
        squares += dot(more, more);
    }
    const float scale = norm_scale(p, squares, slots, lane, simd, simds);
    PIANOLA_UNROLL
    for (uint k = 0; k < 4; k++) {
        const uint i = tid + k * threads;
        if (i < n) {
            to[place_at(order, i)] = v[k] * (((device const float4 *)p.x2)[i] * scale);
        }
    }
    for (uint i = tid + 4 * threads; i < n; i += threads) {
        to[place_at(order, i)] = input4<false>(p, row, i) * (((device const float4 *)p.x2)[i] * scale);
    }
}

// total returns the sum of the parts of row i of a threadgroup.
static inline float total(threadgroup const float *slots, share s, uint i, uint simds) {
    const uint unit = i >> s.shift;
    const uint from = unit * s.steps;
    float sum = 0.0f;
    uint begin = 0;
    for (uint k = 0; k < simds; k++) {
        if (begin < from + s.steps && begin + s.each > from) {
            sum += slots[(k << s.shift) + i];
        }
        begin += s.each;
    }
    return sum;
}

// write_rows writes the results of a threadgroup's rows of W for one row of x. before is the old y of
// the thread's first row, and squares the lane's share of the sum of squares of a scaled input.
static inline void write_rows(threadgroup const float *slots, threadgroup float *scratch, thread const product &p, thread const product_end &end, share s, uint row, uint group, float before, float squares, uint lane, uint simd, uint simds) {
    const uint n = end.gated ? s.count / 2 : s.count;
    const uint first = end.gated ? s.first / 2 : s.first;
    const uint tid = simd * 32 + lane;
    float factor = 1.0f;
    if (end.scaled && simd * 32 < n) {
        factor = rsqrt(simd_sum(squares) / float(p.in) + p.eps);
    }
    float sum = 0.0f;
    for (uint i = tid; i < n; i += simds * 32) {
        const ulong at = ulong(row) * p.y_stride + first + i;
        float v = total(slots, s, i, simds) * factor + (p.bias ? p.b[first + i] : 0.0f);
        if (end.gated) {
            const float up = total(slots, s, n + i, simds) * factor + (p.bias ? p.b[p.out / 2 + first + i] : 0.0f);
            v = product1(p, v, up);
        }
        if (p.add) {
            v += i == tid ? before : p.y[at];
        }
        p.y[at] = v;
        if (end.squares) {
            end.to[at] = v * end.next[first + i];
            sum += v * v;
        }
    }
    if (end.squares) {
        sum = threadgroup_sum(sum, scratch, lane, simd, simds);
        if (tid == 0) {
            end.sums[ulong(row) * end.sums_stride + group] = sum;
        }
    }
}

// rows_at returns the rows of W of a unit.
template <uint T>
static inline weight_rows rows_at(thread const product &p, thread const product_end &end, share s, uint unit) {
    weight_rows rows;
    PIANOLA_UNROLL
    for (uint r = 0; r < 4; r++) {
        const uint row = row_of(p, end, s, 4 * unit + r);
        rows.row[r] = p.w + (is_float(T) ? ulong(row) * p.in * element_bytes(T) : row * row_bytes(T, p.in, p.wtype));
    }
    return rows;
}

// gemv_apple computes a threadgroup's rows of W for the active rows of x.
template <uint T, bool Aligned>
static inline void gemv_apple(thread product &p, thread const product_end &end, device const pianola_step *step, constant pianola_second &second, uint stage_columns, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
    const uint piece = piece_of<T, Aligned>();
    const parts_of parts = divide_row(p.in, stage_columns, piece);
    const share s = share_of(p, group, 2, parts.steps, simds);
    const cursor begin = cursor_of(s, simd);
    threadgroup float *slots = (threadgroup float *)tg;
    threadgroup float4 *stage = (threadgroup float4 *)slots + simds + (s.count + 3) / 4;
    // The padding of rows of vectors is in the part of the slots that only tiles use.
    const uint blocks = (parts.each * piece + 31) / 32;
    place_in order = {1, 8};
    if (simds >= 4) {
        order = {blocks + 1, 1};
    }
    // Request the first weights before the input is ready.
    unit_pieces u;
    weight_rows w;
    if (begin.left > 0) {
        w = rows_at<T>(p, end, s, begin.unit);
        if (Aligned && begin.step * 32 + lane < parts.each && begin.step * 32 + lane < parts.pieces) {
            load_pieces<T>(u, w, begin.step * 32 + lane, p.wtype);
        }
    }
    const uint last = last_row(p, step, second);
    for (uint row = p.first; row < last; row++) {
        const uint n = end.gated ? s.count / 2 : s.count;
        const uint tid = simd * 32 + lane;
        const float before = p.add && tid < n ? p.y[ulong(row) * p.y_stride + s.first + tid] : 0.0f;
        float squares = 0.0f;
        if (end.scaled && simd * 32 < n) {
            device const float *sums = p.x2 + ulong(row) * sums_row(end.parts);
            for (uint i = lane; i < end.parts; i += 32) {
                squares += sums[i];
            }
        }
        float scale = 1.0f;
        for (uint part = 0; part < parts.count; part++) {
            const uint from = part * parts.each; // the part's first piece
            const uint columns = min(parts.each * piece, p.in - from * piece);
            if (row != p.first || part != 0) {
                threadgroup_barrier(mem_flags::mem_threadgroup);
            }
            if (p.norm && parts.count == 1 && Aligned) {
                stage_norm(stage, slots, order, p, row, lane, simd, simds);
            } else {
                if (p.norm && part == 0) {
                    scale = norm_scale(p, square_sum1(p, row, tid, simds * 32), slots, lane, simd, simds);
                }
                if (Aligned) {
                    stage_vectors(stage, order, p, row, from * piece / 4, columns / 4, scale, tid, simds * 32);
                } else {
                    stage_input((threadgroup float *)stage, p, row, from, columns, scale, tid, simds * 32);
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            float4 sum = float4(0.0f);
            for (cursor at = begin; at.left > 0;) {
                const uint i = at.step * 32 + lane;
                if (i < parts.each && from + i < parts.pieces) {
                    if (Aligned) {
                        multiply_pieces<T>(sum, u, stage, order, i);
                    } else {
                        const float x = ((threadgroup const float *)stage)[i];
                        PIANOLA_UNROLL
                        for (uint r = 0; r < 4; r++) {
                            sum[r] += float_at<T>(w.row[r], from + i) * x;
                        }
                    }
                }
                const uint unit = at.unit;
                const bool ends = at.step + 1 == end_of(s, at);
                advance(at, s, 1);
                // The next weights are of this part, of the next part, or of the next row of x.
                const bool more = at.left > 0;
                const uint next = more ? from : part + 1 < parts.count ? from + parts.each : 0;
                const cursor to = more ? at : begin;
                if (more || part + 1 < parts.count || row + 1 < last) {
                    if (to.unit != unit) {
                        w = rows_at<T>(p, end, s, to.unit);
                    }
                    const uint j = to.step * 32 + lane;
                    if (Aligned && j < parts.each && next + j < parts.pieces) {
                        load_pieces<T>(u, w, next + j, p.wtype);
                    }
                }
                if (ends) {
                    const float4 of = float4(simd_sum(sum.x), simd_sum(sum.y), simd_sum(sum.z), simd_sum(sum.w));
                    if (lane == 0) {
                        threadgroup float4 *slot = (threadgroup float4 *)slot_of(slots, s, simd, unit);
                        *slot = part == 0 ? of : *slot + of;
                    }
                    sum = float4(0.0f);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        write_rows(slots, (threadgroup float *)stage, p, end, s, row, group, before, squares, lane, simd, simds);
    }
}

#ifdef PIANOLA_ROWS_APPLE

// rows_apple is gemv_apple for the family of a weight type.
static inline void rows_apple(thread product &p, thread const product_end &end, uint family, device const pianola_step *step, constant pianola_second &second, uint stage, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
    if (is_float(family) && p.in % 8 != 0) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_apple<PIANOLA_WTYPE_##type, false>(p, end, step, second, stage, tg, group, lane, simd, simds); break;
        switch (family) {
            PIANOLA_FLOATS(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
        return;
    }
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_apple<PIANOLA_WTYPE_##type, true>(p, end, step, second, stage, tg, group, lane, simd, simds); break;
    switch (family) {
        PIANOLA_FLOATS(PIANOLA_CASE)
        PIANOLA_QUANTISED(PIANOLA_CASE)
        PIANOLA_BLOCKS_ALONE(PIANOLA_CASE)
    default: break;
    }
#undef PIANOLA_CASE
}

#endif

#endif
