// Products of rows of MLX's affine types in the file's layout. The quants are packed without gaps.
#include "rows.h"

// n holds the number of rows, of groups in a row, of bits, of blocks of 32 in a group, and the kind
// of scales: 0 float16, 1 bfloat16, 2 float32. orders holds, for 8 quants of a block at a time, the
// bytes that TBL collects in words, and then the shifts of these words to the right, negated.
void mlxRowsNEON(float *y, uint8_t *w, int64_t *n, uint8_t *orders, int8_t *q, float *d, int16_t *s) {
	int64_t bits = n[2], size = 4 * bits;
	uint8x16_t mask = vdupq_n_u8((uint8_t)((1 << bits) - 1));
	for (int64_t rows = n[0]; rows > 0; rows--) {
		float32x4_t a = vdupq_n_f32(0), b = a, low = a, high = a;
		int64_t i = 0;
		for (int64_t groups = n[1]; groups > 0; groups--) {
			float scale, bias;
			if (n[4] == 0) {
				scale = half(w), bias = half(w + 2), w += 4;
			} else if (n[4] == 1) {
				uint32x4_t v = vshll_n_u16(vreinterpret_u16_u32(vld1_dup_u32((const uint32_t *)w)), 16);
				scale = vgetq_lane_f32(vreinterpretq_f32_u32(v), 0);
				bias = vgetq_lane_f32(vreinterpretq_f32_u32(v), 1);
				w += 4;
			} else {
				scale = single(w), bias = single(w + 4), w += 8;
			}
			if (bits == 8) bias += 128 * scale; // the quants are less 128
			for (int64_t k = n[3]; k > 0; k--, i++, w += size) {
				int8x16_t v[2];
				if (bits == 8) {
					UNROLL for (int h = 0; h < 2; h++) v[h] = vreinterpretq_s8_u8(vld1q_u8(w + 16 * h) ^ 0x80);
				} else {
					// The halves of a block, or 8 of its bytes and its last 8 bytes if it is shorter.
					uint8x16_t from[2];
					if (bits >= 4) from[0] = vld1q_u8(w), from[1] = vld1q_u8(w + size - 16);
					else from[0] = from[1] = vcombine_u8(vld1_u8(w), vld1_u8(w + size - 8));
					UNROLL for (int h = 0; h < 2; h++) {
						uint8x16_t t[2];
						UNROLL for (int g = 0; g < 2; g++) {
							const uint8_t *o = orders + 32 * h + 16 * g;
							uint16x8_t words = vreinterpretq_u16_u8(vqtbl1q_u8(from[h], vld1q_u8(o)));
							t[g] = vreinterpretq_u8_u16(vshlq_u16(words, vld1q_s16((const int16_t *)(o + 64))));
						}
						v[h] = vreinterpretq_s8_u8(vuzp1q_u8(t[0], t[1]) & mask);
					}
				}
				float both = scale * d[i];
				int32x4_t p = vdotq_s32(vdupq_n_s32(0), v[0], vld1q_s8(q + 32 * i));
				int32x4_t r = vdotq_s32(vdupq_n_s32(0), v[1], vld1q_s8(q + 32 * i + 16));
				a = vaddq_f32(a, vmulq_n_f32(vcvtq_f32_s32(p), both));
				b = vaddq_f32(b, vmulq_n_f32(vcvtq_f32_s32(r), both));
				// The eight sums of biases rotate, so that lane 0 is always the sum of the next block.
				float least = vgetq_lane_f32(low, 0) + (bias * d[i]) * (float)(s[2 * i] + s[2 * i + 1]);
				float32x4_t first = vsetq_lane_f32(least, low, 0);
				low = vextq_f32(first, high, 1);
				high = vextq_f32(high, first, 1);
			}
		}
		for (; i % 8 != 0; i++) {
			float32x4_t first = low;
			low = vextq_f32(first, high, 1);
			high = vextq_f32(high, first, 1);
		}
		*y++ = reduce(vaddq_f32(a, low), vaddq_f32(b, high));
	}
}
