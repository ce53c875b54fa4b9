// Loops of layers with recurrent state. Products and sums are rounded separately, except in the sums of
// dot products, which have 16 lanes like those of float.h.
#include "neon.h"

enum { lanes = 16 };

// reduce adds up the 16 sums: lanes l and l+8, then l and l+4, l and l+2, l and l+1.
INLINE float reduce(const float32x4_t *s) {
	float32x4_t v = vaddq_f32(vaddq_f32(s[0], s[2]), vaddq_f32(s[1], s[3]));
	return vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)));
}

// deltaNEON applies the gated delta rule to two rows of a state at a time. shape holds the rows, the keys,
// the rows of input, and the strides of values and out.
void deltaNEON(float *to, float *from, float *kq, float *gates, float *values, float *out, int64_t *shape) {
	int64_t keys = shape[1];
	for (int64_t i = 0; i < shape[0]; i += 2, to += 2 * keys, from += 2 * keys) {
		float *state = from, *input = kq;
		ROLL for (int64_t r = 0; r < shape[2]; r++, state = to) {
			float32x4_t a[4], b[4];
			UNROLL for (int v = 0; v < 4; v++) a[v] = b[v] = vdupq_n_f32(0);
			ROLL for (int64_t j = 0; j < keys; j += lanes) {
				UNROLL for (int v = 0; v < 4; v++) {
					float32x4_t k = vld1q_f32(input + j + 4 * v);
					a[v] = vfmaq_f32(a[v], k, vld1q_f32(state + j + 4 * v));
					b[v] = vfmaq_f32(b[v], k, vld1q_f32(state + keys + j + 4 * v));
				}
			}
			float keep = gates[2 * r], beta = gates[2 * r + 1];
			float *value = values + r * shape[3] + i, *result = out + r * shape[4] + i;
			float d = (value[0] - keep * reduce(a)) * beta, e = (value[1] - keep * reduce(b)) * beta;
			UNROLL for (int v = 0; v < 4; v++) a[v] = b[v] = vdupq_n_f32(0);
			ROLL for (int64_t j = 0; j < keys; j += lanes) {
				UNROLL for (int v = 0; v < 4; v++) {
					int64_t at = j + 4 * v;
					float32x4_t k = vld1q_f32(input + at), q = vld1q_f32(input + keys + at);
					float32x4_t g = vmulq_n_f32(vld1q_f32(state + at), keep) + vmulq_n_f32(k, d);
					float32x4_t h = vmulq_n_f32(vld1q_f32(state + keys + at), keep) + vmulq_n_f32(k, e);
					vst1q_f32(to + at, g);
					vst1q_f32(to + keys + at, h);
					a[v] = vfmaq_f32(a[v], q, g);
					b[v] = vfmaq_f32(b[v], q, h);
				}
			}
			result[0] = reduce(a);
			result[1] = reduce(b);
			input += 2 * keys;
		}
	}
}

// convolve3NEON and convolve4NEON add to each of n channels, a multiple of 4, the products of its three or
// four taps, which are adjacent in w, and its inputs in x0 to x3, in order.
void convolve3NEON(float *out, float *w, int64_t n, float *x0, float *x1, float *x2) {
	for (; n > 0; n -= 4, out += 4, w += 12, x0 += 4, x1 += 4, x2 += 4) {
		float32x4x3_t taps = vld3q_f32(w);
		float32x4_t y = vld1q_f32(out) + taps.val[0] * vld1q_f32(x0);
		y = y + taps.val[1] * vld1q_f32(x1);
		vst1q_f32(out, y + taps.val[2] * vld1q_f32(x2));
	}
}

void convolve4NEON(float *out, float *w, int64_t n, float *x0, float *x1, float *x2, float *x3) {
	for (; n > 0; n -= 4, out += 4, w += 16, x0 += 4, x1 += 4, x2 += 4, x3 += 4) {
		float32x4x4_t taps = vld4q_f32(w);
		float32x4_t y = vld1q_f32(out) + taps.val[0] * vld1q_f32(x0);
		y = y + taps.val[1] * vld1q_f32(x1);
		y = y + taps.val[2] * vld1q_f32(x2);
		vst1q_f32(out, y + taps.val[3] * vld1q_f32(x3));
	}
}
