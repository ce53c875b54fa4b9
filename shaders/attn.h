// Code shared by decode and prefill attention.
#ifndef PIANOLA_ATTN_H
#define PIANOLA_ATTN_H

#include "cache.h"
#include "merge.h"
#include "sequence.h"

// The initial maximum, before any score is known, and the score of an invisible position. Its
// distance to any real score is finite.
#define PIANOLA_LOWEST (-1e30f)

// Factor of the weights of V where they are float16, in addition to a q8_0 cache's scales. It keeps
// the low halves of the weights out of the subnormal range for V down to 0.1, without overflow for V
// up to 30,000.
#define PIANOLA_V_UNIT 256.0f

// tile_halves converts four int8 to float16, which is exact.
static inline uint2 tile_halves(uint q) {
    const uint above = q ^ PIANOLA_BYTES(128); // q + 128; byte 0x64 above it makes the float16 1152 + q
    const half2 zero = half2(half(1152.0f), half(1152.0f));
    return uint2(as_type<uint>(as_type<half2>(permute(above, PIANOLA_BYTES(0x64), 0x4140)) - zero),
                 as_type<uint>(as_type<half2>(permute(above, PIANOLA_BYTES(0x64), 0x4342)) - zero));
}

// halves_of returns two floats as float16 in x, and their rounding errors as float16 in y.
static inline uint2 halves_of(float x, float y) {
    const half2 v = half2(x, y);
    return uint2(as_type<uint>(v), as_type<uint>(half2(float2(x, y) - float2(v))));
}

// attn_part describes the attention of one row over a range of positions, for heads that share
// K and V. Scores are base-2 logarithms of weights; scale includes the factor log2(e).
struct attn_part {
    kv_rows k;             // [cap, d]
    kv_rows v;             // [cap, d]
    uint kind;             // element type of the cache
    device float *out;     // output of the first head
    uint stride;           // elements of out from one head to the next
    device float *states;  // maximum and weight of the first head; used only if split
    uint splits;
    uint d;                // elements of a head
    uint heads;            // number of heads, at least 1
    uint begin, end;       // the range of positions [begin, end)
    uint cap;              // rows of the ring: position p is in row p % cap of it
    uint wrap;             // the position in the ring's first row; see cache_from
    uint base;             // number of rows before the ring, which hold the attention sinks
    bool paged;            // the rows are in pages instead of a ring
    kv_pages pages;        // used only if paged
    uint head;             // K and V head, used only if paged
    uint sinks;            // number of visible sink positions
    threadgroup const float *turned; // rotated Q for the sinks, [heads, d]
    bool split;            // write sums and states for a later merge, not quotients
    bool learned;          // each head has a learned sink logit: a score without a value
    device const float *logits; // learned logit of the first head
    float scale;           // factor applied to Q·K
    float soft_cap;        // cap c: a score s becomes c*tanh(s/c), in the units of scores; 0: none
    // The newest position if this part covers it and it is not in the cache yet: K and V of [d]
    // elements each. begin to end-1 does not include it, and may be empty (0, 0).
    bool fresh;
    threadgroup const float *new_k;
    threadgroup const float *new_v;
};

// capped applies a soft cap, which must not be 0, to a score.
static inline float capped(float score, float cap) { return cap - fast::divide(2.0f * cap, 1.0f + exp(min(2.0f * score / cap, 88.0f))); }

// cache_from returns the position that is in row 0 of a ring of cap rows, for a range of at
// most cap positions that starts at begin. Positions at least cap after it wrap around to the
// first rows. Without a window it returns 0.
static inline uint cache_from(uint begin, uint cap, bool windowed) { return windowed ? begin - begin % cap : 0; }

// cache_at returns the row of a position in k and v. It clamps the position to the part's
// range.
static inline ulong cache_at(thread const attn_part &a, uint position) {
    const uint at = clamp(position, a.begin, a.end - 1);
    if (a.paged) {
        return page_row(a.pages, a.head, at);
    }
    const uint row = at - a.wrap;
    return a.base + (row < a.cap ? row : row - a.cap);
}

// sink_at returns the row of an attention sink, a position below a.sinks.
static inline ulong sink_at(thread const attn_part &a, uint position) { return a.paged ? page_row(a.pages, a.head, position) : position; }

// sinks_of returns the part that covers the attention sinks, the first positions.
static inline attn_part sinks_of(thread const attn_part &a) {
    attn_part s = a;
    s.begin = 0;
    s.end = a.sinks;
    s.wrap = 0;
    s.base = 0;
    return s;
}

// attn_place sets the output address of split i of a row, for the heads from a given one on. A
// row of out holds the values of all heads, then the states of all heads.
static inline void attn_place(thread attn_part &a, device float *out, ulong row, uint heads, uint head, uint i) {
    const uint values = heads * a.splits * a.d;
    out += row * (values + (a.split ? 2 * heads * a.splits : 0));
    a.stride = a.splits * a.d;
    a.out = out + (ulong(head) * a.splits + i) * a.d;
    a.states = out + values + 2 * (head * a.splits + i);
}

// attn_limit restricts the visible positions of a row to split number i and reports whether the
// split has any.
static inline bool attn_limit(thread attn_part &a, uint span, uint i) {
    const uint each = split_each(a.end - a.begin, a.splits, span);
    a.begin += i * each;
    a.end = min(a.end, a.begin + each);
    return a.begin < a.end;
}

// attn_partial returns the address in threadgroup memory of a SIMD group's partial result: n
// sums of a head, then its maximum and its sum of weights.
static inline threadgroup float *attn_partial(threadgroup float *tg, uint i, uint n) { return tg + i * (n + 4); }

// attn_store writes one or several elements of an output. Vectors require rows aligned to 8
// bytes.
static inline void attn_store(device float *out, float value) { out[0] = value; }
static inline void attn_store(device float *out, float4 value) {
    ((device float2 *)out)[0] = value.xy;
    ((device float2 *)out)[1] = value.zw;
}

// attn_state returns the maximum and the sum of weights stored after n elements.
static inline float2 attn_state(threadgroup const float *part, uint n, float) { return float2(part[n], part[n + 1]); }
static inline float2 attn_state(threadgroup const float *part, uint n, float4) { return *(threadgroup const float2 *)(part + n); }

// attn_gather writes n elements of the output of some heads, beginning with element first. It
// merges the partial results of all SIMD groups in order. A thread computes one T, a float or a
// float4, and reads the partial results of eight SIMD groups at a time.
template <typename T>
static inline void attn_gather(thread const attn_part &a, uint head, uint heads, uint first, uint n, threadgroup float *tg, uint tid, uint simds) {
    const uint each = n / (sizeof(T) / sizeof(float));
    for (uint e = tid; e < heads * each; e += simds * 32) {
        const uint h = heads == 1 ? 0 : e / each;
        const uint i = (e - h * each) * (sizeof(T) / sizeof(float));
        threadgroup const float *from = attn_partial(tg, h * simds, n);
        T value = T(0.0f);
        float weight = a.learned ? 1.0f : 0.0f;
        float top = a.learned ? a.logits[head + h] * M_LOG2E_F : PIANOLA_LOWEST;
        for (uint s = 0; s < simds; s += 8) {
            T x[8];
            float2 state[8];
            PIANOLA_UNROLL
            for (uint j = 0; j < 8; j++) {
                threadgroup const float *part = from + min(s + j, simds - 1) * (n + 4);
                x[j] = *(threadgroup const T *)(part + i);
                state[j] = attn_state(part, n, value);
            }
            float most = top;
            PIANOLA_UNROLL
            for (uint j = 0; j < 8; j++) {
                most = max(most, state[j].x);
            }
            const float shrink = exp2(top - most);
            top = most;
            value *= shrink;
            weight *= shrink;
            PIANOLA_UNROLL
            for (uint j = 0; j < 8; j++) {
                const float factor = s + j < simds ? exp2(state[j].x - most) : 0.0f;
                value += x[j] * factor;
                weight += state[j].y * factor;
            }
        }
        device float *out = a.out + (head + h) * a.stride;
        if (a.split) {
            attn_store(out + first + i, value);
            if (first + i == 0) {
                device float *states = a.states + 2 * (head + h) * a.splits;
                states[0] = top * M_LN2_F;
                states[1] = weight;
            }
        } else {
            attn_store(out + first + i, value * (weight > 0.0f ? 1.0f / weight : 0.0f));
        }
    }
}

#endif
