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
// one row.
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
    if (group.y != 0 && group.y + past - 1 >= s.rows) {
        return;
    }
    const ulong size = ulong(past) * p.n;
    const uint last = min(p.n, (group.x + 1) * p.group);
    for (uint c = group.x * p.group + tid; c < last; c += simds * 32) {
        device const float *taps = w + ulong(c) * p.taps;
        const float add = BIAS != 0 ? bias[c] : 0.0f;
        if (group.y != 0) {
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
        device const float *from = state + size * state_entry(s.index, p.live, p.saved) + c;
        PIANOLA_UNROLL
        for (uint t = 0; t < PIANOLA_TAPS - 1; t++) {
            const uint skip = PIANOLA_TAPS - 1 - past;
            before[t] = t >= skip && s.index != 0 ? from[ulong(t - skip) * p.n] : 0.0f;
        }
        for (uint row = 0; row < min(past, s.rows); row++) {
            float y = add;
            PIANOLA_UNROLL
            for (uint t = 0; t < PIANOLA_TAPS - 1; t++) {
                const uint at = t + past + 1 - PIANOLA_TAPS; // the tap of before[t] at row 0
                if (t + past + 1 >= PIANOLA_TAPS + row) {
                    y += taps[at - row] * before[t];
                }
            }
            for (uint r = 0; r <= row; r++) {
                y += taps[past - row + r] * conv_input(x, r, p.x_stride, p.n, c, CONV);
            }
            conv_store(out, x, row, p.x_stride, p.n, c, CONV, y);
        }
        const uint end = s.index + s.rows;
        for (uint position = s.index; position < end;) {
            position = next_stored(position, end, p.each);
            const uint rows = position - s.index; // rows before the position
            device float *to = state + size * state_entry(position, p.live, p.saved) + c;
            // The last inputs before the position: those of rows, and before them of the state.
            PIANOLA_UNROLL
            for (uint t = 0; t < PIANOLA_TAPS - 1; t++) {
                const uint skip = PIANOLA_TAPS - 1 - past;
                if (t >= skip + rows) {
                    to[ulong(t - skip - rows) * p.n] = before[t];
                }
            }
            for (uint r = rows - min(rows, past); r < rows; r++) {
                to[ulong(r + past - rows) * p.n] = conv_input(x, r, p.x_stride, p.n, c, CONV);
            }
        }
    }
}
