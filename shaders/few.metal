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
#include "chunks.h"
#include "multiply.h"

// PIANOLA_FEW_OUT is the number of rows of W that the lanes hold at a time. A threadgroup has Wide times as
// many rows of W, and at most as many rows of x; Wide is 1 or 2.
#define PIANOLA_FEW_OUT 32

// PIANOLA_FEW_COLUMNS is the number of columns of a tile.
#define PIANOLA_FEW_COLUMNS 32

// PIANOLA_FEW_BLOCK is the size in bytes of the part of a tile of the input that consists of 8 rows.
#define PIANOLA_FEW_BLOCK 512

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
template <uint T, uint N, uint Wide>
struct few_stage {
    enum : uint {
        floats = T <= PIANOLA_WTYPE_BF16 ? 1 : 0,
        ring = PIANOLA_FEW_RING(floats != 0 || Wide == 2),
        strips = Wide * PIANOLA_FEW_OUT / 16,
    };
    static inline uint strip(uint tiles) { return few_head(T) + tiles * few_step(T); }
    static inline uint weights(uint tiles) { return floats != 0 ? 64 * PIANOLA_FEW_OUT * tiles : strips * strip(tiles); }
    static inline uint bytes(uint tiles) { return weights(tiles) + tiles * N * PIANOLA_FEW_BLOCK; }
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
};

// few_input is a threadgroup's part of the input: its blocks of the first tile, the distance in bytes from
// a tile to the next, and the units of its rows.
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
template <uint T, uint N, uint Wide>
static inline few_part few_share(thread const halves_product &p, threadgroup uchar *tg, uint simd) {
    const uint segment = segment_columns(p.in) / PIANOLA_FEW_COLUMNS;
    const uint tiles = (p.in + PIANOLA_FEW_COLUMNS - 1) / PIANOLA_FEW_COLUMNS;
    few_part part = {min(simd * segment, tiles), min((simd + 1) * segment, tiles), tg + simd * few_stage<T, N, Wide>::ring, p.w, 0, 0};
    if (few_stage<T, N, Wide>::floats == 0) {
        const ulong strip = strip_bytes(T, p.in, T);
        part.w += p.low / 16 * strip;
        part.strip = uint(strip);
        part.strips = (p.out - p.low) / 16;
    }
    return part;
}

// fill_few starts to copy a stage, the tiles from first to last-1. Rows and strips of W past the last repeat
// another; their results are not written.
template <uint T, uint N, uint Wide>
static inline void fill_few(threadgroup uchar *to, uint barrier, thread const few_part &part, thread const halves_product &p, thread const few_input &input, uint first, uint last, uint lane) {
    typedef few_stage<T, N, Wide> S;
    const uint tiles = last - first;
#ifdef PIANOLA_WARPGROUPS
    if (lane == 0) {
        metal::shim::barrier_expect(barrier, tiles * N * PIANOLA_FEW_BLOCK + (S::floats != 0 ? 0 : S::strips * S::strip(tiles)));
    }
#endif
    if (S::floats != 0) {
        const uint piece = lane % 8;
        const uint column = first * PIANOLA_FEW_COLUMNS + 8 * piece;
        PIANOLA_UNROLL
        for (uint k = 0; k < PIANOLA_FEW_OUT / 4; k++) {
            const uint r = 4 * k + lane / 8;
            // A piece past the end is not read, but its address must be valid.
            const ulong at = ulong(min(p.low + r, p.out - 1)) * p.in + min(column, p.in - 8);
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
        copy_run(x, input.x + ulong(first) * N * PIANOLA_FEW_BLOCK, tiles * N * PIANOLA_FEW_BLOCK, barrier, lane);
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
static inline void request_few(thread const halves_product &p, uint columns, uint lane, uint simd) {
    const uint segment = segment_columns(p.in);
    const uint first = simd * segment;
    const uint last = first + min(columns, segment);
    if (T <= PIANOLA_WTYPE_BF16) {
        request_row(p, p.low + lane, first, last);
    } else if (lane < 2 * Wide) {
        request_strip<T>(p, p.low / 16 + lane, first, last);
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
template <uint T, uint N, uint Wide>
static inline few_weights few_quants(threadgroup const uchar *strips, uint k, uint first, uint lane) {
    typedef few_stage<T, N, Wide> S;
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

// multiply_few adds the products of tile k of a stage that begins with tile first.
template <uint T, uint N, uint Wide>
static inline void multiply_few(thread few_sums<N, Wide> &sums, threadgroup const uchar *at, uint k, uint first, uint lane) {
    typedef few_stage<T, N, Wide> S;
    few_weights w[Wide];
    PIANOLA_UNROLL
    for (uint h = 0; h < Wide; h++) {
        if (S::floats != 0) {
            w[h] = few_floats<T>(at, k, lane);
        } else {
            w[h] = few_quants<T, N, Wide>(at + 2 * h * S::strip(S::tiles()), k, first % tile_form_of(T).tiles, lane);
        }
    }
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        const uint4 x = *(threadgroup const uint4 *)(at + S::weights(S::tiles()) + (k * N + n) * PIANOLA_FEW_BLOCK + 16 * lane);
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
template <uint T, uint N, uint Wide>
static inline uint few_begin(thread few_ring &r, uint barriers, thread const few_part &part, thread const halves_product &p, thread const few_input &input, uint first, uint lane) {
    typedef few_stage<T, N, Wide> S;
    const uint next = min((first / S::tiles() + 1) * S::tiles(), part.last);
    if (first < part.last) {
        fill_few<T, N, Wide>(part.ring + r.at * S::bytes(S::tiles()), barriers + 8 * r.at, part, p, input, first, next, lane);
        few_next(r, S::count());
    }
    commit_stage();
    return next;
}

// gemm_few_of multiplies up to 8*N rows of x.
template <uint T, uint N, uint Wide>
static inline void gemm_few_of(thread const halves_product &p, thread const few_input &input, threadgroup uchar *tg, uint lane, uint simd) {
    typedef few_stage<T, N, Wide> S;
    // The units of the rows whose results a lane writes first.
    const uint r = simd / (2 * Wide) * 8 + lane % 4 * 2;
    const float2 units = float2(input.units[min(r, p.last - 1)], input.units[min(r + 1, p.last - 1)]);
    const few_part part = few_share<T, N, Wide>(p, tg, simd);
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
        next = few_begin<T, N, Wide>(filled, barriers, part, p, input, next, lane);
    }
    for (uint first = part.first; first < part.last;) {
        // All lanes have read the stage before, so it can be filled again.
        simdgroup_barrier(mem_flags::mem_threadgroup);
        next = few_begin<T, N, Wide>(filled, barriers, part, p, input, next, lane);
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
            multiply_few<T, N, Wide>(sums, at, k, first, lane);
        }
        few_next(used, S::count());
        first = last;
    }
    add_few<T, N, Wide>(sums, p, input, units, tg, lane, simd);
}

// gemm_few_rows multiplies the rows of x of a threadgroup, up to as many of rows as it has rows of W.
template <uint T, uint Wide>
static inline void gemm_few_rows(thread halves_product p, threadgroup uchar *tg, uint rows, uint group, uint lane, uint simd) {
    const uint most = Wide * PIANOLA_FEW_OUT;
    const uint blocks = few_blocks(rows);
    const uint first = group * most;
    if (first >= rows) {
        return;
    }
    p.last = min(rows - first, most);
    p.y += ulong(first) * p.y_stride;
    few_input input = {p.x + first / 8 * PIANOLA_FEW_BLOCK, blocks * PIANOLA_FEW_BLOCK, nullptr};
    // The units are behind the tiles.
    input.units = (device const float *)(p.x + ulong(padded(p.in) / PIANOLA_FEW_COLUMNS) * input.step) + first;
    switch (min(blocks, most / 8)) {
    case 1: gemm_few_of<T, 1, Wide>(p, input, tg, lane, simd); break;
    case 2: gemm_few_of<T, 2, Wide>(p, input, tg, lane, simd); break;
    case 4: gemm_few_of<T, 4, Wide>(p, input, tg, lane, simd); break;
    default: gemm_few_of<T, 4 * Wide, Wide>(p, input, tg, lane, simd);
    }
}

// requests ahead: w
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
#if !defined(PIANOLA_NVPTX) || PIANOLA_SM >= 90 // like gemm_halves, in whose tables this kernel is
    const uint out = (WIDE != 0 ? 2 : 1) * PIANOLA_FEW_OUT;
    const uint low = group.x * out;
    const halves_product a = {x, w, b, y, p.in, p.out, p.y_stride, low, min(low + out, p.out), 0, 0, BIAS != 0, nullptr, 0, 0, 0, 0, 0};
#ifdef PIANOLA_WARPGROUPS
#define PIANOLA_FEW_FLOATS(type) \
    case PIANOLA_WTYPE_##type: request_few<PIANOLA_WTYPE_##type, 1>(a, p.ahead, lane, simd); break;
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: \
        if (WIDE != 0) { \
            request_few<PIANOLA_WTYPE_##type, 2>(a, p.ahead, lane, simd); \
        } else { \
            request_few<PIANOLA_WTYPE_##type, 1>(a, p.ahead, lane, simd); \
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
    if (!begun || low >= p.out) {
        return;
    }
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: \
        if (WIDE != 0) { \
            gemm_few_rows<PIANOLA_WTYPE_##type, 2>(a, tg, rows, group.y, lane, simd); \
        } else { \
            gemm_few_rows<PIANOLA_WTYPE_##type, 1>(a, tg, rows, group.y, lane, simd); \
        } \
        break;
    if (ACT == PIANOLA_ACT_F16 && WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
        switch (WTYPE) {
            PIANOLA_EXPANDED(PIANOLA_CASE)
        default: break;
        }
    } else if (ACT == PIANOLA_ACT_F16) {
        switch (WTYPE) {
        case PIANOLA_WTYPE_F16: gemm_few_rows<PIANOLA_WTYPE_F16, 1>(a, tg, rows, group.y, lane, simd); break;
        case PIANOLA_WTYPE_BF16: gemm_few_rows<PIANOLA_WTYPE_BF16, 1>(a, tg, rows, group.y, lane, simd); break;
        default: break;
        }
    }
#undef PIANOLA_CASE
#endif
}
