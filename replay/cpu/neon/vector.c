// Elementwise loops of norms, RoPE and argmax. They process whole vectors, then the remaining
// elements one by one. Products and sums are rounded separately.
#include "neon.h"

// load loads 16 elements.
INLINE void load(float32x4_t *v, const float *p) {
	UNROLL for (int i = 0; i < 4; i++) v[i] = vld1q_f32(p + 4 * i);
}

// addNEON adds n elements of delta to x.
void addNEON(float *x, float *delta, int64_t n) {
	for (; n >= 16; n -= 16, x += 16, delta += 16) {
		float32x4_t a[4], b[4];
		load(a, x);
		load(b, delta);
		UNROLL for (int i = 0; i < 4; i++) vst1q_f32(x + 4 * i, a[i] + b[i]);
	}
	for (; n > 0; n--) *x++ += *delta++;
}

// scaleMulNEON sets n elements of out to (x * scale) * w; out may be x.
void scaleMulNEON(float *out, float *x, float *w, int64_t n, float *scale) {
	float by = *scale;
	for (; n >= 16; n -= 16, out += 16, x += 16, w += 16) {
		float32x4_t a[4], b[4];
		load(a, x);
		load(b, w);
		UNROLL for (int i = 0; i < 4; i++) vst1q_f32(out + 4 * i, vmulq_n_f32(a[i], by) * b[i]);
	}
	for (; n > 0; n--) *out++ = *x++ * by * *w++;
}

// rotateHalvesNEON rotates n pairs. A pair is an element x0 of x and the element x1 of high
// with the same index; angles holds the cosine and sine of each pair. x0 becomes x0*cos -
// x1*sin, x1 becomes x1*cos + x0*sin.
void rotateHalvesNEON(float *x, float *high, float *angles, int64_t n) {
	for (; n >= 4; n -= 4, x += 4, high += 4, angles += 8) {
		float32x4x2_t a = vld2q_f32(angles);
		float32x4_t x0 = vld1q_f32(x), x1 = vld1q_f32(high);
		vst1q_f32(x, x0 * a.val[0] - x1 * a.val[1]);
		vst1q_f32(high, x1 * a.val[0] + x0 * a.val[1]);
	}
	for (; n > 0; n--, angles += 2) {
		float x0 = *x, x1 = *high;
		*x++ = x0 * angles[0] - x1 * angles[1];
		*high++ = x1 * angles[0] + x0 * angles[1];
	}
}

// rotatePairsNEON does the same with n pairs of adjacent elements.
void rotatePairsNEON(float *x, float *angles, int64_t n) {
	for (; n >= 4; n -= 4, x += 8, angles += 8) {
		float32x4x2_t a = vld2q_f32(angles), v = vld2q_f32(x), r;
		r.val[0] = v.val[0] * a.val[0] - v.val[1] * a.val[1];
		r.val[1] = v.val[1] * a.val[0] + v.val[0] * a.val[1];
		vst2q_f32(x, r);
	}
	for (; n > 0; n--, x += 2, angles += 2) {
		float x0 = x[0], x1 = x[1];
		x[0] = x0 * angles[0] - x1 * angles[1];
		x[1] = x1 * angles[0] + x0 * angles[1];
	}
}

// largestNEON sets at to the index of the largest of n elements; among equal ones, the first.
// It ignores NaN; if all elements are NaN, the index is 0.
void largestNEON(float *x, int64_t n, int64_t *at) {
	float32x4_t top[4];
	UNROLL for (int i = 0; i < 4; i++) top[i] = vdupq_n_f32(-__builtin_inff());
	int64_t i = 0;
	for (; n - i >= 16; i += 16) {
		float32x4_t v[4];
		load(v, x + i);
		// A comparison with NaN is false and keeps the maximum.
		UNROLL for (int k = 0; k < 4; k++) top[k] = vbslq_f32(v[k] > top[k], v[k], top[k]);
	}
	float most = vmaxvq_f32(vmaxq_f32(vmaxq_f32(top[0], top[1]), vmaxq_f32(top[2], top[3])));
	for (; i < n; i++) {
		if (x[i] > most) most = x[i];
	}
	for (i = 0; n - i >= 16; i += 16) {
		float32x4_t v[4];
		load(v, x + i);
		uint32x4_t equal = vorrq_u32(vorrq_u32(v[0] == most, v[1] == most), vorrq_u32(v[2] == most, v[3] == most));
		if (vmaxvq_u32(equal) != 0) break;
	}
	*at = 0;
	for (; i < n; i++) {
		if (x[i] == most) {
			*at = i;
			break;
		}
	}
}
