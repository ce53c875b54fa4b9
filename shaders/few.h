// How gemm_few copies weights and input to threadgroup memory.
#ifndef PIANOLA_FEW_H
#define PIANOLA_FEW_H

#include "chunks.h"

// PIANOLA_FEW_OUT is the number of rows of W that the lanes hold at a time. A threadgroup has Wide times as
// many rows of W, and at most as many rows of x; Wide is 1 or 2.
#define PIANOLA_FEW_OUT 32

// PIANOLA_FEW_COLUMNS is the number of columns of a tile.
#define PIANOLA_FEW_COLUMNS 32

// PIANOLA_FEW_ROW is the size in bytes of a row of a tile of the input: 16 bytes of each of 4 lanes. Float32 take
// twice that: of all rows the 16 bytes of each lane for the first 16 columns, then those for the others.
// PIANOLA_FEW_BLOCK is the size of 8 rows.
#define PIANOLA_FEW_ROW 64
#define PIANOLA_FEW_BLOCK (8 * PIANOLA_FEW_ROW)

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

// PIANOLA_FEW_RING is the size of a SIMD group's ring. Two threadgroups with small rings fit in a multiprocessor.
// Behind the rings of all SIMD groups there are 64 bytes for the barriers of each.
#define PIANOLA_FEW_RING(large) ((large) ? 25600 : 14336 - 64)

// PIANOLA_FEW_EXCHANGE is the size of the place behind the barriers for the sums of up to 8 rows of x, so that the
// rings can be filled for other rows of W meanwhile. Small rings leave room for it.
#define PIANOLA_FEW_EXCHANGE 9216

// few_stage describes a stage of up to 8*N rows of x: the weights, in layout Tiled16 strips of a head and tiles, in
// layout Rows 32 rows of 128 bytes; then the input.
template <uint T, uint N, uint Wide, bool Scaled>
struct few_stage {
    enum : uint {
        floats = T <= PIANOLA_WTYPE_BF16 ? 1 : 0,
        block = (Scaled ? 2 : 1) * PIANOLA_FEW_BLOCK,
        // 1 if the weights of the first stages are copied before the input, so that each announces its bytes.
        apart = N == 1 && Wide == 1 ? 1 : 0,
        ring = PIANOLA_FEW_RING(floats != 0 || Wide == 2) - (apart != 0 && floats == 0 ? PIANOLA_FEW_EXCHANGE / 8 : 0),
        strips = Wide * PIANOLA_FEW_OUT / 16,
    };
    static inline uint strip(uint tiles) { return few_head(T) + tiles * few_step(T); }
    static inline uint weights(uint tiles) { return floats != 0 ? 64 * PIANOLA_FEW_OUT * tiles : strips * strip(tiles); }
    static inline uint bytes(uint tiles) { return weights(tiles) + tiles * N * block; }
    // tiles returns the number of tiles of a stage: 4 if the ring has room for two such stages, else 2.
    // Float weights always have 2, a whole row of threadgroup memory's banks.
    static inline uint tiles() { return floats == 0 && ring / bytes(4) >= 2 ? 4 : 2; }
    // input returns the size of the input of a stage with places for rows. A scaled one has room for its float16
    // too; with 8 places it needs none, since 8 rows are not converted in threadgroup memory and 4 leave half free.
    static inline uint input(uint places) {
        return tiles() * (apart == 0 ? N * block : Scaled && places < 8 ? places * 3 * PIANOLA_FEW_ROW : places * (block / 8));
    }
    static inline uint size(uint places) { return weights(tiles()) + input(places); }
    // count returns the number of stages of a size.
    static inline uint count(uint size) { return 5 * size <= ring ? 5 : 4 * size <= ring ? 4 : 3 * size <= ring ? 3 : 2 * size <= ring ? 2 : 1; }
};

// few_part is the share of a SIMD group: tiles from first to last-1 of the threadgroup's rows of W, and its
// ring of count stages of size bytes.
struct few_part {
    uint first, last;
    threadgroup uchar *ring;
    uint size, count;
    uint strip; // of quantised weights, the distance in bytes from a strip to the next
    uint apart; // rows of W that are left out between the first 16 and the next
    uint limit; // the number of rows of W, or of half of them if apart is not 0
    uint step;  // from the first row of W that the threadgroup computes at once to those that it computes next
};

// few_cursor is a place of the copies: the next tile, and the rows of W from low on, for quantised weights the first
// strip.
struct few_cursor {
    uint tile, low;
    device const uchar *w;
};

// few_of returns row r of the 32 of a threadgroup, counted from its first.
static inline uint few_of(uint r, uint apart) { return r < 16 ? r : r + apart; }

// few_input is a threadgroup's part of the input: its rows of the first tile, the distance in bytes from
// a tile to the next, and the units of its rows if they are float16.
struct few_input {
    device const uchar *x;
    uint step;
    device const float *units;
};

// few_size returns the size in bytes of a tile of the input in a stage.
template <uint N>
static inline uint few_size(thread const few_input &input) { return N == 1 ? input.step : N * PIANOLA_FEW_BLOCK; }

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

// few_share returns the share of a SIMD group, with stages for places rows of x. Neighbouring segments may be empty.
// threadgroups is the number of threadgroups, each of which computes some rows of W, or 0 if there is one for all 32.
template <uint T, uint N, uint Wide, bool Scaled>
static inline few_part few_share(thread const halves_product &p, uint apart, uint places, uint threadgroups, threadgroup uchar *tg, uint simd) {
    typedef few_stage<T, N, Wide, Scaled> S;
    const uint segment = segment_columns(p.in) / PIANOLA_FEW_COLUMNS;
    const uint tiles = (p.in + PIANOLA_FEW_COLUMNS - 1) / PIANOLA_FEW_COLUMNS;
    const uint size = S::size(places);
    few_part part = {min(simd * segment, tiles), min((simd + 1) * segment, tiles), tg + simd * S::ring, size, S::count(size), 0, apart, apart != 0 ? p.out / 2 : p.out, 0};
    part.step = threadgroups != 0 ? threadgroups * (apart != 0 ? 16 : PIANOLA_FEW_OUT) : part.limit;
    if (S::floats == 0) {
        part.strip = uint(strip_bytes(T, p.in, T)) * (1 + apart / 16);
    }
    return part;
}

// few_cursor_of returns where the copies of a SIMD group begin.
template <uint T>
static inline few_cursor few_cursor_of(thread const halves_product &p, thread const few_part &part) {
    return {part.first, p.low, T <= PIANOLA_WTYPE_BF16 ? p.w : p.w + p.low / 16 * strip_bytes(T, p.in, T)};
}

// few_left reports whether a stage is left to copy. Only threadgroups for up to 8 rows of x compute rows of W after
// the first.
template <uint T, uint N, uint Wide, bool Scaled>
static inline bool few_left(thread const few_part &part, thread const few_cursor &c) {
    if (few_stage<T, N, Wide, Scaled>::apart == 0) {
        return c.tile < part.last;
    }
    return c.low < part.limit && part.first < part.last;
}

// few_until returns the end of the stage of a tile. Stages begin at multiples of the number of their tiles.
template <uint T, uint N, uint Wide, bool Scaled>
static inline uint few_until(thread const few_part &part, uint tile) {
    const uint tiles = few_stage<T, N, Wide, Scaled>::tiles();
    return min((tile / tiles + 1) * tiles, part.last);
}

// few_advance moves a cursor past the stage that ends with tile next-1.
template <uint T, uint N, uint Wide, bool Scaled>
static inline void few_advance(thread few_cursor &c, thread const halves_product &p, thread const few_part &part, uint next) {
    c.tile = next;
    if (few_stage<T, N, Wide, Scaled>::apart != 0 && next == part.last) {
        c.tile = part.first;
        c.low += part.step;
        if (T > PIANOLA_WTYPE_BF16) {
            c.w += part.step / 16 * strip_bytes(T, p.in, T);
        }
    }
}

// expect_few announces the bytes of copies that lane 0 then starts.
static inline void expect_few(uint barrier, uint bytes, uint lane) {
#ifdef PIANOLA_WARPGROUPS
    if (lane == 0) {
        metal::shim::barrier_expect(barrier, bytes);
    }
#else
    (void)barrier, (void)bytes, (void)lane;
#endif
}

// fill_weights starts to copy the weights of a stage, the tiles of a cursor up to last-1. Rows and strips of W past
// the last repeat another; their results are not written.
template <uint T, uint N, uint Wide, bool Scaled>
static inline void fill_weights(threadgroup uchar *to, uint barrier, thread const few_part &part, thread const halves_product &p, thread const few_cursor &c, uint last, uint lane) {
    typedef few_stage<T, N, Wide, Scaled> S;
    const uint first = c.tile;
    const uint tiles = last - first;
    if (S::floats != 0) {
        const uint piece = lane % 8;
        const uint column = first * PIANOLA_FEW_COLUMNS + 8 * piece;
        PIANOLA_UNROLL
        for (uint k = 0; k < PIANOLA_FEW_OUT / 4; k++) {
            const uint r = 4 * k + lane / 8;
            // A piece past the end is not read, but its address must be valid.
            const ulong at = ulong(min(c.low + r + (N == 1 && k >= 4 ? part.apart : 0), p.out - 1)) * p.in + min(column, p.in - 8);
            copy_piece(to + few_piece(r, piece), p.w + 2 * at, column < p.in);
        }
    } else {
        const tile_form f = tile_form_of(T);
        device const uchar *block = c.w + ulong(first / f.tiles) * f.bytes;
        const uint strips = (p.out - c.low) / 16;
        PIANOLA_UNROLL
        for (uint i = 0; i < S::strips; i++) {
            threadgroup uchar *strip = to + i * S::strip(S::tiles());
            device const uchar *from = block + ulong(i < strips ? i : 0) * part.strip;
            if (few_head(T) != 0) {
                copy_run(strip, from, few_head(T), barrier, lane);
            }
            copy_run(strip + few_head(T), from + few_head(T) + first % f.tiles * few_step(T), tiles * few_step(T), barrier, lane);
        }
    }
}

// fill_input starts to copy the input of a stage.
template <uint T, uint N, uint Wide, bool Scaled>
static inline void fill_input(threadgroup uchar *to, uint barrier, thread const few_input &input, uint first, uint last, uint lane) {
    typedef few_stage<T, N, Wide, Scaled> S;
    const uint tiles = last - first;
    const uint size = few_size<N>(input);
    threadgroup uchar *x = to + S::weights(S::tiles());
    if (N < 4 || input.step == size) {
        copy_run(x, input.x + ulong(first) * size, tiles * size, barrier, lane);
        return;
    }
    for (uint k = 0; k < tiles; k++) { // other threadgroups compute the other blocks of a tile
        copy_run(x + k * N * PIANOLA_FEW_BLOCK, input.x + ulong(first + k) * input.step, N * PIANOLA_FEW_BLOCK, barrier, lane);
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

// few_begin starts to copy the stage of a cursor, if one is left, and moves the cursor: its weights, its input, or
// both.
template <uint T, uint N, uint Wide, bool Scaled, bool Weights, bool Input>
static inline void few_begin(thread few_ring &r, uint barriers, thread const few_part &part, thread const halves_product &p, thread const few_input &input, thread few_cursor &c, uint lane) {
    typedef few_stage<T, N, Wide, Scaled> S;
    if (few_left<T, N, Wide, Scaled>(part, c)) {
        const uint next = few_until<T, N, Wide, Scaled>(part, c.tile);
        threadgroup uchar *to = part.ring + r.at * part.size;
        const uint weights = S::floats != 0 ? 0 : S::strips * S::strip(next - c.tile); // lanes copy floats
        const uint rows = (next - c.tile) * few_size<N>(input);
        if (S::apart == 0) {
            expect_few(barriers + 8 * r.at, weights + rows, lane);
        }
        if (Weights && S::apart != 0 && S::floats == 0) {
            expect_few(barriers + 8 * r.at, weights, lane);
        }
        if (Weights) {
            fill_weights<T, N, Wide, Scaled>(to, barriers + 8 * r.at, part, p, c, next, lane);
        }
        if (Input && S::apart != 0) {
            expect_few(barriers + 8 * r.at, rows, lane);
        }
        if (Input) {
            fill_input<T, N, Wide, Scaled>(to, barriers + 8 * r.at, input, c.tile, next, lane);
        }
        few_next(r, part.count);
        few_advance<T, N, Wide, Scaled>(c, p, part, next);
    }
    if (Weights) {
        commit_stage();
    }
}

// few_first is few_begin for all stages of the ring but the last.
template <uint T, uint N, uint Wide, bool Scaled, bool Weights, bool Input>
static inline void few_first(thread few_ring &r, uint barriers, thread const few_part &part, thread const halves_product &p, thread const few_input &input, thread few_cursor &c, uint lane) {
    _Pragma("clang loop unroll(disable)")
    for (uint i = 0; i + 1 < part.count; i++) {
        few_begin<T, N, Wide, Scaled, Weights, Input>(r, barriers, part, p, input, c, lane);
    }
}

// few_start is where a SIMD group begins.
struct few_start {
    few_part part;
    uint barriers;
};

// start_few begins a SIMD group's barriers. If weights and input are copied apart and the copy unit copies them, it
// starts to copy the weights of the first stages. It reads nothing that another command writes.
template <uint T, uint N, uint Wide, bool Scaled>
static inline few_start start_few(thread const halves_product &p, uint apart, uint places, uint threadgroups, threadgroup uchar *tg, uint lane, uint simd) {
    few_start start = {few_share<T, N, Wide, Scaled>(p, apart, places, threadgroups, tg, simd), 0};
#ifdef PIANOLA_WARPGROUPS
    typedef few_stage<T, N, Wide, Scaled> S;
    start.barriers = metal::shim::shared_address(tg) + PIANOLA_SIMDS * S::ring + 64 * simd;
    if (lane == 0) {
        _Pragma("clang loop unroll(disable)")
        for (uint i = 0; i < start.part.count; i++) {
            metal::shim::barrier_begin(start.barriers + 8 * i, S::floats != 0 || S::apart == 0 ? 1 : 2);
        }
        metal::shim::barriers_begun();
    }
    metal::shim::simdgroup_wait();
    if (S::apart != 0) {
        few_ring filled = {0, 0};
        few_cursor c = few_cursor_of<T>(p, start.part);
        const few_input none = {nullptr, 0, nullptr};
        few_first<T, N, Wide, Scaled, true, false>(filled, start.barriers, start.part, p, none, c, lane);
    }
#else
    (void)lane;
#endif
    return start;
}

#ifdef PIANOLA_WARPGROUPS
// end_few waits for the weights that start_few copies, if the command is not executed.
template <uint T, uint N, uint Wide, bool Scaled>
static inline void end_few(thread const few_start &start, thread const halves_product &p, uint lane) {
    few_cursor c = few_cursor_of<T>(p, start.part);
    _Pragma("clang loop unroll(disable)")
    for (uint i = 0; i + 1 < start.part.count && few_left<T, N, Wide, Scaled>(start.part, c) && T > PIANOLA_WTYPE_BF16; i++) {
        expect_few(start.barriers + 8 * i, 0, lane);
        metal::shim::barrier_wait(start.barriers + 8 * i, 0);
        few_advance<T, N, Wide, Scaled>(c, p, start.part, few_until<T, N, Wide, Scaled>(start.part, c.tile));
    }
    metal::shim::wait_copies<0>();
}
#endif

#endif
