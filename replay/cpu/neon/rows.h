// Products of rows of blocks and one row of quantised activations, one row of weights after
// another. Two vectors hold the eight sums. SDOT computes, for each lane, the integer sum of
// the four products that the lane contributes per block of 32.
#include "neon.h"

// The arguments of all products: w holds rows of blocks; q, d and s are the fields of input.
#define ROWS_ARGS float *y, uint8_t *w, int64_t rows, int64_t blocks, int8_t *q, float *d, int16_t *s

// reduce adds up the eight sums.
INLINE float reduce(float32x4_t a, float32x4_t b) {
	float32x4_t v = vaddq_f32(a, b);
	return vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)));
}

// low and high return the nibbles of 16 bytes.
INLINE int8x16_t low(uint8x16_t b) { return vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8(15))); }
INLINE int8x16_t high(uint8x16_t b) { return vreinterpretq_s8_u8(vshrq_n_u8(b, 4)); }

// lookUp returns the levels that 16 nibbles select.
INLINE int8x16_t lookUp(int8x16_t table, int8x16_t nibbles) { return vqtbl1q_s8(table, vreinterpretq_u8_s8(nibbles)); }
