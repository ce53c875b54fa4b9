// Products of rows of superblocks of 256 elements, whose eight sub-blocks of 32 elements have
// integer scales.
#include "rows.h"

// EACH_SUB is a loop over a superblock's sub-blocks.
#define EACH_SUB(i) UNROLL for (int i = 0; i < 8; i++)

// sums holds the eight sums of products and the eight sums of minimums.
typedef struct {
	float32x4_t a, b, low, high;
} sums;

// times multiplies p by lane i of four integer scales.
INLINE int32x4_t times(int32x4_t p, int32x4_t scales, int i) {
	switch (i) {
	case 0: return vmulq_laneq_s32(p, scales, 0);
	case 1: return vmulq_laneq_s32(p, scales, 1);
	case 2: return vmulq_laneq_s32(p, scales, 2);
	default: return vmulq_laneq_s32(p, scales, 3);
	}
}

// timesF multiplies p by lane i of four float scales.
INLINE float32x4_t timesF(float32x4_t p, float32x4_t scales, int i) {
	switch (i) {
	case 0: return vmulq_laneq_f32(p, scales, 0);
	case 1: return vmulq_laneq_f32(p, scales, 1);
	case 2: return vmulq_laneq_f32(p, scales, 2);
	default: return vmulq_laneq_f32(p, scales, 3);
	}
}

// scales holds a superblock's scales: d times the scales of the activations, and the integer
// scales of every 16 elements.
typedef struct {
	float32x4_t d[2];
	int32x4_t half[4];
} scales;

// floats sets k->d to d times the scales of eight sub-blocks of activations.
INLINE void floats(scales *k, float d, const float *dx) {
	k->d[0] = vmulq_n_f32(vld1q_f32(dx), d);
	k->d[1] = vmulq_n_f32(vld1q_f32(dx + 4), d);
}

// widen sets the integer scales of the 16 half sub-blocks.
INLINE void widen(scales *k, int8x16_t v) {
	int16x8_t a = vmovl_s8(vget_low_s8(v)), b = vmovl_s8(vget_high_s8(v));
	k->half[0] = vmovl_s16(vget_low_s16(a));
	k->half[1] = vmovl_s16(vget_high_s16(a));
	k->half[2] = vmovl_s16(vget_low_s16(b));
	k->half[3] = vmovl_s16(vget_high_s16(b));
}

// add adds the products of sub-block i to the sums. first and second are the indices of the
// integer scales of its two halves.
INLINE void add(sums *t, const scales *k, int i, int first, int second, int8x16_t a, int8x16_t b, const int8_t *q) {
	int32x4_t p = vdotq_s32(vdupq_n_s32(0), a, vld1q_s8(q + 32 * i));
	int32x4_t r = vdotq_s32(vdupq_n_s32(0), b, vld1q_s8(q + 32 * i + 16));
	p = times(p, k->half[first / 4], first % 4);
	r = times(r, k->half[second / 4], second % 4);
	t->a = vaddq_f32(t->a, timesF(vcvtq_f32_s32(p), k->d[i / 4], i % 4));
	t->b = vaddq_f32(t->b, timesF(vcvtq_f32_s32(r), k->d[i / 4], i % 4));
}

// least subtracts dmin times the scales of the activations times eight integers from the sums
// of minimums.
INLINE void least(sums *t, float dmin, const float *dx, int32x4_t low, int32x4_t high) {
	t->low = vsubq_f32(t->low, vmulq_f32(vmulq_n_f32(vld1q_f32(dx), dmin), vcvtq_f32_s32(low)));
	t->high = vsubq_f32(t->high, vmulq_f32(vmulq_n_f32(vld1q_f32(dx + 4), dmin), vcvtq_f32_s32(high)));
}

// ROWS defines the product of a type. The type's function adds one superblock to the sums.
#define ROWS(type, size) \
	void rows##type##NEON(ROWS_ARGS) { \
		for (; rows > 0; rows--) { \
			float32x4_t zero = vdupq_n_f32(0); \
			sums t = {zero, zero, zero, zero}; \
			for (int64_t i = 0; i < blocks; i++, w += size) block##type(&t, w, q + 256 * i, d + 8 * i, s + 16 * i); \
			*y++ = reduce(vaddq_f32(t.a, t.low), vaddq_f32(t.b, t.high)); \
		} \
	}

// word loads 4 bytes.
INLINE uint32_t word(const uint8_t *p) { return *(const uint32_t *)p; }

// pair combines two words into 8 bytes.
INLINE uint64_t pair(uint32_t low, uint32_t high) { return low | (uint64_t)high << 32; }
