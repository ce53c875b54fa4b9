package cpu

//go:noescape
func fp8ToF32AVX2(dst *float32, src *byte, steps int, scale float32)

//go:noescape
func fp8ToF32AVX512(dst *float32, src *byte, steps int, scale float32)

func fp8ToF32Vector(dst []float32, src []byte, scale float32) {
	src = src[:len(dst)]
	fp8ToF32AVX2(&dst[0], &src[0], len(dst)/8, scale)
}

func fp8ToF32Vector512(dst []float32, src []byte, scale float32) {
	src = src[:len(dst)]
	fp8ToF32AVX512(&dst[0], &src[0], len(dst)/16, scale)
}
