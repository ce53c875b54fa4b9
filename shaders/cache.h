// The KV cache of a layer, K or V. Position p is in row p mod cap. Kind f16 is an array
// [kv_heads, cap, d] of float16. Kind q8_0 is an array [kv_heads, cap, d] of int8, followed by
// [kv_heads, cap, d/32] float16 scales, one for each 32 elements.
#ifndef PIANOLA_CACHE_H
#define PIANOLA_CACHE_H

#include "quantise.h"
#include "quants.h"

// kv_rows holds the addresses of a head's rows, from some row on.
template <typename Values, typename Scales>
struct kv_rows_at {
    Values values; // d float16 or d int8 per row
    Scales scales; // d/32 per row; only of kind q8_0
};
typedef kv_rows_at<device const uchar *, device const half *> kv_rows;
typedef kv_rows_at<device uchar *, device half *> kv_rows_to;

// pianola_cache is the record of one of a session's caches in the memory of a CUDA device: its address and the number
// of its rows.
struct pianola_cache {
    ulong at;
    uint rows;
    uint reserved;
};

// cache_of returns the cache that a command binds. A CUDA device binds a record of the cache, unless the table is
// pooled. So the recording of a program serves all sessions, and a session's caches may move.
template <typename Cache>
static inline Cache cache_of(Cache bound, uint sequences) {
#ifdef PIANOLA_NVPTX
    if (sequences == PIANOLA_SEQUENCES_OWN) {
        return (Cache)((device const pianola_cache *)bound)->at;
    }
#endif
    (void)sequences;
    return bound;
}

// cache_rows returns the number of rows of the cache that a command binds. rows is that of the table's cache.
static inline uint cache_rows(device const uchar *bound, uint rows, uint sequences) {
#ifdef PIANOLA_NVPTX
    if (sequences == PIANOLA_SEQUENCES_OWN) {
        return ((device const pianola_cache *)bound)->rows;
    }
#endif
    (void)bound;
    (void)sequences;
    return rows;
}

// kv_rows_from returns the rows from a given one on; that row becomes row 0.
template <typename Values, typename Scales>
static inline kv_rows_at<Values, Scales> kv_rows_from(Values cache, Scales, uint kind, uint heads, uint cap, uint d, uint head, ulong row) {
    const ulong at = ulong(head) * cap + row;
    if (kind == PIANOLA_KV_Q8_0) {
        return {cache + at * d, (Scales)(cache + ulong(heads) * cap * d) + at * (d / 32)};
    }
    return {cache + 2 * at * d, (Scales)cache};
}
static inline kv_rows kv_rows_of(device const uchar *cache, uint kind, uint heads, uint cap, uint d, uint head) {
    return kv_rows_from(cache, (device const half *)cache, kind, heads, cap, d, head, 0);
}
static inline kv_rows_to kv_row_of(device uchar *cache, uint kind, uint heads, uint cap, uint d, uint head, ulong row) {
    return kv_rows_from(cache, (device half *)cache, kind, heads, cap, d, head, row);
}

// kv_eight returns 8 stored elements of a row: 8 halves, or 8 int8 and the bits of a scale.
static inline uint4 kv_eight(kv_rows rows, uint kind, uint d, ulong row, uint at) {
    if (kind == PIANOLA_KV_Q8_0) {
        const uint2 q = *(device const uint2 *)(rows.values + row * d + at);
        return uint4(q.x, q.y, *(device const ushort *)(rows.scales + row * (d / 32) + at / 32), 0);
    }
    return *(device const uint4 *)(rows.values + 2 * (row * d + at));
}

// kv_widen sets x to the elements that kv_eight returned, without the scale, and returns the
// scale.
static inline float kv_widen(uint4 words, uint kind, thread float *x) {
    if (kind == PIANOLA_KV_Q8_0) {
        PIANOLA_UNROLL
        for (uint i = 0; i < 2; i++) {
            const float4 v = signed4(words[i]);
            x[4 * i] = v.x;
            x[4 * i + 1] = v.y;
            x[4 * i + 2] = v.z;
            x[4 * i + 3] = v.w;
        }
        return half_bits(ushort(words.z));
    }
    PIANOLA_UNROLL
    for (uint i = 0; i < 4; i++) {
        const float2 pair = float2(as_type<half2>(words[i]));
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
    }
    return 1.0f;
}

// kv_one returns one element of a row.
static inline float kv_one(kv_rows rows, uint kind, uint d, ulong row, uint at) {
    if (kind == PIANOLA_KV_Q8_0) {
        return float(((device const char *)rows.values)[row * d + at]) * float(rows.scales[row * (d / 32) + at / 32]);
    }
    return float(((device const half *)rows.values)[row * d + at]);
}

// kv_quantise quantizes up to 128 elements of a head, beginning with element at; each lane
// holds four. It returns the values that the cache stores and writes them to the cache if
// requested. All lanes of a SIMD group must call it.
static inline float4 kv_quantise(float4 v, kv_rows_to to, bool writes, uint d, uint at, uint lane) {
    int q;
    const half scale = half(quantise_block(q, v));
    const uint from = at + 4 * lane;
    if (writes && from < d) {
        *(device int *)(to.values + from) = q;
        if (lane % 8 == 0) {
            to.scales[from / 32] = scale;
        }
    }
    return signed4(as_type<uint>(q)) * float(scale);
}

// kv_put writes a head from memory to a row of the cache. SIMD group simd of simds writes its
// share.
template <typename From>
static inline void kv_put(kv_rows_to to, From x, uint kind, uint d, uint lane, uint simd, uint simds) {
    if (kind == PIANOLA_KV_Q8_0) {
        for (uint at = simd * 128; at < d; at += simds * 128) {
            const uint from = at + 4 * lane;
            float4 v = float4(0.0f);
            if (from < d) {
                v = float4(x[from], x[from + 1], x[from + 2], x[from + 3]);
            }
            kv_quantise(v, to, true, d, at, lane);
        }
        return;
    }
    // A lane loads up to four elements before it stores the first.
    for (uint from = simd * 32 + lane; from < d; from += 4 * simds * 32) {
        float own[4];
        PIANOLA_UNROLL
        for (uint j = 0; j < 4; j++) {
            own[j] = x[min(from + j * simds * 32, d - 1)];
        }
        PIANOLA_UNROLL
        for (uint j = 0; j < 4; j++) {
            if (from + j * simds * 32 < d) {
                ((device half *)to.values)[from + j * simds * 32] = half(own[j]);
            }
        }
    }
}

#endif
