// The product with up to 64 rows of float16 activations.
//
// A threadgroup computes 32 rows of W with up to 32 rows of x, or in the wide form 64 with up to 64, for
// which it requests half as many bytes for each product. Only quantised weights have the wide form. Each
// SIMD group multiplies one segment of the columns, and the sums of the segments are added in order at the
// end. A SIMD group has a ring of stages in threadgroup memory, each with some tiles of 32 columns of the
// weights and of the input, several stages ahead. In a tile, quantised weights and the input are runs of
// bytes that Hopper's copy unit copies by itself; its time depends on the number of runs, so the kernel
// halves writes the input in the order in which this kernel reads it. Rows of float weights are short runs:
// the lanes copy them.
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
// squares. With the input scaled, each threadgroup adds these first, and the lanes round what they have copied.
#include "chunks.h"
#include "multiply.h"

// PIANOLA_FEW_OUT is the number of rows of W that the lanes hold at a time. A threadgroup has Wide times as
// many rows of W, and at most as many rows of x; Wide is 1 or 2.
#define PIANOLA_FEW_OUT 32

// PIANOLA_FEW_COLUMNS is the number of columns of a tile.
#define PIANOLA_FEW_COLUMNS 32

// PIANOLA_FEW_BLOCK is the size in bytes of the part of a tile of the input that consists of 8 rows. Float32
// take twice that: 16 bytes of each lane for the first 16 columns, then 16 for the others.
#define PIANOLA_FEW_BLOCK 512

// PIANOLA_FEW_FACTORS is the offset of a SIMD group's few_factors in its 64 bytes for barriers.
#define PIANOLA_FEW_FACTORS 48

// few_head returns the size of the head of a quantisation block in layout Tiled16: the scales of all its
// tiles, but for those that stand beside the quants of their tile.
static inline uint few_head(uint type) {
    const tile_form f = tile_form_of(type);
    return f.tiles == 1 ? 0 : has_scales(type) && f.scales_step == f.quants_step ? f.scales : f.quants;
}

// few_step returns the distance in bytes between the tiles of a strip.
static inline uint few_step(uint type) {
    const tile_form f = tile_form_of(type);
    return f.tiles == 1 ? f.bytes : f.quants_step;
}

// few_stage describes a stage of 8*N rows of x: the weights, in layout Tiled16 strips of a head and tiles, in
// layout Rows 32 rows of 128 bytes; then the input. PIANOLA_FEW_RING is the size of a SIMD group's ring. Two
// threadgroups with small rings fit in a multiprocessor. Behind the rings of all SIMD groups there are 64
// bytes for the barriers of each.
#define PIANOLA_FEW_RING(large) ((large) ? 25600 : 14336 - 64)
template <uint T, uint N, uint Wide, bool Scaled>
struct few_stage {
    enum : uint {
        floats = T <= PIANOLA_WTYPE_BF16 ? 1 : 0,
        block = (Scaled ? 2 : 1) * PIANOLA_FEW_BLOCK,
        ring = PIANOLA_FEW_RING(floats != 0 || Wide == 2),
        strips = Wide * PIANOLA_FEW_OUT / 16,
    };
    static inline uint strip(uint tiles) { return few_head(T) + tiles * few_step(T); }
    static inline uint weights(uint tiles) { return floats != 0 ? 64 * PIANOLA_FEW_OUT * tiles : strips * strip(tiles); }
    static inline uint bytes(uint tiles) { return weights(tiles) + tiles * N * block; }
    // tiles returns the number of tiles of a stage: 4 if the ring has room for two such stages, else 2.
    // Float weights always have 2, a whole row of threadgroup memory's banks.
    static inline uint tiles() { return floats == 0 && ring / bytes(4) >= 2 ? 4 : 2; }
    static inline uint count() { return min(ring / bytes(tiles()), 5u); }
};

// few_part is the share of a SIMD group: tiles from first to last-1 of the threadgroup's rows of W, and its
// ring.
struct few_part {
    uint first, last;
    threadgroup uchar *ring;
    device const uchar *w; // quantised weights: the first strip
    uint strip;            // the distance from a strip to the next
    uint strips;           // their number
    uint apart;            // rows of W that are left out between the first 16 and the next
};

// few_of returns row r of the 32 of a threadgroup, counted from its first.
static inline uint few_of(uint r, uint apart) { return r < 16 ? r : r + apart; }

// few_form is what gemm_few computes besides the product of rows of float16. output and activation are
// constants.
struct few_form {
    uint output, activation;
    uint apart;               // as in few_part
    device const float *x_parts; // what the product before has written of each row: largest magnitudes, then squares
    device const float *next; // weights of the norm that follows
    device float *scaled;     // float32 in the order of gemm_few
    device float *parts;      // the x_parts of the next product
    uint squares;             // 1 if the input has squares
    float eps, scale;         // of the norm of the input
    float delta_scale;        // factor of the product
};

// few_factors convert a row of float32 to float16, and back.
struct few_factors {
    float scale, inverse, unit;
};

// few_input is a threadgroup's part of the input: its blocks of the first tile, the distance in bytes from
// a tile to the next, and the units of its rows if they are float16.
struct few_input {
    device const uchar *x;
    uint step;
    device const float *units;
};

// copy_run starts to copy bytes, a multiple of 16. All lanes call it.
static inline void copy_run(threadgroup uchar *to, device const uchar *from, uint bytes, uint barrier, uint lane) {
#ifdef PIANOLA_WARPGROUPS
    if (lane == 0) {
        metal::shim::copy_bytes(metal::shim::shared_address(to), from, bytes, barrier);
    }
#else
    (void)barrier;
    for (uint i = 16 * lane; i < bytes; i += 512) {
        copy_piece(to + i, from + i, true);
    }
#endif
}

// few_piece returns the offset of a row's piece of 8 columns in float weights. Pieces are permuted, so
// that the words that eight lanes read at once lie in different banks.
static inline uint few_piece(uint row, uint piece) { return row * PIANOLA_CHUNK_BYTES + (piece ^ row % 4 * 2) * 16; }

// few_share returns the share of a SIMD group. Neighbouring segments may be empty.
template <uint T, uint N, uint Wide, bool Scaled>
static inline few_part few_share(thread const halves_product &p, uint apart, threadgroup uchar *tg, uint simd) {
    const uint segment = segment_columns(p.in) / PIANOLA_FEW_COLUMNS;
    const uint tiles = (p.in + PIANOLA_FEW_COLUMNS - 1) / PIANOLA_FEW_COLUMNS;
    few_part part = {min(simd * segment, tiles), min((simd + 1) * segment, tiles), tg + simd * few_stage<T, N, Wide, Scaled>::ring, p.w, 0, 0, apart};
    if (few_stage<T, N, Wide, Scaled>::floats == 0) {
        const ulong strip = strip_bytes(T, p.in, T);
        part.w += p.low / 16 * strip;
        part.strip = uint(strip) * (1 + apart / 16);
        part.strips = (p.out - p.low) / 16;
    }
    return part;
}

// fill_few starts to copy a stage, the tiles from first to last-1. Rows and strips of W past the last repeat
// another; their results are not written.
template <uint T, uint N, uint Wide, bool Scaled>
static inline void fill_few(threadgroup uchar *to, uint barrier, thread const few_part &part, thread const halves_product &p, thread const few_input &input, uint first, uint last, uint lane) {
    typedef few_stage<T, N, Wide, Scaled> S;
    const uint tiles = last - first;
#ifdef PIANOLA_WARPGROUPS
    if (lane == 0) {
        metal::shim::barrier_expect(barrier, tiles * N * S::block + (S::floats != 0 ? 0 : S::strips * S::strip(tiles)));
    }
#endif
    if (S::floats != 0) {
        const uint piece = lane % 8;
        const uint column = first * PIANOLA_FEW_COLUMNS + 8 * piece;
        PIANOLA_UNROLL
        for (uint k = 0; k < PIANOLA_FEW_OUT / 4; k++) {
            const uint r = 4 * k + lane / 8;
            // A piece past the end is not read, but its address must be valid.
            const ulong at = ulong(min(p.low + r + (N == 1 && k >= 4 ? part.apart : 0), p.out - 1)) * p.in + min(column, p.in - 8);
            copy_piece(to + few_piece(r, piece), p.w + 2 * at, column < p.in);
        }
    } else {
        const tile_form f = tile_form_of(T);
        device const uchar *block = part.w + ulong(first / f.tiles) * f.bytes;
        PIANOLA_UNROLL
        for (uint i = 0; i < S::strips; i++) {
            threadgroup uchar *strip = to + i * S::strip(S::tiles());
            device const uchar *from = block + ulong(i < part.strips ? i : 0) * part.strip;
            if (few_head(T) != 0) {
                copy_run(strip, from, few_head(T), barrier, lane);
            }
            copy_run(strip + few_head(T), from + few_head(T) + first % f.tiles * few_step(T), tiles * few_step(T), barrier, lane);
        }
    }
    threadgroup uchar *x = to + S::weights(S::tiles());
    if (N < 4 || input.step == N * PIANOLA_FEW_BLOCK) {
        copy_run(x, input.x + ulong(first) * N * S::block, tiles * N * S::block, barrier, lane);
        return;
    }
    for (uint k = 0; k < tiles; k++) { // other threadgroups compute the other blocks of a tile
        copy_run(x + k * N * PIANOLA_FEW_BLOCK, input.x + ulong(first + k) * input.step, N * PIANOLA_FEW_BLOCK, barrier, lane);
    }
}

#ifdef PIANOLA_WARPGROUPS
// request_few requests the first columns of a SIMD group's share of the weights before the input is ready,
// so that they are in the L2 cache when they are copied.
template <uint T, uint Wide>
static inline void request_few(thread const halves_product &p, uint apart, uint columns, uint lane, uint simd) {
    const uint segment = segment_columns(p.in);
    const uint first = simd * segment;
    const uint last = first + min(columns, segment);
    if (T <= PIANOLA_WTYPE_BF16) {
        request_row(p, p.low + few_of(lane, apart), first, last);
    } else if (lane < 2 * Wide) {
        request_strip<T>(p, (p.low + few_of(16 * lane, apart)) / 16, first, last);
    }
}
#endif

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

// few_halves returns a lane's 8 elements of a block of float32 as float16.
static inline uint4 few_halves(threadgroup const uchar *block, few_factors f, uint lane) {
    const float4 low = *(threadgroup const float4 *)(block + 16 * lane) * f.scale * f.inverse;
    const float4 high = *(threadgroup const float4 *)(block + PIANOLA_FEW_BLOCK + 16 * lane) * f.scale * f.inverse;
    return uint4(as_type<uint2>(half4(low)), as_type<uint2>(half4(high)));
}

// multiply_few adds the products of tile k of a stage that begins with tile first. f is for the lane's row of a
// scaled input.
template <uint T, uint N, uint Wide, bool Scaled>
static inline void multiply_few(thread few_sums<N, Wide> &sums, threadgroup const uchar *at, few_factors f, uint k, uint first, uint lane) {
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
        threadgroup const uchar *block = at + S::weights(S::tiles()) + (k * N + n) * S::block;
        const uint4 x = Scaled ? few_halves(block, f, lane) : *(threadgroup const uint4 *)(block + 16 * lane);
        PIANOLA_UNROLL
        for (uint i = 0; i < 2 * Wide; i++) {
            thread const few_weights &v = w[i / 2];
            multiply_halves(sums.of[i][n], uint4(v.of[i % 2 * 2].xy, v.of[i % 2 * 2 + 1].xy), x.xy, lane);
            multiply_halves(sums.of[i][n], uint4(v.of[i % 2 * 2].zw, v.of[i % 2 * 2 + 1].zw), x.zw, lane);
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

// add_few adds the sums of all SIMD groups, the first one's first, and writes the results. Each SIMD group
// takes some of the products with a block of 8 rows of x. units are those of a lane's two rows in the first.
template <uint T, uint N, uint Wide>
static inline void add_few(thread const few_sums<N, Wide> &sums, thread const halves_product &p, thread const few_input &input, float2 units, threadgroup uchar *tg, uint lane, uint simd) {
    threadgroup float4 *all = (threadgroup float4 *)tg;
    threadgroup_barrier(mem_flags::mem_threadgroup); // the rings are no longer used
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
    return {scale, as_type<float>((254u << 23) - as_type<uint>(unit)), unit};
}

// few_at returns the place of the factors of a row.
static inline threadgroup float *few_at(threadgroup uchar *factors, uint row) { return (threadgroup float *)(factors + 64 * row); }

// few_vector is a thread's vector of the residual stream, and of the weights of the norm that follows. The first
// 64 threads have one.
struct few_vector {
    float4 x, w;
};

// few_place4 returns the index of a vector of a row of float32 in the order of gemm_few, for up to 8 rows.
static inline ulong few_place4(uint vector, uint row) { return ulong(vector / 8) * 64 + vector / 4 % 2 * 32 + row * 4 + vector % 4; }

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
    threadgroup float *all = (threadgroup float *)tg;
    threadgroup float *results = all + 2 * PIANOLA_SIMDS * 32 * 4;
    threadgroup_barrier(mem_flags::mem_threadgroup); // the rings are no longer used
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
    form.scaled[4 * few_place4(at / 4, r) + at % 4] = v;
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
    ((device float4 *)form.scaled)[few_place4(vector, r)] = scaled;
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

// wait_few waits until all but the last stages are complete that the lanes have copied.
static inline void wait_few(uint left) {
    switch (left) {
    case 4: wait_stage<4>(); break;
    case 3: wait_stage<3>(); break;
    case 2: wait_stage<2>(); break;
    default: wait_stage<1>();
    }
}

// few_ring is a SIMD group's place in its ring.
struct few_ring {
    uint at, phase; // stage, and the parity of the number of rounds
};

static inline void few_next(thread few_ring &r, uint count) {
    r.at++;
    if (r.at == count) {
        r.at = 0;
        r.phase ^= 1;
    }
}

// few_begin starts to copy the stage that begins with tile first, if there is one, and returns the first
// tile of the next. Stages begin at multiples of the number of their tiles.
template <uint T, uint N, uint Wide, bool Scaled>
static inline uint few_begin(thread few_ring &r, uint barriers, thread const few_part &part, thread const halves_product &p, thread const few_input &input, uint first, uint lane) {
    typedef few_stage<T, N, Wide, Scaled> S;
    const uint next = min((first / S::tiles() + 1) * S::tiles(), part.last);
    if (first < part.last) {
        fill_few<T, N, Wide, Scaled>(part.ring + r.at * S::bytes(S::tiles()), barriers + 8 * r.at, part, p, input, first, next, lane);
        few_next(r, S::count());
    }
    commit_stage();
    return next;
}

// gemm_few_of multiplies up to 8*N rows of x. Only up to 8 rows, and 32 rows of W, have other forms than rows of
// float16 whose product is stored.
template <uint T, uint N, uint Wide, bool Scaled>
static inline void gemm_few_of(thread const halves_product &p, thread const few_input &input, thread const few_form &form, threadgroup uchar *tg, uint lane, uint simd) {
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
    if (N == 1 && Wide == 1) {
        vector = begin_vector(form, p, tid);
        if (!stored || Scaled) {
            issued();
        }
    }
    const few_part part = few_share<T, N, Wide, Scaled>(p, form.apart, tg, simd);
    threadgroup uchar *factors = tg + PIANOLA_SIMDS * S::ring + PIANOLA_FEW_FACTORS;
    uint barriers = 0;
#ifdef PIANOLA_WARPGROUPS
    barriers = metal::shim::shared_address(tg) + PIANOLA_SIMDS * S::ring + 64 * simd;
    if (lane == 0) {
        for (uint i = 0; i < S::count(); i++) {
            metal::shim::barrier_begin(barriers + 8 * i, 1);
        }
        metal::shim::barriers_begun();
    }
    metal::shim::simdgroup_wait();
#endif
    few_sums<N, Wide> sums;
    PIANOLA_UNROLL
    for (uint i = 0; i < 2 * Wide; i++) {
        PIANOLA_UNROLL
        for (uint n = 0; n < N; n++) {
            sums.of[i][n] = float4(0.0f);
        }
    }
    few_ring filled = {0, 0};
    few_ring used = {0, 0};
    uint next = part.first;
    for (uint i = 0; i + 1 < S::count(); i++) {
        next = few_begin<T, N, Wide, Scaled>(filled, barriers, part, p, input, next, lane);
    }
    few_factors own = {1.0f, 1.0f, 1.0f};
    if (Scaled) {
        const few_factors f = few_factors_of(made, form, p.in, lane);
        if (lane == 0) {
            threadgroup float *to = few_at(factors, simd);
            to[0] = f.scale;
            to[1] = f.inverse;
            to[2] = f.unit;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        own.scale = few_at(factors, lane / 4)[0];
        own.inverse = few_at(factors, lane / 4)[1];
        units = float2(few_at(factors, min(r, 7u))[2], few_at(factors, min(r + 1, 7u))[2]);
    }
    for (uint first = part.first; first < part.last;) {
        // All lanes have read the stage before, so it can be filled again.
        simdgroup_barrier(mem_flags::mem_threadgroup);
        next = few_begin<T, N, Wide, Scaled>(filled, barriers, part, p, input, next, lane);
#ifdef PIANOLA_WARPGROUPS
        metal::shim::barrier_wait(barriers + 8 * used.at, used.phase);
        const bool lanes = S::floats != 0;
#else
        const bool lanes = true;
#endif
        if (lanes) {
            wait_few(S::count() - 1);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        threadgroup const uchar *at = part.ring + used.at * S::bytes(S::tiles());
        const uint last = min((first / S::tiles() + 1) * S::tiles(), part.last);
        for (uint k = 0; k < last - first; k++) {
            multiply_few<T, N, Wide, Scaled>(sums, at, own, k, first, lane);
        }
        few_next(used, S::count());
        first = last;
    }
    if (stored) {
        add_few<T, N, Wide>(sums, p, input, units, tg, lane, simd);
        return;
    }
    if (N == 1 && Wide == 1) {
        few_end<T, N, Wide>(sums, p, form, vector, units.x, tg, lane, simd);
    }
}

// gemm_few_rows multiplies the rows of x of a threadgroup, up to as many of rows as it has rows of W.
template <uint T, uint Wide>
static inline void gemm_few_rows(thread halves_product p, thread const few_form &form, bool scaled, threadgroup uchar *tg, uint rows, uint group, uint lane, uint simd) {
    const uint most = Wide * PIANOLA_FEW_OUT;
    const uint blocks = few_blocks(rows);
    const uint first = group * most;
    if (first >= rows) {
        return;
    }
    p.last = min(rows - first, most);
    p.y += ulong(first) * p.y_stride;
    few_input input = {p.x + first / 8 * PIANOLA_FEW_BLOCK, blocks * PIANOLA_FEW_BLOCK, nullptr};
    if (Wide == 1 && scaled) {
        gemm_few_of<T, 1, 1, true>(p, input, form, tg, lane, simd);
        return;
    }
    const few_form plain = {PIANOLA_OUTPUT_STORE, 0, 0, nullptr, nullptr, nullptr, nullptr, 0, 0.0f, 0.0f, 0.0f};
    // The units are behind the tiles.
    input.units = (device const float *)(p.x + ulong(padded(p.in) / PIANOLA_FEW_COLUMNS) * input.step) + first;
    if (Wide == 1 && form.output != PIANOLA_OUTPUT_STORE) {
        gemm_few_of<T, 1, 1, false>(p, input, form, tg, lane, simd);
        return;
    }
    switch (min(blocks, most / 8)) {
    case 1: gemm_few_of<T, 1, Wide, false>(p, input, plain, tg, lane, simd); break;
    case 2: gemm_few_of<T, 2, Wide, false>(p, input, plain, tg, lane, simd); break;
    case 4: gemm_few_of<T, 4, Wide, false>(p, input, plain, tg, lane, simd); break;
    default: gemm_few_of<T, 4 * Wide, Wide, false>(p, input, plain, tg, lane, simd);
    }
}

// requests ahead: w
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
#ifdef PIANOLA_WARPGROUPS
#define PIANOLA_FEW_FLOATS(type) \
    case PIANOLA_WTYPE_##type: request_few<PIANOLA_WTYPE_##type, 1>(a, form.apart, p.ahead, lane, simd); break;
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: \
        if (WIDE != 0) { \
            request_few<PIANOLA_WTYPE_##type, 2>(a, 0, p.ahead, lane, simd); \
        } else { \
            request_few<PIANOLA_WTYPE_##type, 1>(a, form.apart, p.ahead, lane, simd); \
        } \
        break;
    if (p.ahead != 0) {
        switch (WTYPE) {
            PIANOLA_EXPANDED(PIANOLA_CASE)
            PIANOLA_FEW_FLOATS(F16)
            PIANOLA_FEW_FLOATS(BF16)
        default: break;
        }
    }
#undef PIANOLA_CASE
#undef PIANOLA_FEW_FLOATS
#endif
#endif
    const bool begun = begins(step);
    (void)begun;
#if !defined(PIANOLA_NVPTX) || PIANOLA_SM >= 90
    const uint rows = s.rows; // loaded together with the step's flag
    issued();
    if (!begun || low >= (halved ? p.out / 2 : p.out)) {
        return;
    }
    const bool floats = INPUT == PIANOLA_INPUT_SCALED;
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: \
        if (WIDE != 0) { \
            gemm_few_rows<PIANOLA_WTYPE_##type, 2>(a, form, floats, tg, rows, group.y, lane, simd); \
        } else { \
            gemm_few_rows<PIANOLA_WTYPE_##type, 1>(a, form, floats, tg, rows, group.y, lane, simd); \
        } \
        break;
    if (ACT == PIANOLA_ACT_F16 && WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
        switch (WTYPE) {
            PIANOLA_EXPANDED(PIANOLA_CASE)
        default: break;
        }
    } else if (ACT == PIANOLA_ACT_F16) {
        switch (WTYPE) {
        case PIANOLA_WTYPE_F16: gemm_few_rows<PIANOLA_WTYPE_F16, 1>(a, form, floats, tg, rows, group.y, lane, simd); break;
        case PIANOLA_WTYPE_BF16: gemm_few_rows<PIANOLA_WTYPE_BF16, 1>(a, form, floats, tg, rows, group.y, lane, simd); break;
        default: break;
        }
    }
#undef PIANOLA_CASE
#endif
}
