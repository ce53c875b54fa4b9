// Selection of the tokens that a sampler keeps, by one threadgroup. replay/cpu/filter.go keeps
// the same tokens.
#ifndef PIANOLA_FILTER_H
#define PIANOLA_FILTER_H

#include "sample.h"

#define PIANOLA_BINS 2048      // bins of the histogram
#define PIANOLA_SHORTLIST 2048 // largest number of tokens that are sorted
#define PIANOLA_UNLISTED 0xffffffffu

// Team is a thread's place in its threadgroup.
struct Team {
    uint tid;
    uint lane;
    uint simd;
    uint simds;
};

// Memory is the threadgroup's memory: a histogram or, in its place, a list; and words for
// communication between threads.
struct Memory {
    threadgroup atomic_uint *counts; // [PIANOLA_BINS]
    threadgroup atomic_uint *low;    // [PIANOLA_BINS], low words of the sums of weights
    threadgroup atomic_uint *high;
    threadgroup uint *keys; // [PIANOLA_SHORTLIST]
    threadgroup uint *ids;
    threadgroup uint *scans; // [64]
    threadgroup uint *words; // [8]
};

static_assert(4 * (3 * PIANOLA_BINS + 64 + 8) <= PIANOLA_TGMEM_SAMPLE_FILTER(), "Memory is more than sample_filter declares");
static_assert(2 * PIANOLA_SHORTLIST <= 3 * PIANOLA_BINS, "the list does not fit in place of the histogram");

// Filter describes the tokens kept so far; it is the same in every thread. Tokens are ordered
// by descending key, then ascending id, and the filter keeps all tokens up to (limit, id). To
// find the next limit, the search narrows a class: the tokens of one bin whose leading bits of
// key and id have given values.
struct Filter {
    uint limit;
    uint id;
    uint most; // the largest key of the vocabulary
    float value;
    float scale;
    uint listed; // length of the sorted list, or PIANOLA_UNLISTED
    uint floor;  // tokens with smaller keys are dropped
    uint level;  // number of digits that define the class
    uint bin;
    uint key;
    uint key_mask;
    uint id_bits;
    uint id_mask;
};

static inline bool kept(thread const Filter &f, uint key, uint id) {
    return key >= f.floor && (key > f.limit || (key == f.limit && id <= f.id));
}

static inline uint bin_of(thread const Filter &f, uint key) {
    const float d = f.value - key_value(key);
    return d >= 64.0f ? PIANOLA_BINS - 1 : uint(d * 32.0f);
}

// member reports whether a kept token belongs to the class.
static inline bool member(thread const Filter &f, uint key, uint id) {
    return f.level == 0 || (bin_of(f, key) == f.bin && ((key ^ f.key) & f.key_mask) == 0 && ((id ^ f.id_bits) & f.id_mask) == 0);
}

// digit returns the next digit of a token's position in the order: first its bin, then 11, 11
// and 10 bits of its key, then 11, 11 and 2 bits of its id.
static inline uint digit(thread const Filter &f, uint key, uint id) {
    switch (f.level) {
    case 0: return bin_of(f, key);
    case 1: return ~key >> 21;
    case 2: return (~key >> 10) & 2047;
    case 3: return ~key & 1023;
    case 4: return min(id >> 13, 2047u);
    case 5: return (id >> 2) & 2047;
    }
    return id & 3;
}

// narrow appends a digit to the class.
static inline void narrow(thread Filter &f, uint d) {
    switch (f.level) {
    case 0: f.bin = d; break;
    case 1: f.key = ~d << 21, f.key_mask = 2047u << 21; break;
    case 2: f.key |= (~d & 2047) << 10, f.key_mask |= 2047u << 10; break;
    case 3: f.key |= ~d & 1023, f.key_mask |= 1023; break;
    case 4: f.id_bits = d << 13, f.id_mask = 2047u << 13; break;
    case 5: f.id_bits |= d << 2, f.id_mask |= 2047u << 2; break;
    case 6: f.id_bits |= d, f.id_mask |= 3; break;
    }
    f.level++;
}

static inline ulong wide(uint low, uint high) { return (ulong(high) << 32) | low; }

static inline ulong shuffle_up(ulong v, ushort d) { return wide(simd_shuffle_up(uint(v), d), simd_shuffle_up(uint(v >> 32), d)); }

// scan returns the sum of v over the threads before this one and sets total to the sum over all
// threads. All threads must call it.
static inline ulong scan(ulong v, thread ulong &total, Team t, Memory m) {
    ulong sum = v;
    for (ushort d = 1; d < 32; d *= 2) {
        const ulong up = shuffle_up(sum, d);
        sum += t.lane >= d ? up : 0;
    }
    if (t.lane == 31) {
        m.scans[2 * t.simd] = uint(sum);
        m.scans[2 * t.simd + 1] = uint(sum >> 32);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = 0;
    ulong before = 0;
    for (uint i = 0; i < t.simds; i++) {
        before += i < t.simd ? wide(m.scans[2 * i], m.scans[2 * i + 1]) : 0;
        total += wide(m.scans[2 * i], m.scans[2 * i + 1]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return before + sum - v;
}

// count_token adds a token to the histogram.
static inline void count_token(thread const Filter &f, uint key, uint id, bool weighted, Memory m) {
    if (!kept(f, key, id) || !member(f, key, id)) {
        return;
    }
    const uint d = digit(f, key, id);
    atomic_fetch_add_explicit(m.counts + d, 1u, memory_order_relaxed);
    if (weighted) {
        const uint w = weight(f.value - key_value(key), f.scale);
        if (atomic_fetch_add_explicit(m.low + d, w, memory_order_relaxed) > ~w) {
            atomic_fetch_add_explicit(m.high + d, 1u, memory_order_relaxed);
        }
    }
}

// list_token adds a token of the class to the list; with whole, it adds every token up to the
// class's bin. words[0] is the length of the list.
static inline void list_token(thread const Filter &f, uint key, uint id, bool whole, Memory m) {
    if (!kept(f, key, id) || !(whole ? bin_of(f, key) <= f.bin : member(f, key, id))) {
        return;
    }
    const uint at = atomic_fetch_add_explicit((threadgroup atomic_uint *)m.words, 1u, memory_order_relaxed);
    if (at < PIANOLA_SHORTLIST) {
        m.keys[at] = key;
        m.ids[at] = id;
    }
}

// Keys are the keys of a row.
struct Keys {
    device const uint *at;
    bool aligned; // to 16 bytes
};

// walk calls count_token or list_token for all tokens. Each SIMD group takes one part at a time
// and skips parts whose largest key is not kept.
static inline void walk(thread const Filter &f, bool list, bool flag, Keys keys, device const uint *largest, uint n, uint part,
                        Team t, Memory m) {
    device const uint4 *keys4 = (device const uint4 *)keys.at;
    const uint least = max(f.limit, f.floor);
    for (uint p = t.simd; p * part < n; p += t.simds) {
        const uint most = largest[p];
        if (most < least || (f.level > 0 && bin_of(f, most) > f.bin)) {
            continue;
        }
        const uint first = p * part;
        const uint last = min(first + part, n);
        for (uint i = first / 4 + t.lane; i < (last + 3) / 4; i += 32) {
            uint4 key = uint4(0);
            if (keys.aligned && 4 * i + 4 <= last) {
                key = keys4[i];
            } else {
                key.x = keys.at[4 * i];
                key.y = 4 * i + 1 < last ? keys.at[4 * i + 1] : 0;
                key.z = 4 * i + 2 < last ? keys.at[4 * i + 2] : 0;
                key.w = !keys.aligned && 4 * i + 3 < last ? keys.at[4 * i + 3] : 0;
            }
            for (uint j = 0; j < 4; j++) {
                const uint k = j == 0 ? key.x : j == 1 ? key.y : j == 2 ? key.z : key.w;
                if (k < least) {
                    continue;
                }
                if (list) {
                    list_token(f, k, 4 * i + j, flag, m);
                } else {
                    count_token(f, k, 4 * i + j, flag, m);
                }
            }
        }
    }
}

// precedes reports whether a token comes before another in the list.
static inline bool precedes(uint key, uint id, uint other, uint other_id) { return key > other || (key == other && id < other_id); }

// sort_list sorts the first count entries of the list with a bitonic network.
static inline void sort_list(uint count, Team t, Memory m) {
    uint size = 2;
    while (size < count) {
        size *= 2;
    }
    for (uint i = count + t.tid; i < size; i += 32 * t.simds) {
        m.keys[i] = 0;
        m.ids[i] = 0xffffffffu;
    }
    for (uint k = 2; k <= size; k *= 2) {
        for (uint j = k / 2; j > 0; j /= 2) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = t.tid; i < size / 2; i += 32 * t.simds) {
                const uint a = ((i & ~(j - 1)) << 1) | (i & (j - 1));
                const uint b = a | j;
                const uint key = m.keys[a], id = m.ids[a], other = m.keys[b], other_id = m.ids[b];
                if (precedes(key, id, other, other_id) != ((a & k) == 0)) {
                    m.keys[a] = other;
                    m.ids[a] = other_id;
                    m.keys[b] = key;
                    m.ids[b] = id;
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// top_p_target returns the total weight that the tokens kept by top-p must reach.
static inline ulong top_p_target(ulong total, uint top_p) {
    const ulong low = (total & 0xffffffffu) * top_p;
    const ulong target = (total >> 32) * top_p + (low >> 32) + (uint(low) != 0 ? 1 : 0);
    return max(target, ulong(1));
}

static inline ulong measure(thread const Filter &f, uint key, bool weighted) {
    return weighted ? weight(f.value - key_value(key), f.scale) : 1;
}

// cut adds up the measure (number or weight) of the list's first count entries, starting at
// before, and sets the limit to the entry at which the sum reaches the target. A target of 0
// stands for the top-p target of the list itself.
static inline void cut(thread Filter &f, uint count, ulong before, ulong target, bool weighted, uint top_p, Team t, Memory m) {
    const uint each = (count + 32 * t.simds - 1) / (32 * t.simds);
    const uint first = min(t.tid * each, count);
    const uint last = min(first + each, count);
    ulong own = 0;
    for (uint i = first; i < last; i++) {
        own += measure(f, m.keys[i], weighted);
    }
    ulong total = 0;
    ulong sum = before + scan(own, total, t, m);
    if (target == 0) {
        target = top_p_target(total, top_p);
    }
    if (before + total < target) {
        return;
    }
    if (sum < target && target <= sum + own) {
        for (uint i = first; i < last; i++) {
            sum += measure(f, m.keys[i], weighted);
            if (sum >= target) {
                m.words[1] = m.keys[i];
                m.words[2] = m.ids[i];
                m.words[3] = i + 1;
                break;
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    f.limit = m.words[1];
    f.id = m.words[2];
    f.listed = f.listed == PIANOLA_UNLISTED ? f.listed : m.words[3];
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// floor_of returns a key that at least k tokens reach: the k-th largest of the parts' maximum
// keys. It returns 0 if there are fewer than k parts.
static inline uint floor_of(uint k, device const uint *largest, uint parts, Team t, Memory m) {
    if (k > parts || parts > PIANOLA_SHORTLIST) {
        return 0;
    }
    for (uint i = t.tid; i < parts; i += 32 * t.simds) {
        m.keys[i] = largest[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = t.tid; i < parts; i += 32 * t.simds) {
        const uint key = m.keys[i];
        uint rank = 0;
        for (uint j = 0; j < parts; j++) {
            rank += m.keys[j] > key || (m.keys[j] == key && j < i) ? 1 : 0;
        }
        if (rank == k - 1) {
            m.words[4] = key;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint floor = m.words[4];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return floor;
}

// prefix keeps the first tokens in the order that reach the target: top_k tokens or, with
// top_p, the tokens that hold this share of the total weight.
static inline void prefix(thread Filter &f, uint top_k, uint top_p, Keys keys, device const uint *largest, uint n, uint part,
                          Team t, Memory m) {
    const bool weighted = top_p != 0;
    ulong target = top_k;
    if (f.listed != PIANOLA_UNLISTED) {
        cut(f, f.listed, 0, target, weighted, top_p, t, m);
        return;
    }
    f.floor = weighted ? 0 : floor_of(top_k, largest, (n + part - 1) / part, t, m);
    f.level = 0;
    f.key_mask = f.id_mask = 0;
    ulong before = 0;
    bool whole = false;
    while (true) {
        for (uint i = t.tid; i < PIANOLA_BINS; i += 32 * t.simds) {
            atomic_store_explicit(m.counts + i, 0u, memory_order_relaxed);
            atomic_store_explicit(m.low + i, 0u, memory_order_relaxed);
            atomic_store_explicit(m.high + i, 0u, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        walk(f, false, weighted, keys, largest, n, part, t, m);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint each = (PIANOLA_BINS + 32 * t.simds - 1) / (32 * t.simds);
        const uint first = min(t.tid * each, uint(PIANOLA_BINS));
        const uint last = min(first + each, uint(PIANOLA_BINS));
        uint number = 0;
        ulong own = 0;
        for (uint i = first; i < last; i++) {
            number += atomic_load_explicit(m.counts + i, memory_order_relaxed);
            own += wide(atomic_load_explicit(m.low + i, memory_order_relaxed), atomic_load_explicit(m.high + i, memory_order_relaxed));
        }
        ulong total = 0, numbers = 0;
        uint ahead = uint(scan(number, numbers, t, m));
        ulong sum = ahead;
        if (weighted) {
            sum = scan(own, total, t, m);
        } else {
            own = number;
            total = numbers;
        }
        if (f.level == 0 && weighted) {
            target = top_p_target(total, top_p);
        }
        if (before + total < target) {
            f.floor = 0;
            return; // all tokens are kept
        }
        const ulong need = target - before;
        if (sum < need && need <= sum + own) {
            for (uint i = first; i < last; i++) {
                const uint c = atomic_load_explicit(m.counts + i, memory_order_relaxed);
                const ulong v = weighted ? wide(atomic_load_explicit(m.low + i, memory_order_relaxed), atomic_load_explicit(m.high + i, memory_order_relaxed)) : c;
                if (sum + v >= need) {
                    m.words[1] = i;
                    m.words[2] = c;
                    m.words[3] = ahead;
                    m.words[4] = uint(sum);
                    m.words[5] = uint(sum >> 32);
                    break;
                }
                sum += v;
                ahead += c;
            }
        }
        if (t.tid == 0) {
            m.words[0] = 0;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint chosen = m.words[1];
        const uint members = m.words[2];
        const uint passed = m.words[3];
        const ulong skipped = wide(m.words[4], m.words[5]);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        whole = f.level == 0 && passed + members <= PIANOLA_SHORTLIST;
        before += whole ? 0 : skipped;
        narrow(f, chosen);
        if (members <= PIANOLA_SHORTLIST || f.level == 7) {
            break;
        }
    }
    walk(f, true, whole, keys, largest, n, part, t, m);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint count = min(m.words[0], uint(PIANOLA_SHORTLIST));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sort_list(count, t, m);
    f.listed = whole ? count : PIANOLA_UNLISTED;
    f.floor = 0;
    cut(f, count, before, target, weighted, top_p, t, m);
}

// keep_above drops the tokens whose logit is below a value.
static inline void keep_above(thread Filter &f, float value, Memory m) {
    const uint key = choice_key(as_type<uint>(value));
    if (key <= f.limit) {
        return;
    }
    f.limit = key;
    f.id = 0xffffffffu;
    if (f.listed == PIANOLA_UNLISTED) {
        return;
    }
    uint low = 0, high = f.listed;
    while (low < high) {
        const uint middle = (low + high) / 2;
        if (m.keys[middle] >= key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    f.listed = low;
}

#endif
