// Tiled products of types with quants of 2 bits: TQ2_0 and Q2_K, which has the scale in the low
// nibble of a byte and the minimum in the high nibble.
#include "tiled.h"

INLINE int8x16_t quantsQ2_K(const uint8_t *w, int g, int8x16_t table) {
	(void)table;
	return vreinterpretq_s8_u8(pair(w, g));
}

INLINE int32x4_t scaleQ2_K(const uint8_t *p) { return unsignedBytes(p) & 15; }
INLINE int32x4_t minQ2_K(const uint8_t *p) { return unsignedBytes(p) >> 4; }

static const shape Q2_K = {.size = 1344, .subs = 8, .m = 32, .scales = 64, .mins = 64, .next = 32, .two = 1, .quants = 320, .step = 128};

static const shape TQ2_0 = {.size = 1056, .subs = 8, .zero = 1, .quants = 32, .step = 128};

#if PART != 2
STRIP(Q2_K, quantsQ2_K, NONE, float16s, scaleQ2_K, 1, minQ2_K)
#endif
#if PART != 1
STRIP(TQ2_0, quantsQ2_K, NONE, float16s, 0, 0, 0)
#endif
