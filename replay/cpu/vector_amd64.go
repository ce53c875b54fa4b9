package cpu

// The functions below check the lengths that avx2_vector_amd64.s relies on, and process the
// elements that do not fill a whole step.

//go:noescape
func addAVX2(x, delta *float32, steps int)

//go:noescape
func scaleMulAVX2(out, x, w *float32, steps int, scale float32)

//go:noescape
func divideAVX2(out, x *float32, steps int, by float32)

//go:noescape
func decayAVX2(dst, src, k *float32, steps int, keep, delta float32)

//go:noescape
func rotateHalvesAVX2(x, high, angles *float32, steps int)

//go:noescape
func rotatePairsAVX2(x, angles *float32, steps int)

//go:noescape
func maxAVX2(x *float32, steps int) float32

//go:noescape
func findAVX2(x *float32, steps int, m float32) int

func addToVector(x, delta []float32) {
	delta = delta[:len(x)]
	whole := len(x) &^ 7
	if whole > 0 {
		addAVX2(&x[0], &delta[0], whole/8)
	}
	addTo(x[whole:], delta[whole:])
}

func scaleMulVector(out, x, w []float32, scale float32) {
	out, w = out[:len(x)], w[:len(x)]
	whole := len(x) &^ 7
	if whole > 0 {
		scaleMulAVX2(&out[0], &x[0], &w[0], whole/8, scale)
	}
	scaleMul(out[whole:], x[whole:], w[whole:], scale)
}

func divideVector(out, x []float32, by float32) {
	out = out[:len(x)]
	whole := len(x) &^ 7
	if whole > 0 {
		divideAVX2(&out[0], &x[0], whole/8, by)
	}
	divide(out[whole:], x[whole:], by)
}

func decayVector(dst, src, k []float32, keep, delta float32) {
	src, k = src[:len(dst)], k[:len(dst)]
	whole := len(dst) &^ 7
	if whole > 0 {
		decayAVX2(&dst[0], &src[0], &k[0], whole/8, keep, delta)
	}
	decay(dst[whole:], src[whole:], k[whole:], keep, delta)
}

func rotateHalvesVector(x, high, angles []float32) {
	high, angles = high[:len(x)], angles[:2*len(x)]
	whole := len(x) &^ 7
	if whole > 0 {
		rotateHalvesAVX2(&x[0], &high[0], &angles[0], whole/8)
	}
	rotateHalves(x[whole:], high[whole:], angles[2*whole:])
}

func rotatePairsVector(x, angles []float32) {
	angles = angles[:len(x)]
	whole := len(x) &^ 7
	if whole > 0 {
		rotatePairsAVX2(&x[0], &angles[0], whole/8)
	}
	rotatePairs(x[whole:], angles[whole:])
}

func largestVector(x []float32) int {
	const step = 32
	whole := len(x) &^ (step - 1)
	if whole == 0 {
		return largest(x)
	}
	m := max(maxAVX2(&x[0], whole/step), maxOf(x[whole:]))
	if at := findAVX2(&x[0], whole/8, m); at < whole {
		return at
	}
	for i, v := range x[whole:] {
		if v == m {
			return whole + i
		}
	}
	return 0 // all are NaN
}
