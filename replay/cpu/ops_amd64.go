package cpu

import (
	"maps"
	"math"

	"golang.org/x/sys/cpu"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// hasF16C reports whether the processor converts half precision; x/sys/cpu has no flag for it.
// That the system saves the registers follows from x/sys/cpu's HasAVX2.
func hasF16C() bool

// hasAVX2 reports whether the processor has the features that avx2 uses and the system saves
// their registers.
func hasAVX2() bool { return cpu.X86.HasAVX2 && cpu.X86.HasFMA && hasF16C() }

// fastest returns the fastest loops for this processor.
func fastest() *ops {
	if !hasAVX2() {
		return portable()
	}
	o := avx2()
	if hasAVX512() {
		o.features = append(o.features, "avx512", "vnni")
		maps.Copy(o.tiled, tiledAVX512())
		floatAVX512(o)
		o.weigh, o.tally, o.draw = weigh512, tally512, draw512
		kvAVX512(o)
	}
	if hasAMX() {
		o.features = append(o.features, "amx")
		maps.Copy(o.tiled, tiledAMX())
	}
	return o
}

// avx2 returns the loops for a processor that hasAVX2.
func avx2() *ops {
	o := portable()
	o.features = []string{"avx2", "fma", "f16c"}
	for t, rows := range map[dtype.Type]blocksFunc{
		dtype.Q8_0: rowsQ8_0AVX2, dtype.Q4_0: rowsQ4_0AVX2, dtype.Q4_1: rowsQ4_1AVX2, dtype.Q5_0: rowsQ5_0AVX2, dtype.Q5_1: rowsQ5_1AVX2,
		dtype.Q2_K: rowsQ2_KAVX2, dtype.Q3_K: rowsQ3_KAVX2, dtype.Q4_K: rowsQ4_KAVX2, dtype.Q5_K: rowsQ5_KAVX2, dtype.Q6_K: rowsQ6_KAVX2,
		dtype.IQ4_NL: rowsIQ4_NLAVX2, dtype.IQ4_XS: rowsIQ4_XSAVX2, dtype.MXFP4: rowsMXFP4AVX2,
	} {
		o.rows[t] = rowsAssembled(t, rows)
	}
	mlxRowsOf(o)
	maps.Copy(o.tiled, tiledAVX2())
	floatAVX2(o)
	kvAVX2(o)
	recurrentAVX2(o)
	o.quantize = quantizeVector
	o.sumHalves = sumHalvesVector
	o.sumBlocks = sumBlocksVector
	o.addTo = addToVector
	o.scaleMul = scaleMulVector
	o.divide = divideVector
	o.decay = decayVector
	o.rotateHalves = rotateHalvesVector
	o.rotatePairs = rotatePairsVector
	o.largest = largestVector
	o.siluMul = siluMulVector
	o.geluMul = geluMulVector
	o.expSub = expSubVector
	o.orderKeys, o.atLeast, o.weigh, o.tally, o.draw = orderKeysVector, atLeastVector, weighVector, tallyVector, drawVector
	return o
}

// The assembly takes pointers. The functions below check the lengths that it relies on, and
// process the elements that do not fill a whole step.

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
func sumBlocksAVX2(s *float32, q *int8, d *float32, blocks int)

//go:noescape
func expSubAVX2(s *float32, m float32, steps int, c *[14]float32)

//go:noescape
func siluMulAVX2(dst, gate, up *float32, steps int, c *[14]float32)

//go:noescape
func geluMulAVX2(dst, gate, up *float32, steps int, c *[14]float32, cubic, linear float32)

//go:noescape
func f16ToF32AVX2(dst *float32, src *byte, steps int)

//go:noescape
func f32ToF16AVX2(dst *byte, src *float32, steps int)

// expTable holds the constants of exp in the order of avx2_exp_amd64.s.
var expTable = [14]float32{
	expMin, expMax, log2e, roundMagic, ln2Hi, ln2Lo,
	expP0, expP1, expP2, expP3, expP4, expP5, 1, float32(math.Inf(1)),
}

// quantizeTable holds the constants of quantizeAVX2.
var quantizeTable = [4]float32{127, -127, minScale, 1}

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

func sumBlocksVector(s []float32, q []int8, d []float32) {
	if len(s) > 0 {
		q, d = q[:blockElems*len(s)], d[:len(s)]
		sumBlocksAVX2(&s[0], &q[0], &d[0], len(s))
	}
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

func geluMulVector(dst, gate, up []float32) {
	dst, up = dst[:len(gate)], up[:len(gate)]
	whole := len(gate) &^ 7
	if whole > 0 {
		geluMulAVX2(&dst[0], &gate[0], &up[0], whole/8, &expTable, geluCubic, geluLinear)
	}
	geluMul(dst[whole:], gate[whole:], up[whole:])
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
