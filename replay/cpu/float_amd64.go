package cpu

import "github.com/pianola-engine/pianola/internal/dtype"

//go:noescape
func floatF32x1AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF32x2AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF32x3AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF16x1AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF16x2AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF16x3AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatBF16x1AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatBF16x2AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatBF16x3AVX2(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func addScaledF16x1AVX2(acc *float32, n int, v *byte, m int, w *float32, wStride int)

//go:noescape
func addScaledF16x2AVX2(acc *float32, n int, v *byte, m int, w *float32, wStride int)

//go:noescape
func addScaledF16x3AVX2(acc *float32, n int, v *byte, m int, w *float32, wStride int)

//go:noescape
func floatF32x1AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF32x2AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF32x4AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF32x6AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func sliceF32x6AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride, wStride int, sums *float32, flags int)

//go:noescape
func floatF16x1AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF16x2AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF16x4AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatF16x6AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func sliceF16x6AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride, wStride int, sums *float32, flags int)

//go:noescape
func floatBF16x1AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatBF16x2AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatBF16x4AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func floatBF16x6AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride int)

//go:noescape
func sliceBF16x6AVX512(y *float32, yStride int, w *byte, n, in int, x *float32, xStride, wStride int, sums *float32, flags int)

//go:noescape
func addScaledF16x1AVX512(acc *float32, n int, v *byte, m int, w *float32, wStride int)

//go:noescape
func addScaledF16x2AVX512(acc *float32, n int, v *byte, m int, w *float32, wStride int)

//go:noescape
func addScaledF16x4AVX512(acc *float32, n int, v *byte, m int, w *float32, wStride int)

//go:noescape
func addScaledF16x6AVX512(acc *float32, n int, v *byte, m int, w *float32, wStride int)

//go:noescape
func expSubAVX512(s *float32, m float32, n int, c *[14]float32)

//go:noescape
func siluMulAVX512(dst, gate, up *float32, n int, c *[14]float32)

//go:noescape
func geluMulAVX512(dst, gate, up *float32, n int, c *[14]float32, cubic, linear float32)

//go:noescape
func scaleMaxAVX512(s *float32, scale float32, n int) float32

//go:noescape
func softenAVX512(scores *float32, stride, n int, scale float32, top, sum *float32, heads int, acc *float32, d int, c *[14]float32)

//go:noescape
func turnHeadAVX512(out, x, w, angles *float32, d int, eps float32)

//go:noescape
func accumulateAVX2(acc *[lanes]float32, a, b *float32, steps int)

//go:noescape
func scaleMaxAVX2(s *float32, scale float32, steps int) float32

// floatAVX2 sets the float loops that need AVX2, FMA and F16C.
func floatAVX2(o *ops) {
	o.accumulate, o.dot, o.scaleMax = accumulateVector, dotVector, scaleMaxVector
	o.f16ToF32, o.f32ToF16 = f16ToF32Vector, f32ToF16Vector
	o.fp8ToF32 = fp8ToF32Vector
	o.decodeFloats()
	for t, loops := range map[dtype.Type][]floatLoop{
		dtype.F32:  {1: floatF32x1AVX2, 2: floatF32x2AVX2, 3: floatF32x3AVX2},
		dtype.F16:  {1: floatF16x1AVX2, 2: floatF16x2AVX2, 3: floatF16x3AVX2},
		dtype.BF16: {1: floatBF16x1AVX2, 2: floatBF16x2AVX2, 3: floatBF16x3AVX2},
	} {
		o.float[t] = floatWhole(floatAssembled(t, loops), o.float[t])
	}
	for t, stream := range map[dtype.Type]streamLoop{dtype.F32: streamF32AVX2, dtype.F16: streamF16AVX2, dtype.BF16: streamBF16AVX2} {
		o.float[t] = streamed(t, stream, o.float[t])
	}
	scaled := scaledAssembled([]scaledLoop{1: addScaledF16x1AVX2, 2: addScaledF16x2AVX2, 3: addScaledF16x3AVX2})
	o.addScaledF16 = func(acc []float32, n int, v []byte, m int, w []float32, wStride int) {
		if n%8 == 0 {
			scaled(acc, n, v, m, w, wStride)
		} else {
			addScaledF16(acc, n, v, m, w, wStride)
		}
	}
}

// floatAVX512 sets the float loops for a processor that hasAVX512.
func floatAVX512(o *ops) {
	o.fp8ToF32 = fp8ToF32Vector512
	slices := map[dtype.Type]sliceLoop{dtype.F32: sliceF32x6AVX512, dtype.F16: sliceF16x6AVX512, dtype.BF16: sliceBF16x6AVX512}
	for t, loops := range map[dtype.Type][]floatLoop{
		dtype.F32:  {1: floatF32x1AVX512, 2: floatF32x2AVX512, 4: floatF32x4AVX512, 6: floatF32x6AVX512},
		dtype.F16:  {1: floatF16x1AVX512, 2: floatF16x2AVX512, 4: floatF16x4AVX512, 6: floatF16x6AVX512},
		dtype.BF16: {1: floatBF16x1AVX512, 2: floatBF16x2AVX512, 4: floatBF16x4AVX512, 6: floatBF16x6AVX512},
	} {
		o.float[t] = inOrder(t, floatAssembled(t, loops[:3]), inSlices(t, slices[t], floatAssembled(t, loops)))
	}
	for t, stream := range map[dtype.Type]streamLoop{dtype.F32: streamF32AVX512, dtype.F16: streamF16AVX512, dtype.BF16: streamBF16AVX512} {
		o.float[t] = streamed(t, stream, o.float[t])
	}
	o.expSub, o.siluMul, o.geluMul, o.scaleMax = expSub512, siluMul512, geluMul512, scaleMax512
	o.soften, o.delta = o.soften512(), o.deltaAssembled(deltaAVX512, 4)
	o.wide, o.turnHead = &wide512, turnHead512
	scaled := []scaledLoop{1: addScaledF16x1AVX512, 2: addScaledF16x2AVX512, 4: addScaledF16x4AVX512, 6: addScaledF16x6AVX512}
	pairs, all := scaledAssembled(scaled[:3]), scaledAssembled(scaled)
	o.addScaledF16 = func(acc []float32, n int, v []byte, m int, w []float32, wStride int) {
		if n >= 128 && len(acc) <= few*n {
			pairs(acc, n, v, m, w, wStride)
		} else {
			all(acc, n, v, m, w, wStride)
		}
	}
}

// few is the largest number of rows of activations, or of accumulators, for which attention uses
// functions that process at most two of them at a time. These functions read rows of K and V
// sequentially, which is faster if the rows come from memory.
const few = 4

// inOrder returns a product that calls pairs for at most [few] rows of activations and short rows
// of weights, such as rows of K, and calls all otherwise. pairs processes at most two rows of
// activations at a time.
func inOrder(t dtype.Type, pairs, all floatFunc) floatFunc {
	_, size := t.Block()
	return func(y []float32, yStride int, w []byte, n int, x *floatInput) {
		if x.rows <= few && x.in*size <= streamRow {
			pairs(y, yStride, w, n, x)
		} else {
			all(y, yStride, w, n, x)
		}
	}
}

// sliceLoop is a floatLoop for [sliceRows] rows of activations and in columns of longer rows: rows of weights are wStride
// bytes apart. With sliceFrom, the sums begin with those at sums, [n/4, sliceRows, 4, lanes], and with sliceMore they are
// stored there and y is not written.
type sliceLoop func(y *float32, yStride int, w *byte, n, in int, x *float32, xStride, wStride int, sums *float32, flags int)

const (
	sliceFrom = 1 << iota
	sliceMore
)

// inSlices returns a product that computes rows of more than [sliceColumns] columns in slices, if there are at least
// [sliceRows] rows of activations. whole computes others, and the rows of activations that are left.
func inSlices(t dtype.Type, loop sliceLoop, whole floatFunc) floatFunc {
	_, size := t.Block()
	return func(y []float32, yStride int, w []byte, n int, x *floatInput) {
		groups := x.rows / sliceRows
		if x.in <= sliceColumns || groups == 0 || n <= 0 {
			whole(y, yStride, w, n, x)
			return
		}
		row := size * x.in
		rows, all := x.rows, x.x
		for first := 0; first < groups; first += sliceGroups {
			x.rows = min(groups-first, sliceGroups) * sliceRows
			for i := 0; i < n; i += sliceWeights {
				some := min(sliceWeights, n-i)
				loop.weights(y[i:], yStride, w[i*row:][:some*row], some, x)
			}
			x.x, y = x.x[min(len(x.x), x.rows*x.stride):], y[min(len(y), x.rows*yStride):]
		}
		if x.rows = rows % sliceRows; x.rows > 0 {
			whole(y, yStride, w, n, x)
		}
		x.x, x.rows = all, rows
	}
}

// weights computes the products of n rows of weights, at most [sliceWeights], slice by slice. The rows of x are whole
// groups, at most [sliceGroups].
func (loop sliceLoop) weights(y []float32, yStride int, w []byte, n int, x *floatInput) {
	sums := x.slices[:]
	for !aligned(sums, align) {
		sums = sums[1:]
	}
	row := len(w) / n
	size := row / x.in
	count := (x.in + sliceColumns - 1) / sliceColumns
	columns := ((x.in+count-1)/count + lanes - 1) / lanes * lanes
	f, y := x.x[:(x.rows-1)*x.stride+x.in], y[:(x.rows-1)*yStride+n]
	for at := 0; at < x.in; at += columns {
		flags := 0
		if at > 0 {
			flags |= sliceFrom
		}
		if at+columns < x.in {
			flags |= sliceMore
		}
		for j := 0; j < x.rows; j += sliceRows {
			loop(&y[j*yStride], 4*yStride, &w[at*size], n, min(columns, x.in-at), &f[j*x.stride+at], 4*x.stride, row, &sums[j/sliceRows*sliceSums:][:sliceSums][0], flags)
		}
	}
}

func accumulateVector(acc *[lanes]float32, a, b []float32) {
	b = b[:len(a)]
	whole := len(a) &^ (lanes - 1)
	if whole > 0 {
		accumulateAVX2(acc, &a[0], &b[0], whole/lanes)
	}
	accumulate(acc, a[whole:], b[whole:])
}

func scaleMaxVector(s []float32, scale float32) float32 {
	whole := len(s) &^ 7
	m := scaleMax(s[whole:], scale)
	if whole > 0 {
		m = max(m, scaleMaxAVX2(&s[0], scale, whole/8))
	}
	return m + 0
}

func scaleMax512(s []float32, scale float32) float32 {
	if len(s) == 0 {
		return minusInf
	}
	return scaleMaxAVX512(&s[0], scale, len(s)) + 0
}

// soften512 returns soften for a processor that hasAVX512.
func (o *ops) soften512() softenFunc {
	others := o.softenAny()
	return func(scores []float32, n int, scale float32, top, sum, acc []float32, d int) {
		if n == 0 || n > attnBlock || d == 0 || d%16 != 0 || len(top) == 0 {
			others(scores, n, scale, top, sum, acc, d)
			return
		}
		heads := len(top)
		scores, sum, acc = scores[:(heads-1)*attnBlock+n], sum[:heads], acc[:heads*d]
		for i := 0; i < heads; i += 16 { // its largest number of heads
			softenAVX512(&scores[i*attnBlock], 4*attnBlock, n, scale, &top[i], &sum[i], min(heads-i, 16), &acc[i*d], d, &expTable)
		}
	}
}

func turnHead512(out, x, w, angles []float32, eps float32) {
	if n := len(x); n > 0 {
		turnHeadAVX512(&out[:n][0], &x[0], &w[:n][0], &angles[:n][0], n, eps)
	}
}

func expSub512(s []float32, m float32) {
	if len(s) > 0 {
		expSubAVX512(&s[0], m, len(s), &expTable)
	}
}

func siluMul512(dst, gate, up []float32) {
	if len(gate) > 0 {
		dst, up = dst[:len(gate)], up[:len(gate)]
		siluMulAVX512(&dst[0], &gate[0], &up[0], len(gate), &expTable)
	}
}

func geluMul512(dst, gate, up []float32) {
	if len(gate) > 0 {
		dst, up = dst[:len(gate)], up[:len(gate)]
		geluMulAVX512(&dst[0], &gate[0], &up[0], len(gate), &expTable, geluCubic, geluLinear)
	}
}
