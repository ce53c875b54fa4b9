// Quants of both layouts: levels, scales, conversions of packed integers.
#ifndef PIANOLA_QUANTS_H
#define PIANOLA_QUANTS_H

#include "pianola.h"

// Four bytes with the same bits.
#define PIANOLA_BYTES(b) (0x01010101u * (b))

// permute returns four of the eight bytes of a and b, which the nibbles of s
// name: one instruction on NVIDIA. Bit 3 of a nibble is 0.
static inline uint permute(uint a, uint b, uint s) {
#ifdef PIANOLA_NVPTX
    return metal::shim::permute(a, b, s);
#else
    const ulong both = ulong(b) << 32 | a;
    return uint(both >> (8 * (s & 7)) & 255) | uint(both >> (8 * (s >> 4 & 7)) & 255) << 8 |
           uint(both >> (8 * (s >> 8 & 7)) & 255) << 16 | uint(both >> (8 * (s >> 12 & 7)) & 255) << 24;
#endif
}

// PIANOLA_FLOATS is X of each type that is a float.
#define PIANOLA_FLOATS(X) X(F32) X(F16) X(BF16)

// PIANOLA_QUANTISED is X of each type whose blocks have a scale.
#define PIANOLA_QUANTISED(X) \
    X(Q8_0) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4)

// has_levels says whether a type's nibbles name levels.
static inline bool has_levels(uint type) {
    return type == PIANOLA_WTYPE_IQ4_NL || type == PIANOLA_WTYPE_IQ4_XS || type == PIANOLA_WTYPE_MXFP4;
}

// has_minimum says whether a type's blocks have a minimum.
static inline bool has_minimum(uint type) {
    return type == PIANOLA_WTYPE_Q4_1 || type == PIANOLA_WTYPE_Q5_1 || type == PIANOLA_WTYPE_Q2_K || type == PIANOLA_WTYPE_Q4_K ||
           type == PIANOLA_WTYPE_Q5_K;
}

// zero_of returns what is subtracted from a type's quants.
static inline int zero_of(uint type) {
    return type == PIANOLA_WTYPE_Q4_0 ? 8 : type == PIANOLA_WTYPE_Q5_0 ? 16 : type == PIANOLA_WTYPE_Q3_K ? 4 : type == PIANOLA_WTYPE_Q6_K ? 32 : 0;
}

// is_k says whether a type's blocks have 256 elements.
static inline bool is_k(uint type) {
    return (type >= PIANOLA_WTYPE_Q2_K && type <= PIANOLA_WTYPE_Q6_K) || type == PIANOLA_WTYPE_IQ4_XS;
}

// levels_of returns the 16 levels of a type, int8: of MXFP4 twice the values
// of E2M1.
static inline uint4 levels_of(uint type) {
    if (type == PIANOLA_WTYPE_MXFP4) {
        return uint4(0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc);
    }
    return uint4(0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535);
}

// look_up returns the levels that the low nibbles of four bytes name, and
// those of the high ones.
static inline uint2 look_up(uint4 levels, uint q) {
    // Three bits name a byte of one half of the table, the fourth the half.
    const uint at = q & 0x77777777;
    const uint half_of = 0x32103210 | (q & 0x88888888) >> 1;
    const uint even = permute(permute(levels.x, levels.y, at), permute(levels.z, levels.w, at), half_of);
    const uint odd = permute(permute(levels.x, levels.y, at >> 16), permute(levels.z, levels.w, at >> 16), half_of >> 16);
    return uint2(permute(even, odd, 0x6420), permute(even, odd, 0x7531));
}

// byte_of and signed_byte_of return byte i of a word.
static inline int byte_of(uint w, uint i) { return int(w >> (8 * i) & 255); }
static inline int signed_byte_of(uint w, uint i) { return int(w << (24 - 8 * i)) >> 24; }

// half_e8m0 returns half of the scale 2^(e-127), as levels are doubled.
static inline float half_e8m0(uint e) { return as_type<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// half_bits returns the value of a float16.
static inline float half_bits(ushort bits) { return float(as_type<half>(bits)); }

// half_at reads a float16.
static inline float half_at(device const uchar *p) { return half_bits(*(device const ushort *)p); }

// less subtracts a zero of at most 127 from four bytes of at most 127.
template <typename W>
static inline W less(W q, int zero) { return ((q | PIANOLA_BYTES(128)) - PIANOLA_BYTES(uint(zero))) ^ PIANOLA_BYTES(128); }

// signed4 returns four int8.
static inline float4 signed4(uint w) { return float4(as_type<char4>(w)); }

#endif
