// Products of strips of 16 rows in layout dtype.Tiled16, with one row of
// activations or four. A vector lane is a row of the strip: four vectors, the
// quarters, are its 16 rows. SDOT by element multiplies the 4 columns of 4
// rows with 4 activations.
//
// x is a row of tiledInput in bytes: in quants, in/32 float32 scales, in/16
// int16 sums of half blocks; xStride is in bytes. The float sums are in y, whose
// stride is in floats: a block adds to each four times, and all vector
// registers are left to the integers.
#include "neon.h"

// rows is 1 or 4 and constant, as is every loop over it.
#define EACH(j) UNROLL for (int j = 0; j < rows; j++)

// start sets the sums to 0.
INLINE void start(int rows, float *y, int64_t yStride) {
	EACH(j) UNROLL for (int v = 0; v < 4; v++) vst1q_f32(y + j * yStride + 4 * v, vdupq_n_f32(0));
}

// add adds (d*dx) * t to four sums of row j. dx is that row's scale.
INLINE void add(float *y, float32x4_t d, float dx, float32x4_t t) {
	vst1q_f32(y, vaddq_f32(vld1q_f32(y), vmulq_f32(vmulq_n_f32(d, dx), t)));
}

// offset returns the sum of half a block of activations times the weights'
// zero, which the weights' quants are taken without.
INLINE int32x4_t offset(const uint8_t *s, int zero) { return vdupq_n_s32(-zero * *(const int16_t *)s); }

// load loads 16 activations of each row.
INLINE void load(int rows, int8x16_t *q, const uint8_t *x, int64_t xStride) {
	EACH(j) q[j] = vld1q_s8((const int8_t *)x + j * xStride);
}

// nibbles adds the products of a quarter's 32 columns of unsigned nibbles,
// which begin at w, to acc.
INLINE void nibbles(int rows, int32x4_t *acc, const uint8_t *w, const uint8_t *x, int64_t xStride) {
	int8x16_t lo[4], hi[4];
	load(rows, lo, x, xStride);
	load(rows, hi, x + 16, xStride);
	UNROLL for (int g = 0; g < 4; g++) {
		uint8x16_t b = vld1q_u8(w + 64 * g);
		int8x16_t low = vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8(15)));
		int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(b, 4));
		EACH(j) acc[j] = dotLane(acc[j], low, lo[j], g);
		EACH(j) acc[j] = dotLane(acc[j], high, hi[j], g);
	}
}

// STRIP defines the functions of one type.
#define STRIP(name, type) \
	void name##x1NEON(float *y, int64_t yStride, uint8_t *w, uint8_t *x, int64_t xStride, int64_t in) { \
		type(1, y, yStride, w, x, xStride, in); \
	} \
	void name##x4NEON(float *y, int64_t yStride, uint8_t *w, uint8_t *x, int64_t xStride, int64_t in) { \
		type(4, y, yStride, w, x, xStride, in); \
	}
