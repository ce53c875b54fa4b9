//go:build amd64 || arm64

package quantize

// searches are searches over 16 sub-blocks in columns, written in assembly. A search is wrong in
// lanes whose spread is too small; Go searches for those again.
type searches struct {
	transpose                   func(c *columns, x *float32, elems int)
	affineMean, affineMagnitude func(c *columns, factors *float32, trials, elems int, top float32)
	symmetric                   func(c *columns, factors *float32, trials, elems int, lo, hi float32)
	descend                     func(c *columns, elems int, first float32, lo, hi int32)
	levels                      func(c *columns, factors *float32, trials, elems int)
}

// usable reports whether affine is right in a lane. Its levels must be below 2^22, where vector
// loops round differently from Go: in the first trial, they overflow if the range of the elements
// is too narrow for its inverse. Later trials divide by another range, with the minimum found so
// far; levels before clamping then grow by at most the quotient of both ranges.
func (c *columns) usable(s int) bool {
	const narrow, share = 1e-30, 1.0 / 1024
	return c.spread[s] >= narrow && c.narrowest[s] >= c.spread[s]*share
}

// load sets the columns to the sub-blocks of x. Unused lanes are 0.
func (v *searches) load(e *encoder, x []float32, sub int) {
	if len(x) < 16*sub {
		var whole [512]float32
		copy(whole[:], x)
		x = whole[:]
	}
	v.transpose(&e.space, &x[:16*sub][0], sub)
}

func (v *searches) loops(name string, q func(q []uint8, x, scale, minimum []float32, lo, hi, offset int32), levelQ func(q []uint8, x, inverse []float32)) *loops {
	return &loops{
		name: name,
		affine: func(e *encoder, g *grid, x []float32, sub int) {
			v.load(e, x, sub)
			search := v.affineMean
			if g.absolute {
				search = v.affineMagnitude
			}
			search(&e.space, &g.factors[0], len(g.factors), sub, float32(g.top))
			e.scale, e.minimum = e.space.scale, e.space.minimum
			for s := range len(x) / sub {
				if !e.space.usable(s) {
					e.scale[s], e.minimum[s] = g.affine(x[s*sub:][:sub])
				}
			}
		},
		symmetric: func(e *encoder, p *spans, x []float32, sub int) {
			v.load(e, x, sub)
			v.symmetric(&e.space, &p.factors[0], len(p.factors), sub, -float32(p.limit), float32(p.limit-1))
			e.takeScales()
		},
		descend: func(e *encoder, x []float32, sub int, limit int32) {
			v.load(e, x, sub)
			v.descend(&e.space, sub, -float32(limit), -limit, limit-1)
			e.takeScales()
		},
		levels: func(e *encoder, x []float32, sub int) {
			v.load(e, x, sub)
			v.levels(&e.space, &levelFactors[0], len(levelFactors), sub)
			e.takeScales()
		},
		quants:      q,
		levelQuants: levelQ,
	}
}

// takeScales sets the scales to those of the columns, except where all elements count as zero.
func (e *encoder) takeScales() {
	for s, top := range e.space.spread {
		e.scale[s] = e.space.scale[s]
		if abs(top) < tiny {
			e.scale[s] = 0
		}
	}
}
