// Tiled products of types with blocks of 32.
#include "tiled.h"

INLINE void q8_0(int rows, float *restrict y, int64_t yStride, const uint8_t *w, const uint8_t *x, int64_t xStride, int64_t in) {
	const uint8_t *d = x + in;
	start(rows, y, yStride);
	for (; in >= 32; in -= 32, w += 544, x += 32, d += 4) {
		ROLL for (int v = 0; v < 4; v++) {
			int32x4_t acc[4];
			EACH(j) acc[j] = vdupq_n_s32(0);
			UNROLL for (int h = 0; h < 2; h++) {
				int8x16_t q[4];
				load(rows, q, x + 16 * h, xStride);
				UNROLL for (int g = 0; g < 4; g++) {
					int8x16_t b = vld1q_s8((const int8_t *)w + 64 * (4 * h + g) + 16 * v);
					EACH(j) acc[j] = dotLane(acc[j], b, q[j], g);
				}
			}
			float32x4_t scale = halves(w + 512 + 8 * v);
			EACH(j) add(y + j * yStride + 4 * v, scale, single(d + j * xStride), vcvtq_f32_s32(acc[j]));
		}
	}
}

INLINE void q4_0(int rows, float *restrict y, int64_t yStride, const uint8_t *w, const uint8_t *x, int64_t xStride, int64_t in) {
	const uint8_t *d = x + in, *s = d + in / 8;
	start(rows, y, yStride);
	for (; in >= 32; in -= 32, w += 288, x += 32, d += 4, s += 4) {
		ROLL for (int v = 0; v < 4; v++) {
			int32x4_t acc[4];
			EACH(j) acc[j] = vaddq_s32(offset(s + j * xStride, 8), offset(s + j * xStride + 2, 8));
			nibbles(rows, acc, w + 16 * v, x, xStride);
			float32x4_t scale = halves(w + 256 + 8 * v);
			EACH(j) add(y + j * yStride + 4 * v, scale, single(d + j * xStride), vcvtq_f32_s32(acc[j]));
		}
	}
}

STRIP(tiledQ8_0, q8_0)
STRIP(tiledQ4_0, q4_0)
