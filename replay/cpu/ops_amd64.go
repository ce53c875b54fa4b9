package cpu

import (
	"maps"
	"math"

	"golang.org/x/sys/cpu"

	"github.com/pianola-engine/pianola/dtype"
	"github.com/pianola-engine/pianola/table/decl"
)

// hasF16C reports whether the processor converts half precision, for which
// x/sys/cpu has no flag. That the system saves the registers follows from its
// HasAVX2.
func hasF16C() bool

// fastest returns the best loops for this processor.
func fastest() *ops {
	if !cpu.X86.HasAVX2 || !hasF16C() {
		return portable()
	}
	o := portable()
	o.features = []string{"avx2", "f16c"}
	o.rows[product{dtype.F32, decl.ActF32}] = rowsVector(rowsF32AVX2, sumsF32AVX2, decodeF32, 4)
	o.rows[product{dtype.F16, decl.ActF32}] = rowsVector(rowsF16AVX2, sumsF16AVX2, f16ToF32, 2)
	o.rows[product{dtype.BF16, decl.ActF32}] = rowsVector(rowsBF16AVX2, sumsBF16AVX2, decodeBF16, 2)
	for t, rows := range map[dtype.Type]blocksFunc{
		dtype.Q8_0: rowsQ8_0AVX2, dtype.Q4_0: rowsQ4_0AVX2, dtype.Q4_1: rowsQ4_1AVX2, dtype.Q5_0: rowsQ5_0AVX2, dtype.Q5_1: rowsQ5_1AVX2,
		dtype.Q2_K: rowsQ2_KAVX2, dtype.Q3_K: rowsQ3_KAVX2, dtype.Q4_K: rowsQ4_KAVX2, dtype.Q5_K: rowsQ5_KAVX2, dtype.Q6_K: rowsQ6_KAVX2,
		dtype.IQ4_NL: rowsIQ4_NLAVX2, dtype.IQ4_XS: rowsIQ4_XSAVX2, dtype.MXFP4: rowsMXFP4AVX2,
	} {
		o.rows[product{t, decl.ActQ8}] = rowsAssembled(t, rows)
	}
	maps.Copy(o.tiled, tiledAVX2())
	if hasAVX512() {
		o.features = append(o.features, "avx512", "vnni")
		maps.Copy(o.tiled, tiledAVX512())
	}
	o.dot = dotVector
	o.quantize = quantizeVector
	o.sumHalves = sumHalvesVector
	o.addTo = addToVector
	o.scaleMul = scaleMulVector
	o.rotateHalves = rotateHalvesVector
	o.rotatePairs = rotatePairsVector
	o.largest = largestVector
	o.siluMul = siluMulVector
	o.expSub = expSubVector
	o.addScaledF16 = addScaledF16Vector
	o.f16ToF32 = f16ToF32Vector
	o.f32ToF16 = f32ToF16Vector
	return o
}

// The assembly takes pointers; the functions below check the lengths that it
// relies on, and do what is left of a whole number of steps.

//go:noescape
func rowsF32AVX2(y *float32, w *byte, rows, steps int, x *float32)

//go:noescape
func rowsF16AVX2(y *float32, w *byte, rows, steps int, x *float32)

//go:noescape
func rowsBF16AVX2(y *float32, w *byte, rows, steps int, x *float32)

//go:noescape
func sumsF32AVX2(sums *[lanes]float32, w *byte, steps int, x *float32)

//go:noescape
func sumsF16AVX2(sums *[lanes]float32, w *byte, steps int, x *float32)

//go:noescape
func sumsBF16AVX2(sums *[lanes]float32, w *byte, steps int, x *float32)

// blocksFunc computes len(y) rows of blocks of a type. q, d and s are those of
// [input]; s may be nil if the type has no minimum.
type blocksFunc func(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ8_0AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ4_0AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ4_1AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ5_0AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ5_1AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ2_KAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ3_KAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ4_KAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ5_KAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ6_KAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsIQ4_NLAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsIQ4_XSAVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsMXFP4AVX2(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func quantizeAVX2(q *int8, d, x *float32, blocks int, c *[4]float32)

//go:noescape
func sumHalvesAVX2(s *int16, q *int8, blocks int)

//go:noescape
func expSubAVX2(s *float32, m float32, steps int, c *[14]float32)

//go:noescape
func siluMulAVX2(dst, gate, up *float32, steps int, c *[14]float32)

//go:noescape
func addScaledF16AVX2(acc *float32, v *byte, w *float32, rows, n int)

//go:noescape
func f16ToF32AVX2(dst *float32, src *byte, steps int)

//go:noescape
func f32ToF16AVX2(dst *byte, src *float32, steps int)

// expTable is the constants of exp in the order of avx2_exp_amd64.s.
var expTable = [14]float32{
	expMin, expMax, log2e, roundMagic, ln2Hi, ln2Lo,
	expP0, expP1, expP2, expP3, expP4, expP5, 1, float32(math.Inf(1)),
}

// quantizeTable is the constants of quantizeAVX2.
var quantizeTable = [4]float32{127, -127, minScale, 1}

// rowsVector returns the float product of weights of size bytes: rows does
// whole steps of lanes; with a rest, sums does them and decode converts the
// rest.
func rowsVector(
	rows func(y *float32, w *byte, rows, steps int, x *float32),
	sums func(sums *[lanes]float32, w *byte, steps int, x *float32),
	decode func(dst []float32, src []byte), size int,
) rowsFunc {
	return func(y []float32, w []byte, x *input) {
		n := len(x.f)
		if len(y) == 0 || n == 0 {
			clear(y)
			return
		}
		w = w[:len(y)*n*size]
		steps, rest := n/lanes, n%lanes
		if rest == 0 {
			rows(&y[0], &w[0], len(y), steps, &x.f[0])
			return
		}
		for i := range y {
			row := w[i*n*size:][:n*size]
			sums(&x.sums, &row[0], steps, &x.f[0])
			decode(x.buf[:rest], row[steps*lanes*size:])
			accumulate(&x.sums, x.buf[:rest], x.f[steps*lanes:])
			y[i] = reduce32(&x.sums)
		}
	}
}

// rowsAssembled returns the product of a type's blocks and quantised
// activations.
func rowsAssembled(t dtype.Type, rows blocksFunc) rowsFunc {
	elems, size := t.Block()
	mins := hasMinimum(t)
	return func(y []float32, w []byte, x *input) {
		blocks := len(x.d) * blockElems / elems
		if len(y) == 0 || blocks == 0 {
			clear(y)
			return
		}
		w, q, d := w[:len(y)*blocks*size], x.q[:blocks*elems], x.d[:blocks*elems/blockElems]
		var s *int16
		if mins {
			s = &x.s[:blocks*elems/16][0]
		}
		rows(&y[0], &w[0], len(y), blocks, &q[0], &d[0], s)
	}
}

func dotVector(a, b []float32) float32 {
	steps := len(a) / lanes
	b = b[:len(a)]
	if steps == 0 {
		return dot(a, b)
	}
	var sums [lanes]float32
	sumsF32AVX2(&sums, bytePtr(a), steps, &b[0])
	accumulate(&sums, a[steps*lanes:], b[steps*lanes:])
	return reduce32(&sums)
}

func quantizeVector(q []int8, d, x []float32) {
	if len(d) > 0 {
		q, x = q[:len(d)*blockElems], x[:len(d)*blockElems]
		quantizeAVX2(&q[0], &d[0], &x[0], len(d), &quantizeTable)
	}
}

func sumHalvesVector(s []int16, q []int8) {
	if len(s)%2 != 0 || len(s) == 0 {
		sumHalves(s, q)
		return
	}
	q = q[:16*len(s)]
	sumHalvesAVX2(&s[0], &q[0], len(s)/2)
}

func expSubVector(s []float32, m float32) {
	whole := len(s) &^ 7
	if whole > 0 {
		expSubAVX2(&s[0], m, whole/8, &expTable)
	}
	expSub(s[whole:], m)
}

func siluMulVector(dst, gate, up []float32) {
	dst, up = dst[:len(gate)], up[:len(gate)]
	whole := len(gate) &^ 7
	if whole > 0 {
		siluMulAVX2(&dst[0], &gate[0], &up[0], whole/8, &expTable)
	}
	siluMul(dst[whole:], gate[whole:], up[whole:])
}

func addScaledF16Vector(acc []float32, v []byte, w []float32) {
	if len(acc)%8 != 0 || len(acc) == 0 || len(w) == 0 {
		addScaledF16(acc, v, w)
		return
	}
	v = v[:2*len(acc)*len(w)]
	addScaledF16AVX2(&acc[0], &v[0], &w[0], len(w), len(acc))
}

func f16ToF32Vector(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	whole := len(dst) &^ 7
	if whole > 0 {
		f16ToF32AVX2(&dst[0], &src[0], whole/8)
	}
	f16ToF32(dst[whole:], src[2*whole:])
}

func f32ToF16Vector(dst []byte, src []float32) {
	dst = dst[:2*len(src)]
	whole := len(src) &^ 7
	if whole > 0 {
		f32ToF16AVX2(&dst[0], &src[0], whole/8)
	}
	f32ToF16(dst[2*whole:], src[whole:])
}
