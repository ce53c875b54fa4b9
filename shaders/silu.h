#ifndef PIANOLA_SILU_H
#define PIANOLA_SILU_H

#include "pianola.h"

// silu returns x / (1 + exp(-x)). The exponent is bounded, since fast math has
// no infinity: below -88 the result is x * 1e-38 and not 0.
static inline float silu(float x) { return fast::divide(x, 1.0f + exp(min(-x, 88.0f))); }

// swiglu returns sigmoid(1.702 * gate) * gate * (up + 1) of what is within a limit.
static inline float swiglu(float gate, float up, float limit) {
    const float g = min(gate, limit);
    return fast::divide(g, 1.0f + exp(min(-1.702f * g, 88.0f))) * (clamp(up, -limit, limit) + 1.0f);
}

// gelu returns GELU by a hyperbolic tangent, x / (1 + exp(-z)), z = x * (a + b x^2).
static inline float gelu(float x) { return fast::divide(x, 1.0f + exp(min(-x * (1.59576912160573f + 0.0713548162726009f * x * x), 88.0f))); }

// gated returns an activation of x that products have.
static inline float gated(uint activation, float x) { return activation == PIANOLA_ACTIVATION_GELU_TANH ? gelu(x) : silu(x); }

static inline float4 gated4(uint activation, float4 v) {
    return float4(gated(activation, v.x), gated(activation, v.y), gated(activation, v.z), gated(activation, v.w));
}

#endif
