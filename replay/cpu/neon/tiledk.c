// Tiled products of types with blocks of 256.
#include "tiled.h"

// bytes widens four unsigned bytes to float32.
INLINE float32x4_t bytes(const uint8_t *p) {
	uint8x8_t b = vreinterpret_u8_u32(vld1_dup_u32((const uint32_t *)p));
	return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(b))));
}

// minimums adds the minimums' part to the sums of two quarters of a strip of
// Q4_K, from v on. The products of minimums and sums are below 2^24, so that
// they are exact in float32.
INLINE void minimums(int rows, int v, float *restrict y, int64_t yStride, const uint8_t *w, const uint8_t *d, const uint8_t *s, int64_t xStride, int64_t in) {
	float32x4_t least[4][2];
	EACH(j) UNROLL for (int h = 0; h < 2; h++) least[j][h] = vdupq_n_f32(0);
	for (; in >= 256; in -= 256) {
		float32x4_t m[2] = {halves(w + 32 + 8 * v), halves(w + 32 + 8 * v + 8)};
		w += 64;
		ROLL for (int sub = 0; sub < 8; sub++, w += 288, d += 4, s += 4) {
			float32x4_t min[2] = {bytes(w + 16 + 4 * v), bytes(w + 16 + 4 * v + 4)};
			EACH(j) {
				const int16_t *p = (const int16_t *)(s + j * xStride);
				float sum = (float)(p[0] + p[1]), dx = single(d + j * xStride);
				UNROLL for (int h = 0; h < 2; h++) {
					least[j][h] = vsubq_f32(least[j][h], vmulq_f32(vmulq_n_f32(m[h], dx), vmulq_n_f32(min[h], sum)));
				}
			}
		}
	}
	EACH(j) UNROLL for (int h = 0; h < 2; h++) {
		float *sum = y + j * yStride + 4 * (v + h);
		vst1q_f32(sum, vaddq_f32(vld1q_f32(sum), least[j][h]));
	}
}

INLINE void q4_K(int rows, float *restrict y, int64_t yStride, const uint8_t *w, const uint8_t *x, int64_t xStride, int64_t in) {
	const uint8_t *scale = x + in, *sum = scale + in / 8, *d = scale, *tile = w;
	start(rows, y, yStride);
	for (int64_t n = in; n >= 256; n -= 256) {
		const uint8_t *scales = tile;
		tile += 64;
		ROLL for (int sub = 0; sub < 8; sub++, tile += 288, x += 32, d += 4) {
			ROLL for (int v = 0; v < 4; v++) {
				int32x4_t acc[4];
				EACH(j) acc[j] = vdupq_n_s32(0);
				nibbles(rows, acc, tile + 32 + 16 * v, x, xStride);
				float32x4_t large = halves(scales + 8 * v), small = bytes(tile + 4 * v);
				// Below 15 * 127 * 32 * 255 < 2^24.
				EACH(j) add(y + j * yStride + 4 * v, large, single(d + j * xStride), vmulq_f32(vcvtq_f32_s32(acc[j]), small));
			}
		}
	}
	ROLL for (int v = 0; v < 4; v += 2) minimums(rows, v, y, yStride, w, scale, sum, xStride, in);
}

// signedBytes widens four signed bytes.
INLINE int32x4_t signedBytes(const uint8_t *p) {
	int8x8_t b = vreinterpret_s8_u32(vld1_dup_u32((const uint32_t *)p));
	return vmovl_s16(vget_low_s16(vmovl_s8(b)));
}

INLINE void q6_K(int rows, float *restrict y, int64_t yStride, const uint8_t *w, const uint8_t *x, int64_t xStride, int64_t in) {
	const uint8_t *d = x + in, *s = d + in / 8;
	uint8x16_t four = vdupq_n_u8(15), high = vdupq_n_u8(0x30);
	start(rows, y, yStride);
	for (; in >= 256; in -= 256) {
		const uint8_t *scales = w;
		w += 32;
		ROLL for (int sub = 0; sub < 8; sub++, w += 416, x += 32, d += 4, s += 4) {
			ROLL for (int v = 0; v < 4; v++) {
				const uint8_t *low = w + 32 + 16 * v, *plane = w + 288 + 16 * v;
				int32x4_t acc[4], other[4];
				int8x16_t q[4];
				load(rows, q, x, xStride);
				EACH(j) acc[j] = offset(s + j * xStride, 32);
				UNROLL for (int g = 0; g < 4; g++) {
					uint8x16_t b = vandq_u8(vld1q_u8(low + 64 * g), four), h = vld1q_u8(plane + 64 * (g / 2));
					b = vorrq_u8(b, vandq_u8(g % 2 == 0 ? vshlq_n_u8(h, 4) : h, high));
					EACH(j) acc[j] = dotLane(acc[j], vreinterpretq_s8_u8(b), q[j], g);
				}
				load(rows, q, x + 16, xStride);
				EACH(j) other[j] = offset(s + j * xStride + 2, 32);
				UNROLL for (int g = 0; g < 4; g++) {
					uint8x16_t b = vshrq_n_u8(vld1q_u8(low + 64 * g), 4), h = vld1q_u8(plane + 64 * (g / 2));
					b = vorrq_u8(b, vandq_u8(g % 2 == 0 ? vshlq_n_u8(h, 2) : vshrq_n_u8(h, 2), high));
					EACH(j) other[j] = dotLane(other[j], vreinterpretq_s8_u8(b), q[j], g);
				}
				int32x4_t first = signedBytes(w + 4 * v), second = signedBytes(w + 16 + 4 * v);
				float32x4_t scale = halves(scales + 8 * v);
				EACH(j) {
					int32x4_t sum = vmlaq_s32(vmulq_s32(acc[j], first), other[j], second);
					add(y + j * yStride + 4 * v, scale, single(d + j * xStride), vcvtq_f32_s32(sum));
				}
			}
		}
	}
}

STRIP(tiledQ4_K, q4_K)
STRIP(tiledQ6_K, q6_K)
