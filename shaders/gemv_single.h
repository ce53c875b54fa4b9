// Products of a matrix and a single row, for GPUs that copy weights asynchronously. A command of a
// small model is a chain of accesses to the cache, so this form loads the input, the old y and the
// step's values together. The sums and their order are those of gemv_steps.
#ifndef PIANOLA_GEMV_SINGLE_H
#define PIANOLA_GEMV_SINGLE_H

#include "gemv.h"

#ifdef PIANOLA_COPIES

// PIANOLA_SILU_READS is the number of vectors that a lane loads before it uses the first, if the input is
// silu_mul. With 10, a thread needs more than 128 registers, so that a multiprocessor never runs two
// threadgroups of such a product, but one of it and one of a product with at most 112 registers.
#define PIANOLA_SILU_READS 10

// single_norm is norm_scale for a row. With 8 SIMD groups, each thread adds up their sums itself, in
// the order of simd_sum.
static inline float single_norm(thread const product &p, float squares, threadgroup float *tg, uint lane, uint simd, uint simds) {
    if (simds != 8) {
        return norm_scale(p, squares, tg, lane, simd, simds);
    }
    squares = simd_sum(squares);
    if (lane == 0) {
        tg[simd] = squares;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float4 sums = ((threadgroup const float4 *)tg)[0] + ((threadgroup const float4 *)tg)[1];
    return rsqrt(((sums.x + sums.z) + (sums.y + sums.w)) / float(p.in) + p.eps);
}

// make_single is make_input for an input whose first part is loaded already.
template <bool Quantised, uint N>
static inline void make_single(input_rows in, threadgroup float *tg, thread input_part<N> &part, thread const product &p, uint lane, uint simd, uint simds) {
    const uint count = p.in / 4;
    const uint threads = simds * 32;
    const float norm = p.norm ? single_norm(p, row_squares(part, p, 0, lane, simd, simds), tg, lane, simd, simds) : 1.0f;
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
#define PIANOLA_SINGLE_ROOM 17408

// single_slots returns the number of steps in flight: 4 to 8 of quantised weights.
static inline uint single_slots(uint type) { return is_float(type) ? slots_of(type) : min(8u, PIANOLA_SINGLE_ROOM / slot_bytes(type)); }

// gemv_single is gemv_steps for one row, if each SIMD group has room for the slots of its copies. N is the
// number of vectors of the input that a lane loads before it uses the first.
template <uint T, uint N>
static inline void gemv_single(thread product &p, uint room, device const pianola_step *step, constant pianola_second &second, threadgroup uchar *tg, uint group, uint lane, uint simd, uint simds) {
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
    threadgroup uchar *ring = tg + gemv_bytes(p, is_float(T), simds) + simd * room;
    cursor ahead = begin;
    copy_first<T>(ring, single_slots(T), p, s, ahead, at, pieces, lane);
    // The loads are issued before the first of their values is needed.
    const bool runs = begins(step);
    const uint rows = second.rows;
    const uint tid = simd * 32 + lane;
    const float before = p.add && tid < s.count ? p.y[s.first + tid] : 0.0f;
    input_part<N> part;
    if (p.merge) {
        split_sees(p.parts, second.kv_len + second.behind);
    } else {
        load_input(part, p, 0, simd * 32, lane, simds * 32);
    }
    issued();
    if (runs && rows != 0) {
        if (p.merge) {
            make_merged<!is_float_type<T>::value>(in.x, in.q, in.d, p, lane, simd, simds);
        } else {
            make_single<!is_float_type<T>::value>(in, slots, part, p, lane, simd, simds);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        gemv_copies<T>(ring, single_slots(T), ahead, p, s, begin, at, pieces, in, slots, lane, simd);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_up(slots, p, s, 0, true, before, tid, simds);
    }
    // If the row is not active, the first copies are still in flight.
    metal::shim::wait_copies<0>();
}

#endif
#endif
