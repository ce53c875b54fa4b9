// The first command of a recorded token: it writes the current position to the other commands.
#include "pianola.h"
#include "patch.h"

// put_second writes one of a command's 4 secondary values. It ignores an offset that is out of
// bounds.
static inline void put_second(device uint *second, uint byte, uint value) {
    if (byte % 4 == 0 && byte <= 12) {
        second[byte / 4] = value;
    }
}

// One threadgroup writes the step's values to the secondary bytes of the commands that have a
// patch, and advances the step to the next token. The result for a command equals that of
// table.Cmd.Apply.
[[max_total_threads_per_threadgroup(1024)]]
kernel void patch(
        device const pianola_patch *patches [[buffer(0)]],
        device uint *seconds                [[buffer(1)]],
        constant pianola_patch_params &p    [[buffer(8)]],
        constant pianola_second &s          [[buffer(9)]],
        device pianola_step *step           [[buffer(10)]],
        threadgroup uchar *tg               [[threadgroup(0)]],
        uint tid                            [[thread_index_in_threadgroup]],
        uint simds                          [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    threadgroup uint *cancelled = (threadgroup uint *)tg;
    // All threads must have read the flag before it changes. Since the host may set Cancel at
    // any time, a single thread reads it and the others follow.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 0) {
        *cancelled = step->cancel;
        if (*cancelled != 0) {
            step->stop = PIANOLA_STOP_CANCEL;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (*cancelled != 0) {
        return;
    }
    (void)s; // the kernel has no secondary bytes of its own
    const uint position = step->position;
    const uint kv_row = step->kv_row;
    const uint kv_len = step->kv_len;
    const uint token = step->token_index;
    const uint row = step->row;
    const uint rows = step->rows;
    // All threads must have read the step before it changes.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < p.count; i += simds * 32) {
        const uint record = patches[i].second;
        if (record >= p.records) {
            continue;
        }
        device uint *second = seconds + ulong(record) * 4;
        const uint kind = patches[i].kind;
        uint value = 0;
        switch (kind) {
        case PIANOLA_PATCH_TOKEN: value = token; break;
        case PIANOLA_PATCH_POSITION: value = position; break;
        case PIANOLA_PATCH_KV_LEN: value = kv_len; break;
        case PIANOLA_PATCH_ARGMAX: value = token + rows; break;
        case PIANOLA_PATCH_ROW: value = row; break;
        }
        if (kind != 0) {
            put_second(second, patches[i].offset, value);
        }
        if (patches[i].rows != 0) {
            second[3] = rows;
        }
    }
    if (tid == 0) {
        step->position = position + rows;
        step->kv_row = kv_row + rows;
        step->kv_len = kv_len + rows;
        step->token_index = token + rows;
    }
}
