// Products of rows of Q2_K and Q3_K, with planes of 2 bits.
#include "rowsk.h"

INLINE void blockQ2_K(sums *t, const uint8_t *w, const int8_t *q, const float *d, const int16_t *s) {
	uint8x16_t both = vld1q_u8(w), three = vdupq_n_u8(3);
	scales k;
	floats(&k, half(w + 80), d);
	widen(&k, low(both));
	EACH_SUB(i) {
		const uint8_t *qs = w + 16 + 32 * (i / 4);
		uint8x16_t a = vld1q_u8(qs) >> (2 * (i % 4)) & three, b = vld1q_u8(qs + 16) >> (2 * (i % 4)) & three;
		add(t, &k, i, 2 * i, 2 * i + 1, vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b), q);
	}
	int16x8_t first = vmovl_s8(vget_low_s8(high(both))), second = vmovl_s8(vget_high_s8(high(both)));
	int16x8_t s0 = vld1q_s16(s), s1 = vld1q_s16(s + 8);
	int32x4_t a = vpaddq_s32(vmull_s16(vget_low_s16(first), vget_low_s16(s0)), vmull_high_s16(first, s0));
	int32x4_t b = vpaddq_s32(vmull_s16(vget_low_s16(second), vget_low_s16(s1)), vmull_high_s16(second, s1));
	least(t, half(w + 82), d, a, b);
}

INLINE void blockQ3_K(sums *t, const uint8_t *w, const int8_t *q, const float *d, const int16_t *s) {
	(void)s;
	const uint64_t four = 0x0f0f0f0f0f0f0f0f;
	const uint32_t two = 0x03030303;
	uint64_t a = pair(word(w + 96), word(w + 100));
	uint32_t c = word(w + 104);
	uint64_t first = (a & four) | pair((c & two) << 4, (c >> 2 & two) << 4);
	uint64_t second = (a >> 4 & four) | pair((c >> 4 & two) << 4, (c >> 6 & two) << 4);
	scales k;
	floats(&k, half(w + 108), d);
	widen(&k, vsubq_s8(vcombine_s8(vcreate_s8(first), vcreate_s8(second)), vdupq_n_s8(32)));
	uint8x16_t mask[2] = {vld1q_u8(w), vld1q_u8(w + 16)};
	EACH_SUB(i) {
		int8x16_t v[2];
		UNROLL for (int h = 0; h < 2; h++) {
			uint8x16_t b = vld1q_u8(w + 32 + 32 * (i / 4) + 16 * h) >> (2 * (i % 4)) & vdupq_n_u8(3);
			b |= (i < 2 ? mask[h] << (2 - i) : mask[h] >> (i - 2)) & vdupq_n_u8(4);
			v[h] = vsubq_s8(vreinterpretq_s8_u8(b), vdupq_n_s8(4));
		}
		add(t, &k, i, 2 * i, 2 * i + 1, v[0], v[1], q);
	}
}

ROWS(Q2_K, 84)
ROWS(Q3_K, 110)
