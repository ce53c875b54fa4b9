// Search for the scales of types with a table of levels; transposition, and quants.
#include "search.h"

// table holds 16 floats.
typedef uint8x16x4_t table;

INLINE table tableAt(const float *p) { return vld1q_u8_x4((const uint8_t *)p); }

INLINE four look(table t, uint32x4_t index) {
	uint32x4_t bytes = index * vdupq_n_u32(0x04040404) + vdupq_n_u32((uint32_t)OPAQUE(0x03020100));
	return vreinterpretq_f32_u8(vqtbl4q_u8(t, vreinterpretq_u8_u32(bytes)));
}

// levelIndex returns the index of the level nearest to x: the number of halves between levels that
// are not above x.
INLINE uint32x4_t levelIndex(table middles, four x) {
	uint32x4_t index = vdupq_n_u32(0);
	UNROLL for (uint32_t step = 8; step > 0; step /= 2) {
		uint32x4_t next = index + vdupq_n_u32(step);
		index = vbslq_u32(x >= look(middles, next), next, index);
	}
	return index;
}

// levelsNEON is scaleOfLevels. The spread becomes the extreme. tables holds 16 halves, the first of
// which is not used, and 16 levels.
void levelsNEON(float *c, float *factors, int64_t trials, int64_t elems, float *tables) {
	table middles = tableAt(tables), levels = tableAt(tables + 16);
	EACHGROUP {
		four top = squareWeights(c, elems);
		fit f = {all(0), all(0)};
		for (int64_t n = 0; n < trials; n++) {
			four inverse = all(factors[n]) / top, xq = all(0), qq = all(0);
			if (n == 0) inverse = all(1) / (-top / all(factors[0]));
			EACH(p) {
				four q = look(levels, levelIndex(middles, inverse * get(p))), wq = get(p + WEIGHTS) * q;
				xq += wq * get(p), qq += wq * q;
			}
			if (n == 0) {
				f.scale = xq / qq;
				f.best = f.scale * xq;
			} else {
				f = fitted(f, xq, qq);
			}
		}
		put(c + SCALE, f.scale);
	}
}

// transposeNEON sets the columns to 16 sub-blocks of elems elements, a multiple of 4.
void transposeNEON(float *c, float *x, int64_t elems) {
	EACHGROUP {
		float *to = c;
		for (int64_t i = 0; i < elems; i += 4, to += 64) {
			four a = get(x + i), b = get(x + elems + i), d = get(x + 2 * elems + i), e = get(x + 3 * elems + i);
			float64x2_t ab = vreinterpretq_f64_f32(vtrn1q_f32(a, b)), AB = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
			float64x2_t de = vreinterpretq_f64_f32(vtrn1q_f32(d, e)), DE = vreinterpretq_f64_f32(vtrn2q_f32(d, e));
			put(to, vreinterpretq_f32_f64(vzip1q_f64(ab, de)));
			put(to + 16, vreinterpretq_f32_f64(vzip1q_f64(AB, DE)));
			put(to + 32, vreinterpretq_f32_f64(vzip2q_f64(ab, de)));
			put(to + 48, vreinterpretq_f32_f64(vzip2q_f64(AB, DE)));
		}
		x += 4 * elems;
	}
}

// bytes writes 16 integers below 256.
INLINE void bytes(uint8_t *to, uint32x4_t n[4]) {
	// Saturating narrowing, because the compiler would turn the other kind into a table in memory.
	uint16x8_t a = vqmovn_high_u32(vqmovn_u32(n[0]), n[1]), b = vqmovn_high_u32(vqmovn_u32(n[2]), n[3]);
	vst1q_u8(to, vqmovn_high_u16(vqmovn_u16(a), b));
}

// quantsNEON sets the quants of sub-blocks of elems elements, a multiple of 16. bounds holds the
// lowest and the highest quant, and an offset.
void quantsNEON(uint8_t *q, float *x, float *scale, float *minimum, int64_t subs, int64_t elems, int32_t *bounds) {
	int32x4_t lo = vdupq_n_s32(bounds[0]), hi = vdupq_n_s32(bounds[1]), offset = vdupq_n_s32(bounds[2]);
	for (; subs > 0; subs--, scale++, minimum++) {
		int32x4_t used = vreinterpretq_s32_u32(~(all(*scale) == all(0)));
		for (int64_t i = 0; i < elems; i += 16, x += 16, q += 16) {
			uint32x4_t n[4];
			UNROLL for (int k = 0; k < 4; k++) {
				four v = (get(x + 4 * k) + all(*minimum)) / all(*scale);
				n[k] = vreinterpretq_u32_s32((nearest(v, lo, hi) & used) + offset);
			}
			bytes(q, n);
		}
	}
}

// levelQuantsNEON sets the indices of levels of sub-blocks of 32 elements.
void levelQuantsNEON(uint8_t *q, float *x, float *inverse, int64_t subs, float *tables) {
	table middles = tableAt(tables);
	for (int64_t i = 0; i < 2 * subs; i++, x += 16, q += 16) {
		uint32x4_t n[4];
		UNROLL for (int k = 0; k < 4; k++) n[k] = levelIndex(middles, all(inverse[i / 2]) * get(x + 4 * k));
		bytes(q, n);
	}
}
