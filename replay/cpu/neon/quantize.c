// Quantization of activations to 8 bits, as doc.go defines it.
#include "neon.h"

// quantizeNEON quantizes x to q and d. c holds 127, the smallest scale and 1.
void quantizeNEON(int8_t *q, float *d, float *x, int64_t blocks, float *c) {
	float most = c[0], least = c[1], one = c[2];
	for (; blocks > 0; blocks--, q += 32, x += 32) {
		float32x4_t v[8], top = vdupq_n_f32(0);
		UNROLL for (int i = 0; i < 8; i++) {
			v[i] = vld1q_f32(x + 4 * i);
			// A comparison with NaN is false and keeps the maximum.
			float32x4_t a = vabsq_f32(v[i]);
			top = vbslq_f32(vcgtq_f32(a, top), a, top);
		}
		float scale = vmaxvq_f32(top) / most, inverse = one / scale;
		if (!(scale >= least)) scale = inverse = 0;
		*d++ = scale;
		int32x4_t n[8];
		UNROLL for (int i = 0; i < 8; i++) {
			// vminnmq returns the number if the other operand is NaN, which infinite inputs
			// cause.
			float32x4_t r = vminnmq_f32(vmulq_n_f32(v[i], inverse), vdupq_n_f32(most));
			n[i] = vcvtnq_s32_f32(vmaxnmq_f32(r, vdupq_n_f32(-most)));
		}
		UNROLL for (int h = 0; h < 2; h++) {
			int16x8_t a = vqmovn_high_s32(vqmovn_s32(n[4 * h]), n[4 * h + 1]);
			int16x8_t b = vqmovn_high_s32(vqmovn_s32(n[4 * h + 2]), n[4 * h + 3]);
			vst1q_s8(q + 16 * h, vqmovn_high_s16(vqmovn_s16(a), b));
		}
	}
}

// sumHalvesNEON sets s to the sums of n half blocks (16 elements) of q.
void sumHalvesNEON(int16_t *s, int8_t *q, int64_t n) {
	for (; n > 0; n--, q += 16) *s++ = vaddlvq_s8(vld1q_s8(q));
}

// sumBlocksNEON sets s to the sums of n blocks (32 elements) of q times their scales d.
void sumBlocksNEON(float *s, int8_t *q, float *d, int64_t n) {
	for (; n > 0; n--, q += 32) *s++ = *d++ * (float)(vaddlvq_s8(vld1q_s8(q)) + vaddlvq_s8(vld1q_s8(q + 16)));
}
