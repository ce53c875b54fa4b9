package cpu

// The functions of neon/recurrent.c.

//go:noescape
func deltaNEON(to, from, kq, gates, values, out *float32, shape *int)

//go:noescape
func convolve3NEON(out, w *float32, n int, x0, x1, x2 *float32)

//go:noescape
func convolve4NEON(out, w *float32, n int, x0, x1, x2, x3 *float32)

// recurrentNEON sets the loops of layers with recurrent state. Every arm64 processor can run them.
func recurrentNEON(o *ops) {
	o.delta = o.deltaAssembled(deltaNEON, 2)
	o.convolve = convolveVector
}

func convolveVector(out, w []float32, x [][]float32) {
	whole := len(out) &^ 3
	if whole > 0 && len(w) >= len(out)*len(x) {
		switch len(x) {
		case 3:
			convolve3NEON(&out[0], &w[0], whole, &x[0][:whole][0], &x[1][:whole][0], &x[2][:whole][0])
		case 4:
			convolve4NEON(&out[0], &w[0], whole, &x[0][:whole][0], &x[1][:whole][0], &x[2][:whole][0], &x[3][:whole][0])
		default:
			whole = 0
		}
	}
	convolve(out, w, x, whole)
}
