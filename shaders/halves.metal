// Products of float16 or bfloat16 weights with a chunk of split rows. A separate command
// splits each element of x into two float16 once, so that the product only copies and
// multiplies.
//
// Both matrices are copied to threadgroup memory unchanged, several chunks of columns ahead
// of the one that is multiplied. There each row of a chunk has 128 bytes. Its 16-byte
// pieces are permuted differently in each of 8 rows, so that both the first pieces of 8
// rows and the 8 pieces of one row lie in different banks.
//
// On Hopper a warpgroup, 4 SIMD groups, multiplies 64 rows of W with all rows of x directly
// from threadgroup memory. On other GPUs a SIMD group multiplies 16 rows of W through
// registers.
#include "ahead.h"
#include "mma.h"
#include "product.h"

// Columns of a chunk, and bytes of a row of a chunk.
#define PIANOLA_CHUNK 64
#define PIANOLA_CHUNK_BYTES 128

// padded returns n columns rounded up to whole chunks.
static inline uint padded(uint n) { return (n + PIANOLA_CHUNK - 1) / PIANOLA_CHUNK * PIANOLA_CHUNK; }

// halves_bytes returns the size in bytes of a split row of n columns, n rounded up to whole
// chunks. The row consists of n high halves and n low halves, all float16, the unit, a
// float32, and 12 unused bytes.
static inline uint halves_bytes(uint n) { return 4 * n + 16; }

// PIANOLA_VECTORS is the number of vectors of a row that a thread loads at once. The
// vectors past those of all threads are loaded twice.
#define PIANOLA_VECTORS 4

// vectors are a thread's vectors of a row of the input.
struct vectors {
    float4 of[PIANOLA_VECTORS];
};

// read_vectors loads every step-th vector of a row of the input from first on, with 0 past
// its end.
template <bool Silu, bool Aligned>
static inline void read_vectors(thread vectors &v, thread const product &p, ulong row, uint first, uint step) {
    const uint count = p.in / 4;
    float4 up[PIANOLA_VECTORS];
    _Pragma("clang loop unroll(full)")
    for (uint k = 0; k < PIANOLA_VECTORS; k++) {
        const ulong at = row + 4 * min(first + k * step, count - 1);
        v.of[k] = vector_at(p.x + at, Aligned);
        up[k] = Silu ? vector_at(p.x2 + at, Aligned) : float4(0.0f);
    }
    _Pragma("clang loop unroll(full)")
    for (uint k = 0; k < PIANOLA_VECTORS; k++) {
        if (Silu) {
            v.of[k] = gated4(p.activation, v.of[k]) * up[k];
        }
        v.of[k] = first + k * step < count ? v.of[k] : float4(0.0f);
    }
}

// make_halves splits a row of the input. A threadgroup handles one row.
template <bool Silu, bool Aligned>
static inline void make_halves(device uchar *out, thread const product &p, uint row, threadgroup uchar *tg, uint lane, uint simd, uint simds) {
    const uint columns = padded(p.in);
    const uint tid = simd * 32 + lane;
    const uint threads = simds * 32;
    const ulong begin = ulong(row) * p.x_stride;
    vectors v;
    float most = 0.0f;
    // Start with the last vectors, so that the vectors with which the second pass begins are
    // still in registers.
    const uint steps = (columns / 4 + PIANOLA_VECTORS * threads - 1) / (PIANOLA_VECTORS * threads);
    for (uint i = steps; i-- > 0;) {
        read_vectors<Silu, Aligned>(v, p, begin, i * PIANOLA_VECTORS * threads + tid, threads);
        _Pragma("clang loop unroll(full)")
        for (uint k = 0; k < PIANOLA_VECTORS; k++) {
            const float4 a = abs(v.of[k]);
            most = max(most, max(max(a.x, a.y), max(a.z, a.w)));
        }
    }
    const float unit = unit_of(threadgroup_max(most, (threadgroup float *)tg, lane, simd, simds));
    // unit and its inverse are powers of two.
    const float inverse = as_type<float>((254u << 23) - as_type<uint>(unit));
    device uint2 *to = (device uint2 *)(out + ulong(row) * halves_bytes(columns));
    for (uint i = 0; i < steps; i++) {
        const uint first = i * PIANOLA_VECTORS * threads + tid;
        if (i > 0) {
            read_vectors<Silu, Aligned>(v, p, begin, first, threads);
        }
        _Pragma("clang loop unroll(full)")
        for (uint k = 0; k < PIANOLA_VECTORS; k++) {
            if (first + k * threads < columns / 4) {
                const float4 x = v.of[k] * inverse;
                const half4 words = half4(x);
                to[first + k * threads] = as_type<uint2>(words);
                to[columns / 4 + first + k * threads] = as_type<uint2>(half4(x - float4(words)));
            }
        }
    }
    if (tid == 0) {
        ((device float *)to)[columns] = unit;
    }
}

[[max_total_threads_per_threadgroup(1024)]]
kernel void halves(
        device const float *x             [[buffer(0)]],
        device const float *x2            [[buffer(1)]],
        device uchar *out                 [[buffer(2)]],
        constant pianola_halves_params &p [[buffer(8)]],
        constant pianola_second &s        [[buffer(9)]],
        device pianola_step *step         [[buffer(10)]],
        threadgroup uchar *tg             [[threadgroup(0)]],
        uint3 group                       [[threadgroup_position_in_grid]],
        uint lane                         [[thread_index_in_simdgroup]],
        uint simd                         [[simdgroup_index_in_threadgroup]],
        uint simds                        [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    product a;
    a.x = x;
    a.x2 = x2;
    a.in = p.in;
    a.x_stride = p.x_stride;
    a.activation = ACTIVATION;
    const bool aligned = p.x_stride % 4 == 0;
    if (INPUT == PIANOLA_INPUT_SILU_MUL && aligned) {
        make_halves<true, true>(out, a, group.x, tg, lane, simd, simds);
    } else if (INPUT == PIANOLA_INPUT_SILU_MUL) {
        make_halves<true, false>(out, a, group.x, tg, lane, simd, simds);
    } else if (aligned) {
        make_halves<false, true>(out, a, group.x, tg, lane, simd, simds);
    } else {
        make_halves<false, false>(out, a, group.x, tg, lane, simd, simds);
    }
}

// halves_product is the work of a threadgroup: rows of W from low to high-1 and rows of x
// from first to last-1.
struct halves_product {
    device const uchar *x;
    device const uchar *w;
    device const float *b;
    device float *y;
    uint in, out, y_stride;
    uint low, high, first, last;
    bool bias;
};

// PIANOLA_SIMDS is the number of SIMD groups of a threadgroup.
#define PIANOLA_SIMDS 8

// A stage is a chunk in threadgroup memory: 128 rows of W, 8*N rows of high halves and
// 8*N rows of low halves. Threadgroup memory holds as many stages as fit beside 1 KiB for
// alignment. One stage is being multiplied, the one before it may still be in use, and the
// others are being copied.
template <uint N>
struct stage {
    enum : uint {
        weights = 16 * PIANOLA_SIMDS * PIANOLA_CHUNK_BYTES,
        input = 8 * N * PIANOLA_CHUNK_BYTES,
        bytes = weights + 2 * input,
        count = (PIANOLA_TGMEM_GEMM_HALVES() - 1024) / bytes,
    };
};

// piece_at returns the offset of a row's piece of 8 columns.
static inline uint piece_at(uint row, uint piece) { return row * PIANOLA_CHUNK_BYTES + (piece ^ row) % 8 * 16; }

// copy_piece copies a piece, or writes zeros for a piece past the end.
static inline void copy_piece(threadgroup uchar *to, device const uchar *from, bool there) {
#ifdef PIANOLA_COPIES
    metal::shim::copy_or_zero16(to, from, there ? 16 : 0);
#else
    *(threadgroup uint4 *)to = there ? *(device const uint4 *)from : uint4(0);
#endif
}

// PIANOLA_WEIGHT_PIECES is the number of pieces of W in a stage that a thread copies: those
// of every 32nd row.
#define PIANOLA_WEIGHT_PIECES 4

// fill_stage starts to copy a chunk. Rows past the last repeat the last; their results are
// not written.
template <uint N>
static inline void fill_stage(threadgroup uchar *to, thread const halves_product &p, uint column, uint tid) {
    const uint piece = tid % 8;
    const uint c = column + 8 * piece;
    _Pragma("clang loop unroll(full)")
    for (uint k = 0; k < PIANOLA_WEIGHT_PIECES; k++) {
        const uint r = k * 32 + tid / 8;
        // A piece past the end is not read, but its address must be
        // valid.
        const ulong at = ulong(min(p.low + r, p.out - 1)) * p.in + min(c, p.in - 8);
        copy_piece(to + piece_at(r, piece), p.w + 2 * at, c < p.in);
    }
    const uint columns = padded(p.in);
    const uint rest = tid / 8 % 2;
    _Pragma("clang loop unroll(full)")
    for (uint k = 0; k < N / 2; k++) {
        const uint r = k * 16 + tid / 16;
        device const uchar *row = p.x + ulong(min(p.first + r, p.last - 1)) * halves_bytes(columns);
        copy_piece(to + stage<N>::weights + rest * stage<N>::input + piece_at(r, piece), row + 2 * (rest * columns + c), true);
    }
}

// convert_stage converts the bfloat16 pieces that this thread has copied to float16. A
// weight below 2^-14 loses at most 2^-25. A value beyond float16's range becomes its
// largest number.
template <uint T>
static inline void convert_stage(threadgroup uchar *at, uint tid) {
    if (T == PIANOLA_WTYPE_F16) {
        return;
    }
    _Pragma("clang loop unroll(full)")
    for (uint k = 0; k < PIANOLA_WEIGHT_PIECES; k++) {
        threadgroup uint4 *piece = (threadgroup uint4 *)(at + piece_at(k * 32 + tid / 8, tid % 8));
        const uint4 v = *piece;
        *piece = uint4(halves4(four_of<T>(v.xy)), halves4(four_of<T>(v.zw)));
    }
}

// commit_stage ends the copies that fill_stage has started. wait_stage waits until all but
// the last Left stages are complete.
static inline void commit_stage() {
#ifdef PIANOLA_COPIES
    metal::shim::commit_copies();
#endif
}

template <uint Left>
static inline void wait_stage() {
#ifdef PIANOLA_COPIES
    metal::shim::wait_copies<Left>();
#endif
}

// halves_sums are the sums of a SIMD group: for 16 rows of W and each of N blocks of 8 rows
// of x, four values in the layout of mma_16x8x16.
template <uint N>
struct halves_sums {
    float of[4 * N];
};

// multiply_stage adds the products of a chunk.
#ifdef PIANOLA_WARPGROUPS
template <uint N>
static inline void multiply_stage(thread halves_sums<N> &c, threadgroup const uchar *from, uint lane, uint simd) {
    (void)lane;
    const ulong w = metal::shim::matrix_at(from + simd / 4 * 64 * PIANOLA_CHUNK_BYTES);
    const ulong x = metal::shim::matrix_at(from + stage<N>::weights);
    metal::shim::begin_products();
    _Pragma("clang loop unroll(full)")
    for (uint k = 0; k < PIANOLA_CHUNK / 16; k++) {
        // Matrix addresses are in units of 16 bytes.
        metal::shim::multiply_shared<N>(c.of, w + 2 * k, x + stage<N>::input / 16 + 2 * k);
        metal::shim::multiply_shared<N>(c.of, w + 2 * k, x + 2 * k);
    }
    metal::shim::commit_products();
}
#else
// word_of returns a word of a piece of a row.
static inline uint word_of(threadgroup const uchar *rows, uint row, uint piece, uint i) {
    return *(threadgroup const uint *)(rows + piece_at(row, piece) + 4 * i);
}

template <uint N>
static inline void multiply_stage(thread halves_sums<N> &c, threadgroup const uchar *from, uint lane, uint simd) {
    const uint g = lane / 4;
    const uint j = lane % 4;
    const uint row = 16 * simd + g;
    _Pragma("clang loop unroll(disable)")
    for (uint k = 0; k < PIANOLA_CHUNK / 16; k++) {
        const uint4 a = uint4(word_of(from, row, 2 * k, j), word_of(from, row + 8, 2 * k, j), word_of(from, row, 2 * k + 1, j), word_of(from, row + 8, 2 * k + 1, j));
        _Pragma("clang loop unroll(full)")
        for (uint rest = 2; rest-- > 0;) {
            threadgroup const uchar *x = from + stage<N>::weights + rest * stage<N>::input;
            _Pragma("clang loop unroll(full)")
            for (uint n = 0; n < N; n++) {
                const uint2 b = uint2(word_of(x, 8 * n + g, 2 * k, j), word_of(x, 8 * n + g, 2 * k + 1, j));
                const float4 v = mma_16x8x16(a, b, float4(c.of[4 * n], c.of[4 * n + 1], c.of[4 * n + 2], c.of[4 * n + 3]), lane);
                c.of[4 * n] = v.x;
                c.of[4 * n + 1] = v.y;
                c.of[4 * n + 2] = v.z;
                c.of[4 * n + 3] = v.w;
            }
        }
    }
}
#endif

// put_sums writes the sums, each multiplied by the unit of its row of x.
template <uint N>
static inline void put_sums(thread const halves_sums<N> &c, thread const halves_product &p, uint lane, uint simd) {
    const uint columns = padded(p.in);
    _Pragma("clang loop unroll(full)")
    for (uint n = 0; n < N; n++) {
        _Pragma("clang loop unroll(full)")
        for (uint k = 0; k < 2; k++) {
            const uint r = p.first + 8 * n + lane % 4 * 2 + k;
            if (r >= p.last) {
                continue;
            }
            const float unit = ((device const float *)(p.x + ulong(r) * halves_bytes(columns)))[columns];
            _Pragma("clang loop unroll(full)")
            for (uint i = 0; i < 2; i++) {
                const uint o = p.low + 16 * simd + 8 * i + lane / 4;
                if (o < p.high) {
                    p.y[ulong(r) * p.y_stride + o] = c.of[4 * n + 2 * i + k] * unit + (p.bias ? p.b[o] : 0.0f);
                }
            }
        }
    }
}

// gemm_chunks multiplies one chunk after the other. At the barrier before a chunk every
// SIMD group has finished the chunk before the previous one, so its stage can be filled
// again.
template <uint T, uint N>
static inline void gemm_chunks(thread const halves_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    typedef stage<N> S;
    const uint tid = simd * 32 + lane;
#ifdef PIANOLA_WARPGROUPS
    tg = metal::shim::aligned_matrix(tg);
#endif
    halves_sums<N> c;
    _Pragma("clang loop unroll(full)")
    for (uint i = 0; i < 4 * N; i++) {
        c.of[i] = 0.0f;
    }
    _Pragma("clang loop unroll(disable)")
    for (uint i = 0; i + 2 < S::count; i++) {
        if (i * PIANOLA_CHUNK < p.in) {
            fill_stage<N>(tg + i * S::bytes, p, i * PIANOLA_CHUNK, tid);
        }
        commit_stage();
    }
    uint from = 0;
    uint to = S::count - 2;
    for (uint column = 0; column < p.in; column += PIANOLA_CHUNK) {
        wait_stage<S::count - 3>();
        convert_stage<T>(tg + from * S::bytes, tid);
#ifdef PIANOLA_WARPGROUPS
        metal::shim::publish();
#endif
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply_stage<N>(c, tg + from * S::bytes, lane, simd);
        const uint next = column + (S::count - 2) * PIANOLA_CHUNK;
        if (next < p.in) {
            fill_stage<N>(tg + to * S::bytes, p, next, tid);
        }
        commit_stage();
#ifdef PIANOLA_WARPGROUPS
        metal::shim::wait_products<1>();
#endif
        from = from + 1 == S::count ? 0 : from + 1;
        to = to + 1 == S::count ? 0 : to + 1;
    }
#ifdef PIANOLA_WARPGROUPS
    metal::shim::end_products<N>(c.of);
#endif
    put_sums(c, p, lane, simd);
}

// gemm_shape selects the shape: 64 or 128 rows of x.
template <uint T>
static inline void gemm_shape(thread const halves_product &p, threadgroup uchar *tg, uint row_group, uint lane, uint simd) {
    if (row_group > 64) {
        gemm_chunks<T, 16>(p, tg, lane, simd);
    } else {
        gemm_chunks<T, 8>(p, tg, lane, simd);
    }
}

[[max_total_threads_per_threadgroup(256)]]
kernel void gemm_halves(
        device const uchar *x                  [[buffer(0)]],
        device const uchar *w                  [[buffer(1)]],
        device const float *b                  [[buffer(2)]],
        device float *y                        [[buffer(3)]],
        constant pianola_gemm_halves_params &p [[buffer(8)]],
        constant pianola_second &s             [[buffer(9)]],
        device pianola_step *step              [[buffer(10)]],
        threadgroup uchar *tg                  [[threadgroup(0)]],
        uint3 group                            [[threadgroup_position_in_grid]],
        uint3 groups                           [[threadgroups_per_grid]],
        uint lane                              [[thread_index_in_simdgroup]],
        uint simd                              [[simdgroup_index_in_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
#if !defined(PIANOLA_NVPTX) || PIANOLA_SM >= 90 // other processors have too little threadgroup memory
    // Threadgroups that run at the same time share rows of W: all rows of x
    // with some rows of W come first, then all rows of x with the next.
    const uint across = (s.rows + p.row_group - 1) / p.row_group;
    const uint at = group.y * groups.x + group.x;
    if (at >= groups.x * across) {
        return;
    }
    const uint low = at / across * p.group;
    const uint first = at % across * p.row_group;
    const halves_product a = {x, w, b, y, p.in, p.out, p.y_stride, low, min(low + p.group, p.out), first, min(first + p.row_group, s.rows), BIAS != 0};
    switch (WTYPE) {
    case PIANOLA_WTYPE_F16: gemm_shape<PIANOLA_WTYPE_F16>(a, tg, p.row_group, lane, simd); break;
    case PIANOLA_WTYPE_BF16: gemm_shape<PIANOLA_WTYPE_BF16>(a, tg, p.row_group, lane, simd); break;
    default: break;
    }
#endif
}
