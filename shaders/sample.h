// Functions that compute a random draw. The CPU device computes the same bits: each product
// is either fused with a sum explicitly, or rounded on its own.
#ifndef PIANOLA_SAMPLE_H
#define PIANOLA_SAMPLE_H

#include "sequence.h"

#define PIANOLA_SIGN 0x80000000u
#define PIANOLA_KEY_LIMIT 0x71000000u // 2^99, to which logits are clamped

// sampler_of returns the settings of a sequence, which are stride bytes apart.
static inline device const pianola_sampler *sampler_of(device const uint *settings, uint sequence, uint stride) {
    return (device const pianola_sampler *)((device const uchar *)settings + ulong(sequence) * stride);
}

// choice_key returns sampler.OrderKey of a logit's bits. A token with key 0 cannot be chosen.
static inline uint choice_key(uint bits) {
    const uint size = bits & ~PIANOLA_SIGN;
    if (size > 0x7f800000u || bits == 0xff800000u) {
        return 0;
    }
    if (size == 0) {
        return PIANOLA_SIGN;
    }
    const uint clamped = min(size, PIANOLA_KEY_LIMIT) | (bits & PIANOLA_SIGN);
    return (bits & PIANOLA_SIGN) != 0 ? ~clamped : clamped | PIANOLA_SIGN;
}

// key_value returns the logit of a key that is not 0.
static inline float key_value(uint key) {
    return as_type<float>((key & PIANOLA_SIGN) != 0 ? key & ~PIANOLA_SIGN : ~key);
}

// philox returns words 0 and 1 of Philox4x32-10 for the counter (id, place, 0, 0) and a
// seed.
static inline uint2 philox(uint2 seed, uint id, uint place) {
    uint c0 = id, c1 = place, c2 = 0, c3 = 0;
    for (uint i = 0; i < 10; i++) {
        const ulong a = ulong(0xd2511f53u) * c0;
        const ulong b = ulong(0xcd9e8d57u) * c2;
        c0 = uint(b >> 32) ^ c1 ^ seed.x;
        c2 = uint(a >> 32) ^ c3 ^ seed.y;
        c1 = uint(b);
        c3 = uint(a);
        seed.x += 0x9e3779b9u;
        seed.y += 0xbb67ae85u;
    }
    return uint2(c0, c1);
}

// log_near returns ln(1 + f), for f from sqrt(1/2)-1 to sqrt(2)-1.
static inline float log_near(float f) {
    float p = fma(f, 7.0376836292e-2f, -1.1514610310e-1f);
    p = fma(p, f, 1.1676998740e-1f);
    p = fma(p, f, -1.2420140846e-1f);
    p = fma(p, f, 1.4249322787e-1f);
    p = fma(p, f, -1.6668057665e-1f);
    p = fma(p, f, 2.0000714765e-1f);
    p = fma(p, f, -2.4999993993e-1f);
    p = fma(p, f, 3.3333331174e-1f);
    p = fma(p, f, -0.5f);
    const float z = f * f;
    return fma(p, z, f);
}

// log_of returns ln(x) of a normal x > 0.
static inline float log_of(float x) {
    const uint u = as_type<uint>(x);
    int e = int(u >> 23) - 127;
    float m = as_type<float>((u & 0x7fffffu) | 0x3f800000u);
    if (m > 1.41421356f) {
        m *= 0.5f;
        e++;
    }
    const float n = float(e);
    return fma(n, 0.693359375f, fma(n, -2.12194440e-4f, log_near(m - 1.0f)));
}

// fraction returns the 64 bits of r divided by 2^64, rounded down to 24 bits; it returns
// 2^-65 for 0.
static inline float fraction(uint2 r) {
    if ((r.x | r.y) == 0) {
        return as_type<float>(62u << 23);
    }
    const uint z = r.x != 0 ? clz(r.x) : 32 + clz(r.y);
    const ulong bits = ((ulong(r.x) << 32) | r.y) << z;
    return as_type<float>((uint(bits >> 40) & 0x7fffffu) | ((126 - z) << 23));
}

// gumbel returns -ln(-ln(1 - v)), where v is the fraction of r.
static inline float gumbel(uint2 r) {
    const float e = r.x < 0x4b000000u ? log_near(-fraction(r)) : log_of(fraction(~r));
    return -log_of(-e);
}

// weight returns 2^31 * 2^-(d * scale) as an integer.
static inline uint weight(float d, float scale) {
    const float y = d * scale;
    if (y >= 32.0f) {
        return 0;
    }
    const uint q = uint(y * 134217728.0f);
    const ulong f = q << 5;
    ulong p = 5676u;
    p = 65510u - ((p * f) >> 32);
    p = 661577u - ((p * f) >> 32);
    p = 5726720u - ((p * f) >> 32);
    p = 41309550u - ((p * f) >> 32);
    p = 238388332u - ((p * f) >> 32);
    p = 1031764991u - ((p * f) >> 32);
    p = 2977044472u - ((p * f) >> 32);
    return (0x80000000u - uint((p * f) >> 33)) >> (q >> 27);
}

#endif
