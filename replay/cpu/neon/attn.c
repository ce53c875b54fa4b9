// The other float loops: sums of squares, and attention's operations on scores and V.
#include "neon.h"

// accumulateNEON adds the products of n elements to 16 sums.
void accumulateNEON(float *sums, float *a, float *b, int64_t n) {
	float32x4_t sum[4];
	UNROLL for (int v = 0; v < 4; v++) sum[v] = vld1q_f32(sums + 4 * v);
	for (; n >= 16; n -= 16, a += 16, b += 16) {
		UNROLL for (int v = 0; v < 4; v++) sum[v] = vfmaq_f32(sum[v], vld1q_f32(a + 4 * v), vld1q_f32(b + 4 * v));
	}
	UNROLL for (int v = 0; v < 4; v++) vst1q_f32(sums + 4 * v, sum[v]);
	for (; n > 0; n--, sums++) *sums = __builtin_fmaf(*a++, *b++, *sums);
}

// scaleMaxNEON multiplies the n elements of s by scale and sets max to their maximum. It
// ignores NaN.
void scaleMaxNEON(float *s, int64_t n, float *scale, float *max) {
	float32x4_t top = vdupq_n_f32(*max);
	float by = *scale;
	for (; n >= 4; n -= 4, s += 4) {
		float32x4_t v = vmulq_n_f32(vld1q_f32(s), by);
		vst1q_f32(s, v);
		top = vmaxnmq_f32(top, v);
	}
	for (; n > 0; n--) {
		float32x4_t v = vmulq_n_f32(vld1q_dup_f32(s), by);
		vst1q_lane_f32(s++, v, 0);
		top = vmaxnmq_f32(top, v);
	}
	*max = vmaxnmvq_f32(top);
}

// halves8 converts 8 float16 to two vectors of float32.
INLINE void halves8(float32x4_t *v, const uint8_t *p) {
	float16x8_t h = vld1q_f16((const __fp16 *)p);
	v[0] = vcvt_f32_f16(vget_low_f16(h));
	v[1] = vcvt_high_f32_f16(h);
}

// weigh adds m weighted rows of v, of n elements each, to the accumulators, width columns at a
// time. rows and width are constants.
INLINE void weigh(int rows, int width, float *acc, int64_t n, const uint8_t *v, int64_t m, const uint8_t *w, int64_t wStride) {
	float32x4_t sum[4][8];
	UNROLL for (int i = 0; i < rows; i++) {
		UNROLL for (int c = 0; c < width / 4; c++) sum[i][c] = vld1q_f32(acc + i * n + 4 * c);
	}
	for (; m > 0; m--, v += 2 * n, w += 4) {
		float32x4_t x[8];
		UNROLL for (int c = 0; c < width / 8; c++) halves8(x + 2 * c, v + 16 * c);
		UNROLL for (int i = 0; i < rows; i++) {
			float32x4_t s = vld1q_dup_f32((const float *)(w + i * wStride));
			UNROLL for (int c = 0; c < width / 4; c++) sum[i][c] = vfmaq_f32(sum[i][c], s, x[c]);
		}
	}
	UNROLL for (int i = 0; i < rows; i++) {
		UNROLL for (int c = 0; c < width / 4; c++) vst1q_f32(acc + i * n + 4 * c, sum[i][c]);
	}
}

// SCALED defines the function for the given number of accumulators: it processes width columns
// at a time, then 8, then single columns.
#define SCALED(rows, width) \
	void addScaledF16x##rows##NEON(float *acc, int64_t n, uint8_t *v, int64_t m, float *w, int64_t wStride) { \
		int64_t at = 0; \
		for (; n - at >= width; at += width) weigh(rows, width, acc + at, n, v + 2 * at, m, (uint8_t *)w, wStride); \
		for (; n - at >= 8; at += 8) weigh(rows, 8, acc + at, n, v + 2 * at, m, (uint8_t *)w, wStride); \
		for (; n > at; at++) { \
			for (int i = 0; i < rows; i++) { \
				float sum = acc[i * n + at]; \
				for (int64_t j = 0; j < m; j++) { \
					sum = __builtin_fmaf(single((uint8_t *)w + i * wStride + 4 * j), half(v + 2 * (j * n + at)), sum); \
				} \
				acc[i * n + at] = sum; \
			} \
		} \
	}

SCALED(1, 32)
SCALED(2, 32)
SCALED(4, 16)
