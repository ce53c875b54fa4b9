package quantize

// encoder encodes the blocks of one type, several of them at a time.
type encoder struct {
	*loops
	// scale and minimum are what a search has found for each sub-block.
	scale, minimum [16]float32
	q              [512]uint8
	space          columns
}

// columns is the space of vector loops, which search for the scales of 16 sub-blocks together. Each
// of these has one lane. The loops in assembly rely on the order and the sizes of the fields.
type columns struct {
	x       [32][16]float32 // the elements
	weights [32][16]float32
	scaled  [32][16]float32 // elements times weights, except for affine
	quants  [32][16]float32
	// spread is the range of the elements, or the extreme element. narrowest is the smallest range
	// that affine has divided by.
	spread, scale, minimum, narrowest [16]float32
}

// loops holds the inner loops of the encoders. All implementations give the same bits. A search
// takes the elements of at most 16 sub-blocks of sub elements and sets the encoder's scale and
// minimum.
type loops struct {
	name      string
	affine    func(e *encoder, g *grid, x []float32, sub int)
	symmetric func(e *encoder, p *spans, x []float32, sub int)
	descend   func(e *encoder, x []float32, sub int, limit int32)
	levels    func(e *encoder, x []float32, sub int)
	// quants sets q to the integers from lo to hi nearest to (x+minimum)/scale, plus offset. There
	// is a scale for each sub-block. A sub-block with scale 0 gets offset.
	quants func(q []uint8, x, scale, minimum []float32, lo, hi, offset int32)
	// levelQuants sets q to the indices of the levels nearest to inverse*x, which has a factor for
	// each sub-block of 32 elements.
	levelQuants func(q []uint8, x, inverse []float32)
}

// portable are the loops in Go, which the others are tested against.
var portable = loops{
	name: "portable",
	affine: func(e *encoder, g *grid, x []float32, sub int) {
		for s := range len(x) / sub {
			e.scale[s], e.minimum[s] = g.affine(x[s*sub:][:sub])
		}
	},
	symmetric: func(e *encoder, p *spans, x []float32, sub int) {
		for s := range len(x) / sub {
			e.scale[s] = p.symmetric(x[s*sub:][:sub])
		}
	},
	descend: func(e *encoder, x []float32, sub int, limit int32) {
		for s := range len(x) / sub {
			e.scale[s] = descend(x[s*sub:][:sub], limit)
		}
	},
	levels: func(e *encoder, x []float32, sub int) {
		for s := range len(x) / sub {
			e.scale[s] = scaleOfLevels(x[s*sub:][:sub])
		}
	},
	quants:      quants,
	levelQuants: levelQuants,
}

func quants(q []uint8, x, scale, minimum []float32, lo, hi, offset int32) {
	sub := len(x) / len(scale)
	for s, scale := range scale {
		q, minimum := q[s*sub:][:sub], minimum[s]
		for i, v := range x[s*sub:][:sub] {
			n := int32(0)
			if scale != 0 {
				n = clamp((v+minimum)/scale, lo, hi)
			}
			q[i] = uint8(n + offset)
		}
	}
}

func levelQuants(q []uint8, x, inverse []float32) {
	for i, v := range x {
		q[i] = levels.find(inverse[i/32] * v)
	}
}
