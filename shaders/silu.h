#ifndef PIANOLA_SILU_H
#define PIANOLA_SILU_H

#include "pianola.h"

// silu returns x / (1 + exp(-x)). The exponent is bounded, since fast math has
// no infinity: below -88 the result is x * 1e-38 and not 0.
static inline float silu(float x) { return fast::divide(x, 1.0f + exp(min(-x, 88.0f))); }

#endif
