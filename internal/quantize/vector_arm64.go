package quantize

//go:noescape
func transposeNEON(c *columns, x *float32, elems int)

//go:noescape
func affineMeanNEON(c *columns, factors *float32, trials, elems int, top *float32)

//go:noescape
func affineMagnitudeNEON(c *columns, factors *float32, trials, elems int, top *float32)

//go:noescape
func symmetricNEON(c *columns, factors *float32, trials, elems int, bounds *[2]float32)

//go:noescape
func descendNEON(c *columns, elems int, first *float32, bounds *[2]int32)

//go:noescape
func levelsNEON(c *columns, factors *float32, trials, elems int, tables *[32]float32)

//go:noescape
func quantsNEON(q *byte, x, scale, minimum *float32, subs, elems int, bounds *[3]int32)

//go:noescape
func levelQuantsNEON(q *byte, x, inverse *float32, subs int, tables *[32]float32)

// levelTables holds the halves between the levels, from element 1 on, and the levels.
var levelTables = func() (t [32]float32) {
	copy(t[16:], levels.values[:])
	for i := 1; i < 16; i++ {
		t[i] = (levels.values[i-1] + levels.values[i]) / 2
	}
	return t
}()

var neon = (&searches{
	transpose: transposeNEON,
	affineMean: func(c *columns, factors *float32, trials, elems int, top float32) {
		affineMeanNEON(c, factors, trials, elems, &top)
	},
	affineMagnitude: func(c *columns, factors *float32, trials, elems int, top float32) {
		affineMagnitudeNEON(c, factors, trials, elems, &top)
	},
	symmetric: func(c *columns, factors *float32, trials, elems int, lo, hi float32) {
		symmetricNEON(c, factors, trials, elems, &[2]float32{lo, hi})
	},
	descend: func(c *columns, elems int, first float32, lo, hi int32) {
		descendNEON(c, elems, &first, &[2]int32{lo, hi})
	},
	levels: func(c *columns, factors *float32, trials, elems int) {
		levelsNEON(c, factors, trials, elems, &levelTables)
	},
}).loops("neon", quantsVector, levelQuantsVector)

// available returns the loops that this processor can run, the fastest last.
func available() []*loops { return []*loops{&portable, neon} }

func quantsVector(q []uint8, x, scale, minimum []float32, lo, hi, offset int32) {
	sub := len(x) / len(scale)
	q, minimum = q[:len(x)], minimum[:len(scale)]
	quantsNEON(&q[0], &x[0], &scale[0], &minimum[0], len(scale), sub, &[3]int32{lo, hi, offset})
}

func levelQuantsVector(q []uint8, x, inverse []float32) {
	q, inverse = q[:len(x)], inverse[:len(x)/32]
	levelQuantsNEON(&q[0], &x[0], &inverse[0], len(inverse), &levelTables)
}
