// Products of rows of Q4_K and Q5_K, which pack their scales in the same way.
#include "rowsk.h"

// blockK4 adds a superblock of Q4_K, or of Q5_K if high is not 0. Its scales and minimums of 6
// bits are packed in 12 bytes.
INLINE void blockK4(sums *t, const uint8_t *w, const uint8_t *high, const uint8_t *qs, const int8_t *q, const float *d, const int16_t *s) {
	const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x03030303;
	uint32_t a = word(w + 4), b = word(w + 8), c = word(w + 12);
	uint64_t factors = pair(a & six, (c & four) | (a >> 6 & two) << 4);
	uint64_t minimums = pair(b & six, (c >> 4 & four) | (b >> 6 & two) << 4);
	scales k;
	floats(&k, half(w), d);
	widen(&k, vcombine_s8(vcreate_s8(factors), vdup_n_s8(0)));
	uint8x16_t fifths[2];
	if (high) {
		fifths[0] = vld1q_u8(high);
		fifths[1] = vld1q_u8(high + 16);
	}
	EACH_SUB(i) {
		uint8x16_t v[2];
		UNROLL for (int h = 0; h < 2; h++) {
			v[h] = vld1q_u8(qs + 32 * (i / 2) + 16 * h);
			v[h] = i % 2 == 0 ? vandq_u8(v[h], vdupq_n_u8(15)) : vshrq_n_u8(v[h], 4);
			if (high) v[h] |= (i < 4 ? fifths[h] << (4 - i) : fifths[h] >> (i - 4)) & vdupq_n_u8(16);
		}
		add(t, &k, i, i, i, vreinterpretq_s8_u8(v[0]), vreinterpretq_s8_u8(v[1]), q);
	}
	int16x8_t sum = vpaddq_s16(vld1q_s16(s), vld1q_s16(s + 8));
	int16x8_t min = vreinterpretq_s16_u16(vmovl_u8(vcreate_u8(minimums)));
	least(t, half(w + 2), d, vmull_s16(vget_low_s16(sum), vget_low_s16(min)), vmull_high_s16(sum, min));
}

INLINE void blockQ4_K(sums *t, const uint8_t *w, const int8_t *q, const float *d, const int16_t *s) {
	blockK4(t, w, 0, w + 16, q, d, s);
}

INLINE void blockQ5_K(sums *t, const uint8_t *w, const int8_t *q, const float *d, const int16_t *s) {
	blockK4(t, w, w + 16, w + 48, q, d, s);
}

ROWS(Q4_K, 144)
ROWS(Q5_K, 176)
