// The causal convolution of layers with recurrent state.
#include "recurrent.h"

// The largest number of taps.
#define PIANOLA_TAPS 8

// The argument conv of these functions is the constant of that name.

// conv_input returns the input of a channel at a row.
static inline float conv_input(device const float *x, uint row, uint stride, uint n, uint c, uint conv) {
    device const float *from = x + ulong(row) * stride + c;
    return conv == PIANOLA_CONV_GATED ? from[0] * from[2 * n] : from[0];
}

// conv_store stores the output y of a channel at a row.
static inline void conv_store(device float *out, device const float *x, uint row, uint stride, uint n, uint c, uint conv, float y) {
    if (conv == PIANOLA_CONV_GATED) {
        y *= x[ulong(row) * stride + n + c];
    } else {
        y = y / (1.0f + exp(-y));
    }
    out[ulong(row) * n + c] = y;
}

// A thread computes one channel. The first threadgroup of a channel computes the rows that depend on
// the state, and stores states: they may replace the one that it has read. Each of the others computes
// one row. In a batch, every row depends on a state of its own.
[[max_total_threads_per_threadgroup(1024)]]
kernel void causal_conv(
        device const float *x               [[buffer(0)]],
        device const float *w               [[buffer(1)]],
        device const float *bias            [[buffer(2)]],
        device float *out                   [[buffer(3)]],
        device float *state                 [[buffer(4)]],
        constant pianola_causal_conv_params &p [[buffer(8)]],
        constant pianola_second &s          [[buffer(9)]],
        device pianola_step *step           [[buffer(10)]],
        uint3 group                         [[threadgroup_position_in_grid]],
        uint tid                            [[thread_index_in_threadgroup]],
        uint simds                          [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    const uint past = min(p.taps, uint(PIANOLA_TAPS)) - 1; // rows of a state
    const bool many = SEQUENCES == PIANOLA_SEQUENCES_MANY;
    if (many ? group.y >= s.rows : group.y != 0 && group.y + past - 1 >= s.rows) {
        return;
    }
    const uint r0 = many ? group.y : 0;
    if (row_stopped(step, r0, SEQUENCES)) {
        return;
    }
    const stretch at = row_stretch(step, r0, SEQUENCES, s.index, s.rows);
    const states of = row_states(step, r0, SEQUENCES, p.tables, p.table, p.pool, p.live, p.saved);
    const ulong size = ulong(past) * p.n;
    const uint last = min(p.n, (group.x + 1) * p.group);
    for (uint c = group.x * p.group + tid; c < last; c += simds * 32) {
        device const float *taps = w + ulong(c) * p.taps;
        const float add = BIAS != 0 ? bias[c] : 0.0f;
        if (!many && group.y != 0) {
            const uint row = group.y + past - 1;
            float y = add;
            for (uint t = 0; t <= past; t++) {
                y += taps[t] * conv_input(x, row + t - past, p.x_stride, p.n, c, CONV);
            }
            conv_store(out, x, row, p.x_stride, p.n, c, CONV, y);
            continue;
        }
        // The state before the first row, right-aligned.
        float before[PIANOLA_TAPS - 1];
        device const float *from = state + size * of.entry(at.begin) + c;
        PIANOLA_UNROLL
        for (uint t = 0; t < PIANOLA_TAPS - 1; t++) {
            const uint skip = PIANOLA_TAPS - 1 - past;
            before[t] = t >= skip && at.begin != 0 ? from[ulong(t - skip) * p.n] : 0.0f;
        }
        for (uint row = 0; row < min(past, at.rows); row++) {
            float y = add;
            PIANOLA_UNROLL
            for (uint t = 0; t < PIANOLA_TAPS - 1; t++) {
                const uint tap = t + past + 1 - PIANOLA_TAPS; // of before[t] at row 0
                if (t + past + 1 >= PIANOLA_TAPS + row) {
                    y += taps[tap - row] * before[t];
                }
            }
            for (uint r = 0; r <= row; r++) {
                y += taps[past - row + r] * conv_input(x, at.first + r, p.x_stride, p.n, c, CONV);
            }
            conv_store(out, x, at.first + row, p.x_stride, p.n, c, CONV, y);
        }
        for (uint position = at.begin; position < at.end;) {
            position = next_stored(position, at.end, p.each);
            const uint rows = position - at.begin; // rows before the position
            device float *to = state + size * of.entry(position) + c;
            // The last inputs before the position: those of rows, and before them of the state.
            PIANOLA_UNROLL
            for (uint t = 0; t < PIANOLA_TAPS - 1; t++) {
                const uint skip = PIANOLA_TAPS - 1 - past;
                if (t >= skip + rows) {
                    to[ulong(t - skip - rows) * p.n] = before[t];
                }
            }
            for (uint r = rows - min(rows, past); r < rows; r++) {
                to[ulong(r + past - rows) * p.n] = conv_input(x, at.first + r, p.x_stride, p.n, c, CONV);
            }
        }
    }
}
