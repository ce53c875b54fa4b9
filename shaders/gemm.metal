// Products of a matrix and a chunk of rows: limited by arithmetic.
//
// A SIMD group computes 32 rows of W for PIANOLA_ROWS rows of x: its part of W
// goes from memory to registers, and x, which all SIMD groups of the threadgroup
// need, through threadgroup memory, a chunk of columns at a time.
//
// Tiles are multiplied in integers, which are those of gemv. Rows, of any type,
// are multiplied as float16 with sums in float32: a result differs by up to
// 2e-3 of the norm of its neighbours.
#include "multiply.h"
#include "product.h"
#include "rows.h"
#include "tiles.h"

// Strips of 16 rows of W, and rows of x in blocks of 8.
#define PIANOLA_STRIPS 2
#define PIANOLA_BLOCKS PIANOLA_MMA_BLOCKS
#define PIANOLA_ROWS (8 * PIANOLA_BLOCKS)

// sums are a SIMD group's results: of each strip and each 8 rows of x as
// multiply_bytes returns them.
struct sums {
    float4 of[PIANOLA_STRIPS][PIANOLA_BLOCKS];
};

static inline void clear(thread sums &c) {
    _Pragma("clang loop unroll(full)")
    for (uint s = 0; s < PIANOLA_STRIPS; s++) {
        _Pragma("clang loop unroll(full)")
        for (uint n = 0; n < PIANOLA_BLOCKS; n++) {
            c.of[s][n] = float4(0.0f);
        }
    }
}

// part is what a SIMD group computes: rows of W from first on, of which those
// from low to high-1 are the threadgroup's, and rows of x.
struct part {
    uint first, low, high;
    uint row, rows;
};

// put writes the sums, those of row r of x times unit[r].
static inline void put(thread const sums &c, thread const product &p, part at, threadgroup const float *unit, uint lane) {
    _Pragma("clang loop unroll(full)")
    for (uint i = 0; i < 2 * PIANOLA_STRIPS; i++) {
        const uint o = at.first + 8 * i + lane / 4;
        if (o < at.low || o >= at.high) {
            continue;
        }
        const float b = p.bias ? p.b[o] : 0.0f;
        _Pragma("clang loop unroll(full)")
        for (uint n = 0; n < PIANOLA_BLOCKS; n++) {
            _Pragma("clang loop unroll(full)")
            for (uint k = 0; k < 2; k++) {
                const uint r = 8 * n + lane % 4 * 2 + k;
                if (r < at.rows) {
                    p.y[ulong(at.row + r) * p.y_stride + o] = c.of[i / 2][n][i % 2 * 2 + k] * unit[r] + b;
                }
            }
        }
    }
}

// Columns of a chunk of quantised activations: whole blocks of every type.
#define PIANOLA_TILE_CHUNK 256

// tile_stage is a chunk of quantised rows in threadgroup memory.
//
//	words  [rows][72] int8: those of a tile in the order 0 4 1 5 2 6 3 7, so that
//	       two words of one lane lie side by side; 8 words more, so that lanes
//	       read different banks
//	d      [8][rows] float32
//	half_sums [8][2][rows] float32: the sums of half blocks, times d
//	ones   [rows] float32
struct tile_stage {
    threadgroup int *words;
    threadgroup float *d;
    threadgroup float *half_sums;
    threadgroup float *ones;
};

static inline tile_stage tile_stage_of(threadgroup uchar *tg) {
    threadgroup float *f = (threadgroup float *)tg;
    return {(threadgroup int *)tg, f + 72 * PIANOLA_ROWS, f + 80 * PIANOLA_ROWS, f + 96 * PIANOLA_ROWS};
}

// PIANOLA_READS is how many vectors of the input a lane reads before it needs the
// first.
#define PIANOLA_READS 8

// is_plain says whether the input is x in whole vectors that are aligned.
static inline bool is_plain(thread const product &p) { return !p.silu && p.x_stride % 4 == 0 && p.in % 4 == 0; }

// fill_tiles quantises n columns of rows of the input from column c on. A lane
// reads N vectors before it needs the first.
template <uint N, bool Plain>
static inline void fill_tiles(tile_stage to, thread const product &p, part at, uint c, uint n, uint lane, uint simd, uint simds) {
    const uint count = at.rows * (n / 4);
    for (uint first = simd * 32 + lane; first < count + lane; first += simds * 32 * N) {
        float4 v[N];
        _Pragma("clang loop unroll(full)")
        for (uint k = 0; k < N; k++) {
            const uint i = min(first + k * simds * 32, count - 1);
            v[k] = input4<Plain>(p, at.row + i / (n / 4), c / 4 + i % (n / 4));
        }
        _Pragma("clang loop unroll(full)")
        for (uint k = 0; k < N; k++) {
            // Eight lanes have a block, all of them or none.
            const uint i = first + k * simds * 32;
            int q;
            const float d = quantise_block(q, v[k]);
            int sum = dot4(q, int(PIANOLA_BYTES(1)), 0);
            sum += simd_shuffle_xor(sum, ushort(1));
            sum += simd_shuffle_xor(sum, ushort(2));
            if (i >= count) {
                continue;
            }
            const uint r = i / (n / 4);
            const uint w = i % (n / 4);
            to.words[r * 72 + w / 8 * 8 + w % 4 * 2 + w / 4 % 2] = q;
            if (w % 4 == 0) {
                to.half_sums[w / 4 * PIANOLA_ROWS + r] = d * float(sum);
            }
            if (w % 8 == 0) {
                to.d[w / 8 * PIANOLA_ROWS + r] = d;
            }
        }
    }
}

// strip_row is what a lane needs of one row of a strip's tile.
struct strip_row {
    uint2 q;
    float d;
    int2 scale;
    float2 least;
};

template <uint T>
static inline strip_row strip_row_of(device const uchar *strip, uint tile, uint g, uint r) {
    const bool two = T == PIANOLA_WTYPE_Q2_K || T == PIANOLA_WTYPE_Q3_K || T == PIANOLA_WTYPE_Q6_K;
    const tile_words w = load_words<T>(strip, tile, g, r);
    // One scale joins d; the product is the one that the integers would have.
    return {w.q, two ? w.d : w.d * float(w.scale.x), w.scale, w.m * float2(w.least)};
}

// strip_rows are those of a lane: two of each strip.
struct strip_rows {
    strip_row of[2 * PIANOLA_STRIPS];
};

// load_strips reads a lane's rows of a tile of each strip. A strip past the last
// is the last, and not written.
template <uint T>
static inline void load_strips(thread strip_rows &a, thread const product &p, part at, uint tile, uint lane) {
    _Pragma("clang loop unroll(full)")
    for (uint s = 0; s < PIANOLA_STRIPS; s++) {
        device const uchar *strip = p.w + ulong(min(at.first / 16 + s, p.out / 16 - 1)) * strip_bytes(T, p.in);
        a.of[2 * s] = strip_row_of<T>(strip, tile, lane % 4, lane / 4);
        a.of[2 * s + 1] = strip_row_of<T>(strip, tile, lane % 4, lane / 4 + 8);
    }
}

// multiply_tile adds a tile's products, also with rows of x that are not there,
// which costs less than branches.
template <uint T>
static inline void multiply_tile(thread sums &c, tile_stage x, uint x_tile, thread const strip_rows &a, uint lane) {
    const bool two = T == PIANOLA_WTYPE_Q2_K || T == PIANOLA_WTYPE_Q3_K || T == PIANOLA_WTYPE_Q6_K;
    const uint g = lane / 4;
    const uint t = lane % 4;
    _Pragma("clang loop unroll(full)")
    for (uint n = 0; n < PIANOLA_BLOCKS; n++) {
        const uint2 b = *(threadgroup const uint2 *)(x.words + (8 * n + g) * 72 + 8 * x_tile + 2 * t);
        const uint column = x_tile * PIANOLA_ROWS + 8 * n + 2 * t;
        const float2 dx = *(threadgroup const float2 *)(x.d + column);
        float2 s0 = float2(0.0f);
        float2 s1 = float2(0.0f);
        if (has_minimum(T)) {
            s0 = *(threadgroup const float2 *)(x.half_sums + column + x_tile * PIANOLA_ROWS);
            s1 = *(threadgroup const float2 *)(x.half_sums + column + (x_tile + 1) * PIANOLA_ROWS);
        }
        _Pragma("clang loop unroll(full)")
        for (uint s = 0; s < PIANOLA_STRIPS; s++) {
            const strip_row u = a.of[2 * s];
            const strip_row v = a.of[2 * s + 1];
            int4 i;
            if (two) {
                i = multiply_bytes(uint2(u.q.x, v.q.x), b.x, int4(0), lane) * int4(u.scale.x, u.scale.x, v.scale.x, v.scale.x) +
                    multiply_bytes(uint2(u.q.y, v.q.y), b.y, int4(0), lane) * int4(u.scale.y, u.scale.y, v.scale.y, v.scale.y);
            } else {
                i = multiply_bytes2(uint4(u.q, v.q), b, lane);
            }
            c.of[s][n] += float4(u.d * dx, v.d * dx) * float4(i);
            if (has_minimum(T)) {
                c.of[s][n] += float4(u.least.x * s0 + u.least.y * s1, v.least.x * s0 + v.least.y * s1);
            }
        }
    }
}

// gemm_tiled multiplies weights in tiles with quantised activations.
template <uint T>
static inline void gemm_tiled(thread const product &p, threadgroup uchar *tg, part at, uint lane, uint simd, uint simds) {
    const tile_stage x = tile_stage_of(tg);
    for (uint i = simd * 32 + lane; i < PIANOLA_ROWS; i += simds * 32) {
        x.ones[i] = 1.0f;
    }
    sums c;
    clear(c);
    strip_rows a;
    load_strips<T>(a, p, at, 0, lane);
    for (uint column = 0; column < p.in; column += PIANOLA_TILE_CHUNK) {
        const uint n = min(uint(PIANOLA_TILE_CHUNK), p.in - column);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (is_plain(p)) {
            fill_tiles<PIANOLA_READS, true>(x, p, at, column, n, lane, simd, simds);
        } else {
            fill_tiles<2, false>(x, p, at, column, n, lane, simd, simds);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (at.first >= at.high) {
            continue;
        }
        for (uint tile = 0; tile < n / 32; tile++) {
            const uint next = min(column / 32 + tile + 1, p.in / 32 - 1);
            strip_rows b;
            load_strips<T>(b, p, at, next, lane);
            multiply_tile<T>(c, x, tile, a, lane);
            a = b;
        }
    }
    put(c, p, at, x.ones, lane);
}

// Columns of a chunk of rows as float16.
#define PIANOLA_HALF_CHUNK 128

// half_stage is a chunk of rows of the input as float16 in threadgroup memory,
// divided by a power of two for each row, so that no scale of x is too large
// or too small.
//
//	words  [rows][80] pairs of float16: 64 words of a row and 16 more, so that
//	       lanes read different banks
//	unit   [rows] float32: what a row is divided by, as of now
//	shrink [rows] float32: what sums are multiplied with, since the unit grew
struct half_stage {
    threadgroup uint *words;
    threadgroup float *unit;
    threadgroup float *shrink;
};

static inline half_stage half_stage_of(threadgroup uchar *tg) {
    threadgroup float *f = (threadgroup float *)tg;
    return {(threadgroup uint *)tg, f + 80 * PIANOLA_ROWS, f + 81 * PIANOLA_ROWS};
}

// unit_of returns a power of two that makes m at most 2048 and at least 1024;
// tiny ones have the same.
static inline float unit_of(float m) { return as_type<float>(max(as_type<uint>(m) & 0x7f800000u, 0x10000000u) - (10u << 23)); }

// input4_within returns elements i to i+3 of a row of the input; what is past
// its end is 0.
template <bool Plain>
static inline float4 input4_within(thread const product &p, uint row, uint i) {
    if (Plain ? i < p.in : i + 4 <= p.in) {
        return input4<Plain>(p, row, i / 4);
    }
    float4 v = float4(0.0f);
    _Pragma("clang loop unroll(full)")
    for (uint k = 0; k < 3; k++) {
        if (!Plain && i + k < p.in) {
            v[k] = input1(p, row, i + k);
        }
    }
    return v;
}

// reads are a lane's vectors of N rows of the input.
template <uint N>
struct reads {
    float4 of[N];
};

// read_rows reads four columns from column c on of every simds-th row.
template <uint N, bool Plain>
static inline void read_rows(thread reads<N> &v, thread const product &p, part at, uint row, uint c, uint simds) {
    _Pragma("clang loop unroll(full)")
    for (uint k = 0; k < N; k++) {
        v.of[k] = input4_within<Plain>(p, at.row + min(row + k * simds, at.rows - 1), c);
    }
}

// put_rows makes float16 of rows that were read from a chunk, the first one or
// another.
template <uint N>
static inline void put_rows(half_stage to, thread const reads<N> &v, part at, uint row, bool first, uint lane, uint simds) {
    float before[N];
    _Pragma("clang loop unroll(full)")
    for (uint k = 0; k < N; k++) {
        before[k] = first ? 0.0f : to.unit[min(row + k * simds, at.rows - 1)];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    _Pragma("clang loop unroll(full)")
    for (uint k = 0; k < N; k++) {
        const uint r = row + k * simds;
        const float4 x = v.of[k];
        const float unit = max(before[k], unit_of(simd_max(max(max(abs(x.x), abs(x.y)), max(abs(x.z), abs(x.w))))));
        // Both are powers of two.
        const float inverse = as_type<float>((254u << 23) - as_type<uint>(unit));
        if (r < at.rows) {
            if (lane == 0) {
                to.unit[r] = unit;
                to.shrink[r] = before[k] * inverse;
            }
            *(threadgroup uint2 *)(to.words + r * 80 + 2 * lane) = as_type<uint2>(half4(x * inverse));
        }
    }
}

// rescale multiplies the sums of rows whose unit grew.
static inline void rescale(thread sums &c, half_stage x, uint rows, uint lane) {
    const bool grew = (2 * lane < rows && x.shrink[2 * lane] != 1.0f) || (2 * lane + 1 < rows && x.shrink[2 * lane + 1] != 1.0f);
    if (!simd_any(grew)) {
        return;
    }
    _Pragma("clang loop unroll(full)")
    for (uint n = 0; n < PIANOLA_BLOCKS; n++) {
        const float2 f = *(threadgroup const float2 *)(x.shrink + 8 * n + lane % 4 * 2);
        _Pragma("clang loop unroll(full)")
        for (uint s = 0; s < PIANOLA_STRIPS; s++) {
            c.of[s][n] *= float4(f, f);
        }
    }
}

// half_piece is a piece of a row of W, 8 columns and 8 more, as float16.
struct half_piece {
    uint4 a, b;
};

// halves4 returns four float16; larger values are the largest.
static inline uint2 halves4(float4 v) { return as_type<uint2>(clamp(half4(v), half4(-65504.0h), half4(65504.0h))); }

template <uint T>
static inline uint4 halves8(device const uchar *row, uint c, uint n, bool aligned) {
    if (aligned) {
        const eight v = load_eight<T>(row, c / 8);
        if (T == PIANOLA_WTYPE_F16) {
            return v.a;
        }
        if (T == PIANOLA_WTYPE_BF16) {
            return uint4(halves4(four_of<T>(v.a.xy)), halves4(four_of<T>(v.a.zw)));
        }
        return uint4(halves4(as_type<float4>(v.a)), halves4(as_type<float4>(v.b)));
    }
    float4 v[2];
    _Pragma("clang loop unroll(full)")
    for (uint i = 0; i < 8; i++) {
        v[i / 4][i % 4] = c + i < n ? float_at<T>(row, c + i) : 0.0f;
    }
    return uint4(halves4(v[0]), halves4(v[1]));
}

// half_columns returns the columns of a piece.
template <uint T>
static inline uint2 half_columns(uint piece) {
    return is_float(T) ? uint2(16 * piece, 16 * piece + 8) : piece_columns(T, piece);
}

// half_piece_of returns a piece of a row of n columns; what is past them is 0.
template <uint T>
static inline half_piece half_piece_of(device const uchar *row, uint piece, uint n, bool aligned) {
    if (16 * piece >= n) {
        return {uint4(0), uint4(0)};
    }
    if (is_float(T)) {
        return {halves8<T>(row, 16 * piece, n, aligned), aligned && 16 * piece + 8 >= n ? uint4(0) : halves8<T>(row, 16 * piece + 8, n, aligned)};
    }
    const block_piece p = load_piece<T>(row, piece);
    const float2 m = has_minimum(T) ? p.m : float2(0.0f);
    return {uint4(halves4(p.d.x * signed4(p.q.x) + m.x), halves4(p.d.x * signed4(p.q.y) + m.x)),
            uint4(halves4(p.d.y * signed4(p.q.z) + m.y), halves4(p.d.y * signed4(p.q.w) + m.y))};
}

// half_pieces are those of a lane: of two rows of each strip.
struct half_pieces {
    half_piece of[2 * PIANOLA_STRIPS];
};

template <uint T>
static inline void load_pieces(thread half_pieces &a, weight_rows w, uint piece, uint n, bool aligned) {
    _Pragma("clang loop unroll(full)")
    for (uint r = 0; r < 2 * PIANOLA_STRIPS; r++) {
        a.of[r] = half_piece_of<T>(w.row[r], piece, n, aligned);
    }
}

// multiply_words adds the products of the first or the second 8 columns of
// pieces with all rows of x: no sum is needed again before 16 others.
template <bool Second>
static inline void multiply_words(thread sums &c, thread const half_pieces &a, threadgroup const uint *words, uint lane) {
    uint4 x[PIANOLA_BLOCKS];
    _Pragma("clang loop unroll(full)")
    for (uint n = 0; n < PIANOLA_BLOCKS; n++) {
        x[n] = *(threadgroup const uint4 *)(words + 8 * n * 80);
    }
    _Pragma("clang loop unroll(full)")
    for (uint i = 0; i < 2; i++) {
        _Pragma("clang loop unroll(full)")
        for (uint n = 0; n < PIANOLA_BLOCKS; n++) {
            _Pragma("clang loop unroll(full)")
            for (uint s = 0; s < PIANOLA_STRIPS; s++) {
                const uint4 u = Second ? a.of[2 * s].b : a.of[2 * s].a;
                const uint4 v = Second ? a.of[2 * s + 1].b : a.of[2 * s + 1].a;
                multiply_halves(c.of[s][n], i == 0 ? uint4(u.xy, v.xy) : uint4(u.zw, v.zw), i == 0 ? x[n].xy : x[n].zw, lane);
            }
        }
    }
}

// gemm_halves multiplies weights in rows with activations, both as float16.
template <uint T>
static inline void gemm_halves(thread const product &p, threadgroup uchar *tg, part at, uint lane, uint simd, uint simds) {
    const half_stage x = half_stage_of(tg);
    const bool aligned = p.in % 8 == 0;
    weight_rows w;
    _Pragma("clang loop unroll(full)")
    for (uint i = 0; i < 4; i++) {
        // A row past the last is the last, and not written.
        const uint row = min(at.first + 8 * i + lane / 4, p.out - 1);
        w.row[i] = p.w + (is_float(T) ? ulong(row) * p.in * element_bytes(T) : row * row_bytes(T, p.in));
    }
    sums c;
    clear(c);
    half_pieces a;
    load_pieces<T>(a, w, lane % 4, p.in, aligned);
    const bool plain = is_plain(p);
    reads<PIANOLA_READS> v;
    if (plain) {
        read_rows<PIANOLA_READS, true>(v, p, at, simd, 4 * lane, simds);
    }
    for (uint column = 0; column < p.in; column += PIANOLA_HALF_CHUNK) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (plain) {
            put_rows(x, v, at, simd, column == 0, lane, simds);
        }
        for (uint row = plain ? simd + PIANOLA_READS * simds : simd; row < at.rows; row += simds) {
            reads<1> u;
            read_rows<1, false>(u, p, at, row, column + 4 * lane, simds);
            put_rows(x, u, at, row, column == 0, lane, simds);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (plain) {
            // The next chunk is on its way while this one is multiplied.
            read_rows<PIANOLA_READS, true>(v, p, at, simd, column + PIANOLA_HALF_CHUNK + 4 * lane, simds);
        }
        if (at.first >= at.high) {
            continue;
        }
        if (column != 0) {
            rescale(c, x, at.rows, lane);
        }
        _Pragma("clang loop unroll(disable)")
        for (uint i = 0; i < PIANOLA_HALF_CHUNK && column + i < p.in; i += 64) {
            // Four lanes have 64 columns of a row.
            const uint piece = (column + i) / 16 + lane % 4;
            half_pieces b;
            load_pieces<T>(b, w, piece + 4, p.in, aligned);
            const uint2 columns = half_columns<T>(piece) - column;
            threadgroup const uint *words = x.words + lane / 4 * 80;
            multiply_words<false>(c, a, words + columns.x / 2, lane);
            multiply_words<true>(c, a, words + columns.y / 2, lane);
            a = b;
        }
    }
    put(c, p, at, x.unit, lane);
}

// gemm_of multiplies all rows of x with the threadgroup's rows of W.
template <uint T, bool Tiled>
static inline void gemm_of(thread const product &p, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
    const uint low = group * p.group;
    const uint high = min(low + p.group, p.out);
    for (uint row = p.first; row < p.last; row += PIANOLA_ROWS) {
        // Strips begin at multiples of 16.
        for (uint first = low / 16 * 16; first < high; first += 32 * simds) {
            const part at = {first + 32 * simd, low, high, row, min(p.last - row, uint(PIANOLA_ROWS))};
            if (Tiled) {
                gemm_tiled<T>(p, tg, at, lane, simd, simds);
            } else {
                gemm_halves<T>(p, tg, at, lane, simd, simds);
            }
        }
    }
}

// threadgroup memory: weights*24832+(1-weights)*20992 bytes
[[max_total_threads_per_threadgroup(256)]]
kernel void gemm(
        device const float *x            [[buffer(0)]],
        device const float *x2           [[buffer(1)]],
        device const uchar *w            [[buffer(2)]],
        device const float *b            [[buffer(3)]],
        device float *y                  [[buffer(4)]],
        constant pianola_gemm_params &p  [[buffer(8)]],
        constant pianola_second &s       [[buffer(9)]],
        device pianola_step *step        [[buffer(10)]],
        threadgroup uchar *tg            [[threadgroup(0)]],
        uint3 group                      [[threadgroup_position_in_grid]],
        uint lane                        [[thread_index_in_simdgroup]],
        uint simd                        [[simdgroup_index_in_threadgroup]],
        uint simds                       [[simdgroups_per_threadgroup]]) {
    if (step->stop != 0) {
        return;
    }
    if (group.y * p.row_group >= s.rows) {
        return;
    }
    const product a = {x, x2, w, b, y, p.in, p.out, p.x_stride, p.y_stride, p.group, group.y * p.row_group, min((group.y + 1) * p.row_group, s.rows),
                       INPUT == PIANOLA_INPUT_SILU_MUL, BIAS != 0, false, false, 0.0f};
    if (ACT == PIANOLA_ACT_Q8 && WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemm_of<PIANOLA_WTYPE_##type, true>(a, tg, group.x, lane, simd, simds); break;
        switch (WTYPE) {
            PIANOLA_QUANTISED(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
    } else if (ACT == PIANOLA_ACT_F32 && WEIGHTS == PIANOLA_WEIGHTS_ROWS) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemm_of<PIANOLA_WTYPE_##type, false>(a, tg, group.x, lane, simd, simds); break;
        switch (WTYPE) {
            PIANOLA_FLOATS(PIANOLA_CASE)
            PIANOLA_QUANTISED(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
    }
}
