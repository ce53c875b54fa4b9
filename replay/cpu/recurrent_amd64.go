package cpu

//go:noescape
func deltaAVX512(to, from, kq, gates, values, out *float32, shape *int)

//go:noescape
func deltaAVX2(to, from, kq, gates, values, out *float32, shape *int)

//go:noescape
func convolveAVX2(out, w *float32, steps, taps int, x *[4]*float32)

// recurrentAVX2 sets the loops of layers with recurrent state that need AVX2 and FMA.
func recurrentAVX2(o *ops) {
	o.delta = o.deltaAssembled(deltaAVX2, 2)
	o.convolve = convolveVector
}

func convolveVector(out, w []float32, x [][]float32) {
	steps := len(out) / 8
	if len(x) == 3 { // the loop reads one element more
		steps = min(steps, (len(w)-1)/24)
	}
	if (len(x) != 3 && len(x) != 4) || steps <= 0 {
		convolve(out, w, x, 0)
		return
	}
	var inputs [4]*float32
	for t := range x {
		inputs[t] = &x[t][:8*steps][0]
	}
	_ = w[:8*steps*len(x)]
	convolveAVX2(&out[0], &w[0], steps, len(x), &inputs)
	convolve(out, w, x, 8*steps)
}
