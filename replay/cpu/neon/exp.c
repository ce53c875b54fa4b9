// exp and the functions that use it, as in exp.go: no product is fused with a sum.
#include "neon.h"

// table holds the constants, in the order of expTable.
typedef struct {
	float min, max, log2e, magic, ln2Hi, ln2Lo, p0, p1, p2, p3, p4, p5, one, infinity;
} table;

// step returns y*r + p with two roundings.
INLINE float32x4_t step(float32x4_t y, float32x4_t r, float p) { return vaddq_f32(vmulq_f32(y, r), vdupq_n_f32(p)); }

// exponent returns 2^n.
INLINE float32x4_t exponent(int32x4_t n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)); }

// exp4 returns e^x.
INLINE float32x4_t exp4(float32x4_t x, const table *c) {
	float32x4_t magic = vdupq_n_f32(c->magic), t = vaddq_f32(vmulq_n_f32(x, c->log2e), magic);
	float32x4_t n = vsubq_f32(t, magic);
	float32x4_t r = vsubq_f32(x, vmulq_n_f32(n, c->ln2Hi));
	r = vsubq_f32(r, vmulq_n_f32(n, c->ln2Lo));
	float32x4_t y = vaddq_f32(vmulq_n_f32(r, c->p0), vdupq_n_f32(c->p1));
	y = step(y, r, c->p2);
	y = step(y, r, c->p3);
	y = step(y, r, c->p4);
	y = step(y, r, c->p5);
	y = vaddq_f32(vmulq_f32(y, vmulq_f32(r, r)), r);
	y = vaddq_f32(y, vdupq_n_f32(c->one));
	// Multiply by 2^n in two steps, because 2^128 is not a float32.
	int32x4_t i = vsubq_s32(vreinterpretq_s32_f32(t), vreinterpretq_s32_f32(magic)), half = vshrq_n_s32(i, 1);
	y = vmulq_f32(vmulq_f32(y, exponent(half)), exponent(vsubq_s32(i, half)));
	y = vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, vdupq_n_f32(c->min))));
	return vbslq_f32(vcgtq_f32(x, vdupq_n_f32(c->max)), vdupq_n_f32(c->infinity), y);
}

// expSubNEON replaces the n elements of s by exp(s - m), four at a time and the remaining ones
// singly.
void expSubNEON(float *s, int64_t n, float *m, float *c) {
	float32x4_t most = vdupq_n_f32(*m);
	for (; n >= 4; n -= 4, s += 4) vst1q_f32(s, exp4(vsubq_f32(vld1q_f32(s), most), (table *)c));
	for (; n > 0; n--, s++) vst1q_lane_f32(s, exp4(vsubq_f32(vld1q_dup_f32(s), most), (table *)c), 0);
}

// silu4 returns silu(gate) * up.
INLINE float32x4_t silu4(float32x4_t gate, float32x4_t up, const table *c) {
	float32x4_t e = vaddq_f32(vdupq_n_f32(c->one), exp4(vnegq_f32(gate), c));
	return vmulq_f32(vdivq_f32(gate, e), up);
}

// gelu4 returns gelu(gate) * up. by[0] and by[1] are the cubic and the linear coefficient.
INLINE float32x4_t gelu4(float32x4_t gate, float32x4_t up, const float *by, const table *c) {
	float32x4_t z = vaddq_f32(vmulq_n_f32(vmulq_f32(gate, gate), by[0]), vdupq_n_f32(by[1]));
	float32x4_t e = vaddq_f32(vdupq_n_f32(c->one), exp4(vnegq_f32(vmulq_f32(gate, z)), c));
	return vmulq_f32(vdivq_f32(gate, e), up);
}

// geluMulNEON sets the n elements of dst to gelu(gate) * up.
void geluMulNEON(float *dst, float *gate, float *up, int64_t n, float *c, float *by) {
	for (; n >= 4; n -= 4, dst += 4, gate += 4, up += 4) {
		vst1q_f32(dst, gelu4(vld1q_f32(gate), vld1q_f32(up), by, (table *)c));
	}
	for (; n > 0; n--, dst++) vst1q_lane_f32(dst, gelu4(vld1q_dup_f32(gate++), vld1q_dup_f32(up++), by, (table *)c), 0);
}

// siluMulNEON sets the n elements of dst to silu(gate) * up.
void siluMulNEON(float *dst, float *gate, float *up, int64_t n, float *c) {
	for (; n >= 4; n -= 4, dst += 4, gate += 4, up += 4) {
		vst1q_f32(dst, silu4(vld1q_f32(gate), vld1q_f32(up), (table *)c));
	}
	for (; n > 0; n--, dst++) vst1q_lane_f32(dst, silu4(vld1q_dup_f32(gate++), vld1q_dup_f32(up++), (table *)c), 0);
}
