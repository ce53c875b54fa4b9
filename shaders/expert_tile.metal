// Products of the rows of a chunk with the matrices of their experts, for NVIDIA GPUs. The rows of each
// expert are multiplied together.
//
// A threadgroup computes 128 rows of one expert's matrix for up to 64 of its products, 64 columns at a
// time, as gemm_halves does (chunks.h): four SIMD groups fill threadgroup memory, and eight multiply, each 16
// rows of W with all rows of x. The rows of x and of the result are those that the list of expert_rows names.
// An expert often has few rows, so reading the weights takes most of the time. Therefore a multiprocessor has
// room for two threadgroups, and quantised weights are copied as they are, a run of up to 256 columns ahead, and
// become float16 in threadgroup memory.
#include "chunks.h"
#include "expert_tile.h"

// PIANOLA_EXPERT_OUT is the number of rows of W of a threadgroup, and PIANOLA_EXPERT_ROWS of x.
#define PIANOLA_EXPERT_OUT 128
#define PIANOLA_EXPERT_ROWS 64

#if !defined(PIANOLA_NVPTX) || PIANOLA_SM >= 90 // other processors have too little threadgroup memory

// expert_memory describes the threadgroup memory: chunks of 64 columns of W as float16 and of x, and two runs
// of quantised weights. Then there are the units and the numbers of the products. If weights are floats, as many
// chunks of W as of x are copied ahead.
template <uint T>
struct expert_memory {
    enum : uint {
        floats = T <= PIANOLA_WTYPE_BF16 ? 1 : 0,
        inputs = floats != 0 ? 4 : 3,
        weights = floats != 0 ? 4 : 2,
        input = PIANOLA_EXPERT_ROWS * PIANOLA_CHUNK_BYTES,
        weight = PIANOLA_EXPERT_OUT * PIANOLA_CHUNK_BYTES,
        first_input = weights * weight,
        first_run = first_input + inputs * input,
        units = PIANOLA_TGMEM_EXPERT_GEMM() - 8 * PIANOLA_EXPERT_ROWS,
    };
    // columns returns the columns of a run, whole blocks, and bytes its size in bytes in a strip.
    static inline uint columns() { return T == PIANOLA_WTYPE_Q8_0 ? 128 : 256; }
    static inline uint bytes() { return columns() / (32 * tile_form_of(T).tiles) * tile_form_of(T).bytes; }
    static inline threadgroup uchar *run(threadgroup uchar *tg, uint i) { return tg + first_run + i % 2 * (PIANOLA_EXPERT_OUT / 16) * bytes(); }
};

// expert_product is the work of a threadgroup: rows of W from low on, and rows products from first on in
// the list of all products.
struct expert_product {
    device const uchar *x;
    device const uchar *w;
    device const float *b;
    device const uint *list;
    device float *y;
    uint in, out, y_stride;
    uint low, first, rows;
    uint count, share; // products of the chunk, and those that share a row of x
    bool bias;
};

// product_of returns the number of a product of the threadgroup. Those past the last repeat the last.
static inline uint product_of(thread const expert_product &p, uint r) { return min(p.list[p.first + min(r, p.rows - 1)], p.count - 1); }

// input_of returns the input of a product.
static inline device const uchar *input_of(thread const expert_product &p, uint product) { return p.x + ulong(product / p.share) * halves_bytes(padded(p.in), 1); }

// expert_inputs are the rows of x that a thread copies, every 16th.
struct expert_inputs {
    device const uchar *of[PIANOLA_EXPERT_ROWS / 16];
};

// fill_input starts to copy a chunk of x.
static inline void fill_input(threadgroup uchar *to, thread const expert_inputs &x, thread const expert_product &p, uint column, uint tid) {
    if (column >= p.in) {
        return;
    }
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_EXPERT_ROWS / 16; k++) {
        if (16 * k < p.rows) {
            copy_piece(to + piece_at(16 * k + tid / 8, tid % 8), x.of[k] + 2 * (column + tid % 8 * 8), true);
        }
    }
}

// fill_floats starts to copy a chunk of float weights. Rows past the last repeat the last; their results are
// not written.
static inline void fill_floats(threadgroup uchar *to, thread const expert_product &p, uint column, uint tid) {
    if (column >= p.in) {
        return;
    }
    const uint c = column + tid % 8 * 8;
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_EXPERT_OUT / 16; k++) {
        const uint r = 16 * k + tid / 8;
        // A piece past the end is not read, but its address must be valid.
        copy_piece(to + piece_at(r, tid % 8), p.w + 2 * (ulong(min(p.low + r, p.out - 1)) * p.in + min(c, p.in - 8)), c < p.in);
    }
}

// fill_run starts to copy run i of quantised weights. 16 threads copy the run of a strip. Strips past the
// last repeat the last.
template <uint T>
static inline void fill_run(threadgroup uchar *tg, thread const expert_product &p, uint i, uint tid) {
    typedef expert_memory<T> S;
    const uint strip = uint(strip_bytes(T, p.in, T));
    const uint at = i * S::bytes();
    const uint bytes = min(S::bytes(), strip - min(at, strip));
    device const uchar *from = p.w + ulong(min(p.low / 16 + tid / 16, p.out / 16 - 1)) * strip + at;
    threadgroup uchar *to = S::run(tg, i) + tid / 16 * S::bytes();
    _Pragma("clang loop unroll(disable)")
    for (uint k = tid % 16 * 16; k < bytes; k += 256) {
        copy_piece(to + k, from + k, true);
    }
}

// scale_bits returns a scale of MXFP4 as the bits of a float16. Scales beyond 2^12, with which weights would be
// out of float16's range, count as 2^12, and those below 2^-24 as 0; real ones are far from both.
static inline uint scale_bits(uint e) { return as_type<ushort>(half(min(half_e8m0(e), 4096.0f))); }

// take_row_tile reads row r of a tile in threadgroup memory; see load_row_tile.
template <uint T>
static inline void take_row_tile(thread row_tile &t, threadgroup const uchar *strip, uint tile, uint r) {
    const tile_form f = tile_form_of(T);
    threadgroup const uchar *block = strip + tile / f.tiles * f.bytes;
    const uint k = tile % f.tiles;
    threadgroup const uchar *quants = block + f.quants + k * f.quants_step + 4 * r;
    PIANOLA_UNROLL
    for (uint i = 0; i < 8; i++) {
        t.words[i] = i < f.parts ? *(threadgroup const uint *)(quants + 64 * i) : 0;
    }
    t.high[0] = f.high != 0 ? *(threadgroup const uint *)(quants + f.high) : 0;
    t.high[1] = has_sixes(T) ? *(threadgroup const uint *)(quants + f.high + 64) : 0;
    if (has_e8m0(T)) {
        t.d = scale_bits(block[f.d + r]);
    } else {
        t.d = has_ue4m3(T) ? 0 : *(threadgroup const ushort *)(block + f.d + 2 * r);
    }
    t.m = has_minimum(T) ? *(threadgroup const ushort *)(block + f.m + 2 * r) : 0;
    threadgroup const uchar *scales = block + f.scales + k * f.scales_step + r;
    t.scales[0] = has_scales(T) ? scales[0] : 0;
    t.scales[1] = has_scales(T) && scale_words(T) == 2 ? scales[16] : 0;
}

// expand_run converts a chunk of quantised weights to float16. A tile past the end repeats the last; the
// input is 0 there.
template <uint T>
static inline void expand_run(threadgroup uchar *to, threadgroup uchar *tg, thread const expert_product &p, uint column, uint lane, uint filler) {
    typedef expert_memory<T> S;
    if (column >= p.in) {
        return;
    }
    const uint run = column / S::columns();
    const uint tile = min(column / 32 + lane / 16, p.in / 32 - 1) - run * (S::columns() / 32);
    PIANOLA_UNROLL
    for (uint part = 0; part < PIANOLA_EXPERT_OUT / 16; part += PIANOLA_FILLERS) {
        const uint strip = part + filler;
        row_tile t;
        take_row_tile<T>(t, S::run(tg, run) + strip * S::bytes(), tile, lane % 16);
        const tile_pieces w = expand_row<T>(t);
        PIANOLA_UNROLL
        for (uint i = 0; i < 4; i++) {
            *(threadgroup uint4 *)(to + piece_at(16 * strip + lane % 16, lane / 16 * 4 + i)) = w.of[i];
        }
    }
}

// expert_sums are the sums of a SIMD group, as halves_sums.
typedef halves_sums<PIANOLA_EXPERT_ROWS / 8> expert_sums;

// multiply_rows adds the products of the SIMD group's 16 rows of W with the first N blocks of 8 rows of a
// chunk of x.
template <uint N>
static inline void multiply_rows(thread expert_sums &c, threadgroup const uchar *weights, threadgroup const uchar *input, uint lane, uint simd) {
    const uint g = lane / 4;
    const uint j = lane % 4;
    const uint row = 16 * simd + g;
    _Pragma("clang loop unroll(disable)")
    for (uint k = 0; k < PIANOLA_CHUNK / 16; k++) {
        const uint4 a = uint4(word_of(weights, row, 2 * k, j), word_of(weights, row + 8, 2 * k, j), word_of(weights, row, 2 * k + 1, j), word_of(weights, row + 8, 2 * k + 1, j));
        PIANOLA_UNROLL
        for (uint n = 0; n < N; n++) {
            add_product(c.of + 4 * n, a, uint2(word_of(input, 8 * n + g, 2 * k, j), word_of(input, 8 * n + g, 2 * k + 1, j)), lane);
        }
    }
}

// put_products writes the sums, each multiplied by the unit of its input.
static inline void put_products(thread const expert_sums &c, thread const expert_product &p, threadgroup const uchar *units, uint lane, uint simd) {
    const uint o = p.low + 16 * simd + lane / 4;
    const float2 bias = p.bias ? float2(p.b[min(o, p.out - 1)], p.b[min(o + 8, p.out - 1)]) : float2(0.0f);
    PIANOLA_UNROLL
    for (uint n = 0; n < PIANOLA_EXPERT_ROWS / 8; n++) {
        PIANOLA_UNROLL
        for (uint k = 0; k < 2; k++) {
            const uint row = 8 * n + lane % 4 * 2 + k;
            if (row < p.rows) {
                const float unit = ((threadgroup const float *)units)[row];
                device float *y = p.y + ulong(((threadgroup const uint *)units)[PIANOLA_EXPERT_ROWS + row]) * p.y_stride + o;
                if (o < p.out) {
                    y[0] = c.of[4 * n + k] * unit + bias.x;
                }
                if (o + 8 < p.out) {
                    y[8] = c.of[4 * n + 2 + k] * unit + bias.y;
                }
            }
        }
    }
}

// expert_chunks computes a threadgroup's products. At the barrier before a chunk, it is in threadgroup memory,
// and the previous one is no longer used. A run of quantised weights has at least two chunks; it is copied one run
// ahead and expanded one chunk ahead.
template <uint T>
static inline void expert_chunks(thread const expert_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    typedef expert_memory<T> S;
    const bool fills = simd >= PIANOLA_SIMDS;
    const uint filler = simd - PIANOLA_SIMDS;
    const uint tid = filler * 32 + lane;
    threadgroup uchar *inputs = tg + S::first_input;
    expert_inputs x;
    if (fills) {
        PIANOLA_UNROLL
        for (uint k = 0; k < PIANOLA_EXPERT_ROWS / 16; k++) {
            x.of[k] = input_of(p, product_of(p, 16 * k + tid / 8));
        }
        if (S::floats != 0) {
            PIANOLA_UNROLL
            for (uint i = 0; i + 1 < S::inputs; i++) {
                fill_input(inputs + i * S::input, x, p, i * PIANOLA_CHUNK, tid);
                fill_floats(tg + i * S::weight, p, i * PIANOLA_CHUNK, tid);
                commit_stage();
            }
        } else {
            fill_run<T>(tg, p, 0, tid);
            commit_stage();
            fill_run<T>(tg, p, 1, tid);
            fill_input(inputs, x, p, 0, tid);
            commit_stage();
            fill_input(inputs + S::input, x, p, PIANOLA_CHUNK, tid);
            commit_stage();
            wait_stage<2>();
        }
    } else if (simd * 32 + lane < PIANOLA_EXPERT_ROWS) {
        const uint r = simd * 32 + lane;
        const uint product = product_of(p, r);
        ((threadgroup float *)(tg + S::units))[r] = *(device const float *)(input_of(p, product) + 2 * padded(p.in));
        ((threadgroup uint *)(tg + S::units))[PIANOLA_EXPERT_ROWS + r] = product;
    }
    if (S::floats == 0) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (fills) {
            expand_run<T>(tg, tg, p, 0, lane, filler);
        }
    }
    expert_sums c;
    clear_sums<PIANOLA_EXPERT_ROWS / 8>(c);
    uint from = 0;              // the chunk of x
    uint to = S::inputs - 1;    // the next that is copied
    uint weight = 0;            // the chunk of quantised weights
    _Pragma("clang loop unroll(disable)")
    for (uint column = 0; column < p.in; column += PIANOLA_CHUNK) {
        threadgroup uchar *weights = tg + (S::floats != 0 ? from : weight) * S::weight;
        if (fills) {
            wait_stage<S::inputs - 2>();
            if (T == PIANOLA_WTYPE_BF16) {
                convert_chunk<PIANOLA_EXPERT_OUT>(weights, tid);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (fills) {
            fill_input(inputs + to * S::input, x, p, column + (S::inputs - 1) * PIANOLA_CHUNK, tid);
            const uint next = column + PIANOLA_CHUNK;
            if (S::floats != 0) {
                fill_floats(tg + to * S::weight, p, column + (S::inputs - 1) * PIANOLA_CHUNK, tid);
            } else if (next % S::columns() == 0) {
                fill_run<T>(tg, p, next / S::columns() + 1, tid);
            }
            commit_stage();
            if (S::floats == 0) {
                expand_run<T>(tg + (weight ^ 1) * S::weight, tg, p, next, lane, filler);
            }
        } else if (p.rows > 32) {
            multiply_rows<8>(c, weights, inputs + from * S::input, lane, simd);
        } else if (p.rows > 16) {
            multiply_rows<4>(c, weights, inputs + from * S::input, lane, simd);
        } else {
            multiply_rows<2>(c, weights, inputs + from * S::input, lane, simd);
        }
        from = from + 1 == S::inputs ? 0 : from + 1;
        to = to + 1 == S::inputs ? 0 : to + 1;
        weight ^= 1;
    }
    if (!fills) {
        put_products(c, p, tg + S::units, lane, simd);
    }
}
#endif

// A threadgroup computes rows of one expert's matrix for some of the expert's products.
[[max_total_threads_per_threadgroup(384)]]
kernel void expert_gemm(
        device const uchar *x                  [[buffer(0)]],
        device const uchar *w                  [[buffer(1)]],
        device const float *b                  [[buffer(2)]],
        device const uint *list                [[buffer(3)]],
        device float *y                        [[buffer(4)]],
        constant pianola_expert_gemm_params &p [[buffer(8)]],
        constant pianola_second &s             [[buffer(9)]],
        device pianola_step *step              [[buffer(10)]],
        threadgroup uchar *tg                  [[threadgroup(0)]],
        uint3 group                            [[threadgroup_position_in_grid]],
        uint lane                              [[thread_index_in_simdgroup]],
        uint simd                              [[simdgroup_index_in_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
#if !defined(PIANOLA_NVPTX) || PIANOLA_SM >= 90
    const uint count = s.rows * p.used;
    const expert_tile t = expert_tile_of(list, p.experts, PIANOLA_EXPERT_ROWS, group.y, lane);
    const uint last = min(t.last, count);
    const uint low = group.x * PIANOLA_EXPERT_OUT;
    if (t.first >= last || low >= p.out) {
        return;
    }
    const ulong bytes = WEIGHTS == PIANOLA_WEIGHTS_TILED16 ? p.out / 16 * strip_bytes(WTYPE, p.in, WTYPE) : ulong(p.out) * p.in * 2;
    const expert_product a = {x, w + t.expert * bytes, b + ulong(t.expert) * p.out, list + p.experts + 1, y,
                              p.in, p.out, p.y_stride, low, t.first, last - t.first, count, p.share, BIAS != 0};
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: expert_chunks<PIANOLA_WTYPE_##type>(a, tg, lane, simd); break;
    switch (WTYPE) {
        PIANOLA_CASE(F16)
        PIANOLA_CASE(BF16)
        PIANOLA_EXPANDED(PIANOLA_CASE)
        PIANOLA_CASE(MXFP4)
    default: break;
    }
#undef PIANOLA_CASE
#endif
}
