// Log-probabilities from the model's logits, for the chosen token and the likeliest ones.
#include "best.h"
#include "sample.h"

#define PIANOLA_RANKED 20     // most tokens of an entry
#define PIANOLA_RANK_WORDS 42 // words of an entry

// Share is a token's probability relative to the likeliest's: 2^-31 * mantissa *
// 2^-exponent. An exponent of 39 or more stands for 0.
struct Share {
    uint mantissa;
    uint exponent;
};

// share_of returns e^-d for d of at least 0, computed as in weight.
static inline Share share_of(float d) {
    const float y = d * 1.44269504f;
    Share s = {0u, 39u};
    if (y < 39.0f) {
        const uint q = uint(y * 67108864.0f);
        const ulong f = q << 6;
        ulong p = 5676u;
        p = 65510u - ((p * f) >> 32);
        p = 661577u - ((p * f) >> 32);
        p = 5726720u - ((p * f) >> 32);
        p = 41309550u - ((p * f) >> 32);
        p = 238388332u - ((p * f) >> 32);
        p = 1031764991u - ((p * f) >> 32);
        p = 2977044472u - ((p * f) >> 32);
        s.mantissa = 0x80000000u - uint((p * f) >> 33);
        s.exponent = q >> 26;
    }
    return s;
}

static inline uint leading_zeros(ulong v) {
    const uint high = uint(v >> 32);
    return high != 0 ? clz(high) : 32 + clz(uint(v));
}

// shared returns the sum of a part, 2^39 to 2^50, times a share.
static inline ulong shared(ulong sum, Share s) {
    if (s.exponent >= 39) {
        return 0;
    }
    const uint zeros = leading_zeros(sum);
    return (((sum << zeros) >> 32) * s.mantissa) >> (zeros - 1 + s.exponent);
}

static inline ulong long_of(uint low, uint high) { return (ulong(high) << 32) | low; }

// threadgroup_sum returns the sum of v over the threads, to each of them. All threads must
// call it, with a barrier between the call and earlier uses of tg.
static inline ulong threadgroup_sum(ulong v, threadgroup uchar *tg, uint lane, uint simd, uint simds) {
    threadgroup uint *words = (threadgroup uint *)tg;
    for (ushort d = 16; d != 0; d /= 2) {
        v += long_of(simd_shuffle_xor(uint(v), d), simd_shuffle_xor(uint(v >> 32), d));
    }
    if (lane == 0) {
        words[2 * simd] = uint(v);
        words[2 * simd + 1] = uint(v >> 32);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong sum = 0;
    for (uint i = 0; i < simds; i++) {
        sum += long_of(words[2 * i], words[2 * i + 1]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return sum;
}

// Ranked is a candidate in the order of descending keys, then ascending ids.
struct Ranked {
    uint key; // 0: no token
    uint id;
};

static inline bool follows(uint key, uint id, Ranked r) { return key < r.key || (key == r.key && id > r.id); }

// take makes a token the best if it comes before the best and after last.
static inline void take(thread Best &best, uint key, uint id, Ranked last) {
    const int k = int(key ^ PIANOLA_SIGN);
    if (follows(key, id, last) && (k > best.key || (k == best.key && id < best.index))) {
        best.key = k;
        best.index = id;
    }
}

// first_of returns the best token of all threads. A barrier must separate the call from
// earlier uses of tg.
static inline Ranked first_of(Best best, threadgroup uchar *tg, uint lane, uint simd, uint simds) {
    best = threadgroup_best(best, tg, lane, simd, simds);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint key = uint(best.key) ^ PIANOLA_SIGN;
    Ranked r = {key, key == 0 ? 0u : best.index};
    return r;
}

// A threadgroup ranks a part of the vocabulary: it finds the largest key, then repeatedly
// the next one.
[[max_total_threads_per_threadgroup(1024)]]
kernel void rank_part(
        device const uint *logits            [[buffer(0)]],
        device const uint *settings          [[buffer(1)]],
        device uint *out                     [[buffer(2)]],
        constant pianola_rank_part_params &p [[buffer(8)]],
        constant pianola_second &s           [[buffer(9)]],
        device pianola_step *step            [[buffer(10)]],
        threadgroup uchar *tg                [[threadgroup(0)]],
        uint3 group                          [[threadgroup_position_in_grid]],
        uint tid                             [[thread_index_in_threadgroup]],
        uint lane                            [[thread_index_in_simdgroup]],
        uint simd                            [[simdgroup_index_in_threadgroup]],
        uint simds                           [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    const uint r = SEQUENCES == PIANOLA_SEQUENCES_MANY ? group.y : 0;
    if (r >= s.rows || row_stopped(step, r, SEQUENCES)) {
        return;
    }
    const uint sequence = row_sequence(step, r, SEQUENCES, p.pool);
    device const pianola_sampler *set = sampler_of(settings, sequence, p.stride);
    const uint count = clamp(set->ranked, 1u, uint(PIANOLA_RANKED));
    const uint first = group.x * p.part;
    const uint end = min(first + p.part, p.n);
    device uint *entry = out + (r * ((p.n + p.part - 1) / p.part) + group.x) * PIANOLA_RANK_WORDS;
    logits += ulong(r) * p.n;
    Ranked last = {0xffffffffu, 0xffffffffu};
    uint most = 0;
    for (uint i = 0; i < PIANOLA_RANKED; i++) {
        if (i < count) {
            Best best = {int(0x80000000u), 0xffffffffu};
            for (uint j = first + tid; j < end && last.key != 0; j += 32 * simds) {
                take(best, choice_key(logits[j]), j, last);
            }
            last = first_of(best, tg, lane, simd, simds);
            most = i == 0 ? last.key : most;
        } else {
            last.key = 0;
            last.id = 0;
        }
        if (tid == 0) {
            entry[2 + 2 * i] = last.key;
            entry[3 + 2 * i] = last.id;
        }
    }
    ulong sum = 0;
    for (uint j = first + tid; j < end && most != 0; j += 32 * simds) {
        const uint key = choice_key(logits[j]);
        if (key != 0) {
            const Share share = share_of(key_value(most) - key_value(key));
            sum += (ulong(share.mantissa) << 8) >> share.exponent;
        }
    }
    sum = threadgroup_sum(sum, tg, lane, simd, simds);
    if (tid == 0) {
        entry[0] = uint(sum);
        entry[1] = uint(sum >> 32);
    }
}

// log_probability returns the bits of the log-probability for a key.
static inline uint log_probability(uint key, uint most, ulong total) {
    if (key == 0) {
        return 0xff800000u;
    }
    const uint zeros = leading_zeros(total);
    const uint top = uint((total << zeros) >> 40) & 0x7fffffu;
    const float x = as_type<float>(((127 + 63 - 39 - zeros) << 23) | top);
    return as_type<uint>(key_value(key) - key_value(most) - log_of(x));
}

// One threadgroup merges the ranked tokens of the parts.
[[max_total_threads_per_threadgroup(1024)]]
kernel void rank(
        device const uint *logits       [[buffer(0)]],
        device const uint *parts        [[buffer(1)]],
        device const uint *drawn        [[buffer(2)]],
        device const uint *settings     [[buffer(3)]],
        device uint *ranks              [[buffer(4)]],
        constant pianola_rank_params &p [[buffer(8)]],
        constant pianola_second &s      [[buffer(9)]],
        device pianola_step *step       [[buffer(10)]],
        threadgroup uchar *tg           [[threadgroup(0)]],
        uint3 group                     [[threadgroup_position_in_grid]],
        uint tid                        [[thread_index_in_threadgroup]],
        uint lane                       [[thread_index_in_simdgroup]],
        uint simd                       [[simdgroup_index_in_threadgroup]],
        uint simds                      [[simdgroups_per_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    const uint r = SEQUENCES == PIANOLA_SEQUENCES_MANY ? group.y : 0;
    if (r >= s.rows || row_stopped(step, r, SEQUENCES)) {
        return;
    }
    const uint sequence = row_sequence(step, r, SEQUENCES, p.pool);
    device const pianola_sampler *set = sampler_of(settings, sequence, p.stride);
    const uint count = clamp(set->ranked, 1u, uint(PIANOLA_RANKED));
    const uint threads = 32 * simds;
    const uint number = (p.n + p.part - 1) / p.part;
    device uint *entry = ranks + (ulong(sequence) * p.entries + (row_token(step, r, SEQUENCES, s.index) + 1) % p.entries) * PIANOLA_RANK_WORDS;
    logits += ulong(r) * p.n;
    parts += ulong(r) * number * PIANOLA_RANK_WORDS;
    drawn += ulong(r) * p.pairs * 2;
    Best chosen = {int(0x80000000u), 0u};
    for (uint i = tid; i < p.pairs; i += threads) {
        consider(chosen, drawn[2 * i], drawn[2 * i + 1]);
    }
    chosen = threadgroup_best(chosen, tg, lane, simd, simds);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Ranked last = {0xffffffffu, 0xffffffffu};
    uint most = 0;
    ulong total = 0;
    for (uint i = 0; i < PIANOLA_RANKED; i++) {
        if (i >= count) {
            if (tid == 0) {
                entry[2 + 2 * i] = 0;
                entry[3 + 2 * i] = 0;
            }
            continue;
        }
        Best best = {int(0x80000000u), 0xffffffffu};
        for (uint j = tid; j < number && last.key != 0; j += threads) {
            device const uint *part = parts + j * PIANOLA_RANK_WORDS;
            uint k = 0;
            while (k < i && !follows(part[2 + 2 * k], part[3 + 2 * k], last)) {
                k++;
            }
            take(best, part[2 + 2 * k], part[3 + 2 * k], last);
        }
        last = first_of(best, tg, lane, simd, simds);
        if (i == 0) {
            most = last.key;
            for (uint j = tid; j < number && most != 0; j += threads) {
                device const uint *part = parts + j * PIANOLA_RANK_WORDS;
                if (part[2] != 0) {
                    total += shared(long_of(part[0], part[1]), share_of(key_value(most) - key_value(part[2])));
                }
            }
            total = threadgroup_sum(total, tg, lane, simd, simds);
        }
        if (tid == 0) {
            entry[2 + 2 * i] = last.id;
            entry[3 + 2 * i] = log_probability(last.key, most, total);
        }
    }
    if (tid == 0) {
        entry[0] = chosen.index;
        entry[1] = log_probability(most == 0 ? 0 : choice_key(logits[min(chosen.index, p.n - 1)]), most, total);
    }
}
