package quantize

import "golang.org/x/sys/cpu"

//go:noescape
func transposeAVX2(c *columns, x *float32, elems int)

//go:noescape
func affineMeanAVX2(c *columns, factors *float32, trials, elems int, top float32)

//go:noescape
func affineMagnitudeAVX2(c *columns, factors *float32, trials, elems int, top float32)

//go:noescape
func symmetricAVX2(c *columns, factors *float32, trials, elems int, lo, hi float32)

//go:noescape
func descendAVX2(c *columns, elems int, first float32, lo, hi int32)

//go:noescape
func levelsAVX2(c *columns, factors *float32, trials, elems int)

//go:noescape
func quantsAVX2(q *uint8, x, scale, minimum *float32, subs, elems int, lo, hi, offset int32)

//go:noescape
func levelQuantsAVX2(q *uint8, x, inverse *float32, subs int)

//go:noescape
func affineMeanAVX512(c *columns, factors *float32, trials, elems int, top float32)

//go:noescape
func affineMagnitudeAVX512(c *columns, factors *float32, trials, elems int, top float32)

//go:noescape
func symmetricAVX512(c *columns, factors *float32, trials, elems int, lo, hi float32)

//go:noescape
func descendAVX512(c *columns, elems int, first float32, lo, hi int32)

//go:noescape
func levelsAVX512(c *columns, factors *float32, trials, elems int)

var avx2 = (&searches{
	transpose:  transposeAVX2,
	affineMean: affineMeanAVX2, affineMagnitude: affineMagnitudeAVX2,
	symmetric: symmetricAVX2, descend: descendAVX2, levels: levelsAVX2,
}).loops("avx2", quantsVector, levelQuantsVector)

var avx512 = (&searches{
	transpose:  transposeAVX2,
	affineMean: affineMeanAVX512, affineMagnitude: affineMagnitudeAVX512,
	symmetric: symmetricAVX512, descend: descendAVX512, levels: levelsAVX512,
}).loops("avx512", quantsVector, levelQuantsVector)

// available returns the loops that this processor can run, the fastest last.
func available() []*loops {
	x, all := &cpu.X86, []*loops{&portable}
	if x.HasAVX2 {
		all = append(all, avx2)
		if x.HasAVX512F && x.HasAVX512DQ {
			all = append(all, avx512)
		}
	}
	return all
}

func quantsVector(q []uint8, x, scale, minimum []float32, lo, hi, offset int32) {
	sub := len(x) / len(scale)
	q, minimum = q[:len(x)], minimum[:len(scale)]
	quantsAVX2(&q[0], &x[0], &scale[0], &minimum[0], len(scale), sub, lo, hi, offset)
}

func levelQuantsVector(q []uint8, x, inverse []float32) {
	q, inverse = q[:len(x)], inverse[:len(x)/32]
	levelQuantsAVX2(&q[0], &x[0], &inverse[0], len(inverse))
}
