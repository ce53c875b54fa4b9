// Matrices in layout Tiled16 (dtype.Tiled16): a lane's reads of a tile, and products with
// quantized activations.
#ifndef PIANOLA_TILES_H
#define PIANOLA_TILES_H

#include "quants.h"

// strip_bytes returns the size in bytes of a strip of 16 rows.
static inline ulong strip_bytes(uint type, uint columns, uint wtype) {
    const tile_form f = tile_form_of(type);
    if (is_mlx(type)) {
        return ulong(columns / 32) * f.quants_step + ulong(columns >> (5 + group_shift(wtype))) * 64;
    }
    return ulong(columns / (32 * f.tiles)) * f.bytes;
}

// block_place is the offset of a tile's quantization block and the tile's index in it.
struct block_place {
    ulong at;
    uint tile;
};

static inline block_place block_of(uint type, uint tile, uint wtype) {
    const tile_form f = tile_form_of(type);
    if (is_mlx(type)) {
        const uint shift = group_shift(wtype);
        return {ulong(tile >> shift) * (64 + (f.quants_step << shift)), tile & ((1u << shift) - 1)};
    }
    return {ulong(tile / f.tiles) * f.bytes, tile % f.tiles};
}

// tile_lane is a lane's share of the tiles that its SIMD group reads at once: four rows of one
// tile.
struct tile_lane {
    uint quad;  // which four rows of the strip
    uint piece; // index of the tile
    uint shift; // 1 << shift tiles are read at once
};

// place_of returns the place of a lane in a strip of 16 rows or, if halved, in 8 rows and twice
// the number of tiles.
static inline tile_lane place_of(uint lane, bool halved) {
    if (halved) {
        return {lane & 1, lane >> 1, 4};
    }
    return {lane & 3, lane >> 2, 3};
}

// tile_quad holds the data that a lane reads in a step: four rows of one tile. quad_form gives
// the number of vectors, pairs and words that a type uses; the others are neither read nor
// used.
struct tile_quad {
    uint4 vectors[8]; // of each row a word: the parts' quants, then their further bits
    uint2 pairs[2];   // d, and minimums: four float16
    uint words[2];    // four bytes each: integer scales of columns 0 to 15 or of all, of columns 16 to 31 or minimums; or d as E8M0
};

// quad_form is the number of vectors, pairs and words of a tile_quad that a type uses.
struct quad_form {
    uint vectors, pairs, words;
};

static inline quad_form quad_form_of(uint type) {
    const tile_form f = tile_form_of(type);
    const uint high = has_sixes(type) ? 2 : f.high != 0 ? 1 : 0;
    if (has_e8m0(type)) {
        return {f.parts, 0, 1};
    }
    return {f.parts + high, has_ue4m3(type) ? 0u : has_minimum(type) ? 2u : 1u, scale_words(type)};
}

// take_vector, take_pair and take_word read one field of a tile_quad.
static inline void take_vector(thread tile_quad &t, uint i, device const uchar *p) { t.vectors[i] = *(device const uint4 *)p; }
static inline void take_pair(thread tile_quad &t, uint i, device const uchar *p) { t.pairs[i] = *(device const uint2 *)p; }
static inline void take_word(thread tile_quad &t, uint i, device const uchar *p) { t.words[i] = *(device const uint *)p; }

// load_quad reads four rows of a tile by calling the functions take_vector, take_pair and
// take_word for to.
template <uint T, typename To>
static inline void load_quad(thread To &to, device const uchar *strip, uint tile, uint quad, uint wtype) {
    const tile_form f = tile_form_of(T);
    const block_place b = block_of(T, tile, wtype);
    device const uchar *block = strip + b.at;
    device const uchar *quants = block + f.quants + b.tile * f.quants_step + 16 * quad;
    PIANOLA_UNROLL
    for (uint i = 0; i < 8; i++) {
        if (i < f.parts) {
            take_vector(to, i, quants + 64 * i);
        }
    }
    if (f.high != 0) {
        take_vector(to, f.parts, quants + f.high);
    }
    if (has_sixes(T)) {
        take_vector(to, f.parts + 1, quants + f.high + 64);
    }
    if (has_e8m0(T)) {
        take_word(to, 0, block + f.d + 4 * quad);
    } else if (!has_ue4m3(T)) {
        take_pair(to, 0, block + f.d + 8 * quad);
    }
    if (has_minimum(T)) {
        take_pair(to, 1, block + f.m + 8 * quad);
    }
    if (has_scales(T)) {
        device const uchar *scales = block + f.scales + b.tile * f.scales_step + 4 * quad;
        take_word(to, 0, scales);
        if (scale_words(T) == 2) {
            take_word(to, 1, scales + 16);
        }
    }
}

// part_words returns the quants of one row in a part, which has 16 bytes per row: the word for
// columns 0 to 15 and the word for columns 16 to 31.
template <uint T>
static inline uint2 part_words(uint q, uint high, uint part) {
    if (has_levels(T)) {
        return look_up(levels_of(T), q);
    }
    uint2 w = uint2(q & PIANOLA_BYTES(15), q >> 4 & PIANOLA_BYTES(15));
    if (has_sixes(T)) {
        const uint pairs = high >> (part % 2 * 4);
        w |= uint2((pairs & PIANOLA_BYTES(3)) << 4, (pairs & PIANOLA_BYTES(12)) << 2);
    } else if (has_fives(T)) {
        const uint bits = high >> part;
        w |= uint2((bits & PIANOLA_BYTES(1)) << 4, bits & PIANOLA_BYTES(16));
    }
    return w;
}

// part_products adds the products of a part of one row with the activations to two sums: of
// columns 0 to 15 and of columns 16 to 31.
template <uint T>
static inline int2 part_products(uint q, uint high, uint part, int4 x, int4 y, int2 sum) {
    const uint parts = tile_form_of(T).parts;
    if (parts == 8) {
        if (T == PIANOLA_WTYPE_MLX8) {
            q ^= PIANOLA_BYTES(128);
        }
        return part < 4 ? int2(dot4(int(q), x[part % 4], sum.x), sum.y) : int2(sum.x, dot4(int(q), y[part % 4], sum.y));
    }
    if (parts == 4) {
        const uint2 w = part_words<T>(q, high, part);
        return int2(dot4(int(w.x), x[part], sum.x), dot4(int(w.y), y[part], sum.y));
    }
    uint4 w = uint4(q, q >> 4, q >> 2, q >> 6) & PIANOLA_BYTES(3);
    if (has_threes(T)) {
        const uint bits = high >> (2 * part);
        w |= uint4((bits & PIANOLA_BYTES(1)) << 2, (bits & PIANOLA_BYTES(2)) << 1, (bits & PIANOLA_BYTES(16)) >> 2, (bits & PIANOLA_BYTES(32)) >> 3);
    }
    const uint i = 2 * part;
    return int2(dot4(int(w.y), x[i + 1], dot4(int(w.x), x[i], sum.x)), dot4(int(w.w), y[i + 1], dot4(int(w.z), y[i], sum.y)));
}

// sum_of returns the sum of 16 activations.
static inline int sum_of(int4 x) {
    const int ones = int(PIANOLA_BYTES(1));
    return dot4(x.x, ones, dot4(x.y, ones, dot4(x.z, ones, dot4(x.w, ones, 0))));
}

// multiply_quad adds the products of four rows of a tile to their sums. x holds the activations
// of columns 0 to 15, y those of columns 16 to 31; dx is their scale.
template <uint T>
static inline void multiply_quad(thread float4 &sum, thread const tile_quad &t, int4 x, int4 y, float dx, uint wtype) {
    const uint parts = tile_form_of(T).parts;
    const bool two = has_halves(T);
    int2 of_x = int2(0);
    if (zero_of(T) != 0 || has_minimum(T)) {
        of_x = int2(sum_of(x), sum_of(y));
    }
    float4 d;
    if (has_ue4m3(T)) {
        d = float4(1.0f);
    } else if (has_e8m0(T)) {
        const uint e = t.words[0];
        d = float4(half_e8m0(e & 255), half_e8m0(e >> 8 & 255), half_e8m0(e >> 16 & 255), half_e8m0(e >> 24));
    } else {
        d = scales4<T>(t.pairs[0], wtype);
    }
    d *= dx;
    float4 m = float4(0.0f);
    if (has_minimum(T)) {
        m = scales4<T>(t.pairs[1], wtype) * (has_scales(T) ? -dx : dx);
    }
    PIANOLA_UNROLL
    for (uint r = 0; r < 4; r++) {
        // Subtract the contribution of the zero point.
        int2 p = -zero_of(T) * of_x;
        PIANOLA_UNROLL
        for (uint i = 0; i < 8; i++) {
            if (i < parts) {
                const uint high = tile_form_of(T).high != 0 ? t.vectors[parts + (has_sixes(T) ? i / 2 % 2 : 0)][r] : 0;
                p = part_products<T>(t.vectors[i][r], high, i, x, y, p);
            }
        }
        if (has_ue4m3(T)) {
            // The integer products times their scales would not fit in 32 bits.
            sum[r] += d[r] * (ue4m3_half(byte_of(t.words[0], r)) * float(p.x) + ue4m3_half(byte_of(t.words[1], r)) * float(p.y));
            continue;
        }
        int2 least = of_x;
        if (has_packed(T)) {
            const uint2 s = uint2(t.words[0], t.words[1]) >> (8 * r);
            p *= int2(s & 15u);
            least *= int2(s >> 4 & 15u);
        } else if (two) {
            p *= int2(signed_byte_of(t.words[0], r), signed_byte_of(t.words[1], r));
        } else if (scale_words(T) == 1) {
            p = int2((p.x + p.y) * signed_byte_of(t.words[0], r), 0);
        } else if (has_scales(T)) {
            p = int2((p.x + p.y) * byte_of(t.words[0], r), 0);
            least = int2((of_x.x + of_x.y) * byte_of(t.words[1], r), 0);
        }
        sum[r] += d[r] * float(p.x + p.y);
        if (has_minimum(T)) {
            sum[r] += m[r] * float(least.x + least.y);
        }
    }
}

// tile_words holds column groups g and g+4 (g is 0 to 3) of one row of a tile, as int8 with the
// zero point subtracted. A value of group g is d * scale.x * q + m * least.x; group g+4 uses
// .y.
struct tile_words {
    uint2 q;
    int2 scale, least;
    float d, m;
};

template <uint T>
static inline tile_words load_words(device const uchar *strip, uint tile, uint g, uint r, uint wtype) {
    const tile_form f = tile_form_of(T);
    const block_place b = block_of(T, tile, wtype);
    device const uchar *block = strip + b.at;
    device const uchar *quants = block + f.quants + b.tile * f.quants_step + 4 * r;
    tile_words w;
    if (f.parts == 8) {
        w.q = uint2(*(device const uint *)(quants + 64 * g), *(device const uint *)(quants + 256 + 64 * g));
    } else if (f.parts == 4) {
        const uint q = *(device const uint *)(quants + 64 * g);
        w.q = has_levels(T) ? look_up(levels_of(T), q) : uint2(q, q >> 4) & PIANOLA_BYTES(15);
    } else {
        const uint q = *(device const uint *)(quants + g / 2 * 64) >> (g % 2 * 4);
        w.q = uint2(q, q >> 2) & PIANOLA_BYTES(3);
    }
    if (has_sixes(T)) {
        const uint q = *(device const uint *)(quants + f.high + g / 2 * 64) >> (g % 2 * 4);
        w.q |= (uint2(q, q >> 2) & PIANOLA_BYTES(3)) << 4;
    } else if (f.high != 0) {
        const uint q = *(device const uint *)(quants + f.high) >> g;
        w.q |= (uint2(q, q >> 4) & PIANOLA_BYTES(1)) << (has_threes(T) ? 2u : 4u);
    }
    if (zero_of(T) > 0) {
        w.q = less(w.q, zero_of(T));
    }
    w.d = has_e8m0(T) ? half_e8m0(block[f.d + r]) : has_ue4m3(T) ? 1.0f / 1024.0f : scale_at<T>(block + f.d + 2 * r, wtype);
    w.m = has_minimum(T) ? scale_at<T>(block + f.m + 2 * r, wtype) * (has_scales(T) ? -1.0f : 1.0f) : 0.0f;
    if (T == PIANOLA_WTYPE_MLX8) {
        w.q ^= PIANOLA_BYTES(128);
        w.m += 128.0f * w.d;
    }
    w.scale = int2(1);
    w.least = int2(1);
    if (has_scales(T)) {
        device const uchar *scales = block + f.scales + b.tile * f.scales_step + r;
        if (has_ue4m3(T)) {
            w.scale = int2(1024.0f * float2(ue4m3_half(scales[0]), ue4m3_half(scales[16])));
        } else if (has_packed(T)) {
            w.scale = int2(scales[0] & 15, scales[16] & 15);
            w.least = int2(scales[0] >> 4, scales[16] >> 4);
        } else if (has_minimum(T)) {
            w.scale = int2(int(scales[0]));
            w.least = int2(int(scales[16]));
        } else {
            w.scale = int2(as_type<char>(scales[0]), as_type<char>(scales[scale_words(T) == 1 ? 0 : 16]));
        }
    }
    return w;
}

#endif
