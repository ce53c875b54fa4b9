// Conversions from and to float16.
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
