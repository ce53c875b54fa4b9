// Functions of namespace precise for which NVIDIA GPUs have no instruction. The
// emulator uses these implementations too, so that tests cover them without a GPU.
#pragma once
#pragma clang system_header

namespace metal {
namespace shim {
// quarter sets q to the nearest integer to x / (pi/2) and returns x - q * pi/2.
// pi/2 is represented as the sum of three floats. For |x| below 2^23 * pi/2 the
// first product and the first difference are exact, so the error comes from the
// second rounding. It is about 2^-25.
PIANOLA_INLINE float quarter(float x, thread int &q) {
    const float n = __builtin_rintf(x * 0.636619772367581343f);
    q = (int)n;
    float r = __builtin_fmaf(n, -0x1.921fb6p+0f, x);
    r = __builtin_fmaf(n, 0x1.777a5cp-25f, r);
    return __builtin_fmaf(n, 0x1.ee59dap-50f, r);
}

// Sine and cosine on [-pi/4, pi/4], with the polynomials of the Cephes library.
PIANOLA_INLINE float sin_quarter(float r) {
    const float s = r * r;
    float p = __builtin_fmaf(s, -1.9515295891e-4f, 8.3321608736e-3f);
    p = __builtin_fmaf(p, s, -1.6666654611e-1f);
    return __builtin_fmaf(p * s, r, r);
}
PIANOLA_INLINE float cos_quarter(float r) {
    const float s = r * r;
    float p = __builtin_fmaf(s, 2.443315711809948e-5f, -1.388731625493765e-3f);
    p = __builtin_fmaf(p, s, 4.166664568298827e-2f);
    return __builtin_fmaf(p, s * s, __builtin_fmaf(s, -0.5f, 1.0f));
}
} // namespace shim

namespace precise {
PIANOLA_INLINE float sin(float x) {
    int q;
    const float r = shim::quarter(x, q);
    const float v = (q & 1) ? shim::cos_quarter(r) : shim::sin_quarter(r);
    return (q & 2) ? -v : v;
}
PIANOLA_INLINE float cos(float x) {
    int q;
    const float r = shim::quarter(x, q);
    const float v = (q & 1) ? shim::sin_quarter(r) : shim::cos_quarter(r);
    return ((q + 1) & 2) ? -v : v;
}

// exp uses the polynomial of Cephes' expf. The error is at most 2 units in the last
// place. The result is 0 for x below -87.33654.
PIANOLA_INLINE float exp(float x) {
    const float c = __builtin_fminf(__builtin_fmaxf(x, -87.33654f), 88.72283f);
    const float n = __builtin_rintf(c * 1.44269504088896340736f);
    float r = __builtin_fmaf(n, -0.693359375f, c);
    r = __builtin_fmaf(n, 2.12194440e-4f, r);
    float y = __builtin_fmaf(r, 1.9875691500e-4f, 1.3981999507e-3f);
    y = __builtin_fmaf(y, r, 8.3334519073e-3f);
    y = __builtin_fmaf(y, r, 4.1665795894e-2f);
    y = __builtin_fmaf(y, r, 1.6666665459e-1f);
    y = __builtin_fmaf(y, r, 5.0000001201e-1f);
    y = __builtin_fmaf(y, r * r, r) + 1.0f;
    // Multiply by 2^n in two steps, since 2^128 is not a float.
    const int i = (int)n, h = i >> 1;
    y = y * __builtin_bit_cast(float, (h + 127) << 23) * __builtin_bit_cast(float, (i - h + 127) << 23);
    return x < -87.33654f ? 0.0f : y;
}
PIANOLA_INLINE float tanh(float x) {
    const float a = __builtin_fabsf(x);
    const float r = a < 0.02f ? __builtin_fmaf(a * a * a, -1.0f / 3.0f, a) : 1.0f - 2.0f / (exp(2.0f * a) + 1.0f);
    return __builtin_copysignf(r, x);
}
} // namespace precise
} // namespace metal
