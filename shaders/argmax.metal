// argmax: choosing the next token.
#include "best.h"
#include "sequence.h"

// best_of returns the thread's best logit among first to last-1; first is a multiple of 4. If all
// are NaN it returns index first, because no key is above the lowest. Unaligned logits are read
// one by one.
static inline Best best_of(device const uint *logits, bool aligned, uint first, uint last, uint tid, uint threads) {
    Best best = {int(0x80000000u), first};
    device const uint4 *logits4 = (device const uint4 *)logits;
    const uint fours = aligned ? last / 4 : first / 4;
    for (uint i = first / 4 + tid; i < fours; i += threads) {
        const uint4 v = logits4[i];
        consider(best, v.x, 4 * i);
        consider(best, v.y, 4 * i + 1);
        consider(best, v.z, 4 * i + 2);
        consider(best, v.w, 4 * i + 3);
    }
    for (uint i = fours * 4 + tid; i < last; i += threads) {
        consider(best, logits[i], i);
    }
    return best;
}

// One threadgroup reads all logits, or the best of their parts.
[[max_total_threads_per_threadgroup(1024)]]
kernel void argmax(
        device const uint *logits        [[buffer(0)]],
        device const uint *stops         [[buffer(1)]],
        device uint *tokens              [[buffer(2)]],
        constant pianola_argmax_params &p [[buffer(8)]],
        constant pianola_second &s       [[buffer(9)]],
        device pianola_step *step        [[buffer(10)]],
        threadgroup uchar *tg            [[threadgroup(0)]],
        uint tid                         [[thread_index_in_threadgroup]],
        uint lane                        [[thread_index_in_simdgroup]],
        uint simd                        [[simdgroup_index_in_threadgroup]],
        uint simds                       [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    Best best = {int(0x80000000u), 0u};
    if (PARTS != 0) {
        for (uint i = tid; i < p.n; i += simds * 32) {
            consider(best, logits[2 * i], logits[2 * i + 1]);
        }
    } else {
        best = best_of(logits, true, 0, p.n, tid, simds * 32);
    }
    best = threadgroup_best(best, tg, lane, simd, simds);
    if (simd != 0) {
        return;
    }
    const ulong sequence = row_sequence(step, 0, SEQUENCES, p.pool);
    device const uint *own = stops + sequence * (p.max_stops + 1);
    bool stop = false;
    for (uint i = lane; i < min(own[0], p.max_stops); i += 32) {
        stop = stop || own[1 + i] == best.index;
    }
    stop = simd_any(stop);
    if (lane == 0) {
        tokens[sequence * p.ring + min(s.index, p.ring - 1)] = best.index;
        step->count += 1;
        if (stop) {
            step->stop = 1;
        }
    }
}

// A threadgroup finds the best of a part of a row.
[[max_total_threads_per_threadgroup(1024)]]
kernel void argmax_part(
        device const uint *logits             [[buffer(0)]],
        device uint *out                      [[buffer(1)]],
        constant pianola_argmax_part_params &p [[buffer(8)]],
        constant pianola_second &s            [[buffer(9)]],
        device pianola_step *step             [[buffer(10)]],
        threadgroup uchar *tg                 [[threadgroup(0)]],
        uint3 group                           [[threadgroup_position_in_grid]],
        uint tid                              [[thread_index_in_threadgroup]],
        uint lane                             [[thread_index_in_simdgroup]],
        uint simd                             [[simdgroup_index_in_threadgroup]],
        uint simds                            [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    if (group.y >= s.rows) {
        return;
    }
    const uint first = group.x * p.part;
    const ulong row = ulong(group.y) * p.n;
    device const uint *from = logits + row;
    const Best best = threadgroup_best(best_of(from, row % 4 == 0, first, min(first + p.part, p.n), tid, simds * 32), tg, lane, simd, simds);
    if (tid == 0) {
        device uint *to = out + 2 * (ulong(group.y) * ((p.n + p.part - 1) / p.part) + group.x);
        to[0] = from[best.index];
        to[1] = best.index;
    }
}
