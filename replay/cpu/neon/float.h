// Products of rows of float weights and rows of float activations. A row of weights and a row
// of activations have 16 sums in four vectors. The code adds the products of 16 columns at a
// time to them, with fused operations.
#include "neon.h"

// The types of weights.
enum { F32, F16, BF16 };

// columns is the number of columns that are loaded at a time: two vectors of activations.
enum { columns = 8, lanes = 16 };

// load loads 8 weights.
INLINE void load(int type, float32x4_t *v, const uint8_t *p) {
	switch (type) {
	case F32:
		v[0] = vld1q_f32((const float *)p);
		v[1] = vld1q_f32((const float *)p + 4);
		break;
	case F16: {
		float16x8_t h = vld1q_f16((const __fp16 *)p);
		v[0] = vcvt_f32_f16(vget_low_f16(h));
		v[1] = vcvt_high_f32_f16(h);
		break;
	}
	default: {
		uint16x8_t h = vld1q_u16((const uint16_t *)p);
		v[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16));
		v[1] = vreinterpretq_f32_u32(vshll_high_n_u16(h, 16));
	}
	}
}

// reduce adds up the 16 sums: lanes l and l+8, then l and l+4, l and l+2, l and l+1.
INLINE float reduce(const float32x4_t *s) {
	float32x4_t v = vaddq_f32(vaddq_f32(s[0], s[2]), vaddq_f32(s[1], s[3]));
	return vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)));
}

// tile multiplies the given number of rows of weights at w by xs rows of activations. Both
// numbers are constants, and the registers suffice for 6 pairs.
INLINE void tile(int type, int rows, int xs, float *y, int64_t yStride, const uint8_t *w, int64_t row, int64_t in, const uint8_t *x, int64_t xStride) {
	float32x4_t sum[4][3][4];
	UNROLL for (int i = 0; i < rows; i++) {
		UNROLL for (int j = 0; j < xs; j++) {
			UNROLL for (int v = 0; v < 4; v++) sum[i][j][v] = vdupq_n_f32(0);
		}
	}
	for (; in >= lanes; in -= lanes) {
		UNROLL for (int h = 0; h < lanes; h += columns) {
			float32x4_t a[4][2];
			UNROLL for (int i = 0; i < rows; i++) load(type, a[i], w + i * row);
			w += columns * (type == F32 ? 4 : 2);
			UNROLL for (int v = 0; v < 2; v++) {
				UNROLL for (int j = 0; j < xs; j++) {
					float32x4_t b = vld1q_f32((const float *)(x + j * xStride) + 4 * v);
					UNROLL for (int i = 0; i < rows; i++) sum[i][j][h / 4 + v] = vfmaq_f32(sum[i][j][h / 4 + v], a[i][v], b);
				}
			}
			x += columns * 4;
		}
	}
	UNROLL for (int j = 0; j < xs; j++) {
		UNROLL for (int i = 0; i < rows; i++) *((float *)((uint8_t *)y + j * yStride) + i) = reduce(sum[i][j]);
	}
}

// FLOAT defines a product with xs rows of activations. It processes rows rows of weights at a
// time and the remaining ones singly. Strides are in bytes. in is a multiple of 16.
#define FLOAT(name, type, rows, xs) \
	void float##name##NEON(float *y, int64_t yStride, uint8_t *w, int64_t n, int64_t in, float *x, int64_t xStride) { \
		int64_t row = in * (type == F32 ? 4 : 2); \
		for (; n >= rows; n -= rows, y += rows, w += rows * row) tile(type, rows, xs, y, yStride, w, row, in, (uint8_t *)x, xStride); \
		for (; n > 0; n--, y++, w += row) tile(type, 1, xs, y, yStride, w, row, in, (uint8_t *)x, xStride); \
	}

// FLOATS defines the products of a type.
#define FLOATS(type) \
	FLOAT(type##x1, type, 4, 1) \
	FLOAT(type##x2, type, 2, 2) \
	FLOAT(type##x3, type, 2, 3)
