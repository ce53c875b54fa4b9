// The embedding's look-up. A threadgroup copies a row. There is an entry for
// each type of weights that has one; devices refuse others.
#include "pianola.h"

[[max_total_threads_per_threadgroup(1024)]]
kernel void embed(
        device const uint *tokens       [[buffer(0)]],
        device const uchar *w           [[buffer(1)]],
        device float *out               [[buffer(2)]],
        constant pianola_embed_params &p [[buffer(8)]],
        constant pianola_second &s      [[buffer(9)]],
        device pianola_step *step       [[buffer(10)]],
        uint3 group                     [[threadgroup_position_in_grid]],
        uint tid                        [[thread_index_in_threadgroup]],
        uint simds                      [[simdgroups_per_threadgroup]]) {
    if (step->stop != 0) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    const uint id = min(tokens[min(s.index + group.x, p.ring - 1)], p.vocab - 1);
    const ulong from = ulong(id) * p.n;
    device float *to = out + ulong(group.x) * p.n;
    for (uint i = tid; i < p.n; i += simds * 32) {
        float v = 0.0f;
        if (WTYPE == PIANOLA_WTYPE_F32) {
            v = ((device const float *)w)[from + i];
        } else if (WTYPE == PIANOLA_WTYPE_F16) {
            v = float(((device const half *)w)[from + i]);
        } else if (WTYPE == PIANOLA_WTYPE_BF16) {
            v = bf16_to_f32(((device const ushort *)w)[from + i]);
        }
        to[i] = v * p.scale;
    }
}
