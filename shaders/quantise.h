// Quantization of activations and of the KV cache to int8 in blocks of 32.
#ifndef PIANOLA_QUANTISE_H
#define PIANOLA_QUANTISE_H

#include "pianola.h"

// quantise_block quantizes a lane's four elements of a block of 32, which eight lanes share,
// and returns the block's scale. All devices compute the same integers.
static inline float quantise_block(thread int &q, float4 v) {
    float most = max(max(abs(v.x), abs(v.y)), max(abs(v.z), abs(v.w)));
    most = max(most, simd_shuffle_xor(most, ushort(1)));
    most = max(most, simd_shuffle_xor(most, ushort(2)));
    most = max(most, simd_shuffle_xor(most, ushort(4)));
    // The correctly rounded quotient most/127, unless it is below the smallest normal number:
    // the fused remainder corrects the first guess.
    const float guess = most * (1.0f / 127.0f);
    const float scale = fma(fma(-127.0f, guess, most), 1.0f / 127.0f, guess);
    const bool small = scale < FLT_MIN;
    q = round_bytes(v * (small ? 0.0f : reciprocal(scale)));
    return small ? 0.0f : scale;
}

#endif
