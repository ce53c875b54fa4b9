// Softmax attention over the KV cache: [kv_heads, cap, head_dim] float16,
// position p in row p mod cap.
#include "attn.h"
#include "attn_tile.h"

// load_block loads 8 elements, from element at on, of U positions of k and v
// that are 32/W apart.
template <uint W, uint U>
static inline void load_block(thread const attn_part &a, uint position, uint at, thread uint4 *k, thread uint4 *v) {
    PIANOLA_UNROLL
    for (uint u = 0; u < U; u++) {
        const ulong row = cache_at(a, position + u * (32 / W)) + at;
        k[u] = *(device const uint4 *)(a.k + row);
        v[u] = *(device const uint4 *)(a.v + row);
    }
}

// attend does G heads of a row, of which the last may not be there. W lanes
// read a position, 8 elements each; a SIMD group takes blocks of U times 32/W
// positions, which follow from the positions alone. d is a multiple of 8, at
// most 8*W.
template <uint W, uint G, uint U>
static inline void attend(thread const attn_part &a, threadgroup float *tg, uint tid, uint lane, uint simd, uint simds) {
    const uint slice = lane % W * 8;
    const bool own = slice < a.d;
    const uint at = own ? slice : 0; // lanes without elements repeat the first ones, times 0
    float q[G][8];
    float acc[G][8];
    float top[G];
    float sum[G];
    PIANOLA_UNROLL
    for (uint g = 0; g < G; g++) {
        device const float *from = a.q + min(g, a.heads - 1) * a.d + at;
        top[g] = PIANOLA_LOWEST;
        sum[g] = 0.0f;
        PIANOLA_UNROLL
        for (uint i = 0; i < 8; i++) {
            q[g][i] = own ? from[i] * a.scale : 0.0f;
            acc[g][i] = 0.0f;
        }
    }

    // The next block is on its way while one is computed.
    const uint step = 32 / W * U;
    const uint first = a.begin / step;
    uint block = first + (simd + simds - first % simds) % simds;
    uint4 k_next[U];
    uint4 v_next[U];
    load_block<W, U>(a, block * step + lane / W, at, k_next, v_next);
    for (; block * step < a.end; block += simds) {
        uint4 k[U];
        uint4 v[U];
        bool seen[U];
        PIANOLA_UNROLL
        for (uint u = 0; u < U; u++) {
            const uint position = block * step + u * (32 / W) + lane / W;
            seen[u] = position >= a.begin && position < a.end;
            k[u] = k_next[u];
            v[u] = v_next[u];
        }
        load_block<W, U>(a, (block + simds) * step + lane / W, at, k_next, v_next);
        float score[U][G];
        PIANOLA_UNROLL
        for (uint u = 0; u < U; u++) {
            float x[8];
            half8(k[u], x);
            PIANOLA_UNROLL
            for (uint g = 0; g < G; g++) {
                float s = q[g][0] * x[0];
                PIANOLA_UNROLL
                for (uint i = 1; i < 8; i++) {
                    s += q[g][i] * x[i];
                }
                PIANOLA_UNROLL
                for (uint w = W / 2; w > 0; w /= 2) {
                    s += simd_shuffle_xor(s, ushort(w));
                }
                score[u][g] = seen[u] ? s : PIANOLA_LOWEST;
            }
        }
        PIANOLA_UNROLL
        for (uint g = 0; g < G; g++) {
            float most = top[g];
            PIANOLA_UNROLL
            for (uint u = 0; u < U; u++) {
                most = max(most, score[u][g]);
            }
            const float shrink = exp2(top[g] - most);
            top[g] = most;
            sum[g] *= shrink;
            PIANOLA_UNROLL
            for (uint i = 0; i < 8; i++) {
                acc[g][i] *= shrink;
            }
            PIANOLA_UNROLL
            for (uint u = 0; u < U; u++) {
                score[u][g] = seen[u] ? exp2(score[u][g] - most) : 0.0f;
                sum[g] += score[u][g];
            }
        }
        PIANOLA_UNROLL
        for (uint u = 0; u < U; u++) {
            float x[8];
            half8(v[u], x);
            PIANOLA_UNROLL
            for (uint g = 0; g < G; g++) {
                PIANOLA_UNROLL
                for (uint i = 0; i < 8; i++) {
                    acc[g][i] += score[u][g] * x[i];
                }
            }
        }
    }

    PIANOLA_UNROLL
    for (uint g = 0; g < G; g++) {
        // The lanes that hold the same elements add up what they have.
        PIANOLA_UNROLL
        for (uint w = W; w < 32; w *= 2) {
            const float most = max(top[g], simd_shuffle_xor(top[g], ushort(w)));
            const float shrink = exp2(top[g] - most);
            top[g] = most;
            sum[g] *= shrink;
            sum[g] += simd_shuffle_xor(sum[g], ushort(w));
            PIANOLA_UNROLL
            for (uint i = 0; i < 8; i++) {
                acc[g][i] *= shrink;
                acc[g][i] += simd_shuffle_xor(acc[g][i], ushort(w));
            }
        }
        if (g < a.heads) {
            threadgroup float *part = attn_partial(tg, g * simds + simd, a.d);
            if (lane < W && own) {
                ((threadgroup float4 *)(part + slice))[0] = float4(acc[g][0], acc[g][1], acc[g][2], acc[g][3]);
                ((threadgroup float4 *)(part + slice))[1] = float4(acc[g][4], acc[g][5], acc[g][6], acc[g][7]);
            }
            if (lane == 0) {
                part[a.d] = top[g];
                part[a.d + 1] = sum[g];
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    attn_gather(a, 0, a.heads, 0, a.d, tg, tid, simds);
}

// attend_heads does all heads, up to 4 at a time.
template <uint W>
static inline void attend_heads(thread attn_part &a, threadgroup float *tg, uint tid, uint lane, uint simd, uint simds) {
    if (a.heads == 1) {
        attend<W, 1, 4>(a, tg, tid, lane, simd, simds);
    } else if (a.heads == 2) {
        attend<W, 2, 4>(a, tg, tid, lane, simd, simds);
    } else {
        const uint all = a.heads;
        for (uint h = 0; h < all; h += 4) {
            if (h > 0) {
                threadgroup_barrier(mem_flags::mem_threadgroup);
                a.q += 4 * a.d;
                a.out += 4 * a.stride;
            }
            a.heads = min(all - h, 4u);
            attend<W, 4, 2>(a, tg, tid, lane, simd, simds);
        }
    }
}

// attend_any does heads of any size, 256 elements of the output at a time: a
// SIMD group takes a position.
static inline void attend_any(thread const attn_part &a, threadgroup float *tg, uint tid, uint lane, uint simd, uint simds) {
    for (uint unit = 0; unit < a.heads * ((a.d + 255) / 256); unit++) {
        const uint head = unit % a.heads;
        const uint from = unit / a.heads * 256;
        const uint n = min(a.d - from, 256u);
        device const float *q = a.q + head * a.d;
        float acc[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        float top = PIANOLA_LOWEST;
        float sum = 0.0f;
        for (uint p = a.begin + (simd + simds - a.begin % simds) % simds; p < a.end; p += simds) {
            const ulong row = cache_at(a, p);
            float score = 0.0f;
            for (uint i = lane; i < a.d; i += 32) {
                score += q[i] * a.scale * float(a.k[row + i]);
            }
            score = simd_sum(score);
            const float most = max(top, score);
            const float shrink = exp2(top - most);
            const float weight = exp2(score - most);
            top = most;
            sum = sum * shrink + weight;
            PIANOLA_UNROLL
            for (uint j = 0; j < 8; j++) {
                const uint i = lane + 32 * j;
                acc[j] = acc[j] * shrink + (i < n ? weight * float(a.v[row + from + i]) : 0.0f);
            }
        }
        if (unit > 0) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        threadgroup float *part = attn_partial(tg, simd, n);
        PIANOLA_UNROLL
        for (uint j = 0; j < 8; j++) {
            const uint i = lane + 32 * j;
            if (i < n) {
                part[i] = acc[j];
            }
        }
        if (lane == 0) {
            part[n] = top;
            part[n + 1] = sum;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        attn_gather(a, head, 1, from, n, tg, tid, simds);
    }
}

// A threadgroup does some heads that share K and V of a row, or of row_group
// rows, over a split's positions.
//
// threadgroup memory: (1-tile)*div(threads,32)*min(head_group,4)*(min(head_dim,256)+4)*4+tile*(2560+64*div(head_dim,64)*(256+threads)) bytes
[[max_total_threads_per_threadgroup(512)]]
kernel void attn(
        device const float *q          [[buffer(0)]],
        device const half *k_cache     [[buffer(1)]],
        device const half *v_cache     [[buffer(2)]],
        device float *out              [[buffer(3)]],
        constant pianola_attn_params &p [[buffer(8)]],
        constant pianola_second &s     [[buffer(9)]],
        device pianola_step *step      [[buffer(10)]],
        threadgroup uchar *tg          [[threadgroup(0)]],
        uint3 group                    [[threadgroup_position_in_grid]],
        uint tid                       [[thread_index_in_threadgroup]],
        uint lane                      [[thread_index_in_simdgroup]],
        uint simd                      [[simdgroup_index_in_threadgroup]],
        uint simds                     [[simdgroups_per_threadgroup]]) {
    if (step->stop != 0) {
        return;
    }
    const uint tile_rows = TILE != 0 ? p.row_group : 1;
    const uint tiles = (s.rows + tile_rows - 1) / tile_rows;
    if (group.z >= tiles) {
        return;
    }
    // The last rows first: they see the most.
    const uint row = (tiles - 1 - group.z) * tile_rows;
    const uint rows = min(tile_rows, s.rows - row);
    const uint shared = p.heads / p.kv_heads;
    const uint groups = (shared + p.head_group - 1) / p.head_group;
    const uint kv_head = group.x / groups;
    const uint first = group.x % groups * p.head_group;
    const uint head = kv_head * shared + first;
    attn_part a;
    a.d = HEAD_DIM;
    a.q = q + ulong(row) * p.q_stride + ulong(head) * HEAD_DIM;
    a.k = k_cache + ulong(kv_head) * p.cap * HEAD_DIM;
    a.v = v_cache + ulong(kv_head) * p.cap * HEAD_DIM;
    a.heads = min(p.head_group, shared - first);
    a.split = SPLIT != 0;
    const uint size = a.split ? HEAD_DIM + 2 : HEAD_DIM;
    a.stride = p.splits * size;
    a.out = out + (ulong(row) * p.heads + head) * a.stride + group.y * size;
    a.scale = p.scale * M_LOG2E_F;
    a.cap = WINDOWED != 0 ? p.cap : 0;
    const uint len = max(s.kv_len, 1u) + row;
    const uint window = WINDOWED != 0 ? p.window : len + rows;
    a.begin = len - min(len, window);
    a.end = len + rows - 1;
    if (a.split) {
        a.begin = max(a.begin, group.y * p.span);
        a.end = min(a.end, (group.y + 1) * p.span);
        if (a.begin >= a.end) {
            for (uint r = 0; r < rows; r++) {
                attn_write_empty(a, tid, simds * 32);
                a.out += ulong(p.heads) * a.stride;
            }
            return;
        }
    }
    if (TILE != 0) {
        attn_rows t;
        t.rows = rows;
        t.q_stride = p.q_stride;
        t.out_stride = p.heads * a.stride;
        t.kv_len = len;
        t.window = window;
        if (HEAD_DIM <= 64) {
            attend_tile<64>(a, t, tg, tid, lane, simd, simds);
        } else if (HEAD_DIM == 80) {
            attend_tile<80>(a, t, tg, tid, lane, simd, simds);
        } else if (HEAD_DIM == 96) {
            attend_tile<96>(a, t, tg, tid, lane, simd, simds);
        } else {
            attend_tile<128>(a, t, tg, tid, lane, simd, simds);
        }
        return;
    }
    threadgroup float *sums = (threadgroup float *)tg;
    if (HEAD_DIM % 8 != 0 || HEAD_DIM > 256) {
        attend_any(a, sums, tid, lane, simd, simds);
    } else if (HEAD_DIM <= 64) {
        attend_heads<8>(a, sums, tid, lane, simd, simds);
    } else if (HEAD_DIM <= 128) {
        attend_heads<16>(a, sums, tid, lane, simd, simds);
    } else {
        attend_heads<32>(a, sums, tid, lane, simd, simds);
    }
}

// A threadgroup merges the splits of a head of a row.
//
// threadgroup memory: (splits+threads+2*div(threads,32))*4 bytes
[[max_total_threads_per_threadgroup(1024)]]
kernel void attn_merge(
        device const float *part             [[buffer(0)]],
        device float *out                    [[buffer(1)]],
        constant pianola_attn_merge_params &p [[buffer(8)]],
        constant pianola_second &s           [[buffer(9)]],
        device pianola_step *step            [[buffer(10)]],
        threadgroup uchar *tg                [[threadgroup(0)]],
        uint3 group                          [[threadgroup_position_in_grid]],
        uint tid                             [[thread_index_in_threadgroup]],
        uint lane                            [[thread_index_in_simdgroup]],
        uint simd                            [[simdgroup_index_in_threadgroup]],
        uint simds                           [[simdgroups_per_threadgroup]]) {
    if (step->stop != 0) {
        return;
    }
    if (group.y >= s.rows) {
        return;
    }
    const uint threads = simds * 32;
    threadgroup float *factors = (threadgroup float *)tg;
    threadgroup float *sums = factors + p.splits;
    threadgroup float *across = sums + threads;
    const uint size = HEAD_DIM + 2;
    const ulong unit = ulong(group.y) * p.heads + group.x;
    device const float *parts = part + unit * p.splits * size;
    device float *to = out + unit * HEAD_DIM;

    // Groups of lanes as many as the head has elements take splits in turn. The
    // first values are on their way while the factors are computed; those of
    // splits that saw no position may be anything.
    const uint width = min((HEAD_DIM + 31) / 32 * 32, threads);
    const uint ways = threads / width;
    const uint way = tid / width;
    float ahead[8];
    PIANOLA_UNROLL
    for (uint n = 0; n < 8; n++) {
        const uint i = min(tid % width, HEAD_DIM - 1);
        ahead[n] = parts[ulong(min(way + n * ways, p.splits - 1)) * size + i];
    }

    float top = PIANOLA_LOWEST;
    for (uint i = tid; i < p.splits; i += threads) {
        device const float *at = parts + ulong(i) * size + HEAD_DIM;
        top = max(top, at[1] > 0.0f ? at[0] : PIANOLA_LOWEST);
    }
    top = simd_max(top);
    if (lane == 0) {
        across[simd] = top;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    top = simd_max(lane < simds ? across[lane] : PIANOLA_LOWEST);
    float weight = 0.0f;
    for (uint i = tid; i < p.splits; i += threads) {
        device const float *at = parts + ulong(i) * size + HEAD_DIM;
        const float factor = at[1] > 0.0f ? exp(at[0] - top) : 0.0f;
        factors[i] = factor;
        weight += at[1] > 0.0f ? at[1] * factor : 0.0f;
    }
    weight = threadgroup_sum(weight, across + simds, lane, simd, simds);
    threadgroup_barrier(mem_flags::mem_threadgroup); // also with one SIMD group: factors
    const float scale = weight > 0.0f ? 1.0f / weight : 0.0f;

    for (uint from = 0; from < HEAD_DIM; from += width) {
        const uint i = from + tid % width;
        float value = 0.0f;
        if (i < HEAD_DIM && way < ways) {
            uint n = way;
            if (from == 0) {
                PIANOLA_UNROLL
                for (uint j = 0; j < 8; j++) {
                    if (n < p.splits) {
                        value += factors[n] != 0.0f ? ahead[j] * factors[n] : 0.0f;
                    }
                    n += ways;
                }
            }
            for (; n < p.splits; n += ways) {
                const float x = parts[ulong(n) * size + i];
                value += factors[n] != 0.0f ? x * factors[n] : 0.0f;
            }
        }
        if (ways > 1) {
            // All elements are done at once.
            sums[tid] = value;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint w = 1; w < ways && tid < width; w++) {
                value += sums[w * width + tid];
            }
        }
        if (i < HEAD_DIM && tid < width) {
            to[i] = value * scale;
        }
    }
}
