// Products of a matrix and a chunk of rows. They are compute-bound.
//
// A SIMD group multiplies 32 rows of W with PIANOLA_ROWS rows of x, or with a quarter of
// them if the threadgroup has more SIMD groups than rows of W. It loads its rows of W from
// memory to registers. All SIMD groups of the threadgroup share x, which goes through
// threadgroup memory a chunk of columns at a time.
//
// Weights in tiles are multiplied as integers, the same ones as in gemv. Weights in rows,
// of any type, are multiplied as float16 with float32 sums. An activation is split into two
// float16, and so is a weight whose type does not fit one float16. The split loses 2^-22 of
// a product and 2^-25 of a weight. If a threadgroup has at most 8 rows of W, float32 is multiplied as such; see
// narrow.h.
#include "multiply.h"
#include "narrow.h"
#include "product.h"
#include "rows.h"
#include "tiles.h"

// A strip is 16 rows of W. Rows of x come in blocks of 8.
#define PIANOLA_STRIPS 2
#define PIANOLA_BLOCKS PIANOLA_MMA_BLOCKS
#define PIANOLA_ROWS (8 * PIANOLA_BLOCKS)

// sums are the results of a SIMD group for each strip and each of N blocks of 8 rows of x,
// in the order of multiply_bytes.
template <uint N>
struct sums {
    float4 of[PIANOLA_STRIPS][N];
};

template <uint N>
static inline void clear(thread sums<N> &c) {
    PIANOLA_UNROLL
    for (uint s = 0; s < PIANOLA_STRIPS; s++) {
        PIANOLA_UNROLL
        for (uint n = 0; n < N; n++) {
            c.of[s][n] = float4(0.0f);
        }
    }
}

// part is the work of a SIMD group: rows of W from first on and blocks of rows of x from
// block on. The threadgroup owns the rows of W from low to high-1.
struct part {
    uint first, low, high;
    uint row, rows;
    uint block;
};

// put writes the sums to y. The sums of row r of x are multiplied by unit[r].
template <uint N>
static inline void put(thread const sums<N> &c, thread const product &p, part at, threadgroup const float *unit, uint lane) {
    PIANOLA_UNROLL
    for (uint i = 0; i < 2 * PIANOLA_STRIPS; i++) {
        const uint o = at.first + 8 * i + lane / 4;
        if (o < at.low || o >= at.high) {
            continue;
        }
        const float b = p.bias ? p.b[o] : 0.0f;
        PIANOLA_UNROLL
        for (uint n = 0; n < N; n++) {
            PIANOLA_UNROLL
            for (uint k = 0; k < 2; k++) {
                const uint r = 8 * (at.block + n) + lane % 4 * 2 + k;
                if (r < at.rows) {
                    p.y[ulong(at.row + r) * p.y_stride + o] = c.of[i / 2][n][i % 2 * 2 + k] * unit[r] + b;
                }
            }
        }
    }
}

// PIANOLA_TILE_CHUNK is the number of columns of quantized activations that are staged at a
// time. Every type's quantization block size divides it.
#define PIANOLA_TILE_CHUNK 256

// tile_stage is a chunk of quantized rows in threadgroup memory.
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

static_assert(97 * PIANOLA_ROWS * 4 <= PIANOLA_TGMEM_GEMM(PIANOLA_WEIGHTS_TILED16), "tile_stage is more than gemm declares");

static inline tile_stage tile_stage_of(threadgroup uchar *tg) {
    threadgroup float *f = (threadgroup float *)tg;
    return {(threadgroup int *)tg, f + 72 * PIANOLA_ROWS, f + 80 * PIANOLA_ROWS, f + 96 * PIANOLA_ROWS};
}

// PIANOLA_READS is the number of input vectors that a lane loads before it uses the first.
#define PIANOLA_READS 8

// is_plain reports whether the input is x in whole aligned vectors.
static inline bool is_plain(thread const product &p) { return !p.silu && p.x_stride % 4 == 0 && p.in % 4 == 0; }

// fill_tiles quantizes n columns of rows of the input, from column c on. A lane loads N
// vectors before it uses the first.
template <uint N, bool Plain>
static inline void fill_tiles(tile_stage to, thread const product &p, part at, uint c, uint n, uint lane, uint simd, uint simds) {
    const uint count = at.rows * (n / 4);
    for (uint first = simd * 32 + lane; first < count + lane; first += simds * 32 * N) {
        float4 v[N];
        PIANOLA_UNROLL
        for (uint k = 0; k < N; k++) {
            const uint i = min(first + k * simds * 32, count - 1);
            v[k] = input4<Plain>(p, at.row + i / (n / 4), c / 4 + i % (n / 4));
        }
        PIANOLA_UNROLL
        for (uint k = 0; k < N; k++) {
            // Eight lanes hold a block: all of them are
            // active or none.
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

// strip_row holds a lane's values of one row of a strip's tile.
struct strip_row {
    uint2 q;
    float d;
    int2 scale;
    float2 least;
};

template <uint T>
static inline strip_row strip_row_of(device const uchar *strip, uint tile, uint g, uint r, uint wtype) {
    const bool two = has_halves(T);
    const tile_words w = load_words<T>(strip, tile, g, r, wtype);
    // With one scale, d includes it; the product equals the one computed with integers.
    return {w.q, two ? w.d : w.d * float(w.scale.x), w.scale, w.m * float2(w.least)};
}

// strip_rows are a lane's rows: two of each strip.
struct strip_rows {
    strip_row of[2 * PIANOLA_STRIPS];
};

// load_strips loads a lane's rows of one tile of each strip. A strip past the last one
// repeats the last; its results are not written.
template <uint T>
static inline void load_strips(thread strip_rows &a, thread const product &p, part at, uint tile, uint lane) {
    PIANOLA_UNROLL
    for (uint s = 0; s < PIANOLA_STRIPS; s++) {
        device const uchar *strip = p.w + ulong(min(at.first / 16 + s, p.out / 16 - 1)) * strip_bytes(T, p.in, p.wtype);
        a.of[2 * s] = strip_row_of<T>(strip, tile, lane % 4, lane / 4, p.wtype);
        a.of[2 * s + 1] = strip_row_of<T>(strip, tile, lane % 4, lane / 4 + 8, p.wtype);
    }
}

// multiply_tile adds the products of a tile. It includes inactive rows of x, which is cheaper
// than branches.
template <uint T, uint N>
static inline void multiply_tile(thread sums<N> &c, tile_stage x, uint x_tile, thread const strip_rows &a, uint block, uint lane) {
    const bool two = has_halves(T);
    const uint g = lane / 4;
    const uint t = lane % 4;
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        const uint2 b = *(threadgroup const uint2 *)(x.words + (8 * (block + n) + g) * 72 + 8 * x_tile + 2 * t);
        const uint column = x_tile * PIANOLA_ROWS + 8 * (block + n) + 2 * t;
        const float2 dx = *(threadgroup const float2 *)(x.d + column);
        float2 s0 = float2(0.0f);
        float2 s1 = float2(0.0f);
        if (has_minimum(T)) {
            s0 = *(threadgroup const float2 *)(x.half_sums + column + x_tile * PIANOLA_ROWS);
            s1 = *(threadgroup const float2 *)(x.half_sums + column + (x_tile + 1) * PIANOLA_ROWS);
        }
        PIANOLA_UNROLL
        for (uint s = 0; s < PIANOLA_STRIPS; s++) {
            const strip_row u = a.of[2 * s];
            const strip_row v = a.of[2 * s + 1];
            if (has_ue4m3(T)) {
                // The integers are too large for 32 bits times their scales.
                c.of[s][n] += float4(u.d * dx, v.d * dx) *
                    (float4(multiply_bytes(uint2(u.q.x, v.q.x), b.x, int4(0), lane)) * float4(int4(u.scale.x, u.scale.x, v.scale.x, v.scale.x)) +
                     float4(multiply_bytes(uint2(u.q.y, v.q.y), b.y, int4(0), lane)) * float4(int4(u.scale.y, u.scale.y, v.scale.y, v.scale.y)));
                continue;
            }
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

// gemm_tiled multiplies weights in tiles with quantized activations.
template <uint T, uint N>
static inline void gemm_tiled(thread const product &p, threadgroup uchar *tg, part at, uint lane, uint simd, uint simds) {
    const tile_stage x = tile_stage_of(tg);
    for (uint i = simd * 32 + lane; i < PIANOLA_ROWS; i += simds * 32) {
        x.ones[i] = 1.0f;
    }
    sums<N> c;
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
            multiply_tile<T>(c, x, tile, a, at.block, lane);
            a = b;
        }
    }
    put(c, p, at, x.ones, lane);
}

// PIANOLA_HALF_CHUNK is the number of columns of float16 rows that are staged at a time. A
// staged row has 4 words more than it needs, so that lanes use different banks.
#define PIANOLA_HALF_CHUNK 64
#define PIANOLA_HALF_WORDS (PIANOLA_HALF_CHUNK / 2 + 4)

// half_stage is a chunk of rows of the input in threadgroup memory. Each element is the sum
// of two float16, divided by a power of two per row that keeps it within float16's range.
//
//	words  [rows][PIANOLA_HALF_WORDS] pairs of float16
//	rest   [rows][PIANOLA_HALF_WORDS] pairs of float16: x minus words
//	unit   [rows] float32: the current divisor of a row
//	shrink [rows] float32: the factor for existing sums after the unit grew
struct half_stage {
    threadgroup uint *words;
    threadgroup uint *rest;
    threadgroup float *unit;
    threadgroup float *shrink;
};

static_assert((2 * PIANOLA_HALF_WORDS + 2) * PIANOLA_ROWS * 4 <= PIANOLA_TGMEM_GEMM(PIANOLA_WEIGHTS_ROWS), "half_stage is more than gemm declares");

static inline half_stage half_stage_of(threadgroup uchar *tg) {
    threadgroup uint *u = (threadgroup uint *)tg;
    threadgroup float *f = (threadgroup float *)tg + 2 * PIANOLA_HALF_WORDS * PIANOLA_ROWS;
    return {u, u + PIANOLA_HALF_WORDS * PIANOLA_ROWS, f, f + PIANOLA_ROWS};
}

// input4_within returns elements i to i+3 of a row of the input, with 0 past its end.
template <bool Plain>
static inline float4 input4_within(thread const product &p, uint row, uint i) {
    if (Plain ? i < p.in : i + 4 <= p.in) {
        return input4<Plain>(p, row, i / 4);
    }
    float4 v = float4(0.0f);
    PIANOLA_UNROLL
    for (uint k = 0; k < 3; k++) {
        if (!Plain && i + k < p.in) {
            v[k] = input1(p, row, i + k);
        }
    }
    return v;
}

// reads are the vectors of N rows of the input that a lane has loaded.
template <uint N>
struct reads {
    float4 of[N];
};

// read_rows loads four columns, from column c on, of every step-th row.
template <uint N, bool Plain>
static inline void read_rows(thread reads<N> &v, thread const product &p, part at, uint row, uint c, uint lane, uint step) {
    PIANOLA_UNROLL
    for (uint k = 0; k < N; k++) {
        v.of[k] = float4(0.0f);
        // The second of two rows that are loaded together may be past the end.
        if (row - lane / 16 + k * step < at.rows) {
            v.of[k] = input4_within<Plain>(p, at.row + min(row + k * step, at.rows - 1), c);
        }
    }
}

// put_rows converts rows loaded by read_rows to float16. first marks the first chunk. 16
// lanes share a row.
template <uint N>
static inline void put_rows(half_stage to, thread const reads<N> &v, part at, uint row, bool first, uint lane, uint step) {
    float before[N];
    PIANOLA_UNROLL
    for (uint k = 0; k < N; k++) {
        before[k] = first ? 0.0f : to.unit[min(row + k * step, at.rows - 1)];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    PIANOLA_UNROLL
    for (uint k = 0; k < N; k++) {
        const uint r = row + k * step;
        if (r - lane / 16 >= at.rows) {
            continue;
        }
        const float4 x = v.of[k];
        float most = max(max(abs(x.x), abs(x.y)), max(abs(x.z), abs(x.w)));
        most = max(most, simd_shuffle_xor(most, ushort(1)));
        most = max(most, simd_shuffle_xor(most, ushort(2)));
        most = max(most, simd_shuffle_xor(most, ushort(4)));
        most = max(most, simd_shuffle_xor(most, ushort(8)));
        const float unit = max(before[k], unit_of(most));
        // unit and its inverse are powers of two.
        const float inverse = as_type<float>((254u << 23) - as_type<uint>(unit));
        if (r < at.rows) {
            if (lane % 16 == 0) {
                to.unit[r] = unit;
                to.shrink[r] = before[k] * inverse;
            }
            const uint i = r * PIANOLA_HALF_WORDS + lane % 16 * 2;
            const half4 words = half4(x * inverse);
            *(threadgroup uint2 *)(to.words + i) = as_type<uint2>(words);
            *(threadgroup uint2 *)(to.rest + i) = as_type<uint2>(half4(x * inverse - float4(words)));
        }
    }
}

// rescale multiplies the sums of the rows whose unit grew.
template <uint N>
static inline void rescale(thread sums<N> &c, half_stage x, uint block, uint rows, uint lane) {
    const bool grew = (2 * lane < rows && x.shrink[2 * lane] != 1.0f) || (2 * lane + 1 < rows && x.shrink[2 * lane + 1] != 1.0f);
    if (!simd_any(grew)) {
        return;
    }
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        const float2 f = *(threadgroup const float2 *)(x.shrink + 8 * (block + n) + lane % 4 * 2);
        PIANOLA_UNROLL
        for (uint s = 0; s < PIANOLA_STRIPS; s++) {
            c.of[s][n] *= float4(f, f);
        }
    }
}

// row_piece is a piece of a row of W: two groups of 8 columns, as float16 in a and b or as
// the split halves that two_halves returns.
struct row_piece {
    uint4 a, b, c, d;
};

// is_split reports whether a type's elements are split into two float16.
static inline bool is_split(uint type) { return type == PIANOLA_WTYPE_F32 || !is_float(type); }

// two_halves splits four floats: it returns their float16 values in x and y, and the
// float16 remainders in z and w.
static inline uint4 two_halves(float4 v) {
    const uint2 most = halves4(v);
    return uint4(most, halves4(v - float4(as_type<half4>(most))));
}

// floats4 returns four elements of a row of n columns, with 0 past its end.
template <uint T>
static inline float4 floats4(device const uchar *row, uint c, uint n) {
    float4 v;
    PIANOLA_UNROLL
    for (uint i = 0; i < 4; i++) {
        v[i] = c + i < n ? float_at<T>(row, c + i) : 0.0f;
    }
    return v;
}

// halves8 returns eight elements of a row of n columns of F16 or BF16.
template <uint T>
static inline uint4 halves8(device const uchar *row, uint c, uint n, bool aligned) {
    if (!aligned) {
        return uint4(halves4(floats4<T>(row, c, n)), halves4(floats4<T>(row, c + 4, n)));
    }
    const uint4 v = c < n ? load_eight<T>(row, c / 8).a : uint4(0);
    return T == PIANOLA_WTYPE_F16 ? v : uint4(halves4(four_of<T>(v.xy)), halves4(four_of<T>(v.zw)));
}

// piece_of returns a piece of a row of n columns, with 0 past its end.
template <uint T>
static inline row_piece piece_of(device const uchar *row, uint piece, uint n, bool aligned, uint wtype) {
    const uint c = 16 * piece;
    row_piece r = {uint4(0), uint4(0), uint4(0), uint4(0)};
    if (c >= n) {
        return r;
    }
    if (!is_float(T)) {
        const block_piece p = load_piece<T>(row, piece, wtype);
        r.a = p.q;
        r.b = as_type<uint4>(float4(p.d, has_minimum(T) ? p.m : float2(0.0f)));
    } else if (!is_split(T)) {
        r.a = halves8<T>(row, c, n, aligned);
        r.b = halves8<T>(row, c + 8, n, aligned);
    } else if (!aligned) {
        r.a = as_type<uint4>(floats4<T>(row, c, n));
        r.b = as_type<uint4>(floats4<T>(row, c + 4, n));
        r.c = as_type<uint4>(floats4<T>(row, c + 8, n));
        r.d = as_type<uint4>(floats4<T>(row, c + 12, n));
    } else {
        eight v = load_eight<T>(row, c / 8);
        r.a = v.a;
        r.b = v.b;
        if (c + 8 < n) {
            v = load_eight<T>(row, c / 8 + 1);
            r.c = v.a;
            r.d = v.b;
        }
    }
    return r;
}

// column_of returns the first of the four columns that lane i of 16 loads of the chunk that
// begins at a column. Four pieces cover the columns of a chunk. A chunk of Q6_K consists of
// 32 columns and the 32 columns at distance 64.
template <uint T>
static inline uint column_of(uint chunk, uint i) {
    return T == PIANOLA_WTYPE_Q6_K ? chunk / 128 * 128 + chunk % 128 / 2 + i / 8 * 64 + i % 8 * 4 : chunk + 4 * i;
}

// words_of returns the offsets in a chunk of the columns of a piece's two halves.
template <uint T>
static inline uint2 words_of(uint piece) {
    const uint at = piece % 4;
    if (is_float(T)) {
        return uint2(8 * at, 8 * at + 4);
    }
    return T == PIANOLA_WTYPE_Q6_K ? uint2(4 * at, 4 * at + 16) : piece_columns(T, piece) % PIANOLA_HALF_CHUNK / 2;
}

// row_pieces are a lane's pieces: of two rows of each strip.
struct row_pieces {
    row_piece of[2 * PIANOLA_STRIPS];
};

template <uint T>
static inline void load_pieces(thread row_pieces &a, weight_rows w, uint piece, uint n, bool aligned, uint wtype) {
    PIANOLA_UNROLL
    for (uint r = 0; r < 2 * PIANOLA_STRIPS; r++) {
        a.of[r] = piece_of<T>(w.row[r], piece, n, aligned, wtype);
    }
}

// eight_halves is 8 columns of a row of W: float16 values and float16 remainders.
struct eight_halves {
    uint4 most, rest;
};

// halves_of returns the first or the second 8 columns of a piece.
template <uint T, bool Second>
static inline eight_halves halves_of(thread const row_piece &p) {
    if (!is_split(T)) {
        return {Second ? p.b : p.a, uint4(0)};
    }
    uint4 u, v;
    if (is_float(T)) {
        u = two_halves(as_type<float4>(Second ? p.c : p.a));
        v = two_halves(as_type<float4>(Second ? p.d : p.b));
    } else {
        const uint2 q = Second ? p.a.zw : p.a.xy;
        const float d = as_type<float>(Second ? p.b.y : p.b.x);
        const float m = as_type<float>(Second ? p.b.w : p.b.z);
        u = two_halves(d * quants4<T>(q.x) + m);
        v = two_halves(d * quants4<T>(q.y) + m);
    }
    return {uint4(u.xy, v.xy), uint4(u.zw, v.zw)};
}

// multiply_words adds the products of 8 columns of rows of W with all rows of x; u[2*s] and
// u[2*s+1] belong to strip s. Each sum is used again only after 16 others, which hides the
// latency.
template <uint N>
static inline void multiply_words(thread sums<N> &c, thread const uint4 *u, threadgroup const uint *words, uint lane) {
    uint4 x[N];
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        x[n] = *(threadgroup const uint4 *)(words + 8 * n * PIANOLA_HALF_WORDS);
    }
    PIANOLA_UNROLL
    for (uint i = 0; i < 2; i++) {
        PIANOLA_UNROLL
        for (uint n = 0; n < N; n++) {
            PIANOLA_UNROLL
            for (uint s = 0; s < PIANOLA_STRIPS; s++) {
                const uint4 a = u[2 * s];
                const uint4 b = u[2 * s + 1];
                multiply_halves(c.of[s][n], i == 0 ? uint4(a.xy, b.xy) : uint4(a.zw, b.zw), i == 0 ? x[n].xy : x[n].zw, lane);
            }
        }
    }
}

// multiply_pieces adds the products of the first or second 8 columns of pieces; the lane's
// rows of x hold these columns from word at on.
template <uint T, bool Second, uint N>
static inline void multiply_pieces(thread sums<N> &c, thread const row_pieces &a, half_stage x, uint at, uint lane) {
    uint4 most[2 * PIANOLA_STRIPS];
    uint4 rest[2 * PIANOLA_STRIPS];
    PIANOLA_UNROLL
    for (uint r = 0; r < 2 * PIANOLA_STRIPS; r++) {
        const eight_halves h = halves_of<T, Second>(a.of[r]);
        most[r] = h.most;
        rest[r] = h.rest;
    }
    // The products with remainders come first; products of two remainders are
    // dropped. Split types are rare, so a loop keeps the code small.
    if (is_split(T)) {
        _Pragma("clang loop unroll(disable)")
        for (uint i = 0; i < 3; i++) {
            uint4 u[2 * PIANOLA_STRIPS];
            PIANOLA_UNROLL
            for (uint r = 0; r < 2 * PIANOLA_STRIPS; r++) {
                u[r] = i == 1 ? rest[r] : most[r];
            }
            multiply_words(c, u, (i == 0 ? x.rest : x.words) + at, lane);
        }
    } else {
        multiply_words(c, most, x.rest + at, lane);
        multiply_words(c, most, x.words + at, lane);
    }
}

// fill_rows loads four columns, from column c on, of every step-th row of a chunk from row
// on, and converts them to float16.
template <uint N, bool Plain>
static inline void fill_rows(half_stage to, thread const product &p, part at, uint row, uint c, bool first, uint lane, uint step) {
    // All lanes take part, including those without a row.
    for (; row - lane / 16 < at.rows; row += N * step) {
        reads<N> v;
        read_rows<N, Plain>(v, p, at, row, c, lane, step);
        put_rows(to, v, at, row, first, lane, step);
    }
}

// gemm_halves multiplies weights in rows with activations, both as float16.
template <uint T, uint N>
static inline void gemm_halves(thread const product &p, threadgroup uchar *tg, part at, uint lane, uint simd, uint simds) {
    const half_stage x = half_stage_of(tg);
    const bool aligned = p.in % 8 == 0;
    weight_rows w;
    PIANOLA_UNROLL
    for (uint i = 0; i < 4; i++) {
        // A row past the last repeats the last; its results are not
        // written.
        const uint row = min(at.first + 8 * i + lane / 4, p.out - 1);
        w.row[i] = p.w + (is_float(T) ? ulong(row) * p.in * element_bytes(T) : row * row_bytes(T, p.in, p.wtype));
    }
    sums<N> c;
    clear(c);
    row_pieces a;
    load_pieces<T>(a, w, lane % 4, p.in, aligned, p.wtype);
    const bool plain = is_plain(p);
    const uint row = 2 * simd + lane / 16;
    const uint step = 2 * simds;
    reads<PIANOLA_READS> v;
    if (plain) {
        read_rows<PIANOLA_READS, true>(v, p, at, row, column_of<T>(0, lane % 16), lane, step);
    }
    for (uint column = 0; column < p.in; column += PIANOLA_HALF_CHUNK) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (plain) {
            put_rows(x, v, at, row, column == 0, lane, step);
            fill_rows<PIANOLA_READS, true>(x, p, at, row + PIANOLA_READS * step, column_of<T>(column, lane % 16), column == 0, lane, step);
        } else {
            fill_rows<1, false>(x, p, at, row, column_of<T>(column, lane % 16), column == 0, lane, step);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (plain) {
            // Load the next chunk while this one is
            // multiplied.
            read_rows<PIANOLA_READS, true>(v, p, at, row, column_of<T>(column + PIANOLA_HALF_CHUNK, lane % 16), lane, step);
        }
        if (at.first >= at.high) {
            continue;
        }
        if (column != 0) {
            rescale(c, x, at.block, at.rows, lane);
        }
        // Four lanes load 64 columns of a row.
        const uint piece = column / 16 + lane % 4;
        row_pieces b;
        load_pieces<T>(b, w, piece + 4, p.in, aligned, p.wtype);
        const uint2 words = words_of<T>(piece) + (8 * at.block + lane / 4) * PIANOLA_HALF_WORDS;
        multiply_pieces<T, false>(c, a, x, words.x, lane);
        multiply_pieces<T, true>(c, a, x, words.y, lane);
        a = b;
    }
    put(c, p, at, x.unit, lane);
}

// gemm_rows multiplies all rows of x with the threadgroup's rows of W. Each SIMD group
// handles N blocks of rows of x.
template <uint T, bool Tiled, uint N>
static inline void gemm_rows(thread const product &p, threadgroup uchar *tg, uint low, uint high, uint lane, uint simd, uint simds) {
    const uint ways = PIANOLA_BLOCKS / N;
    const uint across = simds / ways;
    const uint way = simd / across;
    for (uint row = p.first; row < p.last; row += PIANOLA_ROWS) {
        // Strips begin at multiples of 16.
        for (uint first = low / 16 * 16; first < high; first += 32 * across) {
            // Surplus SIMD groups have no rows of W.
            part at = {first + simd % across * 32, low, high, row, min(p.last - row, uint(PIANOLA_ROWS)), way * N};
            if (way >= ways) {
                at.first = high;
                at.block = 0;
            }
            if (Tiled) {
                gemm_tiled<T, N>(p, tg, at, lane, simd, simds);
            } else {
                gemm_halves<T, N>(p, tg, at, lane, simd, simds);
            }
        }
    }
}

// gemm_of multiplies all rows of x with a group of rows of W.
template <uint T, bool Tiled>
static inline void gemm_of(thread const product &p, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
    const uint low = group * p.group;
    const uint high = min(low + p.group, p.out);
    // Quantized weights in rows are rare and not worth a second loop.
    const uint few = PIANOLA_BLOCKS > 2 && (Tiled || T <= PIANOLA_WTYPE_BF16) ? PIANOLA_BLOCKS / 4 : PIANOLA_BLOCKS;
    if (few < PIANOLA_BLOCKS && p.group <= simds / 4 * 32) {
        gemm_rows<T, Tiled, few>(p, tg, low, high, lane, simd, simds);
    } else {
        gemm_rows<T, Tiled, PIANOLA_BLOCKS>(p, tg, low, high, lane, simd, simds);
    }
}

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
    if (!begins(step)) {
        return;
    }
    if (group.y * p.row_group >= s.rows) {
        return;
    }
    const product a = {x, x2, w, b, y, p.in, p.out, p.x_stride, p.y_stride, p.group, group.y * p.row_group, min((group.y + 1) * p.row_group, s.rows),
                       INPUT == PIANOLA_INPUT_SILU_MUL, BIAS != 0, ACTIVATION, false, false, 0.0f, false, {}, 0.0f, WTYPE};
    if (ACT == PIANOLA_ACT_Q8 && WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemm_of<PIANOLA_WTYPE_##type, true>(a, tg, group.x, lane, simd, simds); break;
        switch (WTYPE_FAMILY) {
            PIANOLA_QUANTISED(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
    } else if (ACT == PIANOLA_ACT_F32 && WEIGHTS == PIANOLA_WEIGHTS_ROWS) {
        if (WTYPE == PIANOLA_WTYPE_F32 && p.group <= PIANOLA_NARROW && p.row_group <= PIANOLA_NARROW && is_plain(a)) {
            gemm_narrow(a, tg, group.x, lane, simd, simds);
            return;
        }
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemm_of<PIANOLA_WTYPE_##type, false>(a, tg, group.x, lane, simd, simds); break;
        switch (WTYPE_FAMILY) {
            PIANOLA_FLOATS(PIANOLA_CASE)
            PIANOLA_QUANTISED(PIANOLA_CASE)
            PIANOLA_BLOCKS_ALONE(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
    }
}
