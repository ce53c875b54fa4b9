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

// PIANOLA_STAGE is how many columns of the input are in threadgroup memory at
// once if the command does not say it.
#define PIANOLA_STAGE 2048

// last_row returns where the rows of x end, once what earlier commands wrote can
// be read: there are none if the chain has stopped.
static inline uint last_row(thread const product &p, device const pianola_step *step, constant pianola_second &second) {
    return begins(step) ? min(p.last, second.rows) : 0;
}

// share is how a threadgroup divides its rows among its SIMD groups.
struct share {
    uint first; // row of W
    uint count; // rows
    uint shift; // a unit has 1 << shift rows
    uint steps; // of a unit
    uint each;  // steps of a SIMD group, of the last fewer or none
    uint total; // steps of all units
};

// quotient returns a/b. Most divisors here are powers of two, and a division is
// many instructions.
static inline uint quotient(uint a, uint b) {
    if ((b & (b - 1)) == 0) {
        return a >> (31 - clz(b));
    }
    return a / b;
}

static inline share share_of(thread const product &p, uint group, uint shift, uint steps, uint simds) {
    const uint first = group * p.group;
    const uint count = min(p.group, p.out - first);
    const uint total = ((count + (1u << shift) - 1) >> shift) * steps;
    return {first, count, shift, steps, quotient(total + simds - 1, simds), total};
}

// cursor is where a SIMD group is in its share.
struct cursor {
    uint unit, step;
    uint left; // steps
};

static inline cursor cursor_of(share s, uint simd) {
    const uint from = min(simd * s.each, s.total);
    const uint unit = quotient(from, s.steps);
    return {unit, from - unit * s.steps, min(s.each, s.total - from)};
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
static inline threadgroup float *slot_of(threadgroup float *tg, share s, uint simd, uint unit) { return tg + ((simd + unit) << s.shift); }

// add_up adds the parts of each row to y; if they are the first columns', to the
// bias, and to y only if the product is added.
static inline void add_up(threadgroup float *tg, thread const product &p, share s, uint row, bool first, uint tid, uint simds) {
    for (uint i = tid; i < s.count; i += simds * 32) {
        const uint unit = i >> s.shift;
        device float *y = p.y + ulong(row) * p.y_stride + s.first + i;
        const float bias = first && p.bias ? p.b[s.first + i] : 0.0f;
        const float before = !first || p.add ? *y : 0.0f;
        float sum = 0.0f;
        const uint from = unit * s.steps;
        threadgroup const float *part = tg + i;
        uint begin = 0;
        _Pragma("clang loop unroll_count(4)")
        for (uint k = 0; k < simds; k++) {
            if (begin < from + s.steps && begin + s.each > from) {
                sum += *part;
            }
            begin += s.each;
            part += 1u << s.shift;
        }
        *y = sum + bias + before;
    }
}

// steps_of returns how many steps a SIMD group reads before it needs the first.
static inline uint steps_of(uint type) { return is_float(type) && type != PIANOLA_WTYPE_F32 ? 4 : 2; }

// PIANOLA_STEPS is the most that steps_of returns.
#define PIANOLA_STEPS 4

// batch is a lane's part of some steps: four rows of a tile, or of 8 columns.
struct batch {
    tile_quad quads[PIANOLA_STEPS];
};

// lane_of returns a lane's place among the pieces of a step.
template <uint T>
static inline tile_lane lane_of(uint lane, bool halved) {
    if (is_float(T)) {
        return {0, lane, 5};
    }
    return place_of(lane, halved);
}

// load_floats reads 8 columns of four rows; rows past the last are the last.
template <uint T>
static inline tile_quad load_floats(device const uchar *w, uint in, uint out, uint first, uint piece) {
    tile_quad t;
    _Pragma("clang loop unroll(full)")
    for (uint r = 0; r < 4; r++) {
        const eight v = load_eight<T>(w + ulong(min(first + r, out - 1)) * in * element_bytes(T), piece);
        t.quants[r] = v.a;
        if (T == PIANOLA_WTYPE_F32) {
            t.quants[4 + r] = v.b;
        }
    }
    return t;
}

// load_batch reads the cursor's next steps, those that are left in its unit.
// Tiles or pieces that the matrix has not are the last once more.
template <uint T>
static inline void load_batch(thread batch &b, thread const product &p, share s, cursor c, tile_lane at, uint pieces) {
    const uint n = end_of(s, c) - c.step;
    const uint first = s.first + (c.unit << s.shift);
    const uint quad = at.quad + first % 16 / 4;
    device const uchar *strip = is_float(T) ? p.w : p.w + first / 16 * strip_bytes(T, p.in);
    _Pragma("clang loop unroll(full)")
    for (uint i = 0; i < steps_of(T); i++) {
        if (i < n) {
            const uint piece = min(((c.step + i) << at.shift) + at.piece, pieces - 1);
            if (is_float(T)) {
                b.quads[i] = load_floats<T>(strip, p.in, p.out, first, piece);
            } else {
                b.quads[i] = load_quad<T>(strip, piece, quad);
            }
        }
    }
}

// multiply_batch multiplies them with the input, which is x, or q and d.
template <uint T>
static inline void multiply_batch(thread float4 &sum, thread const batch &b, threadgroup const float4 *x, threadgroup const int4 *q, threadgroup const float *d, share s, cursor c, tile_lane at, uint pieces) {
    const uint n = end_of(s, c) - c.step;
    _Pragma("clang loop unroll(full)")
    for (uint i = 0; i < steps_of(T); i++) {
        if (i < n) {
            const uint piece = ((c.step + i) << at.shift) + at.piece;
            const bool there = piece < pieces;
            const uint k = 2 * (there ? piece : 0);
            if (is_float(T)) {
                const float4 zero = float4(0.0f);
                const float4 low = there ? x[k] : zero;
                const float4 high = there ? x[k + 1] : zero;
                _Pragma("clang loop unroll(full)")
                for (uint r = 0; r < 4; r++) {
                    sum[r] += dot_eight<T>({b.quads[i].quants[r], b.quads[i].quants[4 + r]}, low, high);
                }
            } else {
                multiply_quad<T>(sum, b.quads[i], q[k], q[k + 1], there ? d[k / 2] : 0.0f);
            }
        }
    }
}

// finish_unit adds up what lanes with the same rows have of other columns, and
// leaves it in the SIMD group's slot.
template <uint T>
static inline void finish_unit(thread float4 &sum, threadgroup float *slot, share s, uint lane) {
    sum += simd_shuffle_xor(sum, ushort(16));
    sum += simd_shuffle_xor(sum, ushort(8));
    sum += simd_shuffle_xor(sum, ushort(4));
    if (s.shift < 4) {
        sum += simd_shuffle_xor(sum, ushort(2));
    }
    if (is_float(T)) {
        sum += simd_shuffle_xor(sum, ushort(1));
    }
    if (4 * lane < 1u << s.shift) {
        *(threadgroup float4 *)(slot + 4 * lane) = sum;
    }
    sum = float4(0.0f);
}

// gemv_batches multiplies weights in tiles with quantised activations, or floats
// with floats that are all in threadgroup memory. Of tiles a unit is a strip, or
// half of one, and a step as many as a SIMD group reads at once; of floats it is
// 4 rows, and a step 256 columns.
template <uint T>
static inline void gemv_batches(thread const product &p, device const pianola_step *step, constant pianola_second &second, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
    threadgroup float *slots = (threadgroup float *)tg;
    threadgroup float4 *x = (threadgroup float4 *)(slots + 16 * simds + (p.group + 3) / 4 * 4);
    threadgroup int *q = (threadgroup int *)x;
    threadgroup float *d = (threadgroup float *)x + p.in / 4;
    const uint pieces = is_float(T) ? p.in / 8 : p.in / 32;
    const bool halved = p.group % 16 != 0;
    const tile_lane at = lane_of<T>(lane, halved);
    const share s = share_of(p, group, is_float(T) ? 2 : halved ? 3 : 4, (pieces + (1u << at.shift) - 1) >> at.shift, simds);
    cursor c = cursor_of(s, simd);
    // The first weights are on their way while the input is made.
    batch b;
    load_batch<T>(b, p, s, c, at, pieces);
    const uint last = last_row(p, step, second);
    for (uint row = p.first; row < last; row++) {
        if (row != p.first) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            c = cursor_of(s, simd);
            load_batch<T>(b, p, s, c, at, pieces);
        }
        make_input<!is_float_type<T>::value>(x, q, d, slots, p, row, lane, simd, simds);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float4 sum = float4(0.0f);
        while (c.left > 0) {
            multiply_batch<T>(sum, b, x, (threadgroup const int4 *)q, d, s, c, at, pieces);
            const uint unit = c.unit;
            const bool ends = c.step + steps_of(T) >= end_of(s, c);
            advance(c, s, steps_of(T));
            if (c.left > 0) {
                load_batch<T>(b, p, s, c, at, pieces);
            }
            if (ends) {
                finish_unit<T>(sum, slot_of(slots, s, simd, unit), s, lane);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_up(slots, p, s, row, true, simd * 32 + lane, simds);
    }
}

// gemv_rows multiplies weights in rows with activations as they are. A unit is
// 4 rows; those that are not there are the last, and not written. A step is a
// piece of each for every lane.
template <uint T>
static inline void gemv_rows(thread const product &p, device const pianola_step *step, constant pianola_second &second, uint stage_columns, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
    threadgroup float *slots = (threadgroup float *)tg;
    threadgroup float *stage = slots + 16 * simds + (p.group + 3) / 4 * 4;
    // Rows of floats are aligned to 16 bytes, or none but the first is. Rows of x
    // that are not are read from threadgroup memory.
    const bool aligned = p.in % 8 == 0;
    const bool staged = p.silu || p.norm || p.x_stride % 4 != 0;
    const uint columns = staged ? min(p.in, stage_columns) : p.in;
    const uint piece = is_float(T) ? aligned ? 8 : 1 : 16;
    const uint last = last_row(p, step, second);
    for (uint row = p.first; row < last; row++) {
        device const float *x = p.x + ulong(row) * p.x_stride;
        float scale = 1.0f;
        for (uint c = 0; c < p.in; c += columns) {
            const uint n = min(columns, p.in - c);
            const share s = share_of(p, group, 2, quotient(n + 32 * piece - 1, 32 * piece), simds);
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

// reads ahead: w
//
// threadgroup memory: 2*threads+16*div(group,4)+act*(in+div(in,8))+(1-act)*min(in,stage+2048*(1-min(stage,1)))*4 bytes
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
    const product a = {x, x2, w, b, y, p.in, p.out, p.x_stride, p.y_stride, p.group, group.y * p.row_group, (group.y + 1) * p.row_group,
                       INPUT == PIANOLA_INPUT_SILU_MUL, BIAS != 0, INPUT == PIANOLA_INPUT_NORM, OUTPUT == PIANOLA_OUTPUT_ADD, p.eps};
    if (ACT == PIANOLA_ACT_Q8 && WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_batches<PIANOLA_WTYPE_##type>(a, step, s, tg, group.x, lane, simd, simds); break;
        switch (WTYPE) {
            PIANOLA_QUANTISED(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
        return;
    }
    if (ACT == PIANOLA_ACT_F32 && WEIGHTS == PIANOLA_WEIGHTS_ROWS) {
        // Rows that are not aligned, and a row of x that has no room.
        const uint stage = p.stage != 0 ? p.stage : PIANOLA_STAGE;
        if (is_float(WTYPE) && p.in % 8 == 0 && p.in <= stage) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_batches<PIANOLA_WTYPE_##type>(a, step, s, tg, group.x, lane, simd, simds); break;
            switch (WTYPE) {
                PIANOLA_FLOATS(PIANOLA_CASE)
            default: break;
            }
#undef PIANOLA_CASE
            return;
        }
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_rows<PIANOLA_WTYPE_##type>(a, step, s, stage, tg, group.x, lane, simd, simds); break;
        switch (WTYPE) {
            PIANOLA_FLOATS(PIANOLA_CASE)
            PIANOLA_QUANTISED(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
    }
}
