// Helpers of the NEON loops. neongen compiles the loops to Go assembly, so they have no static
// data, no calls and no stack frame. Constants are arguments or use OPAQUE, all functions are
// inlined, and values that do not fit in registers are kept in the output.
#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))

// UNROLL precedes loops whose index must be constant, because it selects a lane or an element
// of an array in registers.
#define UNROLL _Pragma("clang loop unroll(full)")
#define ROLL _Pragma("clang loop unroll(disable)")

// OPAQUE is a constant that the compiler must construct in a register instead of loading it
// from memory.
#define OPAQUE(x) ({ uint64_t c_ = (x); __asm__("" : "+r"(c_)); c_; })

// half converts the float16 at p to float32.
INLINE float half(const uint8_t *p) { return *(const __fp16 *)p; }

// halves converts four float16 to float32.
INLINE float32x4_t halves(const uint8_t *p) { return vcvt_f32_f16(vld1_f16((const __fp16 *)p)); }

// single loads a float32.
INLINE float single(const uint8_t *p) { return *(const float *)p; }

// levels returns 16 levels from two words.
INLINE int8x16_t levels(uint64_t a, uint64_t b) {
	return vcombine_s8(vcreate_s8(a), vcreate_s8(b));
}

// LEVELS_IQ4 is the table of levels of IQ4_NL and IQ4_XS.
#define LEVELS_IQ4 levels(OPAQUE(0xf6eaddcfbfad9881), OPAQUE(0x7159453526190d01))

// LEVELS_MXFP4 is the table of doubled E2M1 values.
#define LEVELS_MXFP4 levels(OPAQUE(0x0c08060403020100), OPAQUE(0xf4f8fafcfdfeff00))

// dotLane adds the products of the four columns in lane l of x to acc. The lanes of acc and w
// are rows of weights.
INLINE int32x4_t dotLane(int32x4_t acc, int8x16_t w, int8x16_t x, int l) {
	switch (l) {
	case 0: return vdotq_laneq_s32(acc, w, x, 0);
	case 1: return vdotq_laneq_s32(acc, w, x, 1);
	case 2: return vdotq_laneq_s32(acc, w, x, 2);
	default: return vdotq_laneq_s32(acc, w, x, 3);
	}
}
