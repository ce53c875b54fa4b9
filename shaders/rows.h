// Products of matrices in the layout Rows (dtype.Rows): four rows of W times unquantized
// activations, with x in device or threadgroup memory.
#ifndef PIANOLA_ROWS_H
#define PIANOLA_ROWS_H

#include "blocks.h"

// weight_rows are the addresses of four rows.
struct weight_rows {
    device const uchar *row[4];
};

// lane_share selects the pieces of a lane: every 32nd from first on, before end.
struct lane_share {
    uint first, end;
};

// is_float reports whether a type has no quantization blocks.
static inline bool is_float(uint type) { return type <= PIANOLA_WTYPE_BF16; }

// is_float_type is is_float for use as a template argument.
template <uint T>
struct is_float_type {
    enum { value = T <= PIANOLA_WTYPE_BF16 };
};

// element_bytes returns the size of an element of a floating-point type.
static inline uint element_bytes(uint type) { return type == PIANOLA_WTYPE_F32 ? 4 : 2; }

// rows_of returns four rows, from column c on. Rows past the last repeat the last.
template <uint T>
static inline weight_rows rows_of(device const uchar *w, uint in, uint out, uint first, uint c, uint wtype) {
    weight_rows rows;
    PIANOLA_UNROLL
    for (uint r = 0; r < 4; r++) {
        const uint row = min(first + r, out - 1);
        rows.row[r] = w + (is_float(T) ? (ulong(row) * in + c) * element_bytes(T) : row * row_bytes(T, in, wtype) + row_bytes(T, c, wtype));
    }
    return rows;
}

// float_at returns element i.
template <uint T>
static inline float float_at(device const uchar *row, uint i) {
    if (T == PIANOLA_WTYPE_F32) {
        return ((device const float *)row)[i];
    }
    const ushort bits = ((device const ushort *)row)[i];
    return T == PIANOLA_WTYPE_F16 ? half_bits(bits) : bf16_to_f32(bits);
}

// eight is 8 stored elements: all in a, except for float32, which needs both fields.
struct eight {
    uint4 a, b;
};

template <uint T>
static inline eight load_eight(device const uchar *row, uint i) {
    eight v;
    if (T == PIANOLA_WTYPE_F32) {
        v.a = ((device const uint4 *)row)[2 * i];
        v.b = ((device const uint4 *)row)[2 * i + 1];
    } else {
        v.a = ((device const uint4 *)row)[i];
    }
    return v;
}

// four_of returns the four elements in two words.
template <uint T>
static inline float4 four_of(uint2 w) {
    if (T == PIANOLA_WTYPE_F16) {
        return float4(as_type<half4>(w));
    }
    return as_type<float4>(uint4(w.x << 16, w.x & 0xffff0000, w.y << 16, w.y & 0xffff0000));
}

template <uint T>
static inline float dot_eight(eight v, float4 x, float4 y) {
    if (T == PIANOLA_WTYPE_F32) {
        return dot(as_type<float4>(v.a), x) + dot(as_type<float4>(v.b), y);
    }
    return dot(four_of<T>(v.a.xy), x) + dot(four_of<T>(v.a.zw), y);
}

// multiply_eights adds the products of up to N pieces of 8 columns to the sums of four
// rows. It loads all pieces before it uses the first. Pieces at or after end repeat the
// last one and are not used.
template <uint T, uint N, typename X4>
static inline void multiply_eights(thread float4 &sum, weight_rows w, X4 x, uint first, uint end) {
    eight v[N][4];
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        PIANOLA_UNROLL
        for (uint r = 0; r < 4; r++) {
            v[n][r] = load_eight<T>(w.row[r], min(first + 32 * n, end - 1));
        }
    }
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        const uint i = first + 32 * n;
        if (i >= end) {
            break;
        }
        const float4 a = x[2 * i];
        const float4 b = x[2 * i + 1];
        PIANOLA_UNROLL
        for (uint r = 0; r < 4; r++) {
            sum[r] += dot_eight<T>(v[n][r], a, b);
        }
    }
}

// multiply_floats is multiply_rows for floating-point types.
template <uint T, typename X, typename X4>
static inline void multiply_floats(thread float4 &sum, weight_rows w, X x, X4 x4, bool aligned, lane_share at) {
    if (!aligned) {
        for (uint i = at.first; i < at.end; i += 32) {
            PIANOLA_UNROLL
            for (uint r = 0; r < 4; r++) {
                sum[r] += float_at<T>(w.row[r], i) * x[i];
            }
        }
        return;
    }
    const uint pieces = T == PIANOLA_WTYPE_F32 ? 2 : 4;
    for (uint i = at.first; i < at.end; i += 32 * pieces) {
        multiply_eights<T, T == PIANOLA_WTYPE_F32 ? 2 : 4>(sum, w, x4, i, at.end);
    }
}

// sum4 returns the sum of four elements.
static inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }

// multiply_blocks is multiply_rows for types with quantization blocks; a lane handles
// pieces of 16 columns.
template <uint T, typename X>
static inline void multiply_blocks(thread float4 &sum, weight_rows w, X x, lane_share at, uint wtype) {
    for (uint i = at.first; i < at.end; i += 32) {
        block_piece p[4];
        PIANOLA_UNROLL
        for (uint r = 0; r < 4; r++) {
            p[r] = load_piece<T>(w.row[r], i, wtype);
        }
        const uint2 c = piece_columns(T, i);
        float4 v[4];
        PIANOLA_UNROLL
        for (uint j = 0; j < 4; j++) {
            v[j] = x[(j < 2 ? c.x : c.y) / 4 + j % 2];
        }
        PIANOLA_UNROLL
        for (uint r = 0; r < 4; r++) {
            sum[r] += p[r].d.x * (dot(quants4<T>(p[r].q.x), v[0]) + dot(quants4<T>(p[r].q.y), v[1]));
            sum[r] += p[r].d.y * (dot(quants4<T>(p[r].q.z), v[2]) + dot(quants4<T>(p[r].q.w), v[3]));
            if (has_minimum(T)) {
                sum[r] += p[r].m.x * sum4(v[0] + v[1]) + p[r].m.y * sum4(v[2] + v[3]);
            }
        }
    }
}

// multiply_rows adds a lane's share of the products with columns of x to the sums of four
// rows. x4 is x, aligned to 16 bytes. aligned reports whether rows of floats are aligned,
// too: then a piece of them is 8 columns, otherwise one.
template <uint T, typename X, typename X4>
static inline void multiply_rows(thread float4 &sum, weight_rows w, X x, X4 x4, bool aligned, lane_share at, uint wtype) {
    if (is_float(T)) {
        multiply_floats<T>(sum, w, x, x4, aligned, at);
    } else {
        multiply_blocks<T>(sum, w, x4, at, wtype);
    }
}

#endif
