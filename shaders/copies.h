// Products of a chunk of rows on Hopper; see chunks.h. Included by it.
#ifndef PIANOLA_COPIES_H
#define PIANOLA_COPIES_H

// Rows of W or of x that the copy unit copies at once, of a chunk of columns. A descriptor describes
// such a box.
#define PIANOLA_BOX 64
#define PIANOLA_BOX_BYTES (PIANOLA_BOX * PIANOLA_CHUNK_BYTES)

// PIANOLA_MAP is the size of a descriptor in bytes: that of x, then that of w.
#define PIANOLA_MAP 128

// stage_ring is a thread's place in the ring of stages. Each stage has three barriers in threadgroup
// memory: raw is complete when the copy unit has written the stage, ready when the stage can be
// multiplied, and free when both warpgroups have multiplied it. The phase of a barrier is the
// parity of the number of rounds.
struct stage_ring {
    uint barriers; // the address of the first stage's
    uint count;
    uint at;    // stage
    uint phase; // 0 in the first round
};

static inline uint raw_of(thread const stage_ring &r) { return r.barriers + 24 * r.at; }
static inline uint ready_of(thread const stage_ring &r) { return r.barriers + 24 * r.at + 8; }
static inline uint free_of(thread const stage_ring &r) { return r.barriers + 24 * r.at + 16; }

static inline void next_stage(thread stage_ring &r) {
    r.at++;
    if (r.at == r.count) {
        r.at = 0;
        r.phase ^= 1;
    }
}

// begin_ring initialises the barriers. All threads must call it.
static inline void begin_ring(thread const stage_ring &r, uint tid) {
    if (tid == 0) {
        stage_ring one = r;
        for (one.at = 0; one.at < r.count; one.at++) {
            metal::shim::barrier_begin(raw_of(one), 1);
            metal::shim::barrier_begin(ready_of(one), PIANOLA_FILLERS);
            metal::shim::barrier_begin(free_of(one), 2);
        }
        metal::shim::barriers_begun();
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// copy_stage makes the copy unit fill a stage, but for quantised weights. One thread calls it, when
// the stage is free.
template <uint T, uint Terms, uint M, uint N>
static inline void copy_stage(uint to, uint barrier, thread const halves_product &p, uint column) {
    typedef stage<T, Terms, M, N> S;
    metal::shim::barrier_expect(barrier, S::chunks * (S::copied * S::weights + Terms * S::input));
    PIANOLA_UNROLL
    for (uint i = 0; i < S::chunks; i++) {
        const uint chunk = to + i * S::chunk;
        const uint c = column + i * PIANOLA_CHUNK;
        if (S::copied != 0) {
            PIANOLA_UNROLL
            for (uint k = 0; k < M / PIANOLA_BOX; k++) {
                metal::shim::copy_box(chunk + k * PIANOLA_BOX_BYTES, p.maps + PIANOLA_MAP, c, p.low + k * PIANOLA_BOX, barrier);
            }
        }
        PIANOLA_UNROLL
        for (uint k = 0; k < Terms * N / 8; k++) {
            const uint rest = k / (N / 8);
            metal::shim::copy_box(chunk + S::weights + k * PIANOLA_BOX_BYTES, p.maps, rest * padded(p.in) + c, p.first + k % (N / 8) * PIANOLA_BOX, barrier);
        }
    }
}

// stage_ready ends the filling of a stage by a SIMD group.
static inline void stage_ready(thread const stage_ring &ring, uint lane) {
    metal::shim::publish();
    metal::shim::simdgroup_wait();
    if (lane == 0) {
        metal::shim::barrier_arrive(ready_of(ring));
    }
}

// fill_quants expands a lane's part of a stage of quantised weights when the stage is free, and then
// loads the rows of tiles of the stage after the next.
template <uint T, uint Terms, uint M, uint N, uint Sums>
static inline void fill_quants(thread stage_ring &ring, thread quant_rows &q, thread const halves_product &p, threadgroup uchar *tg, uint column, uint lane, uint filler) {
    typedef stage<T, Terms, M, N> S;
    if (column >= last_column<Sums>(p)) {
        return;
    }
    metal::shim::barrier_wait(free_of(ring), ring.phase ^ 1);
    threadgroup uchar *to = tg + ring.at * S::bytes;
    if (filler == 0 && lane == 0) {
        copy_stage<T, Terms, M, N>(metal::shim::shared_address(to), raw_of(ring), p, column);
    }
    expand_rows<T, Terms, M, N>(to, q, lane, filler);
    stage_ready(ring, lane);
    load_rows<T, M>(q, p, column + 2 * S::columns, lane, filler);
    next_stage(ring);
}

// PIANOLA_REQUEST is the number of columns that are requested at a time, those of a large block.
#define PIANOLA_REQUEST 256

// request_quants requests the quantised weights of the threadgroup's rows some columns ahead of a stage.
template <uint T>
static inline void request_quants(thread const halves_product &p, uint column, uint lane, uint filler) {
    if (p.ahead != 0 && column % PIANOLA_REQUEST == 0 && filler == 1 && lane < 8) {
        request_strip<T>(p, p.low / 16 + lane, column + p.ahead, column + p.ahead + PIANOLA_REQUEST);
    }
}

// fill_stages fills all stages in turn.
template <uint T, uint Terms, uint M, uint N, uint Sums>
static inline void fill_stages(thread stage_ring &ring, thread const halves_product &p, threadgroup uchar *tg, uint lane, uint filler) {
    typedef stage<T, Terms, M, N> S;
    const bool copies = filler == 0 && lane == 0;
    const uint begin = first_column<Sums>(p);
    const uint end = last_column<Sums>(p);
    if (copies) {
        metal::shim::use_map(p.maps);
    }
    if (copies && S::copied != 0) {
        metal::shim::use_map(p.maps + PIANOLA_MAP);
    }
    if (S::copied == 0) {
        quant_rows first;
        quant_rows second;
        load_rows<T, M>(first, p, begin, lane, filler);
        load_rows<T, M>(second, p, begin + S::columns, lane, filler);
        _Pragma("clang loop unroll(disable)")
        for (uint column = begin; column < end; column += 2 * S::columns) {
            request_quants<T>(p, column, lane, filler);
            fill_quants<T, Terms, M, N, Sums>(ring, first, p, tg, column, lane, filler);
            fill_quants<T, Terms, M, N, Sums>(ring, second, p, tg, column + S::columns, lane, filler);
        }
        return;
    }
    if (T != PIANOLA_WTYPE_BF16 && !copies) {
        return;
    }
    stage_ring ahead = ring; // the next stage to copy
    uint next = begin;
    _Pragma("clang loop unroll(disable)")
    for (uint column = begin; column < end; column += S::columns) {
        // A stage can be copied again only after it was multiplied, and bfloat16 must be converted
        // before: then copies are one stage less ahead.
        _Pragma("clang loop unroll(disable)")
        while (copies && next < end && next < column + (S::count - 1) * S::columns) {
            metal::shim::barrier_wait(free_of(ahead), ahead.phase ^ 1);
            copy_stage<T, Terms, M, N>(metal::shim::shared_address(tg) + ahead.at * S::bytes, raw_of(ahead), p, next);
            next_stage(ahead);
            next += S::columns;
        }
        if (T == PIANOLA_WTYPE_BF16) {
            metal::shim::simdgroup_wait();
            metal::shim::barrier_wait(raw_of(ring), ring.phase);
            PIANOLA_UNROLL
            for (uint i = 0; i < S::chunks; i++) {
                convert_chunk<M>(tg + ring.at * S::bytes + i * S::chunk, filler * 32 + lane);
            }
            stage_ready(ring, lane);
            next_stage(ring);
        }
    }
}

// multiply_chunk starts to add the products of 64 rows of W with a chunk of the input.
template <uint Terms, uint N>
static inline void multiply_chunk(thread halves_sums<N> &c, threadgroup const uchar *weights, threadgroup const uchar *input) {
    const ulong w = metal::shim::matrix_at(weights);
    const ulong x = metal::shim::matrix_at(input);
    metal::shim::begin_products();
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_CHUNK / 16; k++) {
        PIANOLA_UNROLL
        for (uint rest = Terms; rest-- > 0;) {
            // Matrix addresses are in units of 16 bytes.
            metal::shim::multiply_shared<N>(c.of, w + 2 * k, x + rest * (8 * N * PIANOLA_CHUNK_BYTES / 16) + 2 * k);
        }
    }
    metal::shim::commit_products();
}

// segment_sums are a threadgroup's sums of segments of columns: c of the last one, and of those before it their
// sum, of[0], or in a cluster each by itself, the latest last. A threadgroup of a cluster of two has four
// segments, for which there are registers only with 64 rows of x.
template <uint N, uint Sums>
struct segment_sums {
    enum : uint { before = Sums == PIANOLA_SUMS_CLUSTER && N == 8 ? 3 : 1 };
    halves_sums<N> of[before];
    halves_sums<N> c;
};

template <uint N, uint Sums>
static inline void clear_segments(thread segment_sums<N, Sums> &s) {
    PIANOLA_UNROLL
    for (uint i = 0; i < segment_sums<N, Sums>::before; i++) {
        clear_sums<N>(s.of[i]);
    }
    clear_sums<N>(s.c);
}

// end_segment ends a segment that another one follows.
template <uint N, uint Sums>
static inline void end_segment(thread segment_sums<N, Sums> &s) {
    typedef segment_sums<N, Sums> S;
    if (Sums == PIANOLA_SUMS_ADDED) {
        add_sums<N>(s.of[0], s.c);
        return;
    }
    PIANOLA_UNROLL
    for (uint i = 0; i + 1 < S::before; i++) {
        s.of[i] = s.of[i + 1];
    }
    s.of[S::before - 1] = s.c;
    clear_sums<N>(s.c);
}

// multiply_stages multiplies all stages in turn. While a stage is multiplied, the thread waits for the
// next one.
template <uint T, uint Terms, uint M, uint N, uint Sums>
static inline void multiply_stages(thread segment_sums<N, Sums> &sums, thread stage_ring &ring, thread const halves_product &p, threadgroup const uchar *tg, uint lane, uint simd) {
    typedef stage<T, Terms, M, N> S;
    const bool first = simd % 4 == 0 && lane == 0;
    uint before = 0; // the barrier free of the stage before
    const uint begin = first_column<Sums>(p);
    const uint end = last_column<Sums>(p);
    const uint segment = segment_columns(p.in);
    uint border = begin + segment;
    _Pragma("clang loop unroll(disable)")
    for (uint column = begin; column < end; column += S::columns) {
        bool freed = false; // the stage before
        if (Sums != PIANOLA_SUMS_WHOLE && Sums != PIANOLA_SUMS_APART && column == border) {
            metal::shim::end_products<N>(sums.c.of);
            if (first) {
                metal::shim::barrier_arrive(before);
            }
            freed = true;
            end_segment<N, Sums>(sums);
            border += segment;
        }
        metal::shim::barrier_wait(raw_of(ring), ring.phase);
        if (T != PIANOLA_WTYPE_F16) {
            metal::shim::barrier_wait(ready_of(ring), ring.phase);
        }
        threadgroup const uchar *chunk = tg + ring.at * S::bytes + (M == 128 ? 0 : simd / 4 * S::chunk);
        multiply_chunk<Terms, N>(sums.c, chunk + (M == 128 ? simd / 4 * 64 * PIANOLA_CHUNK_BYTES : 0), chunk + S::weights);
        if (column > begin && !freed) {
            metal::shim::wait_products<1>();
            if (first) {
                metal::shim::barrier_arrive(before);
            }
        }
        before = free_of(ring);
        next_stage(ring);
    }
    metal::shim::end_products<N>(sums.c.of);
    if (Sums == PIANOLA_SUMS_APART && begin < end && first) {
        metal::shim::barrier_arrive(before); // another segment may follow
    }
}

// multiply_apart multiplies the segments of a threadgroup and writes the sums of each. Each has a loop of its own: the
// assembler runs products one after the other if the loop that starts them changes their sums.
template <uint T, uint Terms, uint M, uint N>
static inline void multiply_apart(thread stage_ring &ring, thread halves_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    sums_barrier(); // for the units
    halves_product one = p;
    const uint segment = segment_columns(p.in);
    _Pragma("clang loop unroll(disable)")
    do {
        one.end = min(one.begin + segment, p.end);
        segment_sums<N, PIANOLA_SUMS_APART> sums;
        clear_sums<N>(sums.c);
        multiply_stages<T, Terms, M, N, PIANOLA_SUMS_APART>(sums, ring, one, tg, lane, simd);
        put_apart<N>(sums.c, p, units_at<T, Terms, M, N>(tg), lane, simd);
        one.begin += segment;
    } while (one.begin < p.end);
    clear_rest(p, lane, simd);
}

// put_segment writes the sums of a segment to threadgroup memory.
template <uint N>
static inline void put_segment(threadgroup float4 *to, thread const halves_sums<N> &c) {
    PIANOLA_UNROLL
    for (uint n = 0; n < N; n++) {
        to[32 * PIANOLA_SIMDS * n] = float4(c.of[4 * n], c.of[4 * n + 1], c.of[4 * n + 2], c.of[4 * n + 3]);
    }
}

// add_cluster adds the sums of all segments, which the threadgroups of a cluster hold, and writes the results.
// Each threadgroup takes some of the blocks of 8 rows of x.
template <uint T, uint Terms, uint N>
static inline void add_cluster(thread const segment_sums<N, PIANOLA_SUMS_CLUSTER> &sums, thread const halves_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    typedef segment_sums<N, PIANOLA_SUMS_CLUSTER> S;
    const uint held = PIANOLA_SIMDS / p.cluster; // segments of a threadgroup
    sums_barrier(); // the stages are no longer used, and the units are there
    threadgroup float4 *own = (threadgroup float4 *)tg + simd * 32 + lane;
    PIANOLA_UNROLL
    for (uint i = 0; i < S::before; i++) {
        if (i + held > S::before) {
            put_segment<N>(own + (i + held - S::before - 1) * (32 * PIANOLA_SIMDS * N), sums.of[i]);
        }
    }
    put_segment<N>(own + (held - 1) * (32 * PIANOLA_SIMDS * N), sums.c);
    metal::shim::cluster_wait();
    const uint blocks = N / p.cluster;
    const uint o = result_row(p.low + simd / 4 * 64, lane, simd);
    const float2 bias = bias_at(p, o);
    _Pragma("clang loop unroll(disable)")
    for (uint n = p.rank * blocks; n < (p.rank + 1) * blocks; n++) {
        const uint at = metal::shim::shared_address(own + 32 * PIANOLA_SIMDS * n);
        float4 sum = float4(0.0f);
        PIANOLA_UNROLL
        for (uint first = 0; first < PIANOLA_SIMDS; first += 4) { // few loads at once need few registers
            float4 v[4];
            PIANOLA_UNROLL
            for (uint i = 0; i < 4; i++) {
                v[i] = metal::shim::cluster_load(at + (first + i) % held * (512 * PIANOLA_SIMDS * N), (first + i) / held);
            }
            PIANOLA_UNROLL
            for (uint i = 0; i < 4; i++) {
                sum += v[i];
            }
        }
        put_block(sum, n, p, units_at<T, Terms, 128, N>(tg), o, bias, lane);
    }
    metal::shim::cluster_wait(); // others read this threadgroup's memory
}

// begin_work fills the stages of the threadgroup's columns, if that is the thread's work, and returns false.
// Otherwise the thread multiplies them.
template <uint T, uint Terms, uint M, uint N, uint Sums>
static inline bool begin_work(thread stage_ring &ring, thread const halves_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    typedef stage<T, Terms, M, N> S;
    ring = {metal::shim::shared_address(tg) + S::count * S::bytes, S::count, 0, 0};
    begin_ring(ring, simd * 32 + lane);
    if (simd >= PIANOLA_SIMDS) {
        if (Sums == PIANOLA_SUMS_WHOLE) {
            metal::shim::fewer_registers<T == PIANOLA_WTYPE_F16 ? 40 : 104>();
        }
        fill_stages<T, Terms, M, N, Sums>(ring, p, tg, lane, simd - PIANOLA_SIMDS);
        return false;
    }
    if (Sums == PIANOLA_SUMS_WHOLE) {
        metal::shim::more_registers<T == PIANOLA_WTYPE_F16 ? 232 : 200>();
    }
    copy_units<T, Terms, M, N>(p, tg, simd * 32 + lane);
    return true;
}

template <uint T, uint Terms, uint M, uint N, uint Sums>
static inline void gemm_chunks(thread halves_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    tg = metal::shim::aligned_matrix(tg);
    stage_ring ring;
    if (!begin_work<T, Terms, M, N, Sums>(ring, p, tg, lane, simd)) {
        return;
    }
    if (Sums == PIANOLA_SUMS_APART) {
        multiply_apart<T, Terms, M, N>(ring, p, tg, lane, simd);
        return;
    }
    segment_sums<N, Sums> sums;
    clear_segments<N, Sums>(sums);
    multiply_stages<T, Terms, M, N, Sums>(sums, ring, p, tg, lane, simd);
    if (Sums == PIANOLA_SUMS_ADDED) {
        add_sums<N>(sums.of[0], sums.c);
        sums.c = sums.of[0];
    }
    finish_sums<T, Terms, M, N>(sums.c, p, tg, lane, simd);
}

// gemm_cluster is gemm_chunks with segments for a threadgroup of a cluster.
template <uint T, uint Terms, uint N>
static inline void gemm_cluster(thread halves_product &p, threadgroup uchar *tg, uint lane, uint simd) {
    tg = metal::shim::aligned_matrix(tg);
    stage_ring ring;
    if (!begin_work<T, Terms, 128, N, PIANOLA_SUMS_CLUSTER>(ring, p, tg, lane, simd)) {
        return;
    }
    segment_sums<N, PIANOLA_SUMS_CLUSTER> sums;
    clear_segments<N, PIANOLA_SUMS_CLUSTER>(sums);
    multiply_stages<T, Terms, 128, N, PIANOLA_SUMS_CLUSTER>(sums, ring, p, tg, lane, simd);
    add_cluster<T, Terms, N>(sums, p, tg, lane, simd);
}

#endif
