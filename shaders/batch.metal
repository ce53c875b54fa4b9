// The rows of a batch.
#include "best.h"
#include "sequence.h"

// Values of a row's stop flag, and of the step's once all rows have stopped (package sequence).
#define PIANOLA_ROW_STOP_ID 1
#define PIANOLA_ROW_STOP_UNTIL 2
#define PIANOLA_STOP_BATCH 1024

// One threadgroup chooses the tokens of all rows. A SIMD group handles one row at a time.
[[max_total_threads_per_threadgroup(1024)]]
kernel void choose_rows(
        device const uint *best          [[buffer(0)]],
        device const uint *stops         [[buffer(1)]],
        device uint *tokens              [[buffer(2)]],
        constant pianola_choose_rows_params &p [[buffer(8)]],
        constant pianola_second &s       [[buffer(9)]],
        device pianola_step *step        [[buffer(10)]],
        threadgroup uchar *tg            [[threadgroup(0)]],
        uint lane                        [[thread_index_in_simdgroup]],
        uint simd                        [[simdgroup_index_in_threadgroup]],
        uint simds                       [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    threadgroup uint *counts = (threadgroup uint *)tg;
    threadgroup uint *going = counts + simds;
    uint count = 0;
    uint goes = 0;
    for (uint r = simd; r < s.rows; r += simds) {
        device pianola_row *row = row_record(step, r);
        if (row->stop != 0) {
            continue;
        }
        device const uint *parts = best + ulong(r) * p.parts * 2;
        Best most = {int(0x80000000u), 0u};
        for (uint i = lane; i < p.parts; i += 32) {
            consider(most, parts[2 * i], parts[2 * i + 1]);
        }
        most = simd_best(most);
        const uint sequence = min(row->sequence, p.pool - 1);
        device const uint *own = stops + ulong(sequence) * (p.max_stops + 1);
        bool stop = false;
        for (uint i = lane; i < min(own[0], p.max_stops); i += 32) {
            stop = stop || own[1 + i] == most.index;
        }
        stop = simd_any(stop);
        const uint token = row->token_index + 1;
        const bool ends = stop || token >= row->until;
        count += 1;
        goes = goes | (ends ? 0u : 1u);
        if (lane == 0) {
            tokens[ulong(sequence) * p.ring + min(token, p.ring - 1)] = most.index;
            row->count += 1;
            row->position += 1;
            row->kv_len += 1;
            row->token_index = token;
            row->stop = stop ? PIANOLA_ROW_STOP_ID : ends ? PIANOLA_ROW_STOP_UNTIL : 0;
        }
    }
    if (lane == 0) {
        counts[simd] = count;
        going[simd] = goes;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd != 0) {
        return;
    }
    count = simd_sum(lane < simds ? counts[lane] : 0u);
    goes = simd_max(lane < simds ? going[lane] : 0u);
    if (lane == 0) {
        step->count += count;
        if (goes == 0) {
            step->stop = PIANOLA_STOP_BATCH;
        }
    }
}
