// Quants in both layouts: levels, scales and conversions of packed integers.
#ifndef PIANOLA_QUANTS_H
#define PIANOLA_QUANTS_H

#include "pianola.h"
#include "types.h"

// PIANOLA_BYTES returns a word of four equal bytes.
#define PIANOLA_BYTES(b) (0x01010101u * (b))

// permute returns four of the eight bytes of a and b, selected by the low four nibbles of s,
// whose bit 3 must be 0. It is one instruction on NVIDIA GPUs.
static inline uint permute(uint a, uint b, uint s) {
#ifdef PIANOLA_NVPTX
    return metal::shim::permute(a, b, s);
#else
    const ulong both = ulong(b) << 32 | a;
    return uint(both >> (8 * (s & 7)) & 255) | uint(both >> (8 * (s >> 4 & 7)) & 255) << 8 |
           uint(both >> (8 * (s >> 8 & 7)) & 255) << 16 | uint(both >> (8 * (s >> 12 & 7)) & 255) << 24;
#endif
}

// PIANOLA_FLOATS expands X for each floating-point type.
#define PIANOLA_FLOATS(X) X(F32) X(F16) X(BF16)

// PIANOLA_BLOCKS_ALONE expands X for each type that has scales but no integer quants, and thus
// no Tiled16 layout.
#define PIANOLA_BLOCKS_ALONE(X) X(FP8)

// is_mlx reports whether a family is one of MLX's affine types.
static inline bool is_mlx(uint type) { return type >= PIANOLA_WTYPE_MLX2 && type <= PIANOLA_WTYPE_MLX8; }

// mlx_bits returns the number of bits per quant of an MLX family.
static inline uint mlx_bits(uint type) {
    return type == PIANOLA_WTYPE_MLX8 ? 8 : 2 + (type - PIANOLA_WTYPE_MLX2) / 16;
}

// group_shift returns the base-2 logarithm of the number of 32-column tiles in a quantization
// group. It applies to MLX's affine types and FP8.
static inline uint group_shift(uint wtype) { return wtype >> 2 & 3; }

// has_bfloat and has_float report whether the scales of an MLX affine type are bfloat16 or
// float32; otherwise they are float16.
static inline bool has_bfloat(uint wtype) { return (wtype & 3) == 1; }
static inline bool has_float(uint wtype) { return (wtype & 3) == 2; }

// look_up returns the levels that the low nibbles of four bytes select, and the levels that the
// high nibbles select.
static inline uint2 look_up(uint4 levels, uint q) {
    // Three bits select a byte in each half of the table; the fourth bit selects the half.
    const uint at = q & 0x77777777;
    const uint half_of = 0x32103210 | (q & 0x88888888) >> 1;
    const uint even = permute(permute(levels.x, levels.y, at), permute(levels.z, levels.w, at), half_of);
    const uint odd = permute(permute(levels.x, levels.y, at >> 16), permute(levels.z, levels.w, at >> 16), half_of >> 16);
    return uint2(permute(even, odd, 0x6420), permute(even, odd, 0x7531));
}

// byte_of and signed_byte_of return byte i of a word.
static inline int byte_of(uint w, uint i) { return int(w >> (8 * i) & 255); }
static inline int signed_byte_of(uint w, uint i) { return int(w << (24 - 8 * i)) >> 24; }

// half_e8m0 returns half of the scale 2^(e-127), because levels are stored doubled.
static inline float half_e8m0(uint e) { return as_type<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// half_bits returns the value of a float16.
static inline float half_bits(ushort bits) { return float(as_type<half>(bits)); }

// ue4m3_half returns half of an unsigned E4M3 number, because levels are stored doubled. It
// returns 0 for the code of NaN.
static inline float ue4m3_half(uint b) { return b == 127 ? 0.0f : half_bits(ushort((b & 127) << 7)) * 128.0f; }

// half_at reads a float16.
static inline float half_at(device const uchar *p) { return half_bits(*(device const ushort *)p); }

// less subtracts a zero point of at most 127 from each of four bytes of at most 127.
template <typename W>
static inline W less(W q, int zero) { return ((q | PIANOLA_BYTES(128)) - PIANOLA_BYTES(uint(zero))) ^ PIANOLA_BYTES(128); }

// signed4 returns four int8. Apple's GPUs convert integers at a quarter of the rate of other
// instructions, and use float16 as operands of float32 instructions without converting them. There, the
// bits of a byte, with its sign inverted, in those of 1024 make a float16 of 1152 and the int8.
static inline float4 signed4(uint w) {
#if defined(PIANOLA_HOST) || defined(PIANOLA_NVPTX)
    return float4(as_type<char4>(w));
#else
    const half2 even = as_type<half2>((w & 0x00ff00ffu) ^ 0x64806480u) - half2(1152.0h);
    const half2 odd = as_type<half2>((w >> 8 & 0x00ff00ffu) ^ 0x64806480u) - half2(1152.0h);
    return float4(even.x, odd.x, even.y, odd.y);
#endif
}

// halves_e4m3 converts two E4M3 bytes, in the low halves of two 16-bit words, to float16
// divided by 256: the bits of E4M3 moved into a float16 have an exponent bias of 7 instead of
// 15. A magnitude of all ones is NaN.
static inline float2 halves_e4m3(uint w) {
    const uint nan = ((w & 0x007f007fu) + 0x00010001u) >> 7 & 0x00010001u;
    return float2(as_type<half2>((w & 0x007f007fu) << 7 | (w & 0x00800080u) << 8 | nan * 0x7c00u));
}

// quants4 returns four quants of a type.
template <uint T>
static inline float4 quants4(uint w) {
    if (T == PIANOLA_WTYPE_FP8) {
        const float2 even = halves_e4m3(w) * 256.0f;
        const float2 odd = halves_e4m3(w >> 8) * 256.0f;
        return float4(even.x, odd.x, even.y, odd.y);
    }
    return signed4(w);
}

// scales4 returns four scales of 16 bits.
template <uint T>
static inline float4 scales4(uint2 w, uint wtype) {
    if (is_mlx(T) && has_bfloat(wtype)) {
        return as_type<float4>(uint4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u));
    }
    return float4(as_type<half4>(w));
}

// scale_at reads one scale, which has 16 bits except in some MLX types.
template <uint T>
static inline float scale_at(device const uchar *p, uint wtype) {
    if (is_mlx(T) && has_float(wtype)) {
        return *(device const float *)p;
    }
    const ushort bits = *(device const ushort *)p;
    return is_mlx(T) && has_bfloat(wtype) ? bf16_to_f32(bits) : half_bits(bits);
}

#endif
