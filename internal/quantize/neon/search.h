// Searches for the scales of 16 sub-blocks in columns, four lanes at a time. Every lane takes the
// steps of the functions in search.go, in the same order, so it gets the same bits.
//
// c is a *columns. Elements of a lane are 16 floats apart.
#include "../../../replay/cpu/neon/neon.h"

typedef float32x4_t four;
typedef uint32x4_t mask;

enum { X = 0, WEIGHTS = 512, SCALED = 1024, QUANTS = 1536, SPREAD = 2048, SCALE = 2064, MINIMUM = 2080, NARROWEST = 2096 };

#define EACH(p) for (float *p = c, *end_ = c + 16 * elems; p != end_; p += 16)
#define EACHGROUP for (float *endGroup_ = c + 16; c != endGroup_; c += 4)

INLINE four all(float x) { return vdupq_n_f32(x); }
INLINE four get(const float *p) { return vld1q_f32(p); }
INLINE void put(float *p, four x) { vst1q_f32(p, x); }
INLINE four magnitude(four x) { return vabsq_f32(x); }
INLINE four pick(mask m, four x, four other) { return vbslq_f32(m, x, other); }

// SHIFT is 1.5*2^23.
#define SHIFT 12582912.0f

// rounded returns x rounded to an integer from lo to hi. The magnitude of x is below 2^22.
INLINE four rounded(four x, four lo, four hi) {
	four shift = all(SHIFT);
	return vmaxq_f32(vminq_f32(x + shift, hi + shift), lo + shift) - shift;
}

// nearest takes the steps of clamp in Go, whatever x is.
INLINE int32x4_t nearest(four x, int32x4_t lo, int32x4_t hi) {
	int32x4_t n = (vreinterpretq_s32_f32(x + all(SHIFT)) & vdupq_n_s32(0x7fffff)) - vdupq_n_s32(0x400000);
	return vminq_s32(vmaxq_s32(n, lo), hi);
}

// squareWeights sets the spread to the extreme of the elements, which it returns, the weights to
// their squares, and the scaled elements to the products of both.
INLINE four squareWeights(float *c, int64_t elems) {
	four top = all(0), most = all(0);
	EACH(p) {
		four x = get(p), w = x * x;
		mask more = magnitude(x) > most;
		top = pick(more, x, top), most = pick(more, magnitude(x), most);
		put(p + WEIGHTS, w), put(p + SCALED, w * x);
	}
	put(c + SPREAD, top);
	return top;
}

// fit is a search's choice so far.
typedef struct {
	four scale, best;
} fit;

// fitted returns the choice after a trial with the sums xq and qq.
INLINE fit fitted(fit f, four xq, four qq) {
	mask better = (xq * xq > f.best * qq) & (qq > all(0));
	four scale = xq / qq;
	f.scale = pick(better, scale, f.scale), f.best = pick(better, scale * xq, f.best);
	return f;
}
