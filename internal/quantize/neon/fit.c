// Searches for the scales of types without minimums.
#include "search.h"

// symmetricNEON is spans.symmetric. The spread becomes the extreme. bounds holds the lowest and the
// highest quant.
void symmetricNEON(float *c, float *factors, int64_t trials, int64_t elems, float *bounds) {
	EACHGROUP {
		four top = squareWeights(c, elems);
		fit f = {all(0), all(0)};
		for (int64_t n = 0; n < trials; n++) {
			four inverse = all(factors[n]) / top, xq = all(0), qq = all(0);
			EACH(p) {
				four q = rounded(inverse * get(p), all(bounds[0]), all(bounds[1]));
				xq += get(p + SCALED) * q, qq += get(p + WEIGHTS) * q * q;
			}
			if (n == 0) {
				f.scale = pick(qq == all(0), all(0), xq / qq);
				f.best = f.scale * xq;
			} else {
				f = fitted(f, xq, qq);
			}
		}
		put(c + SCALE, f.scale);
	}
}

// descendNEON is descend. The spread becomes the extreme. first is the number that the extreme is
// mapped to, and bounds holds the lowest and the highest quant.
void descendNEON(float *c, int64_t elems, float *first, int32_t *bounds) {
	int32x4_t least = vdupq_n_s32(bounds[0]), most = vdupq_n_s32(bounds[1]);
	EACHGROUP {
		four inverse = squareWeights(c, elems), xq = all(0), qq = all(0);
		inverse = all(*first) / inverse;
		EACH(p) {
			four q = vcvtq_f32_s32(nearest(inverse * get(p), least, most));
			put(p + QUANTS, q);
			xq += get(p + SCALED) * q, qq += get(p + WEIGHTS) * q * q;
		}
		for (int round = 0; round < 5; round++) {
			mask changed = vdupq_n_u32(0);
			EACH(p) {
				four q = get(p + QUANTS), w = get(p + WEIGHTS), wx = get(p + SCALED);
				four others = xq - wx * q, squares = qq - w * q * q;
				four next = vcvtq_f32_s32(nearest(get(p) * squares / others, least, most));
				mask better = (others > all(0)) & ~(next == q);
				others += wx * next, squares += w * next * next;
				better &= (squares > all(0)) & (others * others * qq > xq * xq * squares);
				put(p + QUANTS, pick(better, next, q));
				xq = pick(better, others, xq), qq = pick(better, squares, qq);
				changed |= better;
			}
			if (vmaxvq_u32(changed) == 0) break;
		}
		put(c + SCALE, pick(qq > all(0), xq / qq, all(0)));
	}
}
