// The embedding look-up. A threadgroup copies one row.
#include "blocks.h"
#include "sequence.h"
#include "tiles.h"

// copy_floats writes a row of floating-point weights, beginning with element from, times scale.
template <uint T>
static inline void copy_floats(device float *to, device const uchar *w, ulong from, uint n, float scale, uint tid, uint threads) {
    for (uint i = tid; i < n; i += threads) {
        float v = 0.0f;
        if (T == PIANOLA_WTYPE_F32) {
            v = ((device const float *)w)[from + i];
        } else if (T == PIANOLA_WTYPE_F16) {
            v = half_bits(((device const ushort *)w)[from + i]);
        } else {
            v = bf16_to_f32(((device const ushort *)w)[from + i]);
        }
        to[i] = v * scale;
    }
}

// value returns four elements. It adds m only if the type has minimums, because adding 0 would
// lose the sign of a zero.
template <uint T>
static inline float4 value(float d, uint q, float m) {
    return has_minimum(T) ? d * quants4<T>(q) + m : d * quants4<T>(q);
}

// copy_blocks writes a row of weights in layout Rows.
template <uint T>
static inline void copy_blocks(device float *to, device const uchar *row, uint n, float scale, uint tid, uint threads, uint wtype) {
    for (uint i = tid; i < n / 16; i += threads) {
        const block_piece p = load_piece<T>(row, i, wtype);
        const uint2 c = piece_columns(T, i);
        device float4 *a = (device float4 *)(to + c.x);
        device float4 *b = (device float4 *)(to + c.y);
        a[0] = value<T>(p.d.x, p.q.x, p.m.x) * scale;
        a[1] = value<T>(p.d.x, p.q.y, p.m.x) * scale;
        b[0] = value<T>(p.d.y, p.q.z, p.m.y) * scale;
        b[1] = value<T>(p.d.y, p.q.w, p.m.y) * scale;
    }
}

// copy_tiles writes row r of a strip in layout Tiled16.
template <uint T>
static inline void copy_tiles(device float *to, device const uchar *strip, uint r, uint n, float scale, uint tid, uint threads, uint wtype) {
    for (uint i = tid; i < n / 8; i += threads) {
        const tile_words w = load_words<T>(strip, i / 4, i % 4, r, wtype);
        device float4 *at = (device float4 *)to + i / 4 * 8 + i % 4;
        at[0] = value<T>(w.d * float(w.scale.x), w.q.x, w.m * float(w.least.x)) * scale;
        at[4] = value<T>(w.d * float(w.scale.y), w.q.y, w.m * float(w.least.y)) * scale;
    }
}

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
    if (!begins(step)) {
        return;
    }
    if (group.x >= s.rows) {
        return;
    }
    if (row_stopped(step, group.x, SEQUENCES)) {
        return;
    }
    device const uint *ring = tokens + ulong(row_sequence(step, group.x, SEQUENCES, p.pool)) * p.ring;
    const uint id = min(ring[min(row_token(step, group.x, SEQUENCES, s.index), p.ring - 1)], p.vocab - 1);
    device float *to = out + ulong(group.x) * p.n;
    const uint threads = simds * 32;
    if (WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
#define PIANOLA_CASE(type)                                                                                        \
    case PIANOLA_WTYPE_##type:                                                                                    \
        copy_tiles<PIANOLA_WTYPE_##type>(to, w + ulong(id / 16) * strip_bytes(PIANOLA_WTYPE_##type, p.n, WTYPE), id % 16, p.n, p.scale, tid, threads, WTYPE); \
        break;
        switch (WTYPE_FAMILY) {
            PIANOLA_QUANTISED(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
        return;
    }
    switch (WTYPE_FAMILY) {
#define PIANOLA_CASE(type)                                                                                        \
    case PIANOLA_WTYPE_##type:                                                                                    \
        copy_blocks<PIANOLA_WTYPE_##type>(to, w + id * row_bytes(PIANOLA_WTYPE_##type, p.n, WTYPE), p.n, p.scale, tid, threads, WTYPE); \
        break;
        PIANOLA_QUANTISED(PIANOLA_CASE)
        PIANOLA_BLOCKS_ALONE(PIANOLA_CASE)
#undef PIANOLA_CASE
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: copy_floats<PIANOLA_WTYPE_##type>(to, w, ulong(id) * p.n, p.n, p.scale, tid, threads); break;
        PIANOLA_FLOATS(PIANOLA_CASE)
#undef PIANOLA_CASE
    default: break;
    }
}
