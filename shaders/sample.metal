// Sampling of a token: bias and penalties, filters, the draw.
#include "best.h"
#include "filter.h"

// adjusted returns a key after the bias, the bits of a float32, and the penalties for a
// token that occurs count times in the window.
static inline uint adjusted(uint key, uint bias, uint count, device const pianola_sampler *set) {
    if (key == 0 || bias == 0xff800000u) {
        return 0;
    }
    if ((bias & ~PIANOLA_SIGN) != 0) {
        key = choice_key(as_type<uint>(key_value(key) + as_type<float>(bias)));
    }
    if (count == 0 || key == 0) {
        return key;
    }
    const float v = key_value(key);
    const float less = fma(float(count), set->frequency, set->presence);
    const float lower = v > 0.0f ? precise::divide(v, set->repetition) - less : fma(v, set->repetition, -less);
    return choice_key(as_type<uint>(lower));
}

// A threadgroup computes the keys (see choice_key) of one part of the vocabulary from the logits,
// biases and penalties of its tokens. To do so, it counts how often each of these tokens occurs
// in the penalty window, the last set->window tokens of the session, and looks up their biases.
[[max_total_threads_per_threadgroup(1024)]]
kernel void sample_adjust(
        device const uint *logits               [[buffer(0)]],
        device const uint *tokens               [[buffer(1)]],
        device const uint *settings             [[buffer(2)]],
        device uint *keys                       [[buffer(3)]],
        device uint *largest                    [[buffer(4)]],
        constant pianola_sample_adjust_params &p [[buffer(8)]],
        constant pianola_second &s              [[buffer(9)]],
        device pianola_step *step               [[buffer(10)]],
        threadgroup uchar *tg                   [[threadgroup(0)]],
        uint3 group                             [[threadgroup_position_in_grid]],
        uint tid                                [[thread_index_in_threadgroup]],
        uint lane                               [[thread_index_in_simdgroup]],
        uint simd                               [[simdgroup_index_in_threadgroup]],
        uint simds                              [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    const uint r = SEQUENCES == PIANOLA_SEQUENCES_MANY ? group.y : 0;
    if (r >= s.rows || row_stopped(step, r, SEQUENCES)) {
        return;
    }
    const uint sequence = row_sequence(step, r, SEQUENCES, p.pool);
    device const pianola_sampler *set = sampler_of(settings, sequence, p.stride);
    device const uint *pairs = (device const uint *)(set + 1);
    logits += ulong(r) * p.n;
    keys += ulong(r) * p.n;
    largest += r * ((p.n + p.part - 1) / p.part);
    tokens += ulong(sequence) * p.ring;
    threadgroup atomic_uint *counts = (threadgroup atomic_uint *)tg;
    threadgroup uint *biases = (threadgroup uint *)tg + p.part;
    threadgroup uint *bests = (threadgroup uint *)tg + 2 * p.part;
    const uint threads = 32 * simds;
    const uint first = group.x * p.part;
    const uint n = min(p.part, p.n - first);
    for (uint i = tid; i < n; i += threads) {
        atomic_store_explicit(counts + i, 0u, memory_order_relaxed);
        biases[i] = 0;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint end = min(row_token(step, r, SEQUENCES, s.index), p.ring - 1) + 1;
    for (uint i = end - min(set->window, end) + tid; i < end; i += threads) {
        const uint id = tokens[i] - first;
        if (id < n) {
            atomic_fetch_add_explicit(counts + id, 1u, memory_order_relaxed);
        }
    }
    const uint given = min(set->biases, p.max_bias);
    for (uint i = tid; i < given; i += threads) {
        const uint id = pairs[2 * i] - first;
        if (id < n) {
            biases[id] = pairs[2 * i + 1];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint best = 0;
    for (uint i = tid; i < n; i += threads) {
        const uint key = adjusted(choice_key(logits[first + i]), biases[i], atomic_load_explicit(counts + i, memory_order_relaxed), set);
        keys[first + i] = key;
        best = max(best, key);
    }
    best = simd_max(best);
    if (lane == 0) {
        bests[simd] = best;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    best = simd_max(lane < simds ? bests[lane] : 0u);
    if (tid == 0) {
        largest[group.x] = best;
    }
}

// One threadgroup finds the last token, in the order of keys, that all filters keep.
[[max_total_threads_per_threadgroup(1024)]]
kernel void sample_filter(
        device const uint *keys                 [[buffer(0)]],
        device const uint *largest              [[buffer(1)]],
        device const uint *settings             [[buffer(2)]],
        device uint *limit                      [[buffer(3)]],
        constant pianola_sample_filter_params &p [[buffer(8)]],
        constant pianola_second &s              [[buffer(9)]],
        device pianola_step *step               [[buffer(10)]],
        threadgroup uchar *tg                   [[threadgroup(0)]],
        uint3 group                             [[threadgroup_position_in_grid]],
        uint tid                                [[thread_index_in_threadgroup]],
        uint lane                               [[thread_index_in_simdgroup]],
        uint simd                               [[simdgroup_index_in_threadgroup]],
        uint simds                              [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    const uint r = SEQUENCES == PIANOLA_SEQUENCES_MANY ? group.y : 0;
    if (r >= s.rows || row_stopped(step, r, SEQUENCES)) {
        return;
    }
    const uint sequence = row_sequence(step, r, SEQUENCES, p.pool);
    device const pianola_sampler *set = sampler_of(settings, sequence, p.stride);
    keys += ulong(r) * p.n;
    largest += r * ((p.n + p.part - 1) / p.part);
    limit += 4 * r;
    const Team t = {tid, lane, simd, simds};
    threadgroup uint *words = (threadgroup uint *)tg;
    const Memory m = {(threadgroup atomic_uint *)words, (threadgroup atomic_uint *)(words + PIANOLA_BINS),
                      (threadgroup atomic_uint *)(words + 2 * PIANOLA_BINS), words, words + PIANOLA_SHORTLIST,
                      words + 3 * PIANOLA_BINS, words + 3 * PIANOLA_BINS + 64};
    uint most = 0;
    for (uint i = tid; i * p.part < p.n; i += 32 * simds) {
        most = max(most, largest[i]);
    }
    most = simd_max(most);
    if (lane == 0) {
        m.scans[simd] = most;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    most = simd_max(lane < simds ? m.scans[lane] : 0u);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Filter f = {1u, 0xffffffffu, most, 0.0f, set->top_p_scale, PIANOLA_UNLISTED, 0u, 0u, 0u, 0u, 0u, 0u, 0u};
    const bool draws = most != 0 && as_type<uint>(set->inv_temperature) != 0;
    if (draws) {
        f.value = key_value(most);
    }
    for (uint i = 0; i < 4 && draws; i++) {
        const uint stage = i == 0 ? STAGE1 : i == 1 ? STAGE2 : i == 2 ? STAGE3 : STAGE4;
        const bool top_k = stage == PIANOLA_STAGE1_TOP_K && set->top_k != 0;
        const bool top_p = stage == PIANOLA_STAGE1_TOP_P && set->top_p != 0;
        if (top_k || top_p) {
            prefix(f, top_k ? set->top_k : 0, top_p ? set->top_p : 0, Keys{keys, SEQUENCES != PIANOLA_SEQUENCES_MANY || p.n % 4 == 0}, largest, p.n, p.part, t, m);
        } else if (stage == PIANOLA_STAGE1_MIN_P) {
            keep_above(f, f.value - set->min_p_drop, m);
        }
    }
    if (tid == 0) {
        limit[0] = f.limit;
        limit[1] = f.id;
        limit[2] = most;
        limit[3] = 0;
    }
}

// A threadgroup draws a token of its part of the vocabulary, the one with the largest
// score.
[[max_total_threads_per_threadgroup(1024)]]
kernel void sample_draw(
        device const uint *keys               [[buffer(0)]],
        device const uint *limit              [[buffer(1)]],
        device const uint *settings           [[buffer(2)]],
        device uint *out                      [[buffer(3)]],
        constant pianola_sample_draw_params &p [[buffer(8)]],
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
    const uint r = SEQUENCES == PIANOLA_SEQUENCES_MANY ? group.y : 0;
    if (r >= s.rows || row_stopped(step, r, SEQUENCES)) {
        return;
    }
    const uint sequence = row_sequence(step, r, SEQUENCES, p.pool);
    device const pianola_sampler *set = sampler_of(settings, sequence, p.stride);
    keys += ulong(r) * p.n;
    limit += 4 * r;
    out += 2 * r * ((p.n + p.part - 1) / p.part);
    const uint last = limit[0];
    const uint last_id = limit[1];
    const uint most = limit[2];
    const bool greedy = most == 0 || as_type<uint>(set->inv_temperature) == 0;
    const uint2 seed = uint2(set->seed[0], set->seed[1]);
    const float value = greedy ? 0.0f : key_value(most);
    const uint first = group.x * p.part;
    const uint end = min(first + p.part, p.n);
    Best best = {int(0x80000000u), first};
    uint bits = 0x7fc00000u; // NaN: no token is kept
    for (uint i = first + tid; i < end; i += 32 * simds) {
        const uint key = keys[i];
        uint score;
        if (greedy) {
            score = key == 0 ? 0xff800000u : as_type<uint>(key_value(key));
        } else if (key > last || (key == last && i <= last_id)) {
            score = as_type<uint>(fma(-(value - key_value(key)), set->inv_temperature, gumbel(philox(seed, i, row_token(step, r, SEQUENCES, s.index) + 1))));
        } else {
            continue;
        }
        const int before = best.key;
        consider(best, score, i);
        bits = best.key != before ? score : bits;
    }
    const uint mine = best.index;
    best = threadgroup_best(best, tg, lane, simd, simds);
    if (mine == best.index && (tid == 0 || bits != 0x7fc00000u)) {
        out[2 * group.x] = bits;
        out[2 * group.x + 1] = best.index;
    }
}
