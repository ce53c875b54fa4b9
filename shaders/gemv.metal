// Products of a matrix and one row, or a few: limited by the reading of W.
//
// A threadgroup computes a group of rows of W, unit by unit. The steps of all
// its units, one after another, are divided evenly among its SIMD groups: where
// one's share ends within a unit, its sums are a part of the unit's, and the
// parts meet in threadgroup memory in their order, so that a result does not
// depend on which comes first.
#include "product.h"
#include "rows.h"
#include "tiles.h"

// share is how a threadgroup divides its rows among its SIMD groups.
struct share {
    uint first; // row of W
    uint count; // rows
    uint rows;  // of a unit
    uint steps; // of a unit
    uint each;  // steps of a SIMD group, of the last fewer or none
    uint total; // steps of all units
};

static inline share share_of(thread const product &p, uint group, uint rows, uint steps, uint simds) {
    const uint first = group * p.group;
    const uint count = min(p.group, p.out - first);
    const uint total = (count + rows - 1) / rows * steps;
    return {first, count, rows, steps, (total + simds - 1) / simds, total};
}

// cursor is where a SIMD group is in its share.
struct cursor {
    uint unit, step;
    uint left; // steps
};

static inline cursor cursor_of(share s, uint simd) {
    const uint from = min(simd * s.each, s.total);
    return {from / s.steps, from % s.steps, min(s.each, s.total - from)};
}

// end_of returns where the share ends in the cursor's unit.
static inline uint end_of(share s, cursor c) { return min(s.steps, c.step + c.left); }

// advance moves the cursor by n steps, or to the next unit.
static inline void advance(thread cursor &c, share s, uint n) {
    const uint done = min(n, end_of(s, c) - c.step);
    c.step += done;
    c.left -= done;
    if (c.step == s.steps) {
        c.step = 0;
        c.unit++;
    }
}

// A SIMD group's part of a unit is in slot simd + unit of threadgroup memory:
// no two have the same, since both only grow.
static inline threadgroup float *slot_of(threadgroup float *tg, share s, uint simd, uint unit) { return tg + (simd + unit) * s.rows; }

// add_up adds the parts of each row to y; if they are the first columns', to the
// bias, and to y only if the product is added.
static inline void add_up(threadgroup float *tg, thread const product &p, share s, uint row, bool first, uint tid, uint simds) {
    for (uint i = tid; i < s.count; i += simds * 32) {
        const uint unit = i / s.rows;
        device float *y = p.y + ulong(row) * p.y_stride + s.first + i;
        const uint from = unit * s.steps;
        float sum = 0.0f;
        for (uint k = 0; k < simds; k++) {
            if (k * s.each < from + s.steps && (k + 1) * s.each > from) {
                sum += slot_of(tg, s, k, unit)[i % s.rows];
            }
        }
        if (first && p.bias) {
            sum += p.b[s.first + i];
        }
        if (!first || p.add) {
            sum += *y;
        }
        *y = sum;
    }
}

// batch is the parts of N steps of a lane, read before the first is needed.
template <uint N>
struct batch {
    tile_part parts[N];
};

// load_batch reads a lane's parts of N steps. Those that the SIMD group or the
// matrix has not are the last once more, and not used.
template <uint T, uint N>
static inline void load_batch(thread batch<N> &b, thread const product &p, share s, cursor c, tile_lane at, uint tiles) {
    if (c.left == 0) {
        return;
    }
    const uint first = s.first + c.unit * s.rows;
    const uint last = end_of(s, c) - 1;
    device const uchar *strip = p.w + ulong(first / 16) * strip_bytes(T, p.in);
    at.quad += first % 16 / 4;
    _Pragma("clang loop unroll(full)")
    for (uint i = 0; i < N; i++) {
        b.parts[i] = load_part<T>(strip, min(min(c.step + i, last) * at.tiles + at.tile, tiles - 1), at);
    }
}

template <uint T, uint N>
static inline void multiply_batch(thread float4 &sum, thread const batch<N> &b, threadgroup const int *q, threadgroup const float *d, tile_lane at, uint k, uint end, uint tiles) {
    _Pragma("clang loop unroll(full)")
    for (uint i = 0; i < N; i++) {
        const uint tile = (k + i) * at.tiles + at.tile;
        const bool there = k + i < end && tile < tiles;
        const uint t = there ? tile : 0;
        multiply_part<T>(sum, b.parts[i], at.part, part_input(T, q + 8 * t, at.part), there ? d[t] : 0.0f);
    }
}

// gemv_tiled multiplies weights in tiles with quantised activations. A unit is
// a strip, or half of one; a step is as many tiles as a SIMD group reads at
// once.
template <uint T, uint N>
static inline void gemv_tiled(thread const product &p, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
    threadgroup float *slots = (threadgroup float *)tg;
    threadgroup int *q = (threadgroup int *)tg + 16 * simds + (p.group + 3) / 4 * 4;
    threadgroup float *d = (threadgroup float *)q + p.in / 4;
    const uint tiles = p.in / 32;
    const bool halved = p.group % 16 != 0;
    const tile_lane at = place_of(T, lane, halved);
    const share s = share_of(p, group, halved ? 8 : 16, (tiles + at.tiles - 1) / at.tiles, simds);
    for (uint row = p.first; row < p.last; row++) {
        if (row != p.first) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        cursor c = cursor_of(s, simd);
        float4 sum = float4(0.0f);
        batch<N> b;
        // The first weights are on their way while the input is quantised.
        load_batch<T, N>(b, p, s, c, at, tiles);
        quantise(q, d, slots, p, row, lane, simd, simds);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        while (c.left > 0) {
            const uint end = end_of(s, c);
            multiply_batch<T, N>(sum, b, q, d, at, c.step, end, tiles);
            if (c.step + N >= end) {
                // Lanes with the same rows have other columns.
                sum += simd_shuffle_xor(sum, ushort(16));
                sum += simd_shuffle_xor(sum, ushort(8));
                sum += simd_shuffle_xor(sum, ushort(4));
                if (halved) {
                    sum += simd_shuffle_xor(sum, ushort(2));
                }
                if (lane < s.rows / 4) {
                    *(threadgroup float4 *)(slot_of(slots, s, simd, c.unit) + 4 * lane) = sum;
                }
                sum = float4(0.0f);
            }
            advance(c, s, N);
            load_batch<T, N>(b, p, s, c, at, tiles);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_up(slots, p, s, row, true, simd * 32 + lane, simds);
    }
}

// gemv_reads chooses how many steps are read before the first is needed: a
// SIMD group with few would multiply what is not there.
template <uint T>
static inline void gemv_reads(thread const product &p, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
    const bool halved = p.group % 16 != 0;
    const uint tiles = place_of(T, lane, halved).tiles;
    const uint units = (min(p.group, p.out - group * p.group) + (halved ? 7 : 15)) / (halved ? 8 : 16);
    if ((p.in / 32 + tiles - 1) / tiles * units <= 2 * simds) {
        gemv_tiled<T, 2>(p, tg, group, lane, simd, simds);
    } else {
        gemv_tiled<T, 4>(p, tg, group, lane, simd, simds);
    }
}

// PIANOLA_STAGED is how many columns of the input are in threadgroup memory at
// once, whole blocks of every type.
#define PIANOLA_STAGED 2048

// gemv_rows multiplies weights in rows with activations as they are. A unit is
// 4 rows; those that are not there are the last, and not written. A step is a
// piece of each for every lane.
template <uint T>
static inline void gemv_rows(thread const product &p, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
    threadgroup float *slots = (threadgroup float *)tg;
    threadgroup float *stage = slots + 16 * simds + (p.group + 3) / 4 * 4;
    // Rows of floats are aligned to 16 bytes, or none but the first is. Rows of x
    // that are not are read from threadgroup memory.
    const bool aligned = p.in % 8 == 0;
    const bool staged = p.silu || p.norm || p.x_stride % 4 != 0;
    const uint columns = staged ? min(p.in, uint(PIANOLA_STAGED)) : p.in;
    const uint piece = is_float(T) ? aligned ? 8 : 1 : 16;
    for (uint row = p.first; row < p.last; row++) {
        device const float *x = p.x + ulong(row) * p.x_stride;
        float scale = 1.0f;
        for (uint c = 0; c < p.in; c += columns) {
            const uint n = min(columns, p.in - c);
            const share s = share_of(p, group, 4, (n + 32 * piece - 1) / (32 * piece), simds);
            if (row != p.first || c != 0) {
                threadgroup_barrier(mem_flags::mem_threadgroup);
            }
            if (p.norm && c == 0) {
                scale = norm_scale(p, square_sum1(p, row, simd * 32 + lane, simds * 32), slots, lane, simd, simds);
            }
            if (staged) {
                stage_input(stage, p, row, c, n, scale, simd * 32 + lane, simds * 32);
                threadgroup_barrier(mem_flags::mem_threadgroup);
            }
            for (cursor at = cursor_of(s, simd); at.left > 0; advance(at, s, s.steps)) {
                const weight_rows w = rows_of<T>(p.w, p.in, p.out, s.first + at.unit * 4, c);
                const lane_share mine = {at.step * 32 + lane, min(end_of(s, at) * 32, n / piece)};
                float4 sum = float4(0.0f);
                if (staged) {
                    multiply_rows<T>(sum, w, (threadgroup const float *)stage, (threadgroup const float4 *)stage, aligned, mine);
                } else {
                    multiply_rows<T>(sum, w, x + c, (device const float4 *)(x + c), aligned, mine);
                }
                sum = float4(simd_sum(sum.x), simd_sum(sum.y), simd_sum(sum.z), simd_sum(sum.w));
                if (lane == 0) {
                    *(threadgroup float4 *)slot_of(slots, s, simd, at.unit) = sum;
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            add_up(slots, p, s, row, c == 0, simd * 32 + lane, simds);
        }
    }
}

// threadgroup memory: 2*threads+16*div(group,4)+act*(in+div(in,8))+(1-act)*min(in,2048)*4 bytes
[[max_total_threads_per_threadgroup(512)]]
kernel void gemv(
        device const float *x            [[buffer(0)]],
        device const float *x2           [[buffer(1)]],
        device const uchar *w            [[buffer(2)]],
        device const float *b            [[buffer(3)]],
        device float *y                  [[buffer(4)]],
        constant pianola_gemv_params &p  [[buffer(8)]],
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
                       INPUT == PIANOLA_INPUT_SILU_MUL, BIAS != 0, INPUT == PIANOLA_INPUT_NORM, OUTPUT == PIANOLA_OUTPUT_ADD, p.eps};
    if (ACT == PIANOLA_ACT_Q8 && WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_reads<PIANOLA_WTYPE_##type>(a, tg, group.x, lane, simd, simds); break;
        switch (WTYPE) {
            PIANOLA_QUANTISED(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
    } else if (ACT == PIANOLA_ACT_F32 && WEIGHTS == PIANOLA_WEIGHTS_ROWS) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_rows<PIANOLA_WTYPE_##type>(a, tg, group.x, lane, simd, simds); break;
        switch (WTYPE) {
            PIANOLA_FLOATS(PIANOLA_CASE)
            PIANOLA_QUANTISED(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
    }
}
