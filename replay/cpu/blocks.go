package cpu

import "github.com/pianola-engine/pianola/internal/dtype"

// group is one quantization block of weights decoded to integers. A block of 32 uses only the
// first two scales and minimums.
type group = dtype.Integers

// expandFunc decodes one block to g.
type expandFunc func(g *group, block []byte)

// rowsBlocks returns the product of rows of a type, whose blocks expand decodes, and quantised
// activations.
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
				scale := float32(g.D * dx)
				w, q := g.Q[sub*blockElems:][:blockElems], x.q[b*blockElems:][:blockElems]
				for l := range acc {
					w, q := w[4*l:][:4], q[4*l:][:4]
					part := int32(w[0])*int32(q[0]) + int32(w[1])*int32(q[1]) + int32(w[2])*int32(q[2]) + int32(w[3])*int32(q[3])
					acc[l] += float32(scale * float32(part*g.Scale[2*sub+l/4]))
				}
				if mins {
					sum := int32(x.s[2*b])*g.Min[2*sub] + int32(x.s[2*b+1])*g.Min[2*sub+1]
					min[b%8] += float32(float32(g.M*dx) * float32(sum))
				}
			}
			for l := range acc {
				acc[l] += min[l]
			}
			y[i] = reduce8(&acc)
		}
	}
}

// hasMinimum reports whether blocks of the type have a minimum. Their product needs the sums of
// the activations.
func hasMinimum(t dtype.Type) bool {
	if f := dtype.FormOf(t); f != nil {
		return f.Minimum
	}
	_, _, _, mlx := t.MLX()
	return mlx
}

// sumHalves sets s to the sums of the half blocks of q, 16 elements each.
func sumHalves(s []int16, q []int8) {
	for i := range s {
		var sum int16
		for _, v := range q[16*i:][:16] {
			sum += int16(v)
		}
		s[i] = sum
	}
}
