package cpu

import "github.com/pianola-engine/pianola/internal/dtype"

// superElems is how many elements share a scale in float16 in the types whose
// names end in _K, and in IQ4_XS.
const superElems = 256

// group is one block of quantised weights in integers: element i is
// d * scale[i/16] * q[i] + m * min[i/16]. A block of 32 uses the first two
// scales and minimums.
type group struct {
	d, m       float32
	scale, min [superElems / 16]int32
	q          [superElems]int8
}

// expandFunc sets g to one block.
type expandFunc func(g *group, block []byte)

// rowsBlocks returns the product of a type's rows, whose blocks expand makes
// integers of, and quantised activations.
func rowsBlocks(t dtype.Type, expand expandFunc) rowsFunc {
	elems, size := t.Block()
	per, mins := elems/blockElems, hasMinimum(t)
	return func(y []float32, w []byte, x *input) {
		row := len(x.d) / per * size
		for i := range y {
			w := w[i*row:][:row]
			g := &x.group
			var acc, min [8]float32
			for b, dx := range x.d {
				sub := b % per
				if sub == 0 {
					expand(g, w[b/per*size:][:size])
				}
				scale := float32(g.d * dx)
				w, q := g.q[sub*blockElems:][:blockElems], x.q[b*blockElems:][:blockElems]
				for l := range acc {
					w, q := w[4*l:][:4], q[4*l:][:4]
					part := int32(w[0])*int32(q[0]) + int32(w[1])*int32(q[1]) + int32(w[2])*int32(q[2]) + int32(w[3])*int32(q[3])
					acc[l] += float32(scale * float32(part*g.scale[2*sub+l/4]))
				}
				if mins {
					sum := int32(x.s[2*b])*g.min[2*sub] + int32(x.s[2*b+1])*g.min[2*sub+1]
					min[b%8] += float32(float32(g.m*dx) * float32(sum))
				}
			}
			for l := range acc {
				acc[l] += min[l]
			}
			y[i] = reduce8(&acc)
		}
	}
}

// hasMinimum reports whether blocks of the type have a minimum, so that their
// product needs the sums of the activations.
func hasMinimum(t dtype.Type) bool {
	switch t {
	case dtype.Q4_1, dtype.Q5_1, dtype.Q2_K, dtype.Q4_K, dtype.Q5_K:
		return true
	}
	_, _, _, mlx := t.MLX()
	return mlx
}

// sumHalves sets s to the sums of half blocks of q, 16 elements each.
func sumHalves(s []int16, q []int8) {
	for i := range s {
		var sum int16
		for _, v := range q[16*i:][:16] {
			sum += int16(v)
		}
		s[i] = sum
	}
}
