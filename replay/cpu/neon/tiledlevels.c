// Tiled products of types whose nibbles index a table of levels.
#include "tiled.h"

INLINE int8x16_t quantsLevels(const uint8_t *w, int g, int8x16_t table) { return vqtbl1q_s8(table, nibble(w, g)); }

// e8m0s returns half of the scales 2^(e-127) of quarter v, because the levels are doubled.
INLINE float32x4_t e8m0s(const uint8_t *p, int v) {
	uint32x4_t e = widen(p + 4 * v);
	// The results for e = 0 and e = 1 are subnormal.
	return vreinterpretq_f32_u32(vbslq_u32(e < 2, (e + 1) << 21, (e - 1) << 23));
}

static const shape IQ4_NL = {.size = 288, .subs = 1, .d = 256};
static const shape MXFP4 = {.size = 272, .subs = 1, .d = 256};
static const shape IQ4_XS = {.size = 2208, .subs = 8, .scales = 32, .next = 16, .quants = 160, .step = 256};

#if PART != 2
STRIP(IQ4_NL, quantsLevels, LEVELS_IQ4, float16s, 0, 0, 0)
STRIP(MXFP4, quantsLevels, LEVELS_MXFP4, e8m0s, 0, 0, 0)
#endif
#if PART != 1
STRIP(IQ4_XS, quantsLevels, LEVELS_IQ4, float16s, signedBytes, 0, 0)
#endif
