// Parts of norms and of sums of the residual stream.
#ifndef PIANOLA_NORM_H
#define PIANOLA_NORM_H

#include "pianola.h"

// square_sum returns the sum of squares of the thread's part of x.
static inline float square_sum(device const float *x, uint n, uint tid, uint threads) {
    float s = 0.0f;
    if (n % 4 == 0) {
        device const float4 *x4 = (device const float4 *)x;
        for (uint i = tid; i < n / 4; i += threads) {
            s += dot(x4[i], x4[i]);
        }
        return s;
    }
    for (uint i = tid; i < n; i += threads) {
        s += x[i] * x[i];
    }
    return s;
}

// or_one returns scale, or 1 if scale is 0.
static inline float or_one(float scale) { return scale == 0.0f ? 1.0f : scale; }

// add_to adds the thread's part of delta times scale to x.
static inline void add_to(device float *x, device const float *delta, float scale, uint n, uint tid, uint threads) {
    if (n % 4 == 0) {
        device float4 *x4 = (device float4 *)x;
        device const float4 *d4 = (device const float4 *)delta;
        for (uint i = tid; i < n / 4; i += threads) {
            x4[i] += d4[i] * scale;
        }
        return;
    }
    for (uint i = tid; i < n; i += threads) {
        x[i] += delta[i] * scale;
    }
}

#endif
