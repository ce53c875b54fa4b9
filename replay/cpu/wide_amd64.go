package cpu

//go:noescape
func widenF16AVX512(dst *float32, src *byte, n int)

//go:noescape
func widenQ8AVX512(dst *float32, src *byte, scales *float32, n int)

//go:noescape
func transposeAVX512(dst, src *float32, srcStride, n int)

//go:noescape
func scoresAVX512(out *float32, outStep int, k *float32, n, d int, q, sums *float32)

//go:noescape
func softenWideAVX512(scores *float32, n, least int, seen *int32, scale float32, live int, top, sum, acc *float32, d int, c *[14]float32)

//go:noescape
func addScaledF32x1AVX512(acc *float32, n int, v *float32, m int, w *float32, wStride int)

//go:noescape
func addScaledF32x2AVX512(acc *float32, n int, v *float32, m int, w *float32, wStride int)

//go:noescape
func addScaledF32x4AVX512(acc *float32, n int, v *float32, m int, w *float32, wStride int)

//go:noescape
func addScaledF32x6AVX512(acc *float32, n int, v *float32, m int, w *float32, wStride int)

var scaledF32AVX512 = []wideLoop{1: addScaledF32x1AVX512, 2: addScaledF32x2AVX512, 4: addScaledF32x4AVX512, 6: addScaledF32x6AVX512}

// wide512 are the wideLoops for a processor that hasAVX512.
var wide512 = wideLoops{
	widenF16: func(dst []float32, src []byte) {
		if len(dst) > 0 {
			widenF16AVX512(&dst[0], &src[:2*len(dst)][0], len(dst))
		}
	},
	widenQ8: func(dst []float32, src []byte, scales []float32) {
		if len(dst) > 0 {
			widenQ8AVX512(&dst[0], &src[:len(dst)][0], &scales[:len(dst)/blockElems][0], len(dst))
		}
	},
	transpose: func(dst, src []float32, d int) {
		if d >= wideLanes && d%wideLanes == 0 {
			transposeAVX512(&dst[:wideLanes*d][0], &src[:wideLanes*d][0], 4*d, d/wideLanes)
		}
	},
	scores: func(out, k []float32, n, d int, q, sums []float32) {
		if n <= 0 || d <= 0 || d%32 != 0 {
			return
		}
		whole := (n + 3) &^ 3
		const step = attnBlock * wideLanes
		scoresAVX512(&out[:step+whole*wideLanes][0], 4*step, &k[:whole*d][0], n, d, &q[:attnRows*d][0], &sums[:16*wideLanes][0])
	},
	soften: func(scores []float32, n, least int, seen []int32, scale float32, rows int, top, sum, acc []float32, d int) {
		if n <= 0 || n > attnBlock || rows <= 0 || rows > wideLanes || d <= 0 || d%16 != 0 {
			return
		}
		softenWideAVX512(&scores[:attnBlock*wideLanes][0], n, least, &seen[:wideLanes][0], scale, 1<<rows-1,
			&top[:wideLanes][0], &sum[:wideLanes][0], &acc[:rows*d][0], d, &expTable)
	},
	addScaled: func(acc []float32, n int, v []float32, m int, w []float32) {
		if n <= 0 || m <= 0 {
			return
		}
		rows := len(acc) / n
		v, w = v[:n*m], w[:(m-1)*wideLanes+rows]
		for i := 0; i < rows; {
			some := take(scaledF32AVX512, rows-i)
			scaledF32AVX512[some](&acc[i*n], n, &v[0], m, &w[i], 4)
			i += some
		}
	},
}
