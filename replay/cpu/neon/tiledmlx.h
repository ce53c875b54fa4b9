// Tiled products of MLX's affine types. A block is a group: 16 scales, 16 biases, and a tile for
// each 32 columns.
#pragma once
#include "tiled.h"

INLINE int8x16_t pairsMLX(const uint8_t *w, int g, int8x16_t table) {
	(void)table;
	return vreinterpretq_s8_u8(pair(w, g));
}

INLINE int8x16_t threesMLX(const uint8_t *w, int g, int8x16_t table) {
	(void)table;
	return vreinterpretq_s8_u8(insert(pair(w, g), vld1q_u8(w + 128), g, 2, 1));
}

INLINE int8x16_t sixesMLX(const uint8_t *w, int g, int8x16_t table) {
	(void)table;
	return vreinterpretq_s8_u8(insert(nibble(w, g), pairs(w + 256, g), pairAt(g), 4, 2));
}

// bytesMLX returns the quants less 128, which the shape's zero point adds again.
INLINE int8x16_t bytesMLX(const uint8_t *w, int g, int8x16_t table) {
	(void)table;
	return vreinterpretq_s8_u8(vld1q_u8(w + 64 * g) ^ 0x80);
}

// MLX_ROWS defines the function of a number of bits for the given number of rows. how holds the
// number of tiles in a block, and whether the scales are bfloat16. MLX defines all functions that a file has.
#define MLX_SHAPE(bits) {.size = 64 + 64 * bits * (int)how[0], .subs = (int)how[0], .m = 32, .quants = 64, .step = 64 * bits, .zero = bits == 8 ? -128 : 0, .bf16 = (int)how[1]}
#define MLX_ROWS(bits, rows, load) \
	void mlx##bits##x##rows##NEON(float *y, int64_t yStride, uint8_t *w, uint8_t *x, int64_t xStride, int64_t in, int64_t *how) { \
		shape t = MLX_SHAPE(bits); \
		multiply(rows, t, load, NONE, float16s, 0, 1, 0, y, yStride, w, x, xStride, in); \
	}
#if MATRIX
#define MLX(bits, load) MLX_ROWS(bits, 8, load)
#else
#define MLX(bits, load) \
	MLX_ROWS(bits, 1, load) \
	MLX_ROWS(bits, 4, load)
#endif
