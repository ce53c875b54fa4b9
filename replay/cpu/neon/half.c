// Conversions from and to float16, and from E4M3.
#include "neon.h"

// f16ToF32NEON converts n elements from float16 to float32.
void f16ToF32NEON(float *dst, uint8_t *src, int64_t n) {
	for (; n >= 4; n -= 4, dst += 4, src += 8) vst1q_f32(dst, halves(src));
	for (; n > 0; n--, src += 2) *dst++ = half(src);
}

// f32ToF16NEON converts n elements from float32 to float16, rounding to nearest even.
void f32ToF16NEON(uint8_t *dst, float *src, int64_t n) {
	for (; n >= 4; n -= 4, dst += 8, src += 4) vst1_f16((__fp16 *)dst, vcvt_f16_f32(vld1q_f32(src)));
	for (; n > 0; n--, dst += 2) *(__fp16 *)dst = (__fp16)*src++;
}

// fp8ToF32NEON converts n elements of E4M3, a multiple of 8, and multiplies them by the scale. The
// bits of an element, moved into a float16, have 1/256 of its value. A magnitude of all ones becomes
// NaN.
void fp8ToF32NEON(float *dst, uint8_t *src, int64_t n, float *scale) {
	for (; n > 0; n -= 8, dst += 8, src += 8) {
		uint16x8_t b = vmovl_u8(vld1_u8(src)), m = b & 0x7f;
		uint16x8_t h = m << 7 | (b & 0x80) << 8 | ((m == 0x7f) & 0x7c00);
		float16x8_t f = vreinterpretq_f16_u16(h);
		vst1q_f32(dst, vmulq_n_f32(vcvt_f32_f16(vget_low_f16(f)) * 256, *scale));
		vst1q_f32(dst + 4, vmulq_n_f32(vcvt_high_f32_f16(f) * 256, *scale));
	}
}
