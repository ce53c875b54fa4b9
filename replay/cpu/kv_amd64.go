package cpu

//go:noescape
func dotQ8x1AVX2(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)

//go:noescape
func dotQ8x2AVX2(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)

//go:noescape
func dotQ8x3AVX2(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)

//go:noescape
func dotQ8x1AVX512(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)

//go:noescape
func dotQ8x2AVX512(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)

//go:noescape
func dotQ8x4AVX512(y *float32, yStride int, w *byte, scales *float32, n, in int, x *float32, xStride int)

//go:noescape
func addScaledQ8x1AVX2(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)

//go:noescape
func addScaledQ8x2AVX2(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)

//go:noescape
func addScaledQ8x3AVX2(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)

//go:noescape
func addScaledQ8x1AVX512(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)

//go:noescape
func addScaledQ8x2AVX512(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)

//go:noescape
func addScaledQ8x4AVX512(acc *float32, n int, v *byte, scales *float32, m int, w *float32, wStride int)

// kvAVX2 sets the loops over int8 caches that need AVX2 and FMA.
func kvAVX2(o *ops) {
	o.dotQ8 = dotQ8Assembled([]dotQ8Loop{1: dotQ8x1AVX2, 2: dotQ8x2AVX2, 3: dotQ8x3AVX2})
	o.addScaledQ8 = scaledQ8Assembled([]scaledQ8Loop{1: addScaledQ8x1AVX2, 2: addScaledQ8x2AVX2, 3: addScaledQ8x3AVX2})
}

// kvAVX512 sets the loops over int8 caches for a processor that hasAVX512.
func kvAVX512(o *ops) {
	o.dotQ8 = dotQ8Assembled([]dotQ8Loop{1: dotQ8x1AVX512, 2: dotQ8x2AVX512, 4: dotQ8x4AVX512})
	o.addScaledQ8 = scaledQ8Assembled([]scaledQ8Loop{1: addScaledQ8x1AVX512, 2: addScaledQ8x2AVX512, 4: addScaledQ8x4AVX512})
}
