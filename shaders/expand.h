// Quantised weights in layout Tiled16 as float16: each is rounded once from the product of its
// quant and its scale, which is a float16 too.
#ifndef PIANOLA_EXPAND_H
#define PIANOLA_EXPAND_H

#include "tiles.h"

// quant_offset returns the number that is subtracted from the bytes of group_quants. In a type with
// minimums it is the middle of the range, so that the products are no larger than the weights.
static inline uint quant_offset(uint type) {
    if (has_minimum(type)) {
        return tile_form_of(type).parts == 2 ? 2 : has_fives(type) ? 16 : 8;
    }
    return tile_form_of(type).parts == 8 || has_levels(type) ? 128 : uint(zero_of(type));
}

// group_quants returns the quants of column groups g and g+4 of one row of a tile, g is 0 to 3, as
// unsigned bytes. q is the row's word that holds group g, and high the word of its further
// bits; in a type of 8 bits, second holds group g+4.
template <uint T>
static inline uint2 group_quants(uint q, uint second, uint high, uint g) {
    const uint parts = tile_form_of(T).parts;
    if (parts == 8) {
        return uint2(q, second) ^ PIANOLA_BYTES(128);
    }
    if (has_levels(T)) {
        return look_up(levels_of(T), q) ^ PIANOLA_BYTES(128);
    }
    uint2 w = uint2(q, q >> 4) & PIANOLA_BYTES(15);
    if (parts == 2) {
        const uint pairs = q >> (g % 2 * 4);
        w = uint2(pairs, pairs >> 2) & PIANOLA_BYTES(3);
    }
    if (has_sixes(T)) {
        const uint pairs = high >> (g % 2 * 4);
        w |= (uint2(pairs, pairs >> 2) & PIANOLA_BYTES(3)) << 4;
    } else if (tile_form_of(T).high != 0) {
        const uint bits = high >> g;
        w |= (uint2(bits, bits >> 4) & PIANOLA_BYTES(1)) << (has_threes(T) ? 2u : 4u);
    }
    return w;
}

// tile_scales are the scales of a row of a tile, and what is added to its elements: .x for
// columns 0 to 15 and .y for columns 16 to 31.
struct tile_scales {
    half2 d, m;
};

// tile_scales_of returns the scales of a row. d and m are the bits of the block's scale and
// minimum, s0 and s1 the bytes of the tile's integer scales.
template <uint T>
static inline tile_scales tile_scales_of(uint d, uint m, uint s0, uint s1) {
    if (has_ue4m3(T)) {
        return {half2(half(ue4m3_half(s0)), half(ue4m3_half(s1))), half2(0.0h)};
    }
    const float block = half_bits(ushort(d));
    const float least = has_minimum(T) ? half_bits(ushort(m)) : 0.0f;
    const float middle = float(quant_offset(T)) * block; // used with minimums
    if (has_packed(T)) {
        const float x = float(s0 & 15);
        const float y = float(s1 & 15);
        return {half2(half(block * x), half(block * y)), half2(half(middle * x - least * float(s0 >> 4)), half(middle * y - least * float(s1 >> 4)))};
    }
    if (has_scales(T) && has_minimum(T)) {
        return {half2(half(block * float(s0))), half2(half(middle * float(s0) - least * float(s1)))};
    }
    if (has_scales(T)) {
        return {half2(half(block * float(signed_byte_of(s0, 0))), half(block * float(signed_byte_of(scale_words(T) == 1 ? s0 : s1, 0)))), half2(0.0h)};
    }
    return {half2(half(block)), half2(half(has_minimum(T) ? middle + least : 0.0f))};
}

// halves_of_bytes returns four quants of group_quants as weights.
template <uint T>
static inline uint2 halves_of_bytes(uint w, half d, half m) {
    // The bytes become the low bits of float16 from 1024 on, so that all steps but the last
    // are exact.
    const half2 offset = half2(half(float(1024 + quant_offset(T))));
    const half2 a = as_type<half2>(permute(w, PIANOLA_BYTES(0x64), 0x4140)) - offset;
    const half2 b = as_type<half2>(permute(w, PIANOLA_BYTES(0x64), 0x4342)) - offset;
    if (has_minimum(T)) {
        return uint2(as_type<uint>(fma(a, half2(d), half2(m))), as_type<uint>(fma(b, half2(d), half2(m))));
    }
    return uint2(as_type<uint>(a * half2(d)), as_type<uint>(b * half2(d)));
}

// group_halves returns the weights of column groups g and g+4 of a row of a tile. q, second and high are those of
// group_quants, the others those of tile_scales_of.
template <uint T>
static inline uint4 group_halves(uint q, uint second, uint high, uint g, uint d, uint m, uint s0, uint s1) {
    const tile_scales scales = tile_scales_of<T>(d, m, s0, s1);
    const uint2 w = group_quants<T>(q, second, high, g);
    return uint4(halves_of_bytes<T>(w.x, scales.d.x, scales.m.x), halves_of_bytes<T>(w.y, scales.d.y, scales.m.y));
}

// has_nibbles reports whether the quants of a type are the nibbles of words, without further bits or a code book.
static inline bool has_nibbles(uint type) {
    const tile_form f = tile_form_of(type);
    return f.parts == 4 && f.high == 0 && !has_levels(type);
}

// nibbles_of returns the nibbles of q that mask selects as the low bits of two float16 from 1024 on.
static inline half2 nibbles_of(uint q, uint mask) {
#ifdef PIANOLA_NVPTX
    return as_type<half2>(metal::shim::and_or(q, mask, 0x64006400));
#else
    return as_type<half2>((q & mask) | 0x64006400);
#endif
}

// nibble_halves is group_halves for a type that has_nibbles, but in each half of the result, columns 1 and 2 are
// exchanged: an operation then takes two quants from a word.
template <uint T>
static inline uint4 nibble_halves(uint q, uint d, uint m, uint s0, uint s1) {
    const tile_scales scales = tile_scales_of<T>(d, m, s0, s1);
    // The nibbles of columns 16 to 31 are in units of 16. All steps but the last are exact.
    const half2 offset = half2(half(float(1024 + quant_offset(T))));
    const half2 higher = half2(half(-float(1024 / 16 + quant_offset(T))));
    const half2 a = nibbles_of(q, 0x000f000f) - offset;
    const half2 b = nibbles_of(q >> 8, 0x000f000f) - offset;
    const half2 c = fma(nibbles_of(q, 0x00f000f0), half2(1.0h / 16.0h), higher);
    const half2 e = fma(nibbles_of(q >> 8, 0x00f000f0), half2(1.0h / 16.0h), higher);
    const half2 low = half2(scales.d.x);
    const half2 high = half2(scales.d.y);
    if (has_minimum(T)) {
        const half2 x = half2(scales.m.x);
        const half2 y = half2(scales.m.y);
        return uint4(as_type<uint>(fma(a, low, x)), as_type<uint>(fma(b, low, x)), as_type<uint>(fma(c, high, y)), as_type<uint>(fma(e, high, y)));
    }
    return uint4(as_type<uint>(a * low), as_type<uint>(b * low), as_type<uint>(c * high), as_type<uint>(e * high));
}

// row_tile is one row of a tile as it is stored.
struct row_tile {
    uint words[8]; // of each part
    uint high[2];  // further bits
    uint d, m;     // float16
    uint scales[2];
};

// load_row_tile reads row r of a tile.
template <uint T>
static inline void load_row_tile(thread row_tile &t, device const uchar *strip, uint tile, uint r) {
    const tile_form f = tile_form_of(T);
    const block_place b = block_of(T, tile, T);
    device const uchar *block = strip + b.at;
    device const uchar *quants = block + f.quants + b.tile * f.quants_step + 4 * r;
    PIANOLA_UNROLL
    for (uint i = 0; i < 8; i++) {
        t.words[i] = i < f.parts ? *(device const uint *)(quants + 64 * i) : 0;
    }
    t.high[0] = f.high != 0 ? *(device const uint *)(quants + f.high) : 0;
    t.high[1] = has_sixes(T) ? *(device const uint *)(quants + f.high + 64) : 0;
    t.d = has_ue4m3(T) ? 0 : *(device const ushort *)(block + f.d + 2 * r);
    t.m = has_minimum(T) ? *(device const ushort *)(block + f.m + 2 * r) : 0;
    device const uchar *scales = block + f.scales + b.tile * f.scales_step + r;
    t.scales[0] = has_scales(T) ? scales[0] : 0;
    t.scales[1] = has_scales(T) && scale_words(T) == 2 ? scales[16] : 0;
}

// tile_pieces are 32 weights: four pieces of 8 columns.
struct tile_pieces {
    uint4 of[4];
};

// expand_row returns the weights of a row of a tile.
template <uint T>
static inline tile_pieces expand_row(thread const row_tile &t) {
    const uint parts = tile_form_of(T).parts;
    const tile_scales s = tile_scales_of<T>(t.d, t.m, t.scales[0], t.scales[1]);
    tile_pieces p;
    PIANOLA_UNROLL
    for (uint g = 0; g < 4; g++) {
        const uint2 w = group_quants<T>(t.words[parts == 2 ? g / 2 : g], t.words[g + 4], t.high[has_sixes(T) ? g / 2 : 0], g);
        const uint2 x = halves_of_bytes<T>(w.x, s.d.x, s.m.x);
        const uint2 y = halves_of_bytes<T>(w.y, s.d.y, s.m.y);
        if (g % 2 == 0) {
            p.of[g / 2].xy = x;
            p.of[2 + g / 2].xy = y;
        } else {
            p.of[g / 2].zw = x;
            p.of[2 + g / 2].zw = y;
        }
    }
    return p;
}

#endif
