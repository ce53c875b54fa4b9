// The product with up to 32 rows of float16 activations, which reads W once.
//
// A threadgroup computes 32 rows of W. Its SIMD groups divide the tiles of 32 columns among
// themselves, and their sums are added in a fixed order at the end. A lane copies what it
// reads itself, weights and input, to its SIMD group's ring in threadgroup memory several
// tiles ahead, and waits for its own copies alone.
//
// The lanes hold weights as operands of multiply_halves, lane 4g+t for rows g and g+8 of 16: with
// 8 values of g and two products a lane has four rows of W. In layout Tiled16 these are four
// neighbouring rows, for which a word of 16 bytes holds columns 4t to 4t+3, and others 16
// columns further. In layout Rows they are rows g, g+8, g+16 and g+24, and a lane has the
// columns 8t to 8t+7.
#include "chunks.h"
#include "multiply.h"

// Rows of W of a threadgroup, the largest number of rows of x, and columns of a tile.
#define PIANOLA_FEW_OUT 32
#define PIANOLA_FEW_ROWS 32
#define PIANOLA_FEW_COLUMNS 32

// few_form is the number of vectors of 16 bytes, pairs of 8 and words of 4 that a lane copies for
// a tile of weights.
static inline quad_form few_form(uint type) {
    if (is_float(type)) {
        return {4, 0, 0};
    }
    const tile_form f = tile_form_of(type);
    return {(f.parts == 8 ? 2u : 1u) + (f.high != 0 ? 1u : 0u), has_ue4m3(type) ? 0u : has_minimum(type) ? 2u : 1u, has_scales(type) ? scale_words(type) : 0u};
}

// few_slot returns the size in bytes of a slot of the ring: weights, and N vectors of the input.
static inline uint few_slot(uint type, uint n) {
    const quad_form f = few_form(type);
    return 512 * (f.vectors + n) + 256 * f.pairs + 128 * f.words;
}

// PIANOLA_FEW_ROOM is the size of a SIMD group's ring.
#define PIANOLA_FEW_ROOM (PIANOLA_TGMEM_GEMM_FEW() / PIANOLA_SIMDS)

// few_slots returns the number of tiles in flight: 4 or 2.
static inline uint few_slots(uint type, uint n) { return PIANOLA_FEW_ROOM / few_slot(type, n) >= 4 ? 4 : 2; }

// few_copies is a lane's place in a slot: the vectors of all lanes, then the pairs, the words and
// the vectors of the input.
struct few_copies {
    threadgroup uchar *at;
    quad_form form;
    uint lane;
};

static inline threadgroup uchar *few_vector(thread const few_copies &c, uint i) { return c.at + 512 * i + 16 * c.lane; }
static inline threadgroup uchar *few_pair(thread const few_copies &c, uint i) { return c.at + 512 * c.form.vectors + 256 * i + 8 * c.lane; }
static inline threadgroup uchar *few_word(thread const few_copies &c, uint i) { return c.at + 512 * c.form.vectors + 256 * c.form.pairs + 128 * i + 4 * c.lane; }
static inline threadgroup uchar *few_input(thread const few_copies &c, uint i) { return c.at + 512 * (c.form.vectors + i) + 256 * c.form.pairs + 128 * c.form.words + 16 * c.lane; }

// copy_vector, copy_pair and copy_word start a copy.
static inline void copy_vector(threadgroup uchar *to, device const uchar *from) {
#ifdef PIANOLA_COPIES
    metal::shim::copy16(to, from);
#else
    *(threadgroup uint4 *)to = *(device const uint4 *)from;
#endif
}
static inline void copy_pair(threadgroup uchar *to, device const uchar *from) {
#ifdef PIANOLA_COPIES
    metal::shim::copy8(to, from);
#else
    *(threadgroup uint2 *)to = *(device const uint2 *)from;
#endif
}
static inline void copy_few_word(threadgroup uchar *to, device const uchar *from) {
#ifdef PIANOLA_COPIES
    metal::shim::copy4(to, from);
#else
    *(threadgroup uint *)to = *(device const uint *)from;
#endif
}

// few_source holds where a lane reads its next tile. A SIMD group takes every eighth tile, so that
// all addresses advance by the same number of bytes.
template <uint N>
struct few_source {
    device const uchar *w;    // quantised weights: the block of the tile in the lane's strip
    ulong rows[4];            // float weights: the offsets of the lane's rows of W in bytes
    uint quants, high, d, m, scales; // offsets from w
    device const uchar *x[N]; // the lane's elements of the input
    uint t;
};

// few_step returns the distance in bytes between tiles that a SIMD group takes one after the other.
static inline uint few_step(uint type) {
    const tile_form f = tile_form_of(type);
    return f.tiles == 0 ? 0 : PIANOLA_SIMDS / f.tiles * f.bytes;
}

// few_source_of returns the source of a lane for the SIMD group's first tile. Rows past the last
// repeat the last.
template <uint T, uint N>
static inline few_source<N> few_source_of(thread const halves_product &p, uint lane, uint simd) {
    const uint g = lane / 4;
    few_source<N> s;
    s.t = lane % 4;
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        s.x[n] = row_of<1>(p, min(p.first + 8 * n + g, p.last - 1)) + 2 * PIANOLA_FEW_COLUMNS * simd + (is_float(T) ? 16 : 8) * s.t;
    }
    s.w = p.w;
    if (is_float(T)) {
        PIANOLA_UNROLL
        for (uint i = 0; i < 4; i++) {
            s.rows[i] = 2 * ulong(min(p.low + g + 8 * i, p.out - 1)) * p.in;
        }
        return s;
    }
    const tile_form f = tile_form_of(T);
    const block_place b = block_of(T, simd, T);
    const uint quad = g % 4;
    s.w += min(p.low / 16 + g / 4, p.out / 16 - 1) * strip_bytes(T, p.in, T) + b.at;
    s.quants = f.quants + b.tile * f.quants_step + 16 * quad + 64 * (f.parts == 2 ? s.t / 2 : s.t);
    s.high = f.quants + b.tile * f.quants_step + f.high + 16 * quad + (has_sixes(T) ? 64 * (s.t / 2) : 0);
    s.d = f.d + 8 * quad;
    s.m = f.m + 8 * quad;
    s.scales = f.scales + b.tile * f.scales_step + 4 * quad;
    return s;
}

// copy_weights starts to copy a lane's weights of the tile that begins at a column.
template <uint T, uint N>
static inline void copy_weights(thread const few_copies &c, thread const few_source<N> &s, thread const halves_product &p, uint column) {
    if (is_float(T)) {
        const uint at = column + 8 * s.t;
        PIANOLA_UNROLL
        for (uint i = 0; i < 4; i++) {
            // A piece past the end is not read, but its address must be valid.
            copy_piece(few_vector(c, i), s.w + s.rows[i] + 2 * min(at, p.in - 8), at < p.in);
        }
        return;
    }
    const tile_form f = tile_form_of(T);
    copy_vector(few_vector(c, 0), s.w + s.quants);
    if (f.parts == 8) {
        copy_vector(few_vector(c, 1), s.w + s.quants + 256);
    }
    if (f.high != 0) {
        copy_vector(few_vector(c, f.parts == 8 ? 2 : 1), s.w + s.high);
    }
    if (!has_ue4m3(T)) {
        copy_pair(few_pair(c, 0), s.w + s.d);
    }
    if (has_minimum(T)) {
        copy_pair(few_pair(c, 1), s.w + s.m);
    }
    if (has_scales(T)) {
        copy_few_word(few_word(c, 0), s.w + s.scales);
        if (scale_words(T) == 2) {
            copy_few_word(few_word(c, 1), s.w + s.scales + 16);
        }
    }
}

// copy_input starts to copy a lane's elements of the input: of row g of each block of 8 rows, the
// columns of the tile that meet the lane's weights.
template <uint T, uint N>
static inline void copy_input(thread const few_copies &c, thread const few_source<N> &s) {
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        threadgroup uchar *to = few_input(c, n);
        if (is_float(T)) {
            copy_vector(to, s.x[n]);
        } else {
            copy_pair(to, s.x[n]);
            copy_pair(to + 8, s.x[n] + 32);
        }
    }
}

// few_sums are a lane's sums: of two products for each of N blocks of 8 rows of x.
template <uint N>
struct few_sums {
    float4 of[2][N];
};

// few_weights are a lane's weights of a tile: of each of its four rows two groups of 4 columns.
struct few_weights {
    uint4 of[4];
};

// few_weights_of returns the weights that a lane has copied.
template <uint T>
static inline few_weights few_weights_of(thread const few_copies &c, uint t) {
    few_weights w;
    const uint4 v = *(threadgroup const uint4 *)few_vector(c, 0);
    if (is_float(T)) {
        w.of[0] = v;
        PIANOLA_UNROLL
        for (uint i = 1; i < 4; i++) {
            w.of[i] = *(threadgroup const uint4 *)few_vector(c, i);
        }
        if (T == PIANOLA_WTYPE_BF16) {
            PIANOLA_UNROLL
            for (uint i = 0; i < 4; i++) {
                w.of[i] = uint4(halves4(four_of<PIANOLA_WTYPE_BF16>(w.of[i].xy)), halves4(four_of<PIANOLA_WTYPE_BF16>(w.of[i].zw)));
            }
        }
        return w;
    }
    const tile_form f = tile_form_of(T);
    uint4 second = uint4(0);
    uint4 high = uint4(0);
    if (f.parts == 8) {
        second = *(threadgroup const uint4 *)few_vector(c, 1);
    }
    if (f.high != 0) {
        high = *(threadgroup const uint4 *)few_vector(c, f.parts == 8 ? 2 : 1);
    }
    uint2 d = uint2(0);
    uint2 m = uint2(0);
    uint2 s = uint2(0);
    if (!has_ue4m3(T)) {
        d = *(threadgroup const uint2 *)few_pair(c, 0);
    }
    if (has_minimum(T)) {
        m = *(threadgroup const uint2 *)few_pair(c, 1);
    }
    if (has_scales(T)) {
        s.x = *(threadgroup const uint *)few_word(c, 0);
        s.y = scale_words(T) == 2 ? *(threadgroup const uint *)few_word(c, 1) : 0;
    }
    PIANOLA_UNROLL
    for (uint r = 0; r < 4; r++) {
        const uint shift = r % 2 * 16;
        const tile_scales scales = tile_scales_of<T>((r < 2 ? d.x : d.y) >> shift & 0xffff, (r < 2 ? m.x : m.y) >> shift & 0xffff, s.x >> (8 * r) & 255, s.y >> (8 * r) & 255);
        const uint2 q = group_quants<T>(v[r], second[r], high[r], t);
        w.of[r] = uint4(halves_of_bytes<T>(q.x, scales.d.x, scales.m.x), halves_of_bytes<T>(q.y, scales.d.y, scales.m.y));
    }
    return w;
}

// multiply_few adds the products of a tile.
template <uint T, uint N>
static inline void multiply_few(thread few_sums<N> &sums, thread const few_copies &c, uint t) {
    const few_weights w = few_weights_of<T>(c, t);
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        const uint4 x = *(threadgroup const uint4 *)few_input(c, n);
        PIANOLA_UNROLL
        for (uint i = 0; i < 2; i++) {
            multiply_halves(sums.of[i][n], uint4(w.of[2 * i].xy, w.of[2 * i + 1].xy), x.xy, c.lane);
            multiply_halves(sums.of[i][n], uint4(w.of[2 * i].zw, w.of[2 * i + 1].zw), x.zw, c.lane);
        }
    }
}

// few_row returns the row of W, from the threadgroup's first on, of elements k of product i:
// .xy for k = 0, .zw for k = 1.
template <uint T>
static inline uint few_row(uint i, uint k, uint lane) {
    const uint g = lane / 4;
    return is_float(T) ? g + 16 * i + 8 * k : g / 4 * 16 + g % 4 * 4 + 2 * i + k;
}

// add_few adds the sums of all SIMD groups, the first one's first, and writes the results. Each
// SIMD group takes some of the blocks of 8 rows of x.
template <uint T, uint N>
static inline void add_few(thread const few_sums<N> &sums, thread const halves_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    threadgroup float4 *all = (threadgroup float4 *)tg;
    threadgroup_barrier(mem_flags::mem_threadgroup); // the rings are no longer used
    PIANOLA_UNROLL
    for (uint i = 0; i < 2; i++) {
        PIANOLA_UNROLL
        for (uint n = 0; n < N; n++) {
            all[((2 * n + i) * PIANOLA_SIMDS + simd) * 32 + lane] = sums.of[i][n];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd >= 2 * N) {
        return;
    }
    const uint i = simd % 2;
    const uint n = simd / 2;
    float4 v = float4(0.0f);
    for (uint k = 0; k < PIANOLA_SIMDS; k++) {
        v += all[(simd * PIANOLA_SIMDS + k) * 32 + lane];
    }
    PIANOLA_UNROLL
    for (uint k = 0; k < 4; k++) {
        const uint r = p.first + 8 * n + lane % 4 * 2 + k % 2;
        const uint o = p.low + few_row<T>(i, k / 2, lane);
        if (r < p.last && o < p.high) {
            p.y[ulong(r) * p.y_stride + o] = v[k] * unit_at<1>(p, r) + (p.bias ? p.b[o] : 0.0f);
        }
    }
}

// wait_few waits until all but the last slots-1 tiles are copied.
static inline void wait_few(uint slots) {
    if (slots == 4) {
        wait_stage<3>();
    } else {
        wait_stage<1>();
    }
}

// few_begin starts to copy tile i of the SIMD group to its slot, if there is one, and advances the
// source.
template <uint T, uint N>
static inline void few_begin(thread few_copies &c, threadgroup uchar *ring, thread few_source<N> &s, thread const halves_product &p, uint i, uint simd) {
    const uint column = (i * PIANOLA_SIMDS + simd) * PIANOLA_FEW_COLUMNS;
    if (column < p.in) {
        c.at = ring + i % few_slots(T, N) * few_slot(T, N);
        copy_weights<T, N>(c, s, p, column);
        copy_input<T, N>(c, s);
        s.w += few_step(T);
        PIANOLA_UNROLL
        for (uint n = 0; n < N; n++) {
            s.x[n] += 2 * PIANOLA_FEW_COLUMNS * PIANOLA_SIMDS;
        }
    }
    commit_stage();
}

// gemm_few_of multiplies up to 8*N rows of x.
template <uint T, uint N>
static inline void gemm_few_of(thread const halves_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    threadgroup uchar *ring = tg + simd * PIANOLA_FEW_ROOM;
    few_source<N> s = few_source_of<T, N>(p, lane, simd);
    few_copies c = {ring, few_form(T), lane};
    const uint slots = few_slots(T, N);
    few_sums<N> sums;
    PIANOLA_UNROLL
    for (uint i = 0; i < 2; i++) {
        PIANOLA_UNROLL
        for (uint n = 0; n < N; n++) {
            sums.of[i][n] = float4(0.0f);
        }
    }
    for (uint i = 0; i + 1 < slots; i++) {
        few_begin<T, N>(c, ring, s, p, i, simd);
    }
    for (uint i = 0; (i * PIANOLA_SIMDS + simd) * PIANOLA_FEW_COLUMNS < p.in; i++) {
        few_begin<T, N>(c, ring, s, p, i + slots - 1, simd);
        wait_few(slots);
        c.at = ring + i % slots * few_slot(T, N);
        multiply_few<T, N>(sums, c, s.t);
    }
    add_few<T, N>(sums, p, tg, lane, simd);
}

// gemm_few_rows selects the number of rows of x.
template <uint T>
static inline void gemm_few_rows(thread const halves_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    if (p.last <= 8) {
        gemm_few_of<T, 1>(p, tg, lane, simd);
    } else if (p.last <= 16) {
        gemm_few_of<T, 2>(p, tg, lane, simd);
    } else {
        gemm_few_of<T, 4>(p, tg, lane, simd);
    }
}

[[max_total_threads_per_threadgroup(256)]]
kernel void gemm_few(
        device const uchar *x               [[buffer(0)]],
        device const uchar *w               [[buffer(1)]],
        device const float *b               [[buffer(2)]],
        device float *y                     [[buffer(3)]],
        constant pianola_gemm_few_params &p [[buffer(8)]],
        constant pianola_second &s          [[buffer(9)]],
        device pianola_step *step           [[buffer(10)]],
        threadgroup uchar *tg               [[threadgroup(0)]],
        uint3 group                         [[threadgroup_position_in_grid]],
        uint lane                           [[thread_index_in_simdgroup]],
        uint simd                           [[simdgroup_index_in_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    const uint low = group.x * PIANOLA_FEW_OUT;
    if (low >= p.out) {
        return;
    }
    const halves_product a = {x, w, b, y, p.in, p.out, p.y_stride, low, min(low + PIANOLA_FEW_OUT, p.out), 0, min(s.rows, uint(PIANOLA_FEW_ROWS)), BIAS != 0, nullptr};
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemm_few_rows<PIANOLA_WTYPE_##type>(a, tg, lane, simd); break;
    if (ACT == PIANOLA_ACT_F16 && WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
        switch (WTYPE) {
            PIANOLA_EXPANDED(PIANOLA_CASE)
        default: break;
        }
    } else if (ACT == PIANOLA_ACT_F16) {
        switch (WTYPE) {
            PIANOLA_CASE(F16)
            PIANOLA_CASE(BF16)
        default: break;
        }
    }
#undef PIANOLA_CASE
}
