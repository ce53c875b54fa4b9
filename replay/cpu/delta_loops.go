//go:build amd64 || arm64

package cpu

// deltaLoop computes a whole number of groups of rows of a state. shape holds the rows, the keys, a
// multiple of 16, the rows of input, and the strides of values and out, none of which is 0; and 1 if
// to, which is then aligned to 64 bytes, is better written past the caches.
type deltaLoop func(to, from, kq, gates, values, out *float32, shape *int)

// deltaAssembled returns the gated delta rule with a loop for groups of rows of a state, which also
// takes the remaining rows and those of other sizes to the other loops of o.
func (o *ops) deltaAssembled(loop deltaLoop, group int) func(*deltaRows) {
	return func(d *deltaRows) {
		whole := d.rows() / group * group
		if d.keys%lanes != 0 || whole == 0 || d.n == 0 {
			o.deltaPlain(d)
			return
		}
		_, _, _ = d.from[:len(d.to)], d.kq[:2*d.n*d.keys], d.gates[:2*d.n]
		_, _ = d.values[:(d.n-1)*d.valueStride+d.rows()], d.out[:(d.n-1)*d.outStride+d.rows()]
		shape := [6]int{whole, d.keys, d.n, d.valueStride, d.outStride, 0}
		if d.once && &d.to[0] != &d.from[0] && aligned(d.to, 64) {
			shape[5] = 1
		}
		loop(&d.to[0], &d.from[0], &d.kq[0], &d.gates[0], &d.values[0], &d.out[0], &shape[0])
		if whole < d.rows() {
			rest := d.part(whole, d.rows())
			o.deltaPlain(&rest)
		}
	}
}
