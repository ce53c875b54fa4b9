package quantize

// spans lists the scales that symmetric tries.
type spans struct {
	limit int32 // quants are in -limit..limit-1
	// A trial maps the extreme element to this number. The first one is -limit, and the others
	// are near it.
	factors [19]float32
}

func newSpans(limit int32) *spans {
	p := &spans{limit: limit}
	p.factors[0] = -float32(limit)
	at := 1
	for step := -9; step <= 9; step++ {
		if step != 0 {
			p.factors[at] = -(float32(limit) + float32(0.1*float32(step)))
			at++
		}
	}
	return p
}

// symmetric returns the scale with which scale*q best approximates x, with errors weighted by x^2.
// It chooses the trial whose quants have the best least-squares fit.
func (p *spans) symmetric(x []float32) float32 {
	top := extreme(x)
	if abs(top) < tiny {
		return 0
	}
	fit := func(inverse float32) (xq, qq float32) {
		for _, v := range x {
			q := float32(clamp(inverse*v, -p.limit, p.limit-1))
			w := v * v
			xq += float32(float32(w*v) * q)
			qq += float32(float32(w*q) * q)
		}
		return xq, qq
	}
	xq, qq := fit(p.factors[0] / top)
	var scale float32
	if qq != 0 {
		scale = xq / qq
	}
	best := scale * xq
	for _, factor := range p.factors[1:] {
		xq, qq := fit(factor / top)
		if qq > 0 && float32(xq*xq) > float32(best*qq) {
			scale = xq / qq
			best = scale * xq
		}
	}
	return scale
}

// descend returns the scale with which scale*q best approximates x, for types with few levels.
// Starting with plain quants, it moves each quant to the value that suits the others best, until
// none changes.
func descend(x []float32, limit int32) float32 {
	top := extreme(x)
	if abs(top) < tiny {
		return 0
	}
	var quants [16]int32
	q := quants[:len(x)]
	inverse := -float32(limit) / top
	var xq, qq float32
	for i, v := range x {
		q[i] = clamp(inverse*v, -limit, limit-1)
		w, l := v*v, float32(q[i])
		xq += float32(float32(w*v) * l)
		qq += float32(float32(w*l) * l)
	}
	for range 5 {
		changed := false
		for i, v := range x {
			w, l := v*v, float32(q[i])
			others := xq - float32(float32(w*v)*l)
			if others <= 0 {
				continue
			}
			squares := qq - float32(float32(w*l)*l)
			next := clamp(float32(v*squares)/others, -limit, limit-1)
			if next == q[i] {
				continue
			}
			l = float32(next)
			others += float32(float32(w*v) * l)
			squares += float32(float32(w*l) * l)
			if squares > 0 && float32(float32(others*others)*qq) > float32(float32(xq*xq)*squares) {
				q[i], xq, qq, changed = next, others, squares, true
			}
		}
		if !changed {
			break
		}
	}
	if qq > 0 {
		return xq / qq
	}
	return 0
}

// grid lists the scales that affine tries.
type grid struct {
	top     int32     // the highest quant
	factors []float32 // a trial spreads the elements over this number of steps
	// absolute selects magnitudes as weights, and as errors the magnitudes of differences. The
	// weights are otherwise the magnitudes plus the root of their mean square, and the errors
	// are squares.
	absolute bool
}

// newGrid returns a grid with steps+1 trials over top+first, top+first+step, ... steps.
func newGrid(top int32, first, step float32, steps int, absolute bool) *grid {
	g := &grid{top: top, absolute: absolute}
	for n := range steps + 1 {
		g.factors = append(g.factors, first+float32(step*float32(n))+float32(top))
	}
	return g
}

// weigh sets the weights of the elements of a sub-block.
func (g *grid) weigh(weights, x []float32) {
	var mean float32
	if !g.absolute {
		var squares float32
		for _, v := range x {
			squares += float32(v * v)
		}
		mean = sqrt(squares / float32(len(x)))
	}
	for i, v := range x {
		weights[i] = mean + abs(v)
	}
}

// affine returns the scale and the minimum (as a magnitude to subtract) with which scale*q -
// minimum, q in 0..top, best approximates x. Each trial spreads the elements over the current
// range and fits a line through the quants by weighted least squares.
func (g *grid) affine(x []float32) (scale, minimum float32) {
	var quants, space [32]float32
	q, weights := quants[:len(x)], space[:len(x)]
	g.weigh(weights, x)
	lo, hi := x[0], x[0]
	sumW := weights[0]
	sumX := float32(sumW * x[0])
	for i, v := range x[1:] {
		lo, hi = min(lo, v), max(hi, v)
		w := weights[i+1]
		sumW += w
		sumX += float32(w * v)
	}
	if lo > 0 {
		lo = 0
	}
	if hi == lo {
		return 0, -lo
	}
	top := float32(g.top)
	inverse := top / (hi - lo)
	scale = 1 / inverse
	for i, v := range x {
		q[i] = float32(clamp(inverse*(v-lo), 0, g.top))
	}
	best := g.err(x, weights, q, scale, lo, -1)
	for _, factor := range g.factors {
		inverse = factor / (hi - lo)
		var sumQ, sumQQ, sumXQ float32
		for i, v := range x {
			l := float32(clamp(inverse*(v-lo), 0, g.top))
			q[i] = l
			wl := float32(weights[i] * l)
			sumQ += wl
			sumQQ += float32(wl * l)
			sumXQ += float32(wl * v)
		}
		d := float32(sumW*sumQQ) - float32(sumQ*sumQ)
		if d <= 0 {
			continue
		}
		s := (float32(sumW*sumXQ) - float32(sumX*sumQ)) / d
		m := (float32(sumQQ*sumX) - float32(sumQ*sumXQ)) / d
		if m > 0 {
			s, m = sumXQ/sumQQ, 0
		}
		if err := g.err(x, weights, q, s, m, best); err < best {
			best, scale, lo = err, s, m
		}
	}
	return scale, -lo
}

// err returns the weighted error of scale*q + lo for x. It may stop early and return a value that
// is at least enough, unless enough is negative.
func (g *grid) err(x, weights, q []float32, scale, lo, enough float32) float32 {
	var sum float32
	q, weights = q[:len(x)], weights[:len(x)]
	if g.absolute {
		for i, v := range x {
			diff := float32(scale*q[i]) + lo - v
			sum += float32(weights[i] * abs(diff))
		}
		return sum
	}
	for i, v := range x {
		diff := float32(scale*q[i]) + lo - v
		sum += float32(weights[i] * float32(diff*diff))
		if i&7 == 7 && sum >= enough && enough >= 0 { // terms are not negative
			return sum
		}
	}
	return sum
}

// levelIndex finds the nearest of a sorted list of integers.
type levelIndex struct {
	values [16]float32
	below  []uint8 // for each integer distance from the smallest value: the last value that is not above it
}

func newLevelIndex(values [16]float32) *levelIndex {
	x := &levelIndex{values: values}
	at := 0
	for v := values[0]; v < values[15]; v++ {
		if v == values[at+1] {
			at++
		}
		x.below = append(x.below, uint8(at))
	}
	return x
}

// find returns the index of the value nearest to f; of two equally near values, the upper one.
func (x *levelIndex) find(f float32) uint8 {
	switch {
	case !(f > x.values[0]): // NaN too
		return 0
	case f >= x.values[15]:
		return 15
	}
	i := x.below[min(int(f-x.values[0]), len(x.below)-1)] // the difference may round up
	if f-x.values[i] < x.values[i+1]-f {
		return i
	}
	return i + 1
}

// levels are the 16 levels of IQ4_NL and IQ4_XS, which are not evenly spaced.
var levels = newLevelIndex([16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113})

// scaleOfLevels returns the scale with which scale*level best approximates x, with errors
// weighted by x^2. It maps the extreme element to the lowest level or near it, with either sign.
func scaleOfLevels(x []float32) float32 {
	top := extreme(x)
	if abs(top) < tiny {
		return 0
	}
	fit := func(inverse float32) (xq, qq float32) {
		for _, v := range x {
			q := levels.values[levels.find(inverse*v)]
			wq := float32(v*v) * q
			xq += float32(wq * v)
			qq += float32(wq * q)
		}
		return xq, qq
	}
	xq, qq := fit(1 / (-top / levelFactors[0]))
	scale := xq / qq
	best := scale * xq
	for _, factor := range levelFactors[1:] {
		xq, qq := fit(factor / top)
		if qq > 0 && float32(xq*xq) > float32(best*qq) {
			scale = xq / qq
			best = scale * xq
		}
	}
	return scale
}

// levelFactors are the lowest level, and then the numbers to which scaleOfLevels maps the extreme
// element.
var levelFactors = func() (factors [16]float32) {
	lowest := levels.values[0]
	factors[0] = lowest
	for i := range factors[1:] {
		factors[1+i] = float32(i-7) + lowest
	}
	return factors
}()
