// Products of rows of types with blocks of 32.
#include "rows.h"

// block is one block: element i is d * q[i] + m.
typedef struct {
	int8x16_t q[2];
	float d, m;
} block;

// rows32 computes the product for a type with blocks of size bytes. load decodes a block; table
// is a constant table of levels or bits.
INLINE void rows32(block (*load)(const uint8_t *, int8x16_t), int8x16_t table, int size, int mins, ROWS_ARGS) {
	for (; rows > 0; rows--) {
		float32x4_t a = vdupq_n_f32(0), b = a, low = a, high = a;
		int64_t i = 0;
		for (; i < blocks; i++, w += size) {
			block k = load(w, table);
			float scale = k.d * d[i];
			int32x4_t p = vdotq_s32(vdupq_n_s32(0), k.q[0], vld1q_s8(q + 32 * i));
			int32x4_t r = vdotq_s32(vdupq_n_s32(0), k.q[1], vld1q_s8(q + 32 * i + 16));
			a = vaddq_f32(a, vmulq_n_f32(vcvtq_f32_s32(p), scale));
			b = vaddq_f32(b, vmulq_n_f32(vcvtq_f32_s32(r), scale));
			if (mins) {
				// The eight sums of minimums rotate, so that lane 0 is always the sum of the
				// next block.
				float least = vgetq_lane_f32(low, 0) + (k.m * d[i]) * (float)(s[2 * i] + s[2 * i + 1]);
				float32x4_t first = vsetq_lane_f32(least, low, 0);
				low = vextq_f32(first, high, 1);
				high = vextq_f32(high, first, 1);
			}
		}
		if (mins) {
			for (; i % 8 != 0; i++) {
				float32x4_t first = low;
				low = vextq_f32(first, high, 1);
				high = vextq_f32(high, first, 1);
			}
			a = vaddq_f32(a, low);
			b = vaddq_f32(b, high);
		}
		*y++ = reduce(a, b);
	}
}

INLINE block loadQ8_0(const uint8_t *p, int8x16_t table) {
	(void)table;
	const int8_t *q = (const int8_t *)p + 2;
	return (block){{vld1q_s8(q), vld1q_s8(q + 16)}, half(p), 0};
}

INLINE block loadQ4_0(const uint8_t *p, int8x16_t eight) {
	uint8x16_t b = vld1q_u8(p + 2);
	return (block){{vsubq_s8(low(b), eight), vsubq_s8(high(b), eight)}, half(p), 0};
}

INLINE block loadQ4_1(const uint8_t *p, int8x16_t table) {
	(void)table;
	uint8x16_t b = vld1q_u8(p + 4);
	return (block){{low(b), high(b)}, half(p), half(p + 2)};
}

// BITS holds the bits of a byte in ascending order, twice.
#define BITS vreinterpretq_s8_u64(vdupq_n_u64(OPAQUE(0x8040201008040201)))

// fifth returns all ones in the elements whose bit is set in the 16 bits at p.
INLINE int8x16_t fifth(const uint8_t *p, int8x16_t bits) {
	int8x16_t b = vcombine_s8(vdup_n_s8((int8_t)p[0]), vdup_n_s8((int8_t)p[1]));
	return vreinterpretq_s8_u8(vtstq_s8(b, bits));
}

INLINE block loadQ5_0(const uint8_t *p, int8x16_t bits) {
	uint8x16_t b = vld1q_u8(p + 6);
	// Setting all higher bits subtracts 16.
	int8x16_t sixteen = vdupq_n_s8(-16);
	return (block){{
		vorrq_s8(low(b), vbicq_s8(sixteen, fifth(p + 2, bits))),
		vorrq_s8(high(b), vbicq_s8(sixteen, fifth(p + 4, bits))),
	}, half(p), 0};
}

INLINE block loadQ5_1(const uint8_t *p, int8x16_t bits) {
	uint8x16_t b = vld1q_u8(p + 8);
	int8x16_t sixteen = vdupq_n_s8(16);
	return (block){{
		vorrq_s8(low(b), vandq_s8(sixteen, fifth(p + 4, bits))),
		vorrq_s8(high(b), vandq_s8(sixteen, fifth(p + 6, bits))),
	}, half(p), half(p + 2)};
}

INLINE block loadIQ4_NL(const uint8_t *p, int8x16_t table) {
	uint8x16_t b = vld1q_u8(p + 2);
	return (block){{lookUp(table, low(b)), lookUp(table, high(b))}, half(p), 0};
}

// loadMXFP4 uses half of the scale 2^(e-127), because the levels are doubled.
INLINE block loadMXFP4(const uint8_t *p, int8x16_t table) {
	uint32_t e = p[0], bits = e < 2 ? (e + 1) << 21 : (e - 1) << 23;
	uint8x16_t b = vld1q_u8(p + 1);
	union { uint32_t bits; float d; } scale = {bits};
	return (block){{lookUp(table, low(b)), lookUp(table, high(b))}, scale.d, 0};
}

// NONE is the table argument of types that need no table.
#define NONE vdupq_n_s8(0)

#define ROWS(type, table, size, mins) \
	void rows##type##NEON(ROWS_ARGS) { rows32(load##type, table, size, mins, y, w, rows, blocks, q, d, s); }

ROWS(Q8_0, NONE, 34, 0)
ROWS(Q4_0, vdupq_n_s8(8), 18, 0)
ROWS(Q4_1, NONE, 20, 1)
ROWS(Q5_0, BITS, 22, 0)
ROWS(Q5_1, BITS, 24, 1)
ROWS(IQ4_NL, LEVELS_IQ4, 18, 0)
ROWS(MXFP4, LEVELS_MXFP4, 17, 0)
