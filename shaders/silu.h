#ifndef PIANOLA_SILU_H
#define PIANOLA_SILU_H

#include "pianola.h"

// silu returns x / (1 + exp(-x)). The exponent is bounded because fast math assumes that there
// is no infinity; below x = -88 the result is x * 1e-38 instead of 0.
static inline float silu(float x) { return fast::divide(x, 1.0f + exp(min(-x, 88.0f))); }

// swiglu clamps gate and up to the limit and returns sigmoid(1.702 * gate) * gate * (up + 1).
static inline float swiglu(float gate, float up, float limit) {
    const float g = min(gate, limit);
    return fast::divide(g, 1.0f + exp(min(-1.702f * g, 88.0f))) * (clamp(up, -limit, limit) + 1.0f);
}

// gelu returns the tanh approximation of GELU, computed as x / (1 + exp(-z)) with z = x * (a +
// b x^2).
static inline float gelu(float x) { return fast::divide(x, 1.0f + exp(min(-x * (1.59576912160573f + 0.0713548162726009f * x * x), 88.0f))); }

// gated returns gelu or silu of x.
static inline float gated(uint activation, float x) { return activation == PIANOLA_ACTIVATION_GELU_TANH ? gelu(x) : silu(x); }

static inline float4 gated4(uint activation, float4 v) {
    return float4(gated(activation, v.x), gated(activation, v.y), gated(activation, v.z), gated(activation, v.w));
}

#endif
