// Searches for a scale and a minimum.
#include "search.h"

// weigh sets the weights of grid.affine.
INLINE void weigh(int absolute, float *c, int64_t elems) {
	four mean = all(0);
	if (!absolute) {
		EACH(p) mean += get(p) * get(p);
		mean = vsqrtq_f32(mean * all(1.0f / 32));
	}
	EACH(p) put(p + WEIGHTS, mean + magnitude(get(p)));
}

// error returns the error of grid.affine for a scale and a lowest value.
INLINE four error(int absolute, float *c, int64_t elems, four scale, four lo) {
	four sum = all(0);
	EACH(p) {
		four diff = scale * get(p + QUANTS) + lo - get(p);
		sum += get(p + WEIGHTS) * (absolute ? magnitude(diff) : diff * diff);
	}
	return sum;
}

// affine is grid.affine. It also writes the range of the elements and the smallest range of all
// trials, by which the caller can tell whether the levels were in the range that rounded requires.
INLINE void affine(int absolute, float *c, const float *factors, int64_t trials, int64_t elems, four top) {
	EACHGROUP {
		weigh(absolute, c, elems);
		four lo = get(c), hi = lo, sumW = all(0), sumX = all(0);
		EACH(p) {
			four x = get(p), w = get(p + WEIGHTS);
			lo = vminq_f32(lo, x), hi = vmaxq_f32(hi, x);
			sumW += w, sumX += w * x;
		}
		lo = vminq_f32(lo, all(0));
		four spread = hi - lo, inverse = top / spread;
		put(c + SPREAD, spread);
		EACH(p) put(p + QUANTS, rounded(inverse * (get(p) - lo), all(0), top));
		four scale = all(1) / inverse, best = error(absolute, c, elems, scale, lo);
		for (int64_t n = 0; n < trials; n++) {
			four sumQ = all(0), sumQQ = all(0), sumXQ = all(0);
			four range = hi - lo;
			spread = vminq_f32(spread, range);
			inverse = all(factors[n]) / range;
			EACH(p) {
				four q = rounded(inverse * (get(p) - lo), all(0), top), wq = get(p + WEIGHTS) * q;
				put(p + QUANTS, q);
				sumQ += wq, sumQQ += wq * q, sumXQ += wq * get(p);
			}
			four d = sumW * sumQQ - sumQ * sumQ;
			four s = (sumW * sumXQ - sumX * sumQ) / d, m = (sumQQ * sumX - sumQ * sumXQ) / d;
			mask positive = m > all(0);
			s = pick(positive, sumXQ / sumQQ, s), m = pick(positive, all(0), m);
			four err = error(absolute, c, elems, s, m);
			mask better = (err < best) & ~(d <= all(0));
			best = pick(better, err, best), scale = pick(better, s, scale), lo = pick(better, m, lo);
		}
		put(c + SCALE, scale);
		put(c + MINIMUM, -lo);
		put(c + NARROWEST, spread);
	}
}

void affineMeanNEON(float *c, float *factors, int64_t trials, int64_t elems, float *top) {
	affine(0, c, factors, trials, elems, all(*top));
}

void affineMagnitudeNEON(float *c, float *factors, int64_t trials, int64_t elems, float *top) {
	affine(1, c, factors, trials, elems, all(*top));
}
