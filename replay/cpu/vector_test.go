package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// TestElementwise compares every implementation with portable Go, for lengths with and without a
// remainder.
func TestElementwise(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 1))
	for name, o := range implementations() {
		for n := range 70 {
			for _, scale := range extremes {
				x, y, w := guardedFloats(t, random(r, n, scale)), guardedFloats(t, random(r, n, scale)), guardedFloats(t, random(r, n, 1))
				angles := guardedFloats(t, random(r, 2*n, 1))
				for _, c := range []struct {
					what string
					do   func(o *ops, x, y []float32)
				}{
					{"addTo", func(o *ops, x, y []float32) { o.addTo(x, y) }},
					{"scaleMul", func(o *ops, x, y []float32) { o.scaleMul(x, y, w, 1.7) }},
					{"scaleMul in place", func(o *ops, x, _ []float32) { o.scaleMul(x, x, w, 1e-3) }},
					{"divide", func(o *ops, x, y []float32) { o.divide(x, y, 1.7) }},
					{"divide in place", func(o *ops, x, _ []float32) { o.divide(x, x, -3) }},
					{"decay", func(o *ops, x, y []float32) { o.decay(x, y, w, 0.9, -1.3) }},
					{"decay in place", func(o *ops, x, _ []float32) { o.decay(x, x, w, 0.3, 2) }},
					{"rotateHalves", func(o *ops, x, y []float32) { o.rotateHalves(x, y, angles) }},
					{"rotatePairs", func(o *ops, x, _ []float32) { o.rotatePairs(x[:n&^1], angles[:n&^1]) }},
				} {
					wantX, wantY := append([]float32{}, x...), append([]float32{}, y...)
					gotX, gotY := guardedFloats(t, random(r, n, 1)), guardedFloats(t, random(r, n, 1))
					copy(gotX, x)
					copy(gotY, y)
					c.do(portable(), wantX, wantY)
					c.do(o, gotX, gotY)
					same(t, fmt.Sprintf("%s: %s of %d", name, c.what, n), gotX, wantX)
					same(t, fmt.Sprintf("%s: %s of %d, second", name, c.what, n), gotY, wantY)
				}
			}
		}
	}
}

// TestLargest compares largest with a plain search, including equal elements, NaN and infinities.
func TestLargest(t *testing.T) {
	r := rand.New(rand.NewPCG(22, 1))
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, o := range implementations() {
		for range 4000 {
			n := 1 + r.IntN(200)
			x := float32s(guarded(t, uint64(4*n)))
			kinds := [][]float32{{-1, 0, 1, 2}, {nan}, {nan, -inf}, {inf, nan, 3}, {0, float32(math.Copysign(0, -1)), nan}, {-inf}}
			if kind := r.IntN(len(kinds) + 1); kind == len(kinds) {
				copy(x, random(r, n, 1))
			} else {
				for i := range x {
					x[i] = kinds[kind][r.IntN(len(kinds[kind]))]
				}
			}
			want := 0
			for i, v := range x {
				if best := x[want]; v > best || v == v && best != best {
					want = i
				}
			}
			if got := o.largest(x); got != want {
				t.Fatalf("%s: %d of %v, want %d", name, got, x, want)
			}
		}
	}
}
