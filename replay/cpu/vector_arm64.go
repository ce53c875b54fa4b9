package cpu

// The functions below check the lengths that neon/vector.c relies on.

//go:noescape
func addNEON(x, delta *float32, n int)

//go:noescape
func scaleMulNEON(out, x, w *float32, n int, scale *float32)

//go:noescape
func rotateHalvesNEON(x, high, angles *float32, n int)

//go:noescape
func rotatePairsNEON(x, angles *float32, n int)

//go:noescape
func largestNEON(x *float32, n int, at *int)

func addToVector(x, delta []float32) {
	if len(x) > 0 {
		delta = delta[:len(x)]
		addNEON(&x[0], &delta[0], len(x))
	}
}

func scaleMulVector(out, x, w []float32, scale float32) {
	if len(x) > 0 {
		out, w = out[:len(x)], w[:len(x)]
		scaleMulNEON(&out[0], &x[0], &w[0], len(x), &scale)
	}
}

func rotateHalvesVector(x, high, angles []float32) {
	if len(x) > 0 {
		high, angles = high[:len(x)], angles[:2*len(x)]
		rotateHalvesNEON(&x[0], &high[0], &angles[0], len(x))
	}
}

// rotatePairsVector takes an even number of elements.
func rotatePairsVector(x, angles []float32) {
	if len(x) > 0 {
		angles = angles[:len(x)]
		rotatePairsNEON(&x[0], &angles[0], len(x)/2)
	}
}

func largestVector(x []float32) (at int) {
	if len(x) > 0 {
		largestNEON(&x[0], len(x), &at)
	}
	return at
}
