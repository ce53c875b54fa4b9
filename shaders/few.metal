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
// threadgroup of such a product computes 32 rows of W after the other; the copies do not stop in between.
#include "few.h"
#include "multiply.h"

// few_form is what gemm_few computes besides the product of rows of float16. output and activation are
// constants.
struct few_form {
    uint output, activation;
    uint apart;                  // as in few_part
    device const float *x_parts; // what the product before has written of each row: largest magnitudes, then squares
    device const float *next;    // weights of the norm that follows
    device float *scaled;        // float32 in the order of gemm_few
    device float *parts;         // the x_parts of the next product
    uint squares;                // 1 if the input has squares
    float eps, scale;            // of the norm of the input
    float delta_scale;           // factor of the product
};

// few_factors convert a row of float32 to float16, and back. The factor is the scale of its norm times the inverse
// of the unit, a power of two.
struct few_factors {
    float factor, unit;
};

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
        const tile_scales scales = tile_scales_of<T>((r < 2 ? d.x : d.y) >> shift & 0xffff, (r < 2 ? m.x : m.y) >> shift & 0xffff, s.x >> (8 * r) & 255, s.y >> (8 * r) & 255);
        const uint2 q = group_quants<T>(v[r], second[r], high[r], t);
        w.of[r] = uint4(halves_of_bytes<T>(q.x, scales.d.x, scales.m.x), halves_of_bytes<T>(q.y, scales.d.y, scales.m.y));
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

// few_reduced are the rows that a threadgroup reduces before it multiplies a scaled input, one for each SIMD
// group. begin_factors returns the SIMD group's row, whose first loads are issued, and few_factors_of its
// factors.
struct few_reduced {
    device const float4 *most, *squares;
    float4 first_most, first_squares;
    uint count; // vectors
};

static inline few_reduced begin_factors(thread const few_form &form, uint in, uint row, uint lane) {
    few_reduced d;
    const uint parts = in / (form.squares != 0 ? 32 : 16);
    d.count = parts / 4;
    d.most = (device const float4 *)(form.x_parts + ulong(row) * parts * (1 + form.squares));
    d.squares = d.most + d.count;
    d.first_most = lane < d.count ? d.most[lane] : float4(0.0f);
    d.first_squares = form.squares != 0 && lane < d.count ? d.squares[lane] : float4(0.0f);
    return d;
}

static inline few_factors few_factors_of(thread const few_reduced &d, thread const few_form &form, uint in, uint lane) {
    float4 most = d.first_most;
    for (uint i = lane + 32; i < d.count; i += 32) {
        most = max(most, d.most[i]);
    }
    float scale = 1.0f;
    if (form.squares != 0) { // the order of add_parts
        float sum = (d.first_squares.x + d.first_squares.y) + (d.first_squares.z + d.first_squares.w);
        for (uint i = lane + 32; i < d.count; i += 32) {
            const float4 v = d.squares[i];
            sum += (v.x + v.y) + (v.z + v.w);
        }
        scale = precise::rsqrt(simd_sum(sum) / float(in) + form.eps) * or_one(form.scale);
    }
    const float unit = unit_of(simd_max(max(max(most.x, most.y), max(most.z, most.w))) * scale);
    return {scale * as_type<float>((254u << 23) - as_type<uint>(unit)), unit};
}

// few_at returns the place of the factors of a row.
static inline threadgroup float *few_at(threadgroup uchar *factors, uint row) { return (threadgroup float *)(factors + 64 * row); }

// few_vector is a thread's vector of the residual stream, and of the weights of the norm that follows. The first
// 64 threads have one.
struct few_vector {
    float4 x, w;
};

// few_place4 returns the index of a vector of a row of float32 in the order of gemm_few, for up to 8 rows.
static inline ulong few_place4(uint vector, uint row, uint places) { return (ulong(vector / 4) * places + row) * 4 + vector % 4; }

// begin_vector loads a thread's vector.
static inline few_vector begin_vector(thread const few_form &form, thread const halves_product &p, uint tid) {
    few_vector v = {float4(0.0f), float4(0.0f)};
    if (form.output == PIANOLA_OUTPUT_ADD_SCALED && tid < 64) {
        v.w = ((device const float4 *)form.next)[p.low / 4 + tid % 8];
        v.x = ((device const float4 *)(p.y + ulong(min(tid / 8, p.last - 1)) * p.y_stride))[p.low / 4 + tid % 8];
    }
    return v;
}

// few_results adds the sums of all SIMD groups for up to 8 rows of x as add_few does. It returns the products in
// threadgroup memory: 32 for each row. unit is that of the thread's row, few_row_of.
template <uint T, uint N, uint Wide>
static inline threadgroup float *few_results(thread const few_sums<N, Wide> &sums, thread const halves_product &p, thread const few_form &form, float unit, threadgroup uchar *tg, uint lane, uint simd) {
    threadgroup float *all = (threadgroup float *)few_exchange<T, N, Wide>(tg);
    threadgroup float *results = all + 2 * PIANOLA_SIMDS * 32 * 4;
    PIANOLA_UNROLL
    for (uint i = 0; i < 2; i++) {
        ((threadgroup float4 *)all)[(i * PIANOLA_SIMDS + simd) * 32 + lane] = sums.of[i][0];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint tid = simd * 32 + lane; // product tid / 128, lane tid / 4 % 32, element tid % 4
    float v = 0.0f;
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_SIMDS; k++) {
        v += all[(tid / 128 * PIANOLA_SIMDS + k) * 128 + tid % 128];
    }
    const uint o = few_row<T>(tid / 128, tid % 4 / 2, tid / 4 % 32);
    results[tid / 4 % 4 * 64 + tid % 2 * 32 + o] = v * unit + (p.bias ? p.b[p.low + few_of(o, form.apart)] : 0.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return results;
}

// few_row_of returns the row of x of the result that few_results computes in a thread.
static inline uint few_row_of(uint tid) { return tid / 4 % 4 * 2 + tid % 2; }

// put_gated writes activation(gate) * up of 16 columns of each row.
static inline void put_gated(threadgroup const float *results, thread const halves_product &p, thread const few_form &form, uint tid) {
    if (tid >= 128) {
        return;
    }
    const uint r = tid / 16;
    const uint column = tid % 16;
    const float v = gated(form.activation, results[r * 32 + column]) * results[r * 32 + 16 + column];
    const float most = part_max(abs(v));
    const float both = max(most, simd_shuffle_xor(most, ushort(8)));
    if (r >= p.last) {
        return;
    }
    const uint at = p.low + column;
    form.scaled[4 * few_place4(at / 4, r, few_places(p.last)) + at % 4] = v;
    if (column == 0) {
        form.parts[ulong(r) * (p.out / 32) + p.low / 16] = both;
    }
}

// put_scaled adds the product to the residual stream, and writes the stream times the weights of the norm that
// follows.
static inline void put_scaled(threadgroup const float *results, thread const halves_product &p, thread const few_form &form, few_vector v, uint tid) {
    if (tid >= 64) {
        return;
    }
    const uint r = tid / 8;
    const uint vector = p.low / 4 + tid % 8;
    const float4 x = added(v.x, ((threadgroup const float4 *)results)[tid], form.delta_scale);
    const float squares = part_sum(dot(x, x));
    const float4 scaled = x * v.w;
    const float4 a = abs(scaled);
    const float most = part_max(max(max(a.x, a.y), max(a.z, a.w)));
    if (r >= p.last) {
        return;
    }
    ((device float4 *)(p.y + ulong(r) * p.y_stride))[vector] = x;
    ((device float4 *)form.scaled)[few_place4(vector, r, few_places(p.last))] = scaled;
    if (tid % 8 == 0) {
        device float *parts = form.parts + ulong(r) * 2 * (p.out / 32) + p.low / 32;
        parts[0] = most;
        parts[p.out / 32] = squares;
    }
}

// few_end writes the results of a form whose product is not stored.
template <uint T, uint N, uint Wide>
static inline void few_end(thread const few_sums<N, Wide> &sums, thread const halves_product &p, thread const few_form &form, few_vector vector, float unit, threadgroup uchar *tg, uint lane, uint simd) {
    threadgroup const float *results = few_results<T, N, Wide>(sums, p, form, unit, tg, lane, simd);
    if (form.output == PIANOLA_OUTPUT_GATED) {
        put_gated(results, p, form, simd * 32 + lane);
    } else {
        put_scaled(results, p, form, vector, simd * 32 + lane);
    }
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
    // a lane writes first, or what few_results and what follows it need.
    const uint tid = simd * 32 + lane;
    const uint r = stored ? simd / (2 * Wide) * 8 + lane % 4 * 2 : few_row_of(tid);
    float2 units = float2(0.0f);
    few_reduced made;
    if (Scaled) {
        made = begin_factors(form, p.in, min(simd, p.last - 1), lane);
    } else {
        units = float2(input.units[min(r, p.last - 1)], input.units[min(r + 1, p.last - 1)]);
    }
    few_vector vector;
    if (S::apart != 0) {
        vector = begin_vector(form, p, tid);
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
        vector = begin_vector(form, rows, tid);
    }
}

// few_rows sets p and the result to a threadgroup's rows of x: the row first and those after it, at most most.
template <bool Scaled>
static inline few_input few_rows(thread halves_product &p, uint rows, uint first, uint most) {
    const uint places = few_places(rows);
    p.last = min(rows - first, most);
    p.y += ulong(first) * p.y_stride;
    few_input input = {p.x + first * PIANOLA_FEW_ROW, (Scaled ? 2 : 1) * places * PIANOLA_FEW_ROW, nullptr};
    if (!Scaled) { // the units are behind the tiles
        input.units = (device const float *)(p.x + ulong(padded(p.in) / PIANOLA_FEW_COLUMNS) * input.step) + first;
    }
    return input;
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
    const uint out = (WIDE != 0 ? 2 : 1) * PIANOLA_FEW_OUT;
    const uint low = group.x * (halved ? out / 2 : out);
    const halves_product a = {x, w, b, y, p.in, p.out, p.y_stride, low, min(low + out, p.out), 0, 0, BIAS != 0, nullptr, 0, 0, 0, 0, 0};
    const few_form form = {OUTPUT, ACTIVATION, halved ? p.out / 2 - 16 : 0, x_parts, next, scaled, parts, p.squares, p.eps, p.scale, p.delta_scale};
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemm_few_type<PIANOLA_WTYPE_##type>(a, form, INPUT == PIANOLA_INPUT_SCALED, WIDE != 0, p.early, p.threadgroups, step, s, tg, group.y, lane, simd); return;
    if (low >= (halved ? p.out / 2 : p.out)) {
        begins(step);
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
#undef PIANOLA_CASE
#else
    begins(step);
#endif
}
