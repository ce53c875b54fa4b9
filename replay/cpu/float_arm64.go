package cpu

import "github.com/pianola-engine/pianola/internal/dtype"

//go:noescape
func floatF32x1NEON(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF32x2NEON(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF32x3NEON(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF16x1NEON(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF16x2NEON(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF16x3NEON(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatBF16x1NEON(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatBF16x2NEON(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatBF16x3NEON(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func addScaledF16x1NEON(acc *float32, n int, v *byte, m int, w *float32, wStride int)

//go:noescape
func addScaledF16x2NEON(acc *float32, n int, v *byte, m int, w *float32, wStride int)

//go:noescape
func addScaledF16x4NEON(acc *float32, n int, v *byte, m int, w *float32, wStride int)

//go:noescape
func accumulateNEON(acc *[lanes]float32, a, b *float32, n int)

//go:noescape
func scaleMaxNEON(s *float32, n int, scale, most *float32)

//go:noescape
func f16ToF32NEON(dst *float32, src *byte, n int)

//go:noescape
func f32ToF16NEON(dst *byte, src *float32, n int)

//go:noescape
func fp8ToF32NEON(dst *float32, src *byte, n int, scale *float32)

// floatNEON sets the float loops. Every arm64 processor can run them.
func floatNEON(o *ops) {
	o.accumulate, o.dot, o.scaleMax = accumulateVector, dotVector, scaleMaxVector
	o.f16ToF32, o.f32ToF16 = f16ToF32Vector, f32ToF16Vector
	o.fp8ToF32 = func(dst []float32, src []byte, scale float32) {
		src = src[:len(dst)]
		fp8ToF32NEON(&dst[0], &src[0], len(dst), &scale)
	}
	o.decodeFloats()
	for t, loops := range map[dtype.Type][]floatLoop{
		dtype.F32:  {1: floatF32x1NEON, 2: floatF32x2NEON, 3: floatF32x3NEON},
		dtype.F16:  {1: floatF16x1NEON, 2: floatF16x2NEON, 3: floatF16x3NEON},
		dtype.BF16: {1: floatBF16x1NEON, 2: floatBF16x2NEON, 3: floatBF16x3NEON},
	} {
		o.float[t] = floatWhole(floatAssembled(t, loops), o.float[t])
	}
	o.addScaledF16 = scaledAssembled([]scaledLoop{1: addScaledF16x1NEON, 2: addScaledF16x2NEON, 4: addScaledF16x4NEON})
}

func accumulateVector(acc *[lanes]float32, a, b []float32) {
	if len(a) > 0 {
		b = b[:len(a)]
		accumulateNEON(acc, &a[0], &b[0], len(a))
	}
}

func scaleMaxVector(s []float32, scale float32) float32 {
	most := minusInf
	if len(s) > 0 {
		scaleMaxNEON(&s[0], len(s), &scale, &most)
	}
	return most + 0
}

func f16ToF32Vector(dst []float32, src []byte) {
	if len(dst) > 0 {
		src = src[:2*len(dst)]
		f16ToF32NEON(&dst[0], &src[0], len(dst))
	}
}

func f32ToF16Vector(dst []byte, src []float32) {
	if len(src) > 0 {
		dst = dst[:2*len(src)]
		f32ToF16NEON(&dst[0], &src[0], len(src))
	}
}
