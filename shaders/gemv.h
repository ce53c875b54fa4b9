// Products of a matrix and one row, or a few rows; limited by the memory bandwidth for W.
//
// A threadgroup computes a group of rows of W, unit by unit. The steps of all its units, one
// after another, are divided evenly among its SIMD groups. If a SIMD group's share ends within a
// unit, its sums are only a part of the unit's; the parts are added in threadgroup memory in a
// fixed order, so that the result does not depend on which part is finished first.
#ifndef PIANOLA_GEMV_H
#define PIANOLA_GEMV_H

#include "product.h"
#include "ahead.h"

// PIANOLA_STAGE is the number of input columns that are staged in threadgroup memory at a time,
// unless the command sets another one.
#define PIANOLA_STAGE 2048

// last_row waits for the preceding commands and returns the end of the active rows of x. It
// returns 0, so that no row is active, if the chain has stopped.
static inline uint last_row(thread product &p, device const pianola_step *step, constant pianola_second &second) {
    if (!begins(step)) {
        return 0;
    }
    split_sees(p.parts, second.kv_len + second.behind);
    return min(p.last, second.rows);
}

// share describes how the steps of a threadgroup's rows are divided, usually into one share for each SIMD group.
struct share {
    uint first; // the first row of W
    uint count; // number of rows
    uint shift; // a unit has 1 << shift rows
    uint steps; // steps per unit
    uint each;  // steps per share; the last shares may have fewer or none
    uint total; // steps of all units
    uint gates; // if the output is gated, the number of units that are gates; the rows of the other units are apart
    uint apart; // rows further on
};

// quotient returns a/b. Most divisors here are powers of two, and a division takes many
// instructions.
static inline uint quotient(uint a, uint b) {
    if ((b & (b - 1)) == 0) {
        return a >> (31 - clz(b));
    }
    return a / b;
}

static inline share share_of(thread const product &p, uint group, uint shift, uint steps, uint shares) {
    const uint first = group * p.group;
    const uint count = min(p.group, p.out - first);
    const uint total = ((count + (1u << shift) - 1) >> shift) * steps;
    return {first, count, shift, steps, quotient(total + shares - 1, shares), total, ~0u, 0};
}

// cursor is a position in a share.
struct cursor {
    uint unit, step;
    uint left; // steps
};

// cursor_of returns the beginning of a share.
static inline cursor cursor_of(share s, uint index) {
    const uint from = min(index * s.each, s.total);
    const uint unit = quotient(from, s.steps);
    return {unit, from - unit * s.steps, min(s.each, s.total - from)};
}

// end_of returns the step at which the share ends within the cursor's unit.
static inline uint end_of(share s, cursor c) { return min(s.steps, c.step + c.left); }

// advance moves the cursor by n steps, at most to the beginning of the next unit.
static inline void advance(thread cursor &c, share s, uint n) {
    const uint done = min(n, end_of(s, c) - c.step);
    c.step += done;
    c.left -= done;
    if (c.step == s.steps) {
        c.step = 0;
        c.unit++;
    }
}

// The part of a unit in a share is in slot index + unit of threadgroup memory. No two parts have the same slot, since
// both numbers only grow.
static inline threadgroup float *slot_of(threadgroup float *tg, share s, uint index, uint unit) { return tg + ((index + unit) << s.shift); }

// row_sum returns the sum of the parts of row i of the threadgroup.
static inline float row_sum(threadgroup const float *tg, share s, uint i, uint shares) {
    float sum = 0.0f;
    const uint from = (i >> s.shift) * s.steps;
    threadgroup const float *part = tg + i;
    uint begin = 0;
    _Pragma("clang loop unroll_count(4)")
    for (uint k = 0; k < shares; k++) {
        if (begin < from + s.steps && begin + s.each > from) {
            sum += *part;
        }
        begin += s.each;
        part += 1u << s.shift;
    }
    return sum;
}

// add_up adds the partial sums of each row to y. For the first columns of x it also adds the
// bias, and uses the old value of y only if the product is to be added. before is the old y of
// the thread's first row.
static inline void add_up(threadgroup float *tg, thread const product &p, share s, uint row, bool first, float before, uint tid, uint shares, uint threads) {
    for (uint i = tid; i < s.count; i += threads) {
        device float *y = p.y + ulong(row) * p.y_stride + s.first + i;
        const float bias = first && p.bias ? p.b[s.first + i] : 0.0f;
        if (!first || (p.add && i != tid)) {
            before = *y;
        }
        *y = row_sum(tg, s, i, shares) + bias + before;
    }
}

// steps_of returns the number of steps that a SIMD group loads to registers before it uses the
// first. Devices with asynchronous copies use these loads only for tables compiled for other
// devices, so the number is small there.
static inline uint steps_of(uint type) {
#if defined(PIANOLA_COPIES) && !defined(PIANOLA_HOST)
    (void)type;
    return 1;
#else
    return is_float(type) && type != PIANOLA_WTYPE_F32 ? 4 : 2;
#endif
}

// PIANOLA_STEPS is the largest result of steps_of.
#define PIANOLA_STEPS 4

// batch holds a lane's data of some steps.
struct batch {
    tile_quad quads[PIANOLA_STEPS];
};

// lane_of returns a lane's place among the pieces of a step, which are tiles or 8 columns of
// floats.
template <uint T>
static inline tile_lane lane_of(uint lane, bool halved) {
    if (is_float(T)) {
        return {0, lane, 5};
    }
    return place_of(lane, halved);
}

// load_floats reads 8 columns of four rows. Rows past the last repeat the last.
template <uint T, typename To>
static inline void load_floats(thread To &to, device const uchar *w, uint in, uint out, uint first, uint piece) {
    const uint size = element_bytes(T);
    PIANOLA_UNROLL
    for (uint r = 0; r < 4; r++) {
        device const uchar *p = w + (ulong(min(first + r, out - 1)) * in + 8 * piece) * size;
        take_vector(to, r, p);
        if (T == PIANOLA_WTYPE_F32) {
            take_vector(to, 4 + r, p + 16);
        }
    }
}

// load_step reads the step at the cursor. Tiles or pieces past the end of the matrix repeat the
// last one.
template <uint T, typename To>
static inline void load_step(thread To &to, thread const product &p, share s, cursor c, tile_lane at, uint pieces) {
    const uint first = s.first + (c.unit << s.shift) + (c.unit >= s.gates ? s.apart : 0);
    const uint piece = min((c.step << at.shift) + at.piece, pieces - 1);
    if (is_float(T)) {
        load_floats<T>(to, p.w, p.in, p.out, first, piece);
    } else {
        load_quad<T>(to, p.w + first / 16 * strip_bytes(T, p.in, p.wtype), piece, at.quad + first % 16 / 4, p.wtype);
    }
}

// input_rows is the input row in threadgroup memory, as floats or in its 8-bit form.
struct input_rows {
    threadgroup float4 *x;
    threadgroup int *q;
    threadgroup float *d;
};

// step_input is a lane's part of the input of a step: 32 columns as int8 and their scale, or 8 columns as float32.
struct step_input {
    int4 low, high;
    float d;
};

// load_step_input loads the input of the step at the cursor, 0 past the end of the row.
template <uint T>
static inline step_input load_step_input(input_rows in, cursor c, tile_lane at, uint pieces) {
    const uint piece = (c.step << at.shift) + at.piece;
    const bool there = piece < pieces;
    const uint k = there ? piece : 0;
    if (is_float(T)) {
        const float4 zero = float4(0.0f);
        return {as_type<int4>(there ? in.x[k] : zero), as_type<int4>(there ? in.x[pieces + k] : zero), 0.0f};
    }
    threadgroup const int4 *q = (threadgroup const int4 *)in.q + 2 * k;
    return {q[0], q[1], there ? in.d[k] : 0.0f};
}

// multiply_step multiplies a step's weights by the input.
template <uint T>
static inline void multiply_step(thread float4 &sum, thread const tile_quad &t, step_input in, uint wtype) {
    if (is_float(T)) {
        PIANOLA_UNROLL
        for (uint r = 0; r < 4; r++) {
            sum[r] += dot_eight<T>({t.vectors[r], t.vectors[4 + r]}, as_type<float4>(in.low), as_type<float4>(in.high));
        }
    } else {
        multiply_quad<T>(sum, t, in.low, in.high, in.d, wtype);
    }
}

// after returns the cursor n steps further in its unit.
static inline cursor after(cursor c, uint n) { return {c.unit, c.step + n, c.left - n}; }

// load_batch reads the cursor's next steps, up to the end of its unit.
template <uint T>
static inline void load_batch(thread batch &b, thread const product &p, share s, cursor c, tile_lane at, uint pieces) {
    const uint n = end_of(s, c) - c.step;
    PIANOLA_UNROLL
    for (uint i = 0; i < steps_of(T); i++) {
        if (i < n) {
            load_step<T>(b.quads[i], p, s, after(c, i), at, pieces);
        }
    }
}

// finish_unit adds up the sums of lanes that hold other columns of the same rows and stores the
// result in the SIMD group's slot.
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

// gemv_batches computes a threadgroup's rows of W for one row of the input. b holds the weights
// of the first steps.
template <uint T>
static inline void gemv_batches(thread batch &b, thread const product &p, share s, cursor c, tile_lane at, uint pieces, input_rows in, threadgroup float *slots, uint lane, uint simd) {
    float4 sum = float4(0.0f);
    while (c.left > 0) {
        const uint n = end_of(s, c) - c.step;
        PIANOLA_UNROLL
        for (uint i = 0; i < steps_of(T); i++) {
            if (i < n) {
                multiply_step<T>(sum, b.quads[i], load_step_input<T>(in, after(c, i), at, pieces), p.wtype);
            }
        }
        const uint unit = c.unit;
        advance(c, s, steps_of(T));
        if (c.left > 0) {
            load_batch<T>(b, p, s, c, at, pieces);
        }
        if (n <= steps_of(T)) {
            finish_unit<T>(sum, slot_of(slots, s, simd, unit), s, lane);
        }
    }
}

#ifdef PIANOLA_COPIES

// copy_step starts to copy the cursor's step to a slot and advances the cursor.
template <uint T>
static inline void copy_step(thread copies &to, thread const product &p, share s, thread cursor &c, tile_lane at, uint pieces) {
    if (c.left > 0) {
        load_step<T>(to, p, s, c, at, pieces);
        advance(c, s, 1);
    }
    metal::shim::commit_copies();
}

// copy_first starts to copy the first steps to the ring's slots.
template <uint T>
static inline void copy_first(threadgroup uchar *ring, uint slots, thread const product &p, share s, thread cursor &c, tile_lane at, uint pieces, uint lane) {
    copies to = {ring, lane, step_form(T)};
    for (uint i = 0; i < slots; i++) {
        copy_step<T>(to, p, s, c, at, pieces);
        to.at += slot_bytes(T);
    }
}

// gemv_bytes returns the size of the threadgroup memory before the rings.
static inline uint gemv_bytes(thread const product &p, bool floats, uint shares) {
    const uint input = floats ? 4 * p.in : p.in + p.in / 8;
    return (64 * shares + (p.group + 3) / 4 * 16 + input + 15) / 16 * 16;
}

// gemv_copies is gemv_batches with weights from the ring, of count slots. The cursor ahead marks the next step
// to copy, a few steps after c, which is at the beginning of the share with the given index. The next share, of
// rest steps, follows it. The input of a step is loaded before the wait for its weights, so that its time is part of
// the wait.
template <uint T>
static inline void gemv_copies(threadgroup uchar *ring, uint count, thread cursor &ahead, thread const product &p, share s, cursor c, uint index, uint rest, tile_lane at, uint pieces, input_rows in, threadgroup float *slots, uint lane) {
    float4 sum = float4(0.0f);
    copies slot = {ring, lane, step_form(T)};
    while (c.left > 0) {
        const step_input x = load_step_input<T>(in, c, at, pieces);
        wait_slot(count);
        const tile_quad t = copied(slot);
        copy_step<T>(slot, p, s, ahead, at, pieces);
        slot.at = slot.at == ring + (count - 1) * slot_bytes(T) ? ring : slot.at + slot_bytes(T);
        multiply_step<T>(sum, t, x, p.wtype);
        const uint unit = c.unit;
        const bool ends = c.step + 1 == end_of(s, c);
        advance(c, s, 1);
        if (ends) {
            finish_unit<T>(sum, slot_of(slots, s, index, unit), s, lane);
            if (c.left == 0) {
                c.left = rest;
                rest = 0;
                index++;
            }
        }
    }
}

#endif

// gemv_steps multiplies weights in layout Tiled16 by quantized activations, or floats by a
// float input row that fits in threadgroup memory. With tiles, a unit is a strip or half a
// strip, and a step is the tiles that a SIMD group reads at once. With floats, a unit is 4 rows
// and a step is 256 columns.
template <uint T>
static inline void gemv_steps(thread product &p, uint room, device const pianola_step *step, constant pianola_second &second, threadgroup uchar *tg, uint group, uint first_lane, uint first_simd, uint simds) {
    uint lane = first_lane;
    uint simd = first_simd;
    threadgroup float *slots = (threadgroup float *)tg;
    input_rows in;
    in.x = (threadgroup float4 *)(slots + 16 * simds + (p.group + 3) / 4 * 4);
    in.q = (threadgroup int *)in.x;
    in.d = (threadgroup float *)in.x + p.in / 4;
    const uint pieces = is_float(T) ? p.in / 8 : p.in / 32;
    const bool halved = p.group % 16 != 0;
    const tile_lane at = lane_of<T>(lane, halved);
    const share s = share_of(p, group, is_float(T) ? 2 : halved ? 3 : 4, (pieces + (1u << at.shift) - 1) >> at.shift, simds);
    const cursor begin = cursor_of(s, simd);
    // Start loading the first weights before the input is computed. With asynchronous copies no
    // registers are occupied meanwhile.
    batch b;
#ifdef PIANOLA_COPIES
    const bool copying = room >= slots_of(T) * slot_bytes(T);
    threadgroup uchar *ring = tg + gemv_bytes(p, is_float(T), simds) + simd * room;
    cursor ahead = begin;
    if (copying) {
        copy_first<T>(ring, slots_of(T), p, s, ahead, at, pieces, lane);
    }
#else
    (void)room;
    load_batch<T>(b, p, s, begin, at, pieces);
#endif
    const uint last = last_row(p, step, second);
    for (uint row = p.first; row < last; row++) {
        // There is usually one row; opaque keeps the loop's code from being hoisted.
        lane = opaque(lane);
        simd = opaque(simd);
        if (row != p.first) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
#ifdef PIANOLA_COPIES
            if (copying) {
                ahead = begin;
                copy_first<T>(ring, slots_of(T), p, s, ahead, at, pieces, lane);
            }
#else
            load_batch<T>(b, p, s, begin, at, pieces);
#endif
        }
        // Start loading the thread's first element of y, too.
        const uint first = simd * 32 + lane;
        const float before = p.add && first < s.count ? p.y[ulong(row) * p.y_stride + s.first + first] : 0.0f;
        make_input<!is_float_type<T>::value>(in.x, in.q, in.d, slots, p, row, lane, simd, simds);
        threadgroup_barrier(mem_flags::mem_threadgroup);
#ifdef PIANOLA_COPIES
        if (copying) {
            gemv_copies<T>(ring, slots_of(T), ahead, p, s, begin, simd, 0, at, pieces, in, slots, lane);
        } else {
            load_batch<T>(b, p, s, begin, at, pieces);
            gemv_batches<T>(b, p, s, begin, at, pieces, in, slots, lane, simd);
        }
#else
        gemv_batches<T>(b, p, s, begin, at, pieces, in, slots, lane, simd);
#endif
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_up(slots, p, s, row, true, before, first, simds, simds * 32);
    }
#ifdef PIANOLA_COPIES
    // If no row was active, the first copies are still in flight.
    metal::shim::wait_copies<0>();
#endif
}

// gemv_rows multiplies weights in layout Rows by float activations. A unit is 4 rows; rows past
// the last repeat the last and are not written. A step is one piece of each row for every lane.
template <uint T>
static inline void gemv_rows(thread product &p, device const pianola_step *step, constant pianola_second &second, uint stage_columns, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
    threadgroup float *slots = (threadgroup float *)tg;
    threadgroup float *stage = slots + 16 * simds + (p.group + 3) / 4 * 4;
    // Rows of float weights are either all aligned to 16 bytes, or processed one column at a
    // time. If rows of x are not aligned or must be computed, they are staged in threadgroup
    // memory.
    const bool aligned = p.in % 8 == 0;
    const bool staged = p.silu || p.norm || p.merge || p.x_stride % 4 != 0;
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
                const weight_rows w = rows_of<T>(p.w, p.in, p.out, s.first + at.unit * 4, c, p.wtype);
                const lane_share mine = {at.step * 32 + lane, min(end_of(s, at) * 32, n / piece)};
                float4 sum = float4(0.0f);
                if (staged) {
                    multiply_rows<T>(sum, w, (threadgroup const float *)stage, (threadgroup const float4 *)stage, aligned, mine, p.wtype);
                } else {
                    multiply_rows<T>(sum, w, x + c, (device const float4 *)(x + c), aligned, mine, p.wtype);
                }
                sum = float4(simd_sum(sum.x), simd_sum(sum.y), simd_sum(sum.z), simd_sum(sum.w));
                if (lane == 0) {
                    *(threadgroup float4 *)slot_of(slots, s, simd, at.unit) = sum;
                }
            }
            const uint first = simd * 32 + lane;
            const float before = p.add && first < s.count ? p.y[ulong(row) * p.y_stride + s.first + first] : 0.0f;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            add_up(slots, p, s, row, c == 0, before, first, simds, simds * 32);
        }
    }
}

#endif
