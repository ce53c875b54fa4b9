// The product with up to 64 rows of float16 activations.
//
// A threadgroup computes 32 rows of W with up to 32 rows of x, or in the wide form 64 with up to 64, for
// which it requests half as many bytes for each product. Only quantised weights have the wide form. Each
// SIMD group multiplies one segment of the columns, and the sums of the segments are added in order at the
// end. A SIMD group has a ring of stages in threadgroup memory, each with some tiles of 32 columns of the
// weights and of the input, several stages ahead. In a tile, quantised weights and the input are runs of
// bytes that Hopper's copy unit copies by itself; its time depends on the number of runs, so the kernel
// halves writes the input in the order in which this kernel reads it. Rows of float weights are short runs:
// the lanes copy them. If a command has up to 8 rows of x, the first stages of the weights are copied before its
// input is ready.
//
// Rows of x are padded to a power of two. Products are made with 8 at once, so with fewer places several columns
// of the operand are the same row, and their results are not used.
//
// The lanes hold 32 rows of W at a time as operands of multiply_halves, lane 4g+t for rows g and g+8 of 16
// and columns 4t to 4t+3 of 16: with 8 values of g and two products a lane has four rows of W. In layout
// Tiled16 these are four neighbouring rows of a strip, for which a word of 16 bytes holds the columns, and
// others 16 columns further. In layout Rows they are rows g, g+8, g+16 and g+24.
//
// For up to 8 rows of x, a command takes longer to begin and to wait than to compute, so there are forms that
// need fewer commands. The output gated is activation(gate) * up, and add_scaled adds the product to the
// residual stream. Both write float32 in the order of this kernel, and for each row what the next product
// needs to convert it to float16: the largest magnitudes of parts of the columns and, for add_scaled, sums of
// squares. With the input scaled, each threadgroup adds these first, and the lanes round what they have copied. A
// threadgroup of such a product computes 32 rows of W after the other; the copies do not stop in between. For some
// types there is a shape for such rows alone, see few_whole.h.
#include "few_whole.h"

// few_sums are a lane's sums: for each 32 rows of W of two products with each of N blocks of 8 rows of x.
template <uint N, uint Wide>
struct few_sums {
    float4 of[2 * Wide][N];
};

// few_weights are a lane's weights of a tile of 32 rows: of each of its four rows two groups of 4 columns.
struct few_weights {
    uint4 of[4];
};

// few_floats returns a lane's float weights of tile k of a stage.
template <uint T>
static inline few_weights few_floats(threadgroup const uchar *at, uint k, uint lane) {
    few_weights w;
    const uint piece = 4 * k + lane % 4 / 2;
    PIANOLA_UNROLL
    for (uint r = 0; r < 4; r++) {
        const uint row = lane / 4 + 8 * r;
        const uint2 low = *(threadgroup const uint2 *)(at + few_piece(row, piece) + lane % 2 * 8);
        const uint2 high = *(threadgroup const uint2 *)(at + few_piece(row, piece + 2) + lane % 2 * 8);
        w.of[r] = uint4(low, high);
        if (T == PIANOLA_WTYPE_BF16) {
            w.of[r] = uint4(halves4(four_of<PIANOLA_WTYPE_BF16>(low)), halves4(four_of<PIANOLA_WTYPE_BF16>(high)));
        }
    }
    return w;
}

// few_quants returns a lane's quantised weights of tile k of a stage whose first tile is the block's tile
// first, of two strips.
template <uint T, uint N, uint Wide, bool Scaled>
static inline few_weights few_quants(threadgroup const uchar *strips, uint k, uint first, uint lane) {
    typedef few_stage<T, N, Wide, Scaled> S;
    const tile_form f = tile_form_of(T);
    const uint t = lane % 4;
    const uint quad = lane / 4 % 4;
    threadgroup const uchar *strip = strips + lane / 16 * S::strip(S::tiles());
    threadgroup const uchar *tile = strip + k * few_step(T);
    threadgroup const uchar *head = f.tiles == 1 ? tile : strip;
    threadgroup const uchar *quants = tile + f.quants + 16 * quad;
    const uint4 v = *(threadgroup const uint4 *)(quants + 64 * (f.parts == 2 ? t / 2 : t));
    uint4 second = uint4(0);
    uint4 high = uint4(0);
    if (f.parts == 8) {
        second = *(threadgroup const uint4 *)(quants + 64 * t + 256);
    }
    if (f.high != 0) {
        high = *(threadgroup const uint4 *)(quants + f.high + (has_sixes(T) ? 64 * (t / 2) : 0));
    }
    uint2 d = uint2(0);
    uint2 m = uint2(0);
    uint2 s = uint2(0);
    if (!has_ue4m3(T)) {
        d = *(threadgroup const uint2 *)(head + f.d + 8 * quad);
    }
    if (has_minimum(T)) {
        m = *(threadgroup const uint2 *)(head + f.m + 8 * quad);
    }
    if (has_scales(T)) {
        threadgroup const uchar *scales = (f.scales >= few_head(T) ? tile : strip + (first + k) * f.scales_step) + f.scales + 4 * quad;
        s.x = *(threadgroup const uint *)scales;
        s.y = scale_words(T) == 2 ? *(threadgroup const uint *)(scales + 16) : 0;
    }
    few_weights w;
    PIANOLA_UNROLL
    for (uint r = 0; r < 4; r++) {
        const uint shift = r % 2 * 16;
        w.of[r] = group_halves<T>(v[r], second[r], high[r], t, (r < 2 ? d.x : d.y) >> shift & 0xffff, (r < 2 ? m.x : m.y) >> shift & 0xffff, s.x >> (8 * r) & 255, s.y >> (8 * r) & 255);
    }
    return w;
}

// few_own is a lane's part of a tile of the input: its offset in 8 rows of float16, the size of a tile of float16,
// and the factor that converts a scaled input, see few_factors.
struct few_own {
    uint at, size;
    float factor;
};

// few_halves returns a lane's 8 elements of a tile of float32 as float16.
static inline uint4 few_halves(threadgroup const uchar *tile, few_own own) {
    const float4 low = *(threadgroup const float4 *)(tile + own.at) * own.factor;
    const float4 high = *(threadgroup const float4 *)(tile + own.size + own.at) * own.factor;
    return uint4(as_type<uint2>(half4(low)), as_type<uint2>(half4(high)));
}

// convert_stage converts the input of a stage from float32 to float16. Each element is converted once; with fewer
// than 8 places, several lanes need it.
static inline void convert_stage(threadgroup uchar *to, threadgroup const uchar *from, few_own own, uint tiles, uint lane) {
    const uint row = own.size / 16; // vectors of 16 columns of all rows, a power of two
    _Pragma("clang loop unroll(disable)")
    for (uint i = lane; i < tiles * 2 * row; i += 32) {
        const half4 v = half4(((threadgroup const float4 *)from)[i] * own.factor);
        *(threadgroup uint2 *)(to + (i & 0u - 2 * row) * 8 + (i & row - 1) * 16 + ((i & row) != 0 ? 8 : 0)) = as_type<uint2>(v);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// multiply_few adds the products of tile k of a stage that begins with tile first. x is the input of the stage,
// float32 if scaled.
template <uint T, uint N, uint Wide, bool Scaled, bool Floats>
static inline void multiply_few(thread few_sums<N, Wide> &sums, threadgroup const uchar *at, threadgroup const uchar *x, few_own own, uint k, uint first, uint lane) {
    typedef few_stage<T, N, Wide, Scaled> S;
    few_weights w[Wide];
    PIANOLA_UNROLL
    for (uint h = 0; h < Wide; h++) {
        if (S::floats != 0) {
            w[h] = few_floats<T>(at, k, lane);
        } else {
            w[h] = few_quants<T, N, Wide, Scaled>(at + 2 * h * S::strip(S::tiles()), k, first % tile_form_of(T).tiles, lane);
        }
    }
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        threadgroup const uchar *block = x + k * (Floats ? 2 : 1) * own.size + n * PIANOLA_FEW_BLOCK;
        const uint4 b = Floats ? few_halves(block, own) : *(threadgroup const uint4 *)(block + own.at);
        PIANOLA_UNROLL
        for (uint i = 0; i < 2 * Wide; i++) {
            thread const few_weights &v = w[i / 2];
            multiply_halves(sums.of[i][n], uint4(v.of[i % 2 * 2].xy, v.of[i % 2 * 2 + 1].xy), b.xy, lane);
            multiply_halves(sums.of[i][n], uint4(v.of[i % 2 * 2].zw, v.of[i % 2 * 2 + 1].zw), b.zw, lane);
        }
    }
}

// few_row returns the row of W, from the threadgroup's first on, of elements k of product i:
// .xy for k = 0, .zw for k = 1.
template <uint T>
static inline uint few_row(uint i, uint k, uint lane) {
    const uint g = lane / 4;
    return i / 2 * PIANOLA_FEW_OUT + (is_float(T) ? g + i % 2 * 16 + 8 * k : g / 4 * 16 + g % 4 * 4 + i % 2 * 2 + k);
}

// few_exchange returns the place of the sums: where they are exchanged while the rings are filled, behind the barriers.
template <uint T, uint N, uint Wide>
static inline threadgroup uchar *few_exchange(threadgroup uchar *tg) {
    typedef few_stage<T, N, Wide, false> S;
    return S::apart != 0 ? tg + PIANOLA_SIMDS * (S::ring + 64) : tg;
}

// add_few adds the sums of all SIMD groups, the first one's first, and writes the results. Each SIMD group
// takes some of the products with a block of 8 rows of x. units are those of a lane's two rows in the first.
template <uint T, uint N, uint Wide>
static inline void add_few(thread const few_sums<N, Wide> &sums, thread const halves_product &p, thread const few_input &input, float2 units, threadgroup uchar *tg, uint lane, uint simd) {
    threadgroup float4 *all = (threadgroup float4 *)few_exchange<T, N, Wide>(tg);
    threadgroup_barrier(mem_flags::mem_threadgroup); // the rings or the place of the sums are no longer used
    PIANOLA_UNROLL
    for (uint i = 0; i < 2 * Wide; i++) {
        PIANOLA_UNROLL
        for (uint n = 0; n < N; n++) {
            all[((2 * Wide * n + i) * PIANOLA_SIMDS + simd) * 32 + lane] = sums.of[i][n];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint part = simd; part < 2 * Wide * N; part += PIANOLA_SIMDS) {
        float4 v = float4(0.0f);
        PIANOLA_UNROLL
        for (uint k = 0; k < PIANOLA_SIMDS; k++) {
            v += all[(part * PIANOLA_SIMDS + k) * 32 + lane];
        }
        PIANOLA_UNROLL
        for (uint k = 0; k < 4; k++) {
            const uint r = part / (2 * Wide) * 8 + lane % 4 * 2 + k % 2;
            const uint o = p.low + few_row<T>(part % (2 * Wide), k / 2, lane);
            if (r < p.last && o < p.high) {
                const float unit = part == simd ? units[k % 2] : input.units[r];
                p.y[ulong(r) * p.y_stride + o] = v[k] * unit + (p.bias ? p.b[o] : 0.0f);
            }
        }
    }
}

// few_at returns the place of the factors of a row.
static inline threadgroup float *few_at(threadgroup uchar *factors, uint row) { return (threadgroup float *)(factors + 64 * row); }

// few_end adds the sums of all SIMD groups for up to 8 rows of x, and writes the results of a form whose product is
// not stored. unit is that of the SIMD group's row.
template <uint T, uint N, uint Wide>
static inline void few_end(thread const few_sums<N, Wide> &sums, thread const halves_product &p, thread const few_form &form, few_vector vector, float unit, threadgroup uchar *tg, uint lane, uint simd) {
    threadgroup float *all = (threadgroup float *)few_exchange<T, N, Wide>(tg);
    threadgroup_barrier(mem_flags::mem_threadgroup); // the rings or the place of the sums are no longer used
    PIANOLA_UNROLL
    for (uint i = 0; i < 2; i++) {
        put_sums(all, sums.of[i][0], few_row<T>(i, 0, lane), few_row<T>(i, 1, lane), p.last, simd, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    put_results(all, p, form, vector, unit, simd, lane);
}

// multiply_stage adds the products of the tiles of a stage from first to last-1. For up to 8 rows a tile consists
// of short chains of operations, so the tiles of a whole stage are written one after the other: the loads of one
// are then issued among the operations of another.
template <uint T, uint N, uint Wide, bool Scaled>
static inline void multiply_stage(thread few_sums<N, Wide> &sums, threadgroup uchar *at, uint size, few_own own, uint first, uint last, uint lane) {
    typedef few_stage<T, N, Wide, Scaled> S;
    threadgroup uchar *x = at + S::weights(S::tiles());
    if (Scaled && own.size < PIANOLA_FEW_BLOCK) {
        threadgroup uchar *halves = at + size - S::tiles() * own.size; // at the end of the stage
        convert_stage(halves, x, own, last - first, lane);
        x = halves;
    } else if (Scaled) {
        _Pragma("clang loop unroll(disable)")
        for (uint k = 0; k < last - first; k++) {
            multiply_few<T, N, Wide, Scaled, true>(sums, at, x, own, k, first, lane);
        }
        return;
    }
    if (S::apart != 0 && S::floats == 0 && last - first == S::tiles()) {
        PIANOLA_UNROLL
        for (uint k = 0; k < S::tiles(); k++) {
            multiply_few<T, N, Wide, Scaled, false>(sums, at, x, own, k, first, lane);
        }
        return;
    }
    for (uint k = 0; k < last - first; k++) {
        multiply_few<T, N, Wide, Scaled, false>(sums, at, x, own, k, first, lane);
    }
}

// gemm_few_of multiplies up to 8*N rows of x. Only up to 8 rows, and 32 rows of W, have other forms than rows of
// float16 whose product is stored.
template <uint T, uint N, uint Wide, bool Scaled>
static inline void gemm_few_of(thread const few_start &start, thread const halves_product &p, thread const few_input &input, thread const few_form &form, threadgroup uchar *tg, uint lane, uint simd) {
    typedef few_stage<T, N, Wide, Scaled> S;
    const bool stored = N > 1 || Wide > 1 || form.output == PIANOLA_OUTPUT_STORE;
    // What does not depend on the sums is loaded before they are computed: the units of the rows whose results
    // a lane writes first, or what few_end needs.
    const uint r = stored ? simd / (2 * Wide) * 8 + lane % 4 * 2 : simd;
    float2 units = float2(0.0f);
    few_reduced made;
    if (Scaled) {
        made = begin_factors(form, p.in, min(simd, p.last - 1), lane);
    } else {
        units = float2(input.units[min(r, p.last - 1)], input.units[min(r + 1, p.last - 1)]);
    }
    few_vector vector;
    if (S::apart != 0) {
        vector = begin_vector(form, p, simd, lane);
        if (!stored || Scaled) {
            issued();
        }
    }
    threadgroup uchar *factors = tg + PIANOLA_SIMDS * S::ring + PIANOLA_FEW_FACTORS;
    few_ring filled = {0, 0};
    few_ring used = {0, 0};
#ifdef PIANOLA_WARPGROUPS
    const bool weights = S::apart == 0; // else start_few has begun to copy them
#else
    const bool weights = true;
#endif
    few_cursor ahead = few_cursor_of<T>(p, start.part);
    few_first<T, N, Wide, Scaled, weights, true>(filled, start.barriers, start.part, p, input, ahead, lane);
    few_own own = {16 * lane, few_size<N>(input) / (Scaled ? 2 : 1), 1.0f};
    if (N == 1) {
        own.at &= own.size - 1; // the size is a power of two
    }
    if (Scaled) {
        const few_factors f = few_factors_of(made, form, p.in, lane);
        if (lane == 0) {
            threadgroup float *to = few_at(factors, simd);
            to[0] = f.factor;
            to[1] = f.unit;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        own.factor = few_at(factors, own.at / PIANOLA_FEW_ROW)[0];
        units = float2(few_at(factors, min(r, 7u))[1], few_at(factors, min(r + 1, 7u))[1]);
    }
    halves_product rows = p;
    while (true) {
        few_sums<N, Wide> sums;
        PIANOLA_UNROLL
        for (uint i = 0; i < 2 * Wide; i++) {
            PIANOLA_UNROLL
            for (uint n = 0; n < N; n++) {
                sums.of[i][n] = float4(0.0f);
            }
        }
        for (uint first = start.part.first; first < start.part.last;) {
            // All lanes have read the stage before, so it can be filled again.
            simdgroup_barrier(mem_flags::mem_threadgroup);
            few_begin<T, N, Wide, Scaled, true, true>(filled, start.barriers, start.part, p, input, ahead, lane);
#ifdef PIANOLA_WARPGROUPS
            metal::shim::barrier_wait(start.barriers + 8 * used.at, used.phase);
            const bool lanes = S::floats != 0;
#else
            const bool lanes = true;
#endif
            if (lanes) {
                wait_few(start.part.count - 1);
                simdgroup_barrier(mem_flags::mem_threadgroup);
            }
            const uint last = few_until<T, N, Wide, Scaled>(start.part, first);
            multiply_stage<T, N, Wide, Scaled>(sums, start.part.ring + used.at * start.part.size, start.part.size, own, first, last, lane);
            few_next(used, start.part.count);
            first = last;
        }
        if (stored) {
            add_few<T, N, Wide>(sums, rows, input, units, tg, lane, simd);
        } else if (S::apart != 0) {
            few_end<T, N, Wide>(sums, rows, form, vector, units.x, tg, lane, simd);
        }
        if (S::apart == 0 || rows.low + start.part.step >= start.part.limit) {
            return;
        }
        rows.low += start.part.step;
        rows.high = min(rows.low + PIANOLA_FEW_OUT, p.out);
        vector = begin_vector(form, rows, simd, lane);
    }
}

// gemm_few_more multiplies more than 8 rows of x or, in the wide form, any number.
template <uint T, uint N, uint Wide>
static inline void gemm_few_more(thread const halves_product &p, thread const few_input &input, thread const few_form &form, threadgroup uchar *tg, uint lane, uint simd) {
    const few_start start = start_few<T, N, Wide, false>(p, 0, 8, 0, tg, lane, simd);
    gemm_few_of<T, N, Wide, false>(start, p, input, form, tg, lane, simd);
}

// gemm_few_rows multiplies the rows of x of a threadgroup, up to as many of rows as it has rows of W. If early, there
// are up to that number, a power of two up to 8, and the first weights are copied before it is known how many.
template <uint T, uint Wide, bool Scaled>
static inline void gemm_few_rows(thread halves_product p, thread const few_form &form, uint early, uint threadgroups, device const pianola_step *step, constant pianola_second &s, threadgroup uchar *tg, uint group, uint lane, uint simd) {
    const bool starts = Wide == 1 && (early != 0 || Scaled || form.output != PIANOLA_OUTPUT_STORE);
    const uint places = early != 0 ? early : 8;
    const uint most = Wide * PIANOLA_FEW_OUT;
    few_start start;
    if (starts) {
        start = start_few<T, 1, 1, Scaled>(p, form.apart, places, threadgroups, tg, lane, simd);
    }
    const bool begun = begins(step);
    const uint rows = s.rows; // loaded together with the step's flag
    issued();
    if (!begun || group * most >= rows) {
#ifdef PIANOLA_WARPGROUPS
        if (starts) {
            end_few<T, 1, 1, Scaled>(start, p, lane);
        }
#endif
        return;
    }
    const few_input input = few_rows<Scaled>(p, rows, group * most, most);
    const uint blocks = min((few_places(rows) + 7) / 8, most / 8);
    if (starts || (Wide == 1 && blocks == 1)) {
        if (!starts) {
            start = start_few<T, 1, 1, Scaled>(p, form.apart, places, threadgroups, tg, lane, simd);
        }
        gemm_few_of<T, 1, 1, Scaled>(start, p, input, form, tg, lane, simd);
        return;
    }
    const few_form plain = {PIANOLA_OUTPUT_STORE, 0, 0, nullptr, nullptr, nullptr, nullptr, 0, 0.0f, 0.0f, 0.0f};
    switch (blocks) {
    case 1: gemm_few_more<T, Wide == 2 ? 1 : 2, Wide>(p, input, plain, tg, lane, simd); break; // only if wide
    case 2: gemm_few_more<T, 2, Wide>(p, input, plain, tg, lane, simd); break;
    case 4: gemm_few_more<T, 4, Wide>(p, input, plain, tg, lane, simd); break;
    default: gemm_few_more<T, 4 * Wide, Wide>(p, input, plain, tg, lane, simd);
    }
}

// gemm_few_type selects the form.
template <uint T>
static inline void gemm_few_type(thread const halves_product &p, thread const few_form &form, bool scaled, bool wide, uint early, uint threadgroups, device const pianola_step *step, constant pianola_second &s, threadgroup uchar *tg, uint group, uint lane, uint simd) {
    if (scaled) {
        gemm_few_rows<T, 1, true>(p, form, early, threadgroups, step, s, tg, group, lane, simd);
    } else if (form.output != PIANOLA_OUTPUT_STORE) {
        gemm_few_rows<T, 1, false>(p, form, early, threadgroups, step, s, tg, group, lane, simd);
    } else if (wide && T > PIANOLA_WTYPE_BF16) {
        gemm_few_rows<T, 2, false>(p, form, 0, 0, step, s, tg, group, lane, simd);
    } else {
        gemm_few_rows<T, 1, false>(p, form, early, threadgroups, step, s, tg, group, lane, simd);
    }
}

// reads ahead: w
[[max_total_threads_per_threadgroup(256)]]
kernel void gemm_few(
        device const uchar *x               [[buffer(0)]],
        device const uchar *w               [[buffer(1)]],
        device const float *b               [[buffer(2)]],
        device float *y                     [[buffer(3)]],
        device const float *x_parts         [[buffer(4)]],
        device const float *next            [[buffer(5)]],
        device float *scaled                [[buffer(6)]],
        device float *parts                 [[buffer(7)]],
        constant pianola_gemm_few_params &p [[buffer(8)]],
        constant pianola_second &s          [[buffer(9)]],
        device pianola_step *step           [[buffer(10)]],
        threadgroup uchar *tg               [[threadgroup(0)]],
        uint3 group                         [[threadgroup_position_in_grid]],
        uint lane                           [[thread_index_in_simdgroup]],
        uint simd                           [[simdgroup_index_in_threadgroup]]) {
#if !defined(PIANOLA_NVPTX) || PIANOLA_SM >= 90 // like gemm_halves, in whose tables this kernel is
    const bool halved = OUTPUT == PIANOLA_OUTPUT_GATED; // 16 rows of each half of W
    const uint out = (SHAPE == PIANOLA_SHAPE_WIDE ? 2 : 1) * PIANOLA_FEW_OUT;
    const uint low = group.x * (halved ? out / 2 : out);
    halves_product a = {x, w, b, y, p.in, p.out, p.y_stride, low, min(low + out, p.out), 0, 0, BIAS != 0, nullptr, 0, 0, 0, 0, 0, 0};
    const few_form form = {OUTPUT, ACTIVATION, halved ? p.out / 2 - 16 : 0, x_parts, next, scaled, parts, p.squares, p.eps, p.scale, p.delta_scale};
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemm_few_type<PIANOLA_WTYPE_##type>(a, form, INPUT == PIANOLA_INPUT_SCALED, SHAPE == PIANOLA_SHAPE_WIDE, p.early, p.threadgroups, step, s, tg, group.y, lane, simd); return;
#define PIANOLA_WHOLE_CASE(type) \
    case PIANOLA_WTYPE_##type: \
        if (INPUT == PIANOLA_INPUT_SCALED) { \
            gemm_whole<PIANOLA_WTYPE_##type, true>(a, form, p.early, p.threadgroups, step, s, tg, lane, simd); \
        } else { \
            gemm_whole<PIANOLA_WTYPE_##type, false>(a, form, p.early, p.threadgroups, step, s, tg, lane, simd); \
        } \
        break;
    if (low >= (halved ? p.out / 2 : p.out)) {
        begins(step);
    } else if (SHAPE == PIANOLA_SHAPE_WHOLE) {
        switch (WTYPE) {
            PIANOLA_FREQUENT(PIANOLA_WHOLE_CASE)
        default: break;
        }
    } else if (ACT == PIANOLA_ACT_F16 && WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
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
#undef PIANOLA_WHOLE_CASE
#undef PIANOLA_CASE
#else
    begins(step);
#endif
}
