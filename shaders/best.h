// The largest of many elements; among equal ones, the first.
#ifndef PIANOLA_BEST_H
#define PIANOLA_BEST_H

#include "pianola.h"

// order_key maps the bits of a float32 to integers in the same order. Both zeros are equal, and
// NaN is below everything. It uses integers because fast math may optimize comparisons with NaN.
static inline int order_key(uint bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return int(0x80000000u);
    }
    if (bits == 0x80000000u) {
        return 0;
    }
    const int i = as_type<int>(bits);
    return i < 0 ? i ^ 0x7fffffff : i;
}

// Best is the largest element so far; among equal ones, the first.
struct Best {
    int key;
    uint index;
};

static inline void consider(thread Best &best, uint bits, uint index) {
    const int key = order_key(bits);
    if (key > best.key) {
        best.key = key;
        best.index = index;
    }
}

// simd_best returns the best of a SIMD group, the same in every lane.
static inline Best simd_best(Best b) {
    Best r;
    r.key = simd_max(b.key);
    r.index = simd_min(b.key == r.key ? b.index : 0xffffffffu);
    return r;
}

// threadgroup_best returns the best of a threadgroup, the same in every thread. tg must have room
// for a Best per SIMD group.
static inline Best threadgroup_best(Best best, threadgroup uchar *tg, uint lane, uint simd, uint simds) {
    best = simd_best(best);
    threadgroup int *keys = (threadgroup int *)tg;
    threadgroup uint *indexes = (threadgroup uint *)tg + simds;
    if (lane == 0) {
        keys[simd] = best.key;
        indexes[simd] = best.index;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Best mine = {keys[0], indexes[0]};
    if (lane < simds) {
        mine.key = keys[lane];
        mine.index = indexes[lane];
    }
    return simd_best(mine);
}

#endif
