// Tiled products of types with blocks of 32 and without minimums. Their quants are bytes,
// nibbles, or nibbles with a fifth bit.
#include "tiled.h"

INLINE int8x16_t quantsQ8_0(const uint8_t *w, int g, int8x16_t table) {
	(void)table;
	return vld1q_s8((const int8_t *)w + 64 * g);
}

static const shape Q8_0 = {.size = 544, .subs = 1, .d = 512};
static const shape Q4_0 = {.size = 288, .subs = 1, .d = 256, .zero = 8};
static const shape Q5_0 = {.size = 352, .subs = 1, .d = 320, .zero = 16};

#if PART != 2
STRIP(Q8_0, quantsQ8_0, NONE, float16s, 0, 0, 0)
STRIP(Q4_0, nibbles, NONE, float16s, 0, 0, 0)
#endif
#if PART != 1
STRIP(Q5_0, fives, NONE, float16s, 0, 0, 0)
#endif
