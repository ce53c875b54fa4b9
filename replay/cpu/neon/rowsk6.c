// Products of rows of Q6_K and IQ4_XS.
#include "rowsk.h"

INLINE void blockQ6_K(sums *t, const uint8_t *w, const int8_t *q, const float *d, const int16_t *s) {
	(void)s;
	scales k;
	floats(&k, half(w + 208), d);
	widen(&k, vld1q_s8((const int8_t *)w + 192));
	EACH_SUB(i) {
		int part = i % 4;
		int8x16_t v[2];
		UNROLL for (int h = 0; h < 2; h++) {
			uint8x16_t b = vld1q_u8(w + 64 * (i / 4) + 32 * (part % 2) + 16 * h);
			uint8x16_t c = vld1q_u8(w + 128 + 32 * (i / 4) + 16 * h);
			b = part < 2 ? b & vdupq_n_u8(15) : b >> 4;
			b |= (part < 2 ? c << (4 - 2 * part) : c >> (2 * part - 4)) & vdupq_n_u8(0x30);
			v[h] = vsubq_s8(vreinterpretq_s8_u8(b), vdupq_n_s8(32));
		}
		add(t, &k, i, 2 * i, 2 * i + 1, v[0], v[1], q);
	}
}

INLINE void blockIQ4_XS(sums *t, const uint8_t *w, const int8_t *q, const float *d, const int16_t *s) {
	(void)s;
	uint32_t top = w[2] | w[3] << 8, low4 = word(w + 4);
	int8x16_t table = LEVELS_IQ4;
	scales k;
	floats(&k, half(w), d);
	EACH_SUB(i) {
		int32_t scale = (int32_t)((low4 >> (4 * i) & 15) | (top >> (2 * i) & 3) << 4) - 32;
		uint8x16_t b = vld1q_u8(w + 8 + 16 * i);
		k.half[0] = vdupq_n_s32(scale);
		add(t, &k, i, 0, 0, lookUp(table, low(b)), lookUp(table, high(b)), q);
	}
}

ROWS(Q6_K, 210)
ROWS(IQ4_XS, 136)
