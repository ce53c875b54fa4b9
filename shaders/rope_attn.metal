// Attention of one row with what comes before it: QK norm, RoPE and the KV
// write.
#include "attn_row.h"

// A threadgroup does some heads that share K and V over a split's positions. It
// makes Q of its heads, and K and V of the newest position if it sees that; the
// first that does writes them. Nobody reads them from the cache.
//
// threadgroup memory: div(threads,32)*min(head_group,4)*(min(head_dim,256)+4)*4+(head_group+1)*head_dim*4 bytes
[[max_total_threads_per_threadgroup(512)]]
kernel void rope_attn(
        device const float *q               [[buffer(0)]],
        device const float *k               [[buffer(1)]],
        device const float *v               [[buffer(2)]],
        device const float *angles          [[buffer(3)]],
        device const float *norm            [[buffer(4)]],
        device half *k_cache                [[buffer(5)]],
        device half *v_cache                [[buffer(6)]],
        device float *out                   [[buffer(7)]],
        constant pianola_rope_attn_params &p [[buffer(8)]],
        constant pianola_second &s          [[buffer(9)]],
        device pianola_step *step           [[buffer(10)]],
        threadgroup uchar *tg               [[threadgroup(0)]],
        uint3 group                         [[threadgroup_position_in_grid]],
        uint tid                            [[thread_index_in_threadgroup]],
        uint lane                           [[thread_index_in_simdgroup]],
        uint simd                           [[simdgroup_index_in_threadgroup]],
        uint simds                          [[simdgroups_per_threadgroup]]) {
    if (step->stop != 0) {
        return;
    }
    const uint shared = p.heads / p.kv_heads;
    const uint groups = (shared + p.head_group - 1) / p.head_group;
    const uint kv_head = group.x / groups;
    const uint first = group.x % groups * p.head_group;
    const uint head = kv_head * shared + first;
    threadgroup float *sums = (threadgroup float *)tg;
    attn_part a;
    a.d = HEAD_DIM;
    a.k = k_cache + ulong(kv_head) * p.cap * HEAD_DIM;
    a.v = v_cache + ulong(kv_head) * p.cap * HEAD_DIM;
    a.heads = min(p.head_group, shared - first);
    a.split = SPLIT != 0;
    const uint size = a.split ? HEAD_DIM + 2 : HEAD_DIM;
    a.stride = p.splits * size;
    a.out = out + ulong(head) * a.stride + group.y * size;
    a.scale = p.scale * M_LOG2E_F;
    a.cap = WINDOWED != 0 ? p.cap : 0;
    const uint len = max(s.kv_len, 1u);
    a.begin = len - min(len, WINDOWED != 0 ? p.window : len);
    a.end = len;
    if (a.split) {
        a.begin = max(a.begin, group.y * p.span);
        a.end = min(a.end, (group.y + 1) * p.span);
        if (a.begin >= a.end) {
            attn_write_empty(a, tid, simds * 32);
            return;
        }
    }
    a.fresh = a.end == len;
    if (a.fresh) {
        a.end -= 1;
        if (a.begin == a.end) {
            a.begin = 0;
            a.end = 0;
        }
    }
    const ulong row = cache_row(kv_head, 0, s.kv_len, p.cap, HEAD_DIM);
    made_q m;
    m.q = q + ulong(head) * HEAD_DIM;
    m.k = k + ulong(kv_head) * HEAD_DIM;
    m.v = v + ulong(kv_head) * HEAD_DIM;
    m.turn = {q, norm, angles, HEAD_DIM, p.half_, LAYOUT, QK_NORM != 0, 1.0f};
    m.norm = norm;
    m.eps = p.eps;
    m.heads = a.heads;
    m.fresh = a.fresh;
    m.writes = a.fresh && first == 0;
    m.k_cache = k_cache + row;
    m.v_cache = v_cache + row;
    m.to = sums + simds * min(p.head_group, 4u) * (min(HEAD_DIM, 256u) + 4);
    m.at = m.to;
    m.made = false;
    a.new_k = new_k(m);
    a.new_v = a.new_k + HEAD_DIM;
    attend_row(a, m, HEAD_DIM, sums, tid, lane, simd, simds);
}
