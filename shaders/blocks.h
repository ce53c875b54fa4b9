// Quantization blocks of weights in layout Rows, as stored in the file: the structs of ggml's
// ggml-common.h, which dtype.Dequantize converts too.
#ifndef PIANOLA_BLOCKS_H
#define PIANOLA_BLOCKS_H

#include "quants.h"

// group_bytes returns the size in bytes of a quantization block of an MLX or FP8 type.
static inline uint group_bytes(uint type, uint wtype) {
    if (type == PIANOLA_WTYPE_FP8) {
        return 4 + (32u << group_shift(wtype));
    }
    return (has_float(wtype) ? 8 : 4) + (4 * mlx_bits(type) << group_shift(wtype));
}

// row_bytes returns the size in bytes of the given number of columns, which must be whole
// blocks.
static inline ulong row_bytes(uint type, uint columns, uint wtype) {
    if (type >= PIANOLA_FAMILIES) {
        return ulong(columns >> (5 + group_shift(wtype))) * group_bytes(type, wtype);
    }
    return ulong(columns / block_elems(type)) * block_bytes(type);
}

// A piece is 16 elements of a row: two runs of 8 columns, piece_run columns apart, whose quants
// share 8 bytes or lie in 16 adjacent bytes. The pieces of a row are numbered from 0.
//
// piece_columns returns the first column of each run.
static inline uint2 piece_columns(uint type, uint piece) {
    const uint run = piece_run(type);
    const uint c = piece / (run / 8) * (2 * run) + piece % (run / 8) * 8;
    return uint2(c, c + run);
}

// bytes8 reads 8 bytes at the alignment of the type's blocks.
static inline uint2 bytes8(uint type, device const uchar *p) {
    if (type == PIANOLA_WTYPE_Q4_K || type == PIANOLA_WTYPE_Q5_K || type == PIANOLA_WTYPE_Q5_1 || type == PIANOLA_WTYPE_IQ4_XS) {
        return *(device const uint2 *)p;
    }
    if (type == PIANOLA_WTYPE_Q4_1 || type == PIANOLA_WTYPE_Q2_K) {
        return uint2(((device const uint *)p)[0], ((device const uint *)p)[1]);
    }
    if (type == PIANOLA_WTYPE_MXFP4) {
        return uint2(uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16 | uint(p[3]) << 24,
                     uint(p[4]) | uint(p[5]) << 8 | uint(p[6]) << 16 | uint(p[7]) << 24);
    }
    device const ushort *h = (device const ushort *)p;
    return uint2(uint(h[0]) | uint(h[1]) << 16, uint(h[2]) | uint(h[3]) << 16);
}

// block_piece holds the quants of a piece as four words of int8, with the zero point
// subtracted. The first run has the values d.x * q + m.x, the second d.y * q + m.y.
struct block_piece {
    uint4 q;
    float2 d, m;
};

// scale_q3_k returns scale s of 16 scales of 6 bits, minus 32.
static inline int scale_q3_k(device const uchar *scales, uint s) {
    return int((uint(scales[s % 8]) >> (s / 8 * 4) & 15) | (uint(scales[8 + s % 4]) >> (s / 4 * 2) & 3) << 4) - 32;
}

// scale_min_k4 returns scale and minimum number s of a Q4_K or Q5_K block, which has 8 of each,
// 6 bits wide.
static inline uint2 scale_min_k4(device const uchar *scales, uint s) {
    if (s < 4) {
        return uint2(scales[s] & 63u, scales[s + 4] & 63u);
    }
    const uint low = scales[s + 4];
    return uint2((low & 15) | uint(scales[s - 4]) >> 6 << 4, low >> 4 | uint(scales[s]) >> 6 << 4);
}

// fifth_bits returns 8 bytes: bit i of the argument becomes bit 4 of byte i.
static inline uint2 fifth_bits(uint bits) {
    return uint2((bits & 1) << 4 | (bits & 2) << 11 | (bits & 4) << 18 | (bits & 8) << 25,
                 (bits & 16) | (bits & 32) << 7 | (bits & 64) << 14 | (bits & 128) << 21);
}

// load_piece32 reads a piece of a type with blocks of 32 elements.
template <uint T>
static inline block_piece load_piece32(device const uchar *row, uint piece) {
    device const uchar *b = row + ulong(piece / 2) * block_bytes(T);
    const uint at = piece % 2 * 8;
    block_piece r;
    r.m = float2(0.0f);
    if (T == PIANOLA_WTYPE_Q8_0) {
        r.d = float2(half_at(b));
        r.q = uint4(bytes8(T, b + 2 + 2 * at), bytes8(T, b + 10 + 2 * at));
        return r;
    }
    const uint2 w = bytes8(T, b + quants_at(T) + at);
    uint2 low = w & PIANOLA_BYTES(15);
    uint2 high = w >> 4 & PIANOLA_BYTES(15);
    if (has_levels(T)) {
        const uint2 u = look_up(levels_of(T), w.x);
        const uint2 v = look_up(levels_of(T), w.y);
        low = uint2(u.x, v.x);
        high = uint2(u.y, v.y);
    }
    if (has_fives(T)) {
        device const ushort *bits = (device const ushort *)(b + high_at(T));
        low |= fifth_bits(uint(bits[0]) >> at & 255);
        high |= fifth_bits(uint(bits[1]) >> at & 255);
    }
    if (zero_of(T) != 0) {
        low = less(low, zero_of(T));
        high = less(high, zero_of(T));
    }
    r.q = uint4(low, high);
    r.d = float2(has_e8m0(T) ? half_e8m0(b[0]) : half_at(b));
    if (has_minimum(T)) {
        r.m = float2(half_at(b + minimum_at_of(T)));
    }
    return r;
}

// load_piece256 reads a piece of a type with blocks of 256 elements.
template <uint T>
static inline block_piece load_piece256(device const uchar *row, uint piece) {
    device const uchar *b = row + ulong(piece / 16) * block_bytes(T);
    const uint p = piece % 16;
    const uint l = p % 4 * 8; // first byte of 32
    block_piece r;
    r.m = float2(0.0f);
    uint2 low, high;
    if (T == PIANOLA_WTYPE_Q2_K || T == PIANOLA_WTYPE_Q3_K || T == PIANOLA_WTYPE_TQ2_0) {
        const uint h = p / 8;          // which half of 256 columns
        const uint shift = p / 4 % 2 * 4;
        const uint s = p / 4 * 4 + l / 16;
        const uint2 w = bytes8(T, b + quants_at(T) + 32 * h + l) >> shift;
        low = w & PIANOLA_BYTES(3);
        high = w >> 2 & PIANOLA_BYTES(3);
        if (T == PIANOLA_WTYPE_TQ2_0) {
            low = less(low, zero_of(T));
            high = less(high, zero_of(T));
            r.d = float2(half_at(b + scale_at_of(T)));
        } else if (T == PIANOLA_WTYPE_Q2_K) {
            const uint first = b[s];
            const uint second = b[s + 2];
            r.d = half_at(b + 80) * float2(float(first & 15), float(second & 15));
            r.m = half_at(b + 82) * -float2(float(first >> 4), float(second >> 4));
        } else {
            const uint2 bits = bytes8(T, b + l) >> (p / 4 * 2);
            low = less(low | (bits & PIANOLA_BYTES(1)) << 2, 4);
            high = less(high | (bits & PIANOLA_BYTES(2)) << 1, 4);
            r.d = half_at(b + 108) * float2(float(scale_q3_k(b + 96, s)), float(scale_q3_k(b + 96, s + 2)));
        }
    } else if (T == PIANOLA_WTYPE_Q6_K) {
        const uint h = p / 8;
        const uint m = p / 4 % 2;
        const uint s = h * 8 + m * 2 + l / 16;
        const uint2 w = bytes8(T, b + h * 64 + m * 32 + l);
        const uint2 pairs = bytes8(T, b + 128 + h * 32 + l) >> (2 * m);
        low = less((w & PIANOLA_BYTES(15)) | (pairs & PIANOLA_BYTES(3)) << 4, 32);
        high = less((w >> 4 & PIANOLA_BYTES(15)) | (pairs & PIANOLA_BYTES(48)), 32);
        r.d = half_at(b + 208) * float2(float(as_type<char>(b[192 + s])), float(as_type<char>(b[196 + s])));
    } else if (T == PIANOLA_WTYPE_IQ4_XS) {
        const uint s = p / 2;
        const uint2 w = bytes8(T, b + 8 + p * 8);
        const uint2 u = look_up(levels_of(T), w.x);
        const uint2 v = look_up(levels_of(T), w.y);
        low = uint2(u.x, v.x);
        high = uint2(u.y, v.y);
        const uint top = *(device const ushort *)(b + 2);
        const uint scale = (uint(b[4 + s / 2]) >> (s % 2 * 4) & 15) | (top >> (2 * s) & 3) << 4;
        r.d = float2(half_at(b) * float(int(scale) - 32));
    } else {
        const uint s = p / 4 * 2;
        const uint2 w = bytes8(T, b + (T == PIANOLA_WTYPE_Q4_K ? 16 : 48) + p / 4 * 32 + l);
        low = w & PIANOLA_BYTES(15);
        high = w >> 4 & PIANOLA_BYTES(15);
        if (T == PIANOLA_WTYPE_Q5_K) {
            const uint2 bits = bytes8(T, b + 16 + l) >> s;
            low |= (bits & PIANOLA_BYTES(1)) << 4;
            high |= (bits & PIANOLA_BYTES(2)) << 3;
        }
        const uint2 first = scale_min_k4(b + 4, s);
        const uint2 second = scale_min_k4(b + 4, s + 1);
        r.d = half_at(b) * float2(float(first.x), float(second.x));
        r.m = half_at(b + 2) * -float2(float(first.y), float(second.y));
    }
    r.q = uint4(low, high);
    return r;
}

// load_piece_nvfp4 reads a piece of NVFP4, which has one scale per 16 elements.
template <uint T>
static inline block_piece load_piece_nvfp4(device const uchar *row, uint piece) {
    device const uchar *b = row + ulong(piece / 4) * block_bytes(T);
    const uint2 w = bytes8(T, b + quants_at(T) + piece % 4 * 8);
    const uint2 u = look_up(levels_of(T), w.x);
    const uint2 v = look_up(levels_of(T), w.y);
    block_piece r;
    r.m = float2(0.0f);
    r.d = float2(ue4m3_half(b[piece % 4]));
    r.q = uint4(u.x, v.x, u.y, v.y);
    return r;
}

// digits3 returns base-3 digit n of each of four bytes; a byte b represents the fraction b/256.
static inline uint digits3(uint w, uint n) {
    const uint power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    const uint even = (w & 0x00ff00ffu) * power & 0x00ff00ffu;
    const uint odd = (w >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
    return (even * 3 >> 8 & 0x00030003u) | (odd * 3 & 0x03000300u);
}

// load_piece_tq1 reads a piece of TQ1_0. Of 256 elements, the first 160 are digits of 32 bytes,
// the next 80 of 16 bytes and the last 16 of 4 bytes.
template <uint T>
static inline block_piece load_piece_tq1(device const uchar *row, uint piece) {
    device const uchar *b = row + ulong(piece / 16) * block_bytes(T);
    const uint p = piece % 16;
    block_piece r;
    r.m = float2(0.0f);
    r.d = float2(half_at(b + scale_at_of(T)));
    if (p == 15) {
        device const ushort *h = (device const ushort *)(b + 48);
        const uint w = uint(h[0]) | uint(h[1]) << 16;
        r.q = uint4(digits3(w, 0), digits3(w, 1), digits3(w, 2), digits3(w, 3));
    } else {
        device const uchar *q = b + (p < 10 ? p % 2 * 16 : 32);
        const uint n = p < 10 ? p / 2 : p - 10;
        const uint2 u = bytes8(T, q);
        const uint2 v = bytes8(T, q + 8);
        r.q = uint4(digits3(u.x, n), digits3(u.y, n), digits3(v.x, n), digits3(v.y, n));
    }
    r.q = less(r.q, zero_of(T));
    return r;
}

// mlx_quants returns four quants of a bit stream, beginning with element i.
template <uint Bits>
static inline uint mlx_quants(thread const uint *w, uint i) {
    uint q = 0;
    PIANOLA_UNROLL
    for (uint k = 0; k < 4; k++) {
        const uint at = (i + k) * Bits;
        uint v = w[at / 32] >> (at % 32);
        if (at % 32 + Bits > 32) {
            v |= w[at / 32 + 1] << (32 - at % 32);
        }
        q |= (v & ((1u << Bits) - 1)) << (8 * k);
    }
    return q;
}

// load_group reads a piece of an MLX or FP8 type: 16 consecutive quants. MLX's 8-bit quants
// become signed by subtracting 128; the bias makes up for it.
template <uint T>
static inline block_piece load_group(device const uchar *row, uint piece, uint wtype) {
    const uint shift = 1 + group_shift(wtype);
    device const uchar *b = row + ulong(piece >> shift) * group_bytes(T, wtype);
    const uint at = piece & ((1u << shift) - 1);
    block_piece r;
    r.m = float2(0.0f);
    if (T == PIANOLA_WTYPE_FP8) {
        device const uint *q = (device const uint *)(b + 4 + 16 * at);
        r.d = float2(*(device const float *)b);
        r.q = uint4(q[0], q[1], q[2], q[3]);
        return r;
    }
    const uint size = has_float(wtype) ? 4 : 2;
    r.d = float2(scale_at<T>(b, wtype));
    r.m = float2(scale_at<T>(b + size, wtype));
    device const ushort *p = (device const ushort *)(b + 2 * size) + at * mlx_bits(T);
    uint w[5] = {0, 0, 0, 0, 0};
    PIANOLA_UNROLL
    for (uint i = 0; i < 8; i++) {
        if (i < mlx_bits(T)) {
            w[i / 2] |= uint(p[i]) << (i % 2 * 16);
        }
    }
    // mlx_bits as a constant expression that is valid for every type.
    const uint bits = T == PIANOLA_WTYPE_MLX8 ? 8 : T < PIANOLA_WTYPE_MLX2 ? 2 : 2 + (T - PIANOLA_WTYPE_MLX2) / 16;
    r.q = uint4(mlx_quants<bits>(w, 0), mlx_quants<bits>(w, 4), mlx_quants<bits>(w, 8), mlx_quants<bits>(w, 12));
    if (T == PIANOLA_WTYPE_MLX8) {
        r.q ^= PIANOLA_BYTES(128);
        r.m += 128.0f * r.d;
    }
    return r;
}

// load_piece reads a piece of a row.
template <uint T>
static inline block_piece load_piece(device const uchar *row, uint piece, uint wtype) {
    if (T >= PIANOLA_FAMILIES) {
        return load_group<T>(row, piece, wtype);
    }
    if (T == PIANOLA_WTYPE_NVFP4) {
        return load_piece_nvfp4<T>(row, piece);
    }
    if (T == PIANOLA_WTYPE_TQ1_0) {
        return load_piece_tq1<T>(row, piece);
    }
    if (block_elems(T) == 256) {
        return load_piece256<T>(row, piece);
    }
    return load_piece32<T>(row, piece);
}

#endif
