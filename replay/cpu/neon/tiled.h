// Products of strips of 16 rows in layout dtype.Tiled16 with one, four or eight rows of
// activations. A vector lane is a row of the strip; its 16 rows are four vectors, called quarters.
// SDOT by element multiplies 4 columns of 4 rows by 4 activations.
//
// A file that defines MATRIX to 1 gets the functions for eight rows. SMMLA multiplies 8 columns of
// 2 rows by those of 2 rows of activations, so their sums are matrices of 2 by 2.
//
// x is a row of tiledInput as bytes: in int8 quants, in/32 float32 scales, and in/16 int16 sums
// of half blocks or in/32 float32 sums of blocks times their scales. xStride is in bytes. The float sums are in y, whose stride is in floats; each
// tile adds to them once per quarter, so all vector registers are free for integers.
#include "neon.h"

#ifndef MATRIX
#define MATRIX 0
#endif

// PART selects one of two parts of a file's types, because the functions for eight rows are long.
#ifndef PART
#define PART 0
#endif

// DONE lets the compiler continue only when v has been computed, and STEP moves a pointer to the next
// row. With TIGHT, which MATRIX implies, they have an effect, because the registers do not suffice for
// the addresses and the activations of all rows at the same time.
#ifndef TIGHT
#define TIGHT MATRIX
#endif
#if TIGHT
#define DONE(v) __asm__ volatile("" : "+w"(v) : : "memory")
#define STEP(p, stride) p += stride; __asm__ volatile("" : "+r"(p))
#else
#define DONE(v)
#define STEP(p, stride) p += stride
#endif

// rows is a constant, 1, 4 or 8. Loops over rows are unrolled.
#define EACH(j) UNROLL for (int j = 0; j < rows; j++)

// A quants function returns column group g, 0 to 7, of a quarter of a tile. w is the address of
// the quarter's first quants; table is the type's lookup table.
typedef int8x16_t (*quants)(const uint8_t *w, int g, int8x16_t table);

// A floats function returns the four scales d of quarter v. An integers function returns four
// integer scales or minimums.
typedef float32x4_t (*floats)(const uint8_t *w, int v);
typedef int32x4_t (*integers)(const uint8_t *w);

// shape is the layout of a strip's quantization block, in bytes. It is constant.
typedef struct {
	int size, subs;   // size of a block, and number of tiles in it
	int quants, step; // offset of the first tile's quants, and distance to the next tile's
	int zero;         // zero point of the quants
	int d, m;         // offsets of 16 scales and of 16 minimums
	// Offsets of the integer scales and minimums of the first tile, and the distance to the
	// next tile's. If two is set, the values of columns 16 to 31 follow after 16 bytes.
	int scales, mins, next, two;
	int bf16;  // the scales and minimums are bfloat16
	int whole; // x has sums of whole blocks
} shape;

// nibble returns column group g of nibbles.
INLINE uint8x16_t nibble(const uint8_t *w, int g) {
	uint8x16_t b = vld1q_u8(w + 64 * (g % 4));
	return g < 4 ? b & 15 : b >> 4;
}

// pairs returns the 16 bytes that contain the 2-bit pairs of column group g, beginning at bit
// pairAt(g).
INLINE uint8x16_t pairs(const uint8_t *w, int g) { return vld1q_u8(w + 64 * (g % 4 / 2)); }
INLINE int pairAt(int g) { return 4 * (g % 2) + 2 * (g / 4); }

// pair returns the pairs of column group g.
INLINE uint8x16_t pair(const uint8_t *w, int g) { return pairs(w, g) >> pairAt(g) & 3; }

// insert replaces n bits of q, beginning at bit to, by n bits of b, beginning at bit from.
INLINE uint8x16_t insert(uint8x16_t q, uint8x16_t b, int from, int to, int n) {
	b = from < to ? b << (to - from) : b >> (from - to);
	return vbslq_u8(vdupq_n_u8(((1 << n) - 1) << to), b, q);
}

// nibbles decodes types whose quants are nibbles, fives types whose quants have an additional
// fifth bit.
INLINE int8x16_t nibbles(const uint8_t *w, int g, int8x16_t table) {
	(void)table;
	return vreinterpretq_s8_u8(nibble(w, g));
}

INLINE int8x16_t fives(const uint8_t *w, int g, int8x16_t table) {
	(void)table;
	return vreinterpretq_s8_u8(insert(nibble(w, g), vld1q_u8(w + 256), g, 4, 1));
}

// widen converts four bytes to 32-bit integers.
INLINE uint32x4_t widen(const uint8_t *p) {
	uint8x8_t b = vreinterpret_u8_u32(vld1_dup_u32((const uint32_t *)p));
	return vmovl_u16(vget_low_u16(vmovl_u8(b)));
}

INLINE int32x4_t unsignedBytes(const uint8_t *p) { return vreinterpretq_s32_u32(widen(p)); }

INLINE int32x4_t signedBytes(const uint8_t *p) {
	int8x8_t b = vreinterpret_s8_u32(vld1_dup_u32((const uint32_t *)p));
	return vmovl_s16(vget_low_s16(vmovl_s8(b)));
}

// float16s returns the four float16 of quarter v as float32.
INLINE float32x4_t float16s(const uint8_t *p, int v) { return halves(p + 8 * v); }

// bf16s returns the four bfloat16 of quarter v as float32.
INLINE float32x4_t bf16s(const uint8_t *p, int v) {
	return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)(p + 8 * v)), 16));
}

// offset returns minus the zero point times the sum of half a block of activations, because the
// quants are decoded without subtracting the zero point.
INLINE int32x4_t offset(const uint8_t *s, int zero) { return vdupq_n_s32(-zero * *(const int16_t *)s); }

// products adds the products of columns 16h to 16h+15 of a quarter to acc.
#if MATRIX
INLINE void products(int rows, int32x4_t *acc, quants load, int8x16_t table, const uint8_t *w, int h, const uint8_t *x, int64_t xStride) {
	UNROLL for (int g = 0; g < 4; g += 2) {
		int32x4_t a = vreinterpretq_s32_s8(load(w, 4 * h + g, table)), b = vreinterpretq_s32_s8(load(w, 4 * h + g + 1, table));
		int8x16_t low = vreinterpretq_s8_s32(vzip1q_s32(a, b)), high = vreinterpretq_s8_s32(vzip2q_s32(a, b));
		const int8_t *p = (const int8_t *)x;
		STEP(p, 0);
		UNROLL for (int j = 0; j < rows; j += 2) {
			int8x8_t first = vld1_s8(p + 16 * h + 4 * g);
			STEP(p, xStride);
			int8x16_t q = vcombine_s8(first, vld1_s8(p + 16 * h + 4 * g));
			STEP(p, xStride);
			acc[j] = vmmlaq_s32(acc[j], low, q);
			acc[j + 1] = vmmlaq_s32(acc[j + 1], high, q);
			DONE(acc[j]);
			DONE(acc[j + 1]);
		}
	}
}

// separate converts the sums of products, two matrices for two rows of activations, to one vector
// for each row of activations.
INLINE void separate(int rows, int32x4_t *acc) {
	UNROLL for (int j = 0; j < rows; j += 2) {
		int32x4_t low = acc[j], high = acc[j + 1];
		acc[j] = vuzp1q_s32(low, high);
		acc[j + 1] = vuzp2q_s32(low, high);
	}
}
#else
INLINE void products(int rows, int32x4_t *acc, quants load, int8x16_t table, const uint8_t *w, int h, const uint8_t *x, int64_t xStride) {
	int8x16_t q[4];
	EACH(j) q[j] = vld1q_s8((const int8_t *)x + j * xStride + 16 * h);
	UNROLL for (int g = 0; g < 4; g++) {
		int8x16_t b = load(w, 4 * h + g, table);
		EACH(j) acc[j] = dotLane(acc[j], b, q[j], g);
	}
}

INLINE void separate(int rows, int32x4_t *acc) { (void)rows, (void)acc; }
#endif

// offsets adds the offsets of both halves of a block to the sums of a row of activations.
INLINE void offsets(shape t, int32x4_t *acc, int32x4_t *other, const uint8_t *s) {
	*acc += offset(s, t.zero);
	if (t.two) *other += offset(s + 2, t.zero);
	else *acc += offset(s + 2, t.zero);
}

// multiply sets y to the products of a strip. scale is null in types without integer scales. If mins is
// set, the type has minimums: min returns the integers, which are subtracted, or is null if the minimum is m
// itself, which is added. The products of two minimums and sums of x are below 2^24, so they are exact in
// float32.
INLINE void multiply(int rows, shape t, quants load, int8x16_t table, floats d, integers scale, int mins, integers min,
	float *y, int64_t yStride, const uint8_t *w, const uint8_t *x, int64_t xStride, int64_t in) {
	const uint8_t *dx = x + in, *s = dx + in / 8;
	float *zero = y;
	EACH(j) {
		UNROLL for (int v = 0; v < 4; v++) vst1q_f32(zero + 4 * v, vdupq_n_f32(0));
		STEP(zero, yStride);
	}
	for (; in > 0; in -= 32 * t.subs, w += t.size) {
		const uint8_t *k = w + t.scales, *q = w + t.quants;
		ROLL for (int sub = 0; sub < t.subs; sub++, k += t.next, q += t.step, x += 32, dx += 4, s += 4) {
			ROLL for (int v = 0; v < 4; v++) {
				int32x4_t acc[8], other[8];
				EACH(j) {
					acc[j] = other[j] = vdupq_n_s32(0);
					if (t.zero && !TIGHT) offsets(t, &acc[j], &other[j], s + j * xStride);
				}
				products(rows, acc, load, table, q + 16 * v, 0, x, xStride);
				products(rows, t.two ? other : acc, load, table, q + 16 * v, 1, x, xStride);
				separate(rows, acc);
				if (t.two) separate(rows, other);
				if (t.zero && TIGHT) {
					const uint8_t *p = s;
					STEP(p, 0);
					EACH(j) {
						offsets(t, &acc[j], &other[j], p);
						DONE(acc[j]);
						if (t.two) DONE(other[j]);
						STEP(p, xStride);
					}
				}
				float32x4_t large = t.bf16 ? bf16s(w + t.d, v) : d(w + t.d, v);
				int32x4_t first = acc[0], second = acc[0];
				if (scale) first = scale(k + 4 * v);
				if (t.two) second = scale(k + 16 + 4 * v);
				float *sum = y + 4 * v;
				const uint8_t *p = dx;
				STEP(p, 0);
				if (scale && !t.two) large *= vcvtq_f32_s32(first);
				float32x4_t m = large, low = large, high = large; // the minimums' scale, and two minimums
				const uint8_t *sums = s;
				if (mins) {
					const uint8_t *at = k + t.mins - t.scales + 4 * v;
					m = t.bf16 ? bf16s(w + t.m, v) : float16s(w + t.m, v);
					if (min) low = vcvtq_f32_s32(min(at));
					if (t.two) high = vcvtq_f32_s32(min(at + 16));
					else if (min) m *= low;
					STEP(sums, 0);
				}
				EACH(j) {
					float32x4_t add;
					if (scale && !t.two) {
						add = vfmaq_f32(vld1q_f32(sum), large, vmulq_n_f32(vcvtq_f32_s32(acc[j]), single(p)));
					} else {
						if (scale) acc[j] *= first;
						if (t.two) acc[j] += other[j] * second;
						add = vfmaq_f32(vld1q_f32(sum), vmulq_n_f32(large, single(p)), vcvtq_f32_s32(acc[j]));
					}
					if (mins) {
						int32x4_t both = vmovl_s16(vreinterpret_s16_s32(vld1_dup_s32((const int32_t *)sums)));
						float32x4_t part = m, by;
						if (t.whole) {
							by = vdupq_n_f32(single(sums));
						} else if (t.two) {
							float32x2_t of = vcvt_f32_s32(vget_low_s32(both));
							part = vmulq_lane_f32(low, of, 0) + vmulq_lane_f32(high, of, 1);
							by = vmulq_n_f32(m, single(p));
						} else {
							by = vmulq_n_f32(vcvtq_f32_s32(vpaddq_s32(both, both)), single(p));
						}
						add = min ? vfmsq_f32(add, part, by) : vfmaq_f32(add, part, by);
						STEP(sums, xStride);
					}
					DONE(add);
					vst1q_f32(sum, add);
					STEP(sum, yStride);
					STEP(p, xStride);
				}
			}
		}
	}
}

// NONE is the table argument of types without a lookup table.
#define NONE vdupq_n_s8(0)

// STRIP_ROWS defines the function of a type for the given number of rows of activations; STRIP
// defines all functions that a file has. The type's shape has the type's name. mins reports whether
// the type has minimums, which min returns.
#define STRIP_ROWS(type, rows, load, table, d, scale, mins, min) \
	void tiled##type##x##rows##NEON(float *y, int64_t yStride, uint8_t *w, uint8_t *x, int64_t xStride, int64_t in) { \
		multiply(rows, type, load, table, d, scale, mins, min, y, yStride, w, x, xStride, in); \
	}
#if MATRIX
#define STRIP(type, load, table, d, scale, mins, min) \
	STRIP_ROWS(type, 8, load, table, d, scale, mins, min)
#else
#define STRIP(type, load, table, d, scale, mins, min) \
	STRIP_ROWS(type, 1, load, table, d, scale, mins, min) \
	STRIP_ROWS(type, 4, load, table, d, scale, mins, min)
#endif
