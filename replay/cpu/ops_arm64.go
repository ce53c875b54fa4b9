package cpu

import (
	"maps"
	"math"

	"golang.org/x/sys/cpu"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// fastest returns the fastest loops for this processor. Without the dot product extension, which
// cores designed since 2017 have, integer products use the loops in Go. With i8mm, which cores
// designed since 2020 have, products with several rows of activations use matrix instructions.
func fastest() *ops {
	o := portable()
	o.features = []string{"neon"}
	o.quantize = quantizeVector
	o.sumHalves = sumHalvesVector
	o.sumBlocks = sumBlocksVector
	o.addTo = addToVector
	o.scaleMul = scaleMulVector
	o.rotateHalves = rotateHalvesVector
	o.rotatePairs = rotatePairsVector
	o.largest = largestVector
	o.siluMul = siluMulVector
	o.geluMul = geluMulVector
	o.expSub = expSubVector
	floatNEON(o)
	recurrentNEON(o)
	if cpu.ARM64.HasASIMDDP {
		o.features = append(o.features, "dotprod")
		for t, rows := range map[dtype.Type]blocksFunc{
			dtype.Q8_0: rowsQ8_0NEON, dtype.Q4_0: rowsQ4_0NEON, dtype.Q4_1: rowsQ4_1NEON, dtype.Q5_0: rowsQ5_0NEON, dtype.Q5_1: rowsQ5_1NEON,
			dtype.Q2_K: rowsQ2_KNEON, dtype.Q3_K: rowsQ3_KNEON, dtype.Q4_K: rowsQ4_KNEON, dtype.Q5_K: rowsQ5_KNEON, dtype.Q6_K: rowsQ6_KNEON,
			dtype.IQ4_NL: rowsIQ4_NLNEON, dtype.IQ4_XS: rowsIQ4_XSNEON, dtype.MXFP4: rowsMXFP4NEON,
		} {
			o.rows[t] = rowsAssembled(t, rows)
		}
		mlxRowsOf(o)
		maps.Copy(o.tiled, tiledNEON())
		if cpu.ARM64.HasI8MM {
			o.features = append(o.features, "i8mm")
			maps.Copy(o.tiled, tiledMatrixNEON())
		}
	}
	return o
}

//go:noescape
func rowsQ8_0NEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ4_0NEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ4_1NEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ5_0NEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ5_1NEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ2_KNEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ3_KNEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ4_KNEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ5_KNEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsQ6_KNEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsIQ4_NLNEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsIQ4_XSNEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func rowsMXFP4NEON(y *float32, w *byte, rows, blocks int, q *int8, d *float32, s *int16)

//go:noescape
func quantizeNEON(q *int8, d, x *float32, blocks int, c *[3]float32)

//go:noescape
func sumHalvesNEON(s *int16, q *int8, n int)

//go:noescape
func sumBlocksNEON(s *float32, q *int8, d *float32, n int)

//go:noescape
func expSubNEON(s *float32, n int, m *float32, c *[14]float32)

//go:noescape
func siluMulNEON(dst, gate, up *float32, n int, c *[14]float32)

//go:noescape
func geluMulNEON(dst, gate, up *float32, n int, c *[14]float32, by *[2]float32)

// expTable holds the constants of exp in the order of neon/exp.c.
var expTable = [14]float32{
	expMin, expMax, log2e, roundMagic, ln2Hi, ln2Lo,
	expP0, expP1, expP2, expP3, expP4, expP5, 1, float32(math.Inf(1)),
}

// quantizeTable holds the constants of quantizeNEON.
var quantizeTable = [3]float32{127, minScale, 1}

func quantizeVector(q []int8, d, x []float32) {
	if len(d) > 0 {
		q, x = q[:len(d)*blockElems], x[:len(d)*blockElems]
		quantizeNEON(&q[0], &d[0], &x[0], len(d), &quantizeTable)
	}
}

func sumHalvesVector(s []int16, q []int8) {
	if len(s) > 0 {
		q = q[:16*len(s)]
		sumHalvesNEON(&s[0], &q[0], len(s))
	}
}

func sumBlocksVector(s []float32, q []int8, d []float32) {
	if len(s) > 0 {
		q, d = q[:blockElems*len(s)], d[:len(s)]
		sumBlocksNEON(&s[0], &q[0], &d[0], len(s))
	}
}

func expSubVector(s []float32, m float32) {
	if len(s) > 0 {
		expSubNEON(&s[0], len(s), &m, &expTable)
	}
}

func siluMulVector(dst, gate, up []float32) {
	if len(gate) > 0 {
		dst, up = dst[:len(gate)], up[:len(gate)]
		siluMulNEON(&dst[0], &gate[0], &up[0], len(gate), &expTable)
	}
}

// geluFactors are the factors of the exponent that geluMulNEON uses.
var geluFactors = [2]float32{geluCubic, geluLinear}

func geluMulVector(dst, gate, up []float32) {
	if len(gate) > 0 {
		dst, up = dst[:len(gate)], up[:len(gate)]
		geluMulNEON(&dst[0], &gate[0], &up[0], len(gate), &expTable, &geluFactors)
	}
}
