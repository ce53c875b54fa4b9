// Products of a matrix and a single row, for GPUs that copy weights asynchronously. A command of a
// small model is a chain of accesses to the cache, so this form loads the input, the old y and the
// step's values together. The sums and their order are those of gemv_steps.
#ifndef PIANOLA_GEMV_SINGLE_H
#define PIANOLA_GEMV_SINGLE_H

#include "gemv.h"

#ifdef PIANOLA_COPIES

// PIANOLA_LONG_READS is the number of vectors that a lane loads before it uses the first, if the input is silu_mul or
// plain, and PIANOLA_SHORT_READS that for others, whose rows are shorter. More would only be more code.
#define PIANOLA_LONG_READS 7
#define PIANOLA_SHORT_READS 2

// single_squares returns the lane's shares of the sum of squares of a row: its only share, as row_squares returns it, or
// two. The second then consists of every other vector, those that a lane of another SIMD group would have.
template <uint N>
static inline float2 single_squares(thread const input_part<N> &part, thread const product &p, bool paired, uint lane, uint simd, uint simds) {
    if (!paired) {
        return float2(row_squares(part, p, 0, lane, simd, simds), 0.0f);
    }
    const uint threads = simds * 32;
    const uint count = p.in / 4;
    float2 sum = float2(0.0f);
    PIANOLA_UNROLL
    for (uint k = 0; k < N; k++) {
        if (simd * 32 + k * threads < count) {
            const float square = simd * 32 + k * threads + lane < count ? dot(part.x[k], part.x[k]) : 0.0f;
            sum.x += k % 2 == 0 ? square : 0.0f;
            sum.y += k % 2 == 1 ? square : 0.0f;
        }
    }
    bool second = N % 2 == 1;
    for (uint i = simd * 32 + lane + N * threads; i < count; i += threads) {
        const float4 v = input4<false>(p, 0, i);
        const float square = dot(v, v);
        sum.x += second ? 0.0f : square;
        sum.y += second ? square : 0.0f;
        second = !second;
    }
    return sum;
}

// single_norm is norm_scale for a row, with a number of shares. If they are 8 or 16, each thread adds up their sums
// itself, in the order of simd_sum; only then a SIMD group may have two.
static inline float single_norm(thread const product &p, float2 squares, threadgroup float *tg, bool paired, uint lane, uint simd, uint simds) {
    const uint shares = paired ? 2 * simds : simds;
    if (shares != 8 && shares != 16) {
        return norm_scale(p, squares.x, tg, lane, simd, simds);
    }
    squares.x = simd_sum(squares.x);
    if (lane == 0) {
        tg[simd] = squares.x;
    }
    if (paired) {
        squares.y = simd_sum(squares.y);
        if (lane == 0) {
            tg[simds + simd] = squares.y;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup const float4 *parts = (threadgroup const float4 *)tg;
    const float4 sums = shares == 8 ? parts[0] + parts[1] : (parts[0] + parts[2]) + (parts[1] + parts[3]);
    return rsqrt(((sums.x + sums.z) + (sums.y + sums.w)) / float(p.in) + p.eps);
}

// make_single is make_input for an input whose first part is loaded already.
template <bool Quantised, uint N>
static inline void make_single(input_rows in, threadgroup float *tg, thread input_part<N> &part, thread const product &p, bool paired, uint lane, uint simd, uint simds) {
    const uint count = p.in / 4;
    const uint threads = simds * 32;
    const float norm = p.norm ? single_norm(p, single_squares(part, p, paired, lane, simd, simds), tg, paired, lane, simd, simds) : 1.0f;
    for (uint first = simd * 32; first < count; first += N * threads) {
        if (first != simd * 32) {
            load_input(part, p, 0, first, lane, threads);
        }
        if (first + (N - 1) * threads < count) {
            // Without branches, the conversions of the vectors overlap.
            PIANOLA_UNROLL
            for (uint k = 0; k < N; k++) {
                put_input<Quantised>(in.x, in.q, in.d, made_input(part, p, k, norm), first + k * threads + lane, count);
            }
            continue;
        }
        PIANOLA_UNROLL
        for (uint k = 0; k < N; k++) {
            if (first + k * threads < count) {
                put_input<Quantised>(in.x, in.q, in.d, made_input(part, p, k, norm), first + k * threads + lane, count);
            }
        }
    }
}

// PIANOLA_SINGLE_ROOM is the largest size of the slots of a SIMD group for quantised weights.
#define PIANOLA_SINGLE_ROOM 13056

// single_slots returns the number of steps in flight: 4 of float16, 3 to 5 of quantised weights.
static inline uint single_slots(uint type) { return is_float(type) ? slots_of(type) : min(5u, PIANOLA_SINGLE_ROOM / slot_bytes(type)); }

// gated_share is share_of for a gated output: half of the threadgroup's rows are gates, and the others as many rows
// from the middle of W on. count is the number of gates.
static inline share gated_share(thread const product &p, uint group, uint shift, uint steps, uint shares) {
    const uint first = group * (p.group / 2);
    const uint count = min(p.group / 2, p.out / 2 - first);
    const uint units = (count + (1u << shift) - 1) >> shift;
    const uint total = 2 * units * steps;
    return {first, count, shift, steps, quotient(total + shares - 1, shares), total, units, p.out / 2 - (units << shift)};
}

// add_gated writes activation(gate) * up of each pair of rows to y.
static inline void add_gated(threadgroup const float *tg, thread const product &p, share s, uint tid, uint shares, uint threads) {
    for (uint i = tid; i < s.count; i += threads) {
        const float gate = row_sum(tg, s, i, shares) + (p.bias ? p.b[s.first + i] : 0.0f);
        const float up = row_sum(tg, s, i + (s.gates << s.shift), shares) + (p.bias ? p.b[p.out / 2 + s.first + i] : 0.0f);
        p.y[s.first + i] = gated(p.activation, gate) * up;
    }
}

// gemv_single is gemv_steps for one row, if each SIMD group has room for the slots of its copies. N is the number of
// vectors of the input that a lane loads before it uses the first. If gates, the output is gated. The steps are divided into
// shares, one for each SIMD group or, if paired, two. If settled, it reads the secondary values before it waits for its
// inputs: the splits of attention that it reads depend on them.
template <uint T, uint N>
static inline void gemv_single(thread product &p, uint room, bool gates, bool paired, bool settled, device const pianola_step *step, constant pianola_second &second, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
    const uint shares = paired ? 2 * simds : simds;
    threadgroup float *slots = (threadgroup float *)tg;
    input_rows in;
    in.x = (threadgroup float4 *)(slots + 16 * shares + (p.group + 3) / 4 * 4);
    in.q = (threadgroup int *)in.x;
    in.d = (threadgroup float *)in.x + p.in / 4;
    const uint pieces = is_float(T) ? p.in / 8 : p.in / 32;
    const bool halved = (gates ? p.group / 2 : p.group) % 16 != 0;
    const tile_lane at = lane_of<T>(lane, halved);
    const uint shift = is_float(T) ? 2 : halved ? 3 : 4;
    const uint steps = (pieces + (1u << at.shift) - 1) >> at.shift;
    const share s = gates ? gated_share(p, group, shift, steps, shares) : share_of(p, group, shift, steps, shares);
    const uint part = paired ? 2 * simd : simd;
    const cursor begin = cursor_of(s, part);
    // The steps of the second share follow those of the first.
    const uint rest = paired ? min(s.each, s.total - min((part + 1) * s.each, s.total)) : 0;
    threadgroup uchar *ring = tg + gemv_bytes(p, is_float(T), shares) + simd * room;
    cursor ahead = begin;
    ahead.left += rest;
    copy_first<T>(ring, single_slots(T), p, s, ahead, at, pieces, lane);
    uint rows = 0;
    if (settled) {
        rows = second.rows;
        split_sees(p.parts, second.kv_len + second.behind);
    }
    // The loads are issued before the first of their values is needed.
    const bool executed = begins(step);
    if (!settled) {
        rows = second.rows;
        split_sees(p.parts, second.kv_len + second.behind);
    }
    const uint tid = simd * 32 + lane;
    const float before = p.add && tid < s.count ? p.y[s.first + tid] : 0.0f;
    input_part<N> first;
    if (!p.merge) {
        load_input(first, p, 0, simd * 32, lane, simds * 32);
    }
    issued();
    if (executed && rows != 0) {
        if (p.merge) {
            make_merged<!is_float_type<T>::value>(in.x, in.q, in.d, p, lane, simd, simds);
        } else {
            make_single<!is_float_type<T>::value>(in, slots, first, p, paired, lane, simd, simds);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        gemv_copies<T>(ring, single_slots(T), ahead, p, s, begin, part, rest, at, pieces, in, slots, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (gates) {
            add_gated(slots, p, s, tid, shares, simds * 32);
        } else {
            add_up(slots, p, s, 0, true, before, tid, shares, simds * 32);
        }
    }
    // If the row is not active, the first copies are still in flight.
    metal::shim::wait_copies<0>();
}

#endif
#endif
