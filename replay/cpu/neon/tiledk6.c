// Tiled products of Q3_K and Q6_K, which have signed scales and no minimums.
#include "tiled.h"

INLINE int8x16_t quantsQ3_K(const uint8_t *w, int g, int8x16_t table) {
	(void)table;
	return vreinterpretq_s8_u8(insert(pair(w, g), vld1q_u8(w + 128), g, 2, 1));
}

INLINE int8x16_t quantsQ6_K(const uint8_t *w, int g, int8x16_t table) {
	(void)table;
	return vreinterpretq_s8_u8(insert(nibble(w, g), pairs(w + 256, g), pairAt(g), 4, 2));
}

static const shape Q3_K = {.size = 1824, .subs = 8, .scales = 32, .next = 32, .two = 1, .quants = 288, .step = 192, .zero = 4};
static const shape Q6_K = {.size = 3360, .subs = 8, .scales = 32, .next = 416, .two = 1, .quants = 64, .step = 416, .zero = 32};

#if PART != 2
STRIP(Q3_K, quantsQ3_K, NONE, float16s, signedBytes, 0, 0)
#endif
#if PART != 1
STRIP(Q6_K, quantsQ6_K, NONE, float16s, signedBytes, 0, 0)
#endif
