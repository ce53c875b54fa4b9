// Verification of a draft, and the next draft.
#include "best.h"

// PIANOLA_STOP_UNTIL in the stop flag means that verification has reached its end (Step.Until).
#define PIANOLA_STOP_UNTIL 512

// PIANOLA_TRUST_FAILED in a trust value means that the last draft failed. The other bits count
// the consecutive drafts that succeeded. Package table defines how the value is used.
#define PIANOLA_TRUST_MOST 12u
#define PIANOLA_TRUST_FAILED 16u
#define PIANOLA_TRUST_EACH 4
#define PIANOLA_TRUST_MORE 2

// judged returns the trust after a draft of drafted tokens, of which the first right ones were
// correct.
static inline uint judged(uint trust, uint drafted, uint right) {
    if (drafted == 0) {
        return trust;
    }
    if (right == drafted) {
        return min((trust & ~PIANOLA_TRUST_FAILED) + 1, PIANOLA_TRUST_MOST);
    }
    return 2 * right >= drafted ? 0 : PIANOLA_TRUST_FAILED;
}

// One threadgroup verifies a draft. A SIMD group handles one row; the first one also combines
// the results.
[[max_total_threads_per_threadgroup(1024)]]
kernel void accept(
        device const uint *best          [[buffer(0)]],
        device const uint *stops         [[buffer(1)]],
        device uint *tokens              [[buffer(2)]],
        constant pianola_accept_params &p [[buffer(8)]],
        constant pianola_second &s       [[buffer(9)]],
        device pianola_step *step        [[buffer(10)]],
        threadgroup uchar *tg            [[threadgroup(0)]],
        uint lane                        [[thread_index_in_simdgroup]],
        uint simd                        [[simdgroup_index_in_threadgroup]],
        uint simds                       [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    threadgroup uint *chosen = (threadgroup uint *)tg;
    threadgroup uint *drafted = chosen + p.max_rows;
    for (uint r = simd; r < s.rows; r += simds) {
        device const uint *row = best + ulong(r) * p.parts * 2;
        Best most = {int(0x80000000u), 0u};
        for (uint i = lane; i < p.parts; i += 32) {
            consider(most, row[2 * i], row[2 * i + 1]);
        }
        most = simd_best(most);
        if (lane == 0) {
            chosen[r] = most.index;
            drafted[r] = tokens[min(s.index + 1 + r, p.ring - 1)];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd != 0) {
        return;
    }
    const uint stop_ids = min(stops[0], p.max_stops);
    uint count = 0;
    bool stop = false;
    bool goes_on = true;
    while (goes_on && count < s.rows) {
        const uint id = chosen[count];
        for (uint i = lane; i < stop_ids; i += 32) {
            stop = stop || stops[1 + i] == id;
        }
        stop = simd_any(stop);
        if (lane == 0) {
            tokens[min(s.index + 1 + count, p.ring - 1)] = id;
        }
        goes_on = !stop && drafted[count] == id;
        count++;
    }
    if (lane == 0) {
        // Patches on the device have advanced the step by all rows;
        // a host has not advanced it at all.
        const uint moved = s.index + count - step->token_index;
        step->position += moved;
        step->kv_row += moved;
        step->kv_len += moved;
        step->token_index += moved;
        step->row = count - 1;
        step->count += count;
        step->drafted += s.rows - 1;
        step->accepted += count - 1;
        step->trust = judged(step->trust, s.rows - 1, count - 1);
        if (stop) {
            step->stop = 1;
        } else if (step->until != 0 && step->token_index >= step->until) {
            step->stop = PIANOLA_STOP_UNTIL;
        }
    }
}

// The key of a place in the context is the length of its match with the last tokens, then
// its position. So the largest key is the newest of the longest matches.
#define PIANOLA_PLACE_BITS 28

// One threadgroup searches all places.
[[max_total_threads_per_threadgroup(1024)]]
kernel void draft(
        device uint *tokens              [[buffer(0)]],
        constant pianola_draft_params &p [[buffer(8)]],
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
    (void)s; // s is used only in the declaration's bounds on rows
    const uint last = min(step->token_index, p.ring - 1);
    const uint end = tokens[last];
    const uint trust = step->trust;
    const uint least = (trust & PIANOLA_TRUST_FAILED) != 0 ? min(p.least + PIANOLA_TRUST_MORE, p.most) : p.least;
    const uint bound = step->until == 0 ? p.ring : max(last + 1, min(p.ring, step->until));
    const uint drafts = min(min((4u << min((trust & ~PIANOLA_TRUST_FAILED) / PIANOLA_TRUST_EACH, 15u)) - 1, p.draft), bound - 1 - last);
    uint key = 0;
    for (uint place = 1 + tid; place <= last; place += simds * 32) {
        if (tokens[place - 1] == end) {
            const uint most = min(p.most, place);
            uint same = 1;
            while (same < most && tokens[place - 1 - same] == tokens[last - same]) {
                same++;
            }
            if (same >= least) {
                key = max(key, same << PIANOLA_PLACE_BITS | place);
            }
        }
    }
    threadgroup uint *keys = (threadgroup uint *)tg;
    key = simd_max(key);
    if (lane == 0) {
        keys[simd] = key;
    }
    // All threads must have read the tokens before some are overwritten.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    key = simd_max(keys[min(lane, simds - 1)]);
    if (tid == 0) {
        step->rows = key == 0 ? 1 : 1 + drafts;
    }
    if (key == 0) {
        return;
    }
    const uint place = key & ((1u << PIANOLA_PLACE_BITS) - 1);
    const uint period = last + 1 - place;
    for (uint i = tid; i < drafts; i += simds * 32) {
        tokens[last + 1 + i] = tokens[place + i % period];
    }
}
