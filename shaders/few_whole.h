// The form of gemm_few for up to 8 rows of x that keeps all of them in threadgroup memory, for quantised weights.
//
// With so few rows, a SIMD group of the other form waits most of the time for its own instructions. Here there are
// twice as many, each for the 16 rows of W of a strip in a segment of the columns. x is loaded once, and converted if
// it is scaled, so that a ring holds weights only, which the lanes copy. The sums are those of the other form.
#ifndef PIANOLA_FEW_WHOLE_H
#define PIANOLA_FEW_WHOLE_H

#include "few_form.h"
#include "multiply.h"

// PIANOLA_WHOLE_SIMDS is the number of SIMD groups, two for each segment, and PIANOLA_WHOLE_RING the size of the ring
// of each. Behind the rings are the factors of 8 rows, two places for the exchange of sums, and x.
#define PIANOLA_WHOLE_SIMDS (2 * PIANOLA_SIMDS)
#define PIANOLA_WHOLE_RING 9216
#define PIANOLA_WHOLE_FACTORS (PIANOLA_WHOLE_SIMDS * PIANOLA_WHOLE_RING)
#define PIANOLA_WHOLE_EXCHANGE (PIANOLA_WHOLE_FACTORS + 64)

// PIANOLA_WHOLE_READS is the number of vectors of x that a thread loads before it knows the factors of the rows.
#define PIANOLA_WHOLE_READS 8

// whole_stage describes a stage of the ring: a block of 8 tiles, or as many of 4 or 8 tiles as are about as large.
template <uint T>
struct whole_stage {
    static inline uint tile() { return tile_form_of(T).bytes / tile_form_of(T).tiles; }
    static inline uint tiles() { return tile_form_of(T).tiles == 8 || 8 * tile() <= 2560 ? 8 : 4; }
    static inline uint bytes() { return tiles() * tile(); }
    static inline uint count() { return min(4u, PIANOLA_WHOLE_RING / bytes()); }
};

// whole_part is the share of a SIMD group: tiles from first to last-1 of a strip. The second strip of a threadgroup's
// last rows of W may not exist; it is then not copied, and its products are not used.
struct whole_part {
    uint first, last;
    uint step, limit; // see few_part
    uint copied;      // the limit of the rows of W whose strip exists
    ulong next;       // distance in bytes from its rows of W to those that it computes next
    threadgroup uchar *ring;
};

// whole_cursor is a place of the copies: the next tile, where its strip begins, and the rows of W.
struct whole_cursor {
    uint tile, low;
    device const uchar *strip;
};

// copy_whole starts to copy the stage of a cursor, if one is left, and moves the cursor.
template <uint T>
static inline void copy_whole(threadgroup uchar *to, thread whole_cursor &c, thread const whole_part &part, uint lane) {
    typedef whole_stage<T> S;
    if (c.low < part.copied && part.first < part.last) {
        const uint tiles = min(part.last - c.tile, S::tiles());
        const uint size = tiles * S::tile();
        device const uchar *from = c.strip + c.tile * S::tile();
        PIANOLA_UNROLL
        for (uint i = 0; i < (S::bytes() + 511) / 512; i++) {
            const uint at = 512 * i + 16 * lane;
            if (at < size) {
                copy_piece(to + at, from + at, true);
            }
        }
        c.tile += tiles;
        if (c.tile == part.last) {
            c.tile = part.first;
            c.low += part.step;
            c.strip += part.next;
        }
    }
    commit_stage();
}

// wait_whole waits until the oldest of the stages in flight, one less than count, is complete.
static inline void wait_whole(uint count) {
    switch (count) {
    case 4: wait_stage<2>(); break;
    case 3: wait_stage<1>(); break;
    default: wait_stage<0>();
    }
}

// exchanged exchanges columns 1 and 2 of four float16, the order of nibble_halves.
static inline uint2 exchanged(uint2 v) { return uint2(permute(v.x, v.y, 0x5410), permute(v.x, v.y, 0x7632)); }

// whole_input is the input of a threadgroup: count vectors of 16 bytes, and what a thread has loaded of them.
struct whole_input {
    device const uint4 *x;
    uint count;
    uint4 first[PIANOLA_WHOLE_READS];
};

static inline void load_whole(thread whole_input &in, uint tid) {
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_WHOLE_READS; k++) {
        const uint at = tid + k * 32 * PIANOLA_WHOLE_SIMDS;
        in.first[k] = at < in.count ? in.x[at] : uint4(0);
    }
}

// put_whole stores a vector of the input as float16, in the order of gemm_few. factors are those of scaled rows.
template <uint T, bool Scaled>
static inline void put_whole(threadgroup uchar *to, threadgroup const float2 *factors, uint4 v, uint at, uint places) {
    if (!Scaled) {
        ((threadgroup uint4 *)to)[at] = has_nibbles(T) ? uint4(exchanged(v.xy), exchanged(v.zw)) : v;
        return;
    }
    const uint row = 4 * places; // vectors of 16 columns of all rows, a power of two
    const uint2 w = as_type<uint2>(half4(as_type<float4>(v) * factors[at / 4 & places - 1].x));
    *(threadgroup uint2 *)(to + (at & 0u - 2 * row) * 8 + (at & row - 1) * 16 + ((at & row) != 0 ? 8 : 0)) = has_nibbles(T) ? exchanged(w) : w;
}

template <uint T, bool Scaled>
static inline void make_whole(threadgroup uchar *to, threadgroup const float2 *factors, thread const whole_input &in, uint places, uint tid) {
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_WHOLE_READS; k++) {
        const uint at = tid + k * 32 * PIANOLA_WHOLE_SIMDS;
        if (at < in.count) {
            put_whole<T, Scaled>(to, factors, in.first[k], at, places);
        }
    }
    for (uint at = tid + PIANOLA_WHOLE_READS * 32 * PIANOLA_WHOLE_SIMDS; at < in.count; at += 32 * PIANOLA_WHOLE_SIMDS) {
        put_whole<T, Scaled>(to, factors, in.x[at], at, places);
    }
}

// whole_weights are a lane's weights of a tile: of its two rows as in few_weights.
struct whole_weights {
    uint4 of[2];
};

// whole_quants returns a lane's weights of a tile. Lane 4g+t has rows 2g and 2g+1 of the strip. head is the start of
// the quantisation block, and k the index of the tile in it.
template <uint T>
static inline whole_weights whole_quants(threadgroup const uchar *head, uint k, uint lane) {
    const tile_form f = tile_form_of(T);
    const uint t = lane % 4;
    const uint pair = lane / 4; // quad pair / 2, rows pair % 2 * 2 and the next
    threadgroup const uchar *quants = head + f.quants + k * f.quants_step + 8 * pair;
    const uint2 v = *(threadgroup const uint2 *)(quants + 64 * t);
    uint2 second = uint2(0);
    uint2 high = uint2(0);
    if (f.parts == 8) {
        second = *(threadgroup const uint2 *)(quants + 64 * t + 256);
    }
    if (f.high != 0) {
        high = *(threadgroup const uint2 *)(quants + f.high + (has_sixes(T) ? 64 * (t / 2) : 0));
    }
    const uint d = *(threadgroup const uint *)(head + f.d + 4 * pair);
    const uint m = has_minimum(T) ? *(threadgroup const uint *)(head + f.m + 4 * pair) : 0;
    uint2 s = uint2(0);
    if (has_scales(T)) {
        threadgroup const uchar *scales = head + f.scales + k * f.scales_step + 2 * pair;
        s.x = *(threadgroup const ushort *)scales;
        s.y = scale_words(T) == 2 ? *(threadgroup const ushort *)(scales + 16) : 0;
    }
    whole_weights w;
    PIANOLA_UNROLL
    for (uint r = 0; r < 2; r++) {
        const uint block = d >> (16 * r) & 0xffff;
        const uint least = m >> (16 * r) & 0xffff;
        const uint s0 = s.x >> (8 * r) & 255;
        const uint s1 = s.y >> (8 * r) & 255;
        w.of[r] = has_nibbles(T) ? nibble_halves<T>(v[r], block, least, s0, s1) : group_halves<T>(v[r], second[r], high[r], t, block, least, s0, s1);
    }
    return w;
}

// multiply_whole adds the products of tile k of a stage. x is the lane's part of the stage's first tile, of which size
// bytes lie between two tiles.
template <uint T>
static inline void multiply_whole(thread float4 &sums, threadgroup const uchar *stage, threadgroup const uchar *x, uint size, uint k, uint lane) {
    const bool blocks = tile_form_of(T).tiles == 8;
    const whole_weights w = whole_quants<T>(blocks ? stage : stage + k * whole_stage<T>::tile(), blocks ? k : 0, lane);
    const uint4 b = *(threadgroup const uint4 *)(x + k * size);
    multiply_halves(sums, uint4(w.of[0].xy, w.of[1].xy), b.xy, lane);
    multiply_halves(sums, uint4(w.of[0].zw, w.of[1].zw), b.zw, lane);
}

// multiply_tiles adds the products of the tiles of a stage. Those of a whole stage are written one after the other, so
// that the loads of one are issued among the operations of another; of others four are.
template <uint T>
static inline void multiply_tiles(thread float4 &sums, threadgroup const uchar *stage, threadgroup const uchar *x, uint size, uint tiles, uint lane) {
    if (tiles == whole_stage<T>::tiles()) {
        PIANOLA_UNROLL
        for (uint i = 0; i < whole_stage<T>::tiles(); i++) {
            multiply_whole<T>(sums, stage, x, size, i, lane);
        }
        return;
    }
    uint k = 0;
    _Pragma("clang loop unroll(disable)")
    for (; k + 4 <= tiles; k += 4) {
        PIANOLA_UNROLL
        for (uint i = 0; i < 4; i++) {
            multiply_whole<T>(sums, stage, x, size, k + i, lane);
        }
    }
    _Pragma("clang loop unroll(disable)")
    for (; k < tiles; k++) {
        multiply_whole<T>(sums, stage, x, size, k, lane);
    }
}

// whole_part_of returns the share of a SIMD group.
template <uint T>
static inline whole_part whole_part_of(thread const halves_product &p, thread const few_form &form, uint threadgroups, threadgroup uchar *tg, uint simd) {
    const uint segment = segment_columns(p.in) / PIANOLA_FEW_COLUMNS;
    const uint tiles = p.in / PIANOLA_FEW_COLUMNS;
    const uint at = simd % PIANOLA_SIMDS;
    const bool halved = form.apart != 0;
    whole_part part = {min(at * segment, tiles), min((at + 1) * segment, tiles), 0, halved ? p.out / 2 : p.out, 0, 0, tg + simd * PIANOLA_WHOLE_RING};
    part.copied = halved || simd < PIANOLA_SIMDS ? part.limit : max(p.out, 16u) - 16;
    part.step = threadgroups != 0 ? threadgroups * (halved ? 16 : PIANOLA_FEW_OUT) : part.limit;
    part.next = part.step / 16 * strip_bytes(T, p.in, T);
    return part;
}

// whole_ring are the stages of a SIMD group's ring that are filled and multiplied next.
struct whole_ring {
    uint filled, used;
};

static inline uint next_whole(uint stage, uint count) { return stage + 1 == count ? 0 : stage + 1; }

// sum_segment returns the sums of a SIMD group's rows of W. x is the lane's part of the segment's first tile, of which
// size bytes lie between two tiles. Meanwhile the stages of the cursor are copied.
template <uint T>
static inline float4 sum_segment(thread whole_ring &ring, thread whole_cursor &ahead, thread const whole_part &part, threadgroup const uchar *x, uint size, uint lane) {
    typedef whole_stage<T> S;
    float4 sums = float4(0.0f);
    for (uint first = part.first; first < part.last;) {
        wait_whole(S::count());
        simdgroup_barrier(mem_flags::mem_threadgroup); // all lanes have copied this stage, and read the one before
        copy_whole<T>(part.ring + ring.filled * S::bytes(), ahead, part, lane);
        ring.filled = next_whole(ring.filled, S::count());
        const uint tiles = min(part.last - first, S::tiles());
        multiply_tiles<T>(sums, part.ring + ring.used * S::bytes(), x + (first - part.first) * size, size, tiles, lane);
        ring.used = next_whole(ring.used, S::count());
        first += tiles;
    }
    return sums;
}

// gemm_whole multiplies up to 8 rows of x. places is the number for which there is room.
template <uint T, bool Scaled>
static inline void gemm_whole(thread halves_product &p, thread const few_form &form, uint places, uint threadgroups, device const pianola_step *step, constant pianola_second &s, threadgroup uchar *tg, uint lane, uint simd) {
    typedef whole_stage<T> S;
    const uint tid = simd * 32 + lane;
    const whole_part part = whole_part_of<T>(p, form, threadgroups, tg, simd);
    const uint strip = simd / PIANOLA_SIMDS;
    whole_cursor ahead = {part.first, p.low, p.w + p.low / 16 * strip_bytes(T, p.in, T) + strip * (1 + form.apart / 16) * strip_bytes(T, p.in, T)};
    copy_whole<T>(part.ring, ahead, part, lane);
    const bool begun = begins(step);
    const uint rows = s.rows;
    // The first row, and as much of the input as there is room for, are loaded together with the step's flag. If there
    // are fewer rows than places, some of it is not used.
    p.last = 1;
    few_reduced made;
    if (Scaled) {
        made = begin_factors(form, p.in, 0, lane);
    }
    few_vector vector = begin_vector(form, p, simd, lane);
    whole_input in;
    in.x = (device const uint4 *)p.x;
    in.count = p.in / PIANOLA_FEW_COLUMNS * places * ((Scaled ? 2 : 1) * PIANOLA_FEW_ROW / 16);
    load_whole(in, tid);
    issued();
    // Copies delay what is requested after them, so most of the first ones follow the input.
    whole_ring ring = {1, 0};
    _Pragma("clang loop unroll(disable)")
    for (; ring.filled + 1 < S::count(); ring.filled++) {
        copy_whole<T>(part.ring + ring.filled * S::bytes(), ahead, part, lane);
    }
    if (!begun || rows == 0) {
#ifdef PIANOLA_COPIES
        metal::shim::wait_copies<0>();
#endif
        return;
    }
    const few_input input = few_rows<Scaled>(p, rows, 0, 8);
    const uint own = input.step / (Scaled ? 2 : 1); // bytes of a tile of float16, a power of two
    in.count = p.in / PIANOLA_FEW_COLUMNS * (input.step / 16);
    if (p.last > 1) {
        if (Scaled) {
            made = begin_factors(form, p.in, min(simd, p.last - 1), lane);
        }
        vector = begin_vector(form, p, simd, lane);
    }
    float unit = Scaled ? 0.0f : input.units[min(simd, p.last - 1)];
    threadgroup float2 *factors = (threadgroup float2 *)(tg + PIANOLA_WHOLE_FACTORS);
    threadgroup float *exchange = (threadgroup float *)(tg + PIANOLA_WHOLE_EXCHANGE);
    threadgroup uchar *x = tg + PIANOLA_WHOLE_EXCHANGE + 2048 * places;
    if (Scaled) {
        const few_factors f = few_factors_of(made, form, p.in, lane);
        if (lane == 0 && simd < 8) {
            factors[simd] = float2(f.factor, f.unit);
        }
        unit = f.unit;
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    make_whole<T, Scaled>(x, factors, in, own / PIANOLA_FEW_ROW, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x += (16 * lane & own - 1) + part.first * own;
    uint place = 0; // of the sums: a SIMD group may still add those of the rows of W before
    while (true) {
        const float4 sums = sum_segment<T>(ring, ahead, part, x, own, lane);
        threadgroup float *all = exchange + place * 256 * places;
        put_sums(all, sums, 16 * strip + lane / 4 * 2, 16 * strip + lane / 4 * 2 + 1, p.last, simd % PIANOLA_SIMDS, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        put_results(all, p, form, vector, unit, simd, lane);
        if (p.low + part.step >= part.limit) {
            return;
        }
        p.low += part.step;
        p.high = min(p.low + PIANOLA_FEW_OUT, p.out);
        vector = begin_vector(form, p, simd, lane);
        place ^= 1;
    }
}

#endif
