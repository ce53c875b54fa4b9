package cpu

// deltaRows are rows of a head's state and rows of its input, to which the gated delta rule is applied
// in order. A loop over them is an operation of [ops].
type deltaRows struct {
	// to receives the state after the last row of input; from is that before the first one, and may be to.
	// Both are [len(to)/keys, keys].
	to, from []float32
	keys     int
	n        int       // rows of input
	kq       []float32 // [n, 2, keys], normalised: k, then q
	gates    []float32 // [n, 2]: the factor by which the state decays, and beta
	// values holds an element for each row of the state, and out receives one. The rows of input
	// are valueStride and outStride elements apart.
	values, out            []float32
	valueStride, outStride int
	// once: to is not read again before the next token, for which all weights are read first.
	once bool
}

// rows returns the number of rows of the state.
func (d *deltaRows) rows() int { return len(d.to) / d.keys }

// part returns rows lo to hi-1 of the state.
func (d *deltaRows) part(lo, hi int) deltaRows {
	p := *d
	p.to, p.from = d.to[lo*d.keys:hi*d.keys], d.from[lo*d.keys:hi*d.keys]
	p.values, p.out = d.values[lo:], d.out[lo:]
	return p
}

// deltaPlain computes rows of the gated delta rule with the other loops of o.
func (o *ops) deltaPlain(d *deltaRows) {
	for i := range d.rows() {
		from, to := d.from[i*d.keys:][:d.keys], d.to[i*d.keys:][:d.keys]
		for r := range d.n {
			k, q := d.kq[2*r*d.keys:][:d.keys], d.kq[(2*r+1)*d.keys:][:d.keys]
			keep, beta := d.gates[2*r], d.gates[2*r+1]
			delta := float32((d.values[r*d.valueStride+i] - float32(keep*o.dot(k, from))) * beta)
			o.decay(to, from, k, keep, delta)
			d.out[r*d.outStride+i] = o.dot(q, to)
			from = to
		}
	}
}
